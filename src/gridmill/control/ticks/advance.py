"""This module has the tick that advances runs: it finds jobs that can run, jobs that do not have to run, and
runs that have ended."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from gridmill.control.background import completed
from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import (
    CANDIDATES_PER_TICK,
    BackgroundReads,
    CodeFiles,
    Control,
    Endings,
    JobMoves,
)
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
from gridmill.domain.amounts import Amounts
from gridmill.domain.artifact import Artifact, Input
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.job import Job, JobSize
from gridmill.domain.provenance import Provenance
from gridmill.domain.resource import Resource, ResourceChoice, Sizing
from gridmill.domain.run import JobRun, Run
from gridmill.domain.states import DONE_JOBS, FINISHED_JOBS, FINISHED_RUNS, JobState, RunState
from gridmill.errors import GridmillError, PipelineError, StorageError, explained
from gridmill.scheduler.alternatives import CachedForecasts
from gridmill.scheduler.feasibility import asked_of
from gridmill.scheduler.history import MeasurementHistory
from gridmill.scheduler.missing_columns import empty_tables
from gridmill.scheduler.needs import may_go_on, why_skipped
from gridmill.scheduler.outcomes import run_state
from gridmill.scheduler.sizing import size_job


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The parts of the control node's state that advance a run, and the expected wait at each resource."""

    endings: Endings
    reads: BackgroundReads
    code: CodeFiles
    moves: JobMoves
    joining: CachedForecasts

    @property
    def ledger(self) -> Ledger:
        return self.endings.ledger


def advance(control: Control) -> None:
    """Check the jobs that may be able to run. When a job has ended, also check the jobs that need it."""
    moves = control.job_moves
    parts = _Parts(
        endings=control.endings,
        reads=control.reads,
        code=control.code,
        moves=moves,
        joining=joining_now(moves),
    )
    transaction = control.ledger.begin(control.timeline.now())
    touched: set[str] = set()
    for run, job_run in _read_candidates(parts, transaction):
        touched.add(run.id)
        after = job_run
        if job_run.state == JobState.BLOCKED and run.state == RunState.ACTIVE:
            after = _unblocked(parts, transaction, run, job_run)
        elif job_run.parts and job_run.state == JobState.RUNNING and job_run.attempt_id is None:
            after = gather(parts.endings, transaction, run, job_run)
        if after is not job_run:
            transaction.put(after)
            if after.state in FINISHED_JOBS:
                _follow_up(parts.endings, transaction, after)
    for run_id in touched:
        _end_run(control.ledger, transaction, run_id)
    control.ledger.stage(transaction)


def _read_candidates(parts: _Parts, transaction: Transaction) -> Iterator[tuple[Run, JobRun]]:
    """Yield the jobs that may be able to run, with their runs. Each job is read when it is its turn, so that
    its record has the changes of the jobs before it. For a part of a job, the whole job is yielded."""
    candidates = [*parts.endings.candidates.take(CANDIDATES_PER_TICK)]
    jobs = (transaction.get(JobRun, job_run_id) for job_run_id in candidates)
    parts.endings.catalog.look_up_names(
        [job.name for job in jobs if job is not None and job.state is JobState.BLOCKED]
    )
    for job_run_id in candidates:
        job_run = transaction.get(JobRun, job_run_id)
        if job_run is not None and job_run.part is not None:
            job_run = transaction.get(JobRun, job_run.part.of)
        run = transaction.get(Run, job_run.run_id) if job_run else None
        if job_run is None or run is None:
            parts.reads.pending.listings.pop(job_run_id, None)
        else:
            yield run, job_run


