"""Chunks in flight to one place: each is sent once, even if several transfers need it at the same time.

A later transfer waits for the first and sends the chunks that the first did not deliver.
"""

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from gridmill.errors import InterruptedRunError

_LOOK_SECONDS = 0.5
"""A waiting transfer sees within this time that it was stopped."""


class ChunksInFlight:
    """The chunks in flight. Safe to use from several threads. A thread with chunks in flight never waits, so
    there is no deadlock."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._chunks: set[str] = set()

    @contextmanager
    def taken(self, lacking: Iterable[str]) -> Iterator[frozenset[str]]:
        """The missing chunks that no other transfer sends. They belong to the caller inside the `with`
        block."""
        with self._changed:
            mine = frozenset(chunk for chunk in lacking if chunk not in self._chunks)
            self._chunks |= mine
        try:
            yield mine
        finally:
            with self._changed:
                self._chunks -= mine
                self._changed.notify_all()

    def wait(self, chunks: Collection[str], stop: threading.Event) -> None:
        """Waits until no transfer sends any of these. Raises InterruptedRunError after `stop` is set."""
        with self._changed:
            while not stop.is_set():
                if self._chunks.isdisjoint(chunks):
                    return
                self._changed.wait(_LOOK_SECONDS)
        raise InterruptedRunError(
            "the transfer was stopped", hint="Chunks that arrived are kept and are not sent again."
        )
