"""The label of a dataset: its value, the time at which it is known, and the reason why a row without a label
is dropped.

This module has no side effects. If the label is a value of the row itself, it is computed in SQL. If the
label is a value of a later row, or a value from the events of a table, the window engine computes it.
Predictions can be tables of a dataset. In a dataset, a prediction becomes known at the time of its row, and
the true values in the same table are not read.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from gridmill.domain.artifact import Output
from gridmill.domain.dataset import Aggregate, AsOfJoin, Basis, DatasetSpec, Join, Label, LabelRule
from gridmill.domain.frozen import dataclass
from gridmill.jobs.dataset.columns import check_comparable, check_number, find_column
from gridmill.jobs.dataset.window_plan import LaterRow, NextRows, OtherTable, WindowAggregate, WindowPlan
from gridmill.jobs.duckdb_engine import Types, quoted
from gridmill.jobs.expressions import (
    FLOATS,
    KNOWN,
    LABEL_FROM,
    LABEL_KNOWN,
    LABEL_OF,
    LABEL_TIME,
    NEXT,
    TIME,
    interval,
    quote_all,
    select,
    sql_text,
)

NO_LABEL = "no label"
_AGGREGATES = {
    LabelRule.ANY: Aggregate.COUNT,
    LabelRule.COUNT: Aggregate.COUNT,
    LabelRule.SUM: Aggregate.SUM,
    LabelRule.MEAN: Aggregate.MEAN,
    LabelRule.MIN: Aggregate.MIN,
    LabelRule.MAX: Aggregate.MAX,
}
_OUTCOMES = {LabelRule.ANY: "{0} > 0", LabelRule.SUM: "coalesce({0}, 0)"}
"""For each kind of outcome that is not simply an aggregate of the events, the SQL expression that computes
the label from the aggregate."""


def clocked(label: Label | None, basis: Basis | None) -> Label | None:
    """Return the label with its availability time. If the label declares no availability time, it has the
    availability time of the row from which the label is taken."""
    if basis is None or label is None or label.table is not None or label.known_at is not None:
        return label
    return replace(label, known_at=basis.known_at)


def label_availability(label: Label | None) -> Mapping[str, str]:
    """Return a mapping with the name and the SQL of the column for the time at which the label of a row is
    known. The mapping is empty if the label declares no such time."""
    if label is None or label.known_at is None or label.table is not None:
        return {}
    return {LABEL_KNOWN: f"({sql_text(label.known_at)})::TIMESTAMP"}


def own_label_availability(label: Label | None, basis: Basis) -> str:
    """Return SQL for the time at which the label of a row is known. The SQL is empty if this time is not
    later than the row."""
    if label is None or not label.is_own or not has_time(label):
        return ""
    return _later(f"({sql_text(label.known_at or basis.time)})::TIMESTAMP", label)


def label_columns(label: Label | None) -> Mapping[str, str]:
    """Return SQL for the label, and for the time at which the label is known if this time is later than the
    row. The SQL reads the columns of the row and the values that were requested from other rows."""
    if label is None:
        return {}
    if label.is_own:
        return _own(label)
    if label.table is not None:
        value = _OUTCOMES.get(label.outcome or LabelRule.ANY, "{0}").format(quoted(LABEL_OF))
        available_at = _later(f'"{TIME}" + {interval(label.horizon_seconds or 0.0)}', label)
        return {label.name: value, LABEL_TIME: available_at}
    if label.horizon_seconds is not None and label.known_at is None:
        return {LABEL_TIME: _later(f'"{TIME}" + {interval(label.horizon_seconds)}', label)}
    return {LABEL_TIME: _later(quoted(LABEL_FROM), label)}


def ask_label(plan: WindowPlan, label: Label | None, basis: Basis, tables: Mapping[str, Types]) -> None:
    """Request the values of other rows from which the label is computed. Raises InputError."""
    if label is None:
        return
    types = tables[basis.table]
    if label.table is not None:
        plan.name({LABEL_OF: label_type(label, types) if label.outcome != LabelRule.ANY else "BIGINT"})
        plan.add(_events(label, basis, tables))
        return
    kinds = [find_column(name, types, basis.table, "label") for name in label.sources]
    if label.is_own:
        return
    if label.next_rows is not None:
        for name, kind in zip(label.sources, kinds, strict=True):
            check_number(name, kind, "`next_rows`", basis.table)
        plan.next_rows = _following(label, label.next_rows)
        plan.name(dict.fromkeys(plan.next_rows.names, "DOUBLE"))
        plan.name({NEXT: "BOOLEAN", LABEL_FROM: "TIMESTAMP"})
        return
    dated = label.steps is not None or label.known_at is not None
    plan.later = LaterRow(
        columns={
            label.name: label.sources[0],
            **({LABEL_FROM: _availability_column(label)} if dated else {}),
        },
        column=label.sources[0],
        seconds=label.horizon_seconds,
        step=label.steps,
    )
    plan.name({label.name: kinds[0], **({LABEL_FROM: "TIMESTAMP"} if dated else {})})


def _following(label: Label, rows: int) -> NextRows:
    return NextRows(
        rows=rows,
        names={step.name: (step.column, step.step) for step in label_steps(label)},
        whole=NEXT,
        known=LABEL_FROM,
        known_column=_availability_column(label),
    )


def _events(label: Label, basis: Basis, tables: Mapping[str, Types]) -> OtherTable:
    """Return the request for the events of the label that happen in a period after the time of the row."""
    assert label.table is not None
    assert label.outcome is not None
    on, types = label.on or basis.entity, tables[label.table]
    for name in on:
        left = find_column(name, tables[basis.table], basis.table, "label")
        right = find_column(name, types, label.table, "label")
        check_comparable(name, (basis.table, left), (label.table, right))
    value = "1"
    if label.column is not None:
        kind = find_column(label.column, types, label.table, "label")
        check_number(label.column, kind, f"`{label.outcome}`", label.table)
        value = f"{quoted(label.column)}::DOUBLE"
    message = f"({sql_text(label.known_at or '')})::TIMESTAMP"
    not_null = " AND ".join(f"{sql} IS NOT NULL" for sql in (message, *quote_all(on)))
    over = WindowAggregate(
        name=LABEL_OF,
        aggregate=_AGGREGATES[label.outcome],
        column=LABEL_OF,
        seconds=label.horizon_seconds,
        ahead=True,
    )
    columns = {KNOWN: message, LABEL_OF: value}
    return OtherTable(
        title=f"the events of {label.table}",
        sql=select(quote_all(on), columns, quoted(label.table), (f"WHERE {not_null}",)),
        on=on,
        aggregates=(over,),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelStep:
    """A label in a list of labels: the value of `column` in the row that is `step` rows ahead. The number of
    this label in the list of labels is `number` (from 1)."""

    name: str
    column: str
    step: int
    number: int


def label_steps(label: Label | None) -> tuple[LabelStep, ...]:
    """Return the labels of the next rows, step by step, with all columns of a step. If the label does not
    consist of the values of the next rows, the result is empty."""
    if label is None or label.next_rows is None:
        return ()
    each = product(range(1, label.next_rows + 1), label.sources)
    return tuple(
        LabelStep(name=f"{column}_{label.name}_{step}", column=column, step=step, number=number)
        for number, (step, column) in enumerate(each, start=1)
    )


def _own(label: Label) -> Mapping[str, str]:
    name = label.sources[0]
    value = {} if label.name == name else {label.name: quoted(name)}
    return {**value, LABEL_TIME: _later(_quoted_availability(label), label)}


def _availability_column(label: Label) -> str:
    return TIME if label.known_at is None else LABEL_KNOWN


def _quoted_availability(label: Label) -> str:
    return f'"{_availability_column(label)}"'


def _later(ready_at: str, label: Label) -> str:
    return ready_at if label.delay_seconds is None else f"{ready_at} + {interval(label.delay_seconds)}"


def has_time(label: Label | None) -> bool:
    """Return whether the label becomes known later than the row."""
    if label is None:
        return False
    return not label.is_own or label.known_at is not None or label.delay_seconds is not None


def label_type(label: Label | None, types: Types) -> str:
    """Return the SQL type of the label."""
    if label is None or label.next_rows is not None:
        return "DOUBLE[]"
    if label.table is not None:
        return {LabelRule.ANY: "BOOLEAN", LabelRule.COUNT: "BIGINT"}.get(
            label.outcome or LabelRule.SUM, "DOUBLE"
        )
    return types.get(label.sources[0], "DOUBLE")


def label_names(label: Label | None) -> tuple[str, ...]:
    """Return the names of the columns that contain the label. If the label is an expression over the row
    itself, the result includes the columns of the expression."""
    if label is None:
        return ()
    steps = tuple(step.name for step in label_steps(label))
    return (*(steps or (label.name,)), *(label.sources if label.is_own else ()))


def missing_label(label: Label, types: Types, *, dated: bool) -> str:
    """Return an SQL condition that is true for rows without a label. If `dated` is true, the condition is
    also true for labels that never become known."""
    name = quoted(label.name if label.next_rows is None else NEXT)
    missing = missing_value(name, label_type(label, types))
    if dated and label.table is None:
        missing += f' OR "{LABEL_TIME}" IS NULL'
    return missing


def missing_value(name: str, type_: str) -> str:
    """Return an SQL condition that is true if the value of the column is missing or NaN."""
    return f"{name} IS NULL OR isnan({name})" if type_ in FLOATS else f"{name} IS NULL"


ASIDE = ("row", "truth", "fold")
"""Columns of a prediction table that become features only if the declaration names them explicitly."""


def with_predictions(spec: DatasetSpec, predictions: Mapping[str, Output]) -> DatasetSpec:
    """Return the declaration with defaults for the tables that are predictions.

    The defaults are the columns to use, and the time at which a joined row is known. A joined row is known
    just before the time of the row itself, because the prediction was made from values that were known
    before the row.
    """
    if not predictions:
        return spec
    basis = spec.basis
    if basis is not None and basis.table in predictions:
        basis = _basis(basis, predictions[basis.table])
    return replace(
        spec,
        basis=basis,
        joins=tuple(
            _joined(join, predictions[join.table]) if join.table in predictions else join
            for join in spec.joins
        ),
        asof_joins=tuple(
            _as_of(asof, predictions[asof.table]) if asof.table in predictions else asof
            for asof in spec.asof_joins
        ),
    )


def _basis(basis: Basis, output: Output) -> Basis:
    columns = tuple(column.name for column in output.columns if column.name not in ASIDE)
    return replace(basis, columns=basis.columns or columns)


def _joined(join: Join, output: Output) -> Join:
    time, known_at = output.details.get("time"), join.known_at
    if time and known_at is None and not join.exempt:
        known_at = f"{quoted(str(time))} - INTERVAL 1 MICROSECOND"
    return replace(join, known_at=known_at, columns=join.columns or _predicted_columns(output, join.on))


def _as_of(asof: AsOfJoin, output: Output) -> AsOfJoin:
    return replace(asof, columns=asof.columns or _predicted_columns(output, asof.on))


def _predicted_columns(output: Output, on: tuple[str, ...]) -> tuple[str, ...]:
    keys = (*on, *output.details.get("entity", ()), output.details.get("time"))
    return tuple(column.name for column in output.columns if column.name not in (*ASIDE, *keys))