def _unblocked(parts: _Parts, transaction: Transaction, run: Run, job_run: JobRun) -> JobRun:
    """Return the job after the jobs that it needs have ended. While the job waits for other jobs or for the
    list of its source's files, it is returned unchanged, and is checked again later."""
    needs = [need for name in job_run.needs if (need := transaction.get(JobRun, name)) is not None]
    why = why_skipped(job_run, needs, partial(transaction.get, JobRun))
    if why is None:
        return job_run
    if why:
        return replace(job_run, state=JobState.SKIPPED, message=why, ended=transaction.now)
    again = partial(parts.endings.candidates.add, run.id, [job_run.id])
    try:
        listings = listed(parts.reads, job_run.id, [job_run.job], run.folder, then=again)
        if listings is None:
            return job_run
        source = listings.get(job_run.job.name, NOTHING)
        after = _ready(parts, transaction, run, job_run, source, again)
        if after is job_run and listings:
            # keep the listing, so that the source is not listed twice
            parts.reads.pending.listings[job_run.id] = completed(lambda: listings)
        return after
    except GridmillError:
        raise
    except Exception as error:  # noqa: BLE001  a retry would fail again and block every run
        message = explained(defect(parts.endings.problems, job_run.id, error))
        return _failed(job_run, transaction.now, message)


def _follow_up(endings: Endings, transaction: Transaction, ended: JobRun) -> None:
    if ended.state in DONE_JOBS:
        note_latest(endings.ledger, endings.storage, endings.problems, transaction, ended)
    dependents = may_go_on(endings.ledger.snapshot, ended.id)
    look = partial(endings.candidates.add, ended.run_id, dependents)
    transaction.then(look)  # after the commit, because the results of the ended job cannot be read before


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContent:
    """The inputs of a job whose needed jobs have ended, its size, and what its result is made from."""

    inputs: tuple[Input, ...]
    size: JobSize
    made_from: Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class ReusableVersion:
    """The version that was made from the same content as the job, or None. `may_replace` is true if this
    version may replace an execution. `broken` is the problem with its files: empty without a problem, and
    None while the files are being checked."""

    version: Artifact | None
    may_replace: bool
    broken: str | None = ""


