"""Runs of clients: the environment of their jobs, and their end when the client that waits for them goes."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from gridmill.control.begin import stop_run
from gridmill.control.node import ControlNode
from gridmill.model.run import Run
from gridmill.model.state import RunState
from gridmill.model.view import RunView


class AttendedRuns:
    """Runs on one node. With `own_environment` jobs have the control node's environment, whoever starts them.

    Environments may hold secrets: they are in memory alone, and go with their run.
    """

    def __init__(
        self, node: ControlNode, *, own_environment: bool, on_begin: Callable[[], None] = lambda: None
    ) -> None:
        self._node, self._own_environment, self._on_begin = node, own_environment, on_begin

    def begin(self, start: Callable[[], RunView], environment: Mapping[str, str]) -> RunView:
        """Start a run whose jobs have that environment."""
        with self._node.lock:
            view = start()
            if not self._own_environment:
                self._dress(view.run.id, environment)
        self._on_begin()
        return view

    def begin_attended(self, start: Callable[[], RunView], environment: Mapping[str, str]) -> RunView:
        """The same, of one that ends with its client."""
        with self._node.lock:
            view = self.begin(start, environment)
            self._mark(view.run.id)
        return view

    def take(self, run: str, environment: Mapping[str, str]) -> None:
        """The client of a run that another control node began is back."""
        with self._node.lock:
            self._dress(run, environment)
            self._mark(run)
        self._node.client_is_back(run)

    def stop(self, run: str) -> None:
        """Its client has gone. May be repeated."""
        with self._node.changing() as transaction:
            found = self._node.control.ledger.snapshot.runs.get(run)
            if found is not None and found.state == RunState.ACTIVE:
                stop_run(self._node.control, transaction, found, None)

    def is_over(self, run: str) -> bool:
        """Whether it has ended."""
        with self._node.lock:
            return run not in self._node.control.ledger.snapshot.runs

    def end_waits(self) -> None:
        """The control node ends: who waits for news gets none."""
        self._node.begin_end()

    def _dress(self, run: str, environment: Mapping[str, str]) -> None:
        control = self._node.control
        active = control.ledger.snapshot.runs
        for name in [name for name in control.environments if name not in active]:
            del control.environments[name]
        if run in active:
            control.environments[run] = environment

    def _mark(self, run: str) -> None:
        found = self._node.control.ledger.snapshot.runs.get(run)
        if found is not None and not found.attended:
            with self._node.changing() as transaction:
                transaction.put(replace(transaction.get(Run, run) or found, attended=True))
