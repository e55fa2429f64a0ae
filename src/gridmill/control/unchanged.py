"""What a run of a pipeline would restore and what it would execute, and why, before it starts."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from gridmill.control.inputs import inputs_of
from gridmill.control.ledger import Transaction
from gridmill.control.listings import NOTHING, Listed
from gridmill.control.names import settle_names
from gridmill.control.provenance import provenance_of, restorable, why_executes, why_restored
from gridmill.control.state import Control
from gridmill.errors import GridmillError, StorageError, explained
from gridmill.model.artifact import Artifact
from gridmill.model.job import Job
from gridmill.model.noun import dataclass
from gridmill.model.pipeline import Pipeline
from gridmill.model.provenance import FIRST
from gridmill.model.run import JobRun, Run
from gridmill.model.state import JobState, RunState
from gridmill.planning.graph import order


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """What would become of a job: the version that would be restored, or None; why; and what would make it
    fail, as far as its files tell."""

    version: Artifact | None = None
    reason: str = ""
    problem: str = ""


def unchanged_jobs(
    control: Control,
    pipeline: Pipeline,
    listings: Mapping[str, Listed],
    broken: frozenset[str] = frozenset(),
    *,
    scheduled: bool = False,
) -> Mapping[str, Artifact]:
    """Jobs that would not execute, as far as is known before anything has run, and the versions that would be
    restored. `listings` is what their sources hold, `broken` the versions that have lost files; `scheduled`:
    in a run that a schedule starts."""
    found = foresee(control, pipeline, listings, broken, scheduled=scheduled)
    return {name: one.version for name, one in found.items() if one.version is not None}


def foresee(
    control: Control,
    pipeline: Pipeline,
    listings: Mapping[str, Listed],
    broken: frozenset[str] = frozenset(),
    *,
    scheduled: bool = False,
) -> Mapping[str, Foreseen]:
    """What would become of each job; see `unchanged_jobs`."""
    transaction = control.begin()
    run = _run_of(control, pipeline, scheduled=scheduled)
    transaction.nouns[(Run, run.id)] = run
    found: dict[str, Foreseen] = {}
    jobs = {job.name: job for job in pipeline.jobs}
    for name in order(pipeline):
        executing = [need for need in jobs[name].all_needs if found[need].version is None]
        job_run = _job_run(run, jobs[name])
        if executing:
            found[name] = Foreseen(reason=_behind(control, run, job_run, executing))
            continue
        one = _foreseen(control, transaction, run, job_run, listings.get(name, NOTHING), broken)
        if one.version is not None:
            transaction.nouns[(JobRun, job_run.id)] = replace(job_run, artifacts=(one.version.id,))
        found[name] = one
    return found


def _run_of(control: Control, pipeline: Pipeline, *, scheduled: bool) -> Run:
    return Run(
        id=pipeline.name,
        pipeline=pipeline.name,
        order=0,
        state=RunState.ACTIVE,
        created=0.0,
        folder=pipeline.folder,
        bundle=pipeline.bundle,
        due=0.0 if scheduled else None,
        settled=settle_names(control, pipeline.jobs),
        data=pipeline.loads,
        file=pipeline.file,
    )


def _job_run(run: Run, job: Job) -> JobRun:
    return JobRun(
        id=f"{run.id}/{job.name}",
        run_id=run.id,
        pipeline=run.pipeline,
        job=job,
        order=0,
        state=JobState.BLOCKED,
        resource="",
        needs=tuple(f"{run.id}/{need}" for need in job.all_needs),
    )


def _foreseen(
    control: Control,
    transaction: Transaction,
    run: Run,
    job_run: JobRun,
    listed: Listed,
    broken: frozenset[str],
) -> Foreseen:
    try:
        inputs = inputs_of(control, transaction, job_run)
        now = provenance_of(control, run, job_run, inputs, listed.there())
    except GridmillError as error:
        return Foreseen(problem=explained(error))
    ruled = job_run.job.why_executed(scheduled=run.scheduled)
    same = restorable(control, job_run, now) if not ruled else None
    if same is not None and same.id not in broken:
        return Foreseen(version=same, reason=why_restored(same))
    lost = f"files of {same.id} are missing or damaged" if same is not None else ""
    return Foreseen(reason=why_executes(control, run, job_run, now, broken=lost))


def _behind(control: Control, run: Run, job_run: JobRun, executing: list[str]) -> str:
    """Why a job executes whose inputs are made before it."""
    ruled = job_run.job.why_executed(scheduled=run.scheduled)
    if ruled or control.newest_artifact(job_run.name) is None:
        return ruled or FIRST
    names = ", ".join(f"`{name}`" for name in executing)
    return f"{names} execute{'s' * (len(executing) == 1)} before it"


def find_broken(
    control: Control, pipeline: Pipeline, listings: Mapping[str, Listed], lock: AbstractContextManager[object]
) -> frozenset[str]:
    """The versions that would be restored if they had not lost files. Reads them without the lock."""
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