def _ready(
    parts: _Parts,
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
        inputs = inputs_of(parts.endings.catalog, transaction, job_run)
        empty = empty_tables(job_run.job, inputs) if run.due is not None else ()
        if empty:
            return replace(job_run, state=JobState.SKIPPED, message=_no_rows(empty), ended=now)
        content = _read_content(parts.code, run, job_run, inputs, source)
    except StorageError:  # the store failed, not the job: the next tick tries again
        raise
    except GridmillError as error:
        return _failed(job_run, now, explained(error))
    reusable = _read_reusable(parts, run, job_run, content.made_from, again)
    if reusable.broken is None:
        return job_run
    job_run = replace(job_run, external=_external(job_run, inputs), size=content.size)
    restored = decide_restored(reusable)
    if restored is not None:
        return _unchanged(job_run, restored, content.made_from.fingerprint, now, source.waiting)
    return _execute(parts, transaction, run, job_run, content, reusable)


def _read_content(
    code: CodeFiles, run: Run, job_run: JobRun, inputs: tuple[Input, ...], source: SourceListing
) -> JobContent:
    """Return the content of a job. Raises the errors of its source, of its code and of its declaration."""
    return JobContent(
        inputs=inputs,
        made_from=provenance_of(code, run, job_run, inputs, source.files_or_raise()),
        size=size_of(job_run.job, inputs, source.size_bytes),
    )


def _read_reusable(
    parts: _Parts, run: Run, job_run: JobRun, made_from: Provenance, again: Callable[[], None]
) -> ReusableVersion:
    may_replace = not job_run.force and not job_run.job.why_executed(scheduled=run.scheduled)
    if not may_replace and not leaves_checkpoints(job_run.job):
        return ReusableVersion(version=None, may_replace=False)
    version = restorable(parts.endings.catalog, job_run, made_from)
    if version is None or not may_replace:
        return ReusableVersion(version=version, may_replace=may_replace)
    broken = why_broken(parts.reads, (version,), job_run.id, then=again)
    return ReusableVersion(version=version, may_replace=True, broken=broken)


def decide_restored(reusable: ReusableVersion) -> Artifact | None:
    """Decide which version is restored. The result is None if the job executes."""
    return reusable.version if reusable.may_replace and reusable.broken == "" else None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlace:
    """The name of a job's resource, its record (None if it was removed), the largest amounts that one pod
    can get at its site, the number of nodes of the site, the measurements of earlier attempts, and the
    reason for the resource if the job may use several resources."""

    name: str
    resource: Resource | None
    largest: Amounts
    nodes: int
    history: MeasurementHistory
    choice: ResourceChoice | None = None


def _execute(
    parts: _Parts,
    transaction: Transaction,
    run: Run,
    job_run: JobRun,
    content: JobContent,
    reusable: ReusableVersion,
) -> JobRun:
    """Return the WAITING job with its resource and size, divided into parts if this is useful. The job is
    FAILED if its resource was removed."""
    catalog, made_from, now = parts.endings.catalog, content.made_from, transaction.now
    broken = reusable.broken or ""
    note_provenance(catalog, transaction, made_from, code_of(parts.code, run, job_run.job))
    job_run = replace(
        job_run,
        reason=why_executes(catalog, parts.code, run, job_run, made_from, broken=broken),
        checkpoints=checkpoints_of(run, job_run, made_from.fingerprint, reusable.version),
        message=broken or job_run.message,
    )
    try:
        place = _read_place(parts, job_run, content)
    except PipelineError as error:
        return _failed(job_run, now, explained(error))
    if job_run.job.resources:
        parts.moves.choices.choosing.add(job_run.id)
    sizing = decide_size(job_run, content.size, place)
    if sizing is None:
        return _failed(job_run, now, f"the resource {place.name!r} of the job was removed")
    waiting = replace(
        job_run,
        state=JobState.WAITING,
        resource=place.name,
        fingerprint=made_from.fingerprint,
        sizing=sizing,
        ready=now,
    )
    return cut(parts.ledger, transaction, waiting) if decide_may_be_cut(waiting.job) else waiting


def _read_place(parts: _Parts, job_run: JobRun, content: JobContent) -> JobPlace:
    """Return the place of a job. Raises PipelineError if a resource that the job may use was removed."""
    name, choice, snapshot = job_run.resource, None, parts.ledger.snapshot
    if job_run.job.resources:
        chosen, choice = chosen_resource(parts.moves, parts.joining, job_run, content.inputs, content.size)
        name = chosen.name
    resource = snapshot.resource_of(name, job_run.job.kind)
    site = snapshot.sites.get(resource.site) if resource is not None else None
    largest = Amounts()
    if resource is not None:
        largest = asked_of(snapshot, resource, snapshot.largest_pod(resource.site))
    return JobPlace(
        name=name,
        resource=resource,
        largest=largest,
        nodes=len(site.nodes) if site is not None else 1,
        history=snapshot.history,
        choice=choice,
    )


def decide_size(job_run: JobRun, size: JobSize, place: JobPlace) -> Sizing | None:
    """Decide the size of a job at its place. The result is None if its resource was removed."""
    if place.resource is None:
        return None
    sizing = size_job(
        job_run.job,
        size,
        place.history,
        pipeline=job_run.pipeline,
        resource=place.resource,
        largest=place.largest,
        nodes=place.nodes,
    )
    return with_choice(sizing, place.choice)


def decide_may_be_cut(job: Job) -> bool:
    """Decide whether a job may be divided into parts. A command without `each` and a training are never
    divided."""
    return job.each is not None or (job.command is None and job.training is None)


def _end_run(ledger: Ledger, transaction: Transaction, run_id: str) -> None:
    """End a run if all its jobs have ended."""
    run = transaction.get(Run, run_id)
    if run is None or run.state in FINISHED_RUNS:
        return
    snapshot = ledger.snapshot
    if any(_is_open(transaction, key) for key in snapshot.unfinished_of(run_id)):
        return
    job_runs = [transaction.get(JobRun, job.id) or job for job in snapshot.job_runs_of(run_id)]
    transaction.put(decide_end(run, job_runs, transaction.now))


def decide_end(run: Run, job_runs: Sequence[JobRun], now: float) -> Run:
    """Decide how a run ends whose jobs have ended. Parts of jobs do not count. A run that has lost records
    fails."""
    whole = [job_run for job_run in job_runs if job_run.part is None]
    state, message = run_state(run, whole) if not run.damage else (RunState.FAILED, run.damage)
    return replace(run, state=state, message=message, ended=now)


def _is_open(transaction: Transaction, job_run_id: str) -> bool:
    job_run = transaction.get(JobRun, job_run_id)
    return job_run is not None and job_run.state not in FINISHED_JOBS
