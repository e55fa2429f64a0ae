"""Checks batches of rows against the constraints of a sink: valid rows continue, and rejected rows are
stored separately with the reasons.

The constraints are compiled to a single SQL query over a batch. The query returns the rows that break a
constraint, with the reasons. This module also finds rows whose key already exists in the table or earlier in
the same load.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import did_you_mean
from gridmill.domain.sink import Bound, Constraint, SinkSpec
from gridmill.errors import InputError, collected, raise_all
from gridmill.jobs.context import JobContext
from gridmill.jobs.duckdb_engine import literal, open_engine, quoted
from gridmill.jobs.expressions import explain, expression_columns, expression_type
from gridmill.jobs.sink.convert import is_text
from gridmill.jobs.tables import open_table

BATCH = "batch"
ROW = "__row"
_PLACE = "sink.constraints"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintRule:
    """A rule that rows must satisfy. `test` is SQL that is false for a row that breaks the rule. `reason` is
    the reason for rejecting such a row."""

    test: str
    reason: str
    place: str


def row_rules(
    constraints: Sequence[Constraint], schema: pa.Schema, errors: list[InputError]
) -> tuple[ConstraintRule, ...]:
    """Return the rules that need only the row itself and, for a foreign key, the referenced table. For each
    rule that does not fit the columns, an error is added to `errors`."""
    rules: list[ConstraintRule] = []
    for number, constraint in enumerate(constraints):
        place = f"sink.constraints[{number}]"
        absent = [name for name in constraint.columns if name not in schema.names]
        errors += [missing_column(name, schema.names, place) for name in absent]
        for kind, reason in constraint.rules() if not absent else ():
            with collected(errors):
                test = _test(kind, constraint, number, schema, place)
                if test:
                    rules.append(ConstraintRule(test=test, reason=reason, place=place))
    return tuple(rules)


def violations_sql(rules: Sequence[ConstraintRule], constraints: Sequence[Constraint]) -> str:
    """Return SQL for the numbers of the rows of the view `batch` that break a rule, with the reasons, in
    order."""
    reasons = ", ".join(f"CASE WHEN ({rule.test}) IS FALSE THEN {literal(rule.reason)} END" for rule in rules)
    broken = " OR ".join(f"({rule.test}) IS FALSE" for rule in rules)
    joins = "".join(_join(one, number) for number, one in enumerate(constraints) if one.foreign_key)
    return (
        f"SELECT {BATCH}.{ROW}, list_filter([{reasons}], lambda reason: reason IS NOT NULL) AS reasons "
        f"FROM {BATCH}{joins} WHERE {broken} ORDER BY {BATCH}.{ROW}"
    )


def keys_name(number: int) -> str:
    """Return the name of the table with the allowed values of a foreign key. The table of allowed values has
    the columns k0, k1, ..., and each combination of values once."""
    return f"__keys_{number}"


def _join(constraint: Constraint, number: int) -> str:
    keys = keys_name(number)
    on = " AND ".join(
        f"{keys}.k{index} = {_column(name)}" for index, name in enumerate(constraint.foreign_key)
    )
    return f" LEFT JOIN {keys} ON {on}"


def _column(name: str) -> str:
    return f"{BATCH}.{quoted(name)}"


def _test(kind: str, constraint: Constraint, number: int, schema: pa.Schema, place: str) -> str:
    column = _column(constraint.column or "")
    match kind:
        case "required":
            return f"{column} IS NOT NULL"
        case "min":
            return (
                f"{column} >="
                f" {_bound(constraint.min, constraint.column, schema, place)}"
                f"{_no_nan(constraint.column, schema)}"
            )
        case "max":
            return f"{column} <= {_bound(constraint.max, constraint.column, schema, place)}"
        case "allowed":
            values = ", ".join(_as_column(value, constraint.column, schema) for value in constraint.allowed)
            return f"{column} IN ({values})"
        case "pattern":
            _check_text(constraint.column, schema, place)
            return f"regexp_full_match({column}, {literal(constraint.pattern or '')})"
        case "foreign_key":
            missing = " OR ".join(f"{_column(name)} IS NULL" for name in constraint.foreign_key)
            return f"{missing} OR {keys_name(number)}.k0 IS NOT NULL"
        case "expression":
            return f"{constraint.expression}\n"
    return ""  # no text for `unique`, because a single row is not enough to check it


def missing_column(name: str, columns: Sequence[str], place: str) -> InputError:
    """Return the error that the table of the sink has no column of that name."""
    return InputError(
        f"there is no column {name!r}{did_you_mean(name, columns)}",
        hint=f"The columns are {', '.join(columns)}.",
        place=place,
    )


def _check_text(name: str | None, schema: pa.Schema, place: str) -> None:
    kind = schema.field(name).type
    if not is_text(kind):
        raise InputError(
            f"a pattern needs a column of text, but column {name!r} has type {kind}",
            hint=f"Declare its type as text under `columns`: {{{name}: string}}.",
            place=place,
        )


def _bound(bound: Bound | None, name: str | None, schema: pa.Schema, place: str) -> str:
    kind = schema.field(name).type
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if number != isinstance(bound, int | float):
        raise InputError(
            f"column {name!r} has type {kind}, but {bound!r} cannot be compared with it",
            hint="Write bounds of numbers as numbers, and bounds of times and text as text.",
            place=place,
        )
    return repr(bound) if isinstance(bound, int | float) else _as_column(str(bound), name, schema)


def _no_nan(name: str | None, schema: pa.Schema) -> str:
    """Return an SQL condition that excludes NaN.

    The condition is needed because DuckDB sorts NaN after all numbers, but NaN must be outside of every
    range.
    """
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
    engine: duckdb.DuckDBPyConnection, rules: Sequence[ConstraintRule], constraints: Sequence[Constraint]
) -> None:
    """Run each rule on the empty view `batch`. Raises InputError with the names of the constraints whose
    rules cause errors."""
    errors: list[InputError] = []
    for rule in rules:
        try:
            engine.execute(violations_sql([rule], constraints)).fetchall()
        except duckdb.Error as error:
            errors.append(explain(error, {}, rule.place))
    raise_all(errors, _PLACE)


def _check_expression(engine: duckdb.DuckDBPyConnection, text: str, place: str) -> None:
    expression_columns(engine, text, place)
    types: Mapping[str, str] = {}
    kind = expression_type(engine, text, BATCH, types, place)
    if kind != "BOOLEAN":
        raise InputError(
            f"{text!r} has type {kind}, but a constraint must be true or false",
            hint="Write a comparison, for example `price > 0`.",
            place=place,
        )


SPOOLED = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("reasons", pa.list_(pa.string()), nullable=False),
        pa.field("record", pa.string(), nullable=False),
    ]
)
"""The schema of a rejected row before its position in the file is known: the number of the row from 0, and
its values as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBatch:
    """A batch of rows as they were read (`raw`) and with the types of the table (`rows`). The first row of
    the batch is row `first` (from 0) of the file.

    `misfits` are the numbers of the rows (from 0 within the batch) with values that do not have the type of
    their column, with the reasons.
    """

    raw: pa.Table
    rows: pa.Table
    first: int
    misfits: Mapping[int, list[str]] = field(default_factory=dict)


