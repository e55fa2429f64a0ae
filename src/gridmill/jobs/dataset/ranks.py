"""Values of any type as numbers that can be compared: each one's place among the different values in
order."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.jobs.dataset.frames import NOWHERE, Ints

Rank: TypeAlias = Callable[[pa.Array], "Ranked"]


@dataclass(frozen=True, slots=True)
class Ranked:
    """The `places` of values among `values`, which differ and are in order; NOWHERE of a missing one."""

    places: Ints
    values: pa.Array


def rank(column: pa.Array, engine: duckdb.DuckDBPyConnection) -> Ranked:
    """The order is that of SQL: texts by their bytes in UTF-8, NaN last; 0.0 and -0.0 are the same."""
    if pa.types.is_nested(column.type) or isinstance(column.type, pa.BaseExtensionType):
        return _by_query(column, engine)
    if pa.types.is_dictionary(column.type):
        return Ranked(_numbers(column.indices), column.dictionary)  # an ENUM, whose order is its own
    if pa.types.is_floating(column.type):
        column = pc.add(column, pa.scalar(0.0, column.type))
    coded = column.dictionary_encode()
    order = pc.array_sort_indices(coded.dictionary).to_numpy()
    places = np.empty(len(order) + 1, np.int64)
    places[order], places[NOWHERE] = np.arange(len(order)), NOWHERE
    return Ranked(places[_numbers(coded.indices)], coded.dictionary.take(pa.array(order)))


def _numbers(indices: pa.Array) -> Ints:
    found: Ints = indices.cast(pa.int64()).fill_null(NOWHERE).to_numpy()
    return found


def _by_query(column: pa.Array, engine: duckdb.DuckDBPyConnection) -> Ranked:
    """What Arrow cannot compare."""
    engine.register("__ranked", pa.table({"v": column, "__at": pa.array(np.arange(len(column)))}))
    text = "SELECT __at, dense_rank() OVER (ORDER BY v) - 1 AS place FROM __ranked WHERE v IS NOT NULL"
    found = engine.sql(text).to_arrow_table()
    engine.unregister("__ranked")
    at, place = (found[name].to_numpy() for name in ("__at", "place"))
    places = np.full(len(column), NOWHERE, np.int64)
    places[at] = place
    _, firsts = np.unique(place, return_index=True)
    return Ranked(places, column.take(pa.array(at[firsts])))
