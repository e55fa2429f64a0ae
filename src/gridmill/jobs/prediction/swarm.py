"""The swarm: the worker processes of a job. Each worker processes one shard at a time.

If a worker dies, a new worker repeats the shard of the dead worker. After a shard, a worker takes the next
shard if no other worker has taken it. The rows of both shards are adjacent, so the worker has often read
some of the rows already. The reports of the workers on their shards are combined.
"""

import signal
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import reduce
from itertools import groupby
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.domain.usage import ParallelTiming
from gridmill.errors import JobError
from gridmill.jobs.child_processes import NOTHING, CpuTotals, Crew, WorkerProcess, raise_error

MOST_DEATHS = 3
"""A job fails if this number of workers die while they process the same shard, because the shard is probably
the cause."""

Work = Callable[[int], dict[str, Any]]
"""A function that processes the shard with the given number and returns a report (JSON). The function runs
in worker processes and must be repeatable."""


@dataclass(slots=True)
class ShardQueue:
    """The shards that wait for a worker, the shards in progress with their workers, and the finished shards.

    `deaths` contains a text for each worker that died.
    """

    open: set[int]
    done: dict[int, dict[str, Any]] = field(default_factory=dict)
    killed: Counter[int] = field(default_factory=Counter)
    deaths: list[str] = field(default_factory=list)

    def take(self, after: int) -> int | None:
        """Return the shard that follows the shard `after`, if that next shard waits for a worker. If the
        next shard does not wait for a worker, return the middle shard of the longest range of waiting
        shards. Return None if no shard waits.

        The middle shard is returned because another worker may soon continue with the shards at the
        beginning of the range.
        """
        shard = after + 1 if after + 1 in self.open else self._middle()
        if shard is not None:
            self.open.remove(shard)
        return shard

    def _middle(self) -> int | None:
        numbered = enumerate(sorted(self.open))
        stretches = [[shard for _, shard in some] for _, some in groupby(numbered, lambda at: at[1] - at[0])]
        longest = max(stretches, key=len, default=[])
        return longest[len(longest) // 2] if longest else None

    def finish(self, shard: int, report: dict[str, Any]) -> None:
        """Record that a worker has finished the shard."""
        self.done[shard] = report

    def lose(self, shard: int, how: str) -> None:
        """Record that the worker of this shard died. Raises JobError if too many workers have died while
        they processed this shard."""
        self.killed[shard] += 1
        self.deaths.append(f"shard {shard}: {how}")
        print(f"a worker died at shard {shard} ({how}); a new worker computes the shard again", flush=True)
        if self.killed[shard] >= MOST_DEATHS:
            raise JobError(
                f"{MOST_DEATHS} workers died at shard {shard}, the last one: {how}",
                hint="The job's log has the output of the workers. If they were 'killed by SIGKILL', give "
                "the job more memory.",
            )
        self.open.add(shard)


def run_swarm(work: Work, shards: int, workers: int, on_done: Callable[[ShardQueue], None]) -> ShardQueue:
    """Process the shards 0 to `shards` - 1 with the given number of workers, and return a report for each
    shard.

    When this function returns or raises an error, all workers have ended. Raises JobError if the workers of
    a shard die repeatedly, and the GridmillError that a worker raised.
    """
    state = ShardQueue(open=set(range(shards)))
    # a worker may die while this process writes to it, which must raise an error and not end this process
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    crew = _WorkerPool(work)
    try:
        while len(state.done) < shards:
            crew.staff(state, workers)
            for worker in crew.heard():
                if _receive(state, crew, worker):
                    on_done(state)
    finally:
        crew.dismiss()
    return state


def _receive(state: ShardQueue, crew: "_WorkerPool", worker: WorkerProcess) -> bool:
    """Process the reports and the deaths of the workers. Returns True if the reports say that at least one
    shard is finished."""
    shard = crew.shard_of_worker[worker.pid]
    reports = worker.receive()
    if reports is None:
        how = crew.remove(worker)
        if shard is not None:
            state.lose(shard, how)
        return False
    for report in reports:
        raise_error(report)
        state.finish(report["shard"], report)
        crew.hand(worker, state)
    return bool(reports)


class _WorkerPool(Crew):
    """The running worker processes, and the shard of each worker (None if the worker is idle)."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work
        self.shard_of_worker: dict[int, int | None] = {}

    def staff(self, state: ShardQueue, workers: int) -> None:
        """Assign shards to idle workers, and start further workers until there are `workers` workers."""
        for worker in [
            worker for worker in self.children.values() if self.shard_of_worker[worker.pid] is None
        ]:
            self.hand(worker, state)
        while state.open and len(self.children) < workers:
            self.hand(self.start(self._talk), state)

    def hand(self, worker: WorkerProcess, state: ShardQueue) -> None:
        """Give the next waiting shard to the worker. Do nothing if no shard waits."""
        last = self.shard_of_worker.get(worker.pid)
        self.shard_of_worker[worker.pid] = shard = state.take(-1 if last is None else last)
        if shard is not None:
            worker.send(str(shard))

    def remove(self, child: WorkerProcess) -> str:
        """End a worker process, and return a text that describes how it ended."""
        del self.shard_of_worker[child.pid]
        return super().remove(child)

    def _talk(self, next_order: Callable[[], str], report: Callable[[dict[str, Any]], None]) -> None:
        self.leave()
        while order := next_order():
            report({"shard": int(order), **self._work(int(order))})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTiming:
    """The elapsed time in seconds, and the resources that were used in this time."""

    seconds: float
    spent: CpuTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDone:
    """The resource usage of a single shard.

    For the first shard of a worker, the field `opening` contains the time and the resources that the worker
    used to open the dataset and the model. For other shards, this field is None. `unknown` is the number of
    rows with a category that the training rows did not have.
    """

    rows: int
    timing: ShardTiming
    opening: ShardTiming | None = None
    unknown: int = 0


def add_up(
    done: Sequence[ShardDone], *, work: str, workers: int, whole_rows: int, stage_seconds: float
) -> ParallelTiming:
    """Return the resource usage of the phase of an attempt in which workers run in parallel. `done` contains
    at least one shard."""
    firsts = [shard for shard in done if shard.opening is not None]
    rest = [shard for shard in done if shard.opening is None]
    opened = len(firsts) or 1
    spent = reduce(CpuTotals.plus, (shard.timing.spent for shard in done), NOTHING)
    opening = reduce(CpuTotals.plus, (shard.opening.spent for shard in done if shard.opening), NOTHING)
    busy = sum(shard.timing.seconds for shard in done)
    late = _excess(firsts, rest, lambda shard: shard.timing.seconds)
    late_cpu = _excess(firsts, rest, lambda shard: shard.timing.spent.cpu_seconds)
    late_delay = _excess(firsts, rest, lambda shard: shard.timing.spent.delay_seconds or 0.0)
    return ParallelTiming(
        work=work,
        workers=workers,
        shards=len(done),
        rows=sum(shard.rows for shard in done),
        whole_rows=whole_rows,
        stage_seconds=stage_seconds,
        opening_seconds=(sum(first.opening.seconds for first in firsts if first.opening) + late) / opened,
        opening_cpu_seconds=(opening.cpu_seconds + late_cpu) / opened,
        opening_delay_seconds=((opening.delay_seconds or 0.0) + late_delay) / opened,
        busy_seconds=busy - late,
        longest_seconds=max(shard.timing.seconds for shard in done),
        deviation=_deviation(rest or done),
        cpu_seconds=spent.cpu_seconds - late_cpu,
        delay_seconds=None if spent.delay_seconds is None else spent.delay_seconds - late_delay,
        disk_seconds=spent.disk_seconds,
        read_bytes=spent.read_bytes,
        written_bytes=spent.written_bytes,
    )


def _excess(
    firsts: Sequence[ShardDone], rest: Sequence[ShardDone], what: Callable[[ShardDone], float]
) -> float:
    """Return the additional time of first shards compared with other shards. The first shard of a worker
    takes longer because code is imported when it is first used."""
    rows = sum(shard.rows for shard in rest)
    if not rows:
        return 0.0
    pace = sum(map(what, rest)) / rows
    return max(0.0, sum(what(shard) - shard.rows * pace for shard in firsts))


def _deviation(done: Sequence[ShardDone]) -> float:
    """Return the standard deviation of the seconds per row of the shards, relative to their mean."""
    speeds = [shard.timing.seconds / shard.rows for shard in done if shard.rows]
    mean = statistics.fmean(speeds) if speeds else 0.0
    return statistics.stdev(speeds) / mean if len(speeds) > 1 and mean else 0.0
