"""The base class of the client: a connection to a control node, and to the next one when it has ended."""

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
"""How long a client looks for the control node that takes over from one that has ended."""

_STORE_SECONDS = 60.0
"""How long a client waits for a database server: the time for a restart or a failover."""
_AGAIN_SECONDS = 0.2


class _ReconnectingGrid:
    """The use cases of whichever control node is up. When the control node ends, the next one is asked:
    whatever was not asked yet, and what got no answer and may be asked twice."""

    def __init__(self, ask: _Ask, ask_once: _Ask) -> None:
        self._ask, self._ask_once = ask, ask_once

    def __getattr__(self, name: str) -> Callable[..., Any]:
        ask = self._ask if use_case(name).may_repeat else self._ask_once

        def call(*given: Any, **named: Any) -> Any:  # noqa: ANN401  as the use case has them
            return ask(lambda grid: getattr(grid, name)(*given, **named))

        return call


class Connected:
    """A connection to a control node. Use as a context manager, or `close()`."""

    def __init_subclass__(cls) -> None:
        """Each family of verbs has its arguments checked."""
        check_methods(cls)

    def __init__(
        self, settings: Settings, *, dial: Callable[[], OpenGrid], attends: set[str] | None = None
    ) -> None:
        self.settings = settings
        self._dial = dial
        self._attends: set[str] = set() if attends is None else attends
        self._warned = set[str]()
        self._grid_connection = self._connect_and_warn()
        self._turn = threading.RLock()  # the control node is changed by one thread at a time

    @property
    def grid(self) -> Grid:
        """The use cases, as the control node offers them."""
        return cast(Grid, _ReconnectingGrid(self._ask_again, self._ask_once))

    @property
    def reading(self) -> bool:
        """True where there is no control node, and its records are read in this process."""
        return self._grid_connection.reading

    def close(self) -> None:
        """Let go; a control node that was started for its clients ends with the last one. May be repeated."""
        self._grid_connection.close()

    def release(self) -> None:
        """No more work comes from this client: a control node that ends with it lets its idle pods end while
        the client is still used to read. May be left out."""
        self._grid_connection.release()

    def wait_for_end(self, seconds: float) -> bool:
        """Whether the control node ends within that time."""
        return self._grid_connection.wait_for_end(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def attend(self, question: Callable[[Grid], RunView], *, detached: bool = False) -> RunView:
        """Start a run, or continue one, that is stopped when this client goes without having seen its end.

        It is asked for once: when the control node ends before it answers, the next one is told that it was
        asked for, and looks whether it was started. With `detached` it goes on when this client goes.
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
        """This client has seen the run's end."""
        self._attends.discard(run)

    def _ask(self, question: Callable[[Grid], T]) -> T:
        """Ask; when the control node has gone meanwhile, ask the one that takes over; when it has lost its
        store's server, ask again until that is back."""
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
        """Ask what must not be done twice: the control node that takes over is asked only where the one that
        has gone was asked nothing."""
        return self._ask_the_next(question, lambda asked, error: isinstance(error, UnreachedError))

    def _ask_again(self, question: Callable[[Grid], T]) -> T:
        """Ask what may be done twice: the control node that takes over is also asked where the one that has
        gone gave no answer."""
        return self._ask_the_next(
            question, lambda asked, error: isinstance(error, UnreachedError) or asked.has_ended()
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
                raise  # it has not ended: no other one takes over
            except UnavailableError as error:
                if connection.reading or time.monotonic() > until or not may_ask(connection, error):
                    raise
            self._replace(connection)

    def _is_current(self, dialled: OpenGrid) -> bool:
        """Once no other thread changes that."""
        with self._turn:
            return self._grid_connection is dialled

    def _replace(self, gone: OpenGrid) -> None:
        with self._turn:
            if self._grid_connection is gone:  # else another thread did
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
        """How the control node's settings differ from ours is said once."""
        dialled = self._dial()
        for notice in dialled.notices:
            if notice not in self._warned:
                print(f"gridmill: {notice}", file=sys.stderr)
        self._warned.update(dialled.notices)
        return dialled


def _is_storage(error: UnavailableError) -> bool:
    """A disk that is full or damaged: that does not pass by itself as a server's absence does."""
    return isinstance(error, StorageError) and not isinstance(error, StoreLostError)
