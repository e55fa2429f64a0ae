"""Advice after its probes, held against simulated jobs whose law is known: serial parts, locks, the USL.

The simulation knows nothing of the laws that are fitted: its workers take shards, sleep, and queue at a lock.
"""

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median, quantiles

import pytest

from gridmill.domain.advice import Advice
from gridmill.domain.amounts import Amounts
from gridmill.domain.footprint import count_probe_shards, count_shards
from gridmill.domain.job import JobSize
from gridmill.domain.resource import MeasuredUse, Measurement
from gridmill.domain.usage import ParallelTiming
from gridmill.jobs.child_processes import CpuTotals
from gridmill.jobs.prediction.swarm import ShardDone, ShardTiming, add_up
from gridmill.scheduler.advice import advise
from gridmill.scheduler.history import PROBE
from gridmill.testing.fake_advising import known_of

ROWS = 32_768
NUMBERS = (1, 2, 4, 8, 16, 32)
SHARD_SECONDS = 0.003  # to hand a shard over
NOISE = 0.01
SEEDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJob:
    """Seconds that one worker needs for all rows, to load, and before and after the shards; the part of each
    shard that is done under a lock; and how much slower each worker becomes beside others (USL)."""

    name: str
    work: float
    load: float
    around: float = 0.5
    locked: float = 0.0
    contention: float = 0.0
    coherence: float = 0.0

    def pace(self, workers: int) -> float:
        """Of one worker beside the others."""
        return 1 + self.contention * (workers - 1) + self.coherence * workers * (workers - 1)


JOBS = (
    KnownJob(name="all of it parallel", work=50, load=0, around=0.2),
    KnownJob(name="2 % serial", work=49, load=0.8, around=0.2),
    KnownJob(name="10 % serial", work=45, load=4.5),
    KnownJob(name="25 % serial", work=37.5, load=12),
    KnownJob(name="40 % serial", work=30, load=19.5),
    KnownJob(name="3 % under a lock", work=48, load=1, locked=0.03),
    KnownJob(name="8 % under a lock", work=48, load=1, locked=0.08),
    KnownJob(name="20 % under a lock", work=48, load=1, locked=0.2),
    KnownJob(name="much contention, little coherence", work=48, load=1, contention=0.05, coherence=0.001),
    KnownJob(name="little contention, coherence", work=48, load=1, contention=0.02, coherence=0.005),
    KnownJob(name="contention and coherence", work=48, load=1, contention=0.1, coherence=0.01),
    KnownJob(name="coherence", work=48, load=1, coherence=0.02),
)


def test_speedups_are_as_said_and_no_smaller_number_is_faster() -> None:
    errors: list[float] = []
    for job in JOBS:
        took = {workers: wall_seconds(job, workers) for workers in range(1, 33)}
        for seed in range(SEEDS):
            found, probed = advice_after_probes(job, random.Random(seed))
            for workers in NUMBERS[1:]:
                line = found.forecast(workers)
                assert line is not None
                errors.append(abs(line.speedup / (took[1] / took[workers]) - 1))
            fewer = min(took[workers] for workers in took if workers <= found.worth)
            advised = took.get(found.worth) or wall_seconds(job, found.worth)
            assert advised <= 1.03 * fewer, f"{job.name}: {found.worth} workers are advised"
            assert len(probed) <= 3
    assert median(errors) <= 0.10
    assert quantiles(errors, n=10)[-1] <= 0.25


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_third_number_is_probed_where_the_gain_depends_on_it(job: KnownJob) -> None:
    found, probed = advice_after_probes(job, random.Random(1))
    serial_alone = (job.load + job.around) / (job.work + job.load + job.around) >= 0.1
    assert probed[:2] == [1, 8]
    assert len(probed) == (2 if serial_alone else 3)
    assert any("third number" in text for text in found.unknown) == (len(probed) == 2)


def advice_after_probes(job: KnownJob, draw: random.Random) -> tuple[Advice, list[int]]:
    """As the client asks for it, and the numbers of workers that were probed."""
    workers, share = 1, 0.05
    measured: list[Measurement] = []
    while True:
        measured.append(_attempt(len(measured), job, workers, share, draw))
        found = advise(known_of(*measured, cpus=2.0))
        assert found is not None
        if not found.probes:
            return found, [one.parallel.workers for one in measured if one.parallel]
        workers, share = found.probes[0].workers, found.probes[0].share


def wall_seconds(job: KnownJob, workers: int) -> float:
    """Of an attempt with all rows."""
    draw = random.Random(workers)
    shards = count_shards(ROWS, workers, None)
    return median(_work(job, workers, ROWS, shards, draw).stage_seconds + job.around for _ in range(3))


def _attempt(number: int, job: KnownJob, workers: int, share: float, draw: random.Random) -> Measurement:
    rows = round(ROWS * share)
    timing = _work(job, workers, rows, count_probe_shards(rows, workers), draw)
    around = job.around * draw.gauss(1, NOISE)
    return Measurement(
        attempt_id=f"known-1.predict.{number}",
        subject=f"prediction{PROBE}",
        job="known/predict",
        size=JobSize(rows=rows),
        given=Amounts(cpus=2.0, memory_bytes=2**30),
        use=MeasuredUse(
            wall_seconds=timing.stage_seconds + around, cpu_seconds=0.1, peak_memory_bytes=200 * 2**20
        ),
        ended=float(number),
        parallel=timing,
    )


def _work(job: KnownJob, workers: int, rows: int, shards: int, draw: random.Random) -> ParallelTiming:
    done = list(_shards_done(job, workers, rows, shards, draw))
    return add_up(
        [shard for _, shard in done],
        work="known",
        workers=workers,
        whole_rows=ROWS,
        stage_seconds=max(when for when, _ in done),
    )


def _shards_done(
    job: KnownJob, workers: int, rows: int, shards: int, draw: random.Random
) -> Iterator[tuple[float, ShardDone]]:
    """When each shard was done, by a simulation of events: a worker is free, or it has come to the lock."""
    spent = CpuTotals(cpu_seconds=0.002, delay_seconds=0.0, disk_seconds=0.0, read_bytes=0, written_bytes=0)
    left = [rows // shards + (number < rows % shards) for number in range(shards)]
    loads = [job.load * draw.gauss(1, NOISE) for _ in range(workers)]
    opened: set[int] = set()
    lock_is_free = 0.0
    # When, which worker, and at the lock: when it began, the rows of its shard and the shard's seconds.
    events: list[tuple[float, int, tuple[float, int, float] | None]] = [
        (load, worker, None) for worker, load in enumerate(loads)
    ]
    heapq.heapify(events)
    while events:
        now, worker, at_lock = heapq.heappop(events)
        if at_lock is None:
            if left:
                size = left.pop()
                seconds = size / ROWS * job.work * job.pace(workers) * draw.gauss(1, NOISE)
                heapq.heappush(events, (now + seconds * (1 - job.locked), worker, (now, size, seconds)))
            continue
        began, size, seconds = at_lock
        end = now
        if job.locked:
            lock_is_free = end = max(lock_is_free, now) + seconds * job.locked
        end += SHARD_SECONDS
        first = worker not in opened
        opened.add(worker)
        yield (
            end,
            ShardDone(
                rows=size,
                timing=ShardTiming(seconds=end - began, spent=spent),
                opening=ShardTiming(seconds=loads[worker], spent=spent) if first else None,
            ),
        )
        heapq.heappush(events, (end, worker, None))
