"""The format of log files: frames that contain text, and blocks of compressed frames with a summary of their
contents.

A chunk (`RUN.NUMBER.raw`) is a sequence of frames in the order of their arrival. A segment
(`RUN.NUMBER.log`) is a sequence of blocks. Each block contains the frames of one chunk. The header of a
block summarises its contents, so that a reader reads the headers and then only the blocks that it needs. If
a pod sends a compressed text, its frame stores the compressed text, and the block is not compressed again.
Frames and blocks have checksums. An incomplete frame at the end of a file was never acknowledged. If a file
is damaged at another position, only the damaged frame or block is lost.
"""

import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

from gridmill.domain.amounts import KIB, MIB
from gridmill.domain.frozen import dataclass
from gridmill.domain.job_log import LogRecord

STREAMS = ("out", "err", "pod")
LEVEL = 1
"""The fastest compression level of zlib. With this level, compressed log lines are a third larger than with
the default level, but compression is twice as fast."""

_FRAME = Struct("<4sIIBdQQHHH")
_FRAME_MAGIC = b"GLf1"
_PACKED_MAGIC = b"GLf2"
"""The bytes with which a frame with a compressed text starts. In such a frame, the uncompressed size comes
before the text."""
_MAGICS = (_FRAME_MAGIC, _PACKED_MAGIC)
_ANY_MAGIC = b"GLf"
_TEXT_SIZE = Struct("<I")
_BLOCK = Struct("<4sIIIIQQQQ")
_BLOCK_MAGIC = b"GLb1"
_CHECKED = Struct("<4sI").size
_LOOK_BYTES = 4 * KIB
_LONGEST_META = 64 * MIB


class Frame(NamedTuple):
    """The position of a frame's text. The text has `stored` bytes at `position` in its chunk, and is
    compressed if `packed` is true. The uncompressed text has `size` bytes and starts at `offset` in the log
    of the run."""

    position: int
    size: int
    offset: int
    time: float
    number: int
    stream: str
    attempt: str
    job: str
    mark: str
    stored: int
    packed: bool

    @property
    def end(self) -> int:
        """Returns the offset after the text."""
        return self.offset + self.size


def pack_frame(record: LogRecord, text: bytes, offset: int) -> bytes:
    """Returns the frame that stores a text. `offset` is the position of the text in the log of its run. A
    compressed text stays compressed in the frame."""
    magic = _FRAME_MAGIC
    if record.packed:
        magic, text = _PACKED_MAGIC, _TEXT_SIZE.pack(record.packed_size) + record.packed
    attempt, job, mark = (part.encode() for part in (record.attempt_id, record.job, record.mark))
    stream = STREAMS.index(record.stream) if record.stream in STREAMS else len(STREAMS) - 1
    sizes = (len(attempt), len(job), len(mark))
    head = _FRAME.pack(magic, 0, len(text), stream, record.time, record.number, offset, *sizes)
    names = b"".join((head[_CHECKED:], attempt, job, mark))
    crc = zlib.crc32(text, zlib.crc32(names))
    return b"".join((magic, crc.to_bytes(4, "little"), names, text))


def frames_of(data: bytes | bytearray, position: int = 0) -> Iterator[tuple[Frame, int]]:
    """Yields the frames of a chunk that start at `position` or later. Each frame is returned with the
    position after it. Damaged frames are skipped. The iteration ends at an incomplete frame."""
    while position + _FRAME.size <= len(data):
        found = _frame_at(data, position)
        if found is None:
            position = data.find(_ANY_MAGIC, position + 1)
            if position < 0:
                return
            continue
        yield found
        position = found[1]


def _frame_at(data: bytes | bytearray, position: int) -> tuple[Frame, int] | None:
    magic, crc, size, stream, time, number, offset, *sizes = _FRAME.unpack_from(data, position)
    begin = position + _FRAME.size
    text = begin + sum(sizes)
    end = text + size
    if magic not in _MAGICS or end > len(data):
        return None
    if zlib.crc32(memoryview(data)[position + _CHECKED : end]) != crc:
        return None
    attempt_end = begin + sizes[0]
    job_end = attempt_end + sizes[1]
    names = data[begin:attempt_end], data[attempt_end:job_end], data[job_end:text]
    attempt, job, mark = (name.decode("utf-8", "replace") for name in names)
    stream_name = STREAMS[min(stream, len(STREAMS) - 1)]
    stored = size
    if packed := magic == _PACKED_MAGIC:
        if stored < _TEXT_SIZE.size:
            return None
        (size,) = _TEXT_SIZE.unpack_from(data, text)
        text, stored = text + _TEXT_SIZE.size, stored - _TEXT_SIZE.size
    return Frame(text, size, offset, time, number, stream_name, attempt, job, mark, stored, packed), end


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockContents:
    """The summary in the header of a block: for each job, the bytes of its text that are kept and the bytes
    that were dropped later, and for each attempt, the highest number of its texts."""

    kept: Mapping[str, int]
    dropped: Mapping[str, int]
    last: Mapping[str, int]


