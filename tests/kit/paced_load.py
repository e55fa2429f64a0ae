"""A client that sends requests at a fixed rate, whether or not the earlier ones were answered."""

import selectors
import socket
import time
from collections import Counter

from gridmill.serving.load_client import Connection, is_answered

STEP_MS = 0.1
EXACT_SECONDS = 0.003
"""An exact client does not sleep for this time before a request is due."""


class PacedLoad:
    """Sends `body` to `POST /predict` of a port on this machine, `rate` times a second. A request that is due
    waits for a free connection. Its latency counts from the time at which it was due.

    The operating system wakes a process up to a millisecond after the time for which it waits. With `exact`,
    the client asks without a pause during the last milliseconds before a request is due: the measured latency
    is then that of the server, and the client needs a core of its own.
    """

    def __init__(
        self, port: int, body: bytes, rate: float, connections: int = 16, *, exact: bool = False
    ) -> None:
        self._exact = exact
        self._request = (
            b"POST /predict HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        self._rate = rate
        self._selector = selectors.DefaultSelector()
        self._free = [Connection(socket.create_connection(("127.0.0.1", port))) for _ in range(connections)]
        self._opened = tuple(self._free)
        for one in self._free:
            one.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(one.stream, selectors.EVENT_READ, one)
        self.answered = 0
        self.latencies: Counter[int] = Counter()
        """The answers by latency in units of STEP_MS."""

    def run(self, seconds: float) -> None:
        """Send requests for this time, and wait for their answers. Raises UnavailableError for an answer that
        is not 200."""
        begin = time.perf_counter()
        sent, most = 0, int(self._rate * seconds)
        while self.answered < most:
            now = time.perf_counter()
            due = min(most, int((now - begin) * self._rate) + 1)  # the first is due at once
            while sent < due and self._free:
                one = self._free.pop()
                one.sent_at = begin + sent / self._rate
                one.stream.sendall(self._request)
                sent += 1
            pause = 30.0 if sent == most or not self._free else max(0.0, begin + sent / self._rate - now)
            for key, _ in self._selector.select(self._rounded(pause)):
                if is_answered(key.data):
                    self.latencies[int((time.perf_counter() - key.data.sent_at) * 1000 / STEP_MS)] += 1
                    self.answered += 1
                    self._free.append(key.data)
        self.answered = 0

    def _rounded(self, pause: float) -> float:
        return max(0.0, pause - EXACT_SECONDS) if self._exact else pause

    def quantile(self, share: float) -> float:
        """The latency in milliseconds below which this share of the answers is, rounded up to STEP_MS."""
        left = share * self.latencies.total()
        for latency, count in sorted(self.latencies.items()):
            left -= count
            if left <= 0:
                return (latency + 1) * STEP_MS
        return 0.0

    def close(self) -> None:
        """Close the connections."""
        for one in self._opened:
            one.stream.close()
        self._selector.close()
