"""The clock as a protocol."""

from typing import Protocol


class Clock(Protocol):
    """`now` is Unix time in seconds for records; `monotonic` never goes back and is for waiting."""

    def now(self) -> float:
        """Unix time in seconds; may jump."""

    def monotonic(self) -> float:
        """Seconds from some start; never jumps."""
