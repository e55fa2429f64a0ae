"""One pod's connection as the control node sees it, over a socket."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from gridmill.codec import encode_message
from gridmill.errors import InputError
from gridmill.links.framing import Lines, from_pod
from gridmill.links.liveness import Liveness
from gridmill.links.wire import Wire
from gridmill.model.message import FromPod, Heartbeat

_LOG = logging.getLogger(__name__)
SEND_LIMIT_BYTES = 64 * 2**20
"""A pod that leaves this much unread is dropped: it connects again and is told what still holds."""
FAREWELL_SECONDS = 5.0
"""How long a dropped channel may take to read the rest."""

Deliver = Callable[[int, FromPod, int], None]
"""Takes a channel's number, a message and its size in bytes."""


class Channel(Protocol):
    """What `Exchange` asks of any channel. A method that returns False says: it is over, close it."""

    number: int

    def send(self, lines: bytes) -> bool:
        """Queue encoded messages."""
        ...

    def finish(self) -> bool:
        """Begin to close: what is queued still goes out, nothing is received any more."""
        ...

    def tick(self) -> bool:
        """Heartbeats and deadlines; called about once a second."""
        ...

    def close(self) -> None:
        """Release everything; may be repeated."""
        ...


def heartbeat() -> bytes:
    """An encoded heartbeat."""
    return encode_message(Heartbeat(time=time.time())) + b"\n"


def hear(lines: Sequence[bytes], number: int, deliver: Deliver) -> None:
    """Deliver what the lines say, but for heartbeats, which are the links' own. Raises InputError."""
    for line in lines:
        message = from_pod(line)
        if not isinstance(message, Heartbeat):
            deliver(number, message, len(line))


class StreamChannel:
    """A Channel over a wire."""

    def __init__(
        self,
        number: int,
        wire: Wire,
        deliver: Deliver,
        *,
        liveness: Liveness | None = None,
        send_limit_bytes: int = SEND_LIMIT_BYTES,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.number = number
        self.wire = wire
        self._deliver = deliver
        self._liveness = liveness
        self._send_limit_bytes = send_limit_bytes
        self._monotonic = monotonic
        self._lines = Lines()
        self._farewell: float | None = None  # when a finished channel is closed at the latest

    def read(self) -> bool:
        """Take in what has come: one chunk, so that no pod keeps the others waiting."""
        data = self.wire.read()
        if not data:
            return data is not None
        if self._farewell is not None:
            return True
        if self._liveness:
            self._liveness.heard()
        try:
            hear(self._lines.feed(data), self.number, self._deliver)
        except InputError as error:
            return self._over(str(error))
        return True

    def send(self, lines: bytes) -> bool:
        """Queue and send what goes at once; over when the pod left too much unread."""
        if self._farewell is not None:
            return True
        if self.wire.pending_bytes > self._send_limit_bytes:
            return self._over("too much unread")
        if self._liveness:
            self._liveness.said()
        self.wire.write(lines)
        return True  # a broken wire is found by reading, after the last that the pod said

    def flush(self) -> bool:
        """Go on sending."""
        self.wire.flush()
        if self._farewell is not None and not self.wire.wants_write:
            self.wire.end()
        return True

    def finish(self) -> bool:
        """Send the rest, say that it was all, and let the pod close. Closing at once could lose the rest:
        a network resets a connection that is closed with something unread."""
        if self._farewell is None:
            self._farewell = self._monotonic() + FAREWELL_SECONDS
        return self.flush()

    def tick(self) -> bool:
        """Heartbeats and deadlines."""
        if self._farewell is not None:
            return self._monotonic() < self._farewell
        if self._liveness is None:
            return True
        if self._liveness.is_silent():
            return self._over("silence")
        return not self._liveness.should_speak() or self.send(heartbeat())

    def _over(self, reason: str) -> bool:
        _LOG.warning("channel_closed channel=%d reason=%s", self.number, reason)
        return False

    def close(self) -> None:
        """Close; may be repeated."""
        self.wire.close()
