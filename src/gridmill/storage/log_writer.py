"""Writes the log of one run: it appends texts to a chunk, seals chunks as blocks of segments, and drops
texts that exceed the limits.

A text is acknowledged when it is in the file of the chunk. To seal a chunk, the writer appends a block to
the newest segment and then deletes the chunk. A crash between these two steps leaves a chunk with the number
of an existing block. A chunk that was left in this way is deleted when the log is next opened for writing. A
rewritten segment replaces the old segment by a rename.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field

from gridmill.domain.frozen import dataclass
from gridmill.domain.job_log import LogRecord
from gridmill.errors import StorageError
from gridmill.storage.log_format import (
    Block,
    BlockContents,
    Frame,
    blocks_of,
    contents_of,
    frames_of,
    pack_block,
    pack_frame,
    read_block,
)
from gridmill.storage.log_index import RunFiles

_NEW = ".new"
_WORTH_SEALING = 16 * 1024
"""A chunk with fewer bytes than this is not compressed when its run has ended."""


@dataclass(slots=True)
class _Batch:
    """Frames that are written to the chunk together."""

    end: int
    size: int = 0
    frames: list[bytes] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)

    def add(self, record: LogRecord, known: int) -> None:
        """Adds a text. `known` is the highest number of the texts that were stored before for the same
        attempt."""
        text = b"" if record.packed else record.text.encode("utf-8", "replace")
        self.last[record.attempt_id] = max(known, record.number)
        if size := record.packed_size or len(text):
            frame = pack_frame(record, text, self.end)
            self.frames.append(frame)
            self.size += len(frame)
            self.end += size


class RunWriter:
    """Writes the log of one run. `append` must be called by only one thread at a time. `seal` and `drop`
    must also be called by one thread at a time, which may differ from the thread that calls `append`."""

    def __init__(self, files: RunFiles, *, chunk_bytes: int, segment_blocks: int) -> None:
        """Opens the log in the state in which the last writer left it. Raises OSError."""
        self.files = files
        self._chunk_bytes, self._segment_blocks = chunk_bytes, segment_blocks
        self._last: dict[str, int] = {}
        self._descriptor: int | None = None
        self._segment, self._blocks_in_segment = 0, 0
        self._emptied: set[int] = set()
        """The segments that have no text left and do not grow."""
        self.kept: dict[str, int] = {}
        """For each job, the number of bytes of its text that are stored in blocks."""
        self.end = 0
        self._chunk, self._size = 0, 0
        self._chunk_start = 0
        """The offset of the first text of the chunk."""
        self._sealed, self._sealed_end = -1, 0
        self._open_segments()
        self._open_chunks()

    @property
    def newest_block(self) -> int:
        """The number of the chunk that was sealed last."""
        return self._sealed

    @property
    def waiting(self) -> int:
        """The number of chunks that are full and not sealed yet."""
        return self._chunk - self._sealed - 1

    def _open_segments(self) -> None:
        number, last = 0, -1
        while (path := self.files.segment(number)).exists():
            path.with_name(path.name + _NEW).unlink(missing_ok=True)
            blocks = self._segment_blocks_of(number, cut=not self.files.segment(number + 1).exists())
            for block in blocks:
                self._take_contents(block.contents())
                last, self.end = block.chunk, block.end
            self._segment, self._blocks_in_segment = number, len(blocks)
            number += 1
        self._sealed, self._sealed_end = last, self.end
        if last >= 0:
            self.files.chunk(last).unlink(missing_ok=True)

    def _segment_blocks_of(self, number: int, *, cut: bool) -> list[Block]:
        """Returns the blocks of a segment. With `cut`, an incomplete block at the end of the segment is cut
        off."""
        descriptor = os.open(self.files.segment(number), os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            blocks = [*blocks_of(descriptor, 0, size)]
            whole = blocks[-1].behind if blocks else 0
            if cut and whole < size:
                os.ftruncate(descriptor, whole)
            return blocks
        finally:
            os.close(descriptor)

    def _take_contents(self, contents: BlockContents) -> None:
        for job, size in contents.kept.items():
            self.kept[job] = self.kept.get(job, 0) + size
        for attempt, number in contents.last.items():
            self._last[attempt] = max(number, self._last.get(attempt, 0))

    def _open_chunks(self) -> None:
        number = self._sealed + 1
        while (path := self.files.chunk(number)).exists():
            whole, size = 0, path.stat().st_size
            self._chunk_start = self.end
            for frame, behind in frames_of(path.read_bytes()):
                self._last[frame.attempt] = max(frame.number, self._last.get(frame.attempt, 0))
                self.end, whole = max(self.end, frame.end), behind
            if whole < size:
                os.truncate(path, whole)
            self._size = whole
            number += 1
        if number == self._sealed + 1:
            self._chunk_start = self.end
        self._chunk = max(number - 1, self._sealed + 1)

    def append(self, records: Sequence[LogRecord]) -> int:
        """Stores all texts that are not stored yet, in one write. Returns the number of bytes written.
        Raises StorageError."""
        written, batch = 0, _Batch(end=self.end)
        for record in records:
            known = batch.last.get(record.attempt_id) or self._last.get(record.attempt_id, 0)
            if 0 < record.number <= known:
                continue
            batch.add(record, known)
            if self._is_full(self._size + batch.size, batch.end):
                written += self._append(batch)
                batch = _Batch(end=self.end)
        return written + self._append(batch)

    def _is_full(self, size: int, end: int) -> bool:
        """Returns whether a chunk of this size, whose last text ends at `end`, is full. A reader that needs
        one text must read the complete block of this text, so compressed texts count with their uncompressed
        size."""
        return max(size, end - self._chunk_start) >= self._chunk_bytes

    def _append(self, batch: "_Batch") -> int:
        if batch.size:
            self._write(b"".join(batch.frames))
        self.end = batch.end
        self._last.update(batch.last)
        self._size += batch.size
        if self._is_full(self._size, self.end):
            self._begin_chunk()
        return batch.size

    def _begin_chunk(self) -> None:
        self.close()
        self._chunk, self._size, self._chunk_start = self._chunk + 1, 0, self.end

    def _write(self, data: bytes) -> None:
        path = self.files.chunk(self._chunk)
        try:
            if self._descriptor is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._descriptor = os.open(path, flags, 0o600)
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            self.close()
            with suppress(OSError):
                os.truncate(path, self._size)
            raise StorageError(f"a log cannot be written: {error.strerror}", place=str(path)) from error

    def close(self) -> None:
        """Closes the file of the newest chunk. The next call of `append` opens the file again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def finish(self) -> None:
        """Allows the newest chunk to be sealed too, if it is large enough."""
        self.close()
        if self._size >= _WORTH_SEALING:
            self._begin_chunk()

    def seal(self) -> int:
        """Makes a block of the oldest chunk that waits to be sealed. Returns the number of bytes by which
        the log grew. Raises OSError."""
        number = self._sealed + 1
        path = self.files.chunk(number)
        data = path.read_bytes()
        frames = [frame for frame, _ in frames_of(data)]
        if self._blocks_in_segment >= self._segment_blocks:
            self._segment, self._blocks_in_segment = self._segment + 1, 0
        begin, end = (frames[0].offset, frames[-1].end) if frames else (self._sealed_end, self._sealed_end)
        contents = contents_of(frames)
        block = pack_block(number, begin, end, contents, data if frames else b"")
        self._append_block(block)
        for job, more in contents.kept.items():
            self.kept[job] = self.kept.get(job, 0) + more
        self._sealed, self._sealed_end = number, end
        path.unlink(missing_ok=True)
        return len(block) - len(data)

    def _append_block(self, block: bytes) -> None:
        path = self.files.segment(self._segment)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            before = os.fstat(descriptor).st_size
            try:
                view = memoryview(block)
                while view:
                    view = view[os.write(descriptor, view) :]
            except OSError:
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)
        self._blocks_in_segment += 1

    def drop(self, choose: Callable[[int, Block, BlockContents], frozenset[str]]) -> int:
        """Drops the texts of the jobs that `choose` returns for a block. The arguments of `choose` are the
        number of the segment, the block, and the summary of the block. Returns the number of bytes by which
        the log shrank. Raises OSError."""
        shrank, kept = 0, dict[str, int]()
        for number in range(self._segment + 1):
            if number in self._emptied or not self.files.segment(number).exists():
                continue
            blocks = [(block, block.contents()) for block in self._segment_blocks_of(number, cut=False)]
            choices = [choose(number, block, contents) & contents.kept.keys() for block, contents in blocks]
            if any(choices):
                shrank += self._rewrite(number, blocks, choices)
            left = [
                _without(contents, jobs).kept for (_, contents), jobs in zip(blocks, choices, strict=True)
            ]
            for sizes in left:
                kept = _sums(kept, sizes)
            if number < self._segment and not any(left):
                self._emptied.add(number)
        self.kept = kept
        return shrank

    def _rewrite(
        self,
        number: int,
        blocks: Sequence[tuple[Block, BlockContents]],
        choices: Sequence[frozenset[str]],
    ) -> int:
        path = self.files.segment(number)
        draft = path.with_name(path.name + _NEW)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            before = os.fstat(descriptor).st_size
            data = b"".join(_rewritten(descriptor, blocks, choices))
        finally:
            os.close(descriptor)
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fdatasync(
                file.fileno()
            )  # if the rename reached the disk before the content, a power cut would lose the segment
        draft.replace(path)
        return before - len(data)


