"""Chunks as the bodies of requests and answers: counted as they move, piece by piece."""

import http.client
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gridmill.staging import frames
from gridmill.staging.flow import PIECE_BYTES, in_pieces
from gridmill.staging.frames import Chunk

Moved = Callable[[int], None]
"""Told the bytes of a piece before it is sent, or once it has come."""


@dataclass(frozen=True, slots=True)
class Frames:
    """A body that may be sent again."""

    contents: Sequence[frames.Content]
    moved: Moved

    def __iter__(self) -> Iterator[frames.Content]:
        for content in self.contents:
            for piece in in_pieces(content):
                self.moved(len(piece))
                yield piece


def read_chunks(answer: http.client.HTTPResponse, moved: Moved) -> list[Chunk]:
    """All of an answer's; their hashes are still to be compared. Raises HTTPException where it breaks off."""
    return list(frames.decode(_pieces(answer, moved)))


def _pieces(answer: http.client.HTTPResponse, moved: Moved) -> Iterator[memoryview]:
    piece = memoryview(bytearray(PIECE_BYTES))
    while size := answer.readinto(piece):
        moved(size)
        yield piece[:size]
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
