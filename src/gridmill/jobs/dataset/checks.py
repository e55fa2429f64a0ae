"""Checks that the tables of a dataset meet the conditions of the dataset's declaration, before the query
runs."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from gridmill.domain.amounts import show_seconds
from gridmill.domain.dataset import UNTIL_BASIS, Basis, DatasetSpec, Join, Label, Split, SplitBy
from gridmill.domain.frozen import dataclass
from gridmill.errors import DataError, InputError
from gridmill.jobs.dataset.columns import check_comparable, check_time, find_column, is_time
from gridmill.jobs.dataset.labels import label_names
from gridmill.jobs.dataset.numeric_times import time_of
from gridmill.jobs.dataset.splits import SplitBounds, drawn_on
from gridmill.jobs.duckdb_engine import Types, fetch_rows, quoted
from gridmill.jobs.expressions import HIDDEN, expression_columns, expression_type, sql_text


def check_tables(
    engine: duckdb.DuckDBPyConnection, spec: DatasetSpec, basis: Basis, tables: Mapping[str, Types]
) -> tuple[str, ...]:
    """Raise InputError or DataError if tables cannot be joined or compared. Returns the columns of the basis
    table that occur in feature expressions."""
    check_time(
        basis.time, find_column(basis.time, tables[basis.table], basis.table, "basis"), basis.table, "basis"
    )
    for table, text, place in _known_at_fields(spec, basis):
        _check_known_at(engine, table, text, tables[table], place)
    for name in spec.split.on if spec.split is not None else ():
        find_column(name, tables[basis.table], basis.table, "split.on")
    for join in spec.joins:
        _check_unique(engine, join.table, join.on, basis, tables)
        _check_static(join, tables[join.table])
    written = {f"features.{name}": text for name, text in spec.features.items()}
    _check_no_label(engine, spec)
    if spec.label is not None and spec.label.known_at is not None and spec.label.table is None:
        written["label.known_at"] = spec.label.known_at
    used = (expression_columns(engine, text, f"dataset.{place}") for place, text in written.items())
    return tuple(dict.fromkeys(name for names in used for name in names))


def _check_no_label(engine: duckdb.DuckDBPyConnection, spec: DatasetSpec) -> None:
    """Raise InputError if a feature uses the label, or uses a column that only serves to make the label."""
    labels, hidden = ({name.lower() for name in names} for names in (label_names(spec.label), HIDDEN))
    for name, text in spec.features.items():
        place = f"dataset.features.{name}"
        for column in expression_columns(engine, text, place):
            if column.lower() in hidden:
                raise InputError(
                    f"{text!r} uses {column!r}, a column name that Gridmill reserves", place=place
                )
            if column.lower() in labels:
                raise InputError(
                    f"{text!r} uses {column!r}, which is the label: a feature cannot contain the value to "
                    "predict",
                    hint="To use earlier labels as features, declare `windows` or `lags` of the label's "
                    "column: they read a label only after it is known.",
                    place=place,
                )


def _known_at_fields(spec: DatasetSpec, basis: Basis) -> Iterator[tuple[str, str, str]]:
    """For each `known_at` in the declaration, yield the name of its table, the text of the `known_at`, and
    the field that declares it."""
    if basis.known_at is not None:
        yield basis.table, basis.known_at, "basis"
    for place, part in spec.parts():
        table = part.table or basis.table
        if part.known_at is not None:
            yield table, part.known_at, place
        elif table != basis.table and place in ("windows", "lags"):
            raise InputError(
                f"table {table!r} does not declare when its rows become known",
                hint="Add `known_at: COLUMN` (or an SQL expression).",
                place=f"dataset.{place}.known_at",
            )


def _check_known_at(
    engine: duckdb.DuckDBPyConnection, table: str, text: str, types: Types, place: str
) -> None:
    place = f"{place}.known_at"
    expression_columns(engine, text, f"dataset.{place}")
    kind = types.get(text) or expression_type(engine, text, table, types, f"dataset.{place}")
    check_time(text, kind, table, place)


def _check_static(join: Join, types: Types) -> None:
    """Raise InputError for a join with a table that has times but no `known_at`, because the table may
    contain values from the future."""
    times = [name for name, kind in types.items() if is_time(kind)]
    if times and join.known_at is None and not join.exempt:
        raise InputError(
            f"table {join.table!r} has times ({', '.join(times)}), but the join does not declare when its "
            "rows become known",
            hint=f"Add `known_at: {times[0]}`; or `exempt: true` if the rows of the table may be later than "
            "the rows of the dataset to which they are joined.",
            place="dataset.joins.known_at",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCoverage:
    """The time up to which a label that is made from events is known.

    A label that becomes known after the time `labels` counts as missing. `events` is the time of the newest
    event (None if there is no event), and `complete` is the time up to which no event is missing. The rows
    up to the time `tables` do not change any more unless late rows are added.
    """

    labels: datetime
    events: datetime | None
    complete: datetime
    tables: datetime


def seen_until(
    engine: duckdb.DuckDBPyConnection, label: Label | None, first: datetime, last: datetime
) -> EventCoverage | None:
    """Return the event coverage for a basis table whose rows have times from `first` to `last`, or None if
    the label is not made from events.

    If a table has no events after some time, either nothing happened or the table is incomplete. Labels
    after the newest event are unknown, unless `known_until` declares that the events are complete.
    """
    if label is None or label.table is None:
        return None
    time = f"({sql_text(label.known_at or '')})::TIMESTAMP"
    # the limits exclude infinity, which a Python datetime cannot contain
    message = f"{time} BETWEEN TIMESTAMP '0001-01-02' AND TIMESTAMP '9999-12-30'"
    sql = f"SELECT max({time}) FILTER (WHERE {message}) AS last FROM {quoted(label.table)}"
    newest: datetime | None = fetch_rows(engine, sql)[0]["last"]
    delay = timedelta(seconds=label.delay_seconds or 0.0)
    until = label.complete_until or newest or first
    if label.known_until == UNTIL_BASIS:
        until = last - delay if newest is None else max(last - delay, newest)
    return EventCoverage(labels=until + delay, events=newest, complete=until, tables=min(until, last))


def _check_unique(
    engine: duckdb.DuckDBPyConnection,
    table: str,
    on: tuple[str, ...],
    basis: Basis,
    tables: Mapping[str, Types],
) -> None:
    for name in on:
        left = find_column(name, tables[basis.table], basis.table, "joins")
        check_comparable(name, (basis.table, left), (table, find_column(name, tables[table], table, "joins")))
    keys = ", ".join(quoted(name) for name in on)
    not_null = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in on)
    twice = fetch_rows(
        engine,
        f"SELECT {keys}, count(*) AS __rows FROM {quoted(table)} WHERE {not_null} "
        f"GROUP BY {keys} HAVING count(*) > 1 ORDER BY {keys} LIMIT 1",
    )
    if twice:
        rows = twice[0].pop("__rows")
        key = ", ".join(f"{name}={value}" for name, value in twice[0].items())
        raise DataError(
            f"table {table!r} has {rows} rows for {key}: the join would duplicate rows of the dataset",
            hint="Join on more columns; or use `asof_joins` if its rows change over time.",
            place="dataset.joins",
        )


def time_span(
    engine: duckdb.DuckDBPyConnection, basis: Basis, name: str
) -> tuple[int, datetime | None, datetime | None]:
    """Return the number of rows of a table, and the times of the first and the last row. Raises DataError if
    the table has no rows."""
    time = f"{quoted(basis.time)}::TIMESTAMP"
    strange = f"{time} NOT BETWEEN TIMESTAMP '0001-01-02' AND TIMESTAMP '9999-12-30'"
    row = fetch_rows(
        engine,
        f"SELECT count(*) AS n, min(CASE WHEN {strange} THEN NULL ELSE {time} END) AS a, "
        f"max(CASE WHEN {strange} THEN NULL ELSE {time} END) AS b, "
        f"count(CASE WHEN {strange} THEN 1 END) AS strange, "
        f"min(CASE WHEN {strange} THEN {time} END)::VARCHAR AS example FROM {quoted(basis.table)}",
    )[0]
    if row["n"] == 0:
        raise DataError(f"{name} has no rows", place="dataset")
    if row["strange"]:
        raise DataError(
            f"{basis.time!r} of {name} is outside the years 1 to 9999 in {row['strange']:,} rows, "
            f"for example {row['example']}",
            hint="Correct these times, or replace them with missing values: rows with a missing time are "
            "dropped and counted.",
            place="dataset.basis.time",
        )
    if row["a"] is None:
        raise DataError(f"{basis.time!r} of {name} is missing in every row", place="dataset.basis.time")
    return row["n"], row["a"], row["b"]


def known_span(
    table: ds.Dataset | None, time: str, unit: str | None = None
) -> tuple[int, datetime, datetime] | None:
    """Return the result of `time_span` from the statistics in the files of the table, with the times as
    numbers in `unit`.

    Return None if the files of the table have no statistics of the time column.
    """
    if not isinstance(table, ds.FileSystemDataset) or time not in table.schema.names:
        return None
    kind = table.schema.field(time).type
    if not (pa.types.is_timestamp(kind) if unit is None else pa.types.is_integer(kind)):
        return None
    files = [part.metadata for part in table.get_fragments()]
    groups = [file.row_group(number) for file in files for number in range(file.num_row_groups)]
    logical = "TIMESTAMP" if unit is None else "NONE"
    columns = [_statistics(group, time, logical) for group in groups if group.num_rows]
    present_columns = [column for column in columns if column is not None and column.has_min_max]
    if not present_columns or len(present_columns) < len(columns):
        return None
    try:
        first, last = (
            min(column.min for column in present_columns),
            max(column.max for column in present_columns),
        )
    except (OverflowError, ValueError):  # outside Python's range of years: `time_span` reports it
        return None
    if unit is not None:
        first, last = time_of(unit, first), time_of(unit, last)
        if first is None or last is None:
            return None
    return sum(file.num_rows for file in files), _naive(first), _naive(last)


def _statistics(group: pq.RowGroupMetaData, name: str, logical: str) -> pq.Statistics | None:
    columns = (group.column(number) for number in range(group.num_columns))
    found = next((column for column in columns if column.path_in_schema == name), None)
    stated = found.statistics if found is not None else None
    return stated if stated is not None and stated.logical_type.type == logical else None


def _naive(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


def resolve_bounds(split: Split | None, basis: Basis, first: datetime, last: datetime) -> SplitBounds | None:
    """Return the times at which the splits begin. Raises InputError if splits overlap, or if a split has no
    rows."""
    if split is None:
        return None
    split.check()
    validation_from, test_from = split.times
    shares, on = None, drawn_on(split, basis)
    if split.by == SplitBy.TIME:
        validation_from, test_from = _shared_out(split, first, min(last, split.end or last))
    else:
        shares = (split.validation or 0.0, split.test or 0.0)
    if split.by == SplitBy.ENTITY and not on:
        raise InputError("the dataset has no entity to split by", place="dataset.split.by")
    if split.end is not None and split.end <= first:
        raise InputError(
            f"`until` is {split.end:%Y-%m-%d %H:%M}, but the data begins at {first:%Y-%m-%d %H:%M}",
            hint="Rows at or after `until` are dropped: set a later time.",
            place="dataset.split.until",
        )
    for name, begins in (("validation", validation_from), ("test", test_from)):
        if begins is not None and not first < begins - split.gap <= begins <= last:
            gap = f" after a gap of {show_seconds(split.gap_seconds)}" if split.gap_seconds else ""
            raise InputError(
                f"{name} begins at {begins:%Y-%m-%d %H:%M}{gap}, but the data reaches from "
                f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M}",
                hint="Each split needs rows, and the training split comes before the others.",
                place=f"dataset.split.{name}_from",
            )
    return SplitBounds(
        validation_from=validation_from,
        test_from=test_from,
        until=split.end,
        gap=split.gap,
        on=on,
        seed=split.seed,
        shares=shares,
    )


def _shared_out(split: Split, first: datetime, last: datetime) -> tuple[datetime | None, datetime | None]:
    """Return the times at which the validation and test splits begin: the declared times, or times computed
    from fractions of the time span."""
    validation_from, test_from = split.times
    span = last - first
    if split.test is not None:
        test_from = last - split.test * span
    if split.validation is not None:
        validation_from = (test_from or last) - split.validation * span
    return validation_from, test_from


def check_kept(spec: DatasetSpec, dropped: Mapping[str, int], rows: int, span_seconds: float) -> None:
    """Raise DataError with the reasons if all rows were dropped."""
    if rows:
        return
    reasons = ", ".join(f"{reason}: {count}" for reason, count in dropped.items())
    hint = _of_label(spec.label, span_seconds) if spec.label else ""
    raise DataError(
        f"no row is left in the dataset ({reasons or 'its tables have no rows'})",
        hint=hint,
        place="dataset.label" if spec.label else "dataset",
    )


def _of_label(label: Label, span_seconds: float) -> str:
    if label.horizon_seconds is None:
        return f"The label is {', '.join(label.sources)}."
    ahead, spans = show_seconds(label.horizon_seconds), f"the data spans {show_seconds(span_seconds)}"
    if label.table is not None:
        made = f"The label is computed from the events of {label.table!r} in the next {ahead}"
        return f"{made}. It is known up to the newest event, unless `known_until` is set; {spans}."
    return f"The label is the value of {label.column!r} exactly {ahead} later; {spans}."


def check_splits(bounds: SplitBounds | None, counts: Mapping[str, int]) -> None:
    """Raise DataError for a declared split that has no rows."""
    for name in bounds.names if bounds else ():
        if not counts.get(name):
            names = ", ".join(f"{split} {count}" for split, count in counts.items())
            raise DataError(
                f"the {name} split has no row with a label (rows: {names})",
                hint="Move the bounds in `split`. `validation` and `test` are shares of the time that the "
                "data spans, not of the number of rows. `validation_from` and `test_from` set exact times.",
                place="dataset.split",
            )


def check_label(label: str | None, facts: Mapping[str, Mapping[str, Any]], where: str) -> None:
    """Raise DataError if the label has the same value in every row."""
    if label is None or label not in facts:
        return
    of = facts[label]
    if "min" in of and of["min"] is not None and of["min"] == of["max"] and not of.get("nulls"):
        raise DataError(
            f"label {label!r} is {of['min']} in every row of {where}: there is nothing to learn",
            hint="Check the label's column and horizon, or take a longer period.",
            place="dataset.label",
        )
