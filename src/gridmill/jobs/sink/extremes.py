"""Least and greatest values of written files: Parquet's writer has found them, and its footers say them."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Extremes: TypeAlias = Mapping[str, tuple[Any, Any]]


def extremes(paths: Iterable[Path], schema: pa.Schema) -> Extremes:
    """Of each plain column that has any value, over all files; NaN is no value."""
    found: dict[str, tuple[Any, Any]] = {}
    for path in paths:
        with pq.ParquetFile(path) as file:
            for name, leaf in leaves(schema):
                for low, high in _of_groups(file, name, leaf):
                    before = found.get(name, (low, high))
                    found[name] = (min(before[0], low), max(before[1], high))
    return found


def leaves(schema: pa.Schema) -> Iterator[tuple[str, int]]:
    """The plain columns by their places in a footer, which tells of what is inside the others one by one."""
    at = 0
    for item in schema:
        if not pa.types.is_nested(item.type):
            yield item.name, at
        at += _width(item.type)


def _width(kind: pa.DataType) -> int:
    if not pa.types.is_nested(kind):
        return 1
    return sum(_width(kind.field(number).type) for number in range(kind.num_fields))


def _of_groups(file: pq.ParquetFile, name: str, leaf: int) -> Iterator[tuple[Any, Any]]:
    for number in range(file.metadata.num_row_groups):
        column = file.metadata.row_group(number).column(leaf)
        told = column.statistics
        if told is not None and told.has_min_max:
            yield from _ends(told)
        elif told is None or told.null_count < column.num_values:  # too long for a footer
            low, high = pc.min_max(file.read_row_group(number, [name])[name]).values()
            if low.is_valid and low.as_py() == low.as_py():
                yield low.as_py(), high.as_py()


def _ends(told: pq.Statistics) -> Iterator[tuple[Any, Any]]:
    """Yield nothing for times that Python cannot hold: it knows the years 1 to 9999."""
    try:
        yield told.min, told.max
    except (OverflowError, ValueError):
        return
