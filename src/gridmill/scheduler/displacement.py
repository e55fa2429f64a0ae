"""This module preempts across the resources of a site: jobs of lower priority release a node for a job of
another resource.

A pod keeps its memory and CPUs while it is up. Pods of other resources can therefore hold memory and CPUs
that an urgent job needs, although jobs of lower priority use them or no job uses them. Running jobs that can
resume are preempted for the urgent job. The deployment of a preempted job accepts no further job, and is
released as soon as it is idle (gridmill.scheduler.reclaim).
"""

from collections.abc import Callable, Iterator
from itertools import islice
from math import inf

from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.frozen import replace
from gridmill.domain.run import Attempt, JobRun
from gridmill.domain.states import PodState
from gridmill.scheduler.draft import DraftPlan
from gridmill.scheduler.lane import Lane
from gridmill.scheduler.preemptible import MOST_LOOKED_AT, PreemptibleJob
from gridmill.scheduler.provisioning import PART_OF_CPU
from gridmill.scheduler.queue import JOB_CLASS, NEGATIVE_PRIORITY, QuotaClaim, Ticket, demand_of
from gridmill.scheduler.reclaim import needed_of

May = Callable[[PreemptibleJob], bool]


def outranks(draft: DraftPlan, lane: Lane, ticket: Ticket) -> bool:
    """Return whether another resource of the site has a job of lower priority that waits, or that runs and
    can resume. If there is such a job and no job is preempted, that job gets the memory and CPUs that the
    urgent job needs."""
    priority = -ticket[NEGATIVE_PRIORITY]
    if priority <= _least_at(draft, lane.resource.site):
        return False
    if lane.name not in draft.least_elsewhere:
        draft.least_elsewhere[lane.name] = min(_priorities_elsewhere(draft, lane), default=inf)
    return priority > draft.least_elsewhere[lane.name]


def _least_at(draft: DraftPlan, site: str) -> float:
    """Return the lowest priority of all resources of a site. It is computed once for a plan, because usually
    all jobs have the same priority, and comparing each of hundreds of resources with all others takes a
    second."""
    if not draft.least_at:
        for name in draft.snapshot.lines.waiting.keys() | draft.snapshot.places.resumable.keys():
            lane = draft.lane(name)
            if lane is not None:
                known = draft.least_at.get(lane.resource.site, inf)
                draft.least_at[lane.resource.site] = min(known, *_priorities_of(draft, lane), inf)
    return draft.least_at.get(site, inf)


def _priorities_elsewhere(draft: DraftPlan, lane: Lane) -> Iterator[float]:
    snapshot, site = draft.snapshot, lane.resource.site
    for name in (snapshot.lines.waiting.keys() | snapshot.places.resumable.keys()) - {lane.name}:
        other = draft.lane(name)
        if other is not None and other.resource.site == site:
            yield from _priorities_of(draft, other)


def _priorities_of(draft: DraftPlan, lane: Lane) -> Iterator[float]:
    snapshot = draft.snapshot
    for line in lane.queue.heads.values():
        last = line.last()
        if last is not None:
            yield -last[NEGATIVE_PRIORITY]
    for _, key in islice(snapshot.places.resumable.get(lane.name, ()), MOST_LOOKED_AT):
        job_run = snapshot.job_runs.get(snapshot.attempts[key].job_run_id)
        if job_run is not None:
            yield job_run.priority


