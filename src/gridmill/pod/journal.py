"""The journal stores the numbered events of a pod on disk until the control node has committed them.

Events are JSON lines in files (segments). The name of a segment is the number of its first event. Each event
number is used once. The numbers start at 1 and have no gaps. Writes are not synchronized to the disk.
Written events survive the end of the process. If the machine fails, events may be lost, but the jobs of the
machine are lost too. If the disk is full, events stay in memory, and `full` stops the reading of the jobs'
output until writing works again.
"""

import os
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gridmill.codec import decode, encode
from gridmill.domain.amounts import KIB, MIB
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import EventType, PodEvent
from gridmill.errors import InputError

CAP_BYTES = 64 * MIB
SEGMENT_BYTES = 4 * MIB
TAIL_BYTES = 2 * MIB
_WORTH_DROPPING = 256 * KIB


@dataclass(slots=True, kw_only=True)
class _Segment:
    first: int
    path: Path
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _JournalEntry:
    event: PodEvent
    size: int


class Journal:
    """Stores events: it appends them, reads them starting at any number, and deletes them after they are
    acknowledged. A journal has one writer and must not be used by several threads."""

    def __init__(
        self, folder: Path, *, cap_bytes: int = CAP_BYTES, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self.last = 0
        self.acknowledged = 0
        self._folder = folder
        self._cap = cap_bytes
        self._segment_bytes = segment_bytes
        self._segments: list[_Segment] = []
        self._file: int | None = None
        self._unwritten = bytearray()
        self._tail: deque[_JournalEntry] = deque()
        self._tail_bytes = 0
        self._cursor: tuple[int, int, int] = (0, 0, 0)
        """The number of the first event of a segment, an offset in this segment, and the number of the event
        before the offset."""
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def full(self) -> bool:
        """True while the output of jobs must not be read, because too many events are uncommitted or the
        disk accepts no events."""
        kept = sum(segment.size for segment in self._segments) + len(self._unwritten)
        return kept >= self._cap or len(self._unwritten) >= self._segment_bytes

    def append(
        self, attempt_id: str, token: str, time: float, kind: EventType, body: Mapping[str, Any]
    ) -> PodEvent:
        """Gives a number to an event and stores the event in memory; `flush` writes the event to the
        disk."""
        self.last += 1
        event = PodEvent(
            number=self.last, attempt_id=attempt_id, token=token, time=time, type=kind, body=body
        )
        line = encode(event) + b"\n"
        self._unwritten += line
        self._tail.append(_JournalEntry(event=event, size=len(line)))
        self._tail_bytes += len(line)
        return event

    def flush(self) -> None:
        """Writes the appended events to the disk. Events that cannot be written are tried again by the next
        call of `flush`."""
        if self._unwritten:
            try:
                self._write()
            except OSError:
                return
        while self._tail_bytes > TAIL_BYTES:
            self._tail_bytes -= self._tail.popleft().size

    def _write(self) -> None:
        if self._file is None:
            self._open(self.last + 1 - self._unwritten.count(b"\n"))
        segment = self._segments[-1]
        while self._unwritten:
            written = os.write(self._file or 0, self._unwritten)
            del self._unwritten[:written]
            segment.size += written
        if segment.size >= self._segment_bytes:
            self._close_segment()

    def _open(self, first: int) -> None:
        path = self._folder / f"{first:012d}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._segments.append(_Segment(first=first, path=path))

    def _close_segment(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def acknowledge(self, number: int) -> None:
        """Deletes all events up to `number`. A number lower than in an earlier call has no effect."""
        self.acknowledged = max(self.acknowledged, min(number, self.last))
        while self._tail and self._tail[0].event.number <= self.acknowledged:
            self._tail_bytes -= self._tail.popleft().size
        if self.acknowledged == self.last and self._segments:
            # all events are committed, so that the events that the disk refused are not needed any more
            stuck = bool(self._unwritten)
            self._unwritten.clear()
            if stuck or self._segments[-1].size >= _WORTH_DROPPING:
                self._close_segment()
        self._drop_segments()

    def _drop_segments(self) -> None:
        while self._segments:
            following = self._segments[1].first if len(self._segments) > 1 else self.last + 1
            being_written = len(self._segments) == 1 and self._file is not None
            if being_written or following - 1 > self.acknowledged:
                return
            self._segments.pop(0).path.unlink(missing_ok=True)

    def after(self, number: int, limit_bytes: int = 256 * KIB) -> tuple[PodEvent, ...]:
        """Returns the events that follow the event `number`, in order and up to about `limit_bytes` bytes.
        Returns () if there are no such events."""
        if number >= self.last:
            return ()
        if self._tail and self._tail[0].event.number <= number + 1:
            return self._from_memory(number, limit_bytes)
        return self._from_disk(number, limit_bytes)

    def _from_memory(self, number: int, limit_bytes: int) -> tuple[PodEvent, ...]:
        events, size = [], 0
        for index in range(number + 1 - self._tail[0].event.number, len(self._tail)):
            events.append(self._tail[index].event)
            size += self._tail[index].size
            if size >= limit_bytes:
                break
        return tuple(events)

    def _from_disk(self, number: int, limit_bytes: int) -> tuple[PodEvent, ...]:
        events: list[PodEvent] = []
        size = 0
        for event, length in self._lines(number):
            events.append(event)
            size += length
            if size >= limit_bytes:
                break
        return tuple(events)

    def _lines(self, number: int) -> Iterator[tuple[PodEvent, int]]:
        following = [segment.first for segment in self._segments[1:]] + [self.last + 1]
        for segment, end in zip(tuple(self._segments), following, strict=True):
            if end <= number + 1:
                continue
            offset = self._cursor[1] if self._cursor[::2] == (segment.first, number) else 0
            for event, length in _parse(segment.path, offset):
                offset += length
                if event.number > number:
                    number = event.number
                    self._cursor = (segment.first, offset, number)
                    yield event, length

    def close(self) -> None:
        """Closes the file. The content of the journal stays on the disk."""
        self._close_segment()


def read_journal(folder: Path) -> Iterator[PodEvent]:
    """Yields the events that a pod left in its journal, in order. An incomplete last line is left out."""
    for path in sorted(folder.glob("*.jsonl")):
        for event, _ in _parse(path, 0):
            yield event


def _parse(path: Path, offset: int) -> Iterator[tuple[PodEvent, int]]:
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            try:
                event = decode(line, PodEvent)
            except InputError:
                return
            yield event, len(line)
