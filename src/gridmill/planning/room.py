"""Free amounts of pods and nodes, kept in the order in which the planner wants to look at them."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from gridmill.model.amounts import Amounts
from gridmill.planning.ordered import Ordered

JOBS_PER_CPU = 2
"""Jobs a pod runs at once per CPU. Jobs spend part of their time starting, reading and writing: two per
CPU keep it busy, more would only share its cache and memory."""
FEWEST_JOBS = 2
"""... and never fewer: one long job must not keep every short one of a small pod waiting."""

LEAST_CPUS = 0.1
"""A node with less than this unclaimed is full: no pod is brought up with next to no CPU."""


def most_jobs(cpus: float) -> int:
    """How many jobs a pod with that many CPUs runs at once."""
    return max(FEWEST_JOBS, JOBS_PER_CPU * -int(-cpus // 1))


Key: TypeAlias = tuple[float, int, str]
"""(jobs per CPU, free memory, pod id): least loaded first, among equals the tightest."""


class Slot(NamedTuple):
    """What is free in a pod. `capacity` is the whole of it; `jobs` counts live attempts, at most `most`."""

    jobs: int
    free_memory: int
    free_gpus: int
    most: int
    capacity: Amounts
    deployment_id: str
    node: str

    def key(self, pod_id: str) -> Key:
        """Its place among the pods."""
        return (self.jobs / (self.capacity.cpus or 1.0), self.free_memory, pod_id)

    @property
    def is_full(self) -> bool:
        """No further job, however small."""
        return self.jobs >= self.most or self.free_memory < 0


def slot_of(capacity: Amounts, given: Sequence[Amounts], deployment_id: str, node: str) -> Slot:
    """What is free in a pod on which attempts were given that much."""
    return Slot(
        jobs=len(given),
        free_memory=capacity.memory_bytes - sum(amounts.memory_bytes for amounts in given),
        free_gpus=capacity.gpus - sum(amounts.gpus for amounts in given),
        most=most_jobs(capacity.cpus),
        capacity=capacity,
        deployment_id=deployment_id,
        node=node,
    )


class Pods:
    """Pods that can take jobs now, of one resource. Full ones are known but not offered."""

    __slots__ = ("_order", "_slots", "capacities")

    def __init__(self) -> None:
        self._order: Ordered[Key] = Ordered()
        self.capacities: dict[tuple[int, int], int] = {}  # (memory, GPUs) of whole pods -> how many
        self._slots: dict[str, Slot] = {}

    def __contains__(self, pod_id: str) -> bool:
        return pod_id in self._slots

    def __len__(self) -> int:
        return len(self._slots)

    def items(self) -> Iterator[tuple[str, Slot]]:
        """All pods, in no order."""
        return iter(self._slots.items())

    def slot(self, pod_id: str) -> Slot:
        """What is free there. Raises KeyError."""
        return self._slots[pod_id]

    def copy(self) -> "Pods":
        """An independent copy."""
        twin = Pods()
        twin._order = self._order.copy()
        twin._slots = self._slots.copy()
        twin.capacities = self.capacities.copy()
        return twin

    def set(self, pod_id: str, slot: Slot) -> None:
        """Add a pod or change what is free there."""
        self.drop(pod_id)
        self._slots[pod_id] = slot
        shape = (slot.capacity.memory_bytes, slot.capacity.gpus)
        self.capacities[shape] = self.capacities.get(shape, 0) + 1
        if not slot.is_full:
            self._order.add(slot.key(pod_id))

    def change(self, pod_id: str, slot: Slot) -> None:
        """Change what is free in a pod of unchanged capacity."""
        old = self._slots[pod_id]
        if not old.is_full:
            self._order.discard(old.key(pod_id))
        self._slots[pod_id] = slot
        if not slot.is_full:
            self._order.add(slot.key(pod_id))

    def take(self, found: Key, memory_bytes: int, gpus: int) -> Slot:
        """Put a job on a pod that `find` returned; the slot with it."""
        pod_id, order = found[2], self._order
        jobs, memory, free_gpus, most, capacity, deployment_id, node = self._slots[pod_id]
        slot = Slot(jobs + 1, memory - memory_bytes, free_gpus - gpus, most, capacity, deployment_id, node)
        self._slots[pod_id] = slot
        order.discard(found)
        if jobs + 1 < most:
            order.add(((jobs + 1) / (capacity.cpus or 1.0), memory - memory_bytes, pod_id))
        return slot

    def drop(self, pod_id: str) -> None:
        """Take a pod out, if it is there."""
        old = self._slots.pop(pod_id, None)
        if old is None:
            return
        if not old.is_full:
            self._order.discard(old.key(pod_id))
        shape = (old.capacity.memory_bytes, old.capacity.gpus)
        self.capacities[shape] -= 1
        if not self.capacities[shape]:
            del self.capacities[shape]

    def find(self, memory_bytes: int, gpus: int) -> Key | None:
        """The least loaded pod where that fits, tightest first among equals."""
        order = self._order
        found = order.first()
        while found is not None:
            if found[1] < memory_bytes:  # too little, and so have those between it and the next load
                found = order.first_from((found[0], memory_bytes, ""))
            elif self._slots[found[2]].free_gpus >= gpus:
                return found
            else:
                found = order.first_from((found[0], found[1], found[2] + "\0"))
        return None


class Nodes:
    """Nodes of a site and what of each is not yet claimed by deployments."""

    __slots__ = ("_free", "_order")

    def __init__(self) -> None:
        self._order: Ordered[tuple[bool, int, str]] = Ordered()
        self._free: dict[str, Amounts] = {}

    def free(self, name: str) -> Amounts:
        """What is not claimed there; nothing for an unknown node."""
        return self._free.get(name, Amounts())

    def items(self) -> Iterator[tuple[str, Amounts]]:
        """All nodes, in no order."""
        return iter(self._free.items())

    def copy(self) -> "Nodes":
        """An independent copy."""
        twin = Nodes()
        twin._order = self._order.copy()
        twin._free = self._free.copy()
        return twin

    def set(self, name: str, free: Amounts) -> None:
        """Add a node or change what is free there. One without any memory or CPUs left is not offered."""
        self.drop(name)
        self._free[name] = free
        if free.memory_bytes > 0 and free.cpus >= LEAST_CPUS:
            self._order.add((free.gpus > 0, free.memory_bytes, name))

    def drop(self, name: str) -> None:
        """Take a node out, if it is there."""
        old = self._free.pop(name, None)
        if old is not None:
            self._order.discard((old.gpus > 0, old.memory_bytes, name))

    def candidates(self, target_bytes: int, least_bytes: int, gpus: int) -> Iterator[str]:
        """Nodes with at least `least_bytes` free, the best first.

        Those with `target_bytes`, tightest first, then the largest of the rest; nodes with free GPUs come
        last for those who need none. CPUs and GPUs are still to be checked.
        """
        for with_gpus in (True,) if gpus else (False, True):
            for entry in self._order.iter_from((with_gpus, target_bytes, "")):
                if entry[0] != with_gpus:
                    break
                yield entry[2]
            for entry in self._order.iter_down_from((with_gpus, target_bytes, "")):
                if entry[0] != with_gpus or entry[1] < least_bytes:
                    break
                yield entry[2]
