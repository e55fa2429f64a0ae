"""This module has a plan under construction: the decisions so far, and the memory, CPUs and GPUs that these
decisions leave free.

If a batch system would end a pod before a job finishes, the job is not placed on that pod.
"""

from collections.abc import Collection, Mapping
from math import floor, inf
from types import MappingProxyType
from typing import NamedTuple

from gridmill.domain.lease_cost import PROJECT, RESOURCE
from gridmill.domain.plan import BringUp, Interrupt, Plan, Refuse, Release, StartJob
from gridmill.domain.resource import Resource
from gridmill.domain.run import JobRun
from gridmill.domain.site import PAID
from gridmill.scheduler.capacity import POD_ID, Key, Nodes, PodCapacity, Pods
from gridmill.scheduler.delayed import DelayedJobs
from gridmill.scheduler.fair_share import ProjectShares, ProjectStanding
from gridmill.scheduler.feasibility import RefusalReason, problem_of_resource, will_do_without
from gridmill.scheduler.lane import Lane, find_pod
from gridmill.scheduler.preemptible import PreemptibleJob, running_on
from gridmill.scheduler.queue import JOB_CLASS, JOB_RUN_ID, QuotaClaim, Ticket, demand_of
from gridmill.scheduler.snapshot import Snapshot

RESERVE_AFTER_SECONDS = 30.0
"""If a job has waited longer than this number of seconds, the plan reserves free memory, CPUs and GPUs for
it. Until a job has waited that long, smaller jobs may start before it. The smaller jobs keep the machines
busy, and the waiting job loses nothing, because running jobs may still release enough memory, CPUs and
GPUs."""


NONE: Mapping[str, Collection[str]] = MappingProxyType({})


class DraftCheckpoint(NamedTuple):
    """A copy of the state of a draft, which is made before deployments are started for a gang. The draft can
    be restored from this copy."""

    left: float
    bring_ups: int
    nodes: Nodes
    coming: Pods
    planned: dict[str, list[str]]
    alive: int


