"""Many small chunks as one object of a bucket: a request costs as much for a kilobyte as for a megabyte.

A pack is its chunks' contents, one after the other; its index tells which, in 36 bytes each: the hash, and
the size (big-endian).
"""

import hashlib
from collections.abc import Mapping, Sequence
from struct import Struct

from gridmill.model.noun import dataclass
from gridmill.staging.frames import Chunk

SMALL_BYTES = 1 << 20
"""Chunks up to this size are packed, when there are several."""
_LINE = Struct(">32sI")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Where a chunk lies: from `begin` to `end` (bytes) of a pack."""

    pack: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Ready to be put: the content first, as the index makes it known. The name is the index's hash."""

    name: str
    content: bytes
    index: bytes


def pack(chunks: Sequence[Chunk]) -> Pack:
    """One pack of these."""
    index = b"".join(_LINE.pack(bytes.fromhex(chunk.hash), len(chunk.data)) for chunk in chunks)
    content = b"".join(chunk.data for chunk in chunks)
    return Pack(name=hashlib.sha256(index).hexdigest(), content=content, index=index)


def parts(name: str, index: bytes) -> Mapping[str, Part]:
    """Where its chunks lie, by hash. An index that is not its pack's (its name tells) shows nothing."""
    if hashlib.sha256(index).hexdigest() != name:
        return {}
    found, begin = {}, 0
    for said, size in _LINE.iter_unpack(index):
        found[said.hex()] = Part(pack=name, begin=begin, end=begin + size)
        begin += size
    return found
