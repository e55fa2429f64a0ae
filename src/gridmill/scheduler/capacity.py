"""This module has the free CPUs, memory and GPUs of pods and nodes, in the order in which the planner
examines them."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple, TypeAlias

from gridmill.domain.amounts import Amounts
from gridmill.scheduler.sorted_tuples import SortedTuples

JOBS_PER_CPU = 2
"""The number of jobs per CPU that a pod runs at the same time. Jobs spend a part of their time starting,
reading and writing. Two jobs per CPU keep the CPU busy. More than two jobs per CPU would only compete for
the cache and memory of the CPU."""
FEWEST_JOBS = 2
"""The smallest limit of the number of jobs that a pod runs at the same time. In a small pod with a limit of
one job, every short job would have to wait for a long job."""

LEAST_CPUS = 0.1
"""A node is treated as full if it has fewer free CPUs than this, so that no pod starts with almost no
CPU."""


def most_jobs(cpus: float) -> int:
    """Return the number of jobs that a pod with that many CPUs runs at the same time."""
    return max(FEWEST_JOBS, JOBS_PER_CPU * -int(-cpus // 1))


class PodCapacity(NamedTuple):
    """The properties of a pod that do not change while it runs. `capacity` has all CPUs, memory and GPUs of
    the pod. `most` is the largest number of jobs that the pod runs at the same time. `loads[n]` is the
    number of jobs per CPU while the pod has `n` jobs, for `n` up to `most`."""

    loads: Sequence[float]
    most: int
    deployment_id: str
    node: str
    capacity: Amounts


Key: TypeAlias = tuple[float, int, str, int, int, PodCapacity]
"""The sort key of a pod is (jobs per CPU, free memory, pod id, free GPUs, jobs, the pod). The first pod in
this order is the least loaded pod; among equally loaded pods, it is the pod with the least free memory. Pod
ids differ, so the elements of the key after the id are never compared. The sort key of a pod is not a named
tuple, because a plan makes one key for each start: with named tuples, plans take 3 % to 15 % longer."""

FREE_MEMORY: Final = 1
POD_ID: Final = 2
FREE_GPUS: Final = 3
JOBS: Final = 4
WHOLE: Final = 5


class PodSlot(NamedTuple):
    """A pod with its free CPUs, memory and GPUs. `jobs` is the number of live attempts on the pod."""

    whole: PodCapacity
    key: Key

    @property
    def free_memory(self) -> int:
        """The bytes of the pod's memory that no attempt holds."""
        return self.key[FREE_MEMORY]

    @property
    def free_gpus(self) -> int:
        """The number of the pod's GPUs that no attempt holds."""
        return self.key[FREE_GPUS]

    @property
    def jobs(self) -> int:
        """The number of live attempts on the pod."""
        return self.key[JOBS]

    @property
    def is_full(self) -> bool:
        """Whether the pod accepts no further job, not even a very small job."""
        return self.jobs >= self.whole.most or self.free_memory < 0


def slot_of(
    pod_id: str, capacity: Amounts, given: Sequence[Amounts], deployment_id: str, node: str
) -> PodSlot:
    """Return the free CPUs, memory and GPUs of a pod whose attempts hold the amounts `given`."""
    loads, most = _loads(capacity.cpus or 1.0), most_jobs(capacity.cpus)
    whole = PodCapacity(loads, most, deployment_id, node, capacity)
    return PodSlot(whole, _key(pod_id, whole, given))


@cache
def _loads(cpus: float) -> Sequence[float]:
    """Return the loads of a pod by its number of jobs. All pods with the same number of CPUs use the same
    tuple object, because Python compares identical objects quickly."""
    return tuple(jobs / cpus for jobs in range(most_jobs(cpus) + 1))


def _key(pod_id: str, whole: PodCapacity, given: Sequence[Amounts]) -> Key:
    free_memory = whole.capacity.memory_bytes - sum(amounts.memory_bytes for amounts in given)
    free_gpus = whole.capacity.gpus - sum(amounts.gpus for amounts in given)
    jobs = min(len(given), whole.most)
    return (whole.loads[jobs], free_memory, pod_id, free_gpus, len(given), whole)


