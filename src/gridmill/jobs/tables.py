"""Opens tables in the form in which jobs read them."""

import operator
from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from gridmill.codec import from_builtins
from gridmill.domain.artifact import ArtifactKind, Column, Output
from gridmill.domain.sink import Outage
from gridmill.errors import DataError, InputError, StorageError
from gridmill.jobs.context import JobContext
from gridmill.jobs.parquet_reader import RowGroupDataset, thrifty


def open_table(context: JobContext, output: Output, *, zoned: bool = True) -> ds.Dataset:
    """Open the rows of a version of a sink or dataset without reading them. Rows whose times are in an
    outage of the sink are left out.

    Times are UTC. If `zoned` is false, the types of times have no time zone, because SQL engines compute
    faster with such types. Raises StorageError if the files do not exist.
    """
    path = context.below_root(output.uri)
    try:
        table = open_version(path, output)
        if zoned:
            return table
        schema = pa.schema([(item.name, _without_zone(item.type)) for item in table.schema])
        return open_version(path, output, schema)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise StorageError(
            f"{output.uri} cannot be read any more: {error}",
            hint="Run the pipeline that made the table again, with --force.",
        ) from error


def excluded_rows(context: JobContext, names: Sequence[str]) -> dict[str, int]:
    """Return the number of rows of each table whose times are in an outage of the table, by the name of the
    table."""
    inputs = {name: context.input(name).output for name in names}
    with_outages = {name: output for name, output in inputs.items() if output.details.get("outages")}
    counts = {name: _excluded(open_table(context, output)) for name, output in with_outages.items()}
    return {name: count for name, count in counts.items() if count}


def _excluded(table: ds.Dataset) -> int:
    everything: int = (
        table.unfiltered.count_rows() if isinstance(table, RowGroupDataset) else table.count_rows()
    )
    return everything - int(table.count_rows())


def open_version(path: Path, output: Output, schema: pa.Schema | None = None) -> ds.Dataset:
    """Open the rows of a version without reading them. `path` is the folder with the files of the version.
    Raises the errors of the libraries that read tables."""
    if output.kind == ArtifactKind.SINK:
        delta = DeltaTable(path, version=output.table_version)
        return with_outages(thrifty(delta.to_pyarrow_dataset(schema=schema)), output)
    if output.kind not in (ArtifactKind.DATASET, ArtifactKind.PREDICTION):
        raise InputError(f"{output.uri} is a {output.kind}, not a table")
    files = sorted(str(file) for file in path.rglob("*.parquet"))
    if not files:
        raise FileNotFoundError(path)
    return thrifty(ds.dataset(files, format="parquet", schema=schema))


def with_outages(table: ds.Dataset, output: Output) -> ds.Dataset:
    """Return the rows of a sink without the rows whose times are in an outage of the sink."""
    outages = from_builtins(output.details.get("outages", []), tuple[Outage, ...])
    return table.filter(_outside(outages, table.schema)) if outages else table


def _outside(outages: Sequence[Outage], schema: pa.Schema) -> ds.Expression:
    """Return an expression that is true for rows whose times are in no outage. The expression is also true
    for a row without a time."""
    inside = [_inside(outage, schema.field(outage.time).type) for outage in outages]
    return reduce(operator.and_, (~one for one in inside))


def _inside(outage: Outage, kind: pa.DataType) -> ds.Expression:
    stamp = pa.timestamp("us", kind.tz if pa.types.is_timestamp(kind) else None)
    time = ds.field(outage.time).cast(stamp)
    begins, ends = (pa.scalar(int(moment.timestamp() * 1_000_000), pa.int64()) for moment in outage.range)
    within = (time >= begins.cast(stamp)) & (time < ends.cast(stamp))
    return pc.coalesce(within, pa.scalar(False))


def _without_zone(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp("us") if pa.types.is_timestamp(kind) else kind


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the types that tables store: int64, double, bool, string, bytes, date32,
    timestamp[us, UTC], and nested types."""
    return pa.schema([(item.name, _plain(item.type)) for item in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC")
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_date(kind):
        return pa.date32()
    if pa.types.is_boolean(kind) or pa.types.is_nested(kind):
        return kind
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    return pa.string()


def cast_plain(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the types of `schema`. Raises DataError with the name of a column whose values do
    not fit."""
    try:
        return table.cast(schema)
    except pa.ArrowInvalid:
        for item in schema:
            _check_fits(table[item.name], item)
        raise


def _check_fits(column: pa.ChunkedArray, item: pa.Field) -> None:
    try:
        column.cast(item.type)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"column {item.name!r} has type {column.type}, which cannot be converted to the table's type "
            f"{item.type}: {error}",
            hint="Convert it in the SQL, for example with ::DOUBLE, ::VARCHAR or ::TIMESTAMP.",
            place="dataset",
        ) from error


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """Return the columns of an Arrow schema as records."""
    return tuple(Column(name=item.name, type=str(item.type)) for item in schema)
