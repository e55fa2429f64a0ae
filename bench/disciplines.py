"""Disciplines to compare: first come first served, shortest first, EASY backfill, and Gridmill's own.

Ours decides with the functions that the planner decides with (gridmill.domain.ordering).
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush, merge
from itertools import islice

from bench.queueing import Pool, Task
from bench.reservation import may_pass, reserve
from gridmill.domain.ordering import Interruptible, alone_seconds, due, expected_left, next_look, to_interrupt
from gridmill.scheduler.draft import RESERVE_AFTER_SECONDS
from gridmill.scheduler.history import PER_SUBJECT

DEPTH = 500
"""How many waiting jobs EASY looks at (Slurm's bf_max_job_test)."""


class Fifo:
    """First come, first served: nobody passes."""

    def __init__(self) -> None:
        self._line: dict[int, Task] = {}

    @property
    def waiting(self) -> int:
        return len(self._line)

    def submitted(self, pool: Pool, task: Task) -> None:
        self._line[task.number] = task

    def ended(self, pool: Pool, task: Task) -> None:
        pass

    def looked(self, pool: Pool, task: Task) -> None:
        pass

    def decide(self, pool: Pool) -> None:
        while self._line and (task := next(iter(self._line.values()))).gpus <= pool.free:
            del self._line[task.number]
            pool.start(task)


class Easy(Fifo):
    """Backfilling past the first, which has a reservation; with perfect knowledge of durations."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: list[tuple[float, int, int]] = []

    def ended(self, pool: Pool, task: Task) -> None:
        del self._ends[bisect_left(self._ends, (task.ended, task.number, 0))]

    def decide(self, pool: Pool) -> None:
        while self._line and (task := next(iter(self._line.values()))).gpus <= pool.free:
            self._begin(pool, task)
        if not self._line or not pool.free:
            return
        ends = ((end, gpus) for end, _, gpus in self._ends)
        kept = reserve(task.gpus, pool.free, pool.now, ends)
        for other in list(islice(self._line.values(), 1, DEPTH)):
            end = pool.now + other.seconds
            if kept is not None and other.gpus <= pool.free and may_pass(kept, other.gpus, end):
                if end > kept.at:
                    kept = kept._replace(spare=kept.spare - other.gpus)
                self._begin(pool, other)

    def _begin(self, pool: Pool, task: Task) -> None:
        del self._line[task.number]
        pool.start(task)
        insort(self._ends, (pool.now + task.seconds, task.number, task.gpus))


class Ordered:
    """By due time, those that ask for as many GPUs in a heap of their own: whoever fits starts."""

    def __init__(self) -> None:
        self._heaps: dict[int, list[tuple[float, int, Task]]] = {}
        self.waiting = 0

    def add(self, task: Task) -> None:
        heappush(self._heaps.setdefault(task.gpus, []), (task.due, task.number, task))
        self.waiting += 1

    def take(self, task: Task) -> None:
        """It is the first of its size, or less than all that was added since it was."""
        heap = self._heaps[task.gpus]
        taken = heappop(heap)
        assert taken[2] is task
        self.waiting -= 1

    def in_order(self) -> Iterator[Task]:
        """The first of each size, the earliest due first; goes on behind what was taken meanwhile."""
        passed = set[int]()
        while heads := [heap[0] for gpus, heap in self._heaps.items() if heap and gpus not in passed]:
            task = min(heads)[2]
            yield task
            heap = self._heaps[task.gpus]
            if heap and heap[0][2] is task:
                passed.add(task.gpus)


class Shortest:
    """Shortest first, with perfect knowledge. `preemptive`: shortest remaining first."""

    def __init__(self, *, preemptive: bool) -> None:
        self._queue = Ordered()
        self._preemptive = preemptive
        self._ends: dict[int, list[tuple[float, int]]] = {}  # by GPUs: when the running ones end

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    def submitted(self, pool: Pool, task: Task) -> None:
        task.due = (task.seconds - task.done) * (task.gpus if self._preemptive else 1)
        self._queue.add(task)

    def ended(self, pool: Pool, task: Task) -> None:
        self._leave(task)

    def _leave(self, task: Task) -> None:
        ends = self._ends[task.gpus]
        del ends[bisect_left(ends, (task.end, task.number))]

    def looked(self, pool: Pool, task: Task) -> None:
        pass

    def decide(self, pool: Pool) -> None:
        for task in self._queue.in_order():
            if task.gpus > pool.free and not (self._preemptive and self._make_room(pool, task)):
                continue
            self._queue.take(task)
            pool.start(task)
            insort(self._ends.setdefault(task.gpus, []), (task.end, task.number))

    def _make_room(self, pool: Pool, task: Task) -> bool:
        """By interrupting those of which more than twice its work is left, the most first."""
        room, chosen = pool.free, list[Task]()
        for work, number in self._most_left(pool.now):
            if room >= task.gpus or work <= 2 * task.due:
                break
            chosen.append(pool.running[number])
            room += pool.running[number].gpus
        for other in chosen if room >= task.gpus else ():
            self._leave(other)
            pool.stop(other)
            self.submitted(pool, other)
        return room >= task.gpus

    def _most_left(self, now: float) -> Iterator[tuple[float, int]]:
        """GPU-seconds left of the running jobs, and their numbers, the most first."""
        sizes = (_work(ends, gpus, now) for gpus, ends in self._ends.items())
        return merge(*sizes, reverse=True)


def _work(ends: list[tuple[float, int]], gpus: int, now: float) -> Iterator[tuple[float, int]]:
    return (((end - now) * gpus, number) for end, number in reversed(ends))


class Ours:
    """Gridmill's: knows no duration, only how long the jobs like it took that ended before."""

    def __init__(self) -> None:
        self._queue = Ordered()
        self._running: list[tuple[float, int, Task]] = []  # those that may be interrupted
        self._settled: set[int] = set()
        self._lasted: dict[str, list[float]] = {}
        self._newest: dict[str, deque[float]] = {}

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    def submitted(self, pool: Pool, task: Task) -> None:
        self._place(task, task.done)
        self._queue.add(task)

    def ended(self, pool: Pool, task: Task) -> None:
        self._leave(task)
        lasted, newest = self._lasted.setdefault(task.like, []), self._newest.setdefault(task.like, deque())
        insort(lasted, task.seconds)
        newest.append(task.seconds)
        if len(newest) > PER_SUBJECT:
            del lasted[bisect_left(lasted, newest.popleft())]

    def looked(self, pool: Pool, task: Task) -> None:
        """From the first look at it on it can be interrupted."""
        self._leave(task)
        attained = task.attained(pool.now)
        self._place(task, attained)
        insort(self._running, (task.due, task.number, task))
        self._settled.add(task.number)
        pool.look_at(task, next_look(attained))

    def decide(self, pool: Pool) -> None:
        for task in self._queue.in_order():
            chosen = self._chosen(pool, task) if task.gpus > pool.free else ()
            if task.gpus > pool.free and not chosen:
                if task.started is None and pool.now - task.submitted > RESERVE_AFTER_SECONDS:
                    break  # what comes free is kept for it
                continue
            self._queue.take(task)
            for number in chosen:
                self._interrupt(pool, pool.running[int(number)])
            pool.start(task)
            if task.resumable:
                pool.look_at(task, task.done + alone_seconds(task.interruptions))

    def _chosen(self, pool: Pool, task: Task) -> tuple[str, ...]:
        latest = (
            Interruptible(when, other.gpus, str(number)) for when, number, other in reversed(self._running)
        )
        return to_interrupt(task.gpus, pool.free, task.due, latest)

    def _interrupt(self, pool: Pool, task: Task) -> None:
        self._leave(task)
        pool.stop(task)
        self.submitted(pool, task)

    def _place(self, task: Task, attained: float) -> None:
        left = expected_left(self._lasted.get(task.like, ()), attained)
        task.due = due(task.submitted, left, task.gpus, started=task.started is not None)

    def _leave(self, task: Task) -> None:
        if task.number in self._settled:
            self._settled.remove(task.number)
            del self._running[bisect_left(self._running, (task.due, task.number))]
