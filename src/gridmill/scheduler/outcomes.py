"""This module decides the next state of a job when its attempt ends or the jobs that it needs end, and the
next state of a run when its jobs end."""

from collections.abc import Iterable, Sequence

from gridmill.domain.amounts import show_bytes, show_seconds
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.run import Attempt, JobRun, Preemption, Run
from gridmill.domain.states import (
    DONE_JOBS,
    FINISHED_JOBS,
    JOB_MOVES,
    LIVE_ATTEMPTS,
    RUN_MOVES,
    AttemptState,
    Cause,
    JobState,
    RunState,
    check_move,
)
from gridmill.errors import ConflictError
from gridmill.scheduler.sizing import GROWTH, LATER_GROWTH, after_memory_kill
from gridmill.scheduler.snapshot import Snapshot

MOST_LOSSES = 5
"""The number of attempts of one job that may end because their pods were lost or because the machine ran out
of memory. After more lost attempts, the job itself may be the cause."""
MOST_TAKEN = 50
"""The number of interruptions of one job by the end of rented machines that are not counted as losses."""
FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 1.0, 60.0
SERVED_SECONDS = 600.0
"""After an attempt of a service that ran for this time, the backoff begins again with its first value."""
FIRST_SHORTAGE_SECONDS, LONGEST_SHORTAGE_SECONDS = 5.0, 300.0
"""The first and the longest waiting time after a machine ran out of memory, in seconds. Other programs on
the machine have to release memory before the job is tried again."""


def backoff_seconds(
    failures: int, first: float = FIRST_BACKOFF_SECONDS, longest: float = LONGEST_BACKOFF_SECONDS
) -> float:
    """Return the backoff after this number of failures: 1 s after the first failure, twice as long after
    each further failure, but at most 60 s."""
    return float(min(first * 2 ** (max(failures, 1) - 1), longest))


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemoryBound:
    """The largest memory in bytes that one attempt can have, and the name of this limit, such as `its site`
    or `resource big`."""

    memory_bytes: int
    whose: str = "its site"


def settle(job_run: JobRun, attempt: Attempt, now: float, *, largest: int, whose: str = "its site") -> JobRun:
    """Return the job after its attempt ended: done, waiting for another attempt, failed or stopped.

    `largest` is the largest memory in bytes that one attempt can have. `whose` is the name of the site or
    the resource that sets this limit. Raises ConflictError if the job is not running or the attempt has not
    ended.
    """
    if attempt.state in LIVE_ATTEMPTS:
        raise ConflictError(f"attempt {attempt.id} has not ended")
    after = _settled(job_run, attempt, now, _MemoryBound(memory_bytes=largest, whose=whose))
    check_move(JOB_MOVES, job_run.state, after.state, f"job {job_run.id}")
    return after


def _settled(job_run: JobRun, attempt: Attempt, now: float, most: _MemoryBound) -> JobRun:
    if attempt.state is AttemptState.SUCCEEDED:
        return replace(job_run, state=JobState.SUCCEEDED, ended=now, message="")
    if attempt.stop_requested:
        return replace(job_run, state=JobState.STOPPED, ended=now, message="stopped")
    service = job_run.job.service
    is_lost = attempt.state in (AttemptState.LOST, AttemptState.STOPPED)
    # a service whose machine ended while it measured the version goes on like a service that served
    if service is not None and (not service.calibrates or (service.measures_first and is_lost)):
        return _after_end_of_service(job_run, attempt, now, most)
    if attempt.interrupted is not None:
        return _after_interruption(job_run, attempt, attempt.interrupted, now)
    if is_lost:
        # nobody requested a stop: the attempt ended together with its pod
        return _after_loss(job_run, attempt, now)
    if attempt.cause is Cause.MEMORY:
        return _after_memory_kill(job_run, attempt, now, most)
    if attempt.cause is Cause.ENVIRONMENT:
        return _after_install_failure(job_run, attempt, now)
    if attempt.cause is Cause.INPUT:
        return _failed(job_run, now, _reason(attempt))
    return _after_failure(job_run, attempt, now)


def _after_end_of_service(job_run: JobRun, attempt: Attempt, now: float, most: _MemoryBound) -> JobRun:
    """Return the job of a service after its attempt ended although nobody stopped the service. The job always
    gets another attempt. The backoff begins again if the attempt ran for a long time."""
    served = attempt.started is not None and now - attempt.started >= SERVED_SECONDS
    failures = 1 if served else job_run.failures + 1
    failed = replace(job_run, failures=failures)
    if attempt.cause is Cause.MEMORY:
        larger = after_memory_kill(job_run.sizing, attempt.given.memory_bytes, most.memory_bytes, GROWTH)
        failed = replace(failed, sizing=larger, memory_kills=job_run.memory_kills + 1)
    what = f"attempt {job_run.attempts} of the service ended: {_reason(attempt)}"
    return _again(failed, now, backoff_seconds(failures), what)