class Pods:
    """The pods of one resource that can accept jobs now. Full pods are stored in the collection, but `find`
    does not return them."""

    __slots__ = ("_keys", "_order", "_taken", "capacities")

    def __init__(self) -> None:
        self._order: SortedTuples[Key] = SortedTuples()
        self._taken: list[Key] = []
        """The pods that got a job. They are sorted when the least loaded of them is next."""
        self.capacities: dict[tuple[int, int], int] = {}
        """The number of whole pods with each pair of memory and GPUs."""
        self._keys: dict[str, Key] = {}

    def __contains__(self, pod_id: str) -> bool:
        return pod_id in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def items(self) -> Iterator[tuple[str, PodSlot]]:
        """Return all pods of the collection, in any order."""
        return ((pod_id, PodSlot(key[WHOLE], key)) for pod_id, key in self._keys.items())

    def slot(self, pod_id: str) -> PodSlot:
        """Return the free CPUs, memory and GPUs of a pod. Raises KeyError for an unknown pod."""
        key = self._keys[pod_id]
        return PodSlot(key[WHOLE], key)

    def copy(self) -> "Pods":
        """Return an independent copy of the collection."""
        twin = Pods()
        twin._order = self._in_order().copy()
        twin._keys = self._keys.copy()
        twin.capacities = self.capacities.copy()
        return twin

    def set(self, slot: PodSlot) -> None:
        """Add a pod to the collection, or replace the pod with the same id."""
        whole, key = slot
        self.drop(key[POD_ID])
        self._keys[key[POD_ID]] = key
        shape = (whole.capacity.memory_bytes, whole.capacity.gpus)
        self.capacities[shape] = self.capacities.get(shape, 0) + 1
        if not slot.is_full:
            self._in_order().add(key)

    def give(self, pod_id: str, given: Sequence[Amounts]) -> None:
        """Change the CPUs, memory and GPUs that the attempts on a pod hold."""
        whole = self._keys[pod_id][WHOLE]
        self._in_order().discard(self._keys[pod_id])
        slot = PodSlot(whole, _key(pod_id, whole, given))
        self._keys[pod_id] = slot.key
        if not slot.is_full:
            self._order.add(slot.key)

    def take(self, found: Key, memory_bytes: int, gpus: int) -> tuple[PodCapacity, int]:
        """Place a job on a pod that `find` returned. Returns the pod and the number of jobs that it has
        now."""
        _, free_memory, pod_id, free_gpus, jobs, whole = found
        jobs += 1
        key = (whole.loads[jobs], free_memory - memory_bytes, pod_id, free_gpus - gpus, jobs, whole)
        self._keys[pod_id] = key
        self._order.discard(found)  # discarded, because `find` has already added the pod to this collection
        if jobs < whole.most:
            self._taken.append(key)
            if key < self._taken[0]:
                self._taken[0], self._taken[-1] = key, self._taken[0]
        return whole, jobs

    def _in_order(self) -> SortedTuples[Key]:
        """Return all pods that are not full, in order. Pods that received jobs since the last call are first
        moved to their new positions, all in one step."""
        if self._taken:
            self._order.update(self._taken)
            self._taken.clear()
        return self._order

    def drop(self, pod_id: str) -> None:
        """Remove a pod from the collection. If the pod is not in the collection, the method does nothing."""
        key = self._keys.pop(pod_id, None)
        if key is None:
            return
        self._in_order().discard(key)
        capacity = key[WHOLE].capacity
        shape = (capacity.memory_bytes, capacity.gpus)
        self.capacities[shape] -= 1
        if not self.capacities[shape]:
            del self.capacities[shape]

    def find_on(self, node: str, memory_bytes: int, gpus: int) -> Key | None:
        """Return the least loaded pod that is on this node and has this memory and these GPUs free."""
        self._in_order()  # sorted first, because `take` looks for the found pod in this collection
        fitting = (
            slot.key
            for _, slot in self.items()
            if slot.whole.node == node
            and not slot.is_full
            and slot.free_memory >= memory_bytes
            and slot.free_gpus >= gpus
        )
        return min(fitting, default=None)

    def places(self, memory_bytes: int, gpus: int, *, empty: bool = False) -> int:
        """Return the number of jobs of this size that fit into the free memory and GPUs of the pods at the
        same time. With `empty`, the pods are treated as if no job ran on them."""
        return sum(_places(slot, memory_bytes, gpus, empty) for _, slot in self.items())

    def find(self, memory_bytes: int, gpus: int) -> Key | None:
        """Return the least loaded pod that has this memory and these GPUs free; among equally loaded pods,
        the pod with the least free memory."""
        result = self._order.first()
        if self._taken and (result is None or self._taken[0] < result):
            result = self._in_order().first()
        while result is not None:
            load, free_memory, pod_id, free_gpus, _, _ = result
            # all pods of this load up to `memory_bytes` have too little memory: skip them
            if free_memory < memory_bytes:
                result = self._in_order().first_from((load, memory_bytes, ""))
            elif free_gpus >= gpus:
                return result
            else:
                result = self._in_order().first_from((load, free_memory, pod_id + "\0"))
        return None