@dataclass(slots=True)
class RejectSpool:
    """The rejected rows of a source file, stored on disk until their lines in the file are known. `rows`
    contains the numbers of the rejected rows in the source file."""

    path: Path
    rows: list[int] = field(default_factory=list)
    _writer: pq.ParquetWriter | None = None

    def put(self, rejects: pa.Table) -> None:
        """Add rejected rows, in order."""
        if rejects.num_rows:
            if self._writer is None:
                self._writer = pq.ParquetWriter(self.path, SPOOLED)
            self._writer.write_table(rejects)
            self.rows += rejects["row"].to_pylist()

    def close(self) -> None:
        """Finish writing the rejected rows."""
        if self._writer is not None:
            self._writer.close()

    def batches(self) -> Iterator[pa.Table]:
        """Yield all rejected rows, in order."""
        if self._writer is not None:
            with pq.ParquetFile(self.path) as file:
                for batch in file.iter_batches():
                    yield pa.Table.from_batches([batch])


@dataclass(slots=True)
class ConstraintFilter:
    """Applies the constraints of a sink to the rows of a load, and counts rows and rejected rows."""

    spec: SinkSpec
    engine: duckdb.DuckDBPyConnection | None = None
    sql: str = ""
    rows: int = 0
    rejected: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def good(self, batches: Iterable[RowBatch], spool: RejectSpool) -> Iterator[pa.Table]:
        """Yield the rows that satisfy all constraints, and store the other rows in `spool`.

        Raises InputError as soon as more rows are rejected than the sink allows.
        """
        for batch in batches:
            bad = self._broken(batch)
            self.rows += batch.rows.num_rows
            if bad:
                self.reject(spool, rejects_of(batch.raw, batch.first, bad))
            yield _without(batch.rows, bad) if bad else batch.rows
        spool.close()

    def reject(self, spool: RejectSpool, rejects: pa.Table) -> None:
        """Store rejected rows in `spool`, and count these rows and their reasons."""
        spool.put(rejects)
        self.rejected += rejects.num_rows
        self.reasons.update(reason for reasons in rejects["reasons"].to_pylist() for reason in reasons)
        most = self.spec.max_rejects
        if most is not None and most >= 1 and self.rejected > most:
            raise self._too_many(f"more than the {most:g} that `max_rejects` allows")

    def count(self, rows: int, rejected: int, reasons: Mapping[str, int]) -> None:
        """Add the counts of another filter."""
        self.rows += rows
        self.rejected += rejected
        self.reasons.update(reasons)

    def check_share(self) -> None:
        """Raise InputError if the fraction of rejected rows in the load is too large."""
        most = self.spec.max_rejects
        if most is not None and self.rejected > (most if most >= 1 else most * self.rows):
            raise self._too_many(f"more than `max_rejects` allows ({most:g})")

    def _too_many(self, limit: str) -> InputError:
        return InputError(
            f"{self.rejected:,} of {self.rows:,} rows break constraints, {limit}: {top(self.reasons)}",
            hint="The table was not changed. Correct the source, the constraints or `max_rejects`.",
            place="sink.max_rejects",
        )

    def _broken(self, batch: RowBatch) -> dict[int, list[str]]:
        bad = {row: list(reasons) for row, reasons in batch.misfits.items()}
        if self.engine is not None and self.sql:
            numbered = batch.rows.append_column(ROW, pa.array(range(batch.rows.num_rows), pa.int64()))
            self.engine.register(BATCH, numbered)
            for row, reasons in self._ask():
                # A value that could not be read is missing for the constraints: its own reason comes first.
                bad.setdefault(row, []).extend(reasons)
        return dict(sorted(bad.items()))

    def _ask(self) -> list[tuple[int, list[str]]]:
        assert self.engine is not None
        try:
            return self.engine.execute(self.sql).fetchall()
        except (duckdb.DataError, duckdb.InvalidInputException) as error:
            message = str(error).partition("\n")[0]
            raise InputError(
                f"an expression cannot be computed for some row: {message}",
                hint="Use TRY_CAST or CASE, which give NULL or another value where a value does not fit.",
                place="sink.constraints",
            ) from error


