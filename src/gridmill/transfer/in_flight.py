"""Chunks on their way to one place: each travels once, however many transfers need it at the same time.

Who comes second waits for the first, and sends what the first did not bring.
"""

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from gridmill.errors import InterruptedRunError

_LOOK_SECONDS = 0.5
"""How soon a transfer that waits sees that it was stopped."""


class ChunksInFlight:
    """Safe to use from several threads. Nobody waits while it holds chunks itself, so none can wait for each
    other."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._chunks: set[str] = set()

    @contextmanager
    def taken(self, lacking: Iterable[str]) -> Iterator[frozenset[str]]:
        """Those of the lacking chunks that nobody else is sending: they are the caller's while inside."""
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
        """Until nobody sends any of these. Raises InterruptedRunError once `stop` is set."""
        with self._changed:
            while not stop.is_set():
                if self._chunks.isdisjoint(chunks):
                    return
                self._changed.wait(_LOOK_SECONDS)
        raise InterruptedRunError(
            "the transfer was stopped", hint="Chunks that arrived are kept and are not sent again."
        )
