"""What every verb stands on: a control node that was dialled, and the next one when it has gone."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from gridmill.errors import HomeInUseError, StorageError, StoreLostError, UnavailableError, UnreachedError
from gridmill.ports.grid import Grid
from gridmill.sdk.arguments import check_methods
from gridmill.sdk.dial import Dialled
from gridmill.sdk.turn import is_asked, wait_for_who_asks
from gridmill.settings import Settings

T = TypeVar("T")

_TAKE_OVER_SECONDS = 15.0
"""How long a client looks for the control node that takes over from one that has ended."""

_STORE_SECONDS = 60.0
"""How long a client waits for a database server: as long as one takes to start, or another to take over."""
_AGAIN_SECONDS = 0.2


class _Reached:
    """The use cases of whichever control node is up: a call that found none, because the one that was dialled
    has just ended, is asked of the next one."""

    def __init__(self, ask: Callable[[Callable[[Grid], Any]], Any]) -> None:
        self._ask = ask

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:  # noqa: ANN401  as the use case has them
            return self._ask(lambda grid: getattr(grid, name)(*given, **named))

        return call


class Connected:
    """A connection to a control node. Use as a context manager, or `close()`."""

    def __init_subclass__(cls) -> None:
        """Each family of verbs has its arguments checked."""
        check_methods(cls)

    def __init__(self, settings: Settings, *, dial: Callable[[], Dialled]) -> None:
        self.settings = settings
        self._dial = dial
        self._dialled = dial()
        self._closers: list[Callable[[], None]] = []
        self._turn = (
            threading.RLock()
        )  # the control node is changed, and others let in, by one thread at a time

    @property
    def grid(self) -> Grid:
        """The use cases, as the control node offers them."""
        return cast(Grid, _Reached(self._ask_once))

    @property
    def embedded(self) -> bool:
        """True where the control node lives in this process and ends with this client."""
        return self._dialled.embedded

    def close(self) -> None:
        """Let go; an embedded control node ends, and what it brought up with it. May be repeated."""
        self._close_closers()
        self._dialled.close()

    def _close_closers(self) -> None:
        while self._closers:
            self._closers.pop()()

    def release(self) -> None:
        """No more work comes from this client: an embedded control node lets its idle pods end while the
        client is still used to read. May be left out."""
        self._dialled.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, question: Callable[[Grid], T]) -> T:
        """Ask; when the control node has gone meanwhile, ask the one that takes over; when it has lost its
        store's server, ask again until that is back. One that is embedded gives way first to one that comes
        to stay."""
        if self._has_to_give_way():
            self._give_way()
        until, lost = time.monotonic() + _STORE_SECONDS, 0
        while True:
            asked = self._dialled
            try:
                return question(asked.grid)
            except UnavailableError as error:
                lost += 1
                will_stay = _is_storage(error) and (asked.embedded or lost > 1)
                if (will_stay and self._is_current(asked)) or time.monotonic() > until:
                    raise
            if not asked.embedded:
                self._replace(asked)
            time.sleep(_AGAIN_SECONDS if lost > 1 else 0.0)

    def _ask_once(self, question: Callable[[Grid], T]) -> T:
        """Ask what must not be done twice: the control node that takes over is asked only where the one that
        has gone was asked nothing."""
        until = time.monotonic() + _TAKE_OVER_SECONDS
        while True:
            asked = self._dialled
            try:
                return question(asked.grid)
            except UnreachedError:
                if asked.embedded or time.monotonic() > until:
                    raise
            self._replace(asked)

    def _has_to_give_way(self) -> bool:
        return self._dialled.give_way is not None and is_asked(self.settings.home)

    def _is_current(self, dialled: Dialled) -> bool:
        """Once no other thread changes that."""
        with self._turn:
            return self._dialled is dialled

    def _give_way(self) -> None:
        """The control node here ends; what it brought up, and the runs, go on with the next one."""
        with self._turn:
            end = self._dialled.give_way
            if end is None or not self._has_to_give_way():
                return  # another thread did, or who asked has given up
            self._close_closers()
            end()
            self._take_over()

    def _replace(self, gone: Dialled) -> None:
        with self._turn:
            if self._dialled is gone:  # else another thread did
                self._take_over()

    def _take_over(self) -> None:
        wait_for_who_asks(self.settings.home)
        until = time.monotonic() + _TAKE_OVER_SECONDS
        while True:
            try:
                self._dialled.close()
                self._dialled = self._dial()
                self.grid.control()
                return
            except (UnavailableError, HomeInUseError):
                if time.monotonic() > until:
                    raise
            time.sleep(0.2)


def let_others_in(client: Connected, listen: Callable[[Grid], Callable[[], None]]) -> None:
    """`listen` makes an embedded control node reachable and gives what ends that: it is called before the
    control node ends. One that lives elsewhere, or meanwhile does, needs nothing."""
    with client._turn:
        if client.embedded:
            client._closers.append(listen(client.grid))


def _is_storage(error: UnavailableError) -> bool:
    """A disk that is full or damaged: that does not pass by itself as a server's absence does."""
    return isinstance(error, StorageError) and not isinstance(error, StoreLostError)
