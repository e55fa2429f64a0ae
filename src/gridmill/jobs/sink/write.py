"""Writes the rows of a load to data files. Valid rows are written to the files of the table, and rejected
rows to the files of the table of rejected rows."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import field
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from gridmill.domain.frozen import dataclass
from gridmill.jobs.parquet import ParquetPart, write_parquet
from gridmill.jobs.parquet_reader import ahead, thrifty
from gridmill.jobs.sink.constraints import ConstraintFilter, RejectSpool, find_repeated, rejects_of
from gridmill.jobs.sink.csv_batches import FileGroupReader, bundled, is_small, text_bytes
from gridmill.jobs.sink.files import SourceFile, check_unchanged
from gridmill.jobs.sink.files_to_load import LoadedFile, LoadPlan
from gridmill.jobs.sink.metrics import LoadMetrics
from gridmill.jobs.sink.rejects import REJECTS, placed
from gridmill.jobs.sink.table import SinkTable, compact_stem, marked_with, stem_of
from gridmill.jobs.sink.typed_batches import LoadContext, open_reader

TOGETHER_BYTES, LEAST_TOGETHER = 4 * 2**20, 8
"""Small source files share data files if there are at least LEAST_TOGETHER source files. Each shared data
file has up to TOGETHER_BYTES bytes."""
HELD_BYTES = 64 * 2**20
"""The largest number of bytes of rows of small files that are in memory at the same time, whatever the
compression of the files is."""
_Held: TypeAlias = tuple[SourceFile, RejectSpool, int]
"""A source file, its rejected rows and the number of its valid rows."""


@dataclass(slots=True)
class WrittenFile:
    """A source file whose rows were written to data files. `parts` are the data files with the valid rows.
    The rejected rows are in temporary files (spools) and in `rejects` (data files).

    If several small source files share a data file, the data file is listed only for the first of these
    source files. `rejected` are the numbers of the rows that were rejected while the file was read.
    """

    file: SourceFile
    parts: list[ParquetPart]
    spools: list[RejectSpool] = field(default_factory=list)
    rejects: list[ParquetPart] = field(default_factory=list)
    rejected: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteContext:
    """The destination of a load, and the rules by which rows are written."""

    loading: LoadContext
    sieve: ConstraintFilter
    meter: LoadMetrics
    schema: pa.Schema
    folder: Path

    def write(self, file: SourceFile) -> WrittenFile:
        """Write the rows of a source file. Raises DataError, InputError, StorageError, UnavailableError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        stem = stem_of(file)
        spool = RejectSpool(self.folder / f"{stem}.spool")
        with closing(ahead(self.loading.batches(file, self.schema))) as batches:
            good = self.sieve.good(batches, spool)
            parts = write_parquet(self.meter.passing(good), self.schema, self.folder, stem)
        check_unchanged(file)
        return WrittenFile(file=file, parts=list(parts), spools=[spool], rejected=spool.rows)

    def write_all(self, files: Sequence[SourceFile]) -> list[WrittenFile]:
        """Write the rows of source files. Small source files share data files. Raises the errors of
        `write`."""
        written: list[WrittenFile] = []
        for group in self._groups(files):
            written += self._write_together(group) if len(group) > 1 else [self.write(group[0])]
        return written

    def _groups(self, files: Sequence[SourceFile]) -> Iterator[list[SourceFile]]:
        """Yield the groups of source files that share a data file. If rows of a source file may be removed
        later, the source file has its own data file."""
        group: list[SourceFile] = []
        size_bytes = 0
        for file in files:
            if self.sieve.engine is not None or not is_small(file):
                yield [file]
                continue
            if size_bytes + text_bytes(file) > TOGETHER_BYTES:
                yield group
                group, size_bytes = [], 0
            group.append(file)
            size_bytes += text_bytes(file)
        if len(group) < LEAST_TOGETHER:
            yield from ([file] for file in group)
        else:
            yield group

    def _write_together(self, files: Sequence[SourceFile]) -> list[WrittenFile]:
        """Write small source files into a single data file, which records which rows belong to which source
        file.

        If there are many rows, write several data files.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        written: list[WrittenFile] = []
        held: list[_Held] = []
        tables: list[pa.Table] = []
        size_bytes = 0
        for files_read, rows in self._each_together(files):
            held += files_read
            tables += rows
            size_bytes += sum(table.nbytes for table in rows)
            if size_bytes > HELD_BYTES:
                written += self._write_shared(held, tables)
                held, tables, size_bytes = [], [], 0
        return [*written, *self._write_shared(held, tables)] if held else written

    def _write_shared(self, held: Sequence["_Held"], tables: Sequence[pa.Table]) -> list[WrittenFile]:
        written, pieces = [], []
        for file, spool, count in held:
            written.append(WrittenFile(file=file, parts=[], spools=[spool], rejected=spool.rows))
            pieces.append(
                LoadedFile(
                    path="",
                    size_bytes=0,
                    rows=count,
                    key=file.key,
                    content=file.content,
                    modified_ms=file.modified_ms,
                )
            )
        rows = pa.concat_tables([self.schema.empty_table(), *tables]).combine_chunks()
        written[0].parts += write_parquet(
            self.meter.passing([rows]), marked_with(self.schema, pieces), self.folder, compact_stem()
        )
        return written

    def _each_together(self, files: Sequence[SourceFile]) -> Iterator[tuple[list["_Held"], list[pa.Table]]]:
        """Yield groups of files that are read together, with their valid rows."""
        for piece in bundled(files, self.loading.spec.source) if self.loading.expect_types else files:
            spool = RejectSpool(self.folder / f"{uuid4().hex}.spool")
            if isinstance(piece, FileGroupReader):
                good = list(self.sieve.good(self.loading.together(piece, self.schema), spool))
                pairs = zip(piece.files, piece.counts, strict=True)
                yield [(file, spool, count) for file, count in pairs], good
                continue
            good = list(self.sieve.good(self.loading.batches(piece, self.schema), spool))
            check_unchanged(piece)
            yield [(piece, spool, sum(batch.num_rows for batch in good))], good

    def drop_repeated(self, written: Sequence[WrittenFile], kept: ds.Dataset | None) -> bool:
        """Remove rows whose key already exists from the new data files. Return whether any rows were
        removed.

        Raises InputError if too many rows are removed.
        """
        if self.sieve.engine is None:
            return False
        parts = [part for one in written for part in one.parts]
        constraints = self.loading.spec.constraints
        repeated = find_repeated(self.sieve.engine, constraints, [part.path for part in parts], kept)
        starts = list(accumulate((part.rows for part in parts), initial=0))
        by_part: dict[Path, dict[int, str]] = {}
        for ordinal, reason in repeated.items():
            number = bisect_right(starts, ordinal) - 1
            by_part.setdefault(parts[number].path, {})[ordinal - starts[number]] = reason
        for one in written:
            if any(part.path in by_part for part in one.parts):
                self._drop(one, by_part)
        return bool(repeated)

    def _drop(self, written_file: WrittenFile, by_part: Mapping[Path, Mapping[int, str]]) -> None:
        spool = RejectSpool(self.folder / f"{stem_of(written_file.file)}.spool")
        parts: list[ParquetPart] = []
        start = 0
        for part in written_file.parts:
            repeated = by_part.get(part.path, {})
            if repeated:
                kept = self._kept(
                    part, repeated, spool, RowNumbers(rejected=written_file.rejected, start=start)
                )
                parts += write_parquet(kept, self.schema, self.folder, stem_of(written_file.file))
                part.path.unlink()
            else:
                parts.append(part)
            start += part.rows
        spool.close()
        written_file.parts, written_file.spools = parts, [*written_file.spools, spool]

    def _kept(
        self, part: ParquetPart, repeated: Mapping[int, str], spool: RejectSpool, numbers: "RowNumbers"
    ) -> Iterator[pa.Table]:
        row = 0
        with pq.ParquetFile(part.path) as file:
            for batch in file.iter_batches():
                rows = pa.Table.from_batches([batch])
                bad = [n for n in range(rows.num_rows) if row + n in repeated]
                if bad:
                    reasons = {n: [repeated[row + n]] for n in bad}
                    rejects = rejects_of(rows, 0, reasons)
                    places = pa.array([numbers.source(row + n) for n in bad], pa.int64())
                    self.sieve.reject(spool, rejects.set_column(0, rejects.schema.field(0), places))
                    rows = rows.filter(pa.array([n not in reasons for n in range(rows.num_rows)], pa.bool_()))
                row += batch.num_rows
                yield rows

    def write_rejects(self, written: Sequence[WrittenFile]) -> list[ParquetPart]:
        """Return the data files of all rejected rows."""
        parts: list[ParquetPart] = []
        for one in written:
            parts += one.rejects
            if any(spool.rows for spool in one.spools):
                rows = placed(one.file, open_reader(one.file, self.loading.spec.source), one.spools)
                parts += write_parquet(rows, REJECTS, self.folder / "rejects", stem_of(one.file))
        return parts


def rows_of(parts: Sequence[ParquetPart]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of data files, in order."""
    for part in parts:
        with pq.ParquetFile(part.path) as file:
            yield from file.iter_batches()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowNumbers:
    """Maps the rows of a data file to the rows of the source file.

    The numbers of the `rejected` rows (in order) are skipped. The first row of the data file is valid row
    number `start` of the source file.
    """

    rejected: Sequence[int]
    start: int

    def source(self, row: int) -> int:
        """Return the number of the row in the source file, from 0."""
        good = self.start + row
        before = bisect_right(range(len(self.rejected)), good, key=lambda index: self.rejected[index] - index)
        return good + before


def kept_rows(table: SinkTable, plan: LoadPlan, spared: Sequence[ParquetPart]) -> ds.Dataset | None:
    """Return the rows of the table that the plan does not remove. Return None if the plan removes no rows.

    `spared` contains the remaining rows of those data files from which only some rows are removed.
    """
    gone = {entry.path for entry in plan.remove}
    paths = dict.fromkeys(table.path / entry.path for entry in table.loaded if entry.path not in gone)
    files = [str(path) for path in (*paths, *(part.path for part in spared))]
    if not files or plan.anew:
        return None
    return thrifty(ds.dataset(files, format="parquet", schema=table.schema))
