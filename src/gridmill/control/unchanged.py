"""What a run of a pipeline would not do again, told before it starts."""

from collections.abc import Mapping
from dataclasses import replace

from gridmill.control.inputs import fingerprint_of, inputs_of, unchanged_artifact
from gridmill.control.listings import NOTHING, Listed
from gridmill.control.names import settle_names
from gridmill.control.state import Control
from gridmill.errors import GridmillError
from gridmill.model.pipeline import Pipeline
from gridmill.model.run import JobRun, Run
from gridmill.model.state import JobState, RunState
from gridmill.planning.graph import order


def unchanged_jobs(control: Control, pipeline: Pipeline, listings: Mapping[str, Listed]) -> frozenset[str]:
    """Jobs that would not run again, as far as can be told before anything has run; `listings` is what their
    sources hold."""
    transaction = control.begin()
    run = Run(
        id=pipeline.name,
        pipeline=pipeline.name,
        order=0,
        state=RunState.ACTIVE,
        created=0.0,
        folder=pipeline.folder,
        bundle=pipeline.bundle,
        settled=settle_names(control, pipeline.jobs),
    )
    transaction.nouns[(Run, run.id)] = run
    unchanged: set[str] = set()
    jobs = {job.name: job for job in pipeline.jobs}
    for name in order(pipeline):
        job = jobs[name]
        if not job.may_be_unchanged or any(need not in unchanged for need in job.all_needs):
            continue
        needs = tuple(f"{run.id}/{need}" for need in job.all_needs)
        job_run = JobRun(
            id=f"{run.id}/{name}",
            run_id=run.id,
            pipeline=pipeline.name,
            job=job,
            order=0,
            state=JobState.BLOCKED,
            resource="",
            needs=needs,
        )
        try:
            inputs = inputs_of(control, transaction, job_run)
            wanted = fingerprint_of(run, job_run, inputs, listings.get(name, NOTHING).there())
        except GridmillError:
            continue
        same = unchanged_artifact(control, job_run, wanted)
        if same is not None:
            transaction.nouns[(JobRun, job_run.id)] = replace(job_run, artifacts=(same.id,))
            unchanged.add(name)
    return frozenset(unchanged)
