"""The nouns that a FakeGrid's jobs become."""

from dataclasses import replace

from gridmill.model.amounts import GIB, Amounts
from gridmill.model.job import Job
from gridmill.model.pipeline import Pipeline
from gridmill.model.resource import Sizing, Use
from gridmill.model.run import Attempt, JobRun, Run
from gridmill.model.state import DONE_JOBS, AttemptState, Cause, JobState
from gridmill.model.view import JobView

SIZE = Sizing(amounts=Amounts(cpus=1.0, memory_bytes=GIB), why=("1 GiB: nothing measured yet",))


def job_run(run: Run, job: Job, order: int) -> JobRun:
    """A job before anything happened."""
    return JobRun(
        id=f"{run.id}/{job.name}",
        run_id=run.id,
        pipeline=run.pipeline,
        job=job,
        order=order,
        state=JobState.BLOCKED if job.all_needs else JobState.WAITING,
        resource=job.resource or f"default-{job.kind}",
        needs=tuple(f"{run.id}/{name}" for name in job.all_needs),
        sizing=SIZE,
    )


def reset(view: JobView) -> JobView:
    """A job of a run that is resumed."""
    if view.job.state in DONE_JOBS:
        return view
    return replace(view, job=replace(view.job, state=JobState.WAITING, message=""), why="", progress={})


def ended(attempt: Attempt, state: JobState, message: str, now: float) -> Attempt:
    """An attempt at its end."""
    return replace(
        attempt,
        state=AttemptState(state),
        ended=now,
        message=message,
        cause={JobState.FAILED: Cause.EXIT, JobState.STOPPED: Cause.STOPPED}.get(state),
        exit_code=3 if state == JobState.FAILED else None,
        use=Use(wall_seconds=2.0, cpu_seconds=1.5, peak_memory_bytes=GIB // 4),
    )


def with_needs(pipeline: Pipeline, only: tuple[str, ...]) -> set[str]:
    """The jobs named, and what they need."""
    wanted, left = set[str](), list(only)
    while left:
        name = left.pop()
        if name not in wanted:
            wanted.add(name)
            left.extend(pipeline.job(name).all_needs)
    return wanted
