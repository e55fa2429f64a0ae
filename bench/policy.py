"""Who goes next: disciplines compared on a published trace and on a generated load, by simulation.

python -m bench policy
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import process_time

from bench.disciplines import DEPTH, Easy, Fifo, Ours, Shortest
from bench.loads import LOADS, MADE_GPUS, MADE_LOAD, PHILLY, TRACE_GPUS, Load
from bench.measure import Result, at_least, at_most, percentile, row, save
from bench.queueing import Discipline, Pool
from gridmill.domain.ordering import RESTART_SECONDS

AREA = "Queueing"
MEAN_TIMES, WAIT_TIMES, EVENTS_PER_SECOND = 3.0, 1.2, 10_000
NAMES: Mapping[str, tuple[Callable[[], Discipline], float]] = {
    "FIFO": (Fifo, 1.0),
    "shortest first": (lambda: Shortest(preemptive=False), 1.0),
    "shortest remaining first": (lambda: Shortest(preemptive=True), 1.0),
    "EASY": (Easy, 1.0),
    "ours": (Ours, 1.0),
    "ours, half resumable": (Ours, 0.5),
    "ours, none resumable": (Ours, 0.0),
}
"""What is compared: the discipline, and the share of the jobs that can resume."""
HOW = f"""
A simulation. Philly: the published GPU trace, its first 20,000 jobs by submission, on {TRACE_GPUS} GPUs.
Generated: 20,000 jobs of four teams (lognormal durations, gangs of 1 to 64 GPUs, four times as many by day
as by night) on {MADE_GPUS} GPUs at a load of {MADE_LOAD:g}. GPUs are alike and a gang needs all of its own at
once. Shortest first, shortest remaining first and EASY know every duration (EASY looks at {DEPTH} waiting
jobs); ours knows only how long the jobs of the same cluster or team took that ended before, and decides with
the planner's functions (domain/ordering.py): the order, whom to interrupt, and for how long a job is left
alone; where its room is the planner says itself, as it sees pods. Interrupting a job that can resume costs it
{RESTART_SECONDS:.0f} s on all its GPUs. The interrupting disciplines are told that all jobs can resume,
unless it says otherwise. Completion: from submission to end. Wait: from submission to the first start.
Utilisation: GPUs in use until the last job came, and (in the notes) while any job waits.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one discipline on one load. Times in seconds; `busy` shares of the GPUs until the last job came, and
    while any waited; `rate` job events per CPU second."""

    mean: float
    p99: float
    most_wait: float
    busy: float
    busy_waiting: float
    interruptions: int
    rate: float


def simulate(load: Load, make: Callable[[], Discipline], resumable: float) -> Outcome:
    tasks, pool = load.make(resumable), Pool(load.gpus)
    began = process_time()
    tally = pool.run(tasks, make())
    took = process_time() - began
    completion = [task.ended - task.submitted for task in tasks]
    span = tasks[-1].submitted - tasks[0].submitted
    return Outcome(
        mean=sum(completion) / len(tasks),
        p99=percentile(completion, 0.99),
        most_wait=max((task.started or 0.0) - task.submitted for task in tasks),
        busy=tally.busy_until_last / load.gpus / span,
        busy_waiting=tally.busy_while_waiting / load.gpus / max(1.0, tally.waiting_seconds),
        interruptions=tally.interruptions,
        rate=tally.events / took,
    )


def results(load: str, found: Mapping[str, Outcome]) -> Iterator[Result]:
    """Rows of the page."""
    for name, one in found.items():
        what = f"{load}, {name}"
        note = f"{one.busy_waiting:.1%} while jobs wait; {one.interruptions:,} interruptions"
        yield row(AREA, f"{what}: mean completion", one.mean / 3600, "h")
        yield row(AREA, f"{what}: p99 completion", one.p99 / 3600, "h")
        yield row(AREA, f"{what}: longest wait", one.most_wait / 3600, "h")
        yield row(AREA, f"{what}: utilisation", 100 * one.busy, "%", note=note)
    first, ours = found["FIFO"], found["ours"]
    times = first.mean / ours.mean
    yield at_least(MEAN_TIMES, AREA, f"{load}: mean completion, FIFO's over ours", times, "x")
    waits = ours.most_wait / max(1.0, first.most_wait)
    yield at_most(WAIT_TIMES, AREA, f"{load}: longest wait, ours over FIFO's", waits, "x")
    yield at_least(EVENTS_PER_SECOND, AREA, f"{load}: job events, ours", ours.rate, "/s", note="CPU time")


def main() -> None:
    rows = list[Result]()
    for load in LOADS:
        if load.make is LOADS[0].make and not PHILLY.exists():
            print(f"the trace is left out: {PHILLY} is not there", file=sys.stderr)
            continue
        found = {name: simulate(load, make, share) for name, (make, share) in NAMES.items()}
        rows += results(load.name, found)
    save("policy", rows, how=HOW)


if __name__ == "__main__":
    main()
