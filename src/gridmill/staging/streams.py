"""How many batches of a transfer travel at a time: what is under way is lost when the line is cut."""

_THIN_BYTES_PER_SECOND = 1e6
"""Below that four chunks at a time take longer than ten seconds."""
_BETTER = 1.25


class Streams:
    """`now` batches travel at a time, one at first: over a quick line all `most`, over a thin one another as
    long as it brings something. It does where the line is long and loses packets, not where it is full."""

    def __init__(self, most: int) -> None:
        self.now, self.thin = 1, True
        self._most, self._worth = most, most
        self._known: dict[int, float] = {}

    def learn(self, streams: int, bytes_per_second: float) -> None:
        """So much went while so many travelled."""
        self.thin = bytes_per_second < _THIN_BYTES_PER_SECOND
        if not self.thin:
            self.now = self._most
            return
        if streams > 1 and streams - 1 not in self._known:  # it was quick until now
            self.now, self._worth, self._known = 1, self._most, {}
            return
        best = self._known[streams] = max(bytes_per_second, self._known.get(streams, 0.0))
        if best < _BETTER * self._known.get(streams - 1, 0.0):
            self._worth = min(self._worth, streams - 1)
        self.now = min(streams + 1, self._worth)
