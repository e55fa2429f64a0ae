"""This module models how the time of a job grows with its data, for each kind of job that is measured.

If a job was measured with other data, its expected time is the measured time, scaled by the model: a
constant start time, plus seconds for each million cells or for each megabyte of a sink's sources. The
numbers in the model are CPU seconds that `bench/growth.py` measured. Only the ratios of these numbers are
used, so the model applies to faster and slower machines too. The growth of a program is not known, so the
model treats half of its time as constant.
"""

from gridmill.domain.footprint import cells_of
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import JobSize

_MILLION = 1_000_000
_UNKNOWN_START = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """The seconds that a job needs to start, the seconds per million cells, and the seconds per megabyte of
    sources (0: the model uses the cells)."""

    start_seconds: float
    cells_seconds: float
    megabyte_seconds: float = 0.0


_SINK = Duration(start_seconds=0.3, cells_seconds=0.1, megabyte_seconds=0.0135)
_DATASET = Duration(start_seconds=0.25, cells_seconds=0.13)
_LINEAR = Duration(start_seconds=0.14, cells_seconds=0.11)
DURATIONS = {
    "sink/csv": _SINK,
    "sink/parquet": _SINK,
    "sink/jsonl": Duration(start_seconds=0.3, cells_seconds=0.4, megabyte_seconds=0.03),
    "dataset/sql": _DATASET,
    "dataset/features": _DATASET,
    "training/linear": _LINEAR,
    "training/naive": _LINEAR,
    "training/gbdt": Duration(start_seconds=0.75, cells_seconds=2.2),
    "training/mlp": Duration(start_seconds=1.5, cells_seconds=2.1),
    "training/lstm": Duration(start_seconds=1.6, cells_seconds=12.0),
    "prediction": Duration(start_seconds=0.14, cells_seconds=0.1),
}


def time_ratio(subject: str, now: JobSize, then: JobSize) -> float:
    """Return the ratio of the job's time with the size `now` to its time with the size `then`; 1 if either
    size is unknown."""
    model = DURATIONS.get(subject)
    bytes_ = (now.input_bytes, then.input_bytes)
    if model is not None and model.megabyte_seconds and all(bytes_):
        return _ratio(model.start_seconds, model.megabyte_seconds, *bytes_)
    cells = (cells_of(now), cells_of(then))
    if cells[0] is not None and cells[1]:
        start, each = (model.start_seconds, model.cells_seconds) if model is not None else (None, 0.0)
        return _ratio(start, each, cells[0], cells[1])
    return _ratio(None, 0.0, *bytes_) if all(bytes_) else 1.0


def _ratio(start: float | None, each: float, now: int | None, then: int | None) -> float:
    now, then = now or 0, then or 1
    if start is None:
        return _UNKNOWN_START + (1 - _UNKNOWN_START) * now / then
    return (start + each * now / _MILLION) / (start + each * then / _MILLION)
