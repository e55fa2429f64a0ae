"""This module preempts running jobs that can resume, for a waiting job whose due time is much earlier."""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from math import inf

from gridmill.domain.amounts import Amounts
from gridmill.domain.ordering import (
    RESTART_SECONDS,
    SHORTEST_PATIENCE_SECONDS,
    UNKNOWN_SECONDS,
    Interruptible,
    Wanting,
    may_interrupt,
    to_interrupt,
)
from gridmill.domain.plan import Interrupt
from gridmill.domain.run import JobRun, Preemption
from gridmill.scheduler.capacity import POD_ID, PodSlot, places_in
from gridmill.scheduler.displacement import displace, keep_displaced
from gridmill.scheduler.draft import DraftPlan
from gridmill.scheduler.fair_share import ProjectStanding
from gridmill.scheduler.lane import Lane, LaneQueue
from gridmill.scheduler.preemptible import PreemptibleJob
from gridmill.scheduler.queue import (
    DUE,
    JOB_CLASS,
    JOB_RUN_ID,
    NEGATIVE_PRIORITY,
    SINCE,
    WORK,
    Demand,
    JobClass,
    Ticket,
)

MOST_TRIES = 20
"""The number of jobs at the head of a resource's queue for which a plan looks for jobs to preempt."""


def interrupt_for(draft: DraftPlan, lane: Lane, ticket: Ticket) -> None:
    """Preempt running jobs for a job that does not fit. The function preempts as few jobs as possible, on
    one pod or, for a gang, on all pods of its resource. If the job exceeds the quota of its project, running
    jobs of the same project on any resource are preempted. No job is preempted while memory, CPUs and GPUs
    for the resource are already being released or are expected to be released."""
    if lane.interrupting or (lane.reclaimed and not lane.drained) or not draft.snapshot.places.resumable:
        return
    if lane.tries >= MOST_TRIES or draft.is_full or not draft.can_start(ticket[JOB_RUN_ID]):
        return
    lane.tries += 1
    wanting = _wanting(draft, lane, ticket)
    chosen = _choose(draft, lane, ticket, wanting, _interruptible(draft, lane, ticket))
    if not chosen:
        chosen = displace(draft, lane, ticket, lambda one: _may_be(draft, lane, ticket, one))
    lane.interrupting = bool(chosen)
    for one in chosen:
        draft.interrupt(_interrupt_request(draft, ticket[JOB_RUN_ID], one))


def note_over_quota(draft: DraftPlan, line: LaneQueue, lane: Lane, ticket: Ticket) -> None:
    """If running jobs of the resource can resume, add a job that exceeds the quota of its project to the
    queue of jobs for which other jobs may be preempted."""
    if draft.snapshot.places.resumable and lane.over_quota < MOST_TRIES:
        lane.over_quota += 1
        line.add(ticket)


def keep_what_is_made(draft: DraftPlan, lanes: Mapping[str, Lane]) -> None:
    """Reserve what preempted jobs release (memory, CPUs and GPUs) for the job for which they were
    preempted."""
    places = draft.snapshot.places
    for resource in sorted(places.yielding):
        for attempt in (places.attempts[key] for key in sorted(places.yielding[resource])):
            job_run = draft.snapshot.job_runs.get(attempt.interrupted.job_run if attempt.interrupted else "")
            lane = lanes.get(job_run.resource) if job_run is not None else None
            if job_run is not None and lane is not None and draft.can_start(job_run.id):
                _keep(draft, lane, job_run, attempt.pod_id if resource == lane.name else "")
                keep_displaced(draft, lane, job_run, attempt)


def _keep(draft: DraftPlan, lane: Lane, job_run: JobRun, pod_id: str) -> None:
    """Reserve the quota and the pod `pod_id` for `job_run`. If `pod_id` is empty, the function reserves only
    the quota."""
    lane.beneficiary, lane.interrupting = job_run.id, True
    draft.keep_quota(job_run)
    if not pod_id:
        return
    if job_run.job.gang > 1:
        amounts = job_run.sizing.amounts
        lane.keep(Demand(amounts.memory_bytes, amounts.gpus, 0.0, 0, job_run.job.kind))
    else:
        lane.open.drop(pod_id)


def _interrupt_request(draft: DraftPlan, job_run_id: str, one: PreemptibleJob) -> Interrupt:
    left = draft.snapshot.job_runs[job_run_id].sizing.left_seconds
    shorter = one.left_seconds - (UNKNOWN_SECONDS if left is None else left)
    return Interrupt(
        attempt_ids=tuple(attempt.id for attempt in one.attempts),
        interruption=Preemption(
            job_run=job_run_id,
            left_seconds=one.left_seconds,
            shorter_seconds=shorter if shorter > 2 * RESTART_SECONDS else 0.0,
        ),
    )


