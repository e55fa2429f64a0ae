"""This module has the tick of the jobs that start or update a service: it changes the service, and ends the
job when the service answers."""

from concurrent.futures import Future
from functools import partial

from gridmill.control.ledger import Transaction
from gridmill.control.state import BackgroundReads, Endings, ServiceJobs
from gridmill.control.steps.inputs import inputs_of
from gridmill.control.steps.references import find_version
from gridmill.control.steps.reuse_forecast import why_broken
from gridmill.control.steps.service_features import define_features, feature_question
from gridmill.control.steps.services import is_ending, job_run_of
from gridmill.domain.amounts import show_seconds
from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.pipeline import place_message
from gridmill.domain.run import JobRun, Run
from gridmill.domain.service import ROUTE, Service, ServiceState, state_of
from gridmill.domain.service_features import FeatureDefinition, FeatureSettings, check_sent_features
from gridmill.domain.service_job import (
    RequestOutcome,
    ServiceProgress,
    ServiceRequest,
    decide_service_job,
    failed,
    follows_of,
    request_of,
    service_name,
    spec_of,
)
from gridmill.domain.service_settings import WRITTEN, merged
from gridmill.domain.service_totals import problems_of, reports_of
from gridmill.domain.states import FINISHED_JOBS, JobState
from gridmill.errors import GridmillError, InputError, StorageError, explained
from gridmill.scheduler.needs import may_go_on


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """The job whose turn it is to change its service, its run, and the parts of the control node that the
    change needs."""

    endings: Endings
    reads: BackgroundReads
    jobs: ServiceJobs
    transaction: Transaction
    run: Run
    job_run: JobRun


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The version that a job requests, its reference, and the alias that the service follows (empty:
    none)."""

    version: Artifact
    reference: str
    follows: str = ""


def keep_service_jobs(endings: Endings, reads: BackgroundReads, jobs: ServiceJobs, now: float) -> float:
    """Let the jobs that start or update services go on. Jobs of the same service take turns, in the order of
    their runs. Returns the seconds until the next time limit of such a job."""
    if not jobs.open:
        return float("inf")
    ledger, turns, left = endings.ledger, set[str](), float("inf")
    transaction = ledger.begin(now)
    for run, job_run in _open(jobs, transaction):
        name = service_name(job_run.job)
        if name in turns:
            after = _waiting(job_run, f"waits: an earlier run changes service {name}")
        else:
            turn = _Turn(
                endings=endings, reads=reads, jobs=jobs, transaction=transaction, run=run, job_run=job_run
            )
            after = _go_on(turn)
        turns.add(name)
        after = _within_time(after, transaction.now)
        if after is not job_run:
            transaction.put(after)
        if after.state in FINISHED_JOBS:
            _end(endings, jobs, transaction, after)
        elif after.job.timeout_seconds is not None:
            left = min(left, (after.started or now) + after.job.timeout_seconds - now)
    if transaction.nouns or transaction.after:
        ledger.stage(transaction)
    return max(0.0, left)


def _open(jobs: ServiceJobs, transaction: Transaction) -> list[tuple[Run, JobRun]]:
    """Return the running jobs with their runs, in the order of the runs. Forget all others."""
    pairs: list[tuple[Run, JobRun]] = []
    for key in tuple(jobs.open):
        job_run = transaction.get(JobRun, key)
        run = transaction.get(Run, job_run.run_id) if job_run is not None else None
        if job_run is None or run is None or job_run.state is not JobState.RUNNING:
            jobs.forget(key)
        else:
            pairs.append((run, job_run))
    return sorted(pairs, key=lambda pair: (pair[0].order, pair[1].order))


def _end(endings: Endings, jobs: ServiceJobs, transaction: Transaction, ended: JobRun) -> None:
    jobs.forget(ended.id)
    next_ids = may_go_on(endings.ledger.snapshot, ended.id) or [ended.id]
    transaction.then(partial(endings.candidates.add, ended.run_id, next_ids))


def _waiting(job_run: JobRun, message: str) -> JobRun:
    return job_run if job_run.message == message else replace(job_run, message=message)


def _within_time(job_run: JobRun, now: float) -> JobRun:
    limit = job_run.job.timeout_seconds
    if job_run.state in FINISHED_JOBS or limit is None or now < (job_run.started or now) + limit:
        return job_run
    why = f"the service did not answer within {show_seconds(limit)} (`timeout`): {job_run.message}"
    return failed(job_run, why, now)


def _go_on(turn: _Turn) -> JobRun:
    """Return the job after the next step: the service is changed, the job waits, or the job has ended."""
    job_run, transaction = turn.job_run, turn.transaction
    try:
        wanted, changed = _wanted(turn), True
        service = transaction.get(Service, service_name(job_run.job))
        if service is None or service.declared_by != job_run.id:
            if service is not None and is_ending(turn.endings.ledger, service):
                return _waiting(job_run, f"waits until service {service.name} is stopped")
            outcome = _request(turn, wanted)
            if outcome is None or outcome.service is None:
                measuring = outcome.measuring if outcome is not None else ""
                return _waiting(job_run, f"waits for the measurement {measuring}" if measuring else "")
            service, changed = outcome.service, outcome.changed
        progress = _progress(transaction, service, "" if wanted.follows else wanted.version.id, changed)
        return decide_service_job(job_run, progress, transaction.now)
    except StorageError:  # the store failed, not the service: the next tick tries again
        raise
    except GridmillError as error:
        return failed(job_run, _placed(job_run, error), transaction.now)


def _placed(job_run: JobRun, error: GridmillError) -> str:
    """Return the error with the file and the line of the field of the job that it names."""
    text = explained(error)
    place, _, rest = error.place.partition(".")
    if place:
        named = WRITTEN.get(place, place).removesuffix("_seconds").removesuffix("_bytes")
        path = f"service.{named}{f'.{rest}' if rest else ''}"
        text = f"{path}: {text.removeprefix(f'{error.place}: ')}"
    return place_message(text, "service", job_run.job.name, job_run.lines)


def _wanted(turn: _Turn) -> _Wanted:
    """Return the version that the job requests. A service that follows an alias starts with the version that
    the alias names now."""
    catalog, model = turn.endings.catalog, spec_of(turn.job_run.job).model
    inputs = inputs_of(catalog, turn.transaction, turn.job_run)
    version = next((one.artifact for one in inputs if one.name == model), None)
    if version is None:
        raise InputError(f"job {model!r} has made no version", place="model")
    follows = follows_of(turn.job_run.job, version)
    if follows:
        return _Wanted(version=find_version(catalog, follows), reference=model, follows=follows)
    return _Wanted(version=version, reference=version.id)


def _request(turn: _Turn, wanted: _Wanted) -> RequestOutcome | None:
    """Start or update the service. The result is None while files are being read in the background."""
    transaction, job_run, version = turn.transaction, turn.job_run, wanted.version
    measuring = turn.jobs.measuring.get(job_run.id, "")
    if measuring and transaction.get(Run, measuring) is not None:
        return RequestOutcome(measuring=measuring)
    request = request_of(
        turn.run, job_run, version, wanted.reference, wanted.follows, measured=bool(measuring)
    )
    broken = why_broken(turn.reads, (version,), job_run.id)
    if broken:
        raise InputError(
            f"the files of {version.id} have changed, so it cannot be served",
            hint=f"gridmill verify {version.id}",
            place="model",
        )
    definition = _definition(turn, request) if broken is not None else None
    if definition is None:
        return None
    beginning = transaction.within()
    outcome = turn.jobs.serve(beginning, replace(request, definition=definition[0]))
    transaction.join(beginning)
    if outcome.measuring:
        turn.jobs.measuring[job_run.id] = outcome.measuring
    return outcome


def _definition(turn: _Turn, request: ServiceRequest) -> tuple[FeatureDefinition | None] | None:
    """Return the definition of the contextual features in a tuple. The result is None while the features are
    being defined in the background."""
    endings, reads = turn.endings, turn.reads
    before = turn.transaction.get(Service, request.name)
    settings = merged(before.settings, request.settings) if before is not None else request.settings
    question = feature_question(
        endings.catalog,
        endings.storage,
        request.name,
        request.version,
        settings.features or FeatureSettings(),
        before.definitions if before is not None else (),
    )
    if question is None:
        check_sent_features(request.version, settings.features or FeatureSettings())
        return (None,)
    key = f"features of {request.version.id} for {request.job}"
    if key not in reads.pending.files:
        define = partial(define_features, endings.storage, question)
        reads.runner.submit(key, define, partial(reads.pending.files.__setitem__, key))
    future: Future[FeatureDefinition | None] | None = reads.pending.files.pop(key, None)
    return None if future is None else (future.result(),)


def _progress(transaction: Transaction, service: Service, wanted: str, changed: bool) -> ServiceProgress:
    run = transaction.get(Run, service.run_id)
    job_run = job_run_of(transaction, service)
    router = job_run_of(transaction, service, ROUTE) if service.route is not None else None
    state, reports = state_of(service, run, job_run, router), reports_of(service)
    is_seen = any(one.seen_generation >= service.generation for one in reports)
    failures = (one.last_failure for one in reports if one.last_failure)
    reported = "; ".join(problems_of(service)) or next(failures, "")
    held_up = job_run.message if job_run is not None and job_run.state is not JobState.RUNNING else ""
    return ServiceProgress(
        service=service,
        state=state,
        wanted=wanted,
        why=service.problem or held_up or reported,
        is_refused=state is ServiceState.FAILING and is_seen,
        ends=job_run.failures if job_run is not None else 0,
        changed=changed,
    )
