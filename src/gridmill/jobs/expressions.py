"""SQL expressions: builds SQL text (names, intervals, times, SELECT) and checks the SQL of users.

A user writes a SELECT statement, or an expression that can use only the columns of its own row. The
functions that build SQL text have no side effects.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import duckdb

from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import suggestion
from gridmill.errors import InputError
from gridmill.jobs.duckdb_engine import Types, fetch_rows, literal, quoted

TIME, KNOWN, AT, CODE = "__time", "__known", "__at", "__code"
LABEL_KNOWN, LABEL_TIME, DROPPED = "__label_known", "__label_time", "__dropped"
LABEL_FROM, LABEL_OF, NEXT = "__label_from", "__label_of", "__next"
"""The names of hidden columns. LABEL_FROM is the time at which the row from which the label is taken becomes
known. LABEL_OF is the value from which a label is computed if it is made from events. NEXT is true if all of
the next rows that the label reads exist.
"""
HIDDEN = (TIME, KNOWN, AT, CODE, LABEL_KNOWN, LABEL_TIME, LABEL_FROM, LABEL_OF, NEXT, DROPPED)
"""The names of columns that the query returns and the dataset does not contain."""
FLOATS = ("DOUBLE", "FLOAT")
_CONSTANTS = ("null", "true", "false", "current_date", "current_time", "current_timestamp", "localtimestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowScope:
    """The selection of the rows to compute: all rows, or only the rows after the time `after` if it is set.

    Windows and lags read all rows if `history` is None, otherwise only the rows whose time is not before
    `history`.
    """

    after: datetime | None = None
    history: datetime | None = None

    def recent(self, time: str) -> tuple[str, ...]:
        """Return the SQL condition that selects the rows to compute and their history. The column `time` has
        the time at which each row is known."""
        return (f"{time} >= {moment(self.history)}",) if self.history is not None else ()


def select(
    first: Sequence[str],
    columns: Mapping[str, str],
    table: str,
    more: Sequence[str] = (),
    indent: str = "    ",
) -> str:
    """Return a SELECT statement over `table`. It selects the columns in `first`, then the columns in
    `columns` (a mapping from name to SQL), one per line. The text `more` follows at the end."""
    listed = [", ".join(first)] if first else []
    listed += [f"{sql} AS {quoted(name)}" for name, sql in columns.items()]
    lines = [f"{indent}SELECT {listed[0]}"] + [f"{indent}    {item}" for item in listed[1:]]
    text = ",\n".join(lines)
    return "\n".join((text, f"{indent}FROM {table}", *(f"{indent}{line}" for line in more)))


def quote_all(names: Iterable[str]) -> list[str]:
    """Return the names as quoted SQL identifiers."""
    return [quoted(name) for name in names]


def sql_text(expression: str) -> str:
    """Return the expression as text that can be written between parentheses.

    The text ends with a line break, so that a comment in the expression does not hide the closing
    parenthesis. A column name that is also an SQL keyword (`at`, `end`) is allowed.
    """
    text = expression.strip()
    if text.isidentifier() and text.lower() not in _CONSTANTS:
        return quoted(text)
    return f"{text}\n" if "--" in text else text


def interval(seconds: float) -> str:
    """Return an SQL interval, exact to the microsecond."""
    whole = round(seconds * 1_000_000)
    if whole % 1_000_000 == 0:
        return f"INTERVAL '{whole // 1_000_000} seconds'"
    return f"INTERVAL '{whole} microseconds'"


def moment(time: datetime) -> str:
    """Return an SQL timestamp."""
    return f"TIMESTAMP {literal(time.isoformat(sep=' '))}"


_REFUSED = {
    "SUBQUERY": "a query inside",
    "WINDOW": "a window (OVER)",
    "STAR": "*",
    "PARAMETER": "a parameter",
}
_WORD = re.compile(r"\w+")
_CHANGING = ("VOLATILE", "CONSISTENT_WITHIN_QUERY")


def parse_select(engine: duckdb.DuckDBPyConnection, sql: str, *, lines_before: int = 0) -> dict[str, Any]:
    """Return the syntax tree of a single SELECT statement. Raises InputError with the position of the error
    in the SQL.

    `lines_before` is the number of lines that come before the text of the user.
    """
    tree = json.loads(_value(engine, f"SELECT json_serialize_sql({literal(sql)})"))
    if tree["error"]:
        hint = _word_hint(engine, sql, int(tree.get("position") or 0))
        raise InputError(_at(sql, tree, lines_before), hint=hint, place="dataset.sql")
    if len(tree["statements"]) != 1:
        raise InputError(f"one SELECT is needed, there are {len(tree['statements'])}", place="dataset.sql")
    node: dict[str, Any] = tree["statements"][0]["node"]
    return node


def _word_hint(engine: duckdb.DuckDBPyConnection, sql: str, at: int) -> str:
    """Return a hint for a syntax error at an SQL keyword, because the user may mean the keyword as the name
    of a column, or as the last word of a column name."""
    tokens = duckdb.tokenize(sql)
    starts = [start for start, kind in tokens if kind == duckdb.token_type.keyword]
    match = _WORD.match(sql, max((start for start in starts if start <= at), default=len(sql)))
    if match is None or sql[match.end() : at].strip() or not fetch_rows(engine, _kept(match[0])):
        return ""
    before = max(((start, kind) for start, kind in tokens if start < match.start()), default=None)
    if before is not None and before[1] == duckdb.token_type.identifier:
        name = sql[before[0] : match.end()]
        return f"{match[0]!r} is a reserved word of SQL. If {name!r} is a column name, write {quoted(name)}."
    return f"{match[0]!r} is a reserved word of SQL. If it is a column name, write {quoted(match[0])}."


def _kept(word: str) -> str:
    return (
        "SELECT 1 FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function') "
        f"AND keyword_name = {literal(word.lower())}"
    )


def check_syntax(engine: duckdb.DuckDBPyConnection, text: str, place: str) -> dict[str, Any]:
    """Return the syntax tree of a SELECT statement that contains only this expression. Raises InputError."""
    try:
        return parse_select(engine, f"SELECT (\n{sql_text(text)}\n)", lines_before=1)
    except InputError as error:
        raise InputError(error.message, hint=error.hint, place=place) from error


def is_ordered(node: dict[str, Any]) -> bool:
    """Return whether the query defines the order of its rows."""
    return any(modifier.get("type") == "ORDER_MODIFIER" for modifier in node.get("modifiers", []))


def expression_columns(engine: duckdb.DuckDBPyConnection, text: str, place: str) -> tuple[str, ...]:
    """Return the columns that an expression uses. Raises InputError if the expression uses more than one
    row."""
    if not text.strip():
        raise InputError(
            "there is no expression", hint="Write an SQL expression of the columns of the row.", place=place
        )
    node = check_syntax(engine, text, place)
    items = node.get("select_list", [])
    if len(items) != 1 or (node.get("from_table") or {}).get("type") != "EMPTY":
        raise InputError(f"{text!r} is not a single expression", place=place)
    nodes = list(_walk(items[0]))
    for inner in nodes:
        _refuse(engine, inner, text, place)
    names = (inner["column_names"][-1] for inner in nodes if inner.get("class") == "COLUMN_REF")
    return tuple(dict.fromkeys(names))


def _refuse(engine: duckdb.DuckDBPyConnection, node: dict[str, Any], text: str, place: str) -> None:
    what = _REFUSED.get(str(node.get("class")))
    if what is not None:
        raise InputError(
            f"{text!r} has {what}, but an expression can use only the columns of its own row",
            hint="To read other rows, use `windows`, `lags` or `asof_joins`, which read only rows that were "
            "known before, or write plain `sql`.",
            place=place,
        )
    if node.get("class") != "FUNCTION":
        return
    kinds = _function(engine, str(node.get("function_name")))
    if kinds and all(kind == "aggregate" for kind, _ in kinds):
        raise InputError(
            f"{text!r} has {node['function_name']}(), an aggregate, but an expression can use only the "
            "columns of its own row",
            hint="To aggregate other rows, use `windows`, which read only rows that were known before, or "
            "write plain `sql`.",
            place=place,
        )
    if any(stability in _CHANGING for _, stability in kinds):
        raise InputError(
            f"{text!r} uses {node['function_name']}(), which gives a different value each time",
            hint="Remove the function: the same tables must always give the same dataset.",
            place=place,
        )


def _function(engine: duckdb.DuckDBPyConnection, name: str) -> list[tuple[str, str]]:
    """Return the kinds of the SQL functions with this name, and whether the results of these functions can
    change between calls."""
    if not _KINDS:
        _KINDS.update(_functions(engine, ""))
    return _KINDS.get(name) or _functions(engine, f"WHERE function_name = {literal(name)}").get(name, [])


_KINDS: dict[str, list[tuple[str, str]]] = {}
"""The kinds of the functions that DuckDB itself defines. The kinds of all functions are read together,
because a query for one function takes as long as a query for all functions."""


def _functions(engine: duckdb.DuckDBPyConnection, where: str) -> dict[str, list[tuple[str, str]]]:
    columns = "function_name, function_type, stability"
    result: dict[str, list[tuple[str, str]]] = {}
    for row in fetch_rows(engine, f"SELECT DISTINCT {columns} FROM duckdb_functions() {where}"):
        result.setdefault(row["function_name"], []).append((row["function_type"], row["stability"]))
    return result


def _walk(node: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401  a JSON tree
    if isinstance(node, dict):
        yield node
        for child in node.values():
            yield from _walk(child)
    elif isinstance(node, list):
        for child in node:
            yield from _walk(child)


def types_of(engine: duckdb.DuckDBPyConnection, sql: str) -> dict[str, str]:
    """Return the columns of a query and their types. This function does not execute the query. Raises
    duckdb.Error."""
    return {row["column_name"]: row["column_type"] for row in fetch_rows(engine, f"DESCRIBE {sql}")}


def expression_type(
    engine: duckdb.DuckDBPyConnection, text: str, table: str, types: Types, place: str
) -> str:
    """Return the type of an expression over the columns of a table. Raises InputError."""
    try:
        types_found = types_of(engine, f"SELECT ({sql_text(text)}\n) FROM {quoted(table)}")
    except duckdb.Error as error:
        raise explain(error, types, place) from error
    return next(iter(types_found.values()))


def explain(error: duckdb.Error, types: Types, place: str, sql: str = "") -> InputError:
    """Return an InputError with the message of DuckDB, the position of the error, and the existing columns.

    If DuckDB gives no position, this function searches `sql` for the name in the message.
    """
    message, _, position = str(error).partition("\n\n")
    text = message.partition(": ")[2] or message
    named = re.search(r'"([^"]+)"', text)
    meant = suggestion(named[1], types) if named else ""
    available = f"The columns are {', '.join(types)}. " if types else ""
    at = position or (_first(named[1], sql) if named else "")
    hint = f"{available}{meant}".rstrip()
    return InputError(f"{text.splitlines()[0]}\n{at}".strip(), hint=hint, place=place)


def _first(word: str, sql: str) -> str:
    match = re.search(rf"(?<!\w){re.escape(word)}(?!\w)", sql)
    return (
        f"(line {sql.count(chr(10), 0, match.start()) + 1}: {_line_at(sql, match.start())})" if match else ""
    )


def _line_at(sql: str, at: int) -> str:
    return sql[sql.rfind("\n", 0, at) + 1 :].partition("\n")[0].strip()


def _at(sql: str, tree: dict[str, Any], lines_before: int) -> str:
    if "Only SELECT" in str(tree.get("error_message")):
        return "only one SELECT can be given"
    message = str(tree.get("error_message", "not SQL"))
    if not tree.get("position"):
        return message
    at = int(tree["position"])
    line = sql.count("\n", 0, at) + 1 - lines_before
    column = at - (sql.rfind("\n", 0, at) + 1) + 1
    return f"{message} (line {line}, column {column})"


def _value(engine: duckdb.DuckDBPyConnection, sql: str) -> str:
    row = fetch_rows(engine, sql)[0]
    return str(next(iter(row.values())))
