"""Runs the query of a dataset, counts all rows, and writes the rows that are not dropped as Parquet."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import chain
from pathlib import Path
from shutil import rmtree
from threading import local

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.frozen import dataclass
from gridmill.errors import DataError
from gridmill.jobs.context import JobContext
from gridmill.jobs.dataset.encode import EncoderStep, encode_batches, encoded_schema, fit_all, save_encoders
from gridmill.jobs.dataset.encoders import FittedEncoder
from gridmill.jobs.dataset.joins import TableViews
from gridmill.jobs.dataset.prepare import PreparedQuery
from gridmill.jobs.dataset.raw_rows import Phase, open_raw, show_progress, write_raw
from gridmill.jobs.dataset.window_chunks import Chunk
from gridmill.jobs.dataset.window_engine import (
    MOST_VALUES,
    VALUE_BYTES,
    ChunkWorker,
    EngineLimits,
    EngineState,
    in_turn,
    prepare_chunks,
    side_by_side,
)
from gridmill.jobs.dataset.window_plan import LABELS, SortedRows
from gridmill.jobs.duckdb_engine import BASE_BYTES, engine_bytes
from gridmill.jobs.expressions import DROPPED, LABEL_TIME, TIME
from gridmill.jobs.parquet import BATCH_CELLS, rows_at_once, write_parquet
from gridmill.jobs.tables import cast_plain, plain_schema

CHUNK_ROWS = 65_536
WORK_COLUMNS = 8
"""The names of temporary columns in addition to the columns of a chunk."""
LEAST_HISTORY_BYTES = 64 * 2**20
"""The smallest amount of memory, in bytes, for the history of an entity that is cut by time. The history
gets this amount even if the job has little memory."""
PART = "part"
RAW = "raw"
"""The name of the folder with the rows before they are encoded. The folder also contains the dropped
rows."""


@dataclass(slots=True)
class RowTally:
    """The number of rows that are not dropped, and of dropped rows by reason.

    `final` is the number of dropped rows that stay dropped, whatever data is added later.
    """

    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    final: Counter[str] = field(default_factory=Counter)
    splits: Counter[str] = field(default_factory=Counter)

    def add(self, other: "RowTally") -> None:
        """Add the row counts of another tally."""
        self.kept += other.kept
        for mine, theirs in (
            (self.dropped, other.dropped),
            (self.final, other.final),
            (self.splits, other.splits),
        ):
            mine.update(theirs)


def write_rows(
    context: JobContext,
    engine: duckdb.DuckDBPyConnection,
    query: PreparedQuery,
    folder: Path,
    tally: RowTally,
    *,
    tables: TableViews,
    whole: bool = False,
    stem: str = PART,
    reserved_bytes: int = 0,
) -> None:
    """Write the rows that are not dropped to `folder`. With `whole`, write all rows, and add a column with
    the reason for which a row is dropped.

    `reserved_bytes` is the memory that the job needs outside of the SQL engine. The SQL engine can read only
    the tables in `tables`. Raises DataError.
    """
    show_progress(context, Phase.COMPUTE, 0, query.rows, "sorting and joining")
    make = _DatasetWriter(context=context, query=query, folder=folder, whole=whole, beside=reserved_bytes)
    try:
        if query.compiled.sorted is not None:
            _write_chunks(make, engine, query.compiled.sorted, tables, tally, stem)
        elif context.order.part is None or context.order.part.number == 0:
            make.write(iter([_reader(engine.sql(query.compiled.sql))]), stem, tally)
    except duckdb.OutOfMemoryException:
        raise
    except duckdb.Error as error:
        raise DataError(f"the query failed: {error}", place="dataset") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _DatasetWriter:
    """Writes the rows that the query of a dataset returns."""

    context: JobContext
    query: PreparedQuery
    folder: Path
    whole: bool
    beside: int

    @property
    def batch_rows(self) -> int:
        """Return the number of rows that are read from the query in one step."""
        return rows_at_once(len(self.query.types), CHUNK_ROWS, BATCH_CELLS)

    def threads(self, prepared: EngineState) -> int:
        """Return the number of chunks that are computed in parallel."""
        given = self.context.order.given
        room_bytes = given.memory_bytes - BASE_BYTES - engine_bytes(self.context, self.beside)
        return side_by_side(prepared, self.context.threads, room_bytes)

    def write(self, readers: Iterator[pa.RecordBatchReader], name: str, tally: RowTally) -> None:
        """Write the rows of several readers (at least one) with the same columns, one reader after
        another."""
        first = next(readers)
        hidden = () if self.whole else (DROPPED, TIME, LABEL_TIME)
        schema = plain_schema(pa.schema([item for item in first.schema if item.name not in hidden]))
        batches = (batch for reader in chain([first], readers) for batch in reader)
        kept = _kept(self.context, batches, schema, self.query, tally)
        if self.whole and self.context.order.part is None:
            write_raw(kept, schema, self.folder, name)
        else:
            write_parquet(kept, schema, self.folder, name)


def _reader(relation: duckdb.DuckDBPyRelation) -> pa.RecordBatchReader:
    return relation.to_arrow_reader(rows_at_once(len(relation.columns), CHUNK_ROWS, BATCH_CELLS))


def _write_chunks(
    make: _DatasetWriter,
    engine: duckdb.DuckDBPyConnection,
    rows: SortedRows,
    tables: TableViews,
    tally: RowTally,
    stem: str,
) -> None:
    if make.query.compiled.labels is not None:
        _make_labels(make, engine, make.query.compiled.labels, tables)
    prepared = _prepare(make, engine, rows, tables, "held")
    workers = _Workers(engine, prepared, tables)

    def do(chunk: Chunk) -> RowTally:
        counted = RowTally()
        name = f"{stem}-{chunk.number:04d}" if prepared.chunks > 1 else stem
        name += f"-{chunk.piece:04d}" if chunk.piece is not None else ""
        make.write(workers.mine().results(chunk, make.batch_rows), name, counted)
        return counted

    for counted in in_turn(prepared.cut(engine, make.context.order.part), do, make.threads(prepared)):
        tally.add(counted)
        show_progress(make.context, Phase.COMPUTE, tally.kept + tally.dropped.total(), make.query.rows)


def _make_labels(
    make: _DatasetWriter, engine: duckdb.DuckDBPyConnection, rows: SortedRows, tables: TableViews
) -> None:
    """Make a table with the labels of all rows."""
    show_progress(make.context, Phase.COMPUTE, 0, make.query.rows, "labels")
    prepared = _prepare(make, engine, rows, tables, "held-labels")
    workers = _Workers(engine, prepared, tables)

    def do(chunk: Chunk) -> list[pa.Table]:
        return [reader.read_all() for reader in workers.mine().results(chunk, make.batch_rows)]

    target = engine.cursor()  # a second query on `engine` would end the query that reads the chunks
    has_rows = False
    for made in in_turn(prepared.cut(engine), do, make.threads(prepared)):
        target.register("__made", pa.concat_tables(made))
        how = f"INSERT INTO {LABELS}" if has_rows else f"CREATE OR REPLACE TABLE {LABELS} AS"
        target.execute(f"{how} SELECT * FROM __made")
        target.unregister("__made")
        has_rows = True


def _prepare(
    make: _DatasetWriter,
    engine: duckdb.DuckDBPyConnection,
    rows: SortedRows,
    tables: TableViews,
    folder: str,
) -> EngineState:
    query, given = make.query, make.context.order.given
    columns = len(query.compiled.columns) + len(rows.entity) + WORK_COLUMNS
    cut = -(-query.rows // query.buckets) if query.cut else None
    free_bytes = max(0, given.memory_bytes - BASE_BYTES - engine_bytes(make.context, make.beside)) // 2
    room = EngineLimits(
        folder=make.context.work / folder,
        values=min(MOST_VALUES, free_bytes // VALUE_BYTES),
        history_bytes=max(LEAST_HISTORY_BYTES, free_bytes),
    )
    return prepare_chunks(engine, _another(engine, tables), rows, columns, cut, room)


@dataclass(slots=True)
class _Workers:
    """Creates a separate chunk worker for each thread."""

    engine: duckdb.DuckDBPyConnection
    prepared: EngineState
    tables: TableViews
    _own: local = field(default_factory=local)

    def mine(self) -> ChunkWorker:
        if not hasattr(self._own, "worker"):
            engine = _another(self.engine, self.tables)
            self._own.worker = ChunkWorker(engine=engine, prepared=self.prepared)
        worker: ChunkWorker = self._own.worker
        return worker


def _another(engine: duckdb.DuckDBPyConnection, tables: TableViews) -> duckdb.DuckDBPyConnection:
    """Return a connection for another thread that can read the same tables."""
    made = engine.cursor()
    tables.register(made)
    return made


def _kept(
    context: JobContext,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    query: PreparedQuery,
    tally: RowTally,
) -> Iterator[pa.Table]:
    for batch in batches:
        show_progress(context, Phase.COMPUTE, tally.kept + tally.dropped.total(), query.rows)
        table = kept = pa.Table.from_batches([batch])
        if table[DROPPED].null_count < table.num_rows:
            _count_dropped(table, query, tally)
            kept = table.filter(pc.is_null(table[DROPPED]))
        tally.kept += kept.num_rows
        if "split" in kept.column_names:
            tally.splits.update(_counts(kept["split"].drop_null().cast(pa.string())))
        yield cast_plain((table if DROPPED in schema.names else kept).select(schema.names), schema)


def _count_dropped(table: pa.Table, query: PreparedQuery, tally: RowTally) -> None:
    reasons = table[DROPPED]
    tally.dropped.update(_counts(reasons.drop_null()))
    if query.final is not None and TIME in table.column_names:
        final = pc.less_equal(table[TIME], pa.scalar(query.final, table[TIME].type))
        tally.final.update(_counts(reasons.filter(final).drop_null()))


def _counts(values: pa.Array) -> dict[str, int]:
    return {item["values"]: item["counts"] for item in pc.value_counts(values).to_pylist()}


def write_encoded(
    context: JobContext,
    spec: DatasetSpec,
    query: PreparedQuery,
    draft: Path,
    stem: str = PART,
    frozen: Sequence[FittedEncoder] = (),
) -> tuple[EncoderStep, ...]:
    """Fit the encoders on the raw rows in the folder `draft`, or use the fitted encoders in `frozen`. Then
    write the encoded rows into `draft`, without the dropped rows.

    Raises InputError for columns that cannot be encoded.
    """
    steps = tuple(EncoderStep(fitted=one) for one in frozen)
    raw = open_raw(draft / RAW)
    if raw is not None:
        steps = steps or fit_all(spec, raw.table, query.compiled)
        batches = _encoding(context, encode_batches(raw, steps), raw.table.count_rows())
        write_parquet(batches, encoded_schema(raw.table.schema, steps), draft, stem)
    save_encoders(draft, steps)
    rmtree(draft / RAW, ignore_errors=True)
    return steps


def _encoding(context: JobContext, batches: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    done = 0
    for batch in batches:
        show_progress(context, Phase.ENCODE, done, rows)
        done += batch.num_rows
        yield batch
