"""Messages on a byte stream: one JSON line each, with limits, allowed senders and heartbeats; the channel.

A channel is one pod's connection as the control node sees it, over any wire.

Heartbeats detect a dead peer: each end sends something in time and notices a long silence. A Unix socket
needs none (the kernel reports the end); a TLS connection through a network and a spool folder do. Only the
local monotonic clock is read, so the clocks of two machines are never compared.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeAlias

from gridmill.codec import decode_message, encode_message
from gridmill.domain.pod_protocol import Ack, Events, Goodbye, Heartbeat, Hello, Start, Stop, ToPod, Welcome
from gridmill.errors import InputError
from gridmill.ports.link import ReceivedMessage
from gridmill.transport.socket import Wire

LINE_LIMIT_BYTES = 64 * 2**20
"""A longer line is refused, so that no peer can make the other end keep more than this in memory."""


class LineSplitter:
    """Cuts a stream into lines. Each byte is looked at once, however long the line."""

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes. Raises InputError when a line grows over the limit."""
        first, *rest = data.split(b"\n")
        self._keep(first)
        if not rest:
            return []
        lines = [b"".join(self._parts), *rest[:-1]]
        self._parts, self._size = [], 0
        self._keep(rest[-1])
        return lines

    def _keep(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size > self.limit_bytes:
            raise InputError(f"a message is longer than {self.limit_bytes} bytes")

    @property
    def partial(self) -> bool:
        """True while a line has begun and not ended."""
        return self._size > 0


def to_pod(line: bytes) -> ToPod:
    """What a control node may say. Raises InputError for anything else."""
    message = decode_message(line)
    if isinstance(message, Welcome | Start | Stop | Ack | Goodbye | Heartbeat):
        return message
    raise InputError(f"a control node does not send messages of type {type(message).__name__}")


Monotonic: TypeAlias = Callable[[], float]


class Liveness:
    """Of one channel, seen from one end."""

    def __init__(self, monotonic: Monotonic, *, heartbeat_seconds: float, silence_seconds: float) -> None:
        self._monotonic = monotonic
        self._heartbeat_seconds = heartbeat_seconds
        self._silence_seconds = silence_seconds
        self._last_sent = self._last_received = monotonic()

    def note_sent(self) -> None:
        """Something was sent."""
        self._last_sent = self._monotonic()

    def note_received(self) -> None:
        """Something came."""
        self._last_received = self._monotonic()

    def should_speak(self) -> bool:
        """True when a heartbeat is due."""
        return self._monotonic() - self._last_sent >= self._heartbeat_seconds

    def is_silent(self) -> bool:
        """True when the peer must be taken for gone."""
        return self._monotonic() - self._last_received >= self._silence_seconds


def for_tls(monotonic: Monotonic) -> Liveness:
    """A peer that is there speaks within 5 s; 20 s leave room for a long pause or lost packets."""
    return Liveness(monotonic, heartbeat_seconds=5.0, silence_seconds=20.0)


def for_spool(monotonic: Monotonic) -> Liveness:
    """Slower: a heartbeat is a file, and a shared file system may show it half a minute late."""
    return Liveness(monotonic, heartbeat_seconds=10.0, silence_seconds=90.0)


NewLiveness: TypeAlias = Callable[[Monotonic], Liveness]


_LOG = logging.getLogger(__name__)
SEND_LIMIT_BYTES = 64 * 2**20
"""A pod that leaves this much unread is disconnected: it connects again and gets what is still valid."""
GREETING_LIMIT_BYTES = 2**20
"""The limit on a pod's first line: a stranger who sends nothing valid costs little."""
FAREWELL_SECONDS = 5.0
"""How long a dropped channel may take to read the rest."""

Deliver: TypeAlias = Callable[[ReceivedMessage, int], None]
"""Receives a message and its size in bytes."""


class Channel:
    """Where a method returns False the channel is over and wants to be closed."""

    def __init__(
        self, number: int, wire: Wire, deliver: Deliver, *, liveness: Liveness | None, monotonic: Monotonic
    ) -> None:
        self.number = number
        self.wire = wire
        self.has_spoken = False
        self._deliver = deliver
        self._liveness = liveness
        self._monotonic = monotonic
        self._lines = LineSplitter(GREETING_LIMIT_BYTES)
        self._farewell: float | None = None  # when a finished channel is closed at the latest

    def read(self) -> bool | None:
        """Take in one chunk; None when there was nothing."""
        data = self.wire.read()
        if not data:
            return None if data is not None else False
        if self._farewell is not None:
            return True
        if self._liveness:
            self._liveness.note_received()
        try:
            for line in self._lines.feed(data):
                message = decode_message(line)
                if not isinstance(message, Hello | Events | Heartbeat):
                    raise InputError(f"a pod does not send messages of type {type(message).__name__}")
                self._lines.limit_bytes = LINE_LIMIT_BYTES
                if not isinstance(message, Heartbeat):  # these are the links' own
                    self.has_spoken = True
                    self._deliver(ReceivedMessage(channel=self.number, message=message), len(line))
        except InputError as error:
            return self._over(str(error))
        return True

    def send(self, lines: bytes) -> bool:
        """Send what goes at once and queue the rest; over when the pod left the pod leaves too many messages
        unread."""
        if self._farewell is not None:
            return True
        if self.wire.pending_bytes() > SEND_LIMIT_BYTES:
            return self._over("the pod leaves too many messages unread")
        if self._liveness:
            self._liveness.note_sent()
        self.wire.write(lines)
        return True  # a broken wire is found by reading, after the last that the pod said

    def flush(self) -> bool:
        """Go on sending."""
        self.wire.flush()
        if self._farewell is not None and not self.wire.wants_write():
            self.wire.end()
        return True

    def finish(self) -> bool:
        """Send the rest, say that it was all, and let the pod close. Closing at once could lose the rest:
        a network resets a connection that is closed with something unread."""
        if self._farewell is None:
            self._farewell = self._monotonic() + FAREWELL_SECONDS
        return self.flush()

    def tick(self) -> bool:
        """Heartbeats and deadlines; called about once a second."""
        if self._farewell is not None:
            return self._monotonic() < self._farewell
        if self._liveness is None:
            return True
        if self._liveness.is_silent():
            return self._over("silence")
        return not self._liveness.should_speak() or self.send(encoded_heartbeat())

    def _over(self, reason: str) -> bool:
        _LOG.warning("channel_closed channel=%d reason=%s", self.number, reason)
        return False


def encoded_heartbeat() -> bytes:
    """A heartbeat as it travels."""
    return encode_message(Heartbeat(time=time.time())) + b"\n"
