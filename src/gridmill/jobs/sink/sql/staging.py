"""Rows as a driver gives them, typed and written to Parquet files of the attempt's own, batch by batch."""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from gridmill.jobs.parquet import storage_errors
from gridmill.jobs.sink.files import SourceFile
from gridmill.jobs.sink.sql.columns import Rows, batch_of
from gridmill.model.source import Compression, Format


@dataclass(slots=True)
class Staged:
    """Files of rows, a new one whenever the rows' types change. `content` is of all of them."""

    folder: Path
    name: str
    key: str
    paths: list[Path] = field(default_factory=list)
    _hash: Any = field(default_factory=hashlib.sha256)
    _writer: pq.ParquetWriter | None = None
    _schema: pa.Schema | None = None

    @property
    def content(self) -> str:
        """16 hex digits of the rows and their types, in their order."""
        digest: str = self._hash.hexdigest()
        return digest[:16]

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        if self._schema is None or not batch.schema.equals(self._schema):
            self.close()
            self.paths.append(self.folder / f"{uuid4().hex}.parquet")
            self._schema = batch.schema
            self._writer = pq.ParquetWriter(self.paths[-1], batch.schema, compression="lz4")
            self._hash.update(batch.schema.serialize())
        assert self._writer is not None
        self._writer.write_batch(batch)
        for column in batch.columns:
            for buffer in column.buffers():
                self._hash.update(buffer or b"")

    def close(self) -> None:
        """Finish the file that is open."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def files(self, content: str) -> tuple[SourceFile, ...]:
        """The files, as a sink loads them."""
        return tuple(
            SourceFile(
                path=path,
                name=self.name if len(self.paths) == 1 else f"{self.name} (part {number})",
                key=self.key,
                content=content,
                size_bytes=path.stat().st_size,
                mtime_ns=path.stat().st_mtime_ns,
                format=Format.PARQUET,
                compression=Compression.NONE,
                delimiter=",",
            )
            for number, path in enumerate(self.paths, start=1)
        )


def stage(
    batches: Iterable[Rows],
    names: Sequence[str],
    types: Mapping[str, pa.DataType],
    folder: Path,
    name: str,
    key: str,
    rest: pa.DataType | None = None,
    texts: Collection[str] = (),
) -> Staged:
    """Write the rows below `folder`; `types` are those that are declared, `texts` become texts. Without any
    row a file that has none: all other columns are of type `rest` in it, if that is known. Raises DataError
    for a value that no type holds, StorageError."""
    staged = Staged(folder=folder, name=name, key=key)
    with storage_errors(folder):
        try:
            for rows in batches:
                staged.write(batch_of(rows, names, types, texts, name))
            if not staged.paths:
                staged.write(_none(names, types, rest or pa.null()))
        finally:
            staged.close()
    return staged


def _none(names: Sequence[str], types: Mapping[str, pa.DataType], rest: pa.DataType) -> pa.RecordBatch:
    schema = pa.schema([(name, types.get(name, rest)) for name in names])
    return pa.RecordBatch.from_pylist([], schema=schema)
