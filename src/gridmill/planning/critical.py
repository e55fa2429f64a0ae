"""Finding the critical path of a run, and the slack of the other jobs."""

from collections.abc import Mapping, Sequence

from gridmill.model.critical import Critical
from gridmill.model.run import JobRun
from gridmill.model.state import FINISHED_JOBS


def critical_path(job_runs: Sequence[JobRun], now: float) -> Critical:
    """Of the jobs of one run. Times are the jobs' own: waiting for room is not in them."""
    by_id = {job_run.id: job_run for job_run in job_runs}
    needs = {key: [need for need in job.needs if need in by_id] for key, job in by_id.items()}
    seconds = {key: _seconds(job, now) for key, job in by_id.items()}
    taken = {key: known or 0.0 for key, known in seconds.items()}
    ordered = _in_order(needs)
    ends: dict[str, float] = {}
    for key in ordered:
        ends[key] = taken[key] + max((ends[need] for need in needs[key]), default=0.0)
    total = max(ends.values(), default=0.0)
    latest = dict.fromkeys(ordered, total)
    for key in reversed(ordered):
        for need in needs[key]:
            latest[need] = min(latest[need], latest[key] - taken[key])
    return Critical(
        path=_path(ends, needs, total),
        seconds=taken,
        slack={key: max(0.0, latest[key] - ends[key]) for key in ordered},
        total_seconds=total,
        known=None not in seconds.values(),
    )


def _seconds(job_run: JobRun, now: float) -> float | None:
    """What it took; while it runs at least what it has taken; else what is expected."""
    if job_run.state in FINISHED_JOBS and (job_run.started is None or job_run.ended is None):
        return 0.0
    if job_run.ended is not None and job_run.started is not None:
        return max(0.0, job_run.ended - job_run.started)
    expected = job_run.sizing.expected_seconds
    if job_run.started is None:
        return expected
    return max(now - job_run.started, expected or 0.0)


def _in_order(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Each after its needs."""
    ordered: dict[str, None] = {}
    open_keys: list[str] = list(needs)[::-1]
    while open_keys:
        key = open_keys[-1]
        missing = [need for need in needs[key] if need not in ordered]
        if missing:
            open_keys.extend(missing)
        else:
            ordered[open_keys.pop()] = None
    return list(ordered)


def _path(ends: dict[str, float], needs: Mapping[str, Sequence[str]], total: float) -> tuple[str, ...]:
    """Back from the job that ends last, always to the need that ends last."""
    last = next((key for key in reversed(ends) if ends[key] == total), None)
    path: list[str] = []
    while last is not None:
        path.append(last)
        last = max(needs[last], key=lambda key: ends[key], default=None)
    return tuple(reversed(path))
