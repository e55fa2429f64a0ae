"""The newest events of runs that somebody follows, encoded once for all followers.

A run with thousands of jobs has many events each second. Reading them from the store and encoding them for
each follower would take more time than the run itself. Each committed event of a followed run is therefore
kept here as well. What is older, and what is asked of one job only, is read from the store.
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence

from gridmill.codec import encode
from gridmill.domain.frozen import replace
from gridmill.domain.pod_protocol import Event, event_id

_RUNS = 16
_EVENTS, _BYTES = 4000, 256 * 1024
"""The most events of one run, and their most bytes."""
_PAGES_BYTES = 8 * 1024 * 1024
"""The most bytes of pages of earlier events, which followers read that begin with the first event."""


class _Tail:
    """All events of a run whose sequence is greater than `begin`."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.sequences: list[int] = []
        self.texts: list[bytes] = []
        self._size = 0

    def add(self, sequence: int, text: bytes) -> None:
        """Keep the next event; while there are too many, drop the older half."""
        self.sequences.append(sequence)
        self.texts.append(text)
        self._size += len(text)
        while self._size > _BYTES or len(self.sequences) > _EVENTS:
            dropped = (len(self.sequences) + 1) // 2
            self.begin = self.sequences[dropped - 1]
            self._size -= sum(map(len, self.texts[:dropped]))
            del self.sequences[:dropped], self.texts[:dropped]


class EventTails:
    """Events are added by the thread that commits, and read by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tails: dict[str, _Tail] = {}
        self._pages: dict[tuple[str, int, int], bytes] = {}
        self._page_bytes = 0

    def add(self, events: Sequence[Event], sequences: Sequence[int]) -> None:
        """Keep committed events of followed runs. An event with the sequence 0 had been kept before."""
        with self._lock:
            for event, sequence in zip(events, sequences, strict=True):
                tail = self._tails.get(event.run_id)
                if tail is not None and sequence:
                    tail.add(sequence, encode(replace(event, id=event_id(sequence))))

    def follow(self, run_id: str, read_last: Callable[[], int]) -> None:
        """Keep the events of a run from the next commit on, unless it is followed already. `read_last` reads
        the sequence of the run's last event from the store: the kept events are complete from there on."""
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
        with self._lock:  # another thread may have replaced this tail by a newer one, which begins later
            tail.begin = max(tail.begin, last)

    def clear(self) -> None:
        """Keep nothing: what the store has is not known for certain."""
        with self._lock:
            self._tails.clear()
            self._pages.clear()
            self._page_bytes = 0

    def keep_page(self, run_id: str, sequence: int, limit: int, page: bytes) -> None:
        """Keep a full page that was read from the store: no event can come into it any more."""
        with self._lock:
            self._drop_page((run_id, sequence, limit))
            self._pages[run_id, sequence, limit] = page
            self._page_bytes += len(page)
            while self._page_bytes > _PAGES_BYTES:
                self._drop_page(next(iter(self._pages)))

    def _drop_page(self, key: tuple[str, int, int]) -> None:
        self._page_bytes -= len(self._pages.pop(key, b""))

    def after(self, run_id: str, sequence: int, limit: int) -> bytes | None:
        """The events after that one as a JSON array; None if the store has to be read."""
        with self._lock:
            tail = self._tails.get(run_id)
            if tail is None or tail.begin < 0 or sequence < tail.begin:
                return self._pages.get((run_id, sequence, limit))
            first = bisect_right(tail.sequences, sequence)
            texts = tail.texts[first : first + limit]
        return b"[" + b",".join(texts) + b"]"
