"""What workers tell of their shards, and what processes have spent."""

import os
import subprocess
import sys

import pytest

from gridmill.codec import decode, encode
from gridmill.domain.resource import Measurement
from gridmill.jobs.child_processes import NOTHING, CpuTotals, spent_so_far
from gridmill.jobs.prediction.shards import pieces_of
from gridmill.jobs.prediction.swarm import ShardDone, ShardTiming, add_up
from gridmill.testing.store_samples import a_measurement

np = pytest.importorskip("numpy")


def shard(rows: int, seconds: float, opening: float | None = None, cpu: float = 0.0) -> ShardDone:
    spent = CpuTotals(cpu_seconds=cpu, delay_seconds=0.0)
    return ShardDone(
        rows=rows,
        timing=ShardTiming(seconds=seconds, spent=spent),
        opening=None if opening is None else ShardTiming(seconds=opening, spent=spent),
    )


def test_what_a_first_shard_takes_longer_is_opening() -> None:
    done = [shard(10, 1.5, opening=2.0), shard(10, 1.3, opening=2.2), *(shard(10, 1.0) for _ in range(4))]
    told = add_up(done, work="w", workers=2, whole_rows=60, stage_seconds=9.0)
    assert told.opening_seconds == pytest.approx(2.1 + 0.4)
    assert told.busy_seconds == pytest.approx(6.0)
    assert told.share == 1.0
    assert told.disk_seconds is None  # one of the shards could not tell


def test_one_shard_each_tells_nothing_of_first_ones() -> None:
    told = add_up([shard(10, 1.5, opening=2.0)], work="w", workers=1, whole_rows=100, stage_seconds=4.0)
    assert (told.opening_seconds, told.busy_seconds, told.share) == (2.0, 1.5, 0.1)


def test_a_probe_takes_the_first_part_of_every_piece() -> None:
    pieces = pieces_of(np.arange(100), 4, 0.1)
    assert [piece.tolist() for piece in pieces] == [[0, 1], [25, 26], [50, 51], [75, 76]]
    assert [len(piece) for piece in pieces_of(np.arange(10), 4, 0.001)] == [1, 1, 1, 1]


def test_spending_is_counted_with_helpers() -> None:
    before = spent_so_far()
    code = (
        "import sys\nwhile __import__('time').process_time() < 0.2: pass\nprint(flush=True)\nsys.stdin.read()"
    )
    helper = subprocess.Popen((sys.executable, "-c", code), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert helper.stdin is not None
    assert helper.stdout is not None
    helper.stdout.readline()
    spent = spent_so_far((helper.pid,)).since(before)
    helper.stdin.close()
    helper.wait()
    helper.stdout.close()
    assert spent.cpu_seconds >= 0.19
    if os.path.exists("/proc/self/io"):
        assert spent.read_bytes is not None


def test_what_one_does_not_know_both_do_not() -> None:
    assert NOTHING.plus(CpuTotals(cpu_seconds=1.0)).disk_seconds is None
    assert NOTHING.plus(CpuTotals(disk_seconds=1.5)).disk_seconds == 1.5


def test_records_of_before_are_read() -> None:
    old = encode(a_measurement()).replace(b',"waited_seconds":0.0,"parallel":null', b"")
    assert b"parallel" not in old
    assert decode(old, Measurement) == a_measurement()