def _rewritten(
    descriptor: int, blocks: Sequence[tuple[Block, BlockContents]], choices: Sequence[frozenset[str]]
) -> Iterator[bytes]:
    """Yields the blocks without the texts of the chosen jobs. Adjacent blocks that contain no text are
    joined into one block."""
    empty: tuple[Block, BlockContents] | None = None
    for (block, contents), jobs in zip(blocks, choices, strict=True):
        fewer = _without(contents, jobs)
        if not fewer.kept:
            empty = (block, fewer) if empty is None else _together(empty, (block, fewer))
            continue
        if empty is not None:
            yield _packed_empty(*empty)
            empty = None
        if not jobs:
            yield os.pread(descriptor, block.behind - block.at, block.at)
            continue
        data = read_block(descriptor, block) or b""
        frames = b"".join(piece for frame, piece in _pieces(data) if frame.job not in jobs)
        yield pack_block(block.chunk, block.start, block.end, fewer, frames)
    if empty is not None:
        yield _packed_empty(*empty)


def _without(contents: BlockContents, jobs: frozenset[str]) -> BlockContents:
    """Returns the summary of a block after the texts of these jobs were dropped."""
    kept = {job: size for job, size in contents.kept.items() if job not in jobs}
    dropped = _sums(contents.dropped, {job: contents.kept[job] for job in jobs})
    return BlockContents(kept=kept, dropped=dropped, last=contents.last)