class Block(NamedTuple):
    """A block in its segment, with its position, its metadata and its payload. `start` and `end` are offsets
    in the log of the run."""

    at: int
    meta: bytes
    payload_at: int
    payload_size: int
    payload_crc: int
    chunk: int
    start: int
    end: int
    dropped: int

    @property
    def behind(self) -> int:
        """Returns the position of the next block in the segment."""
        return self.payload_at + self.payload_size

    def contents(self) -> BlockContents:
        """Returns the summary of the block's contents."""
        return _read_meta(self.meta)


@lru_cache(1024)
def _read_meta(meta: bytes) -> BlockContents:
    told: Any = json.loads(zlib.decompress(meta))
    return BlockContents(kept=told["kept"], dropped=told["dropped"], last=told["last"])


def contents_of(frames: Sequence[Frame]) -> BlockContents:
    """Returns the summary of a block that contains these frames."""
    kept: dict[str, int] = {}
    last: dict[str, int] = {}
    for frame in frames:
        kept[frame.job] = kept.get(frame.job, 0) + frame.size
        last[frame.attempt] = frame.number
    return BlockContents(kept=kept, dropped={}, last=last)


def pack_block(chunk: int, start: int, end: int, contents: BlockContents, frames: bytes) -> bytes:
    """Returns a block with these frames of a chunk. `frames` is b"" if all frames were dropped."""
    told = {"kept": contents.kept, "dropped": contents.dropped, "last": contents.last}
    meta = zlib.compress(json.dumps(told, separators=(",", ":")).encode(), LEVEL)
    level = LEVEL if _has_more_to_gain(contents, frames) else 0
    payload = zlib.compress(frames, level) if frames else b""
    sizes = (len(meta), len(payload), zlib.crc32(payload))
    dropped = sum(contents.dropped.values())
    head = _BLOCK.pack(_BLOCK_MAGIC, 0, *sizes, chunk, start, end, dropped)[_CHECKED:]
    crc = zlib.crc32(meta, zlib.crc32(head))
    return b"".join((_BLOCK_MAGIC, crc.to_bytes(4, "little"), head, meta, payload))


def _has_more_to_gain(contents: BlockContents, frames: bytes) -> bool:
    """Returns whether less than half of the texts were already compressed when they arrived."""
    return len(frames) > sum(contents.kept.values()) // 2


def blocks_of(descriptor: int, position: int, size: int) -> Iterator[Block]:
    """Yields the blocks of a segment of this size that start at `position` or later. Damaged blocks are
    skipped."""
    while position + _BLOCK.size <= size:
        found = _block_at(descriptor, position, size)
        if found is None:
            position = _next_block(descriptor, position + 1, size)
            continue
        yield found
        position = found.behind


def _block_at(descriptor: int, position: int, size: int) -> Block | None:
    data = os.pread(descriptor, _LOOK_BYTES, position)
    if len(data) < _BLOCK.size:
        return None
    magic, crc, meta_size, *rest = _BLOCK.unpack_from(data)
    payload_size, payload_crc, chunk, start, end, dropped = rest
    meta_at = position + _BLOCK.size
    if magic != _BLOCK_MAGIC or meta_size > _LONGEST_META or meta_at + meta_size + payload_size > size:
        return None
    meta = data[_BLOCK.size : _BLOCK.size + meta_size]
    if len(meta) < meta_size:
        meta = os.pread(descriptor, meta_size, meta_at)
    if zlib.crc32(meta, zlib.crc32(data[_CHECKED : _BLOCK.size])) != crc:
        return None
    return Block(position, meta, meta_at + meta_size, payload_size, payload_crc, chunk, start, end, dropped)


def _next_block(descriptor: int, position: int, size: int) -> int:
    """Returns the position at which the next block may start, or `size` if there is no next block."""
    while position < size:
        data = os.pread(descriptor, MIB, position)
        found = data.find(_BLOCK_MAGIC)
        if found >= 0:
            return position + found
        position += max(1, len(data) - len(_BLOCK_MAGIC) + 1)
    return size


def read_block(descriptor: int, block: Block) -> bytes | None:
    """Returns the frames of a block, or None if they are damaged."""
    if not block.payload_size:
        return b""
    payload = os.pread(descriptor, block.payload_size, block.payload_at)
    if zlib.crc32(payload) != block.payload_crc:
        return None
    try:
        return zlib.decompress(payload)
    except zlib.error:
        return None
