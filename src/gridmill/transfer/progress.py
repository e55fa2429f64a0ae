"""Measures the progress of a transfer."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gridmill.domain.frozen import dataclass

LATELY_SECONDS = 30.0
_MARK_SECONDS = 1.0
_SURE_SECONDS = 3.0
_TROUBLE_SECONDS = 10.0
"""A problem counts as solved when bytes are sent this many seconds after it, because a complete chunk can
take hours on a slow connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferState:
    """The progress of one or more transfers.

    Of the `total_bytes` bytes, `present_bytes` bytes exist at the destination and need no transfer.
    `transferred_bytes` is the number of bytes that were sent or are in flight. The recent rate is
    `bytes_per_second` (0 in the first moments). `still_seconds` is the number of seconds without progress.
    `trouble` is the reason why the transfer is being retried. When data arrives, `trouble` becomes empty.
    """

    total_bytes: int
    present_bytes: int
    transferred_bytes: int
    bytes_per_second: float
    still_seconds: float = 0.0
    trouble: str = ""

    @property
    def left_bytes(self) -> int:
        """The bytes that remain."""
        return max(0, self.total_bytes - self.present_bytes - self.transferred_bytes)

    @property
    def left_seconds(self) -> float | None:
        """Returns the remaining time in seconds at the recent rate, or None if no data was sent recently."""
        if not self.left_bytes:
            return 0.0
        return self.left_bytes / self.bytes_per_second if self.bytes_per_second else None


class TransferProgress:
    """Counts the transferred bytes of one or more transfers. Several threads may use this class at the same
    time. The progress may be read at any time."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._total = self._present = self._transferred = self._under_way = 0
        self._marks = deque[tuple[float, int]]()
        self._moved = 0.0
        self._trouble, self._trouble_since = "", 0.0
        self.spent_seconds = 0.0
        """The number of seconds for which chunks were in flight, including chunks that were sent again."""

    @contextmanager
    def travelling(self) -> Iterator[None]:
        """Records that chunks are in flight inside the `with` block."""
        began = self._clock()
        try:
            yield
        finally:
            self.spent_seconds += self._clock() - began

    def hindered(self, why: str) -> None:
        """Records a failure after which the transfer is retried."""
        with self._lock:
            self._trouble, self._trouble_since = why, self._clock()

    def expect(self, total_bytes: int, there_bytes: int) -> None:
        """Adds `total_bytes` to the bytes that the transfer needs. Of the bytes that the transfer needs,
        `there_bytes` exist at the destination already."""
        with self._lock:
            self._total += total_bytes
            self._present += there_bytes
            if not self._marks:
                self._moved = self._clock()
                self._marks.append((self._moved, 0))

    def moved(self, size_bytes: int) -> None:
        """Adds bytes that are in flight. A negative number removes bytes."""
        with self._lock:
            self._under_way += size_bytes
            if size_bytes < 0:  # measured anew, because bytes that are sent again must not count for the rate
                self._marks.clear()
            elif self._clock() - self._trouble_since >= _TROUBLE_SECONDS:
                self._trouble = ""
            self._mark()

    def arrived(self, size_bytes: int, moved_bytes: int = 0) -> None:
        """Adds bytes that have arrived and were verified. Of the arrived bytes, `moved_bytes` were already
        counted as in flight."""
        with self._lock:
            self._trouble = ""
            self._transferred += size_bytes
            self._under_way -= moved_bytes
            self._mark()

    def _mark(self) -> None:
        """Records the present state, so that the rate can be computed from it later. The first moments do
        not count, because the buffers of the connection fill during this time."""
        self._moved = self._clock()
        if not self._marks or self._moved - self._marks[-1][0] >= _MARK_SECONDS:
            self._marks.append((self._moved, self._transferred + self._under_way))
        if len(self._marks) == 3 and not self._marks[0][1]:
            self._marks.popleft()

    def look(self) -> TransferState:
        """The present state."""
        with self._lock:
            now, lacked = self._clock(), self._total - self._present
            # at most the missing bytes, because for small chunks the bytes of the protocol count too
            carried = min(lacked, self._transferred + self._under_way)
            while len(self._marks) > 1 and now - self._marks[1][0] >= LATELY_SECONDS:
                self._marks.popleft()
            since, before = self._marks[0] if self._marks else (now, carried)
            spent, sure = now - since, _MARK_SECONDS if before else _SURE_SECONDS
            return TransferState(
                total_bytes=self._total,
                present_bytes=self._present,
                transferred_bytes=carried,
                bytes_per_second=max(0, carried - before) / spent if spent >= sure else 0.0,
                still_seconds=now - self._moved if self._marks else 0.0,
                trouble=self._trouble,
            )
