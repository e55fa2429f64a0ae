"""Beginning a run that a schedule asks for: it and the schedule's note of it go into one commit."""

from collections.abc import Mapping
from dataclasses import replace

from gridmill.control.altered import as_altered
from gridmill.control.begin import begin_run
from gridmill.control.ledger import Transaction
from gridmill.control.listings import Listed
from gridmill.control.state import Control
from gridmill.control.unchanged import unchanged_jobs
from gridmill.errors import PipelineError
from gridmill.model.pipeline import Pipeline
from gridmill.model.schedule import Schedule


def start_scheduled(
    control: Control,
    transaction: Transaction,
    schedule: Schedule,
    due: float,
    pipeline: Pipeline,
    listings: Mapping[str, Listed],
) -> Schedule:
    """Begin the run that is due, unless nothing in it would run. The schedule, having noted it."""
    if unchanged_jobs(control, pipeline, listings) >= {job.name for job in pipeline.jobs}:
        return replace(schedule, unchanged=schedule.unchanged + 1, message="there was nothing new")
    inner = transaction.within()
    run = begin_run(control, inner, pipeline, force=False, due=due)
    transaction.join(inner)
    return replace(schedule, last_run=run.id, runs=schedule.runs + 1, message="")


def scheduled_pipeline(control: Control, schedule: Schedule) -> Pipeline:
    """The kept declaration. Raises PipelineError."""
    record = control.ledger.store.get(Pipeline, schedule.name)
    if record is None or not isinstance(record.noun, Pipeline):
        raise PipelineError(
            f"pipeline {schedule.name!r} is not kept any more", hint="`gridmill apply -f FILE` keeps it."
        )
    return as_altered(control, record.noun)
