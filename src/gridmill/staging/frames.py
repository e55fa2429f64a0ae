"""Chunks on their way: frames of 64 bytes of hash (hex), 8 bytes of size (big-endian) and the content."""

import hashlib
from collections.abc import Iterable, Iterator
from struct import Struct

from gridmill.errors import DataError, InputError
from gridmill.model.noun import dataclass
from gridmill.staging.paths import LARGEST_CHUNK_BYTES, check_hash

_HEAD = Struct(">64sQ")
Content = bytes | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A part of a file's content, by its SHA-256 (hex)."""

    hash: str
    data: Content

    def check(self) -> None:
        """Raises DataError when the content does not have that hash."""
        if not matches(self.data, self.hash):
            raise DataError("its content does not have this hash", place=f"chunk {self.hash}")


def matches(data: Content, chunk: str) -> bool:
    """Whether this is the chunk's content."""
    return hashlib.sha256(data).hexdigest() == chunk


def encode(chunks: Iterable[Chunk]) -> Iterator[Content]:
    """The frames, a head and a content at a time, as a request's or an answer's body."""
    for chunk in chunks:
        yield _HEAD.pack(chunk.hash.encode(), len(chunk.data))
        yield chunk.data


def size_bytes(chunks: Iterable[Chunk]) -> int:
    """Of their frames, as for a Content-Length."""
    return sum(_HEAD.size + len(chunk.data) for chunk in chunks)


class Decoder:
    """Takes frames apart as they arrive, piece by piece; never holds more than one chunk beside the pieces.

    Hashes are not compared here: who keeps a chunk does (`Chunk.check`).
    """

    def __init__(self, *, largest_bytes: int = LARGEST_CHUNK_BYTES) -> None:
        self._largest_bytes = largest_bytes
        self._waiting = bytearray()
        self._head: tuple[str, int] | None = None

    def feed(self, piece: bytes) -> list[Chunk]:
        """The chunks that are whole now. Raises InputError for what is not a frame, or too large."""
        self._waiting += piece
        whole = []
        while (chunk := self._next()) is not None:
            whole.append(chunk)
        return whole

    def end(self) -> None:
        """Nothing more comes. Raises InputError in the middle of a frame."""
        if self._waiting or self._head is not None:
            raise InputError("the frames end in the middle of one", hint="Send them again.")

    def _next(self) -> Chunk | None:
        if self._head is None and len(self._waiting) >= _HEAD.size:
            self._head = self._read_head()
        if self._head is None or len(self._waiting) < self._head[1]:
            return None
        (name, size), self._head = self._head, None
        data = bytes(memoryview(self._waiting)[:size])
        del self._waiting[:size]
        return Chunk(hash=name, data=data)

    def _read_head(self) -> tuple[str, int]:
        said, size = _HEAD.unpack_from(self._waiting)
        name = said.decode("ascii", "replace")
        check_hash(name)
        if size > self._largest_bytes:
            raise InputError(f"a chunk of {size} bytes: {self._largest_bytes} is the most")
        del self._waiting[: _HEAD.size]
        return name, size


def decode(pieces: Iterable[bytes], *, largest_bytes: int = LARGEST_CHUNK_BYTES) -> Iterator[Chunk]:
    """The chunks of a body. Raises InputError."""
    decoder = Decoder(largest_bytes=largest_bytes)
    for piece in pieces:
        yield from decoder.feed(piece)
    decoder.end()
