"""The base class of the client, which connects to a control node. If the control node ends, the client
connects to the next control node."""

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar, cast

from gridmill.domain.views import RunView
from gridmill.errors import (
    HomeInUseError,
    HungNodeError,
    StorageError,
    StoreLostError,
    UnavailableError,
    UnreachedError,
)
from gridmill.ports.grid import Grid
from gridmill.ports.usecases import use_case
from gridmill.sdk.arguments import check_methods
from gridmill.sdk.discovery import OpenGrid
from gridmill.settings import Settings

T = TypeVar("T")
_Ask: TypeAlias = Callable[[Callable[[Grid], Any]], Any]

_TAKE_OVER_SECONDS = 15.0
"""The time in seconds for which a client searches for the next control node after a control node has
ended."""

_STORE_SECONDS = 60.0
"""The time in seconds for which a client waits for a database server, which is enough for a restart or a
failover."""
_AGAIN_SECONDS = 0.2


class _ReconnectingGrid:
    """An object with all use cases of the running control node as methods. If the control node ends, the
    next control node gets the calls that were not sent yet, and the calls without an answer that can be
    repeated."""

    def __init__(self, ask: _Ask, ask_once: _Ask) -> None:
        self._ask, self._ask_once = ask, ask_once

    def __getattr__(self, name: str) -> Callable[..., Any]:
        ask = self._ask if use_case(name).may_repeat else self._ask_once

        def call(*given: Any, **named: Any) -> Any:  # noqa: ANN401  as the use case has them
            return ask(lambda grid: getattr(grid, name)(*given, **named))

        return call


class Connected:
    """A connection to a control node. Use the connection as a context manager, or call `close()`."""

    def __init_subclass__(cls) -> None:
        """Wrap the methods of each subclass, so that their arguments are checked."""
        check_methods(cls)

    def __init__(
        self, settings: Settings, *, dial: Callable[[], OpenGrid], attends: set[str] | None = None
    ) -> None:
        self.settings = settings
        self._dial = dial
        self._attends: set[str] = set() if attends is None else attends
        self._warned = set[str]()
        self._grid_connection = self._connect_and_warn()
        self._turn = threading.RLock()  # held so that only one thread at a time replaces the connection

    @property
    def grid(self) -> Grid:
        """The plain use cases of the control node (gridmill.ports.grid)."""
        return cast(Grid, _ReconnectingGrid(self._ask_again, self._ask_once))

    @property
    def reading(self) -> bool:
        """True if no control node is running, and this process itself reads the records."""
        return self._grid_connection.reading

    def close(self) -> None:
        """Close the connection. A control node that was started for its clients ends when its last client
        closes the connection. The method may be called several times."""
        self._grid_connection.close()

    def release(self) -> None:
        """Declare that this client starts no more runs. After this call, a control node that was started for
        its clients can end idle pods earlier. The client can still read records. This call is optional."""
        self._grid_connection.release()

    def wait_for_end(self, seconds: float) -> bool:
        """Wait for the end of the control node. Return False if the control node is still running after
        `seconds`."""
        return self._grid_connection.wait_for_end(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def attend(self, question: Callable[[Grid], RunView], *, detached: bool = False) -> RunView:
        """Start or continue a run. If this client ends before the run, the run is stopped.

        The run is started only once. If the control node ends before it answers the call, the next control
        node checks whether the run was started. With `detached`, the run continues when this client ends.
        """
        until, again, key = time.monotonic() + _STORE_SECONDS, False, os.urandom(16).hex()
        while True:
            connection = self._grid_connection
            if connection.starting is None:
                view = self._ask_once(question)
                break
            try:
                view = question(connection.starting(not detached, key, again))
                break
            except UnreachedError:
                if time.monotonic() > until:
                    raise
            except UnavailableError:
                again = True
                if not connection.has_ended() or time.monotonic() > until:
                    raise
            self._replace(connection)
        if not detached:
            self._attends.add(view.run.id)
        return view

    def _has_ended(self, run: str) -> None:
        """Record that the run has ended, so that the end of this client does not stop it."""
        self._attends.discard(run)

    def _ask(self, question: Callable[[Grid], T]) -> T:
        """Make a call. If the control node has ended, call the next control node. If the control node lost
        the server of its store, retry until the server can be reached again."""
        until, lost = time.monotonic() + _STORE_SECONDS, 0
        while True:
            connection = self._grid_connection
            try:
                return question(connection.grid)
            except HungNodeError:
                raise
            except UnavailableError as error:
                lost += 1
                will_stay = _is_storage(error) and (connection.reading or lost > 1)
                if (will_stay and self._is_current(connection)) or time.monotonic() > until:
                    raise
            if connection.has_ended():
                self._replace(connection)
            time.sleep(_AGAIN_SECONDS if lost > 1 else 0.0)

    def _ask_once(self, question: Callable[[Grid], T]) -> T:
        """Make a call that must not be repeated. The next control node is called only if the call was not
        sent to the control node that ended."""
        return self._ask_the_next(question, lambda connection, error: isinstance(error, UnreachedError))

    def _ask_again(self, question: Callable[[Grid], T]) -> T:
        """Make a call that can be repeated. The next control node is called also if the control node that
        ended gave no answer."""
        return self._ask_the_next(
            question, lambda connection, error: isinstance(error, UnreachedError) or connection.has_ended()
        )

    def _ask_the_next(
        self, question: Callable[[Grid], T], may_ask: Callable[[OpenGrid, UnavailableError], bool]
    ) -> T:
        until = time.monotonic() + _TAKE_OVER_SECONDS
        while True:
            connection = self._grid_connection
            try:
                return question(connection.grid)
            except HungNodeError:
                raise  # a control node that hangs has not ended, so no other control node can take over
            except UnavailableError as error:
                if connection.reading or time.monotonic() > until or not may_ask(connection, error):
                    raise
            self._replace(connection)

    def _is_current(self, dialled: OpenGrid) -> bool:
        """Return True if the connection was not replaced. If another thread is replacing the connection,
        wait for it."""
        with self._turn:
            return self._grid_connection is dialled

    def _replace(self, gone: OpenGrid) -> None:
        with self._turn:
            if self._grid_connection is gone:  # otherwise another thread has reconnected already
                self._take_over()

    def _take_over(self) -> None:
        until = time.monotonic() + _TAKE_OVER_SECONDS
        while True:
            try:
                self._grid_connection.close()
                self._grid_connection = self._connect_and_warn()
                self._grid_connection.grid.control()
                return
            except HungNodeError:
                raise
            except (UnavailableError, HomeInUseError):
                if time.monotonic() > until:
                    raise
            time.sleep(_AGAIN_SECONDS)

    def _connect_and_warn(self) -> OpenGrid:
        """Connect to the control node, and warn once about settings of the control node that differ from the
        settings of the client."""
        dialled = self._dial()
        for notice in dialled.notices:
            if notice not in self._warned:
                print(f"gridmill: {notice}", file=sys.stderr)
        self._warned.update(dialled.notices)
        return dialled


def _is_storage(error: UnavailableError) -> bool:
    """Return True if the error is a full or damaged disk. A full or damaged disk does not recover by itself,
    unlike a server that cannot be reached."""
    return isinstance(error, StorageError) and not isinstance(error, StoreLostError)
