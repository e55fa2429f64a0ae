"""Running jobs that can resume make room for one whose turn comes long before theirs."""

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from gridmill.model.amounts import Amounts
from gridmill.model.interruption import Interruption
from gridmill.model.job import JobSize
from gridmill.model.plan import Interrupt
from gridmill.model.run import Attempt, JobRun
from gridmill.planning.draft import Draft
from gridmill.planning.forecast import lasted
from gridmill.planning.lane import Lane
from gridmill.planning.queue import Demand, Ticket
from gridmill.planning.room import Slot, places_in
from gridmill.planning.service import (
    FIRST_LOOK_SECONDS,
    RESTART_SECONDS,
    UNKNOWN_SECONDS,
    Interruptible,
    due,
    expected_left,
    next_look,
    to_interrupt,
)
from gridmill.planning.sizing import subject_of

LEAVE_ALONE_GROWTH = 2.0
"""Each time that a job was interrupted it is left alone for so many times as long: the cost of interrupting
it stays a bounded share of its time, and it comes to its end."""


class _Running(NamedTuple):
    """A job that may be interrupted now: its due time, what is expected to be left of it, all its attempts
    (several ranks of a gang)."""

    due: float
    left_seconds: float
    attempts: tuple[Attempt, ...]

    @property
    def id(self) -> str:
        return self.attempts[0].id


def interrupt_for(draft: Draft, lane: Lane, ticket: Ticket) -> None:
    """Have running jobs of its resource make room for a job that finds none: the fewest, on one pod or, for a
    gang, on all. None while others are making room there, or room is coming."""
    known = draft.snapshot.places.resumable.get(lane.name)
    if not known or lane.interrupting or lane.reclaimed or draft.is_full or not draft.can_start(ticket[3]):
        return
    running = _interruptible(draft, ticket, known)
    chosen = _choose(lane, ticket, running)
    if chosen:
        lane.interrupting = True
    for one in chosen:
        draft.interrupt(_asked(draft, ticket[3], one))


def keep_what_is_made(draft: Draft, lane: Lane) -> None:
    """What comes free while jobs make room is for the one they make it for; for nobody else."""
    places = draft.snapshot.places
    yielding = [places.attempts[key] for key in places.yielding.get(lane.name, ())]
    for attempt in yielding:
        job_run = draft.snapshot.job_runs.get(attempt.interrupted.job_run if attempt.interrupted else "")
        if job_run is None or not draft.can_start(job_run.id):
            continue
        lane.beneficiary = job_run.id
        if job_run.job.gang > 1:
            amounts = job_run.sizing.amounts
            lane.keep(Demand(amounts.memory_bytes, amounts.gpus, 0.0, 0, job_run.job.kind))
        else:
            lane.open.drop(attempt.pod_id)


def _asked(draft: Draft, job_run_id: str, one: _Running) -> Interrupt:
    left = draft.snapshot.job_runs[job_run_id].sizing.left_seconds
    shorter = one.left_seconds - (UNKNOWN_SECONDS if left is None else left)
    return Interrupt(
        attempt_ids=tuple(attempt.id for attempt in one.attempts),
        interruption=Interruption(
            job_run=job_run_id,
            left_seconds=one.left_seconds,
            shorter_seconds=shorter if shorter > 2 * RESTART_SECONDS else 0.0,
        ),
    )


def _interruptible(draft: Draft, ticket: Ticket, known: Iterable[str]) -> list[_Running]:
    """Those that are not left alone, and of no higher priority; whose turn is last comes first."""
    gangs: dict[str, list[Attempt]] = {}
    for key in known:
        attempt = draft.snapshot.attempts[key]
        gangs.setdefault(attempt.gang or attempt.id, []).append(attempt)
    found = (_running(draft, ticket, sorted(gang, key=_by_rank)) for gang in gangs.values())
    return sorted((one for one in found if one is not None), key=_latest_first)


