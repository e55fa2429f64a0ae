"""This module has the tick that advances runs: it finds jobs that can run, jobs that do not have to run, and
runs that have ended."""

from collections.abc import Callable
from functools import partial

from gridmill.control.background import completed
from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import CANDIDATES_PER_TICK, Candidates, Control, Problems
from gridmill.control.steps.end_attempt import defect
from gridmill.control.steps.inputs import checkpoints_of, inputs_of, leaves_checkpoints, size_of
from gridmill.control.steps.latest import note_latest
from gridmill.control.steps.parts import cut, gather
from gridmill.control.steps.provenance import (
    code_of,
    note_provenance,
    provenance_of,
    restorable,
    why_executes,
    why_restored,
)
from gridmill.control.steps.resource_choice import chosen_resource, joining_now, with_choice
from gridmill.control.steps.reuse_forecast import why_broken
from gridmill.control.steps.source_listing import NOTHING, SourceListing, listed
from gridmill.domain.artifact import Artifact, Input
from gridmill.domain.frozen import replace
from gridmill.domain.run import JobRun, Run
from gridmill.domain.states import DONE_JOBS, FINISHED_JOBS, FINISHED_RUNS, JobState, RunState
from gridmill.errors import GridmillError, PipelineError, StorageError, explained
from gridmill.ports.storage import Storage
from gridmill.scheduler.alternatives import CachedForecasts
from gridmill.scheduler.feasibility import asked_of
from gridmill.scheduler.missing_columns import empty_tables
from gridmill.scheduler.needs import may_go_on, why_skipped
from gridmill.scheduler.outcomes import run_state
from gridmill.scheduler.sizing import size_job


def advance(control: Control) -> None:
    """Check the jobs that may be able to run. When a job has ended, also check the jobs that need it."""
    transaction = control.ledger.begin(control.timeline.now())
    joining = joining_now(control.job_moves)
    touched: set[str] = set()
    candidates = [*control.candidates.take(CANDIDATES_PER_TICK)]
    jobs = (transaction.get(JobRun, job_run_id) for job_run_id in candidates)
    control.catalog.look_up_names(
        [job.name for job in jobs if job is not None and job.state is JobState.BLOCKED]
    )
    for job_run_id in candidates:
        job_run = transaction.get(JobRun, job_run_id)
        if job_run is not None and job_run.part is not None:
            job_run = transaction.get(JobRun, job_run.part.of)
        run = transaction.get(Run, job_run.run_id) if job_run else None
        if job_run is None or run is None:
            control.pending_reads.listings.pop(job_run_id, None)
            continue
        touched.add(run.id)
        after = job_run
        if job_run.state == JobState.BLOCKED and run.state == RunState.ACTIVE:
            after = _advanced(control, joining, transaction, run, job_run)
        elif job_run.parts and job_run.state == JobState.RUNNING and job_run.attempt_id is None:
            after = gather(
                control.catalog,
                control.channels,
                control.storage,
                control.discarded,
                transaction,
                run,
                job_run,
            )
        if after is not job_run:
            transaction.put(after)
        if after is not job_run and after.state in FINISHED_JOBS:
            _follow_up(
                control.ledger, control.storage, control.problems, control.candidates, transaction, after
            )
    for run_id in touched:
        _advance_run(control.ledger, transaction, run_id)
    control.ledger.stage(transaction)


def _advanced(
    control: Control, joining: CachedForecasts, transaction: Transaction, run: Run, job_run: JobRun
) -> JobRun:
    """Return the job after the jobs that it needs have ended. While the job waits for other jobs or for the
    list of its source's files, it is returned unchanged, and is checked again later."""
    needs = [need for name in job_run.needs if (need := transaction.get(JobRun, name)) is not None]
    why = why_skipped(job_run, needs, partial(transaction.get, JobRun))
    if why is None:
        return job_run
    if why:
        return replace(job_run, state=JobState.SKIPPED, message=why, ended=transaction.now)
    again = partial(control.candidates.add, run.id, [job_run.id])
    try:
        listings = listed(
            control.reads,
            job_run.id,
            [job_run.job],
            run.folder,
            then=again,
        )
        if listings is None:
            return job_run
        source = listings.get(job_run.job.name, NOTHING)
        after = _ready(control, joining, transaction, run, job_run, source, again)
        if after is job_run and listings:
            # keep the listing, so that the source is not listed twice
            control.pending_reads.listings[job_run.id] = completed(lambda: listings)
        return after
    except GridmillError:
        raise
    except Exception as error:  # noqa: BLE001  a retry would fail again and block every run
        return _failed(job_run, transaction.now, explained(defect(control.problems, job_run.id, error)))


def _follow_up(
    ledger: Ledger,
    storage: Storage,
    problems: Problems,
    candidates: Candidates,
    transaction: Transaction,
    ended: JobRun,
) -> None:
    if ended.state in DONE_JOBS:
        note_latest(ledger, storage, problems, transaction, ended)
    dependents = may_go_on(ledger.snapshot, ended.id)
    look = partial(candidates.add, ended.run_id, dependents)
    transaction.then(look)  # after the commit, because the results of the ended job cannot be read before


