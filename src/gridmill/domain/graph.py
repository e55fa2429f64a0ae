"""This module computes the topological order of a pipeline's jobs, and the critical path of a run with the
slack of all other jobs."""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from gridmill.domain.job import Job
from gridmill.domain.naming import suggestion
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.run import CriticalPath, JobRun
from gridmill.domain.states import FINISHED_JOBS
from gridmill.errors import PipelineError

NAMED_WHERE_READ = (
    "Only commands name a result of another pipeline in `needs`. Other jobs name it in a field such as "
    "`dataset` or `models`."
)


def order(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the names of the jobs in an order in which each job follows the jobs that it needs, and which
    otherwise follows the order of the declaration.

    Raises PipelineError if a needed name is not a job, or if jobs form a cycle. The message names the jobs
    of the cycle (`a -> b -> a`).
    """
    places = {job.name: place for place, job in enumerate(pipeline.jobs)}
    needs = {job.name: _checked_needs(job, pipeline, places) for job in pipeline.jobs}
    users: dict[str, list[str]] = {name: [] for name in needs}
    for name, needed in needs.items():
        for need in needed:
            users[need].append(name)
    missing = {name: len(needed) for name, needed in needs.items()}
    ready = [places[name] for name, count in missing.items() if count == 0]
    heapify(ready)
    ordered: list[str] = []
    while ready:
        name = pipeline.jobs[heappop(ready)].name
        ordered.append(name)
        for user in users[name]:
            missing[user] -= 1
            if missing[user] == 0:
                heappush(ready, places[user])
    if len(ordered) < len(pipeline.jobs):
        raise _cycle_error(pipeline, needs, missing)
    return tuple(ordered)


def _checked_needs(job: Job, pipeline: Pipeline, names: Mapping[str, int]) -> tuple[str, ...]:
    needs = job.all_needs
    if job.misplaced_need:
        raise PipelineError(
            f"job {job.name!r} needs {job.misplaced_need!r}, a result of another pipeline",
            place=f"{pipeline.name}: jobs.{job.name}.needs",
            hint=NAMED_WHERE_READ,
        )
    for need in needs:
        if need not in names:
            raise PipelineError(
                f"job {job.name!r} needs {need!r}, which is not a job of this pipeline",
                place=f"{pipeline.name}: jobs.{job.name}",
                hint=suggestion(need, names, f"Jobs are {', '.join(sorted(names))}."),
            )
    return needs


def _cycle_error(
    pipeline: Pipeline, needs: dict[str, tuple[str, ...]], missing: dict[str, int]
) -> PipelineError:
    stuck = {name for name, count in missing.items() if count > 0}
    path = [next(job.name for job in pipeline.jobs if job.name in stuck)]
    while path.count(path[-1]) < 2:
        path.append(next(need for need in needs[path[-1]] if need in stuck))
    cycle = path[path.index(path[-1]) :]
    return PipelineError(
        f"the jobs depend on each other in a cycle: {' -> '.join(cycle)}",
        place=f"{pipeline.name}: jobs.{cycle[0]}",
        hint="Remove one of these dependencies.",
    )


def critical_path(job_runs: Sequence[JobRun], now: float) -> CriticalPath:
    """Return the critical path of the jobs of one run. The times of the jobs are their run times, without
    the wait for free resources."""
    by_id = {job_run.id: job_run for job_run in job_runs}
    needs = {key: [need for need in job.needs if need in by_id] for key, job in by_id.items()}
    seconds = {key: _seconds(job, now) for key, job in by_id.items()}
    taken = {key: duration or 0.0 for key, duration in seconds.items()}
    ordered = _in_order(needs)
    ends: dict[str, float] = {}
    for key in ordered:
        ends[key] = taken[key] + max((ends[need] for need in needs[key]), default=0.0)
    total = max(ends.values(), default=0.0)
    latest = dict.fromkeys(ordered, total)
    for key in reversed(ordered):
        for need in needs[key]:
            latest[need] = min(latest[need], latest[key] - taken[key])
    return CriticalPath(
        path=_path(ends, needs, total),
        seconds=taken,
        slack={key: max(0.0, latest[key] - ends[key]) for key in ordered},
        total_seconds=total,
        known=None not in seconds.values(),
    )


def _seconds(job_run: JobRun, now: float) -> float | None:
    """Return the time of the job. For a job that has ended, the result is the measured time. For a running
    job, it is its time so far or its expected time, whichever is larger. For any other job, it is the
    expected time."""
    if job_run.state in FINISHED_JOBS and (job_run.started is None or job_run.ended is None):
        return 0.0
    if job_run.ended is not None and job_run.started is not None:
        return max(0.0, job_run.ended - job_run.started)
    expected = job_run.sizing.expected_seconds
    if job_run.started is None:
        return expected
    return max(now - job_run.started, expected or 0.0)


def _in_order(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of the jobs in an order in which each job follows the jobs that it needs."""
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
    """Return the critical path: it ends with the job that ends last, and before each job comes the needed
    job that ended last."""
    last = next((key for key in reversed(ends) if ends[key] == total), None)
    path: list[str] = []
    while last is not None:
        path.append(last)
        last = max(needs[last], key=lambda key: ends[key], default=None)
    return tuple(reversed(path))
