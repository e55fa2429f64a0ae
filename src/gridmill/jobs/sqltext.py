"""SQL as text: names, intervals, moments, a SELECT put together. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gridmill.jobs.engine import literal, quoted

TIME, KNOWN, AT, CODE = "__time", "__known", "__at", "__code"
LABEL_KNOWN, LABEL_TIME, DROPPED = "__label_known", "__label_time", "__dropped"
LABEL_FROM, LABEL_OF, NEXT = "__label_from", "__label_of", "__next"
"""When the row is known that the label is taken from; what a label of events is made of; whether all of the
next rows are there."""
HIDDEN = (TIME, KNOWN, AT, CODE, LABEL_KNOWN, LABEL_TIME, LABEL_FROM, LABEL_OF, NEXT, DROPPED)
"""Columns of the query that are not in the dataset."""
FLOATS = ("DOUBLE", "FLOAT")
_CONSTANTS = ("null", "true", "false", "current_date", "current_time", "current_timestamp", "localtimestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which rows are computed: those `after` a moment (None: all).

    Rows from `history` on are enough to look back to (None: all are needed).
    """

    after: datetime | None = None
    history: datetime | None = None

    def recent(self, time: str) -> tuple[str, ...]:
        """The condition for rows that are worth looking at, of those known at `time` (SQL)."""
        return (f"{time} >= {moment(self.history)}",) if self.history is not None else ()


def select(
    first: Sequence[str],
    columns: Mapping[str, str],
    table: str,
    more: Sequence[str] = (),
    indent: str = "    ",
) -> str:
    """SELECT `first`, and `columns` (name -> SQL) a line each, FROM `table`, with `more` behind it."""
    listed = [", ".join(first)] if first else []
    listed += [f"{sql} AS {quoted(name)}" for name, sql in columns.items()]
    lines = [f"{indent}SELECT {listed[0]}"] + [f"{indent}    {item}" for item in listed[1:]]
    text = ",\n".join(lines)
    return "\n".join((text, f"{indent}FROM {table}", *(f"{indent}{line}" for line in more)))


def quote_all(names: Iterable[str]) -> list[str]:
    """SQL identifiers."""
    return [quoted(name) for name in names]


def sql_text(expression: str) -> str:
    """An expression to be put in parentheses: a comment in it must not swallow them, and a column may be
    called like a word of SQL (`at`, `end`)."""
    text = expression.strip()
    if text.isidentifier() and text.lower() not in _CONSTANTS:
        return quoted(text)
    return f"{text}\n" if "--" in text else text


def interval(seconds: float) -> str:
    """An SQL interval, exact to the microsecond."""
    whole = round(seconds * 1_000_000)
    if whole % 1_000_000 == 0:
        return f"INTERVAL '{whole // 1_000_000} seconds'"
    return f"INTERVAL '{whole} microseconds'"


def moment(time: datetime) -> str:
    """An SQL timestamp."""
    return f"TIMESTAMP {literal(time.isoformat(sep=' '))}"
