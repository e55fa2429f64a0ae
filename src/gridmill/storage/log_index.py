"""Finds where the texts of a run's log are stored: in the blocks of its segments, and in its chunks. When
files have grown, only their new bytes are read.

A writer can run at the same time in this process or in another process. The writer seals chunks (it appends
a block and then deletes the chunk), and replaces segments by renaming new files. Each answer shows a state
of the log that existed at some time.
"""

import os
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from gridmill.domain.frozen import dataclass
from gridmill.domain.job_log import unpacked
from gridmill.errors import InputError
from gridmill.storage.log_format import Block, Frame, blocks_of, frames_of, read_block


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """The names of the log files of a run."""

    folder: Path
    run_id: str

    def segment(self, number: int) -> Path:
        """Returns the name of a segment, which contains compressed blocks."""
        return self.folder / f"{self.run_id}.{number}.log"

    def chunk(self, number: int) -> Path:
        """Returns the name of a chunk, which contains frames in the order of their arrival."""
        return self.folder / f"{self.run_id}.{number}.raw"


def files_of_run(folder: Path, run_id: str) -> RunFiles:
    """Returns the names of the log files of a run. Raises InputError if the text cannot be the id of a
    run."""
    if not run_id or "/" in run_id or "\0" in run_id or run_id.startswith("."):
        raise InputError(f"{run_id!r} is not the id of a run")
    return RunFiles(folder=folder, run_id=run_id)


def run_of_file(name: str) -> str:
    """Returns the id of the run to whose log the file belongs."""
    return name.rsplit(".", 2)[0]


class PartData(NamedTuple):
    """The frames of a block or of a chunk, and the bytes that contain the texts of the frames."""

    frames: Sequence[Frame]
    data: bytes | bytearray

    def text(self, frame: Frame) -> bytes:
        """Returns the text of a frame."""
        stored = bytes(self.data[frame.position : frame.position + frame.stored])
        return unpacked(stored, frame.size) if frame.packed else stored


class LogPart(NamedTuple):
    """A part of a log: a block of a segment (`inode` is the inode of its file), or a chunk if `block` is
    None."""

    start: int
    end: int
    number: int
    block: Block | None
    path: Path
    inode: int


@dataclass(slots=True)
class _Segment:
    """The blocks in the file of a segment that end before `size`."""

    path: Path
    inode: int = 0
    size: int = 0
    blocks: list[Block] = field(default_factory=list)

    def refresh(self) -> bool:
        """Reads the new blocks of the segment. Returns False if the file of the segment does not exist."""
        try:
            state = self.path.stat()
            if (state.st_ino, state.st_size) == (self.inode, self.size):
                return True
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            state = os.fstat(descriptor)
            if state.st_ino != self.inode or state.st_size < self.size:
                self.blocks = []
            behind = self.blocks[-1].behind if self.blocks else 0
            self.blocks.extend(blocks_of(descriptor, behind, state.st_size))
            self.inode, self.size = state.st_ino, state.st_size
        finally:
            os.close(descriptor)
        return True


@dataclass(slots=True)
class _Growing:
    """The newest chunk of a log, with the frames that were read so far."""

    number: int = -1
    behind: int = 0
    data: bytearray = field(default_factory=bytearray)
    frames: list[Frame] = field(default_factory=list)

    def refresh(self, path: Path, number: int) -> bool:
        """Reads the new frames of the chunk. Returns False if the file of the chunk does not exist."""
        try:
            with path.open("rb") as file:
                if number != self.number:
                    self.number, self.behind, self.data, self.frames = number, 0, bytearray(), []
                file.seek(len(self.data))
                self.data += file.read()
        except FileNotFoundError:
            return False
        for frame, behind in frames_of(self.data, self.behind):
            self.frames.append(frame)
            self.behind = behind
        return True


