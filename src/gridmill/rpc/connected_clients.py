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
"""The interval at which a stopping run is checked, and stopped again if that failed, in seconds."""
_LOOK_SECONDS = 1.0
_CALLS_SECONDS = 10.0
"""The time that running calls get when the control node ends, in seconds."""


class AttendedRunsPort(Protocol):
    """The functions for runs that end with their client."""

    def begin(
        self,
        start: Callable[[], RunView],
        environment: Mapping[str, str],
        request: RunRequest,
        *,
        again: bool,
    ) -> RunView:
        """Start a run whose jobs get the client's environment, unless an earlier call with the same key
        started it."""

    def take(self, run: str, environment: Mapping[str, str]) -> None:
        """Attach a client to its run, which another control node started."""

    def stop(self, run: str) -> None:
        """Stop the run of a client that has ended."""

    def is_over(self, run: str) -> bool:
        """True if the run has ended."""

    def end_waits(self) -> None:
        """Wake all calls that wait for events, as the control node ends."""


@dataclass(slots=True, kw_only=True)
class AttendedClient:
    """A connected client. `warn` sends it a warning, which it prints."""

    name: str
    pid: int
    command: str
    environment: Mapping[str, str]
    runs: set[str] = field(default_factory=set)
    warn: Callable[[str], None] = lambda warning: None


class Attendance:
    """The connected clients of a control node; safe for several threads. If `stays` is true, the control node
    does not end with its last client."""

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
        """Add a client. Raises UnreachedError if the control node is ending."""
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
        """A connected client by its name. Raises UnreachedError."""
        with self._changed:
            client = self._clients.get(name)
        if client is None:
            raise UnreachedError("this client is not known to the control node", hint="Try again.")
        return client

    def leave(self, client: AttendedClient, stays: Callable[[], None] = lambda: None) -> None:
        """Remove a client and stop the runs for which it waited. `stays` is called if the control node does
        not end with the client."""
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
        """Tie a run to a client: it ends with the client."""
        with self._changed:
            client.runs.add(run)
        self._attended.take(run, client.environment)

    def begin(self, client: AttendedClient, start: Callable[[], RunView], call: Call) -> RunView:
        """Start a run that ends with the client."""
        request = RunRequest(attended=call.attend, request=call.key)
        view = self._attended.begin(start, client.environment, request, again=call.again)
        if not call.attend:
            return view
        with self._changed:
            if client.name in self._clients:
                client.runs.add(view.run.id)
            else:  # the client ended meanwhile
                self._to_stop.add(view.run.id)
                self._changed.notify_all()
        return view

    @contextmanager
    def calling(self) -> Iterator[None]:
        """A context for a running call, during which the control node does not end. Raises UnreachedError if
        the control node is ending already."""
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
        """Keep the control node alive without clients until the returned function is called, as the client
        that started it has not connected yet."""
        with self._changed:
            self._held += 1

        def release() -> None:
            with self._changed:
                self._held -= 1
                self._changed.notify_all()

        return release

    def is_alone(self, client: AttendedClient) -> bool:
        """True if the client is the only one and the control node ends with it."""
        with self._changed:
            return not self.stays and self._clients.keys() == {client.name}

    def views(self) -> tuple[ClientView, ...]:
        """The connected clients."""
        with self._changed:
            clients = [(one, sorted(one.runs)) for one in self._clients.values()]
        return tuple(
            ClientView(pid=one.pid, command=one.command, runs=tuple(filter(self._goes_on, runs)))
            for one, runs in clients
        )

    def _goes_on(self, run: str) -> bool:
        return not self._attended.is_over(run)

    def warn_clients(self, warning: str) -> None:
        """Send a warning to all clients."""
        with self._changed:
            clients = tuple(self._clients.values())
        for client in clients:
            client.warn(warning)

    def keep(self, over: Callable[[], bool]) -> None:
        """Stop the runs of ended clients until `over()` is true. A control node that does not stay also
        returns when no client is connected and these runs have ended; after that it accepts no clients."""
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
            except GridmillError as error:  # the store cannot record the stop at the moment
                self._warn(f"run {run} is not stopped yet, although its client has ended: {explained(error)}")
                continue
            with self._changed:
                self._to_stop.discard(run)

    def wake(self) -> None:
        """Make `keep` call its `over()` again."""
        with self._changed:
            self._changed.notify_all()

    def end(self) -> None:
        """Accept no more clients, and give running calls a short time to end."""
        with self._changed:
            self._ending = True
        self._attended.end_waits()
        with self._changed:
            self._changed.wait_for(lambda: self._calls == 0, timeout=_CALLS_SECONDS)
