"""This module forecasts from measurements how long a job will take.

If a job was measured with other data, its expected time is the measured time, scaled by a model of how the
time of its kind grows: a constant start time, plus seconds for each million cells or for each megabyte of a
sink's sources. The numbers in the model are CPU seconds that `bench/growth.py` measured. Only the ratios of
these numbers are used, so the model applies to faster and slower machines too. The growth of a program is not
known, so the model treats half of its time as constant.
"""

from collections.abc import Callable, Sequence
from statistics import median

from gridmill.domain.footprint import cells_of
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import JobSize
from gridmill.domain.resource import Measurement, Resource
from gridmill.scheduler.feasibility import gpus_of
from gridmill.scheduler.history import MeasurementHistory

ENOUGH = 3
"""A forecast from other jobs of the subject needs at least this number of attempts with known sizes."""
NEAR = 1.5
"""Run times that differ by at most this factor are treated as equal. Measurements with equal run times are
used before measurements that have to be scaled by a larger factor."""
RECENT = 5
"""The number of the newest attempts of the job itself that a forecast uses."""


def expected_seconds(
    job: str,
    subject: str,
    size: JobSize,
    history: MeasurementHistory,
    pace: Callable[[Measurement], float] | None = None,
    resource: Resource | None = None,
) -> float | None:
    """Return the expected wall-clock seconds of one attempt of `pipeline/job`: the median of its newest
    attempts, scaled by size and by `pace`. `pace` is the factor for other causes, for example a different
    number of workers.

    For a job that never ran, the function uses attempts of other jobs with the same subject, if the size of
    their data is known. The result is None if there are too few such attempts. If some of the attempts ran
    on this `resource`, or on a similar resource of its site, the function uses only these attempts.
    """
    same_job = _succeeded(history.of_job(job, subject))
    if same_job:
        return _median_seconds(_measured_at(same_job, resource) or same_job, size, pace)
    alike = _comparable(history, subject, size)
    measured_at_resource = _measured_at(alike, resource)
    alike = measured_at_resource if len(measured_at_resource) >= ENOUGH else alike
    return median(_scaled(one, size) for one in alike) if len(alike) >= ENOUGH else None


def seconds_at(
    job: str, subject: str, size: JobSize, history: MeasurementHistory, resource: Resource
) -> float | None:
    """Return the expected wall-clock seconds of an attempt on that resource, from earlier attempts on the
    same resource or on a similar resource of its site. The result is None if there are too few such
    attempts."""
    same_job = _measured_at(_succeeded(history.of_job(job, subject)), resource)
    if same_job:
        return _median_seconds(same_job, size, None)
    alike = _measured_at(_comparable(history, subject, size), resource)
    return median(_scaled(one, size) for one in alike) if len(alike) >= ENOUGH else None


def _median_seconds(
    same_job: Sequence[Measurement], size: JobSize, pace: Callable[[Measurement], float] | None
) -> float:
    alike = [one for one in same_job if 1 / NEAR <= time_ratio(one.subject, size, one.size) <= NEAR]
    return median(_scaled(one, size) * (pace(one) if pace else 1.0) for one in (alike or same_job)[-RECENT:])


def _comparable(history: MeasurementHistory, subject: str, size: JobSize) -> Sequence[Measurement]:
    succeeded = _succeeded(history.of_subject(subject)) if cells_of(size) is not None else ()
    return [one for one in succeeded if cells_of(one.size)]


def _measured_at(measured: Sequence[Measurement], resource: Resource | None) -> Sequence[Measurement]:
    """Return the measurements of this resource. If this resource has no measurements, the function returns
    measurements from other resources of the same site, with GPUs if this resource has GPUs, and otherwise
    without GPUs."""
    if resource is None:
        return ()
    own = [one for one in measured if one.resource == resource.name]
    at_site = (one for one in measured if one.site == resource.site)
    return own or [one for one in at_site if bool(one.given.gpus) == bool(gpus_of(resource))]


def _scaled(measurement: Measurement, size: JobSize) -> float:
    return measurement.use.wall_seconds * time_ratio(measurement.subject, size, measurement.size)


def lasted(job: str, subject: str, size: JobSize, history: MeasurementHistory) -> list[float]:
    """Return the wall-clock seconds of similar attempts, in ascending order and scaled by size: attempts of
    the job itself, or of other jobs of its subject if the job has no attempts."""
    succeeded = _succeeded(history.of_job(job, subject)) or _succeeded(history.of_subject(subject))
    return sorted(_scaled(one, size) for one in succeeded)


def _succeeded(measured: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
    return (
        tuple([measurement for measurement in measured if not measurement.memory_killed]) if measured else ()
    )


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
