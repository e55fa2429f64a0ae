"""A Ray cluster of this machine alone. It is told of twice as many CPUs as there are: one half is for pods,
which keep theirs while they are up, the other for tasks beside them. They never work at the same time."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_START_SECONDS = 90.0
_UP = b"Ray runtime started"


@contextmanager
def ray_cluster(folder: Path, env: Mapping[str, str]) -> Iterator[str]:
    """Its address. `folder` has a short path: Ray's sockets lie in it. Raises TimeoutError."""
    address = f"127.0.0.1:{_free_port()}"
    words = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--node-ip-address=127.0.0.1", f"--port={address.rpartition(':')[2]}", "--include-dashboard=false"),
        *(f"--num-cpus={2 * len(os.sched_getaffinity(0))}", "--object-store-memory=200000000"),
        *("--disable-usage-stats", f"--temp-dir={folder}"),
    ]
    folder.mkdir(parents=True)
    log = folder / "start.log"
    with log.open("wb") as out:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=dict(env))
    try:
        _wait_for(process, log)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _wait_for(process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while _UP not in log.read_bytes():
        if process.poll() is not None or time.monotonic() > deadline:
            raise TimeoutError(f"Ray did not start: {log.read_text()[-2000:]}")
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])
