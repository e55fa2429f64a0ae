"""Running a dataset's query: rows counted, those without a reason to be left out written as Parquet."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from shutil import rmtree
from threading import local

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from gridmill.errors import DataError
from gridmill.jobs.context import JobContext
from gridmill.jobs.dataset.asked import CHUNK
from gridmill.jobs.dataset.chunks import (
    Prepared,
    cut_chunks,
    cut_pieces,
    find_beside,
    in_turn,
    prepare_chunks,
    side_by_side,
    with_keys,
)
from gridmill.jobs.dataset.encode import Step, encode_batches, encoded_schema, fit_all, save_encoders
from gridmill.jobs.dataset.encoders import Fitted
from gridmill.jobs.dataset.phases import Phase, show_progress
from gridmill.jobs.dataset.prepare import Query
from gridmill.jobs.dataset.raw import open_raw, write_raw
from gridmill.jobs.dataset.reading import register_tables
from gridmill.jobs.dataset.sqltext import DROPPED, LABEL_TIME, TIME
from gridmill.jobs.engine import BASE_BYTES, engine_bytes
from gridmill.jobs.parquet import BATCH_CELLS, rows_at_once, write_parquet
from gridmill.jobs.tables import cast_plain, plain_schema
from gridmill.model.dataset import DatasetSpec

CHUNK_ROWS = 65_536
WORK_COLUMNS = 8
"""What is computed with beside the columns of a chunk."""
PART = "part"
RAW = "raw"
"""The folder of the rows before they are encoded, those that are left out among them."""


@dataclass(slots=True)
class Tally:
    """Rows kept, and those left out by reason; `final` are those of them that no later row can bring back."""

    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    final: Counter[str] = field(default_factory=Counter)
    splits: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Tally") -> None:
        """Count what another one counted."""
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
    query: Query,
    folder: Path,
    tally: Tally,
    *,
    tables: Mapping[str, ds.Dataset],
    whole: bool = False,
    stem: str = PART,
    beside: int = 0,
) -> None:
    """Write the rows that stay to `folder`; `whole`: all, with the reason of those that do not.

    The engine leaves `beside` bytes for what it does not hold itself. `tables` are those that it sees.
    Raises DataError.
    """
    show_progress(context, Phase.COMPUTE, 0, query.rows, "sorting and joining")
    make = _Maker(context=context, query=query, folder=folder, whole=whole, beside=beside)
    try:
        prepared = _prepare_chunks(engine, query, tables)
        if prepared is not None:
            _write_chunks(make, engine, prepared, tables, tally, stem)
            return
        texts = query.buckets or (query.compiled.sql,)
        for number, text in enumerate(texts):
            if not make.does(number):
                continue
            name = stem if len(texts) == 1 else f"{stem}-{number:04d}"
            make.write(iter([_reader(engine.sql(text))]), name, tally)
    except duckdb.OutOfMemoryException:
        raise
    except duckdb.Error as error:
        raise DataError(f"the query failed: {error}", place="dataset") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maker:
    """Writes what a query gives."""

    context: JobContext
    query: Query
    folder: Path
    whole: bool
    beside: int

    def does(self, number: int) -> bool:
        """Whether that bucket is this part's."""
        part = self.context.order.part
        return part is None or number % part.count == part.number

    def write(self, readers: Iterator[pa.RecordBatchReader], name: str, tally: Tally) -> None:
        """Write the rows of readers (at least one) of the same columns, one after another."""
        first = next(readers)
        hidden = () if self.whole else (DROPPED, TIME, LABEL_TIME)
        schema = plain_schema(pa.schema([item for item in first.schema if item.name not in hidden]))
        batches = (batch for reader in chain([first], readers) for batch in reader)
        kept = _kept(self.context, batches, schema, self.query, tally)
        if self.whole and self.context.order.part is None:
            write_raw(kept, schema, self.folder, name)
        else:
            write_parquet(kept, schema, self.folder, name)


def _read_pieces(
    engine: duckdb.DuckDBPyConnection, prepared: Prepared, rows: pa.Table
) -> Iterator[pa.RecordBatchReader]:
    for piece in cut_pieces(prepared, rows):
        engine.register(CHUNK, find_beside(engine, prepared, piece))
        yield _reader(engine.sql(prepared.quick.sql))
        engine.unregister(CHUNK)


def _reader(found: duckdb.DuckDBPyRelation) -> pa.RecordBatchReader:
    return found.to_arrow_reader(rows_at_once(len(found.columns), CHUNK_ROWS, BATCH_CELLS))


def _prepare_chunks(
    engine: duckdb.DuckDBPyConnection, query: Query, tables: Mapping[str, ds.Dataset]
) -> Prepared | None:
    quick = query.compiled.quick
    if quick is None:
        return None
    columns = len(query.compiled.columns) + len(quick.entity) + WORK_COLUMNS
    cut = -(-query.rows // len(query.buckets)) if query.cut else None
    return prepare_chunks(engine, _another(engine, tables), quick, columns, query.rows, cut)


def _another(
    engine: duckdb.DuckDBPyConnection, tables: Mapping[str, ds.Dataset]
) -> duckdb.DuckDBPyConnection:
    """A connection for another thread that sees the same."""
    made = engine.cursor()
    register_tables(made, tables)
    return made


def _write_chunks(
    make: _Maker,
    engine: duckdb.DuckDBPyConnection,
    prepared: Prepared,
    tables: Mapping[str, ds.Dataset],
    tally: Tally,
    stem: str,
) -> None:
    chunks = cut_chunks(engine, prepared, make.context.order.part)
    own = local()

    def do(number: int, rows: pa.Table) -> Tally:
        if not hasattr(own, "engine"):
            own.engine = _another(engine, tables)
        counted = Tally()
        name = f"{stem}-{number:04d}" if prepared.chunks > 1 else stem
        whole = with_keys(own.engine, prepared, number, rows)
        make.write(_read_pieces(own.engine, prepared, whole), name, counted)
        return counted

    given, threads = make.context.order.given, make.context.threads
    room_bytes = given.memory_bytes - BASE_BYTES - engine_bytes(make.context, make.beside)
    for counted in in_turn(chunks, do, side_by_side(prepared, threads, room_bytes)):
        tally.add(counted)
        show_progress(make.context, Phase.COMPUTE, tally.kept + tally.dropped.total(), make.query.rows)


def _kept(
    context: JobContext, batches: Iterable[pa.RecordBatch], schema: pa.Schema, query: Query, tally: Tally
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


def _count_dropped(table: pa.Table, query: Query, tally: Tally) -> None:
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
    query: Query,
    draft: Path,
    stem: str = PART,
    frozen: Sequence[Fitted] = (),
) -> tuple[Step, ...]:
    """Fit the encoders on the raw rows below `draft` (or take `frozen` ones), and write there what they make
    of all rows that stay.

    Raises InputError for what cannot be encoded.
    """
    steps = tuple(Step(fitted=one) for one in frozen)
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
