"""An S3 server of the tests' own: moto's, in an environment of its own, as its needs are not ours."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.kit.ports import free_port

HOW_TO_GET_IT = (
    "needs moto's S3 server: python3 -m venv .moto && .moto/bin/pip install 'moto[s3,server]==5.2.5'"
)
KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_DEADLINE_SECONDS = 300.0


def program() -> str | None:
    """Where the server's program is; None without it."""
    own = Path(__file__).parents[2] / ".moto" / "bin" / "moto_server"
    return str(own) if own.exists() else shutil.which("moto_server")


@contextmanager
def object_store(host: str = "127.0.0.1") -> Iterator[str | None]:
    """The endpoint of a server that has just started at that address; None where it is not installed."""
    found = program()
    if found is None:
        yield None
        return
    port = free_port()
    words = [found, "-H", host, "-p", str(port)]
    with subprocess.Popen(
        words, env=os.environ | KEYS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            _wait(server, host, port)
            yield f"http://{host}:{port}"
        finally:
            server.kill()


def make_bucket(endpoint: str, name: str) -> None:
    """A new, empty bucket."""
    who = "AWS4-HMAC-SHA256 Credential=test/20240101/us-east-1/s3/aws4_request"
    httpx.put(f"{endpoint}/{name}", headers={"Authorization": who}, timeout=120).raise_for_status()


def _wait(server: "subprocess.Popen[bytes]", host: str, port: int) -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((host, port)) == 0:
                return
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("moto_server does not start")
        time.sleep(0.02)