def _sums(some: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return {job: some.get(job, 0) + more.get(job, 0) for job in {**some, **more}}


def _together(
    some: tuple[Block, BlockContents], more: tuple[Block, BlockContents]
) -> tuple[Block, BlockContents]:
    """Joins two adjacent empty blocks into one block."""
    dropped = _sums(some[1].dropped, more[1].dropped)
    last = {**some[1].last, **more[1].last}
    return more[0]._replace(start=some[0].start), BlockContents(kept={}, dropped=dropped, last=last)


def _packed_empty(block: Block, contents: BlockContents) -> bytes:
    return pack_block(block.chunk, block.start, block.end, contents, b"")


def _pieces(data: bytes) -> list[tuple[Frame, bytes]]:
    result, begin = list[tuple[Frame, bytes]](), 0
    for frame, behind in frames_of(data):
        result.append((frame, data[begin:behind]))
        begin = behind
    return result


def beyond_limit(writer: RunWriter, limit: int) -> Callable[[int, Block, BlockContents], frozenset[str]]:
    """Returns a function that chooses the texts to drop, so that each job has at most about `limit` bytes.
    Texts in the middle are dropped. The first texts, up to half of the limit, and the newest texts are kept.
    The dropped text exceeds the needed amount by an eighth of the limit, so that the limit is not reached
    again soon."""
    excess = {job: size - limit + limit // 8 for job, size in writer.kept.items() if size > limit}
    position: dict[str, int] = {}

    def choose(_number: int, _block: Block, contents: BlockContents) -> frozenset[str]:
        chosen = set[str]()
        for job, size in contents.kept.items():
            begin = position[job] = position.get(job, 0) + size
            if job in excess and begin - size >= limit // 2 and excess[job] > 0:
                excess[job] -= size
                chosen.add(job)
        return frozenset(chosen)

    return choose