class DraftPlan:
    """The draft of a plan. The draft reads the snapshot and never changes it: the state of each resource and
    the nodes of each site are copied when the draft first uses them."""

    def __init__(
        self,
        snapshot: Snapshot,
        now: float,
        limit: int | None,
        unwilling: Mapping[str, Collection[str]] = NONE,
        unfit: Mapping[str, Collection[str]] = NONE,
        halted: Collection[tuple[str, str]] = (),
    ) -> None:
        self.snapshot = snapshot
        self.now = now
        self.refusing_nodes = unwilling
        """For each resource, the nodes that are tried last."""
        self._unfit = unfit
        self.halted = halted
        """The resources and projects for which no further machines are rented; see plan."""
        self._excluded_nodes: dict[str, Collection[str]] = {}
        self._left = inf if limit is None else limit
        """The number of decisions that the plan may still contain."""
        self._held_until = snapshot.lines.held_until
        self._attempts_of = snapshot.places.on
        self._lanes: dict[str, Lane | None] = {}
        self._nodes: dict[str, Nodes] = {}
        self._started: list[Ticket] = []
        self._where: list[str] = []
        """The pods of the started jobs, in the order of `_started`."""
        self._filled: dict[str, tuple[PodCapacity, int]] = {}
        """The pods that get jobs, with their number of jobs after this plan."""
        self.shares = ProjectShares(snapshot, now) if snapshot.projects else None
        self._running: dict[str, tuple[PreemptibleJob, ...]] = {}
        self._delayed: dict[str, DelayedJobs] = {}
        self.least_elsewhere: dict[str, float] = {}
        """The lowest priority of the jobs at other resources of each site. It is cached."""
        self.least_at: dict[str, float] = {}
        """The lowest priority of the jobs at each site. It is cached."""
        self.taken: set[str] = set()
        """The delayed jobs that were processed before their turn."""
        self.used: set[str] = set()
        """The deployments that get jobs."""
        self.released: set[str] = set()
        """The deployments that the plan releases."""
        self.reserved: set[tuple[str, str]] = set()
        """The nodes that are kept free for a waiting job."""
        self.crowded: set[str] = set()
        """The sites at which a ready job has no room."""
        self.draining: set[str] = set()
        """The sites at which a node is being emptied."""
        self.refused: set[str] = set()
        self._bring_ups: list[BringUp] = []
        self.releases: list[Release] = []
        self.refusals: list[Refuse] = []
        self.interrupts: list[Interrupt] = []
        self.again_at: float | None = None

    @property
    def is_full(self) -> bool:
        """Whether the plan has as many decisions as the caller requested."""
        return self._left <= 0

    def is_halted(self, resource: Resource, project: str) -> bool:
        """Return whether no machine is rented for the jobs of a project on a resource, and no job is
        submitted to a batch service, because the budget of one of them is used up."""
        if (PROJECT, project) not in self.halted and (RESOURCE, resource.name) not in self.halted:
            return False
        site = self.snapshot.sites.get(resource.site)
        return site is not None and site.kind in PAID

    def lane(self, name: str) -> Lane | None:
        """Return the state of a resource in this plan (a `Lane`). The result is None if no job can run on
        the resource, so that the jobs of the resource are refused."""
        if name not in self._lanes:
            self._lanes[name] = self._make_lane(name)
        return self._lanes[name]

    def _make_lane(self, name: str) -> Lane | None:
        queue = self.snapshot.lines.waiting.get(name)
        either = queue or self.snapshot.lines.blocked.get(name)
        head = either.first if either else None
        resource = self.snapshot.resources.get(name)
        if resource is None and head is not None:
            resource = self.snapshot.resource_of(name, head[JOB_CLASS].demand.kind)
        problem = problem_of_resource(self.snapshot, name, resource)
        if resource is not None and problem is None:
            return Lane(self.snapshot, name, resource, queue)
        if problem is not None and queue is not None:
            for group in queue.largest_first():
                for ticket in group.members:
                    self.refuse(ticket[JOB_RUN_ID], problem)
        return None

    def nodes(self, site: str) -> Nodes:
        """Return the free memory, CPUs and GPUs of the nodes of a site after the decisions so far."""
        if site not in self._nodes:
            self._nodes[site] = self.snapshot.places.nodes.get(site, Nodes()).copy()
        return self._nodes[site]

    def running_on(self, resource: str) -> tuple[PreemptibleJob, ...]:
        """Return the running jobs of a resource that can resume. The running jobs are computed at the first
        call."""
        if resource not in self._running:
            self._running[resource] = tuple(running_on(self.snapshot, resource, self.now))
        return self._running[resource]

    def delayed(self, lane: Lane) -> DelayedJobs:
        """Return the delayed jobs of a resource and the share that they hold. The delayed jobs are computed
        at the first call."""
        if lane.name not in self._delayed:
            self._delayed[lane.name] = DelayedJobs(self.snapshot, lane)
        return self._delayed[lane.name]

    def excluded_nodes(self, lane: Lane) -> Collection[str]:
        """Return the nodes that a resource does not use, because these nodes lack properties that its pods
        need and other nodes are sufficient."""
        if lane.name not in self._excluded_nodes:
            unfit = self._unfit.get(lane.name, ())
            will_do = not unfit or will_do_without(self.snapshot, lane.resource, unfit)
            self._excluded_nodes[lane.name] = unfit if will_do else ()
        return self._excluded_nodes[lane.name]

    def can_start(self, job_run_id: str) -> bool:
        """Return whether the job may start. A job may not start if it was refused, is held back, was
        processed in this plan, or has a live attempt."""
        return (
            job_run_id not in self._attempts_of
            and job_run_id not in self.refused
            and job_run_id not in self.taken
            and (job_run_id not in self._held_until or self._held_until[job_run_id] <= self.now)
        )

    def standing_of(self, claim: QuotaClaim) -> ProjectStanding | None:
        """Return the use and the limits of the project whose quota is charged with `claim`. The result is
        None if the grid has no projects."""
        return None if self.shares is None else self.shares[claim.project]

    def keep_quota(self, job_run: JobRun) -> None:
        """Reserve the part of the project's quota that is free for a job that does not fit into this part
        yet."""
        claim = QuotaClaim(demand_of(job_run))
        standing = self.standing_of(claim)
        if standing is not None and standing.is_over(claim):
            standing.kept_for = job_run.id

    def is_starving(self, job_run_id: str) -> bool:
        """Return whether the job has waited long enough for the plan to reserve memory, CPUs and GPUs for
        it."""
        job_run = self.snapshot.job_runs[job_run_id]
        since = self.snapshot.runs[job_run.run_id].created if job_run.ready is None else job_run.ready
        return self.now - since > RESERVE_AFTER_SECONDS

    def start(self, lane: Lane, ticket: Ticket, key: Key) -> None:
        """Start a job on a pod that was found for this job."""
        demand = ticket[JOB_CLASS].demand
        self.fill(ticket, key[POD_ID], lane.open.take(key, demand.memory_bytes, demand.gpus))

    def fill(self, ticket: Ticket, pod_id: str, filled: tuple[PodCapacity, int]) -> None:
        """Record that a job, or the next rank of a gang, starts on a pod."""
        self._filled[pod_id] = filled
        whole, _ = filled
        self.used.add(whole.deployment_id)
        self._started.append(ticket)
        self._where.append(pod_id)
        self._left -= 1

    def refuse(self, job_run_id: str, problem: RefusalReason) -> None:
        """Refuse a job, unless the plan has already reached its largest number of decisions."""
        if not self.is_full:
            self._left -= 1
            self.refused.add(job_run_id)
            self.refusals.append(Refuse(job_run_id=job_run_id, message=problem.message, hint=problem.hint))

    def interrupt(self, wanted: Interrupt) -> None:
        """Preempt a running job for a waiting job."""
        self._left -= 1
        self.interrupts.append(wanted)

    def bring_up(self, wanted: BringUp) -> None:
        """Start the pods of a deployment of a resource."""
        self._left -= 1
        self._bring_ups.append(wanted)

    def machines_left(self, site: str) -> int | None:
        """Return the number of machines that may still be rented at a cloud site: each pod, also a pod that
        this plan starts, has a machine of its own, and machines that end still cost money. The result is None
        for a site of another kind."""
        declared = self.snapshot.sites.get(site)
        most = None if declared is None else declared.most_machines
        if most is None:
            return None
        rented = self.snapshot.rented_machines(site)
        started = sum(len(one.nodes) for one in self._bring_ups if one.resource.site == site)
        return max(0, most - rented.of_pods - rented.others - started)

    def waits_for_machines(self, site: str) -> bool:
        """Return whether no further machine may be rented at a cloud site until a machine has ended that ends
        now."""
        return self.machines_left(site) == 0 and self.snapshot.rented_machines(site).others > 0

    def mark(self, lane: Lane) -> DraftCheckpoint:
        """Return a copy of the state that changes when deployments are started for a resource. The method
        `undo` restores the draft from this copy."""
        planned = {node: list(pods) for node, pods in lane.planned.items()}
        nodes = self.nodes(lane.resource.site).copy()
        return DraftCheckpoint(
            self._left, len(self._bring_ups), nodes, lane.coming.copy(), planned, lane.alive
        )

    def undo(self, lane: Lane, mark: DraftCheckpoint) -> None:
        """Restore the draft from a copy that the method `mark` returned."""
        self._left = mark.left
        del self._bring_ups[mark.bring_ups :]
        self._nodes[lane.resource.site] = mark.nodes
        lane.coming, lane.planned, lane.alive = mark.coming, mark.planned, mark.alive

    def release(self, deployment_id: str, reason: str) -> None:
        """Release a deployment that is idle. The pods of the released deployment accept no further job."""
        self.released.add(deployment_id)
        self.releases.append(Release(deployment_id=deployment_id, reason=reason))
        self.close_pods(deployment_id)

    def close_pods(self, deployment_id: str) -> None:
        """Close the pods of a deployment, so that later jobs of this plan do not use them."""
        deployment = self.snapshot.deployments[deployment_id]
        lane = self.lane(deployment.resource)
        for pod in deployment.pods if lane else ():
            if lane is not None:
                lane.open.drop(pod.id)
                lane.coming.drop(pod.id)

    def wake_at(self, time: float) -> None:
        """Request that the next plan is made at that time or earlier."""
        if time != inf:
            self.again_at = time if self.again_at is None else min(self.again_at, time)

    def finish(self) -> Plan:
        """Return the finished plan."""
        return Plan(
            starts=self._given_starts(),
            bring_ups=tuple(self._bring_ups),
            releases=tuple(self.releases),
            refusals=tuple(self.refusals),
            interrupts=tuple(self.interrupts),
            again_at=self.again_at,
            # not complete after a refusal, because only the next plan processes the job behind a refused job
            complete=not (self.is_full or self.refusals),
        )

    def _given_starts(self) -> tuple[StartJob, ...]:
        """Return the started jobs with the CPUs, memory and GPUs that each job receives. The jobs receive
        the memory and the GPUs that they request. All jobs in a pod share its CPUs equally, unless a job
        requests CPUs."""
        shares = {
            pod_id: (whole.deployment_id, float(max(1, floor(whole.capacity.cpus / jobs))))
            for pod_id, (whole, jobs) in self._filled.items()
        }
        starts: list[StartJob] = []
        for (_, _, _, _, job_run_id, group, _, _), pod_id in zip(self._started, self._where, strict=True):
            memory_bytes, gpus, cpus = group.demand[:3]
            deployment_id, share = shares[pod_id]
            given = (job_run_id, deployment_id, pod_id, cpus or share, memory_bytes, gpus)
            # without the constructor, because this is twice as fast and a plan may start 100,000 jobs
            starts.append(tuple.__new__(StartJob, given))
        return tuple(starts)


