"""One pod's connection as the control node sees it, over any wire."""

import logging
import time
from collections.abc import Callable
from typing import TypeAlias

from gridmill.codec import encode_message
from gridmill.errors import InputError
from gridmill.links.framing import LINE_LIMIT_BYTES, Lines, from_pod
from gridmill.links.liveness import Liveness, Monotonic
from gridmill.links.wire import Wire
from gridmill.model.message import FromPod, Heartbeat

_LOG = logging.getLogger(__name__)
SEND_LIMIT_BYTES = 64 * 2**20
"""A pod that leaves this much unread is dropped: it connects again and is told what still holds."""
GREETING_LIMIT_BYTES = 2**20
"""The limit on a pod's first line: a stranger who never gets further costs little."""
FAREWELL_SECONDS = 5.0
"""How long a dropped channel may take to read the rest."""

Hear: TypeAlias = Callable[[int, FromPod, int], None]
"""Takes a channel's number, a message and its size in bytes."""


class Channel:
    """Where a method returns False the channel is over and wants to be closed."""

    def __init__(
        self, number: int, wire: Wire, hear: Hear, *, liveness: Liveness | None, monotonic: Monotonic
    ) -> None:
        self.number = number
        self.wire = wire
        self._hear = hear
        self._liveness = liveness
        self._monotonic = monotonic
        self._lines = Lines(GREETING_LIMIT_BYTES)
        self._farewell: float | None = None  # when a finished channel is closed at the latest

    def read(self) -> bool | None:
        """Take in one chunk; None when there was nothing."""
        data = self.wire.read()
        if not data:
            return None if data is not None else False
        if self._farewell is not None:
            return True
        if self._liveness:
            self._liveness.heard()
        try:
            self._understand(self._lines.feed(data))
        except InputError as error:
            return self._over(str(error))
        return True

    def _understand(self, lines: list[bytes]) -> None:
        """Pass on what the lines say but for heartbeats, which are the links' own. Raises InputError."""
        for line in lines:
            message = from_pod(line)
            self._lines.limit_bytes = LINE_LIMIT_BYTES
            if not isinstance(message, Heartbeat):
                self._hear(self.number, message, len(line))

    def send(self, lines: bytes) -> bool:
        """Send what goes at once and queue the rest; over when the pod left too much unread."""
        if self._farewell is not None:
            return True
        if self.wire.pending_bytes() > SEND_LIMIT_BYTES:
            return self._over("too much unread")
        if self._liveness:
            self._liveness.said()
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
