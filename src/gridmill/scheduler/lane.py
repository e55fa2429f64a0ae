"""This module has the state of one resource while a plan is made: its queue of jobs, and copies of its pods'
free amounts."""

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace

from gridmill.domain.amounts import Amounts
from gridmill.domain.resource import Resource
from gridmill.scheduler.capacity import JOBS, Key, Pods, PodSlot, places_in
from gridmill.scheduler.feasibility import gpus_of, most_memory
from gridmill.scheduler.queue import JOB_CLASS, Demand, JobClass, JobQueue, Ticket
from gridmill.scheduler.reservation import Reservation
from gridmill.scheduler.snapshot import Snapshot

_NO_PODS = Pods()


def find_pod(pods: Pods, demand: Demand) -> Key | None:
    """Return the least loaded of these pods that has enough free memory and GPUs for the demand."""
    if demand.node:
        return pods.find_on(demand.node, demand.memory_bytes, demand.gpus)
    key = pods.find(demand.memory_bytes, demand.gpus)
    return None if demand.alone and key is not None and key[JOBS] else key


class Lane:
    """The state of one resource in a plan.

    `closed` means that no further job fits into the pods of the resource. `stuck` means that no further
    deployment can be started for the resource either. `reserved` means that free memory, CPUs and GPUs are
    reserved for a job of the resource (for a gang, in `kept`). `reclaimed` means that the plan is releasing
    deployments for a job. `drained` is the node that the plan empties for a job. `interrupting` means that
    running jobs are being preempted for a job. `beneficiary` is the job for which running jobs were asked to
    end. `tries` is the number of jobs for which the plan looked for jobs to preempt. `over_quota` is the
    number of jobs over their quota for which the plan looked for jobs to preempt. `fair` means that jobs of
    several projects wait. `alive` is the number of pods that are up, starting or planned. Pods of broken
    deployments are counted in `alive` while they run a job. After the first job of a class was processed,
    `members` has the jobs of this class that follow it. `wanted_amounts` are the CPUs, memory and GPUs that
    a new pod should have, or None until they are computed. `kept_for` is the reservation of memory, CPUs and
    GPUs for a waiting job. `backfills` is the number of jobs that the plan tried to start before the job
    with the reservation. `claimant` is the delayed job that has precedence and for which the plan found no
    place.
    """

    __slots__ = (
        "_gpus",
        "_heads",
        "_heads_of",
        "_last_head",
        "_last_of",
        "_most_memory",
        "_too_much",
        "_up",
        "alive",
        "backfills",
        "beneficiary",
        "claimant",
        "closed",
        "coming",
        "drained",
        "fair",
        "interrupting",
        "kept",
        "kept_for",
        "kept_for_gang",
        "members",
        "name",
        "open",
        "over_quota",
        "planned",
        "queue",
        "reclaimed",
        "reserved",
        "resource",
        "stuck",
        "tries",
        "wanted_amounts",
    )

    def __init__(self, snapshot: Snapshot, name: str, resource: Resource, queue: JobQueue | None) -> None:
        self.name = name
        self.resource = resource
        self.queue = queue or JobQueue(name)
        self.open = snapshot.places.open.get(name, _NO_PODS).copy()
        self.coming = snapshot.places.coming.get(name, _NO_PODS).copy()
        self.kept = Pods()
        self.closed = len(self.open) == 0
        self.stuck = False
        self.reserved = False
        self.reclaimed = False
        self.drained = ""
        self.interrupting = name in snapshot.places.yielding
        self.beneficiary = ""
        self.tries = 0
        self.over_quota = 0
        self.kept_for: Reservation | None = None
        self.kept_for_gang = False
        self.backfills = 0
        self.claimant: Ticket | None = None
        self.planned: dict[str, list[str]] = {}
        """The pods that this plan starts on each node."""
        self.alive = len(self.open) + len(self.coming) + snapshot.places.busy_broken(name)
        self.wanted_amounts: Amounts | None = None
        self._up = snapshot.places.open.get(name, _NO_PODS)
        self._most_memory = most_memory(snapshot, resource)
        self._gpus = gpus_of(resource)
        self._too_much: list[tuple[int, int]] = []
        self._heads = self.queue.in_order()
        self._last_head: Ticket | None = None
        self.fair = False
        self._last_of: dict[str, Ticket | None] = {}
        self._heads_of: dict[str, Iterator[Ticket]] = {}
        self.members: dict[JobClass, Iterator[Ticket]] = {}

    @property
    def workers_left(self) -> int | None:
        """The number of further pods that the resource may have, or None if its number of pods is not
        limited."""
        if self.resource.workers is None:
            return None
        return max(0, self.resource.workers - self.alive)

    @property
    def up(self) -> Pods:
        """The pods of the resource that are up in the snapshot."""
        return self._up

    def next_class(self, ticket: Ticket | None) -> Ticket | None:
        """Return the first job of the next class in the queue, if `ticket` is the first job of the last
        class that was returned. If `ticket` is None, the method returns the first job of all classes. The
        jobs of the resource are therefore read only when the plan needs them. If several projects wait
        (`fair`), the method returns the next class of the same project."""
        if self.fair and ticket is not None:
            project = ticket[JOB_CLASS].project
            if ticket is not self._last_of[project]:
                return None
            head = self._last_of[project] = next(self._heads_of[project], None)
            return head
        if ticket is not self._last_head:
            return None
        self._last_head = next(self._heads, None)
        return self._last_head

    def first_of(self, project: str) -> Ticket | None:
        """Return the first waiting job of one project at this resource. If several projects wait, the queue
        of each project is read separately."""
        self._heads_of[project] = iter(self.queue.heads[project])
        head = self._last_of[project] = next(self._heads_of[project], None)
        return head

    def behind_first(self, group: JobClass) -> Ticket | None:
        """Return the second job of a class. After this call, `members` returns the jobs that follow this
        job."""
        members = self.members[group] = iter(group.members)
        next(members)
        return next(members, None)

    def find(self, demand: Demand) -> Key | None:
        """Return a pod that is up and has enough free memory and GPUs for the demand."""
        if demand.alone or demand.node:
            return find_pod(self.open, demand)
        if self._too_much and self.is_too_much(demand):
            return None
        result = self.open.find(demand.memory_bytes, demand.gpus)
        if result is None:
            self._note_too_much(demand)
        return result

    def is_possible(self, demand: Demand) -> bool:
        """Return whether jobs with this demand can run on this resource, by a quick check. If this quick
        check returns False, the function `problem_of` must find out whether the jobs can run."""
        return (
            demand.memory_bytes <= self._most_memory
            and demand.gpus <= self._gpus
            and not demand.cpus
            and not demand.node
            and demand.workers == 1
            and demand.kind is self.resource.type
        )

    def _note_too_much(self, demand: Demand) -> None:
        memory, gpus = demand.memory_bytes, demand.gpus
        self._too_much = [other for other in self._too_much if other[0] < memory or other[1] < gpus]
        self._too_much.append((memory, gpus))

    def is_too_much(self, demand: Demand) -> bool:
        """Return whether this plan has already found no place for a demand that is not larger than this
        demand. Within one plan, the free memory, CPUs and GPUs only shrink."""
        return any(demand.memory_bytes >= memory and demand.gpus >= gpus for memory, gpus in self._too_much)

    @property
    def smallest(self) -> Demand:
        """Return a demand that is at most as large as the demand of each waiting job."""
        return Demand(self.queue.smallest_memory, self._gpus, 0.0, 0, self.resource.type)

    def holds(self, demand: Demand) -> bool:
        """Return whether a pod that is up or starting would be large enough for the demand if it were empty.
        For a gang, the method returns whether all these pods together would be large enough."""
        if demand.workers > 1:
            wholes = (self._up, self.coming)
            have = sum(pods.places(demand.memory_bytes, demand.gpus, empty=True) for pods in wholes)
            return have >= demand.workers
        if demand.node:
            return any(
                slot.whole.node == demand.node
                and slot.whole.capacity.memory_bytes >= demand.memory_bytes
                and slot.whole.capacity.gpus >= demand.gpus
                for pods in (self.open, self.coming)
                for _, slot in pods.items()
            )
        return any(
            memory >= demand.memory_bytes and gpus >= demand.gpus
            for pods in (self._up, self.coming)
            for memory, gpus in pods.capacities
        )

    def places(self, demand: Demand) -> int:
        """Return the number of a gang's ranks that fit into the free memory and GPUs, the reserved pods, and
        the pods that are starting."""
        pods = (self.open, self.coming, *((self.kept,) if self.kept_for_gang else ()))
        return sum(pod.places(demand.memory_bytes, demand.gpus) for pod in pods)

    def keep(self, demand: Demand, places: int | None = None) -> None:
        """Reserve pods for a gang, so that later jobs do not use them. The pods with the most free memory,
        CPUs and GPUs are reserved: as many pods as are needed so that the gang fits once these pods are
        empty."""
        self.kept_for_gang = True
        found = []
        for pod_id, slot in self.open.items():
            whole, memory, gpus = slot.whole, demand.memory_bytes, demand.gpus
            if whole.capacity.memory_bytes >= memory and whole.capacity.gpus >= gpus:
                free = Amounts(memory_bytes=slot.free_memory, gpus=slot.free_gpus)
                room = places_in(free, whole.most - slot.jobs, memory, gpus)
                found.append((-room, pod_id, places_in(whole.capacity, whole.most, memory, gpus)))
        for _, pod_id, most in sorted(found):
            if places is not None and places <= 0:
                break
            places = None if places is None else places - most
            self.kept.set(self.open.slot(pod_id))
            self.open.drop(pod_id)

    def keep_free(self, pod_id: str) -> None:
        """Reserve a pod for one waiting job, so that later jobs do not use it."""
        self.kept.set(self.open.slot(pod_id))
        self.open.drop(pod_id)

    def slots(self) -> Iterator[PodSlot]:
        """Return all pods that are up with their free amounts, including pods that are reserved. The pods
        are returned in any order."""
        for pods in (self.open, self.kept):
            yield from (slot for _, slot in pods.items())

    def claim(self, demand: Demand) -> None:
        """Reserve places on pods that are starting, for the ranks that have no free place."""
        pods = (self.open, *((self.kept,) if self.kept_for_gang else ()))
        free = sum(one.places(demand.memory_bytes, demand.gpus) for one in pods)
        for _ in range(demand.workers - free):
            key = self.coming.find(demand.memory_bytes, demand.gpus)
            if key is not None:
                self.coming.take(key, demand.memory_bytes, demand.gpus)

    def freest(self, demand: Demand) -> str | None:
        """Return the pod to reserve for a job that has waited too long: among the pods that are large
        enough, the pod with the most free memory, CPUs and GPUs.

        While a pod is reserved, the free memory, CPUs and GPUs of the freest pod never shrink. The waiting
        job therefore starts eventually, even if another pod becomes freer than the pod that was chosen
        first.
        """
        large = [
            (min(slot.free_gpus, demand.gpus), slot.free_memory, pod_id)
            for pod_id, slot in self.open.items()
            if (not demand.node or slot.whole.node == demand.node)
            and slot.whole.capacity.memory_bytes >= demand.memory_bytes
            and slot.whole.capacity.gpus >= demand.gpus
        ]
        return max(large)[2] if large else None


