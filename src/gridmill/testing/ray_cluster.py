"""Starts a Ray cluster of this machine alone for the duration of a `with` block, and stops all its processes
at the end."""

import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gridmill.sites.ray.cluster import START, RayNode

_START_SECONDS = 180.0
_END_SECONDS = 60.0


@contextmanager
def ray_cluster(folder: Path, port: int, environment: Mapping[str, str], *words: str) -> Iterator[str]:
    """Yields the address of the cluster. The path of `folder` must be short, because Ray makes its sockets
    in this folder. `words` are further arguments for `ray start`. Raises UnavailableError."""
    whole = [
        *(*START, "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}"),
        *("--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder}", *words),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "start.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            whole, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=dict(environment)
        )
    try:
        RayNode(process=process, log=log).wait_until_up(lambda: None, _START_SECONDS)
        yield f"127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_END_SECONDS)