def displace(draft: DraftPlan, lane: Lane, ticket: Ticket, may_be: May) -> list[PreemptibleJob]:
    """Preempt as few running jobs of other resources as possible, so that the pods of one node can be
    released for this job. All preempted jobs have a lower priority than the job. The result is empty if no
    node can be released in this way. The function closes the deployments of the preempted jobs for new jobs
    and reserves the node."""
    demand, site = ticket[JOB_CLASS].demand, lane.resource.site
    if demand.workers > 1 or lane.workers_left == 0 or lane.holds(demand):
        return []
    best: tuple[int, str, list[Deployment], list[PreemptibleJob]] | None = None
    for node in sorted(name for name, _ in draft.snapshot.places.nodes[site].items()):
        if demand.node in ("", node):
            found = _way(draft, lane, ticket, node, may_be)
            if found is not None and (best is None or (len(found[1]), node) < best[:2]):
                best = (len(found[1]), node, *found)
    if best is None:
        return []
    _, node, deployments, chosen = best
    draft.reserved.add((site, node))
    for deployment in deployments:
        draft.close_pods(deployment.id)
    return chosen


def _way(
    draft: DraftPlan, lane: Lane, ticket: Ticket, node: str, may_be: May
) -> tuple[list[Deployment], list[PreemptibleJob]] | None:
    """Return the deployments of a node that would be released, and the jobs that would be preempted to
    release them. The result is None if the released memory, CPUs and GPUs would not be enough."""
    site = lane.resource.site
    whole, need = (
        draft.snapshot.places.capacities.get((site, node)),
        needed_of(draft, lane, ticket[JOB_CLASS].demand),
    )
    taken = (site, node) in draft.reserved and node != lane.drained
    if whole is None or taken or not need.fits_in(whole):
        return None
    need = replace(need, cpus=need.cpus or min(PART_OF_CPU, whole.cpus))
    free = draft.nodes(site).free(node)
    going: list[Deployment] = []
    chosen: list[PreemptibleJob] = []
    for count, _, deployment, jobs in sorted(_leaving(draft, lane, node, may_be), key=lambda one: one[:2]):
        if need.fits_in(free):
            break
        if count and not all(one.priority < -ticket[NEGATIVE_PRIORITY] for one in jobs):
            continue
        going.append(deployment)
        chosen += jobs
        for pod in deployment.pods:
            if pod.node == node and pod.state is not PodState.GONE:
                free = free + pod.capacity
    return (going, chosen) if chosen and need.fits_in(free) else None


def _leaving(
    draft: DraftPlan, lane: Lane, node: str, may_be: May
) -> Iterator[tuple[int, str, Deployment, list[PreemptibleJob]]]:
    """Return the deployments of other resources that are idle or whose jobs may all be preempted, with these
    jobs."""
    places = draft.snapshot.places
    owners = {places.owners[pod] for pod in places.claims.get((lane.resource.site, node), ())}
    for deployment in (draft.snapshot.deployments[key] for key in sorted(owners - draft.used)):
        if deployment.resource != lane.name:
            attempts = set(places.on.get(deployment.id, ()))
            jobs = [
                one
                for one in draft.running_on(deployment.resource)
                if any(attempt.id in attempts for attempt in one.attempts)
            ]
            known = {attempt.id for one in jobs for attempt in one.attempts}
            if attempts <= known and all(may_be(one) for one in jobs):
                yield len(jobs), deployment.id, deployment, jobs


def keep_displaced(draft: DraftPlan, lane: Lane, job_run: JobRun, attempt: Attempt) -> None:
    """Close the deployment of a preempted job for new jobs while the preempted job ends, if the deployment
    releases its node for a job of another resource. If the job is preempted only to release a part of a
    quota, the deployment stays open for new jobs."""
    ended = draft.snapshot.job_runs.get(attempt.job_run_id)
    claim = QuotaClaim(demand_of(job_run))
    standing = draft.standing_of(claim)
    if ended is None or ended.resource == lane.name or (standing is not None and standing.is_over(claim)):
        return
    if ended.priority < job_run.priority:
        draft.close_pods(attempt.deployment_id)
        draft.reserved.update((lane.resource.site, pod.node) for pod in _pods(draft, attempt))


def _pods(draft: DraftPlan, attempt: Attempt) -> Iterator[Pod]:
    deployment = draft.snapshot.deployments[attempt.deployment_id]
    return (pod for pod in deployment.pods if pod.id == attempt.pod_id)
