"""Beginning a run that a schedule asks for: it and the schedule's note of it go into one commit."""

from collections.abc import Mapping
from dataclasses import replace

from gridmill.control.altered import as_altered
from gridmill.control.begin import begin_run, chosen
from gridmill.control.chunking import with_values
from gridmill.control.ledger import Transaction
from gridmill.control.listings import Listed
from gridmill.control.state import Control
from gridmill.control.unchanged import unchanged_jobs
from gridmill.control.whole import why_broken
from gridmill.errors import PipelineError
from gridmill.model.artifact import Artifact
from gridmill.model.pipeline import Pipeline
from gridmill.model.run import Run
from gridmill.model.schedule import Schedule
from gridmill.model.state import FINISHED_JOBS
from gridmill.model.when import When
from gridmill.planning.due import due_times


def start_scheduled(
    control: Control,
    transaction: Transaction,
    schedule: Schedule,
    due: float,
    pipeline: Pipeline,
    listings: Mapping[str, Listed],
) -> Schedule | None:
    """Begin the run that is due, unless nothing in it would run. The schedule, having noted it; None while
    the files of versions that would stand are looked at."""
    standing = unchanged_jobs(control, pipeline, listings, scheduled=True)
    all_stand = standing.keys() >= {job.name for job in pipeline.jobs if job.when == When.SUCCESS}
    broken = why_broken(control, standing.values(), schedule.name) if all_stand else ""
    if broken is None:
        return None
    if all_stand and not broken:
        return replace(schedule, unchanged=schedule.unchanged + 1, message=_nothing_new(standing))
    inner = transaction.within()
    run = begin_run(control, inner, pipeline, force=False, only=schedule.only, due=due)
    transaction.join(inner)
    return replace(schedule, last_run=run.id, runs=schedule.runs + 1, message="")


_SHOWN = 3


def _nothing_new(standing: Mapping[str, Artifact]) -> str:
    """Why no run was started."""
    names = [f"`{name}` since {version.id}" for name, version in standing.items()]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"there was nothing new: no change of {', '.join(names[:_SHOWN])}{more}"


def active_runs(control: Control, schedule: Schedule) -> list[Run]:
    """Active runs of what the schedule runs: a job's where that job has not ended yet; a pipeline's where
    not just some of its jobs were asked for."""
    snapshot = control.ledger.snapshot
    runs = [run for run in snapshot.runs.values() if run.pipeline == schedule.pipeline]
    if not schedule.only:
        return [run for run in runs if not run.only]
    jobs = ((run, snapshot.job_runs.get(f"{run.id}/{schedule.only[0]}")) for run in runs)
    return [run for run, job in jobs if job is not None and job.state not in FINISHED_JOBS]


def scheduled_pipeline(control: Control, schedule: Schedule, due: float | None = None) -> Pipeline:
    """What is run of the kept declaration, at that due time. Raises PipelineError."""
    record = control.ledger.store.get(Pipeline, schedule.pipeline)
    if record is None or not isinstance(record.noun, Pipeline):
        raise PipelineError(
            f"pipeline {schedule.pipeline!r} is not kept any more", hint="`gridmill apply -f FILE` keeps it."
        )
    pipeline = record.noun
    if pipeline.awaits and due is not None:
        times = due_times(schedule.spec, schedule.since, due)
        pipeline = with_values(pipeline, {name: times[name] for name in pipeline.awaits})
    return chosen(as_altered(control, pipeline), schedule.only)
