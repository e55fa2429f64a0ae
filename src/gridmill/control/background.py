"""This module runs slow observations and slow actions in background threads outside the ticks, so that no
tick waits for them.

A later tick processes the results of slow actions under the node's lock, with the records as they are at the
time of this tick.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

THREADS = 16
"""The number of slow actions that run at the same time. An action that hangs (on a folder of a file server
that does not answer) occupies one thread."""


class BackgroundRunner(Protocol):
    """The interface for work in the background: it runs slow functions outside the ticks. The function `act`
    must not use records. The function `then` is called with the result of `act` under the node's lock."""

    def submit(self, key: str, act: Callable[[], T], then: Callable[[Future[T]], None]) -> None:
        """Start the function `act` in the background, unless work with the same key is running or has a
        result that was not processed yet."""

    def is_running(self, key: str) -> bool:
        """Return whether work with that key is running, or has a result that was not processed yet."""

    def apply_results(self) -> bool:
        """Call `then` for all work in the background that has finished. The method returns whether any work
        had finished. The caller holds the node's lock."""

    def has_more(self) -> bool:
        """Return whether work has finished since the last tick."""

    def stop(self, seconds: float) -> None:
        """Wait until all submitted work has finished, but at most for `seconds`. The caller must not hold
        the node's lock."""


class ImmediateRunner:
    """A BackgroundRunner that runs each function immediately, for readers, tests and simulations."""

    def __init__(self) -> None:
        self._settled = False

    def submit(self, key: str, act: Callable[[], T], then: Callable[[Future[T]], None]) -> None:
        """Run `act` immediately, and then call `then` with its result."""
        self._settled = True
        then(completed(act))

    def is_running(self, key: str) -> bool:
        """Return False, because no work is ever pending."""
        return False

    def apply_results(self) -> bool:
        """Return whether work was submitted since the last call."""
        settled, self._settled = self._settled, False
        return settled

    def has_more(self) -> bool:
        """Return whether work was submitted since the last call."""
        return self.apply_results()

    def stop(self, seconds: float) -> None:
        """Do nothing, because no work is ever pending."""


class ThreadRunner:
    """A BackgroundRunner that uses daemon threads. When work has finished, its thread calls `wake`."""

    def __init__(self, wake: Callable[[], None], threads: int = THREADS) -> None:
        self._wake = wake
        self._most_threads = threads
        self._changed = threading.Condition()
        self._keys: set[str] = set()
        self._waiting: deque[Callable[[], None]] = deque()
        self._results: deque[tuple[str, Callable[[], None]]] = deque()
        self._threads = 0
        self._idle = 0

    def submit(self, key: str, act: Callable[[], T], then: Callable[[Future[T]], None]) -> None:
        """See BackgroundRunner."""
        with self._changed:
            if key in self._keys:
                return
            self._keys.add(key)
            self._waiting.append(partial(self._do, key, act, then))
            if self._idle < len(self._waiting) and self._threads < self._most_threads:
                self._threads += 1
                threading.Thread(target=self._work, name="aside", daemon=True).start()
            self._changed.notify()

    def is_running(self, key: str) -> bool:
        """See BackgroundRunner."""
        return key in self._keys

    def apply_results(self) -> bool:
        """See BackgroundRunner."""
        settled = False
        while True:
            with self._changed:
                if not self._results:
                    return settled
                key, take_in = self._results.popleft()
                self._keys.discard(key)
            take_in()
            settled = True

    def has_more(self) -> bool:
        """See BackgroundRunner."""
        return bool(self._results)

    def stop(self, seconds: float) -> None:
        """Wait until all submitted work has finished, but at most for `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._results) == len(self._keys), timeout=seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._waiting)
                self._idle -= 1
                act = self._waiting.popleft()
            act()

    def _do(self, key: str, act: Callable[[], Any], then: Callable[[Future[Any]], None]) -> None:
        future = completed(act)
        with self._changed:
            self._results.append((key, partial(then, future)))
            self._changed.notify_all()
        self._wake()


def completed(act: Callable[[], T]) -> Future[T]:
    """Return a finished future with the result of `act`, or with the error that it raised."""
    future: Future[T] = Future()
    try:
        future.set_result(act())
    except Exception as error:  # noqa: BLE001  raised again when the result is read
        future.set_exception(error)
    return future
