"""This module reports damaged records of the store, and repairs records that refer to lost records.

If the record of a run or of one of its jobs is lost, the run ends as failed, with the reason. The next run
of the pipeline reuses the versions that the failed run made. Pods receive a request to end attempts that
have no record.
"""

from collections.abc import Iterator, Sequence

from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import Problems
from gridmill.control.steps.output_folders import parts_of
from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import replace
from gridmill.domain.resource import Measurement
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.states import FINISHED_JOBS, AttemptState, Cause, JobState, RunState
from gridmill.ports.store import DamagedRecord, Store
from gridmill.scheduler.snapshot import Snapshot

SUBJECT = "damaged records"
"""The subject of the lasting problem that `gridmill status` shows."""
_NAMED = 3
_WITHOUT_FILES = frozenset({"Event", "Counter", Measurement.__name__})
"""The kinds of records that do not affect which files are needed."""
_BLOCKED = (JobState.BLOCKED, JobState.WAITING)


def report_new(problems: Problems, store: Store) -> bool:
    """Warn once of each damage to the store that was found since the last call. The function returns whether
    any damage was found since the last call."""
    noticed = store.take_new_damage()
    for one in noticed:
        problems.warn(f"the record of {one.name} in the store is damaged and lost: {one.problem}")
    if noticed:
        summarize(problems, store)
    return bool(noticed)


def summarize(problems: Problems, store: Store) -> None:
    """Make `gridmill status` show the damage that `gridmill recover` has not reported yet."""
    lost = [one for one in store.damage() if not one.told]
    if not lost:
        problems.lasting.pop(SUBJECT, None)
        return
    names = ", ".join(one.name for one in lost[:_NAMED])
    more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
    what = "1 record" if len(lost) == 1 else f"{len(lost)} records"
    problems.lasting[SUBJECT] = (
        f"{what} of the store damaged and lost: {names}{more}. `gridmill doctor` lists them; "
        "`gridmill recover` (after `gridmill down`) restores the records that have a copy in the storage root"
    )


def may_have_lost_versions(ledger: Ledger) -> bool:
    """Return whether damage may have destroyed records of versions, so that it is unknown which files these
    versions need."""
    serious = (one for one in ledger.store.damage() if one.noun not in _WITHOUT_FILES)
    return any(
        not one.told or (one.noun == Artifact.__name__ and ledger.read(Artifact, one.key) is None)
        for one in serious
    )


def set_right(ledger: Ledger, transaction: Transaction) -> None:
    """Make runs consistent if the store has lost some of their records. The function is called after all
    records were loaded from the store."""
    snapshot = ledger.snapshot
    damaged = ledger.store.damage()
    for job_run in tuple(snapshot.job_runs.values()):
        if job_run.run_id in snapshot.runs:
            _set_job_right(snapshot, transaction, job_run)
    for run_id in {job_run.run_id for job_run in snapshot.job_runs.values()} - snapshot.runs.keys():
        _end_orphans(snapshot, transaction, run_id)
    for attempt in tuple(snapshot.attempts.values()):
        if _is_stray(snapshot, transaction, attempt):
            transaction.put(_lost(attempt, transaction.now))
    for run in tuple(snapshot.runs.values()):
        lost = tuple(_lost_jobs(snapshot, run, damaged))
        if lost and not run.damage:
            _note_lost(snapshot, transaction, run, lost)


def _set_job_right(snapshot: Snapshot, transaction: Transaction, job_run: JobRun) -> None:
    if job_run.state in _BLOCKED:
        lost = [need.partition("/")[2] for need in job_run.needs if need not in snapshot.job_runs]
        if lost:
            why = f"the record of {_jobs(lost)}, which this job needs, was damaged"
            transaction.put(replace(job_run, state=JobState.SKIPPED, message=why, ended=transaction.now))
    elif job_run.state == JobState.RUNNING:
        why = _what_it_lost(snapshot, transaction, job_run)
        if why:
            transaction.put(replace(job_run, state=JobState.FAILED, message=why, ended=transaction.now))


