"""A Redis server of the tests' own."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import redis

from tests.e2e.conftest import eventually
from tests.kit.ports import free_port

HOW_TO_GET_IT = "needs a Redis server: apt-get install redis-server"
PASSWORD = "hush-hush"


@contextmanager
def redis_server(folder: Path) -> Iterator[int | None]:
    """The port of a server that has just started and asks for PASSWORD; None where it is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    port = free_port()
    words = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--requirepass", PASSWORD]
    with subprocess.Popen(
        [program, *words, "--dir", str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            assert eventually(lambda: _answers(port))
            yield port
        finally:
            server.terminate()
            server.wait()


def _answers(port: int) -> bool:
    with suppress(redis.ConnectionError):
        return bool(redis.Redis(port=port, password=PASSWORD).ping())
    return False
