"""Chunks on a stream: frames of 64 bytes of hash (hex), 8 bytes of size (big-endian) and the content.

A chunk's content is passed on as it arrives: a piece is hashed and written while the processor has it in its
cache.
"""

from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import Protocol, runtime_checkable

from blake3 import blake3

from gridmill.domain.frozen import dataclass
from gridmill.errors import DataError, InputError
from gridmill.transfer.paths import LARGEST_CHUNK_BYTES, check_hash

_HEAD = Struct(">64sQ")
_PIECE_BYTES = 1 << 18
Content = bytes | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A part of a file's content, by its BLAKE3 hash (hex)."""

    hash: str
    data: Content

    def check(self) -> None:
        """Raises DataError when the content does not have that hash."""
        if not matches(self.data, self.hash):
            raise damaged(self.hash)


def damaged(chunk: str) -> DataError:
    """What is said of content that does not have its hash."""
    return DataError("its content does not have this hash", place=f"chunk {chunk}")


def matches(data: Content, chunk: str) -> bool:
    """Whether this is the chunk's content."""
    return hash_of(data) == chunk


def hash_of(data: Content) -> str:
    """The name of a chunk with this content."""
    return blake3(data).hexdigest()


def encode(chunks: Iterable[Chunk]) -> Iterator[Content]:
    """The frames, as a request's or an answer's body: small ones together, as each piece has its cost."""
    waiting = bytearray()
    for chunk in chunks:
        waiting += _HEAD.pack(chunk.hash.encode(), len(chunk.data))
        if len(chunk.data) < _PIECE_BYTES:
            waiting += chunk.data
        if len(waiting) >= _PIECE_BYTES or len(chunk.data) >= _PIECE_BYTES:
            yield bytes(waiting)
            waiting.clear()
        if len(chunk.data) >= _PIECE_BYTES:
            yield chunk.data
    if waiting:
        yield bytes(waiting)


def size_bytes(chunks: Iterable[Chunk]) -> int:
    """Of their frames, as for a Content-Length."""
    return sum(_HEAD.size + len(chunk.data) for chunk in chunks)


class Decoder:
    """Takes frames apart as they arrive, piece by piece; never holds more than one chunk beside the pieces.

    Hashes are not compared here: who keeps a chunk does (`Chunk.check`).
    """

    def __init__(self, *, largest_bytes: int = LARGEST_CHUNK_BYTES) -> None:
        self._largest_bytes = largest_bytes
        self._head, self._name = bytearray(), ""
        self._content, self._filled = memoryview(b""), 0

    def feed(self, piece: Content) -> list[Chunk]:
        """The chunks that are whole now. Raises InputError for what is not a frame, or too large."""
        rest, whole = memoryview(piece), list[Chunk]()
        while rest or self._name:
            if not self._name:
                rest = self._feed_head(rest)
            if self._name:
                taken = min(len(rest), len(self._content) - self._filled)
                self._content[self._filled : self._filled + taken] = rest[:taken]
                rest, self._filled = rest[taken:], self._filled + taken
                if self._filled < len(self._content):
                    break
                whole.append(Chunk(hash=self._name, data=self._content.toreadonly()))
                self._name = ""
        return whole

    def end(self) -> None:
        """Nothing more comes. Raises InputError in the middle of a frame."""
        if self._head or self._name:
            raise InputError("the data ends in the middle of a frame", hint="Send the chunks again.")

    def _feed_head(self, piece: memoryview) -> memoryview:
        """What is left of the piece."""
        lacking = _HEAD.size - len(self._head)
        self._head += piece[:lacking]
        if len(self._head) == _HEAD.size:
            self._name, size = _read_head(self._head, self._largest_bytes)
            self._content, self._filled = memoryview(bytearray(size)), 0
            self._head.clear()
        return piece[lacking:]


def _read_head(head: Content | bytearray, largest_bytes: int) -> tuple[str, int]:
    digest, size = _HEAD.unpack(head)
    name = digest.decode("ascii", "replace")
    check_hash(name)
    if size > largest_bytes:
        raise InputError(f"a chunk has {size} bytes; at most {largest_bytes} are possible")
    return name, size


def decode(pieces: Iterable[Content], *, largest_bytes: int = LARGEST_CHUNK_BYTES) -> Iterator[Chunk]:
    """The chunks of a body. Raises InputError."""
    decoder = Decoder(largest_bytes=largest_bytes)
    for piece in pieces:
        yield from decoder.feed(piece)
    decoder.end()


PIECE_BYTES = 1 << 18
"""A piece stays in a core's own cache until it is hashed and written: this is twice as fast as from
memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteMeter:
    """`moved` is told the bytes of each piece (`piece_bytes` at most) that is sent next, or has come, or less
    than 0 for what is sent anew; what it raises ends the transfer."""

    moved: Callable[[int], None]
    piece_bytes: int = PIECE_BYTES

    def sending(self, data: Content) -> Iterator[Content]:
        """The pieces, each once it may go."""
        for piece in in_pieces(data, self.piece_bytes):
            self.moved(len(piece))
            yield piece


UNMETERED = ByteMeter(moved=lambda _: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkStream:
    """A chunk on its way; each of its `pieces` holds until the next is asked for. To be taken in order, and
    to its end, before the next flow."""

    hash: str
    size_bytes: int
    pieces: Iterator[Content]

    def gathered(self) -> Chunk:
        """The chunk as a whole; its hash is still to be compared."""
        data = bytearray()
        for piece in self.pieces:
            if not data and len(piece) == self.size_bytes:
                return Chunk(hash=self.hash, data=bytes(piece))
            data += piece
        return Chunk(hash=self.hash, data=memoryview(data).toreadonly())


def in_pieces(data: Content, most_bytes: int = PIECE_BYTES) -> Iterator[Content]:
    """What goes over a line, however thin: a timeout counts for a piece, and each can be counted."""
    if len(data) <= most_bytes:
        yield data
        return
    view = memoryview(data)
    yield from (view[begin : begin + most_bytes] for begin in range(0, len(view), most_bytes))


def flow_of(chunk: Chunk) -> ChunkStream:
    """A chunk that has come already."""
    return ChunkStream(hash=chunk.hash, size_bytes=len(chunk.data), pieces=iter((chunk.data,)))


@runtime_checkable
class StreamingReader(Protocol):
    """A ChunkReader that reads chunks piece by piece."""

    def flows(self, chunks: Iterable[str]) -> Iterator[ChunkStream]:
        """Raises as `fetch`."""


@runtime_checkable
class StreamingWriter(Protocol):
    """A ChunkWriter that stores chunks piece by piece."""

    def receive(self, flows: Iterable[ChunkStream]) -> None:
        """Raises as `send`, and whatever the flows raise."""