@contextmanager
def open_filter(context: JobContext, spec: SinkSpec, schema: pa.Schema) -> Iterator[ConstraintFilter]:
    """Open a filter for tables with this schema. Raises one InputError for all constraints that do not fit
    the schema."""
    with ExitStack() as stack:
        if not spec.constraints:
            yield ConstraintFilter(spec=spec)
            return
        errors: list[InputError] = []
        rules = row_rules(spec.constraints, schema, errors)
        engine = stack.enter_context(open_engine(context))
        engine.register(BATCH, _one_missing(schema))
        for number, constraint in enumerate(spec.constraints):
            with collected(errors):
                if constraint.references and set(constraint.foreign_key) <= set(schema.names):
                    _collect_keys(context, engine, constraint, number, schema)
                if constraint.expression is not None:
                    place = f"{_PLACE}[{number}].expression"
                    _check_expression(engine, constraint.expression, place)
        raise_all(errors, _PLACE)
        check_rules(engine, rules, spec.constraints)
        yield ConstraintFilter(
            spec=spec, engine=engine, sql=violations_sql(rules, spec.constraints) if rules else ""
        )


def _one_missing(schema: pa.Schema) -> pa.Table:
    """Return a row in which all values are missing. If a rule causes an error even for a row without values,
    the rule causes an error for every row, because it computes only constants."""
    numbered = schema.append(pa.field(ROW, pa.int64()))
    return pa.Table.from_arrays([pa.nulls(1, item.type) for item in numbered], schema=numbered)


def _collect_keys(
    context: JobContext,
    engine: duckdb.DuckDBPyConnection,
    constraint: Constraint,
    number: int,
    schema: pa.Schema,
) -> None:
    table = open_table(context, context.input(constraint.references or "").output)
    for mine, theirs in zip(constraint.foreign_key, constraint.keys, strict=True):
        _check_same_type(constraint, number, mine, theirs, schema, table.schema)
    engine.register("__referenced", table)
    columns = ", ".join(f"{quoted(name)} AS k{index}" for index, name in enumerate(constraint.keys))
    not_null = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in constraint.keys)
    engine.execute(
        f"CREATE TEMP TABLE {keys_name(number)} AS SELECT DISTINCT {columns} FROM __referenced WHERE"
        f" {not_null}"
    )
    engine.unregister("__referenced")


