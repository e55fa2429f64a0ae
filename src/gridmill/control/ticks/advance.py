"""This module has the tick that advances runs: it finds jobs that can run, jobs that do not have to run, and
runs that have ended."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
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
    ServiceJobs,
)
from gridmill.control.steps.end_attempt import defect
from gridmill.control.steps.inputs import checkpoints_of, inputs_of, leaves_checkpoints, size_of
from gridmill.control.steps.job_terms import awaits_offers
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
from gridmill.domain.job import JobSize
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
class Skipped:
    """The reason why a job never runs."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmade:
    """The error because of which it is unknown what a job would read."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContent:
    """The inputs of a job whose needed jobs have ended, its size, and what its result is made from."""

    inputs: tuple[Input, ...]
    size: JobSize
    made_from: Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class StartsService:
    """The inputs of a job that starts or updates a service. Such a job has no attempt."""

    inputs: tuple[Input, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The version that replaces the execution of a job. `waiting` is a text about files of the source that
    may still change."""

    content: JobContent
    version: Artifact
    waiting: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlace:
    """The name of a job's resource, its record (None if it was removed), the largest amounts that one pod
    can get at its site, the number of nodes of the site, the measurements of earlier attempts, and the
    reason for the resource if the job may use several resources. If a resource that the job may use was
    removed, `problem` is the error."""

    name: str
    resource: Resource | None = None
    largest: Amounts = field(default_factory=Amounts)
    nodes: int = 1
    history: MeasurementHistory = field(default_factory=MeasurementHistory)
    choice: ResourceChoice | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """The facts about a job that executes: its content, its place, the reason, the folder of its
    checkpoints, and the problem with the files of a version that would have been restored."""

    content: JobContent
    place: JobPlace
    reason: str
    checkpoints: str = ""
    broken: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The parts of the control node's state that advance a run, and the expected wait at each resource."""

    endings: Endings
    reads: BackgroundReads
    code: CodeFiles
    moves: JobMoves
    joining: CachedForecasts
    service_jobs: ServiceJobs

    @property
    def ledger(self) -> Ledger:
        return self.endings.ledger


def advance(control: Control) -> None:
    """Check the jobs that may be able to run. When a job has ended, also check the jobs that need it. A job
    that still waits stays unchanged."""
    if not control.candidates:
        control.catalog.look_up_names(())  # what was found for the jobs of an earlier tick is outdated
        return
    endings, moves = control.endings, control.job_moves
    joining = joining_now(moves)
    parts = _Parts(
        endings=endings,
        reads=control.reads,
        code=control.code,
        moves=moves,
        joining=joining,
        service_jobs=control.service_jobs,
    )
    transaction = control.ledger.begin(control.timeline.now())
    touched: set[str] = set()
    for run, job_run in _read_candidates(parts, transaction):
        touched.add(run.id)
        after = job_run
        if job_run.state == JobState.BLOCKED and run.state == RunState.ACTIVE:
            try:
                facts = _read_facts(parts, transaction, run, job_run)
                if isinstance(facts, StartsService):
                    after = decide_start_of_service(job_run, facts, transaction.now)
                    parts.service_jobs.open.add(job_run.id)
                elif isinstance(facts, Executed):
                    _note_execution(parts, transaction, run, job_run, facts)
                    after = decide_execution(job_run, facts, transaction.now)
                    after = cut(parts.ledger, transaction, after) if decide_may_be_cut(after) else after
                elif facts is not None:
                    after = decide_unexecuted(job_run, facts, transaction.now)
            except GridmillError:
                raise
            except Exception as error:  # noqa: BLE001  a retry would fail again and block every run
                message = explained(defect(parts.endings.problems, job_run.id, error))
                after = _failed(job_run, transaction.now, message)
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


def _note_execution(
    parts: _Parts, transaction: Transaction, run: Run, job_run: JobRun, executed: Executed
) -> None:
    code = code_of(parts.code, run, job_run.job)
    note_provenance(parts.endings.catalog, transaction, executed.content.made_from, code)
    if job_run.job.resources and not executed.place.problem:
        parts.moves.choices.choosing.add(job_run.id)
    place = executed.place
    if job_run.job.has_terms and place.resource and awaits_offers(parts.ledger.snapshot, [place.resource]):
        parts.moves.choices.unchecked.add(job_run.id)


