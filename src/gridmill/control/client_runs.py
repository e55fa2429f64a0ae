"""This module handles the runs for which a client waits: it stores the environment of their jobs, and stops
a run when its client disconnects."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from gridmill.control.node import ControlNode
from gridmill.control.steps.run_lifecycle import stop_run
from gridmill.domain.frozen import replace
from gridmill.domain.run import Run, RunRequest, RunStart
from gridmill.domain.states import RunState

_NEWEST = 1000
"""If a client does not know whether its run was started some seconds ago, this number of the newest runs is
searched for the run."""


class AttendedRuns:
    """The runs for which clients of one control node wait. If `own_environment` is true, jobs get the
    environment of the control node and not the environment of the client that starts their run.

    Environments of clients can contain secrets. The environments are held only in memory, and are deleted
    together with their run.
    """

    def __init__(
        self,
        node: ControlNode,
        *,
        own_environment: bool,
        on_begin: Callable[[], None] = lambda: None,
    ) -> None:
        self._node, self._own_environment, self._on_begin = node, own_environment, on_begin

    @contextmanager
    def starting(
        self, environment: Mapping[str, str], request: RunRequest, *, again: bool = False
    ) -> Iterator[RunStart]:
        """A context in which the caller starts a run and sets `run_id`. The jobs of the run have that
        environment. With `again`, the client repeats a request because it does not know whether the run was
        started; if the run was started, `run_id` is already set."""
        clients = self._node.control.clients
        with self._node.lock:
            start = RunStart(run_id=self._run_of_request(request.request) if again else "")
            clients.request = request
            try:
                yield start
            finally:
                clients.request = RunRequest()
            if not self._own_environment:
                self._set_environment(start.run_id, environment)
        self._on_begin()

    def _run_of_request(self, request: str) -> str:
        newest = self._node.control.ledger.store.list(Run, newest_first=True, limit=_NEWEST)
        runs = (record.noun for record in newest if isinstance(record.noun, Run))
        return next((run.id for run in runs if request and run.request == request), "")

    def take(self, run: str, environment: Mapping[str, str]) -> None:
        """Attach a client that has reconnected to its run. The run was started by another control node,
        which has ended."""
        with self._node.lock:
            self._set_environment(run, environment)
            self._mark(run)
        self._node.client_is_back(run)

    def stop(self, run: str) -> None:
        """Stop the run of a client that has disconnected. The call to stop the run may be repeated."""
        with self._node.changing() as transaction:
            active_run = self._node.control.ledger.snapshot.runs.get(run)
            if active_run is not None and active_run.state == RunState.ACTIVE:
                stop_run(
                    self._node.control.ledger,
                    self._node.control.channels,
                    self._node.control.candidates,
                    transaction,
                    active_run,
                    None,
                )

    def is_over(self, run: str) -> bool:
        """Return whether the run has ended."""
        with self._node.lock:
            return run not in self._node.control.ledger.snapshot.runs

    def end_waits(self) -> None:
        """End all calls that wait for new events, because the control node stops."""
        self._node.begin_end()

    def _set_environment(self, run: str, environment: Mapping[str, str]) -> None:
        control = self._node.control
        active = control.ledger.snapshot.runs
        for name in [name for name in control.clients.environments if name not in active]:
            del control.clients.environments[name]
        if run in active:
            control.clients.environments[run] = environment

    def _mark(self, run: str) -> None:
        active_run = self._node.control.ledger.snapshot.runs.get(run)
        if active_run is not None and not active_run.attended:
            with self._node.changing() as transaction:
                transaction.put(replace(transaction.get(Run, run) or active_run, attended=True))