def _ready(
    control: Control,
    joining: CachedForecasts,
    transaction: Transaction,
    run: Run,
    job_run: JobRun,
    source: SourceListing,
    again: Callable[[], None],
) -> JobRun:
    """Return the job after the jobs that it needs have ended. The new state is WAITING with fingerprint and
    size, or UNCHANGED, or FAILED if an input does not exist. In a scheduled run, the new state is SKIPPED if
    an input has no rows yet, because this is normal before the first data arrives. If a version could be
    restored and its files are still being checked, the job is returned unchanged, and the function `again`
    is called after the check."""
    now = transaction.now
    try:
        inputs = inputs_of(control.catalog, transaction, job_run)
        lacking = empty_tables(job_run.job, inputs) if run.due is not None else ()
        if lacking:
            return replace(job_run, state=JobState.SKIPPED, message=_no_rows(lacking), ended=now)
        made_from = provenance_of(control.code, run, job_run, inputs, source.files_or_raise())
        size = size_of(job_run.job, inputs, source.size_bytes)
    except StorageError:  # the store failed, not the job: the next tick tries again
        raise
    except GridmillError as error:
        return _failed(job_run, now, explained(error))
    fingerprint = made_from.fingerprint
    may_stand = not job_run.force and not job_run.job.why_executed(scheduled=run.scheduled)
    look = may_stand or leaves_checkpoints(job_run.job)
    same = restorable(control.catalog, job_run, made_from) if look else None
    broken = (
        why_broken(control.reads, (same,), job_run.id, then=again) if may_stand and same is not None else ""
    )
    if broken is None:
        return job_run
    job_run = replace(job_run, external=_external(job_run, inputs), size=size)
    if may_stand and same is not None and not broken:
        return _unchanged(job_run, same, fingerprint, now, source.waiting)
    note_provenance(control.catalog, transaction, made_from, code_of(control.code, run, job_run.job))
    reason = why_executes(control.catalog, control.code, run, job_run, made_from, broken=broken)
    job_run = replace(job_run, reason=reason, checkpoints=checkpoints_of(run, job_run, fingerprint, same))
    snapshot, choice = control.ledger.snapshot, None
    if job_run.job.resources:
        try:
            candidates, choice = chosen_resource(control.job_moves, joining, job_run, inputs, size)
        except PipelineError as error:
            return _failed(job_run, now, explained(error))
        job_run = replace(job_run, resource=candidates.name)
        control.choices.choosing.add(job_run.id)
    resource = snapshot.resource_of(job_run.resource, job_run.job.kind)
    if resource is None:
        return _failed(job_run, now, f"the resource {job_run.resource!r} of the job was removed")
    site = snapshot.sites.get(resource.site)
    sizing = size_job(
        job_run.job,
        size,
        snapshot.history,
        pipeline=job_run.pipeline,
        resource=resource,
        largest=asked_of(snapshot, resource, snapshot.largest_pod(resource.site)),
        nodes=len(site.nodes) if site else 1,
    )
    sizing = with_choice(sizing, choice)
    waiting = replace(job_run, state=JobState.WAITING, fingerprint=fingerprint, sizing=sizing, ready=now)
    waiting = replace(waiting, message=broken) if broken else waiting
    job = job_run.job
    if job.each is None and (job.command is not None or job.training is not None):
        return waiting  # jobs of these kinds are never divided into parts
    return cut(control.ledger, transaction, waiting)


def _unchanged(job_run: JobRun, same: Artifact, fingerprint: str, now: float, waiting: str) -> JobRun:
    return replace(
        job_run,
        state=JobState.UNCHANGED,
        fingerprint=fingerprint,
        artifacts=(same.id,),
        message=f"as {same.run_id} made it" + (f"; {waiting}" if waiting else ""),
        reason=why_restored(same),
        ready=now,
        ended=now,
    )


def _no_rows(tables: tuple[str, ...]) -> str:
    return f"no rows yet in {', '.join(f'`{name}`' for name in tables)}: the job runs when there are some"


def _failed(job_run: JobRun, now: float, message: str) -> JobRun:
    return replace(job_run, state=JobState.FAILED, message=message, ready=now, ended=now)


def _external(job_run: JobRun, inputs: tuple[Input, ...]) -> tuple[str, ...]:
    """Return the versions of other pipelines that the job reads. The versions are recorded so that every
    attempt of the job reads the same versions."""
    names = job_run.job.external_names
    return tuple(entry.artifact.id for entry in inputs if entry.name in names)


def _advance_run(ledger: Ledger, transaction: Transaction, run_id: str) -> None:
    run = transaction.get(Run, run_id)
    if run is None or run.state in FINISHED_RUNS:
        return
    snapshot = ledger.snapshot
    if any(_is_open(transaction, key) for key in snapshot.unfinished_of(run_id)):
        return
    job_runs = (transaction.get(JobRun, job.id) or job for job in snapshot.job_runs_of(run_id))
    jobs = [job for job in job_runs if job.part is None]
    state, message = run_state(run, jobs) if not run.damage else (RunState.FAILED, run.damage)
    transaction.put(replace(run, state=state, message=message, ended=transaction.now))


def _is_open(transaction: Transaction, job_run_id: str) -> bool:
    job_run = transaction.get(JobRun, job_run_id)
    return job_run is not None and job_run.state not in FINISHED_JOBS
