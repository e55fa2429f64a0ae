"""This module predicts which jobs of a pipeline a run would restore and which jobs it would execute, with
the reasons.

Before Gridmill treats a job as unchanged, it checks the files of the job's version in the background.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial

from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Transaction
from gridmill.control.state import BackgroundReads, CodeFiles, PendingReads, Timeline
from gridmill.control.steps.inputs import inputs_of
from gridmill.control.steps.provenance import provenance_of, restorable, why_executes, why_restored
from gridmill.control.steps.result_names import settle_names
from gridmill.control.steps.service_jobs import service_job_reason
from gridmill.control.steps.source_listing import NOTHING, SourceListing
from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.graph import order
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.provenance import FIRST
from gridmill.domain.run import JobRun, Run
from gridmill.domain.service_job import spec_of
from gridmill.domain.states import JobState, RunState
from gridmill.domain.version_manifest import problem_text
from gridmill.errors import GridmillError, StorageError, explained
from gridmill.ports.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseDecision:
    """The prediction for one job: the version that would be restored (None if the job would execute), the
    reason, and the problem that would make the job fail, as far as it can be seen in the files. `serves` is
    the version that a job of a service would request; None if it is unknown."""

    version: Artifact | None = None
    reason: str = ""
    problem: str = ""
    serves: Artifact | None = None


def unchanged_jobs(
    catalog: Catalog,
    code: CodeFiles,
    timeline: Timeline,
    pipeline: Pipeline,
    listings: Mapping[str, SourceListing],
    broken: frozenset[str] = frozenset(),
    *,
    scheduled: bool = False,
) -> Mapping[str, Artifact]:
    """Return the jobs that would not execute, as far as this is known before the run, and the versions that
    would be restored. `listings` has the files of the sources of these jobs. `broken` has the versions that
    have lost files. `scheduled` is true for a run that a schedule starts."""
    decisions = decide_reuse(catalog, code, timeline, pipeline, listings, broken, scheduled=scheduled)
    return {name: one.version for name, one in decisions.items() if one.version is not None}


def decide_reuse(
    catalog: Catalog,
    code: CodeFiles,
    timeline: Timeline,
    pipeline: Pipeline,
    listings: Mapping[str, SourceListing],
    broken: frozenset[str] = frozenset(),
    *,
    scheduled: bool = False,
) -> Mapping[str, ReuseDecision]:
    """Return the prediction for each job; see `unchanged_jobs`."""
    transaction = catalog.ledger.begin(timeline.now())
    run = _run_of(catalog, pipeline, scheduled=scheduled)
    transaction.nouns[(Run, run.id)] = run
    decisions: dict[str, ReuseDecision] = {}
    jobs = {job.name: job for job in pipeline.jobs}
    for name in order(pipeline):
        executing = [need for need in jobs[name].all_needs if decisions[need].version is None]
        job_run = _job_run(run, jobs[name])
        if executing:
            decisions[name] = ReuseDecision(reason=_behind(catalog, run, job_run, executing))
            continue
        one = _decide_reuse(catalog, code, transaction, run, job_run, listings.get(name, NOTHING), broken)
        if one.version is not None:
            transaction.nouns[(JobRun, job_run.id)] = replace(job_run, artifacts=(one.version.id,))
        decisions[name] = one
    return decisions


def _run_of(catalog: Catalog, pipeline: Pipeline, *, scheduled: bool) -> Run:
    return Run(
        id=pipeline.name,
        pipeline=pipeline.name,
        order=0,
        state=RunState.ACTIVE,
        created=0.0,
        folder=pipeline.folder,
        bundle=pipeline.bundle,
        due=0.0 if scheduled else None,
        settled=settle_names(catalog, pipeline.jobs),
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


def _decide_reuse(
    catalog: Catalog,
    code: CodeFiles,
    transaction: Transaction,
    run: Run,
    job_run: JobRun,
    listed: SourceListing,
    broken: frozenset[str],
) -> ReuseDecision:
    try:
        inputs = inputs_of(catalog, transaction, job_run)
        now = provenance_of(code, run, job_run, inputs, listed.files_or_raise())
    except GridmillError as error:
        return ReuseDecision(problem=explained(error))
    if job_run.job.starts_service:
        model = spec_of(job_run.job).model
        serves = next((one.artifact for one in inputs if one.name == model), None)
        return ReuseDecision(reason=service_job_reason(catalog, job_run.job), serves=serves)
    ruled = job_run.job.why_executed(scheduled=run.scheduled)
    same = restorable(catalog, job_run, now) if not ruled else None
    if same is not None and same.id not in broken:
        return ReuseDecision(version=same, reason=why_restored(same))
    lost = f"files of {same.id} are missing or damaged" if same is not None else ""
    return ReuseDecision(reason=why_executes(catalog, code, run, job_run, now, broken=lost))


def _behind(catalog: Catalog, run: Run, job_run: JobRun, executing: list[str]) -> str:
    """Return the reason why a job executes if some of its inputs are made earlier in the same run."""
    if job_run.job.starts_service:
        return service_job_reason(catalog, job_run.job)
    ruled = job_run.job.why_executed(scheduled=run.scheduled)
    if ruled or catalog.newest_artifact(job_run.name) is None:
        return ruled or FIRST
    names = ", ".join(f"`{name}`" for name in executing)
    return f"{names} execute{'s' * (len(executing) == 1)} before it"


def find_broken(
    catalog: Catalog,
    storage: Storage,
    code: CodeFiles,
    timeline: Timeline,
    pipeline: Pipeline,
    listings: Mapping[str, SourceListing],
    lock: AbstractContextManager[object],
) -> frozenset[str]:
    """Return the versions that would be restored but cannot be restored because files are missing. The files
    are read without the node's lock."""
    whole, broken = set[str](), set[str]()
    while True:
        with lock:
            standing = unchanged_jobs(catalog, code, timeline, pipeline, listings, frozenset(broken))
        new = [one for one in standing.values() if one.id not in whole]
        if not new:
            return frozenset(broken)
        for one in new:
            (broken if _is_broken(storage, one) else whole).add(one.id)


def _is_broken(storage: Storage, version: Artifact) -> bool:
    try:
        return bool(storage.problems(version))
    except StorageError:
        return True


def why_broken(
    reads: BackgroundReads,
    versions: Iterable[Artifact],
    asker: str,
    *,
    then: Callable[[], None] = lambda: None,
) -> str | None:
    """Return the problem with the files of the first version that has a problem. The result is empty if no
    version has a problem. The result is None while the files are being checked in the background. After the
    check, `then` is called, and the next tick gets the result. The result of a check is returned only once,
    to the `asker` of the check."""
    stored = tuple(one for one in versions if one.output.uri)
    if not stored:
        return ""
    key = f"{', '.join(one.id for one in stored)} for {asker}"
    if key not in reads.pending.files:
        look = partial(_look, reads.storage, stored)
        reads.runner.submit(f"files of {key}", look, partial(_keep, reads.pending, key, then))
    future = reads.pending.files.pop(key, None)
    return future.result() if future is not None else None


def _look(storage: Storage, versions: Iterable[Artifact]) -> str:
    for version in versions:
        try:
            troubles = storage.problems(version)
        except StorageError as error:
            return f"runs again: {error}"
        if troubles:
            return f"runs again: the files of {version.id} changed: {problem_text(troubles)}"
    return ""


def _keep(pending: PendingReads, key: str, then: Callable[[], None], future: "Future[str]") -> None:
    pending.files[key] = future
    then()
