"""This module forecasts from measurements how long a job will take."""

from collections.abc import Callable, Sequence
from statistics import median

from gridmill.domain.duration import time_ratio
from gridmill.domain.footprint import cells_of
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
