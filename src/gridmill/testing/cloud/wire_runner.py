"""Runs slow actions in simulated time, so that other things happen between an action and its result."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from math import inf
from random import Random
from typing import Any, TypeVar

from gridmill.control.background import completed
from gridmill.testing.clock import FakeClock

T = TypeVar("T")
STEP_SECONDS = 0.1
"""Actions are executed at multiples of this time, so that a simulation has fewer steps."""


class WireRunner:
    """A BackgroundRunner for simulations. Each action is executed up to `seconds` after it was submitted, and
    its result is available for the next tick. If the control node dies, each action that waits is executed
    or dropped at random, because the request may already have left the machine."""

    def __init__(self, clock: FakeClock, random: Random, seconds: float = 0.5) -> None:
        self._clock, self._random, self._seconds = clock, random, seconds
        self._waiting: list[tuple[float, str, Callable[[], Any], Callable[[Future[Any]], None]]] = []
        self._results: list[tuple[str, Callable[[], None]]] = []
        self._keys: set[str] = set()

    def submit(self, key: str, act: Callable[[], T], then: Callable[[Future[T]], None]) -> None:
        """See BackgroundRunner."""
        if key not in self._keys:
            self._keys.add(key)
            due = self._clock.monotonic() + self._random.uniform(0.0, self._seconds)
            due = max(due, -(-due // STEP_SECONDS) * STEP_SECONDS)
            self._waiting.append((due, key, act, then))

    def is_running(self, key: str) -> bool:
        """See BackgroundRunner."""
        return key in self._keys

    def apply_results(self) -> bool:
        """See BackgroundRunner."""
        results, self._results = self._results, []
        for key, take in results:
            self._keys.discard(key)
            take()
        return bool(results)

    def has_more(self) -> bool:
        """See BackgroundRunner."""
        return bool(self._results)

    def stop(self, seconds: float) -> None:
        """Executes everything that waits."""
        while self._waiting:
            self._execute(self._waiting.pop(0))

    def next_event(self) -> float:
        """Returns the monotonic time at which the next action is executed."""
        return min((due for due, *_ in self._waiting), default=inf)

    def step(self) -> None:
        """Executes the actions that are due."""
        now = self._clock.monotonic()
        due = [one for one in self._waiting if one[0] <= now]
        for one in sorted(due, key=lambda each: each[0]):
            self._waiting.remove(one)
            self._execute(one)

    def _execute(self, one: tuple[float, str, Callable[[], Any], Callable[[Future[Any]], None]]) -> None:
        _, key, act, then = one
        future = completed(act)
        self._results.append((key, partial(then, future)))

    def die(self, swallow: type[BaseException]) -> None:
        """Ends the runner as SIGKILL does. Actions that leave the machine nevertheless may raise
        `swallow`."""
        waiting, self._waiting, self._results = self._waiting, [], []
        self._keys.clear()
        for _, _, act, _ in waiting:
            if self._random.random() < 0.5:
                try:
                    completed(act)
                except swallow:
                    continue
