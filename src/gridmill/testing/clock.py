"""A fake clock whose time changes only when a test advances it."""


class FakeClock:
    """A clock for tests. `advance` changes wall clock time and monotonic time. `jump` changes only wall
    clock time, in the same way as somebody who sets the clock."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._monotonic = 0.0

    def now(self) -> float:
        """Unix time in seconds."""
        return self._now

    def monotonic(self) -> float:
        """Returns the seconds since the clock was created."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Change wall time only."""
        self._now += seconds
