"""What cannot be done yet is asked for again and again, and no thread waits in between."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from gridmill.errors import StorageError, UnavailableError

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_PAUSE_SECONDS = (0.1, 5.0)


def may_come(error: BaseException) -> bool:
    """Whether asking again can help: a disk that is full there does not get empty by that."""
    return isinstance(error, UnavailableError) and not isinstance(error, StorageError)


def is_unavailable(error: BaseException) -> bool:
    """Whether asking again can help, as room can be made."""
    return isinstance(error, UnavailableError)


class Asked(Generic[T]):
    """An answer that comes by and by. One thread looks for it; those that `submit` leads to ask, and do
    something else until it is asked for again: whoever waits must not hold up those it waits for."""

    def __init__(
        self, submit: Callable[[], Future[T]], again: Callable[[BaseException], bool] = may_come
    ) -> None:
        """`again` tells of an error whether another asking can help."""
        self._submit, self._again = submit, again
        self._pause_seconds = _PAUSE_SECONDS[0]
        self._due: float | None = None
        self.future = submit()

    def is_there(self) -> bool:
        """Whether `future` has the answer, or an error that stays. When it is time it is asked for again."""
        if self._due is not None and time.monotonic() >= self._due:
            self._due, self.future = None, self._submit()
        if self._due is not None or not self.future.done():
            return False
        error = None if self.future.cancelled() else self.future.exception()
        if error is None or not self._again(error):
            return True
        _LOG.info("carrying_waits reason=%s", error)
        self._due = time.monotonic() + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, _PAUSE_SECONDS[1])
        return False

    @property
    def due_seconds(self) -> float:
        """In how long it is to be asked for again; endless while it is being asked for."""
        return float("inf") if self._due is None else max(0.0, self._due - time.monotonic())
