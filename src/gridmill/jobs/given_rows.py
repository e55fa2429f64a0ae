"""Rows that a program holds, as an Arrow table, and a result in the form in which the rows came."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from gridmill.errors import InputError

Rows = Any
"""A pandas or polars data frame, an Arrow table or batch, a list of dicts, or what offers an Arrow stream."""
_FORMS = "a pandas or polars DataFrame, an Arrow table, or a list of dicts"


def as_arrow(rows: Rows) -> pa.Table:
    """The rows as an Arrow table. Raises InputError for what holds none, or values of several types."""
    if isinstance(rows, pa.Table):
        return _checked(rows)
    with _explained():
        if isinstance(rows, pa.RecordBatch):
            return _checked(pa.Table.from_batches([rows]))
        if _is_frame(rows, "pandas"):
            return _checked(pa.Table.from_pandas(rows, preserve_index=False))
        if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
            return _from_dicts(rows)
        if hasattr(rows, "__arrow_c_stream__"):
            return _checked(pa.table(rows))
    hint = "Write one row as [{...}], a list with one dict." if isinstance(rows, Mapping) else ""
    raise InputError(f"rows are {_FORMS}, got {type(rows).__name__}", hint=hint)


def _from_dicts(rows: Sequence[Any]) -> pa.Table:
    names: dict[str, None] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InputError(f"row {number} is {type(row).__name__}; a row of a list is a dict by column")
        names |= dict.fromkeys(map(str, row))
    return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})


def _checked(table: pa.Table) -> pa.Table:
    twice = {name for name in table.column_names if table.column_names.count(name) > 1}
    if twice:
        raise InputError(f"several columns are called {', '.join(sorted(map(repr, twice)))}")
    return table


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"the rows cannot be read as a table: {error}", hint="Each column holds values of one type."
        ) from error


def in_form_of(rows: Rows) -> Callable[[pa.Table], Any]:
    """What turns a result into the form of `rows`: a pandas frame (with the index of `rows`), a polars frame,
    a list of dicts, else an Arrow table."""
    if _is_frame(rows, "pandas"):
        return lambda table: table.to_pandas().set_axis(rows.index)
    if _is_frame(rows, "polars"):
        return lambda table: sys.modules["polars"].from_arrow(table)
    if isinstance(rows, Sequence):
        return lambda table: table.to_pylist()
    return lambda table: table


def _is_frame(rows: Rows, library: str) -> bool:
    """Whether it is a DataFrame of a library: only one that is imported can have made it."""
    module = sys.modules.get(library)
    return module is not None and isinstance(rows, module.DataFrame)