def _interruptible(draft: DraftPlan, lane: Lane, ticket: Ticket) -> list[PreemptibleJob]:
    """Return the running jobs that may be preempted for a waiting job. The running job with the latest due
    time comes first."""
    resumable, standing = draft.snapshot.places.resumable, draft.standing_of(ticket[JOB_CLASS])
    over_quota = standing is not None and standing.is_closed_to(ticket)
    names = sorted(resumable) if over_quota else [lane.name] if lane.name in resumable else []
    candidates = (
        one for name in names for one in draft.running_on(name) if _may_be(draft, lane, ticket, one)
    )
    return sorted((_against(ticket, one) for one in candidates), key=_latest_first)


def _wanting(draft: DraftPlan, lane: Lane, ticket: Ticket) -> Wanting:
    """Return the values of the waiting job from which preemptions are decided. If the waiting job is delayed
    and has precedence, the values are chosen so that every job that may be preempted has a later due time
    and loses less than the waiting job gains."""
    if ticket is lane.claimant:
        return Wanting(-inf, left_seconds=-RESTART_SECONDS)
    sizing, demand = draft.snapshot.job_runs[ticket[JOB_RUN_ID]].sizing, ticket[JOB_CLASS].demand
    left = UNKNOWN_SECONDS if sizing.left_seconds is None else sizing.left_seconds
    return Wanting(ticket[DUE], ticket[WORK], left, max(1, demand.gpus) * demand.workers)


def _running(one: PreemptibleJob, gain: int) -> Interruptible:
    return Interruptible(one.due, gain, one.id, one.work, one.loses_seconds, one.places)


def _may_be(draft: DraftPlan, lane: Lane, ticket: Ticket, one: PreemptibleJob) -> bool:
    """Return whether a running job may be preempted for this job now. A running job may not be preempted if
    it has a higher priority than the waiting job, if it has the same priority and precedence as a delayed
    job, if its project would be the first to get its place again, or if it is still protected."""
    if one.priority > -ticket[NEGATIVE_PRIORITY]:
        return False
    if one.priority == -ticket[NEGATIVE_PRIORITY] and _has_precedence(draft, lane, ticket, one):
        return False
    project, shares = ticket[JOB_CLASS].demand.project, draft.shares
    if shares is not None and not shares.goes_first(project, one.project, one.places):
        return False
    until = one.urgent_from if one.priority < -ticket[NEGATIVE_PRIORITY] else one.alone_until
    draft.wake_at(until if draft.now < until else one.look_at)
    return draft.now >= until


def _has_precedence(draft: DraftPlan, lane: Lane, ticket: Ticket, one: PreemptibleJob) -> bool:
    """Return whether a running job takes precedence: it was delayed longer than the delayed job that waits
    for a place, or it holds a part of the share for delayed jobs."""
    if ticket is lane.claimant and one.delay >= draft.now - ticket[SINCE]:
        return True
    if one.delay < SHORTEST_PATIENCE_SECONDS:
        return False
    own = draft.lane(draft.snapshot.job_runs[one.job_run_id].resource)
    return own is not None and one.job_run_id in draft.delayed(own).protected


def _against(ticket: Ticket, one: PreemptibleJob) -> PreemptibleJob:
    """Return the running job with the values by which it is compared when jobs are preempted for the waiting
    job `ticket`. If the priority of the running job is lower, its due time is after that of every job of
    higher priority."""
    return (
        one._replace(due=inf, work=inf, loses_seconds=inf)
        if one.priority < -ticket[NEGATIVE_PRIORITY]
        else one
    )


def _latest_first(one: PreemptibleJob) -> tuple[float, float, str]:
    return -one.due, -one.left_seconds, one.id


def _choose(
    draft: DraftPlan, lane: Lane, ticket: Ticket, wanting: Wanting, running: Sequence[PreemptibleJob]
) -> list[PreemptibleJob]:
    demand, terms = ticket[JOB_CLASS].demand, draft.snapshot.places.terms
    if demand.alone or not running:
        return []
    slots = {slot.key[POD_ID]: slot for slot in lane.slots() if slot.key[POD_ID] not in terms}
    standing = draft.standing_of(ticket[JOB_CLASS])
    if standing is not None and standing.is_closed_to(ticket):
        own = [one for one in running if one.project == demand.project]
        return _until_within(standing, slots, ticket[JOB_CLASS], wanting, own)
    if demand.workers > 1:
        return _least(slots, demand, wanting, running)
    here = (name for name in sorted(slots) if demand.node in ("", slots[name].whole.node))
    on = _by_pod(running)
    choices = (_least({name: slots[name]}, demand, wanting, on[name]) for name in here if name in on)
    return min((preempted for preempted in choices if preempted), key=_cost, default=[])


