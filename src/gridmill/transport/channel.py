"""Messages on a byte stream: one JSON line each, with limits, allowed senders and heartbeats; the channel.

A channel is one pod's connection as the control node sees it, over any wire. Heartbeats detect a dead peer:
each end sends a message in time and notices a long silence. A Unix socket needs no heartbeats (the kernel
reports the end); a TLS connection through a network and a spool folder do. Only the local monotonic clock is
read, so the clocks of two machines are never compared.
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
"""A longer line is refused, so that a peer cannot make the other end keep more than this in memory."""


class LineSplitter:
    """Cuts a stream into lines. Each byte is examined once, however long the line is."""

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes. Raises InputError if a line exceeds the limit."""
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
        """True while a line is incomplete."""
        return self._size > 0


def to_pod(line: bytes) -> ToPod:
    """Decodes a message of a control node. Raises InputError for any other message."""
    message = decode_message(line)
    if isinstance(message, Welcome | Start | Stop | Ack | Goodbye | Heartbeat):
        return message
    raise InputError(f"a control node does not send messages of type {type(message).__name__}")


Monotonic: TypeAlias = Callable[[], float]


class Liveness:
    """The heartbeat times of one end of a channel."""

    def __init__(self, monotonic: Monotonic, *, heartbeat_seconds: float, silence_seconds: float) -> None:
        self._monotonic = monotonic
        self._heartbeat_seconds = heartbeat_seconds
        self._silence_seconds = silence_seconds
        self._last_sent = self._last_received = monotonic()

    def note_sent(self) -> None:
        """Records that bytes were sent."""
        self._last_sent = self._monotonic()

    def note_received(self) -> None:
        """Records that bytes were received."""
        self._last_received = self._monotonic()

    def should_speak(self) -> bool:
        """True when a heartbeat is due."""
        return self._monotonic() - self._last_sent >= self._heartbeat_seconds

    def is_silent(self) -> bool:
        """True if the peer must be considered dead."""
        return self._monotonic() - self._last_received >= self._silence_seconds


def for_tls(monotonic: Monotonic) -> Liveness:
    """A peer that lives sends within 5 s; 20 s allow for a long pause or lost packets."""
    return Liveness(monotonic, heartbeat_seconds=5.0, silence_seconds=20.0)


def for_spool(monotonic: Monotonic) -> Liveness:
    """Longer times, because a heartbeat is a file, and a shared file system may show it half a minute
    late."""
    return Liveness(monotonic, heartbeat_seconds=10.0, silence_seconds=90.0)


NewLiveness: TypeAlias = Callable[[Monotonic], Liveness]


_LOG = logging.getLogger(__name__)
SEND_LIMIT_BYTES = 64 * 2**20
"""A pod with this many unread bytes is disconnected. It connects again and gets the messages that are still
valid."""
GREETING_LIMIT_BYTES = 2**20
"""The limit for a pod's first line, so that a stranger who sends nothing valid uses little memory."""
FAREWELL_SECONDS = 5.0
"""The time in which a pod can read the rest of a channel that was dropped."""

Deliver: TypeAlias = Callable[[ReceivedMessage, int], None]
"""Receives a message and its size in bytes."""


class Channel:
    """A pod's connection. If a method returns False, the channel has ended and must be closed."""

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
        self._farewell: float | None = None  # the latest time to close a finished channel

    def read(self) -> bool | None:
        """Reads one chunk; None if there is none."""
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
                if not isinstance(message, Heartbeat):  # the links handle heartbeats themselves
                    self.has_spoken = True
                    self._deliver(ReceivedMessage(channel=self.number, message=message), len(line))
        except InputError as error:
            return self._over(str(error))
        return True

    def send(self, lines: bytes) -> bool:
        """Sends the lines now, as far as possible, and queues the rest. The channel ends if the pod
        left too much unread."""
        if self._farewell is not None:
            return True
        if self.wire.pending_bytes() > SEND_LIMIT_BYTES:
            return self._over("the pod leaves too many messages unread")
        if self._liveness:
            self._liveness.note_sent()
        self.wire.write(lines)
        return True  # `read` reports a broken wire, after the last messages of the pod

    def flush(self) -> bool:
        """Continues to send."""
        self.wire.flush()
        if self._farewell is not None and not self.wire.wants_write():
            self.wire.end()
        return True

    def finish(self) -> bool:
        """Sends the rest and the end, and lets the pod close.

        Closing at once could lose the rest, because a network resets a connection that is closed with unread
        bytes.
        """
        if self._farewell is None:
            self._farewell = self._monotonic() + FAREWELL_SECONDS
        return self.flush()

    def tick(self) -> bool:
        """Sends heartbeats and checks deadlines; called about once a second."""
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
    """An encoded heartbeat."""
    return encode_message(Heartbeat(time=time.time())) + b"\n"
