"""The journal of a pod of a batch site, in the home.

The pod of a batch site is no process: it is a folder in the home. Its journal numbers the events of all its
attempts, because the containers of the attempts number their events independently. A line of the journal is
written before the control node gets the event, and names the number that the container gave it. Therefore
each event is in the journal only once, even if the control node is killed at any moment.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from threading import Lock

from gridmill.codec import decode, encode
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import EventType, PodEvent
from gridmill.errors import InputError, StorageError
from gridmill.private_files import write_private

_WORTH_BYTES = 1 << 20
_MESSAGE_EVENTS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A line of the journal. `source` is the number that the container gave to the event, or 0 if the home
    made the event."""

    event: PodEvent
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """The first line of a journal whose older events were deleted. `last` is the number of the last deleted
    event, `sources` has the last source number of each attempt, and `ended` the attempts that have ended."""

    last: int = 0
    sources: Mapping[str, int] = field(default_factory=dict)
    ended: tuple[str, ...] = ()


class PodJournal:
    """The events of one pod. This class is safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        """Reads the journal. An incomplete last line is removed. Raises StorageError."""
        self._path, self._lock = path, Lock()
        self._events: list[PodEvent] = []
        self.acknowledged = 0
        self._head = _Head()
        self._sources: dict[str, int] = {}
        self._ended: set[str] = set()
        try:
            self._read()
        except OSError as error:
            raise StorageError(f"cannot be read: {error.strerror}", place=str(path)) from error

    def _read(self) -> None:
        if not self._path.exists():
            return self._rewrite(_Head())
        head, *lines = self._path.read_bytes().split(b"\n")
        complete = len(head) + 1
        self._head = decode(head, _Head)
        self._sources, self._ended = dict(self._head.sources), set(self._head.ended)
        for line in lines[:-1]:
            try:
                read = decode(line, _Line)
            except InputError:
                break
            self._note(read)
            complete += len(line) + 1
        os.truncate(self._path, complete)
        return None

    def _note(self, line: _Line) -> None:
        self._events.append(line.event)
        attempt = line.event.attempt_id
        self._sources[attempt] = max(self._sources.get(attempt, 0), line.source)
        if line.event.type is EventType.ENDED:
            self._ended.add(attempt)

    def _rewrite(self, head: _Head) -> None:
        write_private(self._path, encode(head) + b"\n")
        self._head = head

    @property
    def last(self) -> int:
        """The number of the last event."""
        return self._events[-1].number if self._events else self._head.last

    def source(self, attempt_id: str) -> int:
        """Returns the source number of the attempt's last event, or 0."""
        with self._lock:
            return self._sources.get(attempt_id, 0)

    def has_ended(self, attempt_id: str) -> bool:
        """Returns whether the journal contains the end of the attempt."""
        with self._lock:
            return attempt_id in self._ended

    def append(self, events: Sequence[PodEvent], *, is_own: bool = False) -> None:
        """Stores events of one attempt with the next numbers of the pod. Events that the journal already
        contains are ignored, and also all events after the end of the attempt. `is_own` means that the home
        made the events. Raises StorageError."""
        with self._lock:
            lines: list[_Line] = []
            number = self.last
            for event in events:
                known = self._sources.get(event.attempt_id, 0)
                if event.attempt_id in self._ended or (not is_own and event.number <= known):
                    continue
                number += 1
                source = 0 if is_own else event.number
                lines.append(_Line(event=replace(event, number=number), source=source))
            self._write(lines)
            for line in lines:
                self._note(line)

    def _write(self, lines: Sequence[_Line]) -> None:
        data = b"".join(encode(line) + b"\n" for line in lines)
        if not data:
            return
        before = self._path.stat().st_size
        try:
            with self._path.open("ab") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            os.truncate(self._path, before)
            raise StorageError(f"cannot be written: {error.strerror}", place=str(self._path)) from error

    def acknowledge(self, number: int) -> None:
        """Deletes the events up to this number, which the control node has committed."""
        with self._lock:
            self.acknowledged = max(self.acknowledged, min(number, self.last))
            rest = [event for event in self._events if event.number > self.acknowledged]
            if rest or not self._events:
                self._events = rest
                return
            last = self.last
            is_worth = self._path.stat().st_size >= _WORTH_BYTES
            self._events = []
            head = _Head(last=last, sources=dict(self._sources), ended=tuple(sorted(self._ended)))
            if is_worth:
                self._rewrite(head)
            else:
                self._head = head  # the file still has the events, which the control node knows already

    def after(self, number: int) -> tuple[PodEvent, ...]:
        """Returns the next events after this number."""
        with self._lock:
            later = (event for event in self._events if event.number > number)
            return tuple(event for event, _ in zip(later, range(_MESSAGE_EVENTS), strict=False))

    def waiting(self) -> tuple[PodEvent, ...]:
        """Returns all events that the control node has not acknowledged."""
        with self._lock:
            return tuple(self._events)
