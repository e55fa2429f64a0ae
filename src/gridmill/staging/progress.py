"""How far a transfer is."""

import threading
import time
from collections.abc import Callable

from gridmill.model.noun import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """`there_bytes` of `total_bytes` did not have to travel, `carried_bytes` did or are on their way, at
    `bytes_per_second`."""

    total_bytes: int
    there_bytes: int
    carried_bytes: int
    bytes_per_second: float

    @property
    def left_bytes(self) -> int:
        """What is still to come."""
        return max(0, self.total_bytes - self.there_bytes - self.carried_bytes)

    @property
    def left_seconds(self) -> float | None:
        """At the rate so far; None where nothing has travelled yet."""
        if not self.left_bytes:
            return 0.0
        return self.left_bytes / self.bytes_per_second if self.bytes_per_second else None


class Progress:
    """Counts what travels, from several threads; look at it at any time. It may count several transfers."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began: float | None = None
        self._total = self._there = self._carried = self._under_way = 0

    def expect(self, total_bytes: int, there_bytes: int) -> None:
        """So much is wanted, of which so much is there."""
        with self._lock:
            self._began = self._clock() if self._began is None else self._began
            self._total += total_bytes
            self._there += there_bytes

    def moved(self, size_bytes: int) -> None:
        """So much more is on its way; less than 0: it is not any more."""
        with self._lock:
            self._under_way += size_bytes

    def arrived(self, size_bytes: int, moved_bytes: int = 0) -> None:
        """So much has arrived, and was checked; it was on its way as `moved_bytes`."""
        with self._lock:
            self._carried += size_bytes
            self._under_way -= moved_bytes

    def look(self) -> Carried:
        """How far it is now."""
        with self._lock:
            spent = self._clock() - self._began if self._began is not None else 0.0
            carried = self._carried + self._under_way
            return Carried(
                total_bytes=self._total,
                there_bytes=self._there,
                carried_bytes=carried,
                bytes_per_second=carried / spent if spent > 0 else 0.0,
            )
