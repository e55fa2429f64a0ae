"""A control node that is up (`gridmill up`) in a home of its own, for as long as a benchmark needs it."""

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.contestants import GRIDMILL
from gridmill.domain.run import Run
from gridmill.domain.states import FINISHED_RUNS
from gridmill.errors import GridmillError
from gridmill.ports.grid import Grid
from gridmill.sdk.client import connect

_UP_SECONDS = 30.0
_DOWN_SECONDS = 30.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """The process of the control node, and the grid as a client of another process sees it."""

    pid: int
    grid: Grid


@contextmanager
def up(home: Path, env: Mapping[str, str], *, listen: str = "off") -> Iterator[Up]:
    """`gridmill up`, on `listen` and the home's Unix socket. At the end runs are stopped and pods released.

    Raises TimeoutError when it does not answer.
    """
    command = (str(GRIDMILL), "up", "--listen", listen)
    process = subprocess.Popen(
        command, env={**env, "GRIDMILL_HOME": str(home)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(home, process)
        with connect(home, embed=False) as client:
            try:
                yield Up(pid=process.pid, grid=client.grid)
            finally:
                clear(client.grid)
    finally:
        process.terminate()
        process.wait()


def clear(grid: Grid) -> None:
    """Stop every run, then give back every deployment."""
    deadline = time.monotonic() + _DOWN_SECONDS
    while active := _active(grid):
        for run in active:
            grid.stop_run(run.id)
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
    while (deployments := grid.deployments().items) and time.monotonic() < deadline:
        for deployment in deployments:
            try:
                grid.release(deployment.id)
            except GridmillError:
                continue
        time.sleep(_POLL_SECONDS)


def _active(grid: Grid) -> list[Run]:
    return [run for run in grid.runs(limit=1000).items if run.state not in FINISHED_RUNS]


def _wait_for(home: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _UP_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with connect(home, embed=False) as client:
                client.grid.control()
                return
        except GridmillError:
            time.sleep(_POLL_SECONDS)
    raise TimeoutError("gridmill up did not answer")
