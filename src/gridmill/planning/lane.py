"""One resource while a plan is made: its line of jobs, and copies of what is free in its pods."""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from gridmill.model.resource import Resource
from gridmill.planning.limits import gpus_of, most_memory
from gridmill.planning.queue import Demand, JobClass, Queue, Rank
from gridmill.planning.room import Key, Pods
from gridmill.planning.snapshot import Snapshot

_NO_PODS = Pods()


class Entry(NamedTuple):
    """The next job of a class. `members` are the ones behind it; `heads`, for the first of a class, the
    classes behind this one, so that a lane is read only as far as it is served."""

    rank: Rank
    group: JobClass
    lane: "Lane"
    members: Iterator[Rank] | None
    heads: Iterator[tuple[Rank, JobClass]] | None

    @property
    def job_run_id(self) -> str:
        """The job."""
        return self.rank[3]

    @property
    def demand(self) -> Demand:
        """What it asks for."""
        return self.group.demand


class Lane:
    """`closed`: nothing further fits its pods. `stuck`: nothing further can be brought up for it either.
    `reserved`: room is kept for one of its jobs. `reclaimed`: room is being taken back for one. `alive`: pods
    that are up, coming or planned.
    """

    def __init__(self, snapshot: Snapshot, name: str, resource: Resource, queue: Queue | None) -> None:
        self.name = name
        self.resource = resource
        self.queue = queue or Queue()
        self.open = snapshot.places.open.get(name, _NO_PODS).copy()
        self.coming = snapshot.places.coming.get(name, _NO_PODS).copy()
        self.closed = len(self.open) == 0
        self.stuck = False
        self.reserved = False
        self.reclaimed = False
        self.planned: dict[str, list[str]] = {}  # node -> pods that this plan brings up there
        self.alive = len(self.open) + len(self.coming)
        self._up = snapshot.places.open.get(name, _NO_PODS)
        self._most_memory = most_memory(snapshot, resource)
        self._gpus = gpus_of(resource)
        self._too_much: list[tuple[int, int]] = []

    @property
    def workers_left(self) -> int | None:
        """How many more pods it may have; None: as many as are of use."""
        if self.resource.workers is None:
            return None
        return max(0, self.resource.workers - self.alive)

    def find(self, demand: Demand) -> Key | None:
        """A pod that is up and has room."""
        if self._too_much and self.is_too_much(demand):
            return None
        found = self.open.find(demand.memory_bytes, demand.gpus)
        if found is None:
            self._note_too_much(demand)
        return found

    def is_possible(self, demand: Demand) -> bool:
        """Whether nothing speaks against such jobs here, at a glance; if not, `problem_of` knows."""
        return (
            demand.memory_bytes <= self._most_memory
            and demand.gpus <= self._gpus
            and demand.cpus is None
            and demand.kind is self.resource.type
        )

    def _note_too_much(self, demand: Demand) -> None:
        memory, gpus = demand.memory_bytes, demand.gpus
        self._too_much = [known for known in self._too_much if known[0] < memory or known[1] < gpus]
        self._too_much.append((memory, gpus))

    def is_too_much(self, demand: Demand) -> bool:
        """Whether as much or less was already in vain: within one plan, pods only fill up."""
        return any(demand.memory_bytes >= memory and demand.gpus >= gpus for memory, gpus in self._too_much)

    @property
    def smallest(self) -> Demand:
        """Less than or as much as any waiting job asks for."""
        return Demand(self.queue.smallest_memory, self._gpus, None, 0, self.resource.type)

    def holds(self, demand: Demand) -> bool:
        """Whether some pod, up or coming, would be large enough if it were empty."""
        return any(
            memory >= demand.memory_bytes and gpus >= demand.gpus
            for pods in (self._up, self.coming)
            for memory, gpus in pods.capacities
        )

    def freest(self, demand: Demand) -> str | None:
        """The large enough pod with the most free: the one to keep free for a job that waited too long.

        While it is kept free the most free of any pod never shrinks, so the job's turn comes even when
        another pod overtakes the one chosen first.
        """
        large = [
            (min(slot.free_gpus, demand.gpus), slot.free_memory, pod_id)
            for pod_id, slot in self.open.items()
            if slot.capacity.memory_bytes >= demand.memory_bytes and slot.capacity.gpus >= demand.gpus
        ]
        return max(large)[2] if large else None


class Line:
    """All lanes' jobs in order, read lazily."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []

    def __bool__(self) -> bool:
        return bool(self._heap)

    def join(self, lane: Lane) -> None:
        """Let the lane's waiting jobs in."""
        self._push_head(lane, iter(lane.queue.heads))

    def add(self, entry: Entry) -> None:
        """Put an entry (back) in line."""
        heappush(self._heap, entry)

    def pop(self) -> Entry:
        """The first."""
        return heappop(self._heap)

    def open_next_class(self, entry: Entry) -> Entry:
        """Before an entry is dealt with: the next class of its lane comes in line."""
        rank, group, lane, members, heads = entry
        if heads is None:
            return entry
        self._push_head(lane, heads)
        return Entry(rank, group, lane, members, None)

    def _push_head(self, lane: Lane, heads: Iterator[tuple[Rank, JobClass]]) -> None:
        head = next(heads, None)
        if head is not None:
            heappush(self._heap, Entry(head[0], head[1], lane, None, heads))

    def next_member(self, entry: Entry) -> None:
        """After an entry was served: the next job of its class comes in line."""
        _, group, lane, members, _ = entry
        if members is None:
            if len(group.members) == 1:
                return
            members = iter(group.members)
            next(members)
        rank = next(members, None)
        if rank is not None:
            heappush(self._heap, Entry(rank, group, lane, members, None))