class RunIndex:
    """An index of all parts of one run's log."""

    def __init__(self, files: RunFiles) -> None:
        self.files = files
        self._segments: list[_Segment] = []
        self._blocks: list[LogPart] = []
        self._growing = _Growing()
        self._newest_read: tuple[tuple[int, int, int], PartData] | None = (
            None  # the part that was read last is kept, because a page of the log can end within it
        )
        self._lock = Lock()

    def parts(self) -> list[LogPart]:
        """Returns all parts of the log in their present state, in order. Parts that contain no text are left
        out."""
        with self._lock:
            self._refresh_segments()
            while True:
                chunks = self._chunks(self._blocks[-1].number + 1 if self._blocks else 0)
                # if there is no chunk, the last chunk may have been sealed meanwhile
                has_news = not chunks and self._refresh_segments()
                if chunks is not None and not has_news:
                    return _with_gaps(self._blocks + chunks)

    def _refresh_segments(self) -> bool:
        """Reads the new blocks of the segments. Returns whether there were new blocks."""
        before = [(one.inode, one.size) for one in self._segments]
        number = 0
        while True:
            if number == len(self._segments):
                self._segments.append(_Segment(self.files.segment(number)))
            if not self._segments[number].refresh():
                del self._segments[number:]
                break
            number += 1
        if before == [(one.inode, one.size) for one in self._segments]:
            return False
        self._blocks = [
            LogPart(block.start, block.end, block.chunk, block, segment.path, segment.inode)
            for segment in self._segments
            for block in segment.blocks
        ]
        return True

    def _chunks(self, number: int) -> list[LogPart] | None:
        """Returns the chunks with this number or a higher number. Returns None if a chunk was sealed in the
        meantime. Only the newest chunk is read, because each older chunk ends where the next one starts."""
        result: list[LogPart] = []
        first = number
        while (path := self.files.chunk(number)).exists():
            number += 1
        for one in range(first, number - 1):
            path = self.files.chunk(one)
            if (data := _chunk_data(path)) is None:
                return None
            start = next((frame.offset for frame, _ in frames_of(data)), None)
            if start is not None:
                result.append(LogPart(start, start, one, None, path, 0))
        if number > first:
            path = self.files.chunk(number - 1)
            if not self._growing.refresh(path, number - 1):
                return None
            if frames := self._growing.frames:
                result.append(LogPart(frames[0].offset, frames[-1].end, number - 1, None, path, 0))
        ends = [*(part.start for part in result[1:]), result[-1].end if result else 0]
        return [part._replace(end=end) for part, end in zip(result, ends, strict=False)]

    def read(self, part: LogPart) -> PartData | None:
        """Returns the frames of a part of the log. Returns None if the part is damaged or does not exist any
        more."""
        if part.number < 0:
            return None
        with self._lock:
            if part.block is None and part.number == self._growing.number:
                return PartData(tuple(self._growing.frames), self._growing.data)
            key = (part.number, part.start, part.inode)
            if self._newest_read is not None and self._newest_read[0] == key:
                return self._newest_read[1]
        data = _block_data(part) if part.block is not None else _chunk_data(part.path)
        if data is None:
            return None
        result = PartData([frame for frame, _ in frames_of(data)], data)
        with self._lock:
            self._newest_read = key, result
        return result


def _with_gaps(parts: list[LogPart]) -> list[LogPart]:
    """Returns the parts of the log. For each range of the log whose data is damaged and cannot be found, the
    result contains a part that cannot be read."""
    end, result = 0, list[LogPart]()
    for part in parts:
        if part.start > end:
            result.append(LogPart(end, part.start, -1, None, Path(os.devnull), -1))
        result.append(part)
        end = part.end
    return result


def _chunk_data(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _block_data(part: LogPart) -> bytes | None:
    assert part.block is not None
    try:
        descriptor = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if os.fstat(descriptor).st_ino != part.inode:
            return None
        return read_block(descriptor, part.block)
    finally:
        os.close(descriptor)
