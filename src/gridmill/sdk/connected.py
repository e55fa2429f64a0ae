"""What every verb stands on: a control node that was dialled, and the next one when it has gone."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from gridmill.errors import HomeInUseError, StorageError, StoreLostError, UnavailableError
from gridmill.ports.grid import Grid
from gridmill.sdk.dial import Dialled
from gridmill.settings import Settings

T = TypeVar("T")

_TAKE_OVER_SECONDS = 15.0
"""How long a client looks for the control node that takes over from one that has ended."""

_STORE_SECONDS = 60.0
"""How long a client waits for a database server: as long as one takes to start, or another to take over."""
_AGAIN_SECONDS = 0.2


class Connected:
    """A connection to a control node. Use as a context manager, or `close()`."""

    def __init__(self, settings: Settings, *, dial: Callable[[], Dialled]) -> None:
        self.settings = settings
        self._dial = dial
        self._dialled = dial()
        self._closers: list[Callable[[], None]] = []

    @property
    def grid(self) -> Grid:
        """The use cases, as the control node offers them."""
        return self._dialled.grid

    @property
    def embedded(self) -> bool:
        """True where the control node lives in this process and ends with this client."""
        return self._dialled.embedded

    def close(self) -> None:
        """Let go; an embedded control node ends, and what it brought up with it. May be repeated."""
        while self._closers:
            self._closers.pop()()
        self._dialled.close()

    def release(self) -> None:
        """No more work comes from this client: an embedded control node lets its idle pods end while the
        client is still used to read. May be left out."""
        self._dialled.release()

    def before_close(self, act: Callable[[], None]) -> None:
        """Do `act` when this client is closed, before it lets go."""
        self._closers.append(act)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, question: Callable[[Grid], T]) -> T:
        """Ask; when the control node has gone meanwhile, ask the one that takes over; when it has lost its
        store's server, ask again until that is back."""
        until, lost = time.monotonic() + _STORE_SECONDS, 0
        while True:
            try:
                return question(self.grid)
            except UnavailableError as error:
                lost += 1
                will_stay = _is_storage(error) and (self.embedded or lost > 1)
                if will_stay or time.monotonic() > until:
                    raise
            if not self.embedded:
                self._take_over()
            time.sleep(_AGAIN_SECONDS if lost > 1 else 0.0)

    def _take_over(self) -> None:
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


def _is_storage(error: UnavailableError) -> bool:
    """A disk that is full or damaged: that does not pass by itself as a server's absence does."""
    return isinstance(error, StorageError) and not isinstance(error, StoreLostError)
