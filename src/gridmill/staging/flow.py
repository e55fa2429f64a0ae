"""Chunks whose content is passed on as it comes: a piece is hashed and written while the processor has it."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, runtime_checkable

from gridmill.model.noun import dataclass
from gridmill.staging.frames import Chunk, Content

PIECE_BYTES = 1 << 18
"""Stays in a core's own cache until it is hashed and written: twice as quick as what has left it."""


@dataclass(frozen=True, slots=True)
class Meter:
    """`moved` is told the bytes of each piece (`piece_bytes` at most) that is sent next, or has come, or less
    than 0 for what is sent anew; what it raises ends the transfer."""

    moved: Callable[[int], None]
    piece_bytes: int = PIECE_BYTES

    def sending(self, data: Content) -> Iterator[Content]:
        """The pieces, each once it may go."""
        for piece in in_pieces(data, self.piece_bytes):
            self.moved(len(piece))
            yield piece


UNMETERED = Meter(lambda _: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
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


def flow_of(chunk: Chunk) -> Flow:
    """A chunk that has come already."""
    return Flow(hash=chunk.hash, size_bytes=len(chunk.data), pieces=iter((chunk.data,)))


@runtime_checkable
class Flowing(Protocol):
    """A Giver (see `carry`) that gives chunks piece by piece."""

    def flows(self, chunks: Iterable[str]) -> Iterator[Flow]:
        """Raises as `fetch`."""
        ...


@runtime_checkable
class Receiving(Protocol):
    """A Taker (see `carry`) that takes chunks piece by piece."""

    def receive(self, flows: Iterable[Flow]) -> None:
        """Raises as `send`, and whatever the flows raise."""
        ...