def _places(slot: PodSlot, memory_bytes: int, gpus: int, empty: bool) -> int:
    whole = slot.whole
    if empty:
        return places_in(whole.capacity, whole.most, memory_bytes, gpus)
    free = Amounts(memory_bytes=slot.free_memory, gpus=slot.free_gpus)
    return places_in(free, whole.most - slot.jobs, memory_bytes, gpus)


def places_in(free: Amounts, most: int, memory_bytes: int, gpus: int) -> int:
    """Return the number of jobs with this memory and these GPUs that fit into the free memory and GPUs of
    the pod, but at most `most`."""
    counts = [most]
    if memory_bytes:
        counts.append(free.memory_bytes // memory_bytes)
    if gpus:
        counts.append(free.gpus // gpus)
    return max(0, min(counts))


class Nodes:
    """The nodes of a site, each with the CPUs, memory and GPUs that are not assigned to a deployment."""

    __slots__ = ("_free", "_order")

    def __init__(self) -> None:
        self._order: SortedTuples[tuple[bool, int, str]] = SortedTuples()
        self._free: dict[str, Amounts] = {}

    def free(self, name: str) -> Amounts:
        """Return the CPUs, memory and GPUs of the node that are not assigned to a deployment. The amounts
        are zero for an unknown node."""
        return self._free.get(name, Amounts())

    def items(self) -> Iterator[tuple[str, Amounts]]:
        """Return all nodes of the collection, in any order."""
        return iter(self._free.items())

    def copy(self) -> "Nodes":
        """Return an independent copy of the collection."""
        twin = Nodes()
        twin._order = self._order.copy()
        twin._free = self._free.copy()
        return twin

    def set(self, name: str, free: Amounts) -> None:
        """Add a node to the collection, or change its free CPUs, memory and GPUs. A node without free memory
        or free CPUs is stored, but is not returned by `candidates`."""
        self.drop(name)
        self._free[name] = free
        if free.memory_bytes > 0 and free.cpus >= LEAST_CPUS:
            self._order.add((free.gpus > 0, free.memory_bytes, name))

    def drop(self, name: str) -> None:
        """Remove a node from the collection. If the node is not in the collection, the method does
        nothing."""
        old = self._free.pop(name, None)
        if old is not None:
            self._order.discard((old.gpus > 0, old.memory_bytes, name))

    def candidates(self, target_bytes: int, least_bytes: int, gpus: int) -> Iterator[str]:
        """Return the nodes with at least `least_bytes` of free memory, the best node first.

        Nodes with at least `target_bytes` come first, the smallest of these nodes first; then all other
        nodes follow, the largest node first. If the demand has no GPUs, nodes with free GPUs come last. The
        caller of `candidates` still has to check CPUs and GPUs.
        """
        for with_gpus in (True,) if gpus else (False, True):
            for has_gpus, _, name in self._order.iter_from((with_gpus, target_bytes, "")):
                if has_gpus != with_gpus:
                    break
                yield name
            for has_gpus, free_bytes, name in self._order.iter_down_from((with_gpus, target_bytes, "")):
                if has_gpus != with_gpus or free_bytes < least_bytes:
                    break
                yield name