def _follow_up(endings: Endings, transaction: Transaction, ended: JobRun) -> None:
    if ended.state in DONE_JOBS:
        note_latest(endings.ledger, endings.storage, endings.problems, transaction, ended)
    dependents = may_go_on(endings.ledger.snapshot, ended.id)
    look = partial(endings.candidates.add, ended.run_id, dependents)
    transaction.then(look)  # after the commit, because the results of the ended job cannot be read before


def decide_unexecuted(job_run: JobRun, facts: Skipped | Unmade | Restored, now: float) -> JobRun:
    """Decide the record of a job that ends without an execution: SKIPPED, FAILED or UNCHANGED."""
    match facts:
        case Skipped():
            return replace(job_run, state=JobState.SKIPPED, message=facts.message, ended=now)
        case Unmade():
            return _failed(job_run, now, facts.message)
    version, content = facts.version, facts.content
    return replace(
        job_run,
        state=JobState.UNCHANGED,
        external=_external(job_run, content.inputs),
        size=content.size,
        fingerprint=content.made_from.fingerprint,
        artifacts=(version.id,),
        message=f"as {version.run_id} made it" + (f"; {facts.waiting}" if facts.waiting else ""),
        reason=why_restored(version),
        ready=now,
        ended=now,
    )


def decide_start_of_service(job_run: JobRun, facts: StartsService, now: float) -> JobRun:
    """Decide the record of a job that starts or updates a service: RUNNING, without an attempt. The tick of
    these jobs changes the service."""
    return replace(
        job_run,
        state=JobState.RUNNING,
        external=_external(job_run, facts.inputs),
        reason=job_run.job.why_executed(),
        ready=now,
        started=now,
    )


def _failed(job_run: JobRun, now: float, message: str) -> JobRun:
    return replace(job_run, state=JobState.FAILED, message=message, ready=now, ended=now)


def _external(job_run: JobRun, inputs: tuple[Input, ...]) -> tuple[str, ...]:
    """Return the versions of other pipelines that the job reads. The versions are recorded so that every
    attempt of the job reads the same versions."""
    names = job_run.job.external_names
    return tuple(entry.artifact.id for entry in inputs if entry.name in names)


def decide_execution(job_run: JobRun, executed: Executed, now: float) -> JobRun:
    """Decide the record of a job that executes: WAITING with fingerprint and size, or FAILED if its resource
    was removed."""
    content, place = executed.content, executed.place
    job_run = replace(
        job_run,
        external=_external(job_run, content.inputs),
        size=content.size,
        reason=executed.reason,
        checkpoints=executed.checkpoints,
        resource=place.name,
    )
    if place.problem or place.resource is None:
        return _failed(job_run, now, place.problem or f"the resource {place.name!r} of the job was removed")
    return replace(
        job_run,
        state=JobState.WAITING,
        fingerprint=content.made_from.fingerprint,
        sizing=_size_at(job_run, content.size, place, place.resource),
        message=executed.broken or job_run.message,
        ready=now,
    )


def _size_at(job_run: JobRun, size: JobSize, place: JobPlace, resource: Resource) -> Sizing:
    sizing = size_job(
        job_run.job,
        size,
        place.history,
        pipeline=job_run.pipeline,
        resource=resource,
        largest=place.largest,
        nodes=place.nodes,
    )
    return with_choice(sizing, place.choice)


def decide_may_be_cut(job_run: JobRun) -> bool:
    """Decide whether a job may be divided into parts. A command without `each`, a training and a
    service are never divided."""
    job = job_run.job
    is_whole = job.each is None and (job.command or job.training or job.service) is not None
    return job_run.state == JobState.WAITING and not is_whole


