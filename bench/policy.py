"""Who goes next: disciplines compared on seven kinds of load, three seeds each, by simulation.

python -m bench policy
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from statistics import fmean
from time import process_time

from bench.disciplines import DEPTH, Easy, Fifo, Las, Ours, Shortest
from bench.loads import JOBS, LOADS, PHILLY, TRACE_GPUS, Load
from bench.measure import Result, at_least, at_most, percentile, row, save
from bench.queueing import Discipline, Pool
from gridmill.domain.ordering import RESTART_SECONDS

AREA = "Queueing"
SEEDS = (0, 1, 2)
HALF = 0.5
DAY, SHORTEST = 86_400.0, 600.0
MEAN_TIMES, DELAY_TIMES, LEAST_UTILISATION, DAYS_DELAYED, EVENTS_PER_SECOND = 1.1, 2.0, 0.98, 20.0, 3_000
MAKE: Mapping[str, tuple[Callable[[], Discipline], bool]] = {
    "FIFO": (Fifo, False),
    "EASY": (Easy, False),
    "EASY, estimates": (lambda: Easy(perfect=False), False),
    "shortest first, estimates": (lambda: Shortest(perfect=False), False),
    "SRTF": (lambda: Shortest(perfect=True), True),
    "LAS": (Las, True),
    "ours": (Ours, True),
}
"""What is compared, and whether it interrupts jobs."""
FORMS: Mapping[str, float] = {"interruptible": 1.0, "not interruptible": 0.0, "half interruptible": HALF}
HOW = f"""
A simulation of {JOBS:,} jobs, three times for each kind of load. Philly: three windows of the
published GPU trace on {TRACE_GPUS} GPUs. The others are generated from three seeds: durations with a heavy
tail (Pareto); sweeps of 50 to 300 jobs at once (bursts); half of the jobs gangs, up to one on all GPUs (many
gangs); after Lublin and Feitelson; with three priorities; four teams, half of whose jobs can resume. GPUs are
alike and a gang needs all of its own at once. FIFO, EASY (looks at {DEPTH} waiting jobs) and SRTF know every
duration; the lines with estimates and ours know only how long the jobs of the same cluster or team took that
ended before. LAS is Tiresias-like. Ours decides with the planner's functions (domain/ordering.py,
scheduler/reservation.py). Interrupting a job costs it {RESTART_SECONDS:.0f} s on all its GPUs. All put
priorities first. Values are means of the three. Delay: from submission to end, less what the job takes by
itself. Slowdown: that time over what the job takes, at least ten minutes. Utilisation: GPUs in use until the
last job came. Ratios are the worst of the three: mean completion against LAS (interruptible), or the better
of EASY and shortest first with estimates; delays against EASY with perfect knowledge, an hour at least;
utilisation against the best of all; the longest delay against the longer of the job's own length and a day.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one discipline on one load. Times in hours; `beyond`: the longest delay over the longer of the job's
    length and a day; `rate`: events per CPU second."""

    mean: float
    p99: float
    longest: float
    slowdown: float
    p99_slowdown: float
    beyond: float
    busy: float
    interruptions: int
    rate: float


def simulate(
    load: Load, seed: int, share: float, make: Callable[[], Discipline], jobs: int = JOBS
) -> Outcome:
    """`share` of the jobs can resume."""
    tasks, pool = load.make(seed, jobs, share), Pool(load.gpus)
    began = process_time()
    tally = pool.run(tasks, make())
    took = process_time() - began
    delays = [task.ended - task.submitted - task.seconds for task in tasks]
    slowdowns = [
        max(1.0, (delay + task.seconds) / max(SHORTEST, task.seconds))
        for delay, task in zip(delays, tasks, strict=True)
    ]
    span = tasks[-1].submitted - tasks[0].submitted
    return Outcome(
        mean=fmean(task.ended - task.submitted for task in tasks) / 3600,
        p99=percentile(delays, 0.99) / 3600,
        longest=max(delays) / 3600,
        slowdown=fmean(slowdowns),
        p99_slowdown=percentile(slowdowns, 0.99),
        beyond=max(delay / max(DAY, task.seconds) for delay, task in zip(delays, tasks, strict=True)),
        busy=tally.busy_until_last / load.gpus / span,
        interruptions=tally.interruptions,
        rate=tally.events / max(took, 1e-9),
    )


Found = Mapping[str, Sequence[Outcome]]
"""Of each discipline, one for each seed."""


def results(load: str, form: str, found: Found) -> Iterator[Result]:
    """Rows of the page for one load in one form."""
    for name, some in found.items():
        note = (
            f"delay p99 {_mean(some, 'p99'):.3g} h, longest {_mean(some, 'longest'):.4g} h; "
            f"slowdown {_mean(some, 'slowdown'):.3g}, p99 {_mean(some, 'p99_slowdown'):.3g}; "
            f"utilisation {_mean(some, 'busy'):.1%}; {_mean(some, 'interruptions'):,.0f} interruptions"
        )
        yield row(AREA, f"{load}, {form}, {name}: mean completion", _mean(some, "mean"), "h", note=note)
    yield from bounds(f"{load}, {form}", form, found)


def _mean(some: Sequence[Outcome], name: str) -> float:
    return fmean(getattr(one, name) for one in some)


def bounds(what: str, form: str, found: Found) -> Iterator[Result]:
    """What ours is held against; each the worst of the seeds."""
    ours, easy = found["ours"], found["EASY"]
    mean = max(one.mean / other for one, other in zip(ours, _references(form, found), strict=True))
    if form != "half interruptible":
        yield at_most(MEAN_TIMES, AREA, f"{what}: mean completion, ours", mean, "x")
    p99 = max(one.p99 / max(1.0, other.p99) for one, other in zip(ours, easy, strict=True))
    yield at_most(DELAY_TIMES, AREA, f"{what}: p99 delay, ours", p99, "x EASY's")
    longest = max(one.longest / max(1.0, other.longest) for one, other in zip(ours, easy, strict=True))
    yield at_most(DELAY_TIMES, AREA, f"{what}: longest delay, ours", longest, "x EASY's")
    best = [max(some[k].busy for some in found.values()) for k in range(len(ours))]
    least = min(one.busy / other for one, other in zip(ours, best, strict=True))
    yield at_least(LEAST_UTILISATION, AREA, f"{what}: utilisation, ours", least, "of the best")
    beyond = max(one.beyond for one in ours)
    least_possible = f"EASY's is {max(one.beyond for one in easy):.3g}"
    yield at_most(
        DAYS_DELAYED, AREA, f"{what}: longest delay over length or a day", beyond, "x", note=least_possible
    )


def _references(form: str, found: Found) -> Sequence[float]:
    """The mean completion that ours is held against, for each seed."""
    if form == "interruptible":
        return [one.mean for one in found["LAS"]]
    if form != "not interruptible":
        return [nan for _ in found["ours"]]
    pairs = zip(found["EASY, estimates"], found["shortest first, estimates"], strict=True)
    return [min(one.mean, other.mean) for one, other in pairs]


def compare(load: Load, form: str, jobs: int = JOBS) -> Found:
    """All that are compared, on all seeds. What interrupts nobody has nothing to do with who can resume."""
    share = FORMS[form]
    chosen = {
        name: make for name, (make, interrupts) in MAKE.items() if share or not interrupts or name == "ours"
    }
    return {
        name: [simulate(load, seed, share, make, jobs) for seed in SEEDS] for name, make in chosen.items()
    }


def main() -> None:
    rows, rates, jobs = list[Result](), list[float](), int(os.environ.get("GRIDMILL_BENCH_JOBS", JOBS))
    for load in LOADS.values():
        if load.name == "Philly" and not PHILLY.exists():
            print(f"the trace is left out: {PHILLY} is not there", file=sys.stderr)
            continue
        for form in ("interruptible", "not interruptible") if load.both else ("half interruptible",):
            found = compare(load, form, jobs)
            name = "four teams" if form == load.name else load.name
            rows += results(name, form, found)
            rates += [one.rate for one in found["ours"]]
            print(f"{load.name}, {form}", file=sys.stderr, flush=True)
    slowest = min(rates)
    rows.append(
        at_least(EVENTS_PER_SECOND, AREA, "job events of the slowest, ours", slowest, "/s", note="CPU time")
    )
    save("policy", rows, how=HOW)


if __name__ == "__main__":
    main()