def _running(draft: Draft, ticket: Ticket, gang: Sequence[Attempt]) -> _Running | None:
    job_run = draft.snapshot.job_runs.get(gang[0].job_run_id)
    if job_run is None or len(gang) != (gang[0].ranks or 1) or job_run.priority > -ticket[0]:
        return None
    places = max(1, job_run.sizing.amounts.gpus) * len(gang)
    shares = draft.shares
    if shares is not None and not shares.goes_first(ticket[4].demand.project, job_run.project, places):
        return None  # it would have its place back at once
    begun = max(attempt.started or attempt.placed for attempt in gang)
    alone_until = begun + FIRST_LOOK_SECONDS * LEAVE_ALONE_GROWTH**job_run.interruptions
    if draft.now < alone_until:
        draft.wake_at(alone_until)
        return None
    attained = job_run.served_seconds + draft.now - begun
    draft.wake_at(draft.now + next_look(attained) - attained)
    left = _left(draft, job_run, attained)
    when = due(draft.snapshot.runs[job_run.run_id].created, left, places, started=True)
    return _Running(inf if job_run.priority < -ticket[0] else when, left, tuple(gang))


def _left(draft: Draft, job_run: JobRun, attained: float) -> float:
    subject, size = subject_of(job_run.job, job_run.pipeline), job_run.size or JobSize()
    return expected_left(lasted(job_run.name, subject, size, draft.snapshot.history), attained)


def _by_rank(attempt: Attempt) -> int:
    return attempt.rank


def _latest_first(one: _Running) -> tuple[float, float, str]:
    return -one.due, -one.left_seconds, one.id


def _choose(lane: Lane, ticket: Ticket, running: Sequence[_Running]) -> list[_Running]:
    demand, slots = ticket[4].demand, {slot.key[2]: slot for slot in lane.slots()}
    if demand.alone or not running:
        return []
    if demand.workers > 1:
        return _least(slots, ticket, running)
    here = (slots[name] for name in sorted(slots) if demand.node in ("", slots[name].whole.node))
    ways = (_least({slot.key[2]: slot}, ticket, _on(slot.key[2], running)) for slot in here)
    return min((way for way in ways if way), key=_cost, default=[])


def _on(pod_id: str, running: Sequence[_Running]) -> list[_Running]:
    return [one for one in running if any(attempt.pod_id == pod_id for attempt in one.attempts)]


def _cost(way: Sequence[_Running]) -> tuple[int, float, str]:
    return len(way), -min(one.due for one in way), way[0].id


def _least(slots: dict[str, Slot], ticket: Ticket, running: Sequence[_Running]) -> list[_Running]:
    """Whom `to_interrupt` names, without those whose room is not needed then. Empty: not enough."""
    demand = ticket[4].demand
    gains = _gains(slots, demand, running)
    names = to_interrupt(demand.workers, _places(slots, demand, ()), ticket[1][0], gains)
    chosen = [one for one in running if one.id in names]
    for one in tuple(chosen):
        others = [other for other in chosen if other is not one]
        if _places(slots, demand, others) >= demand.workers:
            chosen = others
    return chosen


def _gains(slots: dict[str, Slot], demand: Demand, running: Sequence[_Running]) -> Iterator[Interruptible]:
    """Each with the places that its end gains, after those before it."""
    places = _places(slots, demand, ())
    for count, one in enumerate(running, start=1):
        then = _places(slots, demand, running[:count])
        yield Interruptible(one.due, then - places, one.id)
        places = then


def _places(slots: dict[str, Slot], demand: Demand, ended: Sequence[_Running]) -> int:
    """How many like it fit at once when those have ended."""
    given: dict[str, list[Amounts]] = {}
    for one in ended:
        for attempt in one.attempts:
            given.setdefault(attempt.pod_id, []).append(attempt.given)
    return sum(_places_in(slot, demand, given.get(name, ())) for name, slot in slots.items())


def _places_in(slot: Slot, demand: Demand, given: Sequence[Amounts]) -> int:
    free = Amounts(
        memory_bytes=slot.free_memory + sum(one.memory_bytes for one in given),
        gpus=slot.free_gpus + sum(one.gpus for one in given),
    )
    most = slot.whole.most - slot.jobs + len(given)
    return places_in(free, most, demand.memory_bytes, demand.gpus)
