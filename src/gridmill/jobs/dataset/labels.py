"""A label's SQL: its value, when it is known, and why a row without one is left out. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

from gridmill.jobs.dataset.names import Types, check_number, find_column
from gridmill.jobs.dataset.sqltext import (
    FLOATS,
    LABEL_KNOWN,
    LABEL_TIME,
    NEXT,
    ROW,
    TIME,
    UPTO,
    interval,
    partition,
    sql_text,
)
from gridmill.jobs.engine import quoted
from gridmill.model.dataset import Basis, Label, Outcome

NO_LABEL = "no label"


def needs_upto(label: Label | None) -> bool:
    """Whether rows are counted ahead of the last one at the same time."""
    return label is not None and (label.steps is not None or label.next_rows is not None)


def clocked(label: Label | None, basis: Basis | None) -> Label | None:
    """The label with its clock: that of the row it is taken from, unless it has one of its own."""
    if basis is None or label is None or label.table is not None or label.known_at is not None:
        return label
    return replace(label, known_at=basis.known_at)


def label_known(label: Label | None) -> Mapping[str, str]:
    """When the value of a row is known, where the declaration says so."""
    if label is None or label.known_at is None or label.table is not None:
        return {}
    return {LABEL_KNOWN: f"({sql_text(label.known_at)})::TIMESTAMP"}


def own_known(label: Label | None, basis: Basis) -> str:
    """When a row's own label is known, where that is later than the row, as SQL over the row; or empty."""
    if label is None or not label.is_own or not has_time(label):
        return ""
    return _later(f"({sql_text(label.known_at or basis.time)})::TIMESTAMP", label)


def label_columns(label: Label | None, basis: Basis, types: Types) -> Mapping[str, str]:
    """The label, and when it is known where that is later than the row. Raises InputError."""
    if label is None or label.table is not None:
        return {}
    kinds = [find_column(name, types, basis.table, "label") for name in label.sources]
    by = partition(basis.entity)
    if label.horizon_seconds is not None:
        return _at_horizon(label, by)
    if label.steps is not None:
        over = f'{label.steps} + "{UPTO}" - "{ROW}") OVER ({by}ORDER BY "{ROW}")'
        known = f'lead("{_known(label)}", {over}'
        return {label.name: f"lead({quoted(label.sources[0])}, {over}", LABEL_TIME: _later(known, label)}
    if label.next_rows is not None:
        for name, kind in zip(label.sources, kinds, strict=True):
            check_number(name, kind, "`next_rows`", basis.table)
        return _next_rows(label, by, kinds)
    return _own(label)


def _at_horizon(label: Label, by: str) -> Mapping[str, str]:
    """Of several rows at that time the last one with a value, and when that one is known."""
    ahead = interval(label.horizon_seconds or 0.0)
    over = f'OVER ({by}ORDER BY "{TIME}" RANGE BETWEEN {ahead} FOLLOWING AND {ahead} FOLLOWING)'
    source = quoted(label.sources[0])
    there = f"FILTER (WHERE {source} IS NOT NULL)"
    both = f'arg_max({{\'known\': "{LABEL_KNOWN}"}}, "{ROW}") {there} {over}'
    known = f"({both}).known"  # missing where that row's is
    at = f'"{TIME}" + {ahead}' if label.known_at is None else known
    return {label.name: f'arg_max({source}, "{ROW}") {over}', LABEL_TIME: _later(at, label)}


def _next_rows(label: Label, by: str, kinds: list[str]) -> Mapping[str, str]:
    """A list of numbers, step by step; missing unless all of them are there."""
    rows, after = label.next_rows, f'"{UPTO}" - "{ROW}"'
    frame = f"ROWS BETWEEN (1 + {after}) FOLLOWING AND ({rows} + {after}) FOLLOWING"
    over = f'OVER ({by}ORDER BY "{ROW}" {frame})'
    values = [_number(name, kind) for name, kind in zip(label.sources, kinds, strict=True)]
    found = f"flatten(list([{', '.join(values)}]) {over})"
    length = (rows or 0) * len(values)
    whole = f"CASE WHEN list_count({found}) = {length} THEN {found} END"
    last = f"max({_quoted_known(label)}) {over}"
    return {NEXT: whole, LABEL_TIME: _later(last, label)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One label of several: `column`, `step` rows ahead; it is item `number` (from 1) of the list."""

    name: str
    column: str
    step: int
    number: int


def label_steps(label: Label | None) -> tuple[Step, ...]:
    """The labels of the next rows, step by step, all columns of a step; none for another label."""
    if label is None or label.next_rows is None:
        return ()
    each = product(range(1, label.next_rows + 1), label.sources)
    return tuple(
        Step(name=f"{column}_{label.name}_{step}", column=column, step=step, number=number)
        for number, (step, column) in enumerate(each, start=1)
    )


def _number(name: str, kind: str) -> str:
    value = f"{quoted(name)}::DOUBLE"
    return f"CASE WHEN NOT isnan({value}) THEN {value} END" if kind in FLOATS else value


def _own(label: Label) -> Mapping[str, str]:
    name = label.sources[0]
    value = {} if label.name == name else {label.name: quoted(name)}
    return {**value, LABEL_TIME: _later(_quoted_known(label), label)}


def _known(label: Label) -> str:
    return TIME if label.known_at is None else LABEL_KNOWN


def _quoted_known(label: Label) -> str:
    return f'"{_known(label)}"'


def _later(known: str, label: Label) -> str:
    return known if label.delay_seconds is None else f"{known} + {interval(label.delay_seconds)}"


def has_time(label: Label | None) -> bool:
    """Whether the label is known later than the row."""
    if label is None:
        return False
    return not label.is_own or label.known_at is not None or label.delay_seconds is not None


def label_type(label: Label | None, types: Types) -> str:
    """The SQL type of the label."""
    if label is None or label.next_rows is not None:
        return "DOUBLE[]"
    if label.table is not None:
        return {Outcome.ANY: "BOOLEAN", Outcome.COUNT: "BIGINT"}.get(label.outcome or Outcome.SUM, "DOUBLE")
    return types.get(label.sources[0], "DOUBLE")


def label_names(label: Label | None) -> tuple[str, ...]:
    """The columns that hold the label, and what it is made of where that is the row's own value."""
    if label is None:
        return ()
    steps = tuple(step.name for step in label_steps(label))
    return (*(steps or (label.name,)), *(label.sources if label.is_own else ()))


def missing_label(label: Label, types: Types, *, dated: bool) -> str:
    """The SQL condition for a row without a label; where it is `dated`, also for one never known."""
    name = quoted(label.name if label.next_rows is None else NEXT)
    plain = label.table is None and label.next_rows is None
    missing = missing_value(name, types[label.sources[0]] if plain else "")
    if dated and label.table is None:
        missing += f' OR "{LABEL_TIME}" IS NULL'
    return missing


def missing_value(name: str, type_: str) -> str:
    """The SQL condition for a column that is missing, or not a number."""
    return f"{name} IS NULL OR isnan({name})" if type_ in FLOATS else f"{name} IS NULL"
