"""This module plans from a snapshot: which attempts to start and where, which deployments to start and
release, and which jobs to refuse.

Gangs are placed as a whole: either all ranks get a place, or none does.
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from math import inf, nextafter

from gridmill.domain.frozen import replace
from gridmill.domain.plan import Plan
from gridmill.domain.resource import Resource, Sizing, keep_of
from gridmill.domain.site import LOCAL, Site, SiteKind
from gridmill.domain.states import DeploymentState
from gridmill.scheduler.capacity import POD_ID, Key, PodSlot
from gridmill.scheduler.delayed import first_delayed, may_have_delayed
from gridmill.scheduler.displacement import outranks
from gridmill.scheduler.draft import NONE, DraftPlan, find_lasting
from gridmill.scheduler.fair_share import FairQueue
from gridmill.scheduler.feasibility import most_memory, most_places, problem_of
from gridmill.scheduler.lane import Lane, LaneQueue, find_pod
from gridmill.scheduler.preemption import MOST_TRIES, interrupt_for, keep_what_is_made, note_over_quota
from gridmill.scheduler.provisioning import bring_up, can_bring_up
from gridmill.scheduler.queue import JOB_CLASS, JOB_RUN_ID, SINCE, Demand, JobClass, JobQueue, Ticket
from gridmill.scheduler.reclaim import drain, reclaim
from gridmill.scheduler.reservation import may_pass, reservation_in
from gridmill.scheduler.snapshot import Snapshot


def start_gang(draft: DraftPlan, lane: Lane, ticket: Ticket) -> bool:
    """Start every rank of a gang, on the least loaded pods first. If not all ranks fit now, the function
    reserves nothing and returns False."""
    places = _find_places(draft, lane, ticket)
    if places is None:
        return False
    for slot in sorted(places, key=_by_node):
        pod_id = slot.key[POD_ID]
        draft.fill(ticket, pod_id, (slot.whole, lane.open.slot(pod_id).jobs))
    return True


def _find_places(draft: DraftPlan, lane: Lane, ticket: Ticket) -> list[PodSlot] | None:
    """Return the free amounts of one pod for each rank, as they were before the rank was placed on the pod.
    If not all ranks fit, the function restores the state of the resource and returns None."""
    demand, result = ticket[JOB_CLASS].demand, list[PodSlot]()
    while len(result) < demand.workers:
        key = _next_place(draft, lane, ticket)
        if key is None:
            for slot in reversed(result):
                lane.open.set(slot)
            return None
        result.append(lane.open.slot(key[POD_ID]))
        lane.open.take(key, demand.memory_bytes, demand.gpus)
    return result


def _next_place(draft: DraftPlan, lane: Lane, ticket: Ticket) -> Key | None:
    """Return the next place for a rank of a gang. Unlike the search for a job without ranks, a failed search
    is not recorded, because it shows nothing about jobs that need only one place."""
    demand = ticket[JOB_CLASS].demand
    key = lane.open.find(demand.memory_bytes, demand.gpus)
    return key if key is None or not draft.snapshot.places.terms else find_lasting(draft, lane, ticket)


def _by_node(slot: PodSlot) -> tuple[str, str]:
    """Return the sort key that places ranks on the same host next to each other."""
    return slot.whole.node, slot.key[POD_ID]


def brings_up_gang(draft: DraftPlan, lane: Lane, demand: Demand) -> bool:
    """Return whether all ranks of a gang will have a place. The function counts free places and places on
    starting pods, and starts deployments for the remaining ranks. If the remaining ranks do not all fit, the
    function starts no deployment, because half of a gang would only block other jobs."""
    mark = draft.mark(lane)
    missing = demand.workers - lane.places(demand)
    while missing > 0 and bring_up(draft, lane, demand, urgent=True, pods=missing):
        missing = demand.workers - lane.places(demand)
    if missing > 0:
        draft.undo(lane, mark)
        return False
    lane.claim(demand)
    return True


def plan(
    snapshot: Snapshot,
    now: float,
    *,
    limit: int | None = None,
    unwilling: Mapping[str, Collection[str]] = NONE,
    unfit: Mapping[str, Collection[str]] = NONE,
    starts: bool = True,
    halted: Collection[tuple[str, str]] = (),
) -> Plan:
    """Return the plan for the time `now`. The function is pure: it returns the same plan for the same
    snapshot and time, and does not change the snapshot.

    Jobs are ordered by priority, share of their project (fair_share), due time (ordering), run, and position
    in the pipeline. The jobs of a project never exceed its quota. Waiting jobs that fit into a running pod
    are started. A smaller job may start before a larger job, until the larger job has waited too long. For
    jobs that fit into no running pod, the plan starts deployments. If not enough memory, CPUs or GPUs are
    free for new deployments, the plan releases idle deployments. If no deployment is idle, running jobs that
    can resume are preempted for much shorter jobs or for jobs of a higher priority. If the quota of the
    project is the limit, running jobs of the same project are preempted.

    `limit` is the largest number of decisions in the plan. The field `complete` is false for a plan that was
    cut at this limit. `unwilling` has, by resource, the nodes on which its pods did not start: these nodes
    are tried last. Nodes in `unfit` lack amounts that they reported: they are not tried as long as other
    nodes are sufficient. No machines are rented for the resources and projects in `halted`, which has
    pairs of RESOURCE or PROJECT and a name. Without `starts`, no job starts and no job is preempted for a
    start; the plan only releases deployments that are not needed.
    """
    draft = DraftPlan(snapshot, now, limit, unwilling, unfit, halted)
    lanes = {name: lane for name in sorted(snapshot.lines.waiting) if (lane := draft.lane(name)) is not None}
    for lane in lanes.values():
        _refuse_too_large(draft, lane)
    keep_what_is_made(draft, lanes)
    if starts:
        for lane in lanes.values():
            _serve_delayed(draft, lane)
        later = _serve(draft, lanes)
        _make_room_for_delayed(draft, lanes)
        _make_room(draft, later)
        _warm(draft)
    _expire(draft)
    _call_off(draft)
    _look_again(draft)
    return draft.finish()


def _refuse_too_large(draft: DraftPlan, lane: Lane) -> None:
    """Refuse jobs that fit on no node. The function checks only jobs that may be too large."""
    most = most_memory(draft.snapshot, lane.resource)
    for group in lane.queue.largest_first() if most else ():
        if group.demand.memory_bytes <= most or draft.is_full:
            break
        _refuse_all(draft, lane, group, lane.smallest._replace(memory_bytes=group.demand.memory_bytes))


def _refuse_all(draft: DraftPlan, lane: Lane, group: JobClass, demand: Demand) -> None:
    for ticket in group.members:
        if draft.is_full:
            break
        _refuse_if_impossible(draft, lane, ticket[JOB_RUN_ID], demand)


def _refuse_if_impossible(draft: DraftPlan, lane: Lane, job_run_id: str, demand: Demand) -> bool:
    problem = problem_of(draft.snapshot, lane.resource, demand)
    if problem is not None and job_run_id not in draft.refused:
        draft.refuse(job_run_id, problem)
    return problem is not None


def _serve(draft: DraftPlan, lanes: dict[str, Lane]) -> LaneQueue:
    """Start the jobs that fit, in order. Returns the jobs for which there is no pod."""
    line, later = line_of(draft, lanes), line_of(draft, lanes)
    for lane in lanes.values():
        line.join(lane)
    shares = draft.shares
    for ticket, lane in line.in_order():
        if draft.is_full:
            break
        standing = None if shares is None else shares[ticket[JOB_CLASS].project]
        if standing is not None and standing.is_closed_to(ticket):
            if _pass_over(draft, line, lane, ticket):
                note_over_quota(draft, later, lane, ticket)
        elif draft.is_halted(lane.resource, ticket[JOB_CLASS].project):
            _serve_halted(draft, line, lane, ticket)
        elif lane.closed:
            _keep_room_if_starving(draft, lane, ticket)
            line.leave()
            later.add(ticket)
        elif _passes(draft, lane, ticket):
            line.move_on(lane)
        elif _is_started(draft, lane, ticket):
            if standing is not None:
                standing.start(ticket[JOB_CLASS])
            line.move_on(lane)
        elif draft.snapshot.places.terms and lane.find(ticket[JOB_CLASS].demand) is not None:
            # the pods with room end too early for this job, but shorter jobs behind it may fit
            later.add(ticket)
            line.move_on(lane)
        else:
            _not_served(draft, lane, ticket)
            line.leave_with_class(lane)
            later.add(ticket)
    return later


def _serve_halted(draft: DraftPlan, line: LaneQueue, lane: Lane, ticket: Ticket) -> None:
    """Start a job whose project or resource has used up its budget, if it fits on a machine that is rented
    already. No deployment is released and no job is preempted for it, because another machine would be
    rented. At a batch site, each job costs money."""
    if lane.closed or draft.snapshot.sites[lane.resource.site].kind is SiteKind.BATCH:
        line.leave_with_class(lane)
    elif _passes(draft, lane, ticket):
        line.move_on(lane)
    elif _is_started(draft, lane, ticket):
        if draft.shares is not None:
            draft.shares[ticket[JOB_CLASS].project].start(ticket[JOB_CLASS])
        line.move_on(lane)
    else:
        line.leave_with_class(lane)


def _serve_delayed(draft: DraftPlan, lane: Lane) -> None:
    """Start the most delayed jobs of a resource before their turn, until delayed jobs hold their share of
    the resource. Free amounts are reserved for the first delayed job that does not fit."""
    if not may_have_delayed(lane, draft.now):
        return
    delayed = draft.delayed(lane)
    for ticket in islice(first_delayed(lane, draft.shares), MOST_TRIES):
        if draft.is_halted(lane.resource, ticket[JOB_CLASS].project):
            continue
        demand = ticket[JOB_CLASS].demand
        until = ticket[SINCE] + delayed.patience
        if draft.now < until:
            draft.wake_at(until)
            break
        if draft.is_full or not delayed.has_share_for(demand):
            break
        standing = draft.standing_of(ticket[JOB_CLASS])
        if _passes(draft, lane, ticket) or (standing is not None and standing.is_closed_to(ticket)):
            continue
        if not _is_started(draft, lane, ticket):
            _keep_room_if_starving(draft, lane, ticket)
            lane.claimant = ticket
            break
        delayed.take(demand)
        draft.taken.add(ticket[JOB_RUN_ID])
        if standing is not None:
            standing.start(ticket[JOB_CLASS])


def line_of(draft: DraftPlan, lanes: dict[str, Lane]) -> LaneQueue:
    """Return a queue of all resources in which the jobs are in the order of the plan. If several projects
    wait, their shares determine the order."""
    projects = {name for lane in lanes.values() for name in lane.queue.heads}
    return LaneQueue(lanes) if draft.shares is None or len(projects) < 2 else FairQueue(lanes, draft.shares)


def _pass_over(draft: DraftPlan, line: LaneQueue, lane: Lane, ticket: Ticket) -> bool:
    """Skip all jobs with the same demand, because they exceed the quota of their project now. Returns False
    if the whole quota is too small for these jobs."""
    problem = draft.shares.problem(ticket[JOB_CLASS]) if draft.shares is not None else None
    if problem is None:
        line.leave_with_class(lane)
        return True
    if draft.can_start(ticket[JOB_RUN_ID]):
        draft.refuse(ticket[JOB_RUN_ID], problem)
    line.move_on(lane)
    return False


def _is_started(draft: DraftPlan, lane: Lane, ticket: Ticket) -> bool:
    """Start the job if it fits now; a gang starts as a whole. The function returns whether the job was
    started."""
    if ticket[JOB_CLASS].demand.workers > 1:
        return start_gang(draft, lane, ticket)
    place = find_lasting(draft, lane, ticket)
    if place is not None:
        draft.start(lane, ticket, place)
    return place is not None or _is_backfilled(draft, lane, ticket)


def _is_backfilled(draft: DraftPlan, lane: Lane, ticket: Ticket) -> bool:
    """Start the job before another job that has a reservation, on a reserved pod, if the job is expected to
    end before the other job can start. The function returns whether the job was started."""
    if lane.kept_for is None or lane.backfills >= MOST_TRIES:
        return False
    demand = ticket[JOB_CLASS].demand
    key = None if demand.alone or demand.node else lane.kept.find(demand.memory_bytes, demand.gpus)
    if key is None or key[POD_ID] in draft.snapshot.places.terms:
        return False
    lane.backfills += 1
    job_run = draft.snapshot.job_runs[ticket[JOB_RUN_ID]]
    expected = job_run.sizing.expected_seconds
    if expected is None:
        return False
    end = draft.now + max(0.0, expected - job_run.served_seconds)
    if not may_pass(lane.kept_for, demand.workers, end):
        return False
    draft.fill(ticket, key[POD_ID], lane.kept.take(key, demand.memory_bytes, demand.gpus))
    return True


def _passes(draft: DraftPlan, lane: Lane, ticket: Ticket) -> bool:
    """Return whether the plan must not place the job now because it is held back, started already, or
    refused."""
    job_run_id, demand = ticket[JOB_RUN_ID], ticket[JOB_CLASS].demand
    if not draft.can_start(job_run_id):
        return True
    return not lane.is_possible(demand) and _refuse_if_impossible(draft, lane, job_run_id, demand)


def _not_served(draft: DraftPlan, lane: Lane, ticket: Ticket) -> None:
    _keep_room_if_starving(draft, lane, ticket)
    if lane.find(lane.smallest) is None and not _may_backfill(lane):
        lane.closed = True


def _may_backfill(lane: Lane) -> bool:
    """Return whether some jobs may start before the job that has a reservation."""
    if lane.kept_for is None or lane.backfills >= MOST_TRIES:
        return False
    return lane.kept.find(lane.smallest.memory_bytes, lane.smallest.gpus) is not None


def _keep_room_if_starving(draft: DraftPlan, lane: Lane, ticket: Ticket) -> None:
    """Reserve memory, CPUs and GPUs for a job that has waited too long, or for a job that would otherwise
    lose them to a job of lower priority at another resource of the site. Later jobs use the reserved memory,
    CPUs and GPUs only if they are expected to end before the waiting job can start."""
    if lane.reserved or ticket[JOB_RUN_ID] == lane.beneficiary:
        return
    if not (draft.is_starving(ticket[JOB_RUN_ID]) or outranks(draft, lane, ticket)):
        return
    if _passes(draft, lane, ticket):
        return
    demand = ticket[JOB_CLASS].demand
    if _waits_for_nodes(draft, lane, demand):
        return
    lane.reserved = True
    pod_id = lane.freest(demand)
    if demand.workers > 1 and lane.holds(demand):
        lane.keep(demand, demand.workers)
        lane.kept_for = reservation_in(draft.snapshot, draft.now, lane.kept, demand)
    elif pod_id is not None and demand.workers == 1:
        lane.keep_free(pod_id)
        lane.kept_for = reservation_in(draft.snapshot, draft.now, lane.kept, demand)
    elif find_pod(lane.coming, demand) is None and not (
        bring_up(draft, lane, demand, urgent=True) or reclaim(draft, lane, demand, urgent=True)
    ):
        drain(draft, lane, demand)


def _waits_for_nodes(draft: DraftPlan, lane: Lane, demand: Demand) -> bool:
    """Return whether the job is a gang that waits for unavailable nodes. If only some of the ranks of such a
    gang fit, no memory, CPUs and GPUs are reserved, because the gang could not start with them."""
    return demand.workers > 1 and most_places(draft.snapshot, lane.resource, demand) < demand.workers


def _make_room_for_delayed(draft: DraftPlan, lanes: Mapping[str, Lane]) -> None:
    """Release deployments or preempt jobs for the delayed jobs that do not fit. For all other jobs in the
    queue, the function `_make_room` does the same later."""
    for lane in lanes.values():
        ticket = lane.claimant
        if ticket is None or draft.is_full or not draft.can_start(ticket[JOB_RUN_ID]):
            continue
        if not _will_fit(draft, lane, ticket[JOB_CLASS]):
            _not_fitting(draft, lane, ticket[JOB_CLASS].demand)
            interrupt_for(draft, lane, ticket)
        draft.taken.add(ticket[JOB_RUN_ID])


def _make_room(draft: DraftPlan, line: LaneQueue) -> None:
    """Release deployments or preempt jobs for jobs that have no pod, in order. The function first counts on
    the CPUs, memory and GPUs of deployments that are already starting."""
    for ticket, lane in line.in_order():
        if draft.is_full:
            break
        standing = draft.standing_of(ticket[JOB_CLASS])
        if standing is not None and standing.is_closed_to(ticket):
            interrupt_for(draft, lane, ticket)
            _pass_over(draft, line, lane, ticket)
        elif lane.stuck:
            interrupt_for(draft, lane, ticket)
            line.leave()
        elif _passes(draft, lane, ticket) or _will_fit(draft, lane, ticket[JOB_CLASS]):
            line.move_on(lane)
        else:
            _not_fitting(draft, lane, ticket[JOB_CLASS].demand)
            interrupt_for(draft, lane, ticket)
            line.leave_with_class(lane)


def _will_fit(draft: DraftPlan, lane: Lane, group: JobClass) -> bool:
    fits = _finds_or_brings_up(draft, lane, group.demand)
    if fits and draft.shares is not None:
        # counts the job, so that the plan does not start more pods than the quota allows
        draft.shares[group.project].start(group)
    return fits


def _finds_or_brings_up(draft: DraftPlan, lane: Lane, demand: Demand) -> bool:
    if demand.workers > 1:
        return brings_up_gang(draft, lane, demand)
    key = find_pod(lane.coming, demand)
    if key is None and bring_up(draft, lane, demand, urgent=not lane.holds(demand)):
        key = find_pod(lane.coming, demand)
    if key is not None:
        lane.coming.take(key, demand.memory_bytes, demand.gpus)
    return key is not None


def _not_fitting(draft: DraftPlan, lane: Lane, demand: Demand) -> None:
    """Release idle deployments for a job that does not fit. If no pod is large enough for the job, the
    function may release deployments that other jobs still need."""
    lacking = _waits_for_nodes(draft, lane, demand)
    urgent = not lane.holds(demand) and not lacking
    if not lane.reclaimed and not lacking:
        reclaim(draft, lane, demand, urgent=urgent)
    if urgent:
        draft.crowded.add(lane.resource.site)
    lane.stuck = lane.stuck or not can_bring_up(draft, lane, lane.smallest)


def _warm(draft: DraftPlan) -> None:
    """Start deployments early for blocked jobs, if no ready job needs the free amounts. No deployment is
    started early at sites where an idle deployment costs money or makes other users wait."""
    for name, queue in sorted(draft.snapshot.lines.blocked.items()):
        lane, head = draft.lane(name), queue.first
        if lane is None or head is None or draft.is_full or _costs_while_idle(draft, lane.resource):
            continue
        if lane.alive or len(lane.queue) or lane.resource.site in draft.crowded:
            continue
        if problem_of(draft.snapshot, lane.resource, head[JOB_CLASS].demand) is None:
            bring_up(draft, lane, head[JOB_CLASS].demand, urgent=True)


def _costs_while_idle(draft: DraftPlan, resource: Resource) -> bool:
    site = draft.snapshot.sites[resource.site].kind
    return keep_of(resource, site) == 0.0 or site is SiteKind.CLOUD


_SOON_SECONDS = 10.0
"""A job is ready at most this number of seconds after the jobs that it needs have ended. An idle deployment
is kept this long for the job, even if idle deployments cost money."""


def _not_halted(draft: DraftPlan, resource: Resource, queue: JobQueue) -> int:
    """Return the number of waiting jobs, without jobs for which no machine is rented because a budget is used
    up: an idle machine on which such a job does not fit must not be kept for the job."""
    if not draft.halted:
        return len(queue)
    groups = queue.classes.values()
    return sum(len(one.members) for one in groups if not draft.is_halted(resource, one.project))


def _expire(draft: DraftPlan) -> None:
    """Release idle deployments: broken deployments, and deployments whose `keep` time is over unless jobs of
    active runs need them."""
    lines, places = draft.snapshot.lines, draft.snapshot.places
    for name, entries in sorted(places.idle.items()):
        ready, blocked = (len(line[name]) if name in line else 0 for line in (lines.waiting, lines.blocked))
        resource = draft.snapshot.resources.get(name)
        if ready and resource is not None:
            ready = _not_halted(draft, resource, lines.waiting[name])
        extra_seconds = 0.0
        known = resource is not None and resource.site in draft.snapshot.sites
        if blocked and known and resource is not None and _costs_while_idle(draft, resource):
            extra_seconds, blocked = _SOON_SECONDS, 0
        needed = ready + blocked
        free = ((until, one) for until, one in entries if one not in draft.used | draft.released)
        idle = [(until + extra_seconds, one) for until, one in free]
        for until, one in tuple(idle):
            if places.is_broken(places.deployments[one]):
                draft.release(one, "a pod of the deployment was lost")
                idle.remove((until, one))
        for until, deployment_id in idle[: max(0, len(idle) - needed)]:
            if until > draft.now:
                draft.wake_at(until)
                break
            draft.release(deployment_id, "the deployment was idle for the time of its `keep`")


def asked_when_alone(site: Site, resource: Resource, demand: Demand) -> Sizing | None:
    """Return the deployment that would be started for one job with this demand at an empty site. The result
    is None if the site is too small for the job."""
    snapshot = Snapshot([site, resource])
    draft = DraftPlan(snapshot, 0.0, None)
    queue = JobQueue(resource.name)
    queue.add((0, 0.0, 0, 0, ""), demand)
    lane = Lane(snapshot, resource.name, resource, queue)
    if not _finds_or_brings_up(draft, lane, demand):
        return None
    sizings = [one.sizing for one in draft.finish().bring_ups]
    return replace(sizings[0], workers=sum(one.workers for one in sizings))


def _call_off(draft: DraftPlan) -> None:
    for deployment_id in needless(draft.snapshot):
        if deployment_id not in draft.used | draft.released:
            draft.release(deployment_id, "no job waits for it")
    for deployment_id in _without_machines(draft) if draft.halted else ():
        if deployment_id not in draft.used | draft.released:
            draft.release(deployment_id, "no machine is rented for it, because a budget is used up")


def _without_machines(draft: DraftPlan) -> Iterator[str]:
    """Yield deployments that are starting without a lease for jobs whose budget is used up. Otherwise they
    would count as machines of their site until the budget is increased."""
    snapshot, places = draft.snapshot, draft.snapshot.places
    rented = {lease.pod_id for lease in snapshot.leases.values()}
    for name in sorted(places.coming.keys() & snapshot.lines.waiting.keys()):
        resource, queue = snapshot.resources.get(name), snapshot.lines.waiting[name]
        if resource is None or _not_halted(draft, resource, queue):
            continue
        for key in dict.fromkeys(places.owners[pod_id] for pod_id, _ in places.coming[name].items()):
            one = snapshot.deployments[key]
            if one.state is DeploymentState.STARTING and rented.isdisjoint(pod.id for pod in one.pods):
                yield key


def needless(snapshot: Snapshot) -> tuple[str, ...]:
    """Return deployments at other sites that are still starting and for which no job waits any more, because
    the job moved or was stopped. A deployment that no job needs could wait in the queue of a site for hours,
    and then occupy machines that no job uses."""
    lines, places = snapshot.lines, snapshot.places
    names = sorted(places.coming.keys() - lines.waiting.keys() - lines.blocked.keys())
    owners = dict.fromkeys(
        places.owners[pod_id] for name in names for pod_id, _ in places.coming[name].items()
    )
    return tuple(key for key in owners if _only_comes_elsewhere(snapshot, key))


def _only_comes_elsewhere(snapshot: Snapshot, deployment_id: str) -> bool:
    one = snapshot.deployments[deployment_id]
    comes = one.state is DeploymentState.STARTING and deployment_id not in snapshot.places.on
    return comes and one.site != LOCAL


def _look_again(draft: DraftPlan) -> None:
    """Request another plan at the end of the next backoff."""
    held = draft.snapshot.lines.held.first_from((nextafter(draft.now, inf), ""))
    if held is not None:
        not_before, _ = held
        draft.wake_at(not_before)
