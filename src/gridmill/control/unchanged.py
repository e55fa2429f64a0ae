"""What a run of a pipeline would not do again, told before it starts."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from gridmill.control.inputs import fingerprint_of, inputs_of, unchanged_artifact
from gridmill.control.listings import NOTHING, Listed
from gridmill.control.names import settle_names
from gridmill.control.state import Control
from gridmill.errors import GridmillError, StorageError
from gridmill.model.artifact import Artifact
from gridmill.model.pipeline import Pipeline
from gridmill.model.run import JobRun, Run
from gridmill.model.state import JobState, RunState
from gridmill.planning.graph import order


def unchanged_jobs(
    control: Control,
    pipeline: Pipeline,
    listings: Mapping[str, Listed],
    broken: frozenset[str] = frozenset(),
) -> Mapping[str, Artifact]:
    """Jobs that would not run again, as far as can be told before anything has run, and the versions that
    stand. `listings` is what their sources hold, `broken` the versions that have lost files."""
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
    unchanged: dict[str, Artifact] = {}
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
        if same is not None and same.id not in broken:
            transaction.nouns[(JobRun, job_run.id)] = replace(job_run, artifacts=(same.id,))
            unchanged[name] = same
    return unchanged


def find_broken(
    control: Control, pipeline: Pipeline, listings: Mapping[str, Listed], lock: AbstractContextManager[object]
) -> frozenset[str]:
    """The versions that would stand if they had not lost files. Reads them without the lock."""
    whole, broken = set[str](), set[str]()
    while True:
        with lock:
            standing = unchanged_jobs(control, pipeline, listings, frozenset(broken))
        new = [one for one in standing.values() if one.id not in whole]
        if not new:
            return frozenset(broken)
        for one in new:
            (broken if _is_broken(control, one) else whole).add(one.id)


def _is_broken(control: Control, version: Artifact) -> bool:
    try:
        return bool(control.storage.troubles(version))
    except StorageError:
        return True
