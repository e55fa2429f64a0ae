"""Coordinates the chunks that are in flight to one place, so that each chunk is sent once even if several
transfers need it at the same time.

A later transfer waits for the first transfer, and then sends the chunks that the first one did not deliver.
"""

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from gridmill.errors import InterruptedRunError

_POLL_SECONDS = 0.5
"""A waiting transfer notices within this number of seconds that it was stopped."""


class ChunksInFlight:
    """The chunks that are in flight. This class is safe to use from several threads. A thread that has
    chunks in flight never waits, so there is no deadlock."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._chunks: set[str] = set()

    @contextmanager
    def taken(self, lacking: Iterable[str]) -> Iterator[frozenset[str]]:
        """Yields the missing chunks that no other transfer is sending. Inside the `with` block, only the
        caller sends these chunks."""
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
        """Waits until no transfer is sending any of these chunks. Raises InterruptedRunError after `stop` is
        set."""
        with self._changed:
            while not stop.is_set():
                if self._chunks.isdisjoint(chunks):
                    return
                self._changed.wait(_POLL_SECONDS)
        raise InterruptedRunError(
            "the transfer was stopped", hint="Chunks that arrived are kept and are not sent again."
        )
