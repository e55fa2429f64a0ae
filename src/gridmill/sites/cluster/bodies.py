"""Chunks as the bodies of requests and answers: counted as they move, piece by piece."""

import http.client
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gridmill.staging import frames
from gridmill.staging.flow import Meter
from gridmill.staging.frames import Chunk


@dataclass(frozen=True, slots=True)
class Frames:
    """A body that may be sent again."""

    contents: Sequence[frames.Content]
    meter: Meter

    def __iter__(self) -> Iterator[frames.Content]:
        for content in self.contents:
            yield from self.meter.sending(content)


def read_chunks(answer: http.client.HTTPResponse, meter: Meter) -> list[Chunk]:
    """All of an answer's; their hashes are still to be compared. Raises HTTPException where it breaks off."""
    return list(frames.decode(_pieces(answer, meter)))


def _pieces(answer: http.client.HTTPResponse, meter: Meter) -> Iterator[memoryview]:
    piece = memoryview(bytearray(meter.piece_bytes))
    while size := answer.readinto(piece):
        meter.moved(size)
        yield piece[:size]
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
