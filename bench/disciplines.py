"""Disciplines to compare: first come first served, shortest first, EASY backfill, LAS, and Gridmill's own.

Ours decides with the functions that the planner decides with (gridmill.domain.ordering,
.scheduler.reservation)."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf

from bench.queueing import Pool, Task
from gridmill.domain.ordering import (
    RESTART_SECONDS,
    UNKNOWN_SECONDS,
    Interruptible,
    Wanting,
    alone_seconds,
    due,
    expected_left,
    has_share,
    next_check_seconds,
    patience,
    remaining,
    to_interrupt,
    with_precedence,
    work,
)
from gridmill.scheduler.draft import RESERVE_AFTER_SECONDS
from gridmill.scheduler.history import PER_SUBJECT
from gridmill.scheduler.reservation import LIKELY, Reservation, after, may_pass, reserve

DEPTH = 500
"""How many waiting jobs EASY looks at (Slurm's bf_max_job_test)."""
LAS_GPU_SECONDS = (3_600.0, 36_000.0, 360_000.0, 3_600_000.0)
"""The bounds of the queues of LAS: what a job was served, in GPU-seconds (Tiresias, NSDI 2019, has two or
three such queues, with bounds that fit its load)."""


class Durations:
    """What is known: how long the jobs of the same cluster or team took that ended before, the newest."""

    def __init__(self, *, perfect: bool = False) -> None:
        self._perfect = perfect
        self._lasted: dict[str, list[float]] = {}
        self._newest: dict[str, deque[float]] = {}

    def learn(self, task: Task) -> None:
        """From one that ended."""
        lasted, newest = self._lasted.setdefault(task.like, []), self._newest.setdefault(task.like, deque())
        insort(lasted, task.seconds)
        newest.append(task.seconds)
        if len(newest) > PER_SUBJECT:
            del lasted[bisect_left(lasted, newest.popleft())]

    def index(self, task: Task, attained: float) -> float:
        """What is left, as the planner's order counts it."""
        return (
            task.seconds - attained
            if self._perfect
            else expected_left(self._lasted.get(task.like, ()), attained)
        )

    def likely(self, task: Task, attained: float) -> float:
        """Seconds until it ends, as reservations count them."""
        if self._perfect:
            return task.seconds - attained
        lasted = self._lasted.get(task.like)
        return remaining(lasted, attained, LIKELY) if lasted else max(UNKNOWN_SECONDS, attained)


class Fifo:
    """First come, first served, the higher priority before: nobody passes."""

    def __init__(self) -> None:
        self._line: list[tuple[int, float, int, Task]] = []

    @property
    def waiting(self) -> int:
        return len(self._line)

    def submitted(self, pool: Pool, task: Task) -> None:
        insort(self._line, (-task.priority, task.submitted, task.number, task))

    def ended(self, pool: Pool, task: Task) -> None:
        pass

    def looked(self, pool: Pool, task: Task) -> None:
        pass

    def decide(self, pool: Pool) -> None:
        while self._line and self._line[0][-1].gpus <= pool.free:
            pool.start(self._line.pop(0)[-1])


class Easy(Fifo):
    """Backfilling past the first, which has a reservation. `perfect`: knows every duration."""

    def __init__(self, *, perfect: bool = True) -> None:
        super().__init__()
        self._durations = Durations(perfect=perfect)

    def ended(self, pool: Pool, task: Task) -> None:
        self._durations.learn(task)

    def decide(self, pool: Pool) -> None:
        super().decide(pool)
        if not self._line or not pool.free:
            return
        kept = reserve(self._line[0][-1].gpus, pool.free, pool.now, ends_in(pool, self._durations))
        for entry in list(islice(self._line, 1, DEPTH)):
            other = entry[-1]
            end = pool.now + self._durations.likely(other, 0.0)
            if kept is not None and other.gpus <= pool.free and may_pass(kept, other.gpus, end):
                kept = after(kept, other.gpus, end)
                del self._line[bisect_left(self._line, entry[:3])]
                pool.start(other)


def ends_in(pool: Pool, durations: Durations) -> list[tuple[float, int]]:
    """When the running jobs are expected to end, and what each gives back."""
    now = pool.now
    running = pool.running.values()
    return sorted((now + durations.likely(task, task.attained(now)), task.gpus) for task in running)


class Ordered:
    """In the order of their keys, those that ask for as many GPUs in a heap of their own: whoever fits
    starts."""

    def __init__(self) -> None:
        self._heaps: dict[int, list[tuple[tuple[float, ...], int, Task]]] = {}
        self.waiting = 0

    def add(self, task: Task, key: tuple[float, ...]) -> None:
        heappush(self._heaps.setdefault(task.gpus, []), (key, task.number, task))
        self.waiting += 1

    def take(self, task: Task) -> None:
        """Most often it is the first of its size."""
        heap = self._heaps[task.gpus]
        if heap[0][2] is task:
            heappop(heap)
        else:
            heap[:] = [entry for entry in heap if entry[2] is not task]
            heapify(heap)
        self.waiting -= 1

    def in_order(self) -> Iterator[Task]:
        """The first of each size, the earliest first; goes on behind what was taken meanwhile."""
        passed = set[int]()
        while heads := [heap[0] for gpus, heap in self._heaps.items() if heap and gpus not in passed]:
            task = min(heads)[2]
            yield task
            heap = self._heaps[task.gpus]
            if heap and heap[0][2] is task:
                passed.add(task.gpus)


class Shortest:
    """Shortest first, the higher priority before. `perfect`: knows every duration, and interrupts where more
    than twice as much work is left (shortest remaining first); else by our own estimates, and interrupts
    nobody."""

    def __init__(self, *, perfect: bool) -> None:
        self._queue = Ordered()
        self._durations = Durations(perfect=perfect)
        self._perfect = perfect

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    def submitted(self, pool: Pool, task: Task) -> None:
        task.work = self._durations.index(task, task.done) * (task.gpus if self._perfect else 1)
        self._queue.add(task, (-task.priority, task.work))

    def ended(self, pool: Pool, task: Task) -> None:
        self._durations.learn(task)

    def looked(self, pool: Pool, task: Task) -> None:
        pass

    def decide(self, pool: Pool) -> None:
        for task in self._queue.in_order():
            if task.gpus > pool.free and not (self._perfect and self._make_room(pool, task)):
                continue
            self._queue.take(task)
            pool.start(task)

    def _make_room(self, pool: Pool, task: Task) -> bool:
        def left(other: Task) -> float:
            return (other.seconds - other.attained(pool.now)) * other.gpus

        room, chosen = pool.free, list[Task]()
        for other in sorted(pool.running.values(), key=left, reverse=True):
            if room >= task.gpus or left(other) <= 2 * task.work:
                break
            if other.resumable and other.priority <= task.priority:
                chosen.append(other)
                room += other.gpus
        for other in chosen if room >= task.gpus else ():
            pool.stop(other)
            self.submitted(pool, other)
        return room >= task.gpus


class Las:
    """Least attained service, Tiresias-like: queues by the GPU time served so far, in each first come first
    served; a job is interrupted for one of an earlier queue."""

    def __init__(self) -> None:
        self._queue = Ordered()
        self._running: list[tuple[tuple[float, ...], int, Task]] = []
        self._keys: dict[int, tuple[float, ...]] = {}

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    def submitted(self, pool: Pool, task: Task) -> None:
        self._queue.add(task, self._key(task, task.done))

    def _key(self, task: Task, attained: float) -> tuple[float, ...]:
        served = attained * task.gpus + 1e-3
        return (-task.priority, sum(served >= bound for bound in LAS_GPU_SECONDS), task.submitted)

    def ended(self, pool: Pool, task: Task) -> None:
        self._leave(task)

    def looked(self, pool: Pool, task: Task) -> None:
        self._leave(task)
        self._join(pool, task, task.attained(pool.now))

    def _join(self, pool: Pool, task: Task, attained: float) -> None:
        if task.resumable:
            key = self._keys[task.number] = self._key(task, attained)
            insort(self._running, (key, task.number, task))
            if key[1] < len(LAS_GPU_SECONDS):
                pool.look_at(task, LAS_GPU_SECONDS[int(key[1])] / task.gpus)

    def _leave(self, task: Task) -> None:
        if task.resumable:
            del self._running[bisect_left(self._running, (self._keys[task.number], task.number))]

    def decide(self, pool: Pool) -> None:
        for task in self._queue.in_order():
            if task.gpus > pool.free and not self._make_room(pool, task):
                continue
            self._queue.take(task)
            pool.start(task)
            self._join(pool, task, task.done)

    def _make_room(self, pool: Pool, task: Task) -> bool:
        room, chosen, own = pool.free, list[Task](), self._key(task, task.done)[:2]
        for key, _, other in reversed(self._running):
            if room >= task.gpus or key[:2] <= own:
                break
            chosen.append(other)
            room += other.gpus
        for other in chosen if room >= task.gpus else ():
            self._leave(other)
            pool.stop(other)
            self.submitted(pool, other)
        return room >= task.gpus


class Ours:
    """Gridmill's: knows no duration, only how long the jobs like it took that ended before."""

    def __init__(self) -> None:
        self._queue = Ordered()
        self._durations = Durations()
        self._delayed: list[tuple[int, float, int, Task]] = []  # those that wait, the most delayed first
        self._running: list[tuple[tuple[float, ...], int, Task]] = []  # those that may be interrupted
        self._settled: set[int] = set()
        self._work = 0.0  # of all that wait
        self._kept: Reservation | None = None
        self._precedent: frozenset[str] = frozenset()

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    def submitted(self, pool: Pool, task: Task) -> None:
        self._place(task, task.done)
        self._queue.add(task, (-task.priority, task.due))
        insort(self._delayed, _delayed(task))
        self._work += task.work

    def _take(self, task: Task) -> None:
        self._queue.take(task)
        del self._delayed[bisect_left(self._delayed, _delayed(task)[:3])]
        self._work -= task.work

    def ended(self, pool: Pool, task: Task) -> None:
        self._leave(task)
        self._durations.learn(task)

    def looked(self, pool: Pool, task: Task) -> None:
        """From the first look at it on it can be interrupted."""
        self._leave(task)
        attained = task.attained(pool.now)
        self._place(task, attained)
        insort(self._running, (_rank(task), task.number, task))
        self._settled.add(task.number)
        pool.look_at(task, next_check_seconds(attained))

    def decide(self, pool: Pool) -> None:
        limit, self._kept = patience(self._work / pool.gpus), None
        running = ((one.waited, float(one.gpus), str(one.number)) for one in pool.running.values())
        held, self._precedent = with_precedence(running, limit, pool.gpus)
        self._serve_delayed(pool, limit, held)
        for task in self._queue.in_order():
            if self._kept is not None:
                self._backfill(pool, task)
            elif task.gpus <= pool.free:
                self._start(pool, task)
            elif chosen := self._chosen(pool, task, self._wanting(task)):
                self._start(pool, task, chosen)
            elif pool.now - task.submitted - task.done > RESERVE_AFTER_SECONDS:
                self._keep(pool, task)

    def _serve_delayed(self, pool: Pool, limit: float, held: float) -> None:
        """The most delayed before their turn, as long as they hold no more than their share."""
        while self._delayed:
            *_, task = self._delayed[0]
            waited = pool.now - task.submitted - task.done
            if waited < limit or not has_share(held, task.gpus, pool.gpus):
                return
            claim = Wanting(-inf, left_seconds=-RESTART_SECONDS)
            chosen = self._chosen(pool, task, claim, waited) if task.gpus > pool.free else ()
            if task.gpus > pool.free and not chosen:
                self._keep(pool, task)
                return
            self._start(pool, task, chosen)
            self._precedent |= {str(task.number)}
            held += task.gpus

    def _keep(self, pool: Pool, task: Task) -> None:
        self._kept = reserve(task.gpus, pool.free, pool.now, ends_in(pool, self._durations))

    def _backfill(self, pool: Pool, task: Task) -> None:
        end = pool.now + self._durations.likely(task, task.done)
        if self._kept is not None and task.gpus <= pool.free and may_pass(self._kept, task.gpus, end):
            self._kept = after(self._kept, task.gpus, end)
            self._start(pool, task)

    def _chosen(self, pool: Pool, task: Task, wanting: Wanting, waited: float = inf) -> tuple[str, ...]:
        """Whom to interrupt. `waited`: only those that were delayed less."""
        latest = (
            self._interruptible(pool, other, lower=other.priority < task.priority)
            for _, _, other in reversed(self._running)
            if other.priority < task.priority
            or (
                other.priority == task.priority
                and str(other.number) not in self._precedent
                and other.waited < waited
            )
        )
        return self._needed(pool, task, to_interrupt(task.gpus, pool.free, wanting, latest))

    def _wanting(self, task: Task) -> Wanting:
        return Wanting(task.due, task.work, self._durations.index(task, task.done), task.gpus)

    def _interruptible(self, pool: Pool, task: Task, *, lower: bool) -> Interruptible:
        """A lower priority gives way whenever its turn would be."""
        if lower:
            return Interruptible(inf, task.gpus, str(task.number), amount=task.gpus)
        left = self._durations.index(task, task.attained(pool.now))
        return Interruptible(task.due, task.gpus, str(task.number), task.work, left, task.gpus)

    def _needed(self, pool: Pool, task: Task, chosen: tuple[str, ...]) -> tuple[str, ...]:
        """Without those whose room is not needed."""
        room = pool.free + sum(pool.running[int(number)].gpus for number in chosen)
        needed = list(chosen)
        for number in chosen:
            if room - pool.running[int(number)].gpus >= task.gpus:
                room -= pool.running[int(number)].gpus
                needed.remove(number)
        return tuple(needed)

    def _start(self, pool: Pool, task: Task, chosen: tuple[str, ...] = ()) -> None:
        self._take(task)
        for number in chosen:
            self._interrupt(pool, pool.running[int(number)])
        pool.start(task)
        if task.resumable:
            pool.look_at(task, task.done + alone_seconds(task.interruptions))

    def _interrupt(self, pool: Pool, task: Task) -> None:
        self._leave(task)
        pool.stop(task)
        self.submitted(pool, task)

    def _place(self, task: Task, attained: float) -> None:
        task.work = work(self._durations.index(task, attained), attained, task.gpus)
        task.due = due(task.submitted, task.work)

    def _leave(self, task: Task) -> None:
        if task.number in self._settled:
            self._settled.remove(task.number)
            del self._running[bisect_left(self._running, (_rank(task), task.number))]


def _rank(task: Task) -> tuple[float, ...]:
    return (-task.priority, task.due)


def _delayed(task: Task) -> tuple[int, float, int, Task]:
    return (-task.priority, task.submitted + task.done, task.number, task)
