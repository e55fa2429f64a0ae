"""The newest events of followed runs, encoded once for all followers.

A run with thousands of jobs has many events each second. To read them from the store and encode them for each
follower would take more time than the run itself. Therefore each committed event of a followed run is also
kept in memory. Older events, and the events of a single job, are read from the store.
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence

from gridmill.codec import encode
from gridmill.domain.frozen import replace
from gridmill.domain.pod_protocol import Event, event_id

_RUNS = 16
_EVENTS, _BYTES = 4000, 256 * 1024
"""The largest number of kept events of one run, and their largest total size in bytes."""
_PAGES_BYTES = 8 * 1024 * 1024
"""The largest total size in bytes of kept pages of earlier events. Followers that begin with the first event
read these pages."""


class _Tail:
    """All events of a run whose sequence is greater than `begin`."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.sequences: list[int] = []
        self.texts: list[bytes] = []
        self._size = 0

    def add(self, sequence: int, text: bytes) -> None:
        """Keep the next event. While the limits are exceeded, drop the older half of the events."""
        self.sequences.append(sequence)
        self.texts.append(text)
        self._size += len(text)
        while self._size > _BYTES or len(self.sequences) > _EVENTS:
            dropped = (len(self.sequences) + 1) // 2
            self.begin = self.sequences[dropped - 1]
            self._size -= sum(map(len, self.texts[:dropped]))
            del self.sequences[:dropped], self.texts[:dropped]


class EventTails:
    """The kept events of all followed runs. The thread that commits adds events, and any thread may read
    them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tails: dict[str, _Tail] = {}
        self._pages: dict[tuple[str, int, int], bytes] = {}
        self._page_bytes = 0

    def add(self, events: Sequence[Event], sequences: Sequence[int]) -> None:
        """Keep committed events of followed runs. An event with the sequence 0 is skipped, because it is
        already kept."""
        with self._lock:
            for event, sequence in zip(events, sequences, strict=True):
                tail = self._tails.get(event.run_id)
                if tail is not None and sequence:
                    tail.add(sequence, encode(replace(event, id=event_id(sequence))))

    def follow(self, run_id: str, read_last: Callable[[], int]) -> None:
        """Keep the events of a run from the next commit on. If the run is already followed, nothing changes.
        `read_last` reads the sequence of the run's last event from the store. All later events are kept."""
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
        """Delete all kept events and pages, because the content of the store is not known for certain."""
        with self._lock:
            self._tails.clear()
            self._pages.clear()
            self._page_bytes = 0

    def keep_page(self, run_id: str, sequence: int, limit: int, page: bytes) -> None:
        """Keep a full page of events that was read from the store. No later event can belong to this page."""
        with self._lock:
            self._drop_page((run_id, sequence, limit))
            self._pages[run_id, sequence, limit] = page
            self._page_bytes += len(page)
            while self._page_bytes > _PAGES_BYTES:
                self._drop_page(next(iter(self._pages)))

    def _drop_page(self, key: tuple[str, int, int]) -> None:
        self._page_bytes -= len(self._pages.pop(key, b""))

    def after(self, run_id: str, sequence: int, limit: int) -> bytes | None:
        """At most `limit` events with a sequence greater than `sequence`, as a JSON array; None if the store
        must be read."""
        with self._lock:
            tail = self._tails.get(run_id)
            if tail is None or tail.begin < 0 or sequence < tail.begin:
                return self._pages.get((run_id, sequence, limit))
            first = bisect_right(tail.sequences, sequence)
            texts = tail.texts[first : first + limit]
        return b"[" + b",".join(texts) + b"]"
