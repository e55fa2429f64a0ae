"""Binds the values of the parameters of a query. A bound value never becomes part of the SQL text, whatever
the value contains."""

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

import sqlalchemy as sa

from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import read_moment
from gridmill.domain.sql_statement import (
    TIMES,
    Given,
    Placeholder,
    ReferenceContext,
    Scalar,
    filled,
    holes_of,
    named,
    some,
)
from gridmill.errors import InputError

_NAMED = re.compile(r"(?<![:\w\\]):(?=\w)")
"""A pattern for text that SQLAlchemy would read as a parameter, even within quoted texts. The text that
SQLAlchemy would read as a parameter is escaped, so that only the parameters of Gridmill are parameters."""
_MARK = re.compile("\0([0-9]+)\0")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundStatement:
    """An SQL statement for the function `text` of SQLAlchemy, and its bound values."""

    text: str
    values: Sequence[sa.BindParameter[Any]] = ()


def bind_values(query: str, values: Mapping[str, Given], dialect: str) -> BoundStatement:
    """Return the query for a database with this SQL dialect, with bound values. Raises InputError if a value
    cannot be bound."""
    if not values:
        return BoundStatement(text=_escaped(query))
    binding = _ParameterBinder(values, dialect)
    parts = holes_of(query, backslashes=dialect in ("mysql", "mariadb"))
    marked = "".join(part if isinstance(part, str) else binding.mark(part) for part in parts)
    return BoundStatement(text=binding.put(_escaped(marked)), values=binding.bound)


def _escaped(text: str) -> str:
    return _NAMED.sub(r"\:", text)


class _ParameterBinder:
    """Writes the text that replaces each placeholder of a query. Each placeholder is first replaced by a
    temporary mark, because all other text must be escaped before the parameters are inserted."""

    def __init__(self, values: Mapping[str, Given], dialect: str) -> None:
        self.bound: list[sa.BindParameter[Any]] = []
        self._values, self._dialect = values, dialect
        self._texts: list[str] = []

    def mark(self, hole: Placeholder) -> str:
        """Return a temporary mark that replaces a placeholder in the query. Raises InputError."""
        self._texts.append(self._written(hole))
        return f"\0{len(self._texts) - 1}\0"

    def put(self, marked: str) -> str:
        """Return the statement with parameters instead of the temporary marks."""
        return _MARK.sub(lambda found: self._texts[int(found[1])], marked)

    def _written(self, hole: Placeholder) -> str:
        if hole.where is ReferenceContext.VALUE:
            return self._value(hole)
        values = {name: _as_text(name, value) for name, value in self._values.items()}
        text = filled(hole, values)
        if hole.where is ReferenceContext.TEXT:
            return self._bind(text)
        return _escaped(named(text, hole.quote))

    def _value(self, hole: Placeholder) -> str:
        name = hole.references[0]
        value = self._values[name]
        if not isinstance(value, tuple):
            return self._bind(_as_time(name, value, self._dialect))
        listed = ", ".join(map(self._bind, some(value)))
        return listed if hole.enclosed else f"({listed})"

    def _bind(self, value: Scalar | date) -> str:
        """Return the name of a new bound parameter as SQL, with a space after it, because `::` may follow.

        If the value has no declared type, the database infers the type from the comparison, as it does for a
        quoted text.
        """
        name = f"gridmill_{len(self.bound)}"
        self.bound.append(sa.bindparam(name, value, type_=sa.types.NullType()))
        return f":{name} "


def _moment(name: str, value: Given) -> date | None:
    """Return the limit of a time range as a date if it has no time of day, otherwise as a time in UTC.
    Return None for any other value."""
    if name not in TIMES or not isinstance(value, str):
        return None
    try:
        moment = read_moment(value)
    except InputError:
        return None
    return moment.date() if len(value) == len("2013-01-01") else moment


def _as_text(name: str, value: Given) -> Given:
    """Return a time in the form in which databases write it, such as `2013-01-01 06:00:00`."""
    moment = _moment(name, value)
    return str(_naive(moment)) if moment is not None else value


def _naive(moment: date) -> date:
    return moment.replace(tzinfo=None) if isinstance(moment, datetime) else moment


def _as_time(name: str, value: Scalar, dialect: str) -> Scalar | date:
    moment = _moment(name, value)
    if moment is None:
        return value
    if dialect == "postgresql":
        return moment
    return str(_naive(moment))
