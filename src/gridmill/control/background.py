"""Runs slow observations and slow actions beside the ticks, so that no tick waits for them.

A later tick takes in the result, under the lock, against the records as they are then.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

THREADS = 16
"""How many slow actions run at once. One that hangs (on a folder of an unreachable file server) occupies one
thread."""


class BackgroundRunner(Protocol):
    """The interface of background work: it runs slow functions outside the tick. `act` touches the world
    alone; `then` is called under the node's lock."""

    def submit(self, key: str, act: Callable[[], T], then: Callable[[Future[T]], None]) -> None:
        """Do it, unless the same key is being done: then nothing."""

    def is_running(self, key: str) -> bool:
        """Whether that is being done, or done and not taken in yet."""

    def apply_results(self) -> bool:
        """Take in what was done meanwhile; whether there was anything. Under the lock."""

    def has_more(self) -> bool:
        """Whether anything was done since that a tick should know of."""

    def stop(self, seconds: float) -> None:
        """Wait until all that was asked for is done, at most so long. Without the lock."""


class ImmediateRunner:
    """A BackgroundRunner that runs each function at once: for readers, tests and simulations."""

    def __init__(self) -> None:
        self._settled = False

    def submit(self, key: str, act: Callable[[], T], then: Callable[[Future[T]], None]) -> None:
        """Do it now, and take it in."""
        self._settled = True
        then(completed(act))

    def is_running(self, key: str) -> bool:
        """Nothing is ever left."""
        return False

    def apply_results(self) -> bool:
        """Whether anything was done since last asked."""
        settled, self._settled = self._settled, False
        return settled

    def has_more(self) -> bool:
        """Whether anything was done since."""
        return self.apply_results()

    def stop(self, seconds: float) -> None:
        """Nothing is ever left."""


class ThreadRunner:
    """A BackgroundRunner of daemon threads; `wake` is called, from one of them, when something was done."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._changed = threading.Condition()
        self._keys: set[str] = set()
        self._waiting: deque[Callable[[], None]] = deque()
        self._results: deque[tuple[str, Callable[[], None]]] = deque()
        self._threads = 0
        self._idle = 0

    def submit(self, key: str, act: Callable[[], T], then: Callable[[Future[T]], None]) -> None:
        """See Aside."""
        with self._changed:
            if key in self._keys:
                return
            self._keys.add(key)
            self._waiting.append(partial(self._do, key, act, then))
            if self._idle < len(self._waiting) and self._threads < THREADS:
                self._threads += 1
                threading.Thread(target=self._work, name="aside", daemon=True).start()
            self._changed.notify()

    def is_running(self, key: str) -> bool:
        """See Aside."""
        return key in self._keys

    def apply_results(self) -> bool:
        """See Aside."""
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
        """See Aside."""
        return bool(self._results)

    def stop(self, seconds: float) -> None:
        """Wait until all that was asked for is done, at most so long."""
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
    """What `act` returns or raises, as it is taken in."""
    future: Future[T] = Future()
    try:
        future.set_result(act())
    except Exception as error:  # noqa: BLE001  raised again where it is taken in
        future.set_exception(error)
    return future
