"""The clock as a protocol."""

from typing import Protocol


class Clock(Protocol):
    """A source of time. `now` is Unix time in seconds for records. `monotonic` never decreases and is for
    waiting."""

    def now(self) -> float:
        """Unix time in seconds. It can jump when the machine's clock is set."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start. It never jumps."""
