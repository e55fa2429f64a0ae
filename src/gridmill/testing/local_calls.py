"""Serves any grid to the clients of a home, in the same way as a control node."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gridmill.domain.run import RunRequest, RunStart
from gridmill.domain.states import FINISHED_RUNS
from gridmill.ports.grid import Grid
from gridmill.rpc.client import SOCKET
from gridmill.rpc.connected_clients import Attendance
from gridmill.rpc.server import CallServer


class GridRuns:
    """Manages the runs of a grid whose jobs have no separate environment."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.environments: dict[str, Mapping[str, str]] = {}
        self._started: dict[str, str] = {}

    @contextmanager
    def starting(
        self, environment: Mapping[str, str], request: RunRequest, *, again: bool
    ) -> Iterator[RunStart]:
        """A context in which the caller starts a run, unless it was started before."""
        start = RunStart(run_id=self._started.get(request.request, "") if again else "")
        yield start
        self._started[request.request] = start.run_id
        self.environments[start.run_id] = environment

    def take(self, run: str, environment: Mapping[str, str]) -> None:
        """Records that the client of the run is connected again."""
        self.environments[run] = environment

    def stop(self, run: str) -> None:
        """Stops the run, because its client has disconnected."""
        self._grid.stop_run(run)

    def is_over(self, run: str) -> bool:
        """Returns whether the run has ended."""
        return self._grid.run(run).run.state in FINISHED_RUNS

    def end_waits(self) -> None:
        """Does nothing, because calls of such a grid are short."""


class ServedGrid:
    """Serves a grid at HOME/client.sock until `stop` is called. A caller that runs `attendance.keep` sets
    `ended`."""

    def __init__(self, grid: Grid, home: Path, *, stays: bool = True) -> None:
        self.runs = GridRuns(grid)
        self.attendance = Attendance(self.runs, stays=stays, warn=lambda message: None)
        self.ended_for_server = False
        self.ended = threading.Event()
        self._server = CallServer(home / SOCKET, grid, self.attendance, give_way=self._on_end_request)

    def _on_end_request(self) -> None:
        self.ended_for_server = True

    def stop(self) -> None:
        """Accepts no more clients and closes all connections, as happens at the end of a process."""
        self.attendance.end()
        self._server.close()
        self._server.cut()
