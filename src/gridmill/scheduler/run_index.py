"""This module has an index of runs and jobs: which jobs wait, which jobs are blocked, and which job may make
an artifact next.

Among the jobs that make the same artifact, at most one job runs at a time.
"""

from bisect import insort
from collections.abc import Collection, Iterator
from typing import NamedTuple

from gridmill.domain.run import JobRun, Run
from gridmill.domain.states import FINISHED_JOBS, FINISHED_RUNS, JobState, RunState
from gridmill.scheduler.queue import (
    JOB_CLASS,
    JOB_RUN_ID,
    SINCE,
    Demand,
    JobQueue,
    Rank,
    Ticket,
    demand_of,
    rank_of,
    since_of,
    turn_rank_of,
    work_of,
)
from gridmill.scheduler.sorted_tuples import SortedTuples


class ExclusiveTurns:
    """The running jobs, and the waiting jobs in the order of their ranks, by the name of the artifact that
    they make."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Rank]] = {}
        self._running: dict[str, set[str]] = {}
        self._known: dict[str, tuple[str, Rank | None]] = {}

    def wait(self, name: str, job_run_id: str, rank: Rank) -> None:
        """Add a job that waits until it may make its artifact."""
        if self._known.get(job_run_id) != (name, rank):
            self.leave(job_run_id)
            self._known[job_run_id] = (name, rank)
            insort(self._waiting.setdefault(name, []), rank)

    def run(self, name: str, job_run_id: str) -> None:
        """Record that the job runs. While this job runs, no other job may make the artifact."""
        self.leave(job_run_id)
        self._known[job_run_id] = (name, None)
        self._running.setdefault(name, set()).add(job_run_id)

    def leave(self, job_run_id: str) -> None:
        """Remove a job that neither waits nor runs any more."""
        entry = self._known.pop(job_run_id, None)
        if entry is None:
            return
        name, rank = entry
        if rank is None:
            self._running[name].discard(job_run_id)
            if not self._running[name]:
                del self._running[name]
        else:
            self._waiting[name].remove(rank)
            if not self._waiting[name]:
                del self._waiting[name]

    def next(self, name: str) -> str | None:
        """Return the job that may start. The result is None if a job of this name runs, or if no job
        waits."""
        if name in self._running or name not in self._waiting:
            return None
        return self._waiting[name][0][JOB_RUN_ID]

    def before(self, name: str, job_run_id: str) -> str | None:
        """Return the job for which this job waits: the job that runs now, otherwise the first waiting job.
        The result is None if this job is the next to start."""
        running = self._running.get(name)
        if running:
            return min(running)
        first = self.next(name)
        return None if first == job_run_id else first

    def behind(self, name: str) -> tuple[str, ...]:
        """Return the waiting jobs for this artifact, in the order of their ranks."""
        return tuple(rank[JOB_RUN_ID] for rank in self._waiting.get(name, ()))


class _QueueEntry(NamedTuple):
    """The parts of the index that contain a job; with this record the job can be removed again."""

    waiting: bool
    not_before: float
    ticket: Ticket

    def stands(self, waiting: bool, job_run: JobRun, rank: Rank, demand: Demand, since: float) -> bool:
        """Return whether the job is already at this place in the index."""
        group = self.ticket[JOB_CLASS]
        return (
            self.waiting is waiting
            and self.not_before == job_run.not_before
            and self.ticket[:JOB_CLASS] == rank
            and self.ticket[SINCE] == since
            and group.demand == demand
            and group.resource == job_run.resource
        )


class JobsByResource:
    """The jobs of active runs by resource. `waiting` has the jobs that are ready, and `blocked` has the jobs
    that still wait for other jobs.

    Several ready jobs may make the same artifact, for example the same job in several runs (see `turn_of`).
    Among the jobs that make the same artifact, the queue contains only the job that is next. While one of
    these jobs runs, the queue contains none of them. Only one job may make an artifact at a time because
    versions have one order, and because two jobs must not write into the same table at the same time.

    `held` and `held_until` have the waiting jobs that have a `not_before`. A job whose run is not known yet
    is in no queue until the run is inserted.
    """

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.job_runs: dict[str, JobRun] = {}
        self.waiting: dict[str, JobQueue] = {}
        self.blocked: dict[str, JobQueue] = {}
        self.held: SortedTuples[tuple[float, str]] = SortedTuples()
        self.held_until: dict[str, float] = {}
        self.turns = ExclusiveTurns()
        self._lines: dict[str, _QueueEntry] = {}
        self._jobs_of: dict[str, dict[str, None]] = {}
        self._unfinished: dict[str, dict[str, None]] = {}
        self._dependents: dict[str, dict[str, None]] = {}

    def jobs_of(self, run_id: str) -> tuple[JobRun, ...]:
        """Return the jobs of a run, in the order of their declaration."""
        return self._ordered(self._jobs_of.get(run_id, {}))

    def count_of(self, run_id: str) -> int:
        """Return the number of jobs of a run, including parts."""
        return len(self._jobs_of.get(run_id, ()))

    def each_of(self, run_id: str) -> Iterator[JobRun]:
        """Return the jobs of a run in the order in which they were added, without a copy of the list."""
        return (self.job_runs[key] for key in self._jobs_of.get(run_id, ()))

    def unfinished_of(self, run_id: str) -> Collection[str]:
        """Return the ids of the jobs of a run that have not finished, in any order."""
        return self._unfinished.get(run_id, ())

    def dependents_of(self, job_run_id: str) -> tuple[JobRun, ...]:
        """Return the jobs that need this job directly, in the order of their declaration."""
        return self._ordered(self._dependents.get(job_run_id, {}))

    def _ordered(self, keys: dict[str, None]) -> tuple[JobRun, ...]:
        jobs = (self.job_runs[key] for key in keys)
        return tuple(sorted(jobs, key=lambda job_run: (job_run.order, job_run.id)))

    def put_run(self, run: Run) -> None:
        """Insert a run into the index, or replace it. If the run has finished, it is removed together with
        its jobs."""
        if run.state in FINISHED_RUNS:
            self.drop_run(run.id)
            return
        old = self.runs.get(run.id)
        self.runs[run.id] = run
        if old is None or (old.state, old.order) != (run.state, run.order):
            for key in self._jobs_of.get(run.id, ()):
                self._line_up(self.job_runs[key])

    def drop_run(self, run_id: str) -> None:
        """Remove a run and its jobs from the index."""
        for key in list(self._jobs_of.get(run_id, ())):
            self.drop_job_run(key)
        self.runs.pop(run_id, None)

    def put_job_run(self, job_run: JobRun) -> None:
        """Insert a job into the index, or replace it."""
        old = self.job_runs.get(job_run.id)
        self.job_runs[job_run.id] = job_run
        if old is None:
            self._jobs_of.setdefault(job_run.run_id, {})[job_run.id] = None
        elif old.needs != job_run.needs:
            self._forget_needs(old)
        if job_run.state in FINISHED_JOBS:
            forget(self._unfinished, job_run.run_id, job_run.id)
        else:
            self._unfinished.setdefault(job_run.run_id, {})[job_run.id] = None
        if old is None or old.needs != job_run.needs:
            for need in job_run.needs:
                self._dependents.setdefault(need, {})[job_run.id] = None
        self._line_up(job_run)

    def drop_job_run(self, key: str) -> None:
        """Remove a job from the index."""
        old = self.job_runs.pop(key, None)
        if old is not None:
            self._leave_line(key)
            self._forget_needs(old)
            forget(self._jobs_of, old.run_id, key)
            forget(self._unfinished, old.run_id, key)
            self.turns.leave(key)
            self._let_next(self.turn_of(old))

    def _forget_needs(self, job_run: JobRun) -> None:
        for need in job_run.needs:
            forget(self._dependents, need, job_run.id)

    def _line_up(self, job_run: JobRun) -> None:
        run = self.runs.get(job_run.run_id)
        turn = _turn(job_run, run)
        before = self.turns.next(turn)
        self._take_turn(job_run, run, turn)
        following = self.turns.next(turn)
        self._place(job_run, run, following)
        for other in {before, following}:
            if other is not None and other != job_run.id:
                self._place_again(other, following)

    def turn_of(self, job_run: JobRun) -> str:
        """Return a key that is equal for all jobs that must not run at the same time as this job. Two loads
        have the same key if they load the same sink, and two jobs on every node if they run on the same
        nodes. Other jobs of runs without parameters have the same key if they have the same name. Other jobs
        of runs with parameters have the same key if they have the same name and the same inputs. Jobs that
        differ in a parameter do not wait for each other."""
        return _turn(job_run, self.runs.get(job_run.run_id))

    def _take_turn(self, job_run: JobRun, run: Run | None, turn: str) -> None:
        # the parts of the job had the turn, and the job keeps the turn when it combines their outputs
        gathering = job_run.parts and job_run.state is JobState.WAITING
        if job_run.state is JobState.RUNNING or gathering:
            self.turns.run(turn, job_run.id)
        elif job_run.state is JobState.WAITING and run is not None and run.state is RunState.ACTIVE:
            self.turns.wait(turn, job_run.id, turn_rank_of(job_run, run))
        else:
            self.turns.leave(job_run.id)

    def _let_next(self, turn: str) -> None:
        following = self.turns.next(turn)
        if following is not None:
            self._place_again(following, following)

    def _place_again(self, key: str, following: str | None) -> None:
        job_run = self.job_runs[key]
        self._place(job_run, self.runs.get(job_run.run_id), following)

    def _place(self, job_run: JobRun, run: Run | None, following: str | None) -> None:
        """Put the job into its queue. `following` is the next job to start among the jobs of which only one
        may run at a time."""
        waiting = job_run.state is JobState.WAITING
        if (
            run is None
            or run.state is not RunState.ACTIVE
            or not (waiting or job_run.state is JobState.BLOCKED)
            or (waiting and following != job_run.id and not job_run.parts)
        ):
            self._leave_line(job_run.id)
            return
        rank, demand, since = rank_of(job_run, run), demand_of(job_run), since_of(job_run, run)
        line = self._lines.get(job_run.id)
        if line is not None:
            if line.stands(waiting, job_run, rank, demand, since):
                return
            self._leave_line(job_run.id)
        queues = self.waiting if waiting else self.blocked
        queue = queues.get(job_run.resource)
        if queue is None:
            queue = queues[job_run.resource] = JobQueue(job_run.resource)
        ticket = queue.add(rank, demand, since, work_of(job_run))
        self._lines[job_run.id] = _QueueEntry(waiting, job_run.not_before, ticket)
        if waiting and job_run.not_before > 0:
            self.held.add((job_run.not_before, job_run.id))
            self.held_until[job_run.id] = job_run.not_before

    def _leave_line(self, key: str) -> None:
        line = self._lines.pop(key, None)
        if line is None:
            return
        resource = line.ticket[JOB_CLASS].resource
        queues = self.waiting if line.waiting else self.blocked
        queues[resource].discard(line.ticket)
        if not len(queues[resource]):
            del queues[resource]
        if line.waiting and line.not_before > 0:
            self.held.discard((line.not_before, key))
            del self.held_until[key]


def _turn(job_run: JobRun, run: Run | None) -> str:
    job = job_run.job
    if job_run.part is not None:
        return job_run.id
    if job.sink is not None or job.each is not None or run is None or not run.parameters:
        return job_run.name
    return f"{job_run.name} {job_run.fingerprint}"


def forget(index: dict[str, dict[str, None]], key: str, member: str) -> None:
    """Remove a member from a set in an index, and remove the set from the index if the set is then empty."""
    members = index.get(key)
    if members is not None:
        members.pop(member, None)
        if not members:
            del index[key]