def _after_interruption(job_run: JobRun, attempt: Attempt, why: Preemption, now: float) -> JobRun:
    """Return the job after its attempt was preempted. The preempted attempt is not counted as a try, however
    it ended."""
    made_room = replace(
        job_run,
        interruptions=job_run.interruptions + 1,
        served_seconds=job_run.served_seconds + max(0.0, now - (attempt.started or now)),
        waited_seconds=delay_of(job_run, attempt),
        sizing=replace(job_run.sizing, left_seconds=why.left_seconds),
    )
    return _again(made_room, now, 0.0, f"{why.why}; resumes from its checkpoint")


def delay_of(job_run: JobRun, attempt: Attempt) -> float:
    """Return the total number of seconds for which a running job has waited. This number does not change
    while the job runs."""
    since = attempt.placed if job_run.ready is None else job_run.ready
    return job_run.waited_seconds + max(0.0, attempt.placed - since)


def _after_loss(job_run: JobRun, attempt: Attempt, now: float) -> JobRun:
    if attempt.cause is Cause.TAKEN and job_run.interruptions < MOST_TAKEN:
        again = replace(job_run, interruptions=job_run.interruptions + 1)
        return _again(again, now, 0.0, f"attempt {job_run.attempts} was interrupted: {_reason(attempt)}")
    losses = job_run.losses + 1
    lost = replace(job_run, losses=losses)
    if losses > MOST_LOSSES:
        return _failed(lost, now, f"lost {losses} times; the last time: {_reason(attempt)}")
    if attempt.cause is Cause.SHORTAGE:
        pause = backoff_seconds(losses, FIRST_SHORTAGE_SECONDS, LONGEST_SHORTAGE_SECONDS)
        return _again(lost, now, pause, f"attempt {job_run.attempts}: {_reason(attempt)}")
    return _again(
        lost, now, backoff_seconds(losses), f"attempt {job_run.attempts} was lost: {_reason(attempt)}"
    )


def _after_install_failure(job_run: JobRun, attempt: Attempt, now: float) -> JobRun:
    """Return the job after the installation of its environment failed. Neither the job nor its requirements
    caused the failure, so the job is retried as often as after a lost attempt."""
    losses = job_run.losses + 1
    failed = replace(job_run, losses=losses)
    if losses > MOST_LOSSES:
        return _failed(failed, now, f"{_reason(attempt)} (in {job_run.attempts} attempts)")
    return _again(failed, now, backoff_seconds(losses), f"attempt {job_run.attempts}: {_reason(attempt)}")


def _after_memory_kill(job_run: JobRun, attempt: Attempt, now: float, most: _MemoryBound) -> JobRun:
    """Return the job after its attempt ran out of memory. If the size is an estimate, each further attempt
    gets a larger size, up to the limit, and running out of memory is not counted as a failure. If the size
    is declared, it does not change, and running out of memory is counted as a failure."""
    had = attempt.given.memory_bytes
    killed = replace(job_run, memory_kills=job_run.memory_kills + 1)
    message = f"ran out of memory at {show_bytes(had)}"
    if job_run.job.memory_bytes is not None:
        return _after_declared_kill(killed, attempt, now, f"{message}, the limit that the job declares")
    growth = LATER_GROWTH if killed.memory_kills > 1 else GROWTH
    larger = after_memory_kill(job_run.sizing, had, most.memory_bytes, growth)
    more = larger.amounts.memory_bytes
    if larger is job_run.sizing:
        return _failed(killed, now, f"{message}; {most.whose} has no more memory")
    return _again(
        replace(killed, sizing=larger), now, 0.0, f"{message}; trying again with {show_bytes(more)}"
    )


def _after_declared_kill(killed: JobRun, attempt: Attempt, now: float, message: str) -> JobRun:
    failed = replace(killed, failures=killed.failures + 1)
    left = failed.job.retries - failed.failures + 1
    if left < 1:
        return _failed(failed, now, message)
    what = f"attempt {failed.attempts} {message}; {left} more"
    return _again(failed, now, backoff_seconds(failed.failures), what)


def _after_failure(job_run: JobRun, attempt: Attempt, now: float) -> JobRun:
    failed = replace(job_run, failures=job_run.failures + 1)
    if failed.failures > job_run.job.retries:
        return _failed(failed, now, _reason(attempt))
    left = job_run.job.retries - failed.failures + 1
    what = f"attempt {job_run.attempts} failed: {_reason(attempt)}; {left} more"
    return _again(failed, now, backoff_seconds(failed.failures), what)