def _what_it_lost(snapshot: Snapshot, transaction: Transaction, job_run: JobRun) -> str:
    """Return the reason why a job cannot continue because records are lost. The result is empty if the job
    can continue."""
    if job_run.job.starts_service:
        return ""
    if job_run.attempt_id is None:
        left = sum(1 for _ in parts_of(transaction, job_run))
        return "the record of a part of the job was damaged" if left < job_run.parts else ""
    attempt = snapshot.attempts.get(job_run.attempt_id)
    if attempt is None:
        return f"the record of its attempt {job_run.attempt_id} was damaged"
    if attempt.deployment_id not in snapshot.deployments:
        return f"the record of its deployment {attempt.deployment_id} was damaged"
    return ""


def _end_orphans(snapshot: Snapshot, transaction: Transaction, run_id: str) -> None:
    """Stop the jobs of a run whose record is lost, and add a failed run with this id that contains the
    reason."""
    jobs = snapshot.job_runs_of(run_id)
    damage = "the record of the run was damaged, and the jobs that had not ended were stopped"
    for job_run in jobs:
        if job_run.state not in FINISHED_JOBS:
            why = "the record of its run was damaged"
            transaction.put(replace(job_run, state=JobState.STOPPED, message=why, ended=transaction.now))
    transaction.put(
        Run(
            id=run_id,
            pipeline=jobs[0].pipeline,
            order=0,
            state=RunState.FAILED,
            created=min((job.ready for job in jobs if job.ready is not None), default=transaction.now),
            ended=transaction.now,
            project=jobs[0].project,
            message=damage,
            damage=damage,
            jobs=len(jobs),
        )
    )


def _is_stray(snapshot: Snapshot, transaction: Transaction, attempt: Attempt) -> bool:
    """Return whether the attempt cannot continue, because the record of its job or of its deployment is lost
    or does not fit to the attempt."""
    job_run = transaction.get(JobRun, attempt.job_run_id)
    return (
        job_run is None
        or job_run.state != JobState.RUNNING
        or job_run.attempt_id != (attempt.gang or attempt.id)
        or attempt.deployment_id not in snapshot.deployments
    )


def _lost(attempt: Attempt, now: float) -> Attempt:
    return replace(
        attempt,
        state=AttemptState.LOST,
        cause=Cause.LOST,
        ended=now,
        message="the record of the run or job of this attempt was damaged",
    )


def _lost_jobs(snapshot: Snapshot, run: Run, damaged: Sequence[DamagedRecord]) -> Iterator[str]:
    """Return the names of the run's lost jobs, as far as they are known. An unknown job has the name `?`."""
    jobs = {job.id: job for job in snapshot.job_runs_of(run.id)}
    names = {need for job in jobs.values() for need in job.needs if need not in jobs}
    for one in damaged:
        if one.noun == JobRun.__name__ and (one.parent == run.id or one.key.startswith(f"{run.id}/")):
            names.add(one.key)
    whole = sum(job.part is None for job in jobs.values())
    names = {name.removeprefix(f"{run.id}/") for name in names if name not in jobs}
    names = {name for name in names if not _is_part(jobs, run, name)}
    yield from sorted(names)
    if not names and whole < run.jobs:
        yield "?"


def _is_part(jobs: dict[str, JobRun], run: Run, name: str) -> bool:
    """Return whether this is the name of a part of a job whose record still exists. If the record of a part
    is lost, the whole job fails."""
    whole, sign, number = name.rpartition(".p")
    return bool(sign) and number.isdecimal() and f"{run.id}/{whole}" in jobs


def _note_lost(snapshot: Snapshot, transaction: Transaction, run: Run, lost: Sequence[str]) -> None:
    damage = f"the record of {_jobs(lost)} in the store was damaged and is lost"
    after = replace(run, damage=damage, message=damage)
    if not snapshot.job_runs_of(run.id):
        after = replace(after, state=RunState.FAILED, ended=transaction.now)
    transaction.put(after)


def _jobs(names: Sequence[str]) -> str:
    if "?" in names:
        return "one of its jobs"
    return ("job " if len(names) == 1 else "jobs ") + ", ".join(f"`{name}`" for name in names)