def _read_facts(
    parts: _Parts, transaction: Transaction, run: Run, job_run: JobRun
) -> Skipped | Unmade | Restored | StartsService | Executed | None:
    """Return the facts that decide how a blocked job goes on. The result is None while the job waits for
    other jobs, for the list of its source's files, or for the check of a version's files. The job is then
    checked again later."""
    needs = [need for name in job_run.needs if (need := transaction.get(JobRun, name)) is not None]
    why = why_skipped(job_run, needs, partial(transaction.get, JobRun))
    if why is None:
        return None
    if why:
        return Skipped(message=why)
    again = partial(parts.endings.candidates.add, run.id, [job_run.id])
    listings = listed(parts.reads, job_run.id, [job_run.job], run.folder, then=again)
    if listings is None:
        return None
    source = listings.get(job_run.job.name, NOTHING)
    facts = _read_ready(parts, transaction, run, job_run, source, again)
    if facts is None and listings:
        # keep the listing, so that the source is not listed twice
        parts.reads.pending.listings[job_run.id] = completed(lambda: listings)
    return facts


def _read_ready(
    parts: _Parts,
    transaction: Transaction,
    run: Run,
    job_run: JobRun,
    source: SourceListing,
    again: Callable[[], None],
) -> Skipped | Unmade | Restored | StartsService | Executed | None:
    """Return the facts about a job whose needed jobs have ended. In a scheduled run, a job is skipped if an
    input has no rows yet, because this is normal before the first data arrives. If a version could be
    restored and its files are still being checked, the result is None, and the function `again` is called
    after the check."""
    catalog = parts.endings.catalog
    try:
        inputs = inputs_of(catalog, transaction, job_run)
        empty = empty_tables(job_run.job, inputs) if run.due is not None else ()
        if empty:
            return Skipped(message=_no_rows(empty))
        if job_run.job.starts_service:
            return StartsService(inputs=inputs)
        made_from = provenance_of(parts.code, run, job_run, inputs, source.files_or_raise())
        size = size_of(job_run.job, inputs, source.size_bytes)
    except StorageError:  # the store failed, not the job: the next tick tries again
        raise
    except GridmillError as error:
        return Unmade(message=explained(error))
    content = JobContent(inputs=inputs, size=size, made_from=made_from)
    may_replace = decide_may_replace(job_run, scheduled=run.scheduled)
    is_searched = may_replace or leaves_checkpoints(job_run.job)
    version = restorable(catalog, job_run, made_from) if is_searched else None
    if version is None or not may_replace:
        return _read_execution(parts, run, job_run, content, version)
    broken = why_broken(parts.reads, (version,), job_run.id, then=again)
    if broken is None:
        return None
    if not broken:
        return Restored(content=content, version=version, waiting=source.waiting)
    return _read_execution(parts, run, job_run, content, version, broken)


def _no_rows(tables: tuple[str, ...]) -> str:
    return f"no rows yet in {', '.join(f'`{name}`' for name in tables)}: the job runs when there are some"


def decide_may_replace(job_run: JobRun, *, scheduled: bool) -> bool:
    """Decide whether an earlier version may replace the execution of a job. `scheduled` is true for a job of
    a run that a schedule started."""
    return not job_run.force and not job_run.job.why_executed(scheduled=scheduled)


def _read_execution(
    parts: _Parts,
    run: Run,
    job_run: JobRun,
    content: JobContent,
    version: Artifact | None,
    broken: str = "",
) -> Executed:
    catalog, made_from = parts.endings.catalog, content.made_from
    return Executed(
        content=content,
        reason=why_executes(catalog, parts.code, run, job_run, made_from, broken=broken),
        checkpoints=checkpoints_of(run, job_run, made_from.fingerprint, version),
        broken=broken,
        place=_read_place(parts, job_run, content),
    )


def _read_place(parts: _Parts, job_run: JobRun, content: JobContent) -> JobPlace:
    name, choice, snapshot = job_run.resource, None, parts.ledger.snapshot
    if job_run.job.resources or job_run.job.has_terms:
        try:
            chosen, choice = chosen_resource(
                parts.moves, parts.joining, job_run, content.inputs, content.size
            )
        except PipelineError as error:
            return JobPlace(name=name, problem=explained(error))
        name = chosen.name
    resource = snapshot.resource_of(name, job_run.job.kind)
    if resource is None:
        return JobPlace(name=name)
    site = snapshot.sites.get(resource.site)
    return JobPlace(
        name=name,
        resource=resource,
        largest=asked_of(snapshot, resource, snapshot.largest_pod(resource.site)),
        nodes=len(site.nodes) if site else 1,
        history=snapshot.history,
        choice=choice,
    )


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
