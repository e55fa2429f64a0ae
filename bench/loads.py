"""Loads for the simulator: windows of a published trace, and six kinds that are generated from a seed."""

import csv
import math
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import NamedTuple

from bench.measure import REPOSITORY
from bench.queueing import Task

PHILLY = REPOSITORY.parent / "shared" / "data" / "traces" / "philly.csv"
TRACE_GPUS = 384
WINDOWS = (0, 30_000, 60_000)
"""Of the trace: the first jobs of its windows, which do not overlap."""
JOBS = 6_000
DAY, LONGEST = 86_400.0, 14 * 86_400.0
TEAMS = (
    ("vision", 0.25, 1.5, 2.0),
    ("speech", 0.3, 2.0, 1.2),
    ("notebooks", 0.35, 0.05, 1.0),
    ("language", 0.1, 8.0, 1.5),
)
"""Name, share of the jobs, median hours, sigma of the lognormal."""


class Load(NamedTuple):
    """`make(seed, jobs, share)` gives so many jobs, of which that share can resume, earliest first. `seed`: 0
    to 2 are those of the page. `both`: it is judged in both forms, all jobs interruptible and none; else with
    half."""

    name: str
    gpus: int
    make: Callable[[int, int, float], list[Task]]
    both: bool = True


class Shape(NamedTuple):
    """One job: what is known of it beforehand, how long it takes, and on how many GPUs."""

    like: str
    seconds: float
    gpus: int


@cache
def _trace(path: Path) -> Sequence[tuple[float, Shape]]:
    with path.open(newline="") as file:
        rows = sorted(
            (datetime.fromisoformat(row["timestamp"]).timestamp(), number, row)
            for number, row in enumerate(csv.DictReader(file))
        )
    return [(at, Shape(row["cluster"], float(row["duration"]), int(row["num_gpus"]))) for at, _, row in rows]


def philly(seed: int, jobs: int, share: float) -> list[Task]:
    """A window of the trace. Its clusters are what is known beforehand."""
    first = WINDOWS[seed]
    return [
        _task(number, at, one, share) for number, (at, one) in enumerate(_trace(PHILLY)[first : first + jobs])
    ]


def pareto(seed: int, jobs: int, share: float) -> list[Task]:
    """Durations with a heavy tail (alpha 1.1, from ten minutes), of which nothing is known beforehand."""

    def shape(chance: random.Random) -> Shape:
        return Shape("any", _cut(600 * chance.paretovariate(1.1)), _size(chance, (60, 12, 10, 10, 5, 2)))

    return _steady(seed, jobs, share, gpus=128, load=0.9, shape=shape)


def bursts(seed: int, jobs: int, share: float) -> list[Task]:
    """Sweeps: fifty to three hundred jobs of one kind and size come at once."""
    chance, kinds = random.Random(seed), list[list[Shape]]()
    while sum(map(len, kinds)) < jobs:
        like, size = _team(chance), _size(chance, (60, 12, 10, 10))
        many = chance.randint(50, 300)
        kinds.append([Shape(like[0], _lasts(chance, like), size) for _ in range(many)])
    work = sum(one.seconds * one.gpus for burst in kinds for one in burst)
    pace, now, tasks = work / 128 / 0.85 / len(kinds), 0.0, list[Task]()
    for burst in kinds:
        now += chance.expovariate(1 / pace)
        tasks += [_task(len(tasks) + k, now, one, share) for k, one in enumerate(burst)]
    return tasks[:jobs]


def gangs(seed: int, jobs: int, share: float) -> list[Task]:
    """Half of the jobs are gangs of 8 to all 128 GPUs."""

    def shape(chance: random.Random) -> Shape:
        like = _team(chance)
        return Shape(like[0], _lasts(chance, like), _size(chance, (30, 10, 10, 20, 14, 8, 5, 3)))

    return _steady(seed, jobs, share, gpus=128, load=0.8, shape=shape)


def lublin(seed: int, jobs: int, share: float) -> list[Task]:
    """After Lublin and Feitelson (2003): a quarter serial; sizes uniform in their logarithm, mostly powers of
    two; durations of two gammas in their logarithm, the longer ones likelier for large jobs; a daily
    cycle."""

    def shape(chance: random.Random) -> Shape:
        exponent = 0.0 if chance.random() < 0.24 else chance.uniform(0.8, 7.0)
        size = min(128, round(2 ** (round(exponent) if chance.random() < 0.75 else exponent)))
        short = chance.random() < min(0.98, max(0.02, 0.68 - 0.0054 * size))
        logarithm = chance.gammavariate(4.2, 0.94) if short else chance.gammavariate(312, 0.03)
        return Shape("short" if chance.random() < 0.5 else "any", _cut(math.exp(logarithm)), size)

    return _steady(seed, jobs, share, gpus=128, load=0.85, shape=shape)


def priorities(seed: int, jobs: int, share: float) -> list[Task]:
    """Of four teams; a tenth is urgent, three tenths can wait."""
    tasks = mixed(seed, jobs, share)
    chance = random.Random(seed + 1000)
    for task in tasks:
        task.priority = chance.choices((1, 0, -1), (10, 60, 30))[0]
    return tasks


def mixed(seed: int, jobs: int, share: float) -> list[Task]:
    """Of four teams, lognormal, on 1 to 64 GPUs."""

    def shape(chance: random.Random) -> Shape:
        like = _team(chance)
        return Shape(like[0], _lasts(chance, like), _size(chance, (60, 12, 10, 10, 5, 2, 1)))

    return _steady(seed, jobs, share, gpus=256, load=0.95, shape=shape)


def _steady(
    seed: int, jobs: int, share: float, *, gpus: int, load: float, shape: Callable[[random.Random], Shape]
) -> list[Task]:
    """By a Poisson process, four times as often by day as by night, as fast as makes the pool's load."""
    chance = random.Random(seed)
    shapes = [shape(chance) for _ in range(jobs)]
    pace = sum(one.seconds * one.gpus for one in shapes) / gpus / load / jobs
    tasks, now = list[Task](), 0.0
    for number, one in enumerate(shapes):
        now += chance.expovariate(1 / pace) / (1 + 0.6 * math.sin(2 * math.pi * now / DAY))
        tasks.append(_task(number, now, one, share))
    return tasks


def _team(chance: random.Random) -> tuple[str, float, float, float]:
    return chance.choices(TEAMS, [share for _, share, _, _ in TEAMS])[0]


def _lasts(chance: random.Random, team: tuple[str, float, float, float]) -> float:
    _, _, hours, sigma = team
    return _cut(chance.lognormvariate(math.log(hours * 3600), sigma))


def _cut(seconds: float) -> float:
    return min(max(1.0, seconds), LONGEST)


def _size(chance: random.Random, weights: Sequence[int]) -> int:
    """A power of two."""
    return 1 << chance.choices(range(len(weights)), weights)[0]


def _task(number: int, submitted: float, one: Shape, share: float) -> Task:
    """Those that can resume are spread evenly, and are the same ones every time."""
    resumable = number * 7919 % 100 < 100 * share
    return Task(
        number=number,
        submitted=submitted,
        seconds=one.seconds,
        gpus=one.gpus,
        like=one.like,
        resumable=resumable,
    )


LOADS: Mapping[str, Load] = {
    one.name: one
    for one in (
        Load("Philly", TRACE_GPUS, philly),
        Load("Pareto", 128, pareto),
        Load("bursts", 128, bursts),
        Load("many gangs", 128, gangs),
        Load("lublin-style", 128, lublin),
        Load("priorities", 256, priorities),
        Load("half interruptible", 256, mixed, both=False),
    )
}
