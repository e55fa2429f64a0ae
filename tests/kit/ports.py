"""Ports for servers of the tests' own, which nobody takes between their being chosen and listened on."""

import fcntl
import os
import secrets
import socket
import tempfile
from pathlib import Path

from tests.kit.left_behind import RUN

_FIRST, _COUNT = 4_000, 6_000


def free_port() -> int:
    """A port of this machine's loopback that nobody listens on.

    It lies below those that Ray's workers (10,000 to 19,999) and ranks of gangs take, and those that the
    kernel gives to connections and to whoever asks for any port. No process of this run is given the same
    one for a long time: the last one is kept in a file. The first is drawn, for runs side by side.
    """
    with _kept().open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        last = int(file.read() or secrets.randbelow(_COUNT))
        port = next(
            at for at in (_FIRST + (last + step) % _COUNT for step in range(1, _COUNT)) if _is_free(at)
        )
        file.truncate(0)
        file.write(str(port - _FIRST))
    return port


def _kept() -> Path:
    run = os.environ.get(RUN)
    return Path(run) / "ports" if run else Path(tempfile.gettempdir()) / f"gridmill-test-ports-{os.geteuid()}"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