def _check_same_type(
    one: Constraint, number: int, mine: str, theirs: str, schema: pa.Schema, other: pa.Schema
) -> None:
    place = f"sink.constraints[{number}]"
    if theirs not in other.names:
        raise InputError(
            f"{one.references} has no column {theirs!r}",
            hint=f"Its columns are {', '.join(other.names)}. List the matching ones in `referenced`.",
            place=place,
        )
    if schema.field(mine).type != other.field(theirs).type:
        raise InputError(
            f"{mine!r} has type {schema.field(mine).type}, but {theirs!r} of {one.references} has type "
            f"{other.field(theirs).type}",
            hint="Give both the same type under `columns`.",
            place=place,
        )


def rejects_of(raw: pa.Table, first: int, bad: Mapping[int, Sequence[str]]) -> pa.Table:
    """Return rows of a batch as rejected rows. `bad` are the numbers of the rejected rows within the batch,
    in order."""
    records = [json.dumps(record, default=str, ensure_ascii=False) for record in _taken(raw, list(bad))]
    return pa.table([[first + row for row in bad], [list(why) for why in bad.values()], records], SPOOLED)


def _taken(raw: pa.Table, rows: list[int]) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = raw.take(rows).to_pylist()
    return records


def _without(rows: pa.Table, bad: Mapping[int, object]) -> pa.Table:
    return rows.filter(pa.array([row not in bad for row in range(rows.num_rows)], pa.bool_()))


def top(reasons: Mapping[str, int], most: int = 3) -> str:
    """Return the reasons as text, the most frequent first, such as `3 price: missing, 1 zip: not like
    [0-9]+`."""
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    more = f", and {len(ordered) - most} more reasons" if len(ordered) > most else ""
    return ", ".join(f"{count:,} {reason}" for reason, count in ordered[:most]) + more


ORDINAL = "__ordinal"


def find_repeated(
    engine: duckdb.DuckDBPyConnection,
    constraints: Sequence[Constraint],
    written: Sequence[Path],
    table: ds.Dataset | None,
) -> dict[int, str]:
    """Return the number (from 0, over the files of the load in order) and the reason of each row whose key
    is repeated, in order.

    A row that an earlier constraint rejects is ignored when the next constraint is checked. A key with a
    missing value is not compared. If the keys do not fit into memory, DuckDB writes them to disk.
    """
    unique = [one for one in constraints if one.unique]
    if not unique or not written:
        return {}
    columns = tuple(dict.fromkeys(name for one in unique for name in one.unique))
    engine.register("__written", _ordered(written, columns))
    engine.execute("CREATE TEMP TABLE __incoming AS SELECT * FROM __written")
    engine.unregister("__written")
    found: dict[int, str] = {}
    for one in unique:
        ((_, reason),) = one.rules()
        if table is not None:
            engine.register("__table", table.scanner(columns=list(one.unique)).to_reader())
        repeated = [row for (row,) in engine.execute(_repeated_sql(one, table is not None)).fetchall()]
        found |= dict.fromkeys(repeated, reason)
        if repeated:
            engine.register("__repeated", pa.table({ORDINAL: pa.array(repeated, pa.int64())}))
            engine.execute(f"DELETE FROM __incoming WHERE {ORDINAL} IN (SELECT {ORDINAL} FROM __repeated)")
            engine.unregister("__repeated")
    engine.execute("DROP TABLE __incoming")
    return dict(sorted(found.items()))


def _ordered(written: Sequence[Path], columns: Sequence[str]) -> pa.RecordBatchReader:
    schema = pq.read_schema(written[0])
    wanted = pa.schema([schema.field(name) for name in columns]).append(pa.field(ORDINAL, pa.int64()))

    def batches() -> Iterator[pa.RecordBatch]:
        ordinal = 0
        for path in written:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(columns=list(columns)):
                    numbers = pa.array(range(ordinal, ordinal + batch.num_rows), pa.int64())
                    ordinal += batch.num_rows
                    arrays = [batch.column(name) for name in columns]
                    yield pa.RecordBatch.from_arrays([*arrays, numbers], schema=wanted)

    return pa.RecordBatchReader.from_batches(wanted, batches())


def _repeated_sql(constraint: Constraint, has_table: bool) -> str:
    keys = ", ".join(quoted(name) for name in constraint.unique)
    not_null = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in constraint.unique)
    same = " AND ".join(f"i.{quoted(name)} = f.{quoted(name)}" for name in constraint.unique)
    within = (
        f"SELECT i.{ORDINAL} FROM __incoming i JOIN (SELECT {keys}, min({ORDINAL}) AS first FROM __incoming "
        f"WHERE {not_null} GROUP BY {keys} HAVING count(*) > 1) f ON {same} WHERE i.{ORDINAL} > f.first"
    )
    if not has_table:
        return within
    return (
        f"{within} UNION SELECT {ORDINAL} FROM __incoming SEMI JOIN (SELECT {keys} FROM __table) t "
        f"USING ({keys})"
    )
