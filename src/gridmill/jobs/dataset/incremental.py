"""Incremental datasets: finds the files and encoders of the previous dataset version that the new version
can use unchanged.

Files and encoders can be used again if only later rows were added to the tables.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from gridmill.codec import to_builtins
from gridmill.domain.artifact import ArtifactKind
from gridmill.domain.dataset import AsOfJoin, DatasetSpec, Join, Label, Lag, Window
from gridmill.domain.frozen import dataclass
from gridmill.jobs.context import JobContext
from gridmill.jobs.dataset.joins import register_tables
from gridmill.jobs.dataset.numeric_times import least_number
from gridmill.jobs.dataset.time_units import Units
from gridmill.jobs.duckdb_engine import fetch_rows, quoted
from gridmill.jobs.expressions import sql_text
from gridmill.jobs.parquet import link_file
from gridmill.jobs.parquet_reader import RowGroupDataset

FORMAT = 7
"""The format number of datasets, which is part of the state of a version. This number is increased when a
new release of Gridmill makes other rows from the same declaration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReusableVersion:
    """A dataset version whose rows up to the time `after` (inclusive) are final, and the state that the
    version recorded."""

    folder: Path
    after: datetime
    details: Mapping[str, Any]
    rows: int


def find_kept(
    context: JobContext,
    engine: duckdb.DuckDBPyConnection,
    spec: DatasetSpec,
    tables: Mapping[str, ds.Dataset],
    units: Units,
) -> tuple[ReusableVersion | None, str]:
    """Return the dataset version whose rows can be used again, or the reason why all rows must be
    computed."""
    if not spec.incremental or not context.order.earlier:
        return None, ""
    earlier = context.order.earlier[0].artifact
    state = earlier.output.details.get("incremental")
    folder = context.below_root(earlier.output.uri)
    if earlier.removed or not state or not folder.is_dir():
        return None, "the previous version does not exist any more, or was made without `incremental`"
    if state["format"] != FORMAT or state["spec"] != _text(context):
        return None, "the declaration has changed"
    if any(_outages(context, spec).values()):
        return None, "the dataset drops the rows in the outages of a sink"
    for name, table in tables.items():
        of_events = spec.label is not None and name == spec.label.table
        seen = datetime.fromisoformat(state["events" if of_events else "seen"])
        fresh = _ChangedTable(spec=spec, name=name, table=table, units=units)
        problem = _appended(context, engine, fresh, state["inputs"].get(name), seen)
        if problem:
            return None, problem
    after = datetime.fromisoformat(state["after"])
    return ReusableVersion(
        folder=folder, after=after, details=earlier.output.details, rows=earlier.output.rows or 0
    ), ""


def _text(context: JobContext) -> str:
    """Return a text of all declared fields that influence the rows of the dataset."""
    spec = context.order.job.dataset
    assert spec is not None
    return json.dumps([to_builtins(spec), _outages(context, spec)], sort_keys=True)


