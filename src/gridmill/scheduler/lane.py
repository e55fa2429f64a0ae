"""The state of one resource while a plan is made: its queue of jobs, and copies of its pods' free amounts."""

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
    """The least loaded of these pods that has room for it."""
    if demand.node:
        return pods.find_on(demand.node, demand.memory_bytes, demand.gpus)
    key = pods.find(demand.memory_bytes, demand.gpus)
    return None if demand.alone and key is not None and key[JOBS] else key


class Lane:
    """`closed`: nothing further fits its pods. `stuck`: nothing further can be brought up for it either.
    `reserved`: room is kept for one of its jobs (a gang's in `kept`). `reclaimed`: room is being taken back
    for one (`drained`: by emptying that node); `interrupting`: running jobs are making room for one
    (`beneficiary`, once they were asked). `tries`: for how many it was tried to make room so; `over_quota`:
    how many of those that the quota of their project has no room for have come into that line. `fair`:
    several projects wait. `alive`: pods that are up (of broken deployments those that run something), coming
    or planned. `members`: those behind the first of a class, once that was dealt with. `wanted_amounts`: what
    a new pod should have, once that was asked. `kept_for`: when the room that is kept for one is expected to
    be free; `backfills`: for how many jobs it was tried to go before it. `claimant`: the delayed job that has
    precedence and found no room."""

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
        self.planned: dict[str, list[str]] = {}  # node -> pods that this plan brings up there
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
        """How many more pods it may have; None: as many as are of use."""
        if self.resource.workers is None:
            return None
        return max(0, self.resource.workers - self.alive)

    @property
    def up(self) -> Pods:
        """Its pods that are up, as the snapshot has them."""
        return self._up

    def next_class(self, ticket: Ticket | None) -> Ticket | None:
        """The first job of the class behind the last that is in line, if `ticket` is that last one's first
        job (None: nothing is in line yet): so the lane is read only as far as it is served. Where several
        projects wait (`fair`), of the same project."""
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
        """The first job of one project: where several wait, each is read by itself."""
        self._heads_of[project] = iter(self.queue.heads[project])
        head = self._last_of[project] = next(self._heads_of[project], None)
        return head

    def behind_first(self, group: JobClass) -> Ticket | None:
        """The second job of a class; those behind it come from `members`."""
        members = self.members[group] = iter(group.members)
        next(members)
        return next(members, None)

    def find(self, demand: Demand) -> Key | None:
        """A pod that is up and has room."""
        if demand.alone or demand.node:
            return find_pod(self.open, demand)
        if self._too_much and self.is_too_much(demand):
            return None
        result = self.open.find(demand.memory_bytes, demand.gpus)
        if result is None:
            self._note_too_much(demand)
        return result

    def is_possible(self, demand: Demand) -> bool:
        """Whether nothing speaks against such jobs here, at a glance; if not, `problem_of` knows."""
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
        """Whether as much or less was already in vain: within one plan, pods only fill up."""
        return any(demand.memory_bytes >= memory and demand.gpus >= gpus for memory, gpus in self._too_much)

    @property
    def smallest(self) -> Demand:
        """Less than or as much as any waiting job asks for."""
        return Demand(self.queue.smallest_memory, self._gpus, 0.0, 0, self.resource.type)

    def holds(self, demand: Demand) -> bool:
        """Whether some pod, up or coming, would be large enough if it were empty; for a gang all together."""
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
        """How many of a gang's ranks have a place in what is free, kept for it, and coming."""
        pods = (self.open, self.coming, *((self.kept,) if self.kept_for_gang else ()))
        return sum(pod.places(demand.memory_bytes, demand.gpus) for pod in pods)

    def keep(self, demand: Demand, places: int | None = None) -> None:
        """Keep the pods that a gang can use free of later jobs: only as many as have the places it
        needs when they are empty, those with the most free."""
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
        """Keep a pod free of later jobs, for one job that waits for it."""
        self.kept.set(self.open.slot(pod_id))
        self.open.drop(pod_id)

    def slots(self) -> Iterator[PodSlot]:
        """All pods that are up, and what is free in them, kept for somebody or not; in no order."""
        for pods in (self.open, self.kept):
            yield from (slot for _, slot in pods.items())

    def claim(self, demand: Demand) -> None:
        """Reserve places on pods that are starting, for the ranks without a free place."""
        pods = (self.open, *((self.kept,) if self.kept_for_gang else ()))
        free = sum(one.places(demand.memory_bytes, demand.gpus) for one in pods)
        for _ in range(demand.workers - free):
            key = self.coming.find(demand.memory_bytes, demand.gpus)
            if key is not None:
                self.coming.take(key, demand.memory_bytes, demand.gpus)

    def freest(self, demand: Demand) -> str | None:
        """The large enough pod with the most free: the one to keep free for a job that waited too long.

        While it is kept free the most free of any pod never shrinks, so the job's turn comes even when
        another pod overtakes the one chosen first.
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
    """The jobs of all lanes in order, read lazily: the first stays until it was processed."""

    __slots__ = ("_heap", "_lanes")

    def __init__(self, lanes: dict[str, Lane]) -> None:
        self._heap: list[Ticket] = []
        self._lanes = lanes

    def join(self, lane: Lane) -> None:
        """Let the lane's waiting jobs in."""
        head = lane.next_class(None)
        if head is not None:
            heappush(self._heap, head)

    def add(self, ticket: Ticket) -> None:
        """Put a job in line."""
        heappush(self._heap, ticket)

    def in_order(self) -> Iterator[tuple[Ticket, Lane]]:
        """The first job and its lane, repeatedly: the caller processes it before it asks for the
        next."""
        heap, lanes = self._heap, self._lanes
        while heap:
            yield heap[0], lanes[heap[0][JOB_CLASS].resource]

    def leave(self) -> None:
        """Remove the first job without a successor."""
        heappop(self._heap)

    def leave_with_class(self, lane: Lane) -> None:
        """The first leaves with its class: the lane's next one comes in line."""
        head = lane.next_class(self._heap[0])
        if head is None:
            heappop(self._heap)
        else:
            heapreplace(self._heap, head)

    def move_on(self, lane: Lane) -> None:
        """The first was dealt with: those behind it come in line."""
        first = self._heap[0]
        behind = lane.members.get(first[JOB_CLASS])
        if behind is not None:  # the next class came in line behind the first of this one
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
