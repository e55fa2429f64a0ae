"""A Ray cluster of one machine for tests: started for a module, ended with all its processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ports import free_port

GIB = 2**30
ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="no Ray here: pip install 'gridmill[ray]'")


def start_words(*words: str) -> list[str]:
    """`ray start` by this Python, in the foreground."""
    quiet = ("--block", "--disable-usage-stats", "--object-store-memory=100000000")
    return [sys.executable, "-m", "ray.scripts.scripts", "start", *words, *quiet]


@contextmanager
def ray_cluster(folder: Path, *, cpus: int = 64) -> Iterator[str]:
    """A cluster's address; `folder` has a short path, for Ray's sockets lie in it."""
    address = f"127.0.0.1:{free_port()}"
    words = start_words(
        "--head",
        "--node-ip-address=127.0.0.1",
        f"--port={address.rpartition(':')[2]}",
        "--include-dashboard=false",
        f"--num-cpus={cpus}",
        f"--memory={64 * GIB}",
        f"--temp-dir={folder}",
    )
    log = folder / "start.log"
    folder.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **ENVIRONMENT}
        )
    try:
        _wait_until_up(process, log)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _wait_until_up(process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + 180
    while b"--block" not in log.read_bytes().rpartition(b"Ray runtime started")[2]:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)
