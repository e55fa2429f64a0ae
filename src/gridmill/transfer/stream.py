"""Sends chunks in a stream. Each chunk is a frame with 64 bytes of hash (hex), 8 bytes of size (big-endian)
and the content.

The content of a chunk is processed while it arrives, so that each piece is hashed and written while the
processor has it in its cache.
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
    """A part of the content of a file, with its BLAKE3 hash (hex)."""

    hash: str
    data: Content

    def check(self) -> None:
        """Raises DataError if the content of the chunk does not match its hash."""
        if not matches(self.data, self.hash):
            raise damaged(self.hash)


def damaged(chunk: str) -> DataError:
    """Returns the error for a chunk whose content does not match its hash."""
    return DataError("the content does not have this hash", place=f"chunk {chunk}")


def matches(data: Content, chunk: str) -> bool:
    """Returns whether the data is the content of this chunk."""
    return hash_of(data) == chunk


def hash_of(data: Content) -> str:
    """Returns the name of a chunk with this content, which is its hash."""
    return blake3(data).hexdigest()


def encode(chunks: Iterable[Chunk]) -> Iterator[Content]:
    """Yields the frames of the chunks as the body of a request or a response. Small frames are joined,
    because each piece that is sent has a cost."""
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
    """Returns the size in bytes of the frames of these chunks, for the header Content-Length."""
    return sum(_HEAD.size + len(chunk.data) for chunk in chunks)


class Decoder:
    """Parses frames piece by piece while they arrive. The decoder stores at most one chunk in addition to
    the pieces.

    The decoder does not compare hashes. The receiver compares the hashes when it stores a chunk
    (`Chunk.check`).
    """

    def __init__(self, *, largest_bytes: int = LARGEST_CHUNK_BYTES) -> None:
        self._largest_bytes = largest_bytes
        self._head, self._name = bytearray(), ""
        self._content, self._filled = memoryview(b""), 0

    def feed(self, piece: Content) -> list[Chunk]:
        """Returns the chunks that are complete with this piece. Raises InputError if the bytes are not a
        frame, or if a frame is too large."""
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
        """The caller must call this method at the end of the data. Raises InputError if the data ends in the
        middle of a frame."""
        if self._head or self._name:
            raise InputError("the data ends in the middle of a frame", hint="Send the chunks again.")

    def _feed_head(self, piece: memoryview) -> memoryview:
        """Reads the header of a frame, and returns the bytes of the piece that follow the header."""
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
    """Yields the chunks in the body of a request or a response. Raises InputError."""
    decoder = Decoder(largest_bytes=largest_bytes)
    for piece in pieces:
        yield from decoder.feed(piece)
    decoder.end()


PIECE_BYTES = 1 << 18
"""The size of a piece in bytes. A piece of this size stays in the cache of a processor core until it is
hashed and written. Hashing a piece from the cache is twice as fast as reading it from memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteMeter:
    """Counts the bytes of a transfer. `moved` gets the number of bytes of each piece (at most `piece_bytes`)
    that is sent next or has arrived. If bytes are sent again, `moved` gets a negative number. If `moved`
    raises an error, the transfer ends."""

    moved: Callable[[int], None]
    piece_bytes: int = PIECE_BYTES

    def sending(self, data: Content) -> Iterator[Content]:
        """Yields the data in pieces. A piece is yielded as soon as the rate limit permits it."""
        for piece in in_pieces(data, self.piece_bytes):
            self.moved(len(piece))
            yield piece


UNMETERED = ByteMeter(moved=lambda _: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkStream:
    """A chunk that is arriving. Each of the `pieces` is valid until the next piece is requested. The pieces
    must be read in order, and completely before the next stream."""

    hash: str
    size_bytes: int
    pieces: Iterator[Content]

    def gathered(self) -> Chunk:
        """Returns the complete chunk. The caller must compare the hash of the chunk with its content."""
        data = bytearray()
        for piece in self.pieces:
            if not data and len(piece) == self.size_bytes:
                return Chunk(hash=self.hash, data=bytes(piece))
            data += piece
        return Chunk(hash=self.hash, data=memoryview(data).toreadonly())


def in_pieces(data: Content, most_bytes: int = PIECE_BYTES) -> Iterator[Content]:
    """Splits content into pieces, so that it suits connections of any speed: a timeout applies to one piece,
    and each piece can be counted."""
    if len(data) <= most_bytes:
        yield data
        return
    view = memoryview(data)
    yield from (view[begin : begin + most_bytes] for begin in range(0, len(view), most_bytes))


def flow_of(chunk: Chunk) -> ChunkStream:
    """Returns a stream for a chunk that has arrived completely."""
    return ChunkStream(hash=chunk.hash, size_bytes=len(chunk.data), pieces=iter((chunk.data,)))


@runtime_checkable
class StreamingReader(Protocol):
    """A ChunkReader that can read chunks piece by piece."""

    def flows(self, chunks: Iterable[str]) -> Iterator[ChunkStream]:
        """Yields the chunks while they arrive. Raises the errors of `fetch`."""


@runtime_checkable
class StreamingWriter(Protocol):
    """A ChunkWriter that can store chunks piece by piece."""

    def receive(self, flows: Iterable[ChunkStream]) -> None:
        """Stores chunks while they arrive. Raises the errors of `send`, and the errors of the streams."""
