"""This module has the tick that moves a waiting job with several possible resources to another resource if
the job would end sooner there."""

from collections.abc import Mapping, Sequence
from math import inf

from gridmill.control.ledger import Ledger
from gridmill.control.state import JobMoves, SiteChoices
from gridmill.control.steps.resource_choice import joining_now, may_move, move
from gridmill.domain.frozen import dataclass
from gridmill.domain.run import JobRun, Run
from gridmill.domain.states import FINISHED_JOBS
from gridmill.scheduler.queue import rank_of

LOOK_AGAIN_SECONDS = 10.0
"""The time after which a waiting job checks again whether another resource would finish it sooner."""
LOOKS_PER_TICK = 50
PAUSE_SECONDS = 0.5
"""The seconds between two ticks in which some of the jobs check their resources. All other jobs check their
resources in later ticks, so that each tick stays short."""


def reconsider_sites(moves: JobMoves) -> float:
    """Move waiting jobs with several possible resources to the resource that finishes them sooner, if the
    gain is large enough. Each tick checks some of these jobs, beginning with the jobs at the end of the
    queue, because they gain the most. The function returns the seconds until the next check."""
    choices, now = moves.choices, moves.timeline.clock.monotonic()
    if not choices.choosing:
        return inf
    if now < choices.next_at:
        return choices.next_at - now
    if not choices.to_recheck:
        queue = decide_queue(_read_choosing(moves.ledger, choices), moves.ledger.snapshot.runs)
        choices.choosing, choices.to_recheck = set(queue.choosing), list(queue.to_recheck)
    _recheck(moves, [choices.to_recheck.pop() for _ in range(min(LOOKS_PER_TICK, len(choices.to_recheck)))])
    pause = PAUSE_SECONDS if choices.to_recheck else LOOK_AGAIN_SECONDS
    choices.next_at = now + pause
    return pause


def _read_choosing(ledger: Ledger, choices: SiteChoices) -> Sequence[JobRun]:
    job_runs = ledger.snapshot.job_runs
    return [job_runs[key] for key in choices.choosing if key in job_runs]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecheckQueue:
    """The ids of the jobs that have several possible resources and have not ended, and the ids of the jobs
    that may move now, in the order of the queue."""

    choosing: frozenset[str]
    to_recheck: tuple[str, ...]


def decide_queue(job_runs: Sequence[JobRun], runs: Mapping[str, Run]) -> RecheckQueue:
    """Decide which jobs check their resources, out of the jobs with several possible resources. `runs` has
    the active runs by id."""
    waiting = [one for one in job_runs if may_move(one) and one.run_id in runs]
    waiting.sort(key=lambda one: rank_of(one, runs[one.run_id]))
    return RecheckQueue(
        choosing=frozenset(one.id for one in job_runs if one.state not in FINISHED_JOBS),
        to_recheck=tuple(one.id for one in waiting),
    )


def _recheck(moves: JobMoves, job_run_ids: Sequence[str]) -> None:
    joining, transaction = joining_now(moves), moves.ledger.begin(moves.timeline.now())
    for job_run_id in job_run_ids:
        job_run = transaction.get(JobRun, job_run_id)
        if job_run is not None and may_move(job_run):
            move(moves, joining, transaction, job_run)
    moves.ledger.stage(transaction)
