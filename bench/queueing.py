"""A simulator of one queue of jobs before one pool of GPUs: events in a heap, disciplines that decide."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Protocol

from gridmill.domain.ordering import RESTART_SECONDS


class Kind(IntEnum):
    """Of an event. What gives back comes before what asks, at the same time."""

    END = 0
    LOOK = 1
    SUBMIT = 2


@dataclass(slots=True, eq=False)
class Task:
    """A job of a load, and how far it is. `seconds` is what it takes on its `gpus`, which disciplines that
    know no durations do not read; `like` is what is known of it beforehand."""

    number: int
    submitted: float
    seconds: float
    gpus: int
    like: str
    resumable: bool = True
    priority: int = 0
    started: float | None = None
    ended: float = 0.0
    done: float = 0.0
    works_from: float = 0.0
    epoch: int = 0
    interruptions: int = 0
    due: float = 0.0
    begun: float = 0.0
    waited: float = 0.0
    work: float = 0.0

    @property
    def end(self) -> float:
        """When it ends, if it runs on."""
        return self.works_from + self.seconds - self.done

    def attained(self, now: float) -> float:
        """Seconds of its work done by then, while it runs."""
        return self.done + max(0.0, now - self.works_from)


class Discipline(Protocol):
    """Who goes next. `Pool.start`, `stop` and `look_at` carry it out."""

    def submitted(self, pool: "Pool", task: Task) -> None:
        """A job came."""

    def ended(self, pool: "Pool", task: Task) -> None:
        """A job ended; its GPUs are free."""

    def looked(self, pool: "Pool", task: Task) -> None:
        """The time came at which a running job was to be looked at."""

    def decide(self, pool: "Pool") -> None:
        """Start and stop jobs."""

    @property
    def waiting(self) -> int:
        """How many wait."""


@dataclass(slots=True)
class Tally:
    """What came of it. GPU-seconds: `useful` is work done, `busy_until_last` and `busy_while_waiting` are
    what was occupied until the last job came, and while any waited."""

    events: int = 0
    interruptions: int = 0
    useful: float = 0.0
    busy_until_last: float = 0.0
    busy_while_waiting: float = 0.0
    waiting_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Pool:
    """So many GPUs, free or held; all alike, so that only how many are free counts."""

    gpus: int
    now: float = 0.0
    free: int = 0
    running: dict[int, Task] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    _events: list[tuple[float, int, int, int, Task]] = field(default_factory=list)
    _number: int = 0

    def start(self, task: Task) -> None:
        """Give it its GPUs. One that was interrupted first reads its checkpoint."""
        assert task.gpus <= self.free, "more GPUs are given than there are"
        self.free -= task.gpus
        self.running[task.number] = task
        task.begun, task.waited = self.now, self.now - task.submitted - task.done
        task.works_from = self.now + (0.0 if task.started is None else RESTART_SECONDS)
        task.started = self.now if task.started is None else task.started
        self._at(task.end, Kind.END, task)

    def stop(self, task: Task) -> None:
        """Interrupt it: its work so far is kept."""
        assert task.resumable
        task.done = task.attained(self.now)
        self.tally.interruptions += 1
        task.interruptions += 1
        self._take_back(task)

    def look_at(self, task: Task, attained: float) -> None:
        """Say when a running job has done so many seconds of work."""
        self._at(task.works_from + attained - task.done, Kind.LOOK, task)

    def _take_back(self, task: Task) -> None:
        task.epoch += 1
        self.free += task.gpus
        del self.running[task.number]

    def _at(self, time: float, kind: Kind, task: Task) -> None:
        self._number += 1
        heappush(self._events, (time, kind, self._number, task.epoch, task))

    def run(self, tasks: Sequence[Task], discipline: Discipline) -> Tally:
        """From the first job's coming to the last one's end."""
        self.free, self.now = self.gpus, tasks[0].submitted
        self._number = len(tasks)
        self._events = [(task.submitted, Kind.SUBMIT, task.number, 0, task) for task in tasks]
        heapify(self._events)
        last = max(task.submitted for task in tasks)
        while self._events:
            time, kind, _, epoch, task = heappop(self._events)
            if epoch != task.epoch:
                continue
            self._pass_time(time, last, discipline.waiting)
            self.tally.events += 1
            self._happen(kind, task, discipline)
            discipline.decide(self)
        return self.tally

    def _happen(self, kind: int, task: Task, discipline: Discipline) -> None:
        if kind == Kind.SUBMIT:
            discipline.submitted(self, task)
        elif kind == Kind.LOOK:
            discipline.looked(self, task)
        else:
            task.ended = self.now
            self.tally.useful += task.seconds * task.gpus
            self._take_back(task)
            discipline.ended(self, task)

    def _pass_time(self, time: float, last: float, waiting: int) -> None:
        busy = self.gpus - self.free
        self.tally.busy_until_last += busy * max(0.0, min(time, last) - self.now)
        if waiting:
            self.tally.busy_while_waiting += busy * (time - self.now)
            self.tally.waiting_seconds += time - self.now
        self.now = time
