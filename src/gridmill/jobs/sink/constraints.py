"""Compiles constraints to one SQL query over a batch, which finds the rows that break one, with reasons."""

from collections.abc import Mapping, Sequence

import duckdb
import pyarrow as pa

from gridmill.domain.frozen import dataclass
from gridmill.domain.sink import Bound, Constraint
from gridmill.errors import InputError
from gridmill.jobs.duckdb_engine import literal, quoted
from gridmill.jobs.expressions import explain, expression_columns, expression_type
from gridmill.jobs.sink.convert import is_text

BATCH = "batch"
ROW = "__row"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`test` is SQL: false for a row that breaks it, with that `reason`."""

    test: str
    reason: str
    place: str


def row_rules(constraints: Sequence[Constraint], schema: pa.Schema) -> tuple[Rule, ...]:
    """What a row alone (and a foreign key's table) decides. Raises InputError for what does not fit the
    columns."""
    rules: list[Rule] = []
    for number, constraint in enumerate(constraints):
        place = f"sink.constraints[{number}]"
        for name in constraint.columns:
            _check_there(name, schema, place)
        for kind, reason in constraint.rules():
            test = _test(kind, constraint, number, schema, place)
            if test:
                rules.append(Rule(test=test, reason=reason, place=place))
    return tuple(rules)


def violations_sql(rules: Sequence[Rule], constraints: Sequence[Constraint]) -> str:
    """Row numbers and reasons of the rows of the view `batch` that break a rule, in order."""
    reasons = ", ".join(f"CASE WHEN ({rule.test}) IS FALSE THEN {literal(rule.reason)} END" for rule in rules)
    broken = " OR ".join(f"({rule.test}) IS FALSE" for rule in rules)
    joins = "".join(_join(one, number) for number, one in enumerate(constraints) if one.foreign_key)
    return (
        f"SELECT {BATCH}.{ROW}, list_filter([{reasons}], lambda reason: reason IS NOT NULL) AS reasons "
        f"FROM {BATCH}{joins} WHERE {broken} ORDER BY {BATCH}.{ROW}"
    )


def keys_name(number: int) -> str:
    """The table of the values a foreign key may have: columns k0, k1, ..., each combination once."""
    return f"__keys_{number}"


def _join(constraint: Constraint, number: int) -> str:
    keys = keys_name(number)
    on = " AND ".join(
        f"{keys}.k{index} = {_column(name)}" for index, name in enumerate(constraint.foreign_key)
    )
    return f" LEFT JOIN {keys} ON {on}"


def _column(name: str) -> str:
    return f"{BATCH}.{quoted(name)}"


def _test(kind: str, one: Constraint, number: int, schema: pa.Schema, place: str) -> str:
    column = _column(one.column or "")
    match kind:
        case "required":
            return f"{column} IS NOT NULL"
        case "min":
            return f"{column} >= {_bound(one.min, one.column, schema, place)}{_no_nan(one.column, schema)}"
        case "max":
            return f"{column} <= {_bound(one.max, one.column, schema, place)}"
        case "allowed":
            values = ", ".join(_as_column(value, one.column, schema) for value in one.allowed)
            return f"{column} IN ({values})"
        case "pattern":
            _check_text(one.column, schema, place)
            return f"regexp_full_match({column}, {literal(one.pattern or '')})"
        case "foreign_key":
            missing = " OR ".join(f"{_column(name)} IS NULL" for name in one.foreign_key)
            return f"{missing} OR {keys_name(number)}.k0 IS NOT NULL"
        case "expression":
            return f"{one.expression}\n"
    return ""  # unique: not for one row to tell


def _check_there(name: str, schema: pa.Schema, place: str) -> None:
    if name not in schema.names:
        raise InputError(
            f"there is no column {name!r}", hint=f"The sink has {', '.join(schema.names)}.", place=place
        )


def _check_text(name: str | None, schema: pa.Schema, place: str) -> None:
    kind = schema.field(name).type
    if not is_text(kind):
        raise InputError(
            f"a pattern is for text, and column {name!r} is {kind}",
            hint=f"Give it the type of text under `columns`: {{{name}: string}}.",
            place=place,
        )


def _bound(bound: Bound | None, name: str | None, schema: pa.Schema, place: str) -> str:
    kind = schema.field(name).type
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if number != isinstance(bound, int | float):
        raise InputError(
            f"column {name!r} is {kind}, and {bound!r} cannot be compared with it",
            hint="Bounds of numbers are numbers, those of times and text are text.",
            place=place,
        )
    return repr(bound) if isinstance(bound, int | float) else _as_column(str(bound), name, schema)


def _no_nan(name: str | None, schema: pa.Schema) -> str:
    """NaN is more than anything to DuckDB; it is within no range."""
    return f" AND NOT isnan({_column(name or '')})" if pa.types.is_floating(schema.field(name).type) else ""


def _as_column(value: str | int | float | bool, name: str | None, schema: pa.Schema) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"CAST({literal(text)} AS {_sql_type(schema.field(name).type)})"


def _sql_type(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "TIMESTAMPTZ"
    if pa.types.is_date(kind):
        return "DATE"
    if pa.types.is_integer(kind):
        return "BIGINT"
    if pa.types.is_floating(kind):
        return "DOUBLE"
    return "BOOLEAN" if pa.types.is_boolean(kind) else "VARCHAR"


def check_rules(
    engine: duckdb.DuckDBPyConnection, rules: Sequence[Rule], constraints: Sequence[Constraint]
) -> None:
    """Try each rule on the empty view `batch`. Raises InputError that names the constraint."""
    for number, one in enumerate(constraints):
        if one.expression is not None:
            _check_expression(engine, one.expression, f"sink.constraints[{number}].expression")
    for rule in rules:
        try:
            engine.execute(violations_sql([rule], constraints)).fetchall()
        except duckdb.Error as error:
            raise explain(error, {}, rule.place) from error


def _check_expression(engine: duckdb.DuckDBPyConnection, text: str, place: str) -> None:
    expression_columns(engine, text, place)
    types: Mapping[str, str] = {}
    kind = expression_type(engine, text, BATCH, types, place)
    if kind != "BOOLEAN":
        raise InputError(
            f"{text!r} is {kind}, and a constraint is true or false", hint="Compare it.", place=place
        )