_MOST_SHARE = 0.9
"""A job that is expected to take longer than this fraction of a pod's lifetime gets a new pod, because no
existing pod would live long enough, and a forecast may be wrong."""


def find_lasting(draft: DraftPlan, lane: Lane, ticket: Ticket) -> Key | None:
    """Return a pod that is up, has enough free CPUs, memory and GPUs for the job, and lives at least as long
    as the job is expected to run."""
    demand = ticket[JOB_CLASS].demand
    result = lane.find(demand)
    if result is None or not draft.snapshot.places.terms:
        return result
    expected = draft.snapshot.job_runs[ticket[JOB_RUN_ID]].sizing.expected_seconds
    too_short = []
    while result is not None and expected is not None and not lasts(draft, result[POD_ID], expected):
        too_short.append(lane.open.slot(result[POD_ID]))
        lane.open.drop(result[POD_ID])
        result = find_pod(lane.open, demand)
    for slot in too_short:
        lane.open.set(slot)
    return result


def lasts(draft: DraftPlan, pod_id: str, expected_seconds: float) -> bool:
    """Return whether the pod lives at least as long as a job is expected to run on it."""
    term = draft.snapshot.places.terms.get(pod_id)
    if term is None:
        return True
    began, ends = term
    return ends - draft.now >= min(expected_seconds, _MOST_SHARE * (ends - began))