def _until_within(
    standing: ProjectStanding,
    slots: Mapping[str, PodSlot],
    group: JobClass,
    wanting: Wanting,
    running: Sequence[PreemptibleJob],
) -> list[PreemptibleJob]:
    """Return the jobs whose end releases enough for the waiting job, both in the quota of their project and
    on any pods. The result is empty if the end of these jobs does not release enough, or if the quota is
    only reserved for another job."""
    demand = group.demand
    if not standing.is_over(group):
        return []
    here = {name: slot for name, slot in slots.items() if demand.node in ("", slot.whole.node)}
    left, free = copy(standing), _places(here, demand, ())
    chosen: list[PreemptibleJob] = []
    for one, gained in zip(running, _gains(here, demand, running), strict=True):
        if not may_interrupt(wanting, _running(one, 0)):
            return []
        chosen.append(one)
        _give_back(left, one)
        free += gained.gain
        if free >= demand.workers and not left.is_over(group):
            return _needed_within(standing, here, group, chosen)
    return []


def _give_back(standing: ProjectStanding, one: PreemptibleJob) -> None:
    for attempt in one.attempts:
        given = attempt.given
        standing.give_back(attempt.asked_cpus, given.memory_bytes, given.gpus)


def _needed_within(
    standing: ProjectStanding, slots: Mapping[str, PodSlot], group: JobClass, chosen: list[PreemptibleJob]
) -> list[PreemptibleJob]:
    """Return the chosen jobs, without the jobs that do not have to end for the waiting job."""
    demand = group.demand
    for one in tuple(chosen):
        others = [other for other in chosen if other is not one]
        left = copy(standing)
        for other in others:
            _give_back(left, other)
        if not left.is_over(group) and _places(slots, demand, others) >= demand.workers:
            chosen = others
    return chosen


def _by_pod(running: Sequence[PreemptibleJob]) -> Mapping[str, list[PreemptibleJob]]:
    """Return the running jobs on each pod, in the same order."""
    on: dict[str, list[PreemptibleJob]] = {}
    for one in running:
        for pod_id in {attempt.pod_id for attempt in one.attempts}:
            on.setdefault(pod_id, []).append(one)
    return on


def _cost(preempted: Sequence[PreemptibleJob]) -> tuple[int, float, str]:
    return len(preempted), -min(one.due for one in preempted), preempted[0].id


def _least(
    slots: Mapping[str, PodSlot], demand: Demand, wanting: Wanting, running: Sequence[PreemptibleJob]
) -> list[PreemptibleJob]:
    """Return the jobs that `to_interrupt` selects, without the jobs that turn out not to be needed. The
    result is empty if the end of these jobs does not release enough."""
    gains = _gains(slots, demand, running)
    names = to_interrupt(demand.workers, _places(slots, demand, ()), wanting, gains)
    chosen = [one for one in running if one.id in names]
    for one in tuple(chosen):
        others = [other for other in chosen if other is not one]
        if _places(slots, demand, others) >= demand.workers:
            chosen = others
    return chosen


def _gains(
    slots: Mapping[str, PodSlot], demand: Demand, running: Sequence[PreemptibleJob]
) -> Iterator[Interruptible]:
    """Return each running job with the number of further places that become free when it ends after all jobs
    before it in the list have ended."""
    freed: dict[str, list[Amounts]] = {}
    for one in running:
        here = {attempt.pod_id for attempt in one.attempts if attempt.pod_id in slots}
        before = sum(_places_in(slots[name], demand, freed.get(name, ())) for name in here)
        _free(freed, one)
        after = sum(_places_in(slots[name], demand, freed[name]) for name in here)
        yield _running(one, after - before)


def _places(slots: Mapping[str, PodSlot], demand: Demand, ended: Sequence[PreemptibleJob]) -> int:
    """Return the number of ranks with this demand that fit once the jobs `ended` have ended."""
    freed: dict[str, list[Amounts]] = {}
    for one in ended:
        _free(freed, one)
    return sum(_places_in(slot, demand, freed.get(name, ())) for name, slot in slots.items())


def _free(freed: dict[str, list[Amounts]], one: PreemptibleJob) -> None:
    for attempt in one.attempts:
        freed.setdefault(attempt.pod_id, []).append(attempt.given)


def _places_in(slot: PodSlot, demand: Demand, freed: Sequence[Amounts]) -> int:
    free = Amounts(
        memory_bytes=slot.free_memory + sum(one.memory_bytes for one in freed),
        gpus=slot.free_gpus + sum(one.gpus for one in freed),
    )
    most = slot.whole.most - slot.jobs + len(freed)
    return places_in(free, most, demand.memory_bytes, demand.gpus)
