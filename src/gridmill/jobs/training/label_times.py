"""The times of the rows of a dataset, and the times at which the labels of the rows become known."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.domain.frozen import dataclass
from gridmill.domain.training import TrainingSpec
from gridmill.errors import InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.dataset_reader import open_partitions
from gridmill.jobs.features import Integers
from gridmill.jobs.training.data import SortedFrame, row_order

NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTimes:
    """For each row of a frame, the number of the row in the dataset, the time of the row, and the time at
    which its label became known.

    The time of the row and the time of its label are in microseconds. If the rows of the dataset have no
    time, both times are 0.
    """

    number: Integers
    time: Integers
    known: Integers


def _keys(frame: SortedFrame, spec: TrainingSpec, context: JobContext) -> pa.Table:
    parts = open_partitions(context.below_root(context.input(spec.dataset).output.uri))
    time = [frame.subject.time] if frame.subject.time else []
    return parts.read([*frame.subject.entity, *time, "split"])


def read_moments(frame: SortedFrame, spec: TrainingSpec, context: JobContext, *, by_time: bool) -> LabelTimes:
    """Read the times of all rows of a dataset. `by_time` is true if the caller needs the times at which
    labels become known.

    Raises InputError if the times at which labels become known are unknown.
    """
    table = _keys(frame, spec, context)
    number, time = row_order(table, frame.subject), np.zeros(table.num_rows, np.int64)
    if frame.subject.time:
        column = table[frame.subject.time].cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        time = pc.fill_null(column, 0).to_numpy()[number]
    if not by_time:
        return LabelTimes(number=number, time=time, known=time)
    if not frame.subject.time:
        raise InputError(
            "folds by time need a dataset with a time, but this dataset has none",
            hint="Use `folds_by: random` or `folds_by: entity`.",
            place="training.folds_by",
        )
    available = _availability_times(frame, time, context.input(spec.dataset).output.details)
    return LabelTimes(number=number, time=time, known=available)


def _availability_times(frame: SortedFrame, time: Integers, details: Mapping[str, Any]) -> Integers:
    """Return the time at which the label of each row became known. A label becomes known after a fixed
    duration, or after a number of rows of the same entity."""
    after = details.get("label_after", {"seconds": details.get("ahead_seconds") or 0.0, "rows": 0})
    if after is None:
        raise InputError(
            "folds by time are not possible: the time at which the label (or its row) becomes known is "
            "an expression",
            hint="Use `folds_by: entity` or `folds_by: random`.",
            place="training.folds_by",
        )
    later = np.arange(len(time)) + int(after["rows"])
    inside = later < len(time)
    later = np.where(inside, later, 0)
    inside &= frame.starts[later] == frame.starts
    available = time[later] + round(float(after["seconds"]) * 1_000_000)
    return np.where(inside, available, NEVER)
