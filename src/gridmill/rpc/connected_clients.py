"""The clients that are connected to a control node, the runs that end together with their clients, and the
time when the control node may end."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field
from typing import Protocol

from gridmill.domain.frozen import dataclass
from gridmill.domain.run import RunRequest, RunStart
from gridmill.domain.views import ClientView
from gridmill.errors import GridmillError, UnreachedError, explained

_AGAIN_SECONDS = 0.2
"""The interval in seconds at which a stopping run is checked, and is stopped again if the first stop
failed."""
_POLL_SECONDS = 1.0
_CALLS_SECONDS = 10.0
"""The number of seconds that running calls have when the control node ends."""


class AttendedRunsPort(Protocol):
    """The functions for runs that end together with their client."""

    def starting(
        self, environment: Mapping[str, str], request: RunRequest, *, again: bool
    ) -> AbstractContextManager[RunStart]:
        """A context in which the caller starts a run and sets `run_id`. The jobs of the run get the
        environment of the client. With `again`, `run_id` is already set if an earlier call with the same
        request has started the run."""

    def take(self, run: str, environment: Mapping[str, str]) -> None:
        """Connects a client with its run, which another control node started."""

    def stop(self, run: str) -> None:
        """Stops the run of a client that has ended."""

    def is_over(self, run: str) -> bool:
        """Returns True if the run has ended."""

    def end_waits(self) -> None:
        """Wakes all calls that wait for events, because the control node ends."""


@dataclass(slots=True, kw_only=True)
class AttendedClient:
    """A client that is connected. `warn` sends a warning to the client, and the client prints it."""

    name: str
    pid: int
    command: str
    environment: Mapping[str, str]
    runs: set[str] = field(default_factory=set)
    warn: Callable[[str], None] = lambda warning: None


class Attendance:
    """The clients that are connected to a control node. Several threads may use this class. If `stays` is
    true, the control node does not end when its last client ends."""

    def __init__(self, attended: AttendedRunsPort, *, stays: bool, warn: Callable[[str], None]) -> None:
        self.stays = stays
        self._attended, self._warn = attended, warn
        self._changed = threading.Condition()
        self._clients: dict[str, AttendedClient] = {}
        self._numbers = 0
        self._calls = 0
        self._held = 0
        self._stays_long = 0
        self._to_stop: set[str] = set()
        self._ending = False
        self._leaving: list[Callable[[], None]] = []

    def enter(self, pid: int, command: str, environment: Mapping[str, str]) -> AttendedClient:
        """Adds a client. Raises UnreachedError if the control node is ending."""
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
        """Returns a connected client by its name. Raises UnreachedError."""
        with self._changed:
            client = self._clients.get(name)
        if client is None:
            raise UnreachedError("this client is not known to the control node", hint="Try again.")
        return client

    def leave(self, client: AttendedClient, stays: Callable[[], None] = lambda: None) -> None:
        """Removes a client, and stops the runs for which the client waited. The function `stays` is called
        if the control node does not end together with the client."""
        with self._changed:
            if self._clients.pop(client.name, None) is None:
                return
            if not self._ending:
                self._to_stop |= client.runs
            last = not (self._clients or self.stays or self._stays_long)
            if last:
                self._leaving.append(stays)
            self._changed.notify_all()
        if not last:
            stays()

    def attend(self, client: AttendedClient, run: str) -> None:
        """Connects a run with a client, so that the run ends together with the client."""
        with self._changed:
            client.runs.add(run)
        self._attended.take(run, client.environment)

    @contextmanager
    def starting(self, client: AttendedClient, request: RunRequest, *, again: bool) -> Iterator[RunStart]:
        """A context in which the caller starts a run of the client (see AttendedRunsPort). If the request is
        `attended`, the run ends together with the client."""
        with self._attended.starting(client.environment, request, again=again) as start:
            yield start
        if not request.attended:
            return
        with self._changed:
            if client.name in self._clients:
                client.runs.add(start.run_id)
            else:  # the client ended before its run was known, so the run has to be stopped
                self._to_stop.add(start.run_id)
                self._changed.notify_all()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """A context for a running call. The control node does not end inside this context. Raises
        UnreachedError if the control node is already ending."""
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
        """Keeps the control node running without clients until the returned function is called. This method
        is used at the start of a control node, when the client that started the control node has not
        connected yet."""
        with self._changed:
            self._held += 1

        def release() -> None:
            with self._changed:
                self._held -= 1
                self._changed.notify_all()

        return release

    def stay(self) -> Callable[[], None]:
        """Keeps the control node running without clients until the returned function is called, which may
        take minutes. A client that leaves meanwhile does not wait for the end of the control node."""
        with self._changed:
            self._stays_long += 1
            leaving, self._leaving = self._leaving, []
        for say in leaving:
            say()

        def release() -> None:
            with self._changed:
                self._stays_long -= 1
                self._changed.notify_all()

        return release

    def is_alone(self, client: AttendedClient) -> bool:
        """Returns True if this client is the only client and the control node ends together with this
        client."""
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
        """Sends a warning to all clients."""
        with self._changed:
            clients = tuple(self._clients.values())
        for client in clients:
            client.warn(warning)

    def keep(self, over: Callable[[], bool]) -> None:
        """Stops the runs of ended clients until `over()` is true. If the control node does not stay, the
        function also returns when no client is connected and these runs have ended. After its return, the
        control node accepts no clients."""
        while not over():
            self._stop_runs()
            with self._changed:
                if not (self.stays or self._stays_long or self._held or self._clients or self._to_stop):
                    break
                self._changed.wait(_AGAIN_SECONDS if self._to_stop else _POLL_SECONDS)
        self.end()

    def _stop_runs(self) -> None:
        with self._changed:
            waiting = tuple(self._to_stop)
        for run in waiting:
            try:
                if not self._attended.is_over(run):
                    self._attended.stop(run)
                    continue
            # tried again later, because the store cannot record the stop at the moment
            except GridmillError as error:
                self._warn(f"run {run} is not stopped yet, although its client has ended: {explained(error)}")
                continue
            with self._changed:
                self._to_stop.discard(run)

    def wake(self) -> None:
        """Makes the running method `keep` check again whether `over()` is true."""
        with self._changed:
            self._changed.notify_all()

    def end(self) -> None:
        """Accepts no more clients, and gives running calls a short time to end."""
        with self._changed:
            self._ending = True
        self._attended.end_waits()
        with self._changed:
            self._changed.wait_for(lambda: self._calls == 0, timeout=_CALLS_SECONDS)
