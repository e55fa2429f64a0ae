"""Finds the columns that a declaration names. Each named column must exist, be unique and have a usable
type."""

from collections.abc import Iterable

from gridmill.domain.naming import did_you_mean
from gridmill.errors import InputError
from gridmill.jobs.duckdb_engine import Types

SQL_RESULT = "__sql"
"""The table name for the result of the `sql` that a dataset declares."""
_NUMBERS = ("INT", "DOUBLE", "FLOAT", "DECIMAL", "BOOLEAN")
_RESULT = "the result of `sql`"
_SHOWN = 20
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def find_column(name: str, types: Types, table: str, field: str) -> str:
    """Return the type of the column. If the column does not exist, raise an InputError with a similar column
    name and the existing columns."""
    if name in types:
        return types[name]
    raise missing_column(name, types, table, f"dataset.{field}")


def missing_column(name: str, columns: Iterable[str], table: str, place: str) -> InputError:
    """Return the error that a table has no column of that name."""
    names = list(columns)
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return InputError(
        f"{_called(table)} has no column {name!r}{did_you_mean(name, names)}",
        hint=f"It has {shown}.",
        place=place,
    )


def _called(table: str) -> str:
    if table == SQL_RESULT:
        return _RESULT
    return table if table.startswith("the ") else f"table {table!r}"


def table_words(table: str) -> str:
    """Return the name of a table for error messages."""
    return _RESULT if table == SQL_RESULT else repr(table)


def refuse_split(names: Iterable[str]) -> None:
    """Raise InputError if a column has the name that is reserved for the split of the row."""
    if "split" in names:
        raise InputError(
            "the dataset would have a column 'split', the name of the column in which Gridmill writes "
            "the split of each row",
            hint="`rename` the column in the sink, or leave it out of `columns`.",
            place="dataset",
        )


def refuse_duplicates(names: Iterable[str]) -> None:
    """Raise InputError if a column name occurs twice. Names that differ only in upper and lower case count
    as equal."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise InputError(
                f"the dataset would have two columns {name!r}",
                hint="Give the join a `prefix`, or list the columns to join in its `columns`.",
                place="dataset",
            )
        seen.add(name.lower())


def is_number(type_: str) -> bool:
    """Return whether the column type is numeric or boolean."""
    return (
        any(word in type_ for word in _NUMBERS)
        and "[" not in type_
        and "(" not in type_.removeprefix("DECIMAL(")
    )


def is_time(type_: str) -> bool:
    """Return whether the column type is a timestamp or a date."""
    return type_.startswith("TIMESTAMP") or type_ == "DATE"


def check_number(column: str, type_: str, what: str, table: str) -> None:
    """Raise InputError if the column does not hold numbers or booleans."""
    if not is_number(type_):
        raise InputError(
            f"{what} needs numbers, but {column!r} of {table_words(table)} has type {type_}",
            place="dataset.windows",
        )


def check_time(column: str, type_: str, table: str, field: str) -> None:
    """Raise InputError if the column does not hold times."""
    if not is_time(type_):
        sql = table == SQL_RESULT
        declared = f"in the sink: `columns: {{{column}: timestamp}}`, with a `timestamp_format` if needed."
        if is_number(type_):
            declared = (
                f"in the sink: `columns: {{{column}: timestamp}}` detects the unit from the number of "
                f"digits, `timestamp_format: {{{column}: unix_s}}` under `source` declares it."
            )
        raise InputError(
            f"{column!r} of {table_words(table)} has type {type_}, not timestamp",
            hint=f"Convert the column in the `sql`, or {declared}" if sql else f"I{declared[1:]}",
            place="dataset.time" if sql else f"dataset.{field}",
        )


def check_comparable(column: str, left: tuple[str, str], right: tuple[str, str]) -> None:
    """Raise InputError if `column` is text in one of the tables `left` and `right` and a number in the other
    table."""
    if _nature(left[1]) != _nature(right[1]):
        sides = " and ".join(f"{type_} in {table_words(table)}" for table, type_ in (left, right))
        raise InputError(
            f"cannot join on {column!r}: its type is {sides}",
            hint="Declare the same type for the column in both sinks, under `columns`.",
            place="dataset",
        )


def _nature(type_: str) -> str:
    return "number" if is_number(type_) else "time" if is_time(type_) else type_


def show_span(seconds: float) -> str:
    """Return a duration as text, such as `1d`, `90m` or `1500ms`."""
    for size, unit in _UNITS:
        if seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return f"{round(seconds * 1000)}ms"
