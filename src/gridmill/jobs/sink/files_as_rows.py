"""Loads files as rows (images, texts, any files). Each file becomes a single row with its bytes, and is
loaded only once.

The position of the sink records which files are loaded, in 20 packed bytes per file. A load reads only new
files, and a single Parquet file contains the rows of many files.
"""

import base64
import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from mimetypes import guess_type
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from gridmill.domain.frozen import dataclass
from gridmill.domain.source import Compression, Format, Source
from gridmill.errors import DataError
from gridmill.jobs.parquet import storage_errors
from gridmill.jobs.sink.files import SourceFile, described, key_of
from gridmill.jobs.sink.files_to_load import Positions

POSITION = key_of("files")
BATCH_BYTES = 32 * 2**20
LARGEST_BYTES = 256 * 2**20
SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("folder", pa.string()),
        ("type", pa.string()),
        ("size", pa.int64()),
        ("modified", pa.timestamp("us", "UTC")),
        ("sha256", pa.string()),
        ("bytes", pa.binary()),
        ("text", pa.string()),
    ]
)
_KEY, _SEEN, _ENTRY = 8, 12, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBlob:
    """A loaded file: the hash of its metadata, and the hash of its content."""

    seen: bytes
    content: bytes


def stage(
    source: Source, source_files: Sequence[SourceFile], positions: Positions, work: Path
) -> tuple[tuple[SourceFile, ...], Mapping[str, Any]]:
    """Write the files that are not loaded yet into a single Parquet file. Return this file, and the position
    of the sink after the load.

    If all files are already loaded, the function writes no Parquet file. A file whose content was changed
    becomes a new row. Raises DataError if a file cannot be read or is too large.
    """
    loaded = read_position(positions.get(POSITION))
    path = work / f"{uuid4().hex}.parquet"
    rows = 0
    with storage_errors(path), pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for batch in _batches(_rows(source_files, loaded)):
            writer.write_table(pa.Table.from_pylist(batch, SCHEMA))
            rows += len(batch)
    if not rows:
        return (), {}
    written = write_position(loaded)
    staged = described(
        replace(source, format=Format.PARQUET, compression=Compression.NONE),
        path=path,
        name=source.name,
        content=key_of(written["files"]),
        size_bytes=path.stat().st_size,
    )
    return (replace(staged, mtime_ns=path.stat().st_mtime_ns),), {POSITION: written}


def _rows(source_files: Iterable[SourceFile], blobs: dict[bytes, LoadedBlob]) -> Iterator[dict[str, Any]]:
    """Yield a row for each new file, and add these files to `blobs`."""
    for file in source_files:
        key = bytes.fromhex(file.key)
        state_text = f"{file.content} {file.size_bytes} {file.mtime_ns} {file.changed_ns}"
        seen = hashlib.sha256(state_text.encode()).digest()
        before = blobs.get(key)
        if before is not None and before.seen == seen[: _SEEN - _KEY]:
            continue
        row = _row(file)
        now = LoadedBlob(seen=seen[: _SEEN - _KEY], content=bytes.fromhex(row["sha256"])[: _ENTRY - _SEEN])
        blobs[key] = now
        if before is None or before.content != now.content:
            yield row


def _row(file: SourceFile) -> dict[str, Any]:
    if file.size_bytes > LARGEST_BYTES:
        raise DataError(
            f"the file is larger than {LARGEST_BYTES // 2**20} MiB, too large for one row", place=file.name
        )
    path = file.local()
    try:
        data = path.read_bytes()
        modified = path.stat().st_mtime
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", place=file.name) from error
    if file.fetch is not None:
        path.unlink()
    return {
        "path": file.name,
        "folder": PurePosixPath(file.name).parent.name,
        "type": guess_type(file.name)[0],
        "size": len(data),
        "modified": datetime.fromtimestamp(modified, UTC),
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": data,
        "text": _text(data),
    }


def _text(data: bytes) -> str | None:
    """Return the bytes as text, or None if they are not text."""
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _batches(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield batches with a limited number of bytes, so that memory is limited for files of any size."""
    batch: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += row["size"] + 1024
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def read_position(written: Mapping[str, Any] | None) -> dict[bytes, LoadedBlob]:
    """Return the loaded files by their keys."""
    packed = zlib.decompress(base64.b64decode(written["files"])) if written else b""
    entries = (packed[at : at + _ENTRY] for at in range(0, len(packed), _ENTRY))
    return {entry[:_KEY]: LoadedBlob(seen=entry[_KEY:_SEEN], content=entry[_SEEN:]) for entry in entries}


def write_position(blobs: Mapping[bytes, LoadedBlob]) -> dict[str, Any]:
    """Return the position of the sink as JSON. The position also contains the number `count`, which is only
    information for users."""
    packed = b"".join(key + one.seen + one.content for key, one in sorted(blobs.items()))
    return {"files": base64.b64encode(zlib.compress(packed)).decode(), "count": len(blobs)}
