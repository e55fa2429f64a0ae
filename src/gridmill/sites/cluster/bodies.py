"""Chunks as the bodies of requests and answers: counted as they move, piece by piece."""

import http.client
from collections.abc import Iterator, Sequence

from gridmill.staging import frames
from gridmill.staging.flow import Meter
from gridmill.staging.frames import Chunk


class Frames:
    """A body that may be sent again: then what was sent before counts for nothing."""

    def __init__(self, contents: Sequence[frames.Content], meter: Meter) -> None:
        self._contents, self._meter, self._sent_bytes = contents, meter, 0

    def __iter__(self) -> Iterator[frames.Content]:
        if self._sent_bytes:
            self._meter.moved(-self._sent_bytes)
            self._sent_bytes = 0
        for content in self._contents:
            for piece in self._meter.sending(content):
                self._sent_bytes += len(piece)
                yield piece


def read_chunks(answer: http.client.HTTPResponse, meter: Meter) -> list[Chunk]:
    """All of an answer's; their hashes are still to be compared. Raises HTTPException where it breaks off."""
    return list(frames.decode(_pieces(answer, meter)))


def _pieces(answer: http.client.HTTPResponse, meter: Meter) -> Iterator[memoryview]:
    piece, got_bytes = memoryview(bytearray(meter.piece_bytes)), 0
    try:
        while size := answer.readinto(piece):
            meter.moved(size)
            got_bytes += size
            yield piece[:size]
        if answer.length:
            raise http.client.IncompleteRead(b"", answer.length)
    except (OSError, http.client.HTTPException):
        meter.moved(-got_bytes)  # it may be asked for again
        raise
