"""This module decides how a service runs in several pods, each on a node of its own: which pods start and
end, on which nodes, and which pod takes the place of the first pod after its end."""

from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from math import inf

from gridmill.domain.amounts import Amounts
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.resource import Resource
from gridmill.domain.run import Attempt, JobRun
from gridmill.domain.service import JOB, Service, ready_replicas
from gridmill.domain.service_pods import FurtherPod, by_use, job_of_pod
from gridmill.domain.states import FINISHED_JOBS
from gridmill.scheduler.feasibility import gpus_of
from gridmill.scheduler.snapshot import Snapshot

LEAVE_SECONDS = 3.0
"""A pod that is not needed ends this many seconds after the router was told to send no further requests to
it, so that the router has read its order."""
PATIENCE_SECONDS = 60.0
"""A pod that has waited this many seconds for its node gets another node, if one has room."""
AGAIN_SECONDS = 60.0
"""A pod whose job has failed starts again after this many seconds."""


class PodStep(Enum):
    """The next step of the pods of a service."""

    WAIT = "wait"
    TAKE_OVER = "take over"
    """A ready pod takes the place of the pod of the serving job, which has ended."""
    FORGET = "forget"
    """A further pod has ended, and does not start again by itself."""
    CLEAR = "clear"
    """The attempt in a further pod has ended, so that its report is not valid any more."""
    BIND = "bind"
    """The next attempts of a job run on the node `node`, or on each node if it is empty."""
    ADD = "add"
    """A further pod starts on the node `node`."""
    LEAVE = "leave"
    """A further pod is not needed, and gets no further requests."""
    SETTLE = "settle"
    """All added pods are ready, so that the others may have fewer replicas."""
    STOP = "stop"
    """A pod that gets no further requests ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextPodStep:
    """A step for the pod of `job`. `again_at` is the Unix time in seconds at which the decision may differ
    without an event."""

    step: PodStep = PodStep.WAIT
    job: str = ""
    node: str = ""
    again_at: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOfService:
    """One pod of a service: its job in the run, and the attempt in which it runs on the node `node`. They are
    None and empty if there are none."""

    job: str
    job_run: JobRun | None = None
    attempt: Attempt | None = None
    node: str = ""

    @property
    def bound_to(self) -> str:
        """The only node on which the next attempt of the job may run; empty if it may run on each node."""
        spec = self.job_run.job.service if self.job_run is not None else None
        return spec.node if spec is not None else ""

    @property
    def has_ended(self) -> bool:
        """Whether the job has no further attempt."""
        return self.job_run is None or self.job_run.state in FINISHED_JOBS


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadService:
    """Everything on which the next step of the pods of a service depends. `first` is the pod of its serving
    job, and `further` are its further pods, in the order of the record. `nodes` are the nodes of its site,
    and `roomy` those of them that have room for a pod of the service, the best one first."""

    service: Service
    first: PodOfService
    further: tuple[PodOfService, ...] = ()
    nodes: tuple[str, ...] = ()
    roomy: tuple[str, ...] = ()

    @property
    def all_pods(self) -> tuple[PodOfService, ...]:
        """All pods, the pod of the serving job first."""
        return (self.first, *self.further)


def decide_pods(spread: SpreadService, now: float) -> NextPodStep:
    """Decide the next step for the pods of a service. The function is pure."""
    if _is_settled(spread.service):
        return NextPodStep(step=PodStep.SETTLE)
    if spread.service.pods == 1 and not spread.further:
        is_bound = bool(spread.first.bound_to)
        return NextPodStep(step=PodStep.BIND, job=spread.first.job) if is_bound else NextPodStep()
    steps = (_after_ends(spread), *_bindings(spread, now), *_number_of_pods(spread, now))
    found = [one for one in steps if one is not None]
    chosen = next((one for one in found if one.step is not PodStep.WAIT), None)
    return chosen or NextPodStep(again_at=min((one.again_at for one in found), default=inf))


def _after_ends(spread: SpreadService) -> NextPodStep | None:
    service = spread.service
    for record, pod in zip(service.further_pods, spread.further, strict=True):
        if pod.has_ended:
            return NextPodStep(step=PodStep.FORGET, job=pod.job)
        reporting = pod.attempt.id if pod.attempt is not None else ""
        if record.report is not None and record.reported_by != reporting:
            return NextPodStep(step=PodStep.CLEAR, job=pod.job)
    if spread.first.attempt is not None:
        return None
    ready = next((one.job for one in service.further_pods if one.is_ready(0)), "")
    return NextPodStep(step=PodStep.TAKE_OVER, job=ready) if ready else None


def _bindings(spread: SpreadService, now: float) -> Iterator[NextPodStep]:
    for pod in spread.all_pods:
        if pod.has_ended:
            continue
        if pod.attempt is not None:
            # after its end, another attempt must not run on the node of another pod
            if pod.node and pod.bound_to != pod.node:
                yield NextPodStep(step=PodStep.BIND, job=pod.job, node=pod.node)
        elif pod.bound_to:
            yield _moved(spread, pod, now)


def _moved(spread: SpreadService, pod: PodOfService, now: float) -> NextPodStep:
    """Return the step for a pod that waits for its node: another node if its node has left or has no room."""
    others = tuple(one for one in spread.all_pods if one is not pod)
    since = pod.job_run.ready if pod.job_run is not None else None
    patient_until = (now if since is None else since) + PATIENCE_SECONDS
    is_held = pod.bound_to in spread.nodes and pod.bound_to not in _taken(others)
    if is_held and now < patient_until:
        return NextPodStep(again_at=patient_until)
    node = _free_node(spread, others, but=pod.bound_to)
    return NextPodStep(step=PodStep.BIND, job=pod.job, node=node) if node else NextPodStep()


def _number_of_pods(spread: SpreadService, now: float) -> Iterator[NextPodStep]:
    service = spread.service
    staying = by_use(service.further_pods)
    if len(staying) + 1 > service.pods and _may_leave(service, staying):
        yield NextPodStep(step=PodStep.LEAVE, job=staying[-1].job)
    for record, pod in zip(service.further_pods, spread.further, strict=True):
        if record.leaving is None or (pod.attempt is not None and pod.attempt.stop_requested):
            continue
        due = record.leaving + LEAVE_SECONDS
        ends_now = now >= due
        yield NextPodStep(step=PodStep.STOP, job=pod.job) if ends_now else NextPodStep(again_at=due)
    # the first pod may start on each node: the others wait until its node is known
    if len(staying) + 1 < service.pods and (spread.first.node or spread.first.bound_to):
        node = _free_node(spread, spread.all_pods)
        if node:
            yield NextPodStep(step=PodStep.ADD, job=_new_job(spread), node=node)


def _may_leave(service: Service, staying: Sequence[FurtherPod]) -> bool:
    """Return whether the last of the pods may leave: it serves nothing, or the other pods have the size with
    which they serve without it."""
    *others, last = staying
    return not last.is_ready(0) or (
        _is_first_ready(service) and all(one.is_ready(service.generation) for one in others)
    )


def _is_first_ready(service: Service) -> bool:
    """Return whether the pod of the serving job serves the newest order."""
    first = FurtherPod(job=service.serving_job, report=service.report)
    return first.is_ready(service.generation)


def with_wait_for_pods(before: Service, after: Service) -> Service:
    """Return a service after a change. If more pods with fewer replicas each are to serve, the present
    replicas keep their order until the added pods serve, so that no request fails meanwhile. A change of the
    API keys does not wait: a deleted key must have no effect any more."""
    if after.generation == before.generation:
        return after
    if (after.keys, after.settings.require_keys) != (before.keys, before.settings.require_keys):
        return replace(after, waits_for_pods=False)
    is_fewer_each = after.pods > before.pods and after.replicas < before.replicas
    waits = is_fewer_each or (before.waits_for_pods and after.pods >= before.pods)
    return replace(after, waits_for_pods=waits)


def _is_settled(service: Service) -> bool:
    """Return whether the replicas that keep an earlier order may get the newest one, because the pods that
    were added serve."""
    staying = by_use(service.further_pods)
    has_all = len(staying) + 1 >= service.pods and all(one.is_ready(0) for one in staying)
    return service.waits_for_pods and has_all


def jobs_by_use(service: Service) -> tuple[str, ...]:
    """Return the jobs of the pods of a service, in the order in which the pods stay when the service needs
    fewer of them; those that leave are the last ones."""
    staying = by_use(service.further_pods)
    leaving = (one for one in service.further_pods if one.leaving is not None)
    return (service.serving_job, *(one.job for one in (*staying, *leaving)))


def _new_job(spread: SpreadService) -> str:
    used = {pod.job for pod in spread.all_pods}
    numbers = range(1, len(used) + 2)
    return next(name for number in numbers if (name := job_of_pod(JOB, number)) not in used)


def _taken(pods: Collection[PodOfService]) -> set[str]:
    return {pod.node or pod.bound_to for pod in pods}


def _free_node(spread: SpreadService, pods: Collection[PodOfService], but: str = "") -> str:
    """Return the best node that has room and no other pod of the service; empty if there is none."""
    taken = _taken(pods) | {but}
    return next((node for node in spread.roomy if node not in taken), "")


def nodes_with_room(snapshot: Snapshot, resource: Resource, memory_bytes: int, gpus: int) -> tuple[str, ...]:
    """Return the nodes of the site of a resource that have room for a pod of a service: first those with a
    running pod of the resource, then those without GPUs that the service does not use, and then those with
    the most free memory."""
    site = snapshot.sites.get(resource.site)
    if site is None:
        return ()
    running = {
        slot.whole.node
        for pods in (snapshot.places.open.get(resource.name), snapshot.places.coming.get(resource.name))
        for _, slot in (pods.items() if pods is not None else ())
        if slot.free_memory >= memory_bytes and slot.free_gpus >= gpus and not slot.is_full
    }
    free = dict(snapshot.places.nodes[site.name].items())
    wanted = max(memory_bytes, resource.memory_bytes or 0)
    roomy = {
        name
        for name, amounts in free.items()
        if amounts.memory_bytes >= wanted
        and amounts.gpus >= max(gpus, gpus_of(resource))
        and amounts.cpus >= (resource.cpus or 0.0)
    }
    known = (node.name for node in site.nodes if node.name in running | roomy)
    return tuple(sorted(known, key=lambda name: _order(free[name], name in running, gpus, name)))


def _order(free: Amounts, is_running: bool, gpus: int, name: str) -> tuple[bool, bool, int, str]:
    """Return the sort key of a node. Nodes with GPUs come last if the service uses none."""
    return not is_running, bool(free.gpus) and not gpus, -free.memory_bytes, name


def node_of(snapshot: Snapshot, attempt: Attempt | None) -> str:
    """Return the node on which an attempt runs; empty if it is unknown."""
    deployment = snapshot.deployments.get(attempt.deployment_id) if attempt is not None else None
    pods = deployment.pods if deployment is not None else ()
    there = (one.node for one in pods if attempt is not None and one.id == attempt.pod_id)
    return next(there, "")


def pod_capacity(snapshot: Snapshot, attempt: Attempt) -> Amounts:
    """Return the CPUs and the memory of the pod of an attempt."""
    deployment = snapshot.deployments.get(attempt.deployment_id)
    pods = deployment.pods if deployment is not None else ()
    return next((one.capacity for one in pods if one.id == attempt.pod_id), attempt.given)


def room_in_pod(snapshot: Snapshot, attempt: Attempt) -> Amounts:
    """Return the CPUs, the memory and the GPUs of the pod of an attempt that its other attempts leave."""
    capacity = pod_capacity(snapshot, attempt)
    others = [
        one.given
        for one in snapshot.attempts.values()
        if one.pod_id == attempt.pod_id and one.id != attempt.id
    ]
    return Amounts(
        cpus=max(0.0, capacity.cpus - sum(one.cpus for one in others)),
        memory_bytes=max(0, capacity.memory_bytes - sum(one.memory_bytes for one in others)),
        gpus=max(0, capacity.gpus - sum(one.gpus for one in others)),
    )


def further_replicas(service: Service) -> int:
    """Return the number of replicas in further pods that are ready."""
    pods = service.further_pods if service.is_meant_to_run else ()
    return sum(ready_replicas(one.report) for one in pods if one.leaving is None)


def pods_message(service: Service) -> str:
    """Return the number of ready pods as a sentence, if not all of them are ready; otherwise an empty
    text."""
    wanted, ready = service.pods, service.ready_pods
    is_changing = not (service.is_in_effect or service.waits_for_pods)
    if service.route is None or ready >= wanted or is_changing:
        return ""
    absent = wanted - 1 - len([one for one in service.further_pods if one.leaving is None])
    waits = f"; no further node of site {service.site} has room for a pod" if absent else ""
    return f"{ready} of {wanted} pods are ready{waits}"
