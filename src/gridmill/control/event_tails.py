"""This module has the newest events of followed runs, encoded once for all clients that follow them.

A run with thousands of jobs has many events each second. Each committed event of a followed run is also held
in memory. If events were read from the store and encoded for each follower, this would take more time than
the run itself. Events that are no longer in memory, and the events of a single job, are read from the store.
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence

from gridmill.codec import encode
from gridmill.domain.frozen import replace
from gridmill.domain.pod_protocol import Event, event_id

_RUNS = 16
_EVENTS, _BYTES = 4000, 256 * 1024
"""The largest number and the largest total size in bytes of the events of one run that are held in
memory."""
_PAGES_BYTES = 8 * 1024 * 1024
"""The largest total size in bytes of the pages of earlier events that are held in memory. Followers that
begin with the first event of a run read these pages."""


class _Tail:
    """The events of a run, as far as their sequence numbers are greater than `begin`."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.sequences: list[int] = []
        self.texts: list[bytes] = []
        self._size = 0

    def add(self, sequence: int, text: bytes) -> None:
        """Add the next event of the run. While the limits are exceeded, the method drops the older half of
        the events."""
        self.sequences.append(sequence)
        self.texts.append(text)
        self._size += len(text)
        while self._size > _BYTES or len(self.sequences) > _EVENTS:
            dropped = (len(self.sequences) + 1) // 2
            self.begin = self.sequences[dropped - 1]
            self._size -= sum(map(len, self.texts[:dropped]))
            del self.sequences[:dropped], self.texts[:dropped]


class EventTails:
    """The events of all followed runs that are held in memory. Events are added by the thread that commits
    transactions, and may be read by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tails: dict[str, _Tail] = {}
        self._pages: dict[tuple[str, int, int], bytes] = {}
        self._page_bytes = 0

    def add(self, events: Sequence[Event], sequences: Sequence[int]) -> None:
        """Add the committed events of followed runs. An event with the sequence number 0 is skipped, because
        it was already added."""
        with self._lock:
            for event, sequence in zip(events, sequences, strict=True):
                tail = self._tails.get(event.run_id)
                if tail is not None and sequence:
                    tail.add(sequence, encode(replace(event, id=event_id(sequence))))

    def follow(self, run_id: str, read_last: Callable[[], int]) -> None:
        """Hold the events of a run in memory, beginning with the next commit. If the run is already
        followed, the method changes nothing. `read_last` reads the sequence number of the run's last event
        from the store. All events after the last event in the store are held in memory."""
        with self._lock:
            if run_id in self._tails:
                return
            while len(self._tails) >= _RUNS:
                del self._tails[next(iter(self._tails))]
            tail = self._tails[run_id] = _Tail(-1)
        try:
            last = read_last()
        except BaseException:
            with self._lock:
                if self._tails.get(run_id) is tail:
                    del self._tails[run_id]
            raise
        with self._lock:  # another thread may have replaced this tail by a newer tail, which begins later
            tail.begin = max(tail.begin, last)

    def clear(self) -> None:
        """Delete all events and pages from memory, because it is uncertain which events the store
        contains."""
        with self._lock:
            self._tails.clear()
            self._pages.clear()
            self._page_bytes = 0

    def keep_page(self, run_id: str, sequence: int, limit: int, page: bytes) -> None:
        """Hold a full page of events in memory that was read from the store. Because the page is full, no
        later event of the run can belong to it."""
        with self._lock:
            self._drop_page((run_id, sequence, limit))
            self._pages[run_id, sequence, limit] = page
            self._page_bytes += len(page)
            while self._page_bytes > _PAGES_BYTES:
                self._drop_page(next(iter(self._pages)))

    def _drop_page(self, key: tuple[str, int, int]) -> None:
        self._page_bytes -= len(self._pages.pop(key, b""))

    def after(self, run_id: str, sequence: int, limit: int) -> bytes | None:
        """Return at most `limit` events with a sequence number greater than `sequence`, as a JSON array.
        The result is None if the caller must read the store."""
        with self._lock:
            tail = self._tails.get(run_id)
            if tail is None or tail.begin < 0 or sequence < tail.begin:
                return self._pages.get((run_id, sequence, limit))
            first = bisect_right(tail.sequences, sequence)
            texts = tail.texts[first : first + limit]
        return b"[" + b",".join(texts) + b"]"
