"""Columns as a declaration names them: found, typed, comparable, each once; or an error."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeAlias

from gridmill.errors import InputError

Types: TypeAlias = Mapping[str, str]
"""A table's columns in order, and their types in DuckDB's words."""

_NUMBERS = ("INT", "DOUBLE", "FLOAT", "DECIMAL", "BOOLEAN")
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def find_column(name: str, types: Types, table: str, field: str) -> str:
    """The column's type. Raises InputError with what is near and what there is."""
    if name in types:
        return types[name]
    near = get_close_matches(name.lower(), [column.lower() for column in types], n=1)
    meant = [column for column in types if near and column.lower() == near[0]]
    raise InputError(
        f"{_called(table)} has no column {name!r}" + (f"; did you mean {meant[0]!r}?" if meant else ""),
        hint=f"It has {', '.join(types)}.",
        place=f"dataset.{field}",
    )


def _called(table: str) -> str:
    return table if table.startswith("the ") else f"table {table!r}"


def refuse_split(names: Iterable[str]) -> None:
    """Raise InputError for a column that would be taken for the one that says which split a row is in."""
    if "split" in names:
        raise InputError(
            "the dataset would have a column 'split', the name of the one that says which split a row is in",
            hint="`rename` it in the sink, or choose `columns` without it.",
            place="dataset",
        )


def refuse_duplicates(names: Iterable[str]) -> None:
    """Raise InputError for a column that would be there twice (upper and lower case are the same)."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise InputError(
                f"the dataset would have two columns {name!r}",
                hint="Give joined columns a `prefix`, or choose `columns`.",
                place="dataset",
            )
        seen.add(name.lower())


def is_number(type_: str) -> bool:
    """Numbers and booleans."""
    return (
        any(word in type_ for word in _NUMBERS)
        and "[" not in type_
        and "(" not in type_.removeprefix("DECIMAL(")
    )


def is_time(type_: str) -> bool:
    """Timestamps and dates."""
    return type_.startswith("TIMESTAMP") or type_ == "DATE"


def check_number(column: str, type_: str, what: str, table: str) -> None:
    """Raise InputError unless the column holds numbers or booleans."""
    if not is_number(type_):
        raise InputError(
            f"{what} needs numbers, and {column!r} of {table!r} is {type_}", place="dataset.windows"
        )


def check_time(column: str, type_: str, table: str, field: str) -> None:
    """Raise InputError unless the column holds times."""
    if not is_time(type_):
        raise InputError(
            f"{column!r} of {table!r} is {type_}, not a timestamp",
            hint=f"In the sink: `columns: {{{column}: timestamp}}`, with a `timestamp_format` if needed.",
            place=f"dataset.{field}",
        )


def check_comparable(column: str, left: tuple[str, str], right: tuple[str, str]) -> None:
    """Raise InputError when a column (table, type) is text on one side and a number on the other."""
    if _nature(left[1]) != _nature(right[1]):
        raise InputError(
            f"cannot join on {column!r}: it is {left[1]} in {left[0]!r} and {right[1]} in {right[0]!r}",
            hint="Declare the same type for it in both sinks, under `columns`.",
            place="dataset",
        )


def _nature(type_: str) -> str:
    return "number" if is_number(type_) else "time" if is_time(type_) else type_


def show_span(seconds: float) -> str:
    """`1d`, `90m`, `1500ms`."""
    for size, unit in _UNITS:
        if seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return f"{round(seconds * 1000)}ms"
