"""A Ray cluster of one machine for tests: how it is set, and when there is none."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from gridmill.sites.ray.cluster import START, RayNode
from gridmill.testing import ray_cluster as rays
from tests.kit.ports import free_port

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


@contextmanager
def ray_cluster(folder: Path, *, cpus: int = 64, nodes: int = 1) -> Iterator[str]:
    """A cluster's address; `folder` has a short path, for Ray's sockets lie in it. All its nodes are this
    machine, at different addresses."""
    words = (f"--num-cpus={cpus}", f"--memory={64 * GIB}", "--object-store-memory=100000000")
    environment = {**os.environ, **ENVIRONMENT}
    with ExitStack() as stack:
        address = stack.enter_context(rays.ray_cluster(folder, free_port(), environment, *words))
        for number in range(2, nodes + 1):
            stack.enter_context(_further_node(folder, address, number, environment, *words))
        yield address


@contextmanager
def _further_node(
    folder: Path, address: str, number: int, environment: Mapping[str, str], *words: str
) -> Iterator[None]:
    where = (
        f"--address={address}",
        f"--node-ip-address=127.0.0.{number}",
        "--block",
        "--disable-usage-stats",
    )
    log = folder / f"start-{number}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*START, *where, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=dict(environment)
        )
    try:
        RayNode(process=process, log=log).wait_until_up(lambda: None, 180.0)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def remove_homes_on_nodes(home: Path) -> None:
    """Delete the pods' folders that the Ray sites of this control node have by default on their nodes, which
    are this machine. They stay for the next pods, so they outlive a control node that a test killed."""
    for mark in home.glob("**/sites/*/mark"):
        shutil.rmtree(f"/tmp/gridmill-{mark.read_text()}", ignore_errors=True)