def _outages(context: JobContext, spec: DatasetSpec) -> Mapping[str, Any]:
    return {name: context.input(name).output.details.get("outages", []) for name in spec.references()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChangedTable:
    """A table that may have new rows since the previous dataset version."""

    spec: DatasetSpec
    name: str
    table: ds.Dataset
    units: Units


def _appended(
    context: JobContext,
    engine: duckdb.DuckDBPyConnection,
    fresh: _ChangedTable,
    before: int | None,
    seen: datetime,
) -> str:
    """Return an empty text if the table is the table of the earlier version with later rows added. If other
    rows of the table changed, return a text with the reason."""
    name = fresh.name
    output = context.input(name).output
    if output.kind != ArtifactKind.SINK or before is None:
        return f"{name} is not a sink"
    if output.table_version == before:
        return ""
    if any(join.table == name for join in fresh.spec.joins):
        return f"{name} has changed, and it is joined regardless of the times of its rows"
    path = context.below_root(output.uri)
    old = set(DeltaTable(path, version=before).file_uris())
    now = set(DeltaTable(path, version=output.table_version).file_uris())
    if not old <= now:
        return f"rows of {name} were replaced, not only added"
    first = _first_time(engine, fresh, {Path(file).name for file in now - old})
    if first is not None and first <= seen:
        return (
            f"{name} got rows from {first:%Y-%m-%d %H:%M}, but the previous version already used rows up "
            f"to {seen:%Y-%m-%d %H:%M}"
        )
    return ""


def _first_time(engine: duckdb.DuckDBPyConnection, of: _ChangedTable, files: set[str]) -> datetime | None:
    """Return the earliest of all times that the new rows contain, including the times at which rows become
    known."""
    table = of.table
    fragments = [part for part in table.get_fragments() if Path(part.path).name in files]
    if not fragments:
        return None
    fresh = RowGroupDataset(fragments, table.schema, table.format, table.filesystem)
    register_tables(engine, {"__fresh": fresh}, {"__fresh": of.units.get(of.name, {})})
    moments = [f"min(({sql_text(text)})::TIMESTAMP)" for text in sorted(_times(of.spec, of.name))]
    row = fetch_rows(engine, f"SELECT {', '.join(moments)} FROM {quoted('__fresh')}")[0]
    return min((value for value in row.values() if value is not None), default=None)


def _times(spec: DatasetSpec, name: str) -> set[str]:
    """Return the SQL of every time that the declaration defines for rows of the table `name`."""
    result: set[str] = set()
    if spec.basis is not None and spec.basis.table == name:
        result |= {quoted(spec.basis.time), *([spec.basis.known_at] if spec.basis.known_at else [])}
    parts: tuple[AsOfJoin | Window | Lag, ...] = (*spec.asof_joins, *spec.windows, *spec.lags)
    for part in parts:
        mine = part.table == name or (part.table is None and spec.basis and spec.basis.table == name)
        result |= {part.known_at} if mine and part.known_at else set()
    label = spec.label
    if label is not None and label.known_at and name == (label.table or (spec.basis and spec.basis.table)):
        result.add(label.known_at)
    return result


def final_until(label: Label | None, last: datetime, complete: datetime | None = None) -> datetime:
    """Return the time up to which rows are final, for a basis table whose last row has the time `last`.

    All rows before the first row with an unknown label are final. `complete` is the time up to which no
    event of the label is missing.
    """
    if label is None or label.horizon_seconds is None:
        return last
    return min((complete or last) - timedelta(seconds=label.horizon_seconds), last)


def history_from(spec: DatasetSpec, after: datetime) -> datetime | None:
    """Return the time of the earliest rows that can influence rows after the time `after`. Return None if
    all rows can influence the rows after this time."""
    label = spec.label
    late = label is not None and (label.known_at is not None or label.delay_seconds is not None)
    labels = (label.name, *label.sources) if label is not None and late else ()
    if spec.lags or any(one.span_seconds is None or one.column in labels for one in spec.windows):
        return None
    longest = max((window.span_seconds or 0.0 for window in spec.windows), default=0.0)
    return after - timedelta(seconds=longest)


def recent_rows(
    context: JobContext, spec: DatasetSpec, tables: Mapping[str, ds.Dataset], units: Units, after: datetime
) -> Mapping[str, ds.Dataset]:
    """Return the basis table without the row groups that are too old to influence the new rows. If another
    part of the declaration also reads the basis table, return all its rows."""
    history, basis = history_from(spec, after), spec.basis
    if history is None or basis is None or basis.known_at is not None:
        return {}
    others: tuple[Join | AsOfJoin | Window, ...] = (*spec.joins, *spec.asof_joins, *spec.windows)
    looked_at = {part.table for part in others} | ({spec.label.table} if spec.label else set())
    late = any(window.known_at is not None and window.table is None for window in spec.windows)
    if basis.table in looked_at or late:
        return {}
    output, table = context.input(basis.table).output, tables[basis.table]
    kind, unit = table.schema.field(basis.time).type, units.get(basis.table, {}).get(basis.time)
    if not pa.types.is_timestamp(kind) and unit is None:
        return {}
    zoned = DeltaTable(context.below_root(output.uri), version=output.table_version).to_pyarrow_dataset()
    least = pa.scalar(history, pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
    if unit is not None:
        least = pa.scalar(least_number(unit.unit, history), kind)
    recent = ds.field(basis.time) >= least
    fragments = [
        table.format.make_fragment(
            part.path, part.filesystem, row_groups=[g.id for g in part.subset(recent).row_groups]
        )
        for part in zoned.get_fragments(filter=recent)
    ]
    return {basis.table: RowGroupDataset(fragments, table.schema, table.format, table.filesystem)}


def link_files(kept: ReusableVersion, folder: Path) -> None:
    """Put the files of the reused version into `folder` too, as links if the file system supports links,
    otherwise as copies."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(kept.folder.glob("*.parquet")):
        link_file(path, folder)


def describe_incremental(
    context: JobContext,
    spec: DatasetSpec,
    seen: datetime | None,
    events: datetime | None,
    after: datetime | None,
    dropped: Mapping[str, int],
) -> dict[str, Any]:
    """Return the state that the next dataset version needs in order to use the rows of this version.

    The state contains the times up to which the tables and the `events` of the label were known. `dropped`
    is the number of dropped rows among the final rows.
    """
    if not spec.incremental or seen is None or after is None:
        return {}
    inputs = {name: context.input(name).output.table_version for name in spec.references()}
    return {
        "incremental": {
            "format": FORMAT,
            "spec": _text(context),
            "inputs": inputs,
            "seen": seen.isoformat(),
            "events": max(seen, events or seen).isoformat(),
            "after": after.isoformat(),
            "dropped": dict(sorted(dropped.items())),
        }
    }
