"""Sends messages on a byte stream, one JSON line each. The module contains the limits, the allowed senders,
the heartbeats, and the channel.

A channel is the connection of one pod as the control node sees it, over any kind of wire. Heartbeats detect
that the other end is dead: each end sends a message at regular intervals and notices a long silence. A Unix
socket needs no heartbeats, because the kernel reports its end. A TLS connection through a network and a
spool folder need heartbeats. Only the local monotonic clock is used, so the clocks of two machines are never
compared.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeAlias

from gridmill.codec import decode_message, encode_message
from gridmill.domain.pod_protocol import (
    Events,
    Heartbeat,
    Hello,
    SecretRequest,
    ToPod,
)
from gridmill.errors import InputError
from gridmill.ports.link import ReceivedMessage
from gridmill.transport.socket import Wire

LINE_LIMIT_BYTES = 64 * 2**20
"""A line longer than this number of bytes is refused, so that the other end cannot use more memory than
this."""


class LineSplitter:
    """Splits a byte stream into lines. Each byte is examined only once, even if the line arrives in many
    pieces."""

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the lines that `data` completes. Raises InputError if a line exceeds the limit."""
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
        """True while the last line is incomplete."""
        return self._size > 0


def to_pod(line: bytes) -> ToPod:
    """Decodes a message that was sent by a control node. Raises InputError for any other message."""
    message = decode_message(line)
    if isinstance(message, ToPod):
        return message
    raise InputError(f"a control node does not send messages of type {type(message).__name__}")


Monotonic: TypeAlias = Callable[[], float]


class Liveness:
    """Measures the times of heartbeats at one end of a channel."""

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
        """Returns True if a heartbeat should be sent now."""
        return self._monotonic() - self._last_sent >= self._heartbeat_seconds

    def is_silent(self) -> bool:
        """Returns True if the other end must be considered dead."""
        return self._monotonic() - self._last_received >= self._silence_seconds


def for_tls(monotonic: Monotonic) -> Liveness:
    """Returns the heartbeat times for TLS. A living peer sends within 5 s, and the limit of 20 s allows for
    a long pause or lost packets."""
    return Liveness(monotonic, heartbeat_seconds=5.0, silence_seconds=20.0)


def for_spool(monotonic: Monotonic) -> Liveness:
    """Returns longer heartbeat times for a spool folder, because each heartbeat is a file, and a shared file
    system may show the file half a minute late."""
    return Liveness(monotonic, heartbeat_seconds=10.0, silence_seconds=90.0)


NewLiveness: TypeAlias = Callable[[Monotonic], Liveness]


_LOG = logging.getLogger(__name__)
SEND_LIMIT_BYTES = 64 * 2**20
"""If a pod has not read this many bytes, it is disconnected. The disconnected pod connects again and gets
the messages that are still valid."""
GREETING_LIMIT_BYTES = 2**20
"""The size limit in bytes for the first line of a pod. The limit ensures that an unknown client which sends
nothing valid uses little memory."""
FAREWELL_SECONDS = 5.0
"""The number of seconds in which a pod can read the remaining messages of a channel that was dropped."""

Deliver: TypeAlias = Callable[[ReceivedMessage, int], None]
"""A function that receives a message and its size in bytes."""


class Channel:
    """The connection of one pod. If a method returns False, the channel has ended and must be closed."""

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
        self._farewell: float | None = None
        """The latest time to close a finished channel."""

    def read(self) -> bool | None:
        """Reads one piece of data. Returns None if there is no data now."""
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
                if not isinstance(message, Hello | Events | SecretRequest | Heartbeat):
                    raise InputError(f"a pod does not send messages of type {type(message).__name__}")
                self._lines.limit_bytes = LINE_LIMIT_BYTES
                # not counted as spoken, because the links handle heartbeats themselves
                if not isinstance(message, Heartbeat):
                    self.has_spoken = True
                    self._deliver(ReceivedMessage(channel=self.number, message=message), len(line))
        except InputError as error:
            return self._over(str(error))
        return True

    def send(self, lines: bytes) -> bool:
        """Sends as many bytes of the lines as possible now, and queues the remaining bytes. The channel ends
        if the pod has left too many bytes unread."""
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
        """Sends the remaining bytes and the end mark, and then lets the pod close the connection.

        The control node does not close the connection itself: a TCP connection that is closed with unread
        bytes is reset, and the remaining bytes could be lost.
        """
        if self._farewell is None:
            self._farewell = self._monotonic() + FAREWELL_SECONDS
        return self.flush()

    def tick(self) -> bool:
        """Sends heartbeats and checks time limits. The method must be called about once a second."""
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
