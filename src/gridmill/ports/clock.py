"""This module defines the clock of the control node as a protocol, so that tests can replace the clock."""

from typing import Protocol


class Clock(Protocol):
    """A source of time. `now` returns Unix time in seconds, which is used in records. `monotonic` returns a
    time that never decreases, which is used for waiting."""

    def now(self) -> float:
        """Unix time in seconds. The time that `now` returns can jump when somebody sets the clock of the
        machine."""

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start. This time never jumps."""
