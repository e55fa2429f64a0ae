"""Loads for the simulator: a published trace, and one that is generated."""

import csv
import math
import random
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from bench.measure import REPOSITORY
from bench.queueing import Task

PHILLY = REPOSITORY.parent / "shared" / "data" / "traces" / "philly.csv"
TRACE_JOBS, TRACE_GPUS = 20_000, 512
MADE_JOBS, MADE_GPUS, MADE_LOAD = 20_000, 256, 0.95
TEAMS = (
    ("vision", 0.25, 1.5, 2.0),
    ("speech", 0.3, 2.0, 1.2),
    ("notebooks", 0.35, 0.05, 1.0),
    ("language", 0.1, 8.0, 1.5),
)
"""Of the generated load: name, share of the jobs, median hours, sigma of the lognormal."""
SIZES, WEIGHTS = (1, 2, 4, 8, 16, 32, 64), (60, 12, 10, 10, 5, 2, 1)


class Load(NamedTuple):
    """`make(share)` gives its jobs, of which that share can resume; earliest first."""

    name: str
    gpus: int
    make: Callable[[float], list[Task]]


def philly(resumable: float, path: Path = PHILLY) -> list[Task]:
    """The trace's first jobs by their time of submission. Its clusters are what is known beforehand."""
    with path.open(newline="") as file:
        rows = sorted(
            (datetime.fromisoformat(row["timestamp"]).timestamp(), number, row)
            for number, row in enumerate(csv.DictReader(file))
        )
    return [
        Task(
            number=number,
            submitted=submitted,
            seconds=float(row["duration"]),
            gpus=int(row["num_gpus"]),
            like=row["cluster"],
            resumable=_resumes(number, resumable),
        )
        for number, (submitted, _, row) in enumerate(rows[:TRACE_JOBS])
    ]


def generated(resumable: float, *, jobs: int = MADE_JOBS, gpus: int = MADE_GPUS, seed: int = 1) -> list[Task]:
    """Jobs of four teams, lognormal and cut at 14 days; they come by a Poisson process, four times as often
    by day as by night, as fast as makes the pool's load MADE_LOAD."""
    chance = random.Random(seed)
    kinds = [_kind(chance) for _ in range(jobs)]
    pace = sum(seconds * size for _, seconds, size in kinds) / gpus / MADE_LOAD / jobs
    tasks, now = list[Task](), 0.0
    for number, (team, seconds, size) in enumerate(kinds):
        now += chance.expovariate(1 / pace) / (1 + 0.6 * math.sin(2 * math.pi * now / 86_400))
        known = _resumes(number, resumable)
        task = Task(number=number, submitted=now, seconds=seconds, gpus=size, like=team, resumable=known)
        tasks.append(task)
    return tasks


def _kind(chance: random.Random) -> tuple[str, float, int]:
    team, _, hours, sigma = chance.choices(TEAMS, [share for _, share, _, _ in TEAMS])[0]
    seconds = chance.lognormvariate(math.log(hours * 3600), sigma)
    return team, min(max(1.0, seconds), 14 * 86_400.0), chance.choices(SIZES, WEIGHTS)[0]


def _resumes(number: int, share: float) -> bool:
    """Spread evenly, and the same ones every time."""
    return number * 7919 % 100 < 100 * share


LOADS = (
    Load("Philly", TRACE_GPUS, philly),
    Load("generated", MADE_GPUS, generated),
)