class LaneQueue:
    """The waiting jobs of all resources in order; each job is read only when the plan needs it. The first
    job stays in the queue until it was processed."""

    __slots__ = ("_heap", "_lanes")

    def __init__(self, lanes: dict[str, Lane]) -> None:
        self._heap: list[Ticket] = []
        self._lanes = lanes

    def join(self, lane: Lane) -> None:
        """Add the first waiting job of a resource to the queue."""
        head = lane.next_class(None)
        if head is not None:
            heappush(self._heap, head)

    def add(self, ticket: Ticket) -> None:
        """Add a job to the queue."""
        heappush(self._heap, ticket)

    def in_order(self) -> Iterator[tuple[Ticket, Lane]]:
        """Return the first job and the state of its resource (a `Lane`), repeatedly until the queue is
        empty. The caller must process the returned job before it requests the next job."""
        heap, lanes = self._heap, self._lanes
        while heap:
            yield heap[0], lanes[heap[0][JOB_CLASS].resource]

    def leave(self) -> None:
        """Remove the first job from the queue, without adding the next job of its resource."""
        heappop(self._heap)

    def leave_with_class(self, lane: Lane) -> None:
        """Remove the first job from the queue, and skip all other jobs of its class. The first job of the
        next class of the same resource is added to the queue."""
        head = lane.next_class(self._heap[0])
        if head is None:
            heappop(self._heap)
        else:
            heapreplace(self._heap, head)

    def move_on(self, lane: Lane) -> None:
        """Remove the first job, which was processed, from the queue, and add the jobs that follow it at its
        resource."""
        first = self._heap[0]
        behind = lane.members.get(first[JOB_CLASS])
        # the next class is already in the heap, because it was added behind the first job of this class
        if behind is not None:
            member = next(behind, None)
            if member is None:
                heappop(self._heap)
            else:
                heapreplace(self._heap, member)
            return
        member = lane.behind_first(first[JOB_CLASS]) if len(first[JOB_CLASS].members) > 1 else None
        if member is None:
            self.leave_with_class(lane)
            return
        heapreplace(self._heap, member)
        head = lane.next_class(first)
        if head is not None:
            heappush(self._heap, head)
