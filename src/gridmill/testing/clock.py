"""A fake clock that moves only when a test advances it."""


class FakeClock:
    """A clock for tests. `advance` moves wall time and monotonic time; `jump` moves only wall time, as a
    clock change does."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._monotonic = 0.0

    def now(self) -> float:
        """Unix time in seconds."""
        return self._now

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Change wall time only."""
        self._now += seconds
