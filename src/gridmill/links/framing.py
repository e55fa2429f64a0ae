"""Messages on a byte stream: one JSON line each, a limit on the line, and who may say what."""

from gridmill.codec import decode_message
from gridmill.errors import InputError
from gridmill.model.message import (
    Ack,
    Events,
    FromPod,
    Goodbye,
    Heartbeat,
    Hello,
    Start,
    Stop,
    ToPod,
    Welcome,
)

LINE_LIMIT_BYTES = 64 * 2**20
"""A longer line is refused: nobody can make the other end keep more than this in memory."""


class Lines:
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
            raise InputError(f"a line is longer than {self.limit_bytes} bytes")

    @property
    def partial(self) -> bool:
        """True while a line has begun and not ended."""
        return self._size > 0


def from_pod(line: bytes) -> FromPod:
    """What a pod may say. Raises InputError for anything else."""
    message = decode_message(line)
    if isinstance(message, Hello | Events | Heartbeat):
        return message
    raise InputError(f"a pod does not say {type(message).__name__}")


def to_pod(line: bytes) -> ToPod:
    """What a control node may say. Raises InputError for anything else."""
    message = decode_message(line)
    if isinstance(message, Welcome | Start | Stop | Ack | Goodbye | Heartbeat):
        return message
    raise InputError(f"a control node does not say {type(message).__name__}")
