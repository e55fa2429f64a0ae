"""How long a job will take, by what was measured."""

from collections.abc import Callable
from statistics import median

from gridmill.model.job import JobSize
from gridmill.model.resource import Measurement
from gridmill.planning.footprint import cells_of
from gridmill.planning.history import History

ENOUGH = 3
"""Attempts of other jobs of the subject, sizes known, from which a time can be told."""
RECENT = 5
"""Newest attempts of the job itself that its time is told from."""


def expected_seconds(
    job: str,
    subject: str,
    size: JobSize,
    history: History,
    pace: Callable[[Measurement], float] | None = None,
) -> float | None:
    """Wall seconds of one attempt of `pipeline/job`: the median of its newest ones, scaled by its size and by
    `pace`: how much longer than that attempt it takes for other reasons (other workers).

    For a job never run, of other jobs of its subject with known sizes; None when there are too few.
    """
    same_job = _succeeded(history.of_job(job, subject))[-RECENT:]
    if same_job:
        return median(
            known.use.wall_seconds * _growth(size, known.size) * (pace(known) if pace else 1.0)
            for known in same_job
        )
    alike = [known for known in _succeeded(history.of_subject(subject)) if cells_of(known.size)]
    if cells_of(size) is None or len(alike) < ENOUGH:
        return None
    return median(known.use.wall_seconds * _growth(size, known.size) for known in alike)


def lasted(job: str, subject: str, size: JobSize, history: History) -> list[float]:
    """Wall seconds that attempts like it took, ascending: the job's own, scaled by its size, or of other jobs
    of its subject while it has none."""
    known = _succeeded(history.of_job(job, subject)) or _succeeded(history.of_subject(subject))
    return sorted(one.use.wall_seconds * _growth(size, one.size) for one in known)


def _succeeded(measured: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
    return tuple(known for known in measured if not known.memory_killed)


def _growth(size: JobSize, before: JobSize) -> float:
    """Times are not proportional for small data, where starting dominates: half of it is taken as fixed."""
    now, then = cells_of(size), cells_of(before)
    return 1.0 if now is None or not then else 0.5 + 0.5 * now / then