def _reason(attempt: Attempt) -> str:
    if attempt.message:
        return attempt.message
    if attempt.exit_code is not None:
        return f"exit code {attempt.exit_code}"
    return str(attempt.cause or attempt.state)


def _failed(job_run: JobRun, now: float, message: str) -> JobRun:
    return replace(job_run, state=JobState.FAILED, ended=now, message=message)


def _again(job_run: JobRun, now: float, delay_seconds: float, message: str) -> JobRun:
    later = f" in {show_seconds(delay_seconds)}" if delay_seconds else ""
    return replace(
        job_run,
        state=JobState.WAITING,
        attempt_id=None,
        not_before=now + delay_seconds,
        ready=now + delay_seconds,
        message=f"{message}; next attempt{later}" if later else message,
    )


def ready(snapshot: Snapshot, candidates: str | Iterable[str]) -> tuple[str, ...]:
    """Return the BLOCKED jobs whose needed jobs are all done. `candidates` is the id of a run, or the ids of
    JobRuns."""
    return tuple(
        job_run.id
        for job_run in _blocked(snapshot, candidates)
        if all(state in DONE_JOBS for state in _states_of_needs(snapshot, job_run))
    )


def skipped(snapshot: Snapshot, candidates: str | Iterable[str], now: float) -> tuple[JobRun, ...]:
    """Return the BLOCKED jobs that can never run because of the final state of a needed job, and all jobs
    that need them. All returned jobs have the state SKIPPED."""
    changed: dict[str, JobRun] = {}
    open_jobs = [(job_run, "") for job_run in reversed(_blocked(snapshot, candidates))]
    while open_jobs:
        job_run, why = open_jobs.pop()
        why = why or _bad_needs(snapshot, job_run)
        if job_run.id in changed or job_run.state is not JobState.BLOCKED or not why:
            continue
        changed[job_run.id] = replace(job_run, state=JobState.SKIPPED, message=why, ended=now)
        why = f"needs `{job_run.job.name}` {JobState.SKIPPED}"
        open_jobs += [(user, why) for user in reversed(snapshot.dependents_of(job_run.id))]
    return tuple(changed.values())


def _blocked(snapshot: Snapshot, candidates: str | Iterable[str]) -> list[JobRun]:
    if isinstance(candidates, str):
        job_runs: Iterable[JobRun] = snapshot.job_runs_of(candidates)
    else:
        job_runs = (snapshot.job_runs[key] for key in candidates if key in snapshot.job_runs)
    return [job_run for job_run in job_runs if job_run.state is JobState.BLOCKED]


def _states_of_needs(snapshot: Snapshot, job_run: JobRun) -> list[JobState]:
    return [snapshot.job_runs[need].state for need in job_run.needs if need in snapshot.job_runs]


def _bad_needs(snapshot: Snapshot, job_run: JobRun) -> str:
    needs = [snapshot.job_runs[need] for need in job_run.needs if need in snapshot.job_runs]
    bad = [need for need in needs if need.state in FINISHED_JOBS - DONE_JOBS]
    return f"needs {', '.join(f'`{need.job.name}` {need.state}' for need in bad)}" if bad else ""


def run_state(run: Run, job_runs: Sequence[JobRun]) -> tuple[RunState, str]:
    """Return the state of a run with these jobs, and a sentence about this state.

    The state of the run does not change until every job has ended. When all jobs of a run have ended, the
    run is FAILED if a job failed, otherwise STOPPED if a job was stopped, otherwise SUCCEEDED. Jobs that
    were skipped only because there are no rows yet do not prevent the state SUCCEEDED.
    """
    states = [job_run.state for job_run in job_runs]
    if any(state not in FINISHED_JOBS for state in states):
        return run.state, run.message
    new = RunState.SUCCEEDED
    if JobState.FAILED in states:
        new = RunState.FAILED
    elif JobState.STOPPED in states:
        new = RunState.STOPPED
    check_move(RUN_MOVES, run.state, new, f"run {run.id}")
    return new, _summary(job_runs)


def _summary(job_runs: Sequence[JobRun]) -> str:
    """Return the number of jobs in each final state as text, such as `2 failed (load, train), 1 skipped, 4
    succeeded`."""
    parts: list[str] = []
    for state in (
        JobState.FAILED,
        JobState.STOPPED,
        JobState.SKIPPED,
        JobState.UNCHANGED,
        JobState.SUCCEEDED,
    ):
        names = [job_run.job.name for job_run in job_runs if job_run.state is state]
        if names and state in (JobState.FAILED, JobState.STOPPED):
            parts.append(f"{len(names)} {state} ({', '.join(names[:5])}{', ...' if names[5:] else ''})")
        elif names:
            parts.append(f"{len(names)} {state}")
    return ", ".join(parts)
