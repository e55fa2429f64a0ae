"""A client that sends requests at a fixed rate, whether or not the earlier ones were answered."""

import selectors
import socket
import time
from collections import Counter, deque

from gridmill.errors import UnavailableError
from gridmill.serving.load_client import Connection, is_answered

STEP_MS = 0.1
EXACT_SECONDS = 0.003
"""An exact client does not sleep for this time before a request is due."""
PATIENCE_SECONDS = 30.0


class PacedLoad:
    """Sends `body` to `POST /predict` of a port on this machine, `rate` times a second.

    A request that is due waits only if all `connections` wait for an answer. Its latency counts from the time
    at which it was due.

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
        # in turn, because a server closes a connection that sends nothing for a long time
        self._free = deque(
            Connection(socket.create_connection(("127.0.0.1", port))) for _ in range(connections)
        )
        self._opened = tuple(self._free)
        for one in self._free:
            one.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(one.stream, selectors.EVENT_READ, one)
        self.answered = 0
        self.latencies: Counter[int] = Counter()
        """The answers by latency in units of STEP_MS."""
        self.lateness: Counter[int] = Counter()
        """The requests by the time from which they were due until they were sent, in units of STEP_MS."""

    def run(self, seconds: float) -> None:
        """Send requests for this time, and wait for their answers. Raises UnavailableError for an answer that
        is not 200, or if none arrives within PATIENCE_SECONDS."""
        begin = time.perf_counter()
        sent, most = 0, int(self._rate * seconds)
        while self.answered < most:
            now = time.perf_counter()
            due = min(most, int((now - begin) * self._rate) + 1)  # the first is due at once
            while sent < due and self._free:
                one = self._free.popleft()
                one.sent_at = begin + sent / self._rate
                self.lateness[_steps_since(one.sent_at)] += 1
                one.stream.sendall(self._request)
                sent += 1
            waits = sent == most or not self._free
            pause = self._rounded(begin + sent / self._rate - time.perf_counter())
            ready = self._selector.select(PATIENCE_SECONDS if waits else pause)
            if waits and not ready:
                raise UnavailableError(f"no answer arrived within {PATIENCE_SECONDS:g} s")
            for key, _ in ready:
                if is_answered(key.data):
                    self.latencies[_steps_since(key.data.sent_at)] += 1
                    self.answered += 1
                    self._free.append(key.data)
        self.answered = 0

    def _rounded(self, pause: float) -> float:
        return max(0.0, pause - (EXACT_SECONDS if self._exact else 0.0))

    def quantile(self, share: float) -> float:
        """The latency in milliseconds below which this share of the answers is, rounded up to STEP_MS."""
        return _quantile(self.latencies, share)

    def lateness_quantile(self, share: float) -> float:
        """The lateness in milliseconds below which this share of the requests is, rounded up to STEP_MS. A
        latency contains it."""
        return _quantile(self.lateness, share)

    def close(self) -> None:
        """Close the connections."""
        for one in self._opened:
            one.stream.close()
        self._selector.close()


def _steps_since(begin: float) -> int:
    return int((time.perf_counter() - begin) * 1000 / STEP_MS)


def _quantile(counts: Counter[int], share: float) -> float:
    left = share * counts.total()
    for steps, count in sorted(counts.items()):
        left -= count
        if left <= 0:
            return (steps + 1) * STEP_MS
    return 0.0
