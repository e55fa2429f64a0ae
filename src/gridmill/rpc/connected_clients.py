"""The connected clients of a control node, the runs that end with them, and when the node may end itself."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import Protocol

from gridmill.domain.frozen import dataclass
from gridmill.domain.run import RunRequest
from gridmill.domain.views import ClientView, RunView
from gridmill.errors import GridmillError, UnreachedError, explained
from gridmill.rpc.protocol import Call

_AGAIN_SECONDS = 0.2
"""How often a stopped run is checked for its end, and stopped again if that failed."""
_LOOK_SECONDS = 1.0
_CALLS_SECONDS = 10.0
"""How long running calls may take when the control node ends."""


class AttendedRunsPort(Protocol):
    """Runs that end with their client."""

    def begin(
        self,
        start: Callable[[], RunView],
        environment: Mapping[str, str],
        request: RunRequest,
        *,
        again: bool,
    ) -> RunView:
        """Start a run whose jobs have that environment, unless that was done when it was asked for before."""

    def take(self, run: str, environment: Mapping[str, str]) -> None:
        """The client of a run that another control node began is back."""

    def stop(self, run: str) -> None:
        """Its client has gone."""

    def is_over(self, run: str) -> bool:
        """Whether it has ended."""

    def end_waits(self) -> None:
        """The control node ends: who waits for news gets none."""


@dataclass(slots=True, kw_only=True)
class AttendedClient:
    """A connected client. `warn` sends it a warning to show."""

    name: str
    pid: int
    command: str
    environment: Mapping[str, str]
    runs: set[str] = field(default_factory=set)
    warn: Callable[[str], None] = lambda warning: None


class Attendance:
    """Safe for several threads. `stays`: the control node does not end with its last client."""

    def __init__(self, attended: AttendedRunsPort, *, stays: bool, warn: Callable[[str], None]) -> None:
        self.stays = stays
        self._attended, self._warn = attended, warn
        self._changed = threading.Condition()
        self._clients: dict[str, AttendedClient] = {}
        self._numbers = 0
        self._calls = 0
        self._held = 0
        self._to_stop: set[str] = set()
        self._ending = False
        self._leaving: list[Callable[[], None]] = []

    def enter(self, pid: int, command: str, environment: Mapping[str, str]) -> AttendedClient:
        """A client comes. Raises UnreachedError when the control node ends."""
        with self._changed:
            self._want_open()
            self._numbers += 1
            client = AttendedClient(
                name=f"{self._numbers}", pid=pid, command=command, environment=environment
            )
            self._clients[client.name] = client
            leaving, self._leaving = self._leaving, []
        for say in leaving:
            say()
        return client

    def client(self, name: str) -> AttendedClient:
        """One that is here. Raises UnreachedError."""
        with self._changed:
            client = self._clients.get(name)
        if client is None:
            raise UnreachedError("this client is not known to the control node", hint="Try again.")
        return client

    def leave(self, client: AttendedClient, stays: Callable[[], None] = lambda: None) -> None:
        """A client has gone: so do the runs that it waited for. `stays` is called when the control node does
        not end with it."""
        with self._changed:
            if self._clients.pop(client.name, None) is None:
                return
            if not self._ending:
                self._to_stop |= client.runs
            last = not self._clients and not self.stays
            if last:
                self._leaving.append(stays)
            self._changed.notify_all()
        if not last:
            stays()

    def attend(self, client: AttendedClient, run: str) -> None:
        """The run ends with the client."""
        with self._changed:
            client.runs.add(run)
        self._attended.take(run, client.environment)

    def begin(self, client: AttendedClient, start: Callable[[], RunView], call: Call) -> RunView:
        """Start a run for the client."""
        request = RunRequest(attended=call.attend, request=call.key)
        view = self._attended.begin(start, client.environment, request, again=call.again)
        if not call.attend:
            return view
        with self._changed:
            if client.name in self._clients:
                client.runs.add(view.run.id)
            else:  # it went meanwhile
                self._to_stop.add(view.run.id)
                self._changed.notify_all()
        return view

    @contextmanager
    def calling(self) -> Iterator[None]:
        """A call under way: the control node does not end within. Raises UnreachedError when it ends
        already."""
        with self._changed:
            self._want_open()
            self._calls += 1
        try:
            yield
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    def _want_open(self) -> None:
        if self._ending:
            raise UnreachedError("the control node ends", hint="Try again.")

    def hold(self) -> Callable[[], None]:
        """Until what this gives is called, the control node does not end though nobody is here: who started
        it is on its way."""
        with self._changed:
            self._held += 1

        def release() -> None:
            with self._changed:
                self._held -= 1
                self._changed.notify_all()

        return release

    def is_alone(self, client: AttendedClient) -> bool:
        """Whether no other client is here, and the control node ends with this one."""
        with self._changed:
            return not self.stays and self._clients.keys() == {client.name}

    def views(self) -> tuple[ClientView, ...]:
        """Who is here."""
        with self._changed:
            clients = [(one, sorted(one.runs)) for one in self._clients.values()]
        return tuple(
            ClientView(pid=one.pid, command=one.command, runs=tuple(filter(self._goes_on, runs)))
            for one, runs in clients
        )

    def _goes_on(self, run: str) -> bool:
        return not self._attended.is_over(run)

    def warn_clients(self, warning: str) -> None:
        """To all clients."""
        with self._changed:
            clients = tuple(self._clients.values())
        for client in clients:
            client.warn(warning)

    def keep(self, over: Callable[[], bool]) -> None:
        """Stop runs of clients that have gone, until `over()`, or, unless it stays, until nobody is here and
        these runs have ended; then nobody comes in any more."""
        while not over():
            self._stop_runs()
            with self._changed:
                if not (self.stays or self._held or self._clients or self._to_stop):
                    break
                self._changed.wait(_AGAIN_SECONDS if self._to_stop else _LOOK_SECONDS)
        self.end()

    def _stop_runs(self) -> None:
        with self._changed:
            waiting = tuple(self._to_stop)
        for run in waiting:
            try:
                if not self._attended.is_over(run):
                    self._attended.stop(run)
                    continue
            except GridmillError as error:  # the store does not take it now
                self._warn(f"{run}, whose client has gone, is not stopped yet: {explained(error)}")
                continue
            with self._changed:
                self._to_stop.discard(run)

    def wake(self) -> None:
        """Look at `over()` of `keep` again."""
        with self._changed:
            self._changed.notify_all()

    def end(self) -> None:
        """Nobody comes in any more; calls under way get a moment."""
        with self._changed:
            self._ending = True
        self._attended.end_waits()
        with self._changed:
            self._changed.wait_for(lambda: self._calls == 0, timeout=_CALLS_SECONDS)
