"""The progress of a transfer."""

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
"""What kept something from arriving is over once bytes move so long after it: over a thin line a whole chunk
takes hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferState:
    """The state of transfers: `present_bytes` of `total_bytes` need no transfer, `transferred_bytes` were
    sent or are being sent, lately at `bytes_per_second` (0 in the first moments); for `still_seconds` nothing
    has moved. `trouble` is why something is sent again, until something arrives."""

    total_bytes: int
    present_bytes: int
    transferred_bytes: int
    bytes_per_second: float
    still_seconds: float = 0.0
    trouble: str = ""

    @property
    def left_bytes(self) -> int:
        """What is still to come."""
        return max(0, self.total_bytes - self.present_bytes - self.transferred_bytes)

    @property
    def left_seconds(self) -> float | None:
        """At that rate; None if nothing was sent lately."""
        if not self.left_bytes:
            return 0.0
        return self.left_bytes / self.bytes_per_second if self.bytes_per_second else None


class TransferProgress:
    """Counts transferred bytes, from several threads; may be read at any time. It may count several
    transfers."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._total = self._present = self._transferred = self._under_way = 0
        self._marks = deque[tuple[float, int]]()
        self._moved = 0.0
        self._trouble, self._trouble_since = "", 0.0
        self.spent_seconds = 0.0
        """For how long chunks travelled, those that had to travel again too."""

    @contextmanager
    def travelling(self) -> Iterator[None]:
        """Chunks travel meanwhile."""
        began = self._clock()
        try:
            yield
        finally:
            self.spent_seconds += self._clock() - began

    def hindered(self, why: str) -> None:
        """Something did not arrive, and is tried again."""
        with self._lock:
            self._trouble, self._trouble_since = why, self._clock()

    def expect(self, total_bytes: int, there_bytes: int) -> None:
        """So much is wanted, of which so much is there."""
        with self._lock:
            self._total += total_bytes
            self._present += there_bytes
            if not self._marks:
                self._moved = self._clock()
                self._marks.append((self._moved, 0))

    def moved(self, size_bytes: int) -> None:
        """So much more is on its way; less than 0: it is not any more."""
        with self._lock:
            self._under_way += size_bytes
            if size_bytes < 0:  # it never counts as a rate
                self._marks.clear()
            elif self._clock() - self._trouble_since >= _TROUBLE_SECONDS:
                self._trouble = ""
            self._mark()

    def arrived(self, size_bytes: int, moved_bytes: int = 0) -> None:
        """So much has arrived, and was checked; it was on its way as `moved_bytes`."""
        with self._lock:
            self._trouble = ""
            self._transferred += size_bytes
            self._under_way -= moved_bytes
            self._mark()

    def _mark(self) -> None:
        """How far it was when; not of the first moment, in which what lies between takes what it can hold."""
        self._moved = self._clock()
        if not self._marks or self._moved - self._marks[-1][0] >= _MARK_SECONDS:
            self._marks.append((self._moved, self._transferred + self._under_way))
        if len(self._marks) == 3 and not self._marks[0][1]:
            self._marks.popleft()

    def look(self) -> TransferState:
        """How far it is now."""
        with self._lock:
            now, lacked = self._clock(), self._total - self._present
            # what is said of small ones travels too
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
