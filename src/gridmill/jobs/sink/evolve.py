"""How a table's columns change when a new file has other ones: a pure decision.

New columns are added; rows loaded before have no value in them. Whole numbers become numbers with a
fraction, dates become times. A column without any value so far takes the type of the first ones. Nothing else
changes by itself.
"""

from collections.abc import Container, Mapping

import pyarrow as pa

from gridmill.jobs.sink.convert import TIMESTAMP

WIDER: Mapping[pa.DataType, pa.DataType] = {pa.int64(): pa.float64(), pa.date32(): TIMESTAMP}


def evolve(
    table: pa.Schema,
    found: Mapping[str, pa.DataType | None],
    fixed: Mapping[str, object],
    untold: Container[str] = (),
) -> pa.Schema:
    """The table's columns after files in which these were found (None: a column without any value).

    Columns of `fixed` keep their type; those that are `untold` have no value in the table. The same schema
    where nothing can change.
    """
    kept = [
        (item.name, found.get(item.name) or item.type)
        if item.name in untold
        else (item.name, _widened(item, found.get(item.name), item.name in fixed))
        for item in table
    ]
    there = {name for name, _ in kept}
    added = [(name, kind or pa.string()) for name, kind in found.items() if name not in there]
    return pa.schema([*kept, *added])


def _widened(item: pa.Field, found: pa.DataType | None, fixed: bool) -> pa.DataType:
    return found if found is not None and not fixed and WIDER.get(item.type) == found else item.type


def widened(before: pa.Schema, after: pa.Schema) -> tuple[str, ...]:
    """The columns whose rows that are there need another type."""
    return tuple(item.name for item in before if after.field(item.name).type != item.type)
