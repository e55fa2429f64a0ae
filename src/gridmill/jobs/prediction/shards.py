"""Cuts a split into shards. A shard consists of ranges of rows that any worker can read without reading the
other rows."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.domain.frozen import dataclass
from gridmill.errors import DataError, InputError
from gridmill.jobs.dataset_reader import Partitions
from gridmill.jobs.features import Integers, runs
from gridmill.jobs.model_files import ModelCard

GAP = 4096
"""If at most this number of unselected rows lie between two selected rows, the unselected rows are read too
and then dropped. If there are more unselected rows between two selected rows, a new range starts after the
unselected rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """The rows `start` to `stop` (exclusive) of a dataset. Of these rows, only the rows that belong to the
    split are predicted."""

    start: int
    stop: int


def selected_rows(parts: Partitions, split: str | None) -> Integers:
    """Return the numbers of the rows of a split in ascending order, or of all rows if `split` is None.
    Raises InputError for an unknown split, DataError if there are no rows."""
    if split is None:
        rows = np.arange(parts.rows)
    elif "split" not in parts.schema.names:
        raise InputError("the dataset has no splits", hint="Use `split: null` to predict all rows.")
    else:
        column = parts.read(["split"])["split"]
        rows = np.flatnonzero(of_split(column, split))
        if len(rows) == 0:
            names = ", ".join(str(value) for value in pc.unique(column).to_pylist())
            raise DataError(
                f"split {split!r} has no rows (splits with rows: {names})", place="prediction.split"
            )
    if len(rows) == 0:
        raise DataError("the dataset has no rows")
    return rows.astype(np.int64)


def of_split(column: pa.ChunkedArray, split: str | None) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return for each row whether it belongs to the split. If the split is None, every row belongs to it."""
    if split is None:
        return np.ones(len(column), bool)
    equal = pc.fill_null(pc.equal(column.cast(pa.string()), split), False)
    return np.asarray(equal.to_numpy(), bool)


def cut(rows: Integers, shards: int) -> list[list[RowRange]]:
    """Return the ranges of each shard, in order. All ranges of the shards together contain each row of
    `rows` exactly once."""
    return [spans_of(piece) for piece in pieces_of(rows, shards)]


def pieces_of(rows: Integers, shards: int, share: float = 1.0) -> list[Integers]:
    """Return the rows of each shard.

    If `share` is below 1, return only that fraction of each shard, from its beginning, at least one row. A
    probe sets `share` below 1, so that it measures only a sample of each shard.
    """
    pieces = np.array_split(rows, shards)
    return [piece[: max(1, round(len(piece) * share))] for piece in pieces]


def spans_of(rows: Integers) -> list[RowRange]:
    """Return the ranges that contain these rows."""
    ends = np.flatnonzero(np.diff(rows) > GAP) + 1
    return [RowRange(start=int(some[0]), stop=int(some[-1]) + 1) for some in np.split(rows, ends)]


def check_order(parts: Partitions, card: ModelCard) -> None:
    """Raise DataError if the rows of an entity are not adjacent or not sorted by time, because sequence
    models need this order."""
    if card.sequence is None or card.time is None:
        return
    table = parts.read(card.keys)
    starts = runs(table, card.entity)
    firsts = np.unique(starts)
    entities = {tuple(row.values()) for row in table.select(card.entity).take(firsts).to_pylist()}
    times = table[card.time].cast(pa.timestamp("us"), safe=False).to_numpy()
    back = (times[1:] < times[:-1]) & (starts[1:] == starts[:-1])
    torn = bool(card.entity) and len(firsts) != len(entities)
    if torn or back.any():
        raise DataError(
            "the rows of the dataset are not sorted by entity and time, which a sequence model requires",
            hint=f"Sort the dataset by {', '.join(card.keys)}.",
        )
