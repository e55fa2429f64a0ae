"""Forecasts how long a job will take from measurements."""

from collections.abc import Callable, Sequence
from statistics import median

from gridmill.domain.duration import time_ratio
from gridmill.domain.footprint import cells_of
from gridmill.domain.job import JobSize
from gridmill.domain.resource import Measurement, Resource
from gridmill.scheduler.feasibility import gpus_of
from gridmill.scheduler.history import MeasurementHistory

ENOUGH = 3
"""Attempts of other jobs of the subject, with known sizes, that a forecast needs."""
NEAR = 1.5
"""What took at most so much more or less time is about the same; it goes before what has to be scaled by
more."""
RECENT = 5
"""The newest attempts of the job itself that a forecast uses."""


def expected_seconds(
    job: str,
    subject: str,
    size: JobSize,
    history: MeasurementHistory,
    pace: Callable[[Measurement], float] | None = None,
    resource: Resource | None = None,
) -> float | None:
    """Expected wall seconds of one attempt of `pipeline/job`: the median of its newest attempts, scaled
    by size and by `pace`, the factor for other causes (a different number of workers).

    For a job that never ran: from other jobs of its subject with known sizes; None if there are too few. If
    any ran on this `resource`, or on a similar one of its site, only these count.
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
    """Expected wall seconds on that resource, from attempts there or on a similar one of its site; None
    if there are too few."""
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
    """Those of the resource; else those of its site that had GPUs as it has, or had none either."""
    if resource is None:
        return ()
    own = [one for one in measured if one.resource == resource.name]
    at_site = (one for one in measured if one.site == resource.site)
    return own or [one for one in at_site if bool(one.given.gpus) == bool(gpus_of(resource))]


def _scaled(measurement: Measurement, size: JobSize) -> float:
    return measurement.use.wall_seconds * time_ratio(measurement.subject, size, measurement.size)


def lasted(job: str, subject: str, size: JobSize, history: MeasurementHistory) -> list[float]:
    """Wall seconds that attempts like it took, ascending: the job's own, scaled by its size, or of other jobs
    of its subject while it has none."""
    succeeded = _succeeded(history.of_job(job, subject)) or _succeeded(history.of_subject(subject))
    return sorted(_scaled(one, size) for one in succeeded)


def _succeeded(measured: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
    return (
        tuple([measurement for measurement in measured if not measurement.memory_killed]) if measured else ()
    )
