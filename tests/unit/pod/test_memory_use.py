"""The memory of processes that share pages, while one of them ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gridmill.domain.amounts import MIB
from gridmill.pod import memory_use
from gridmill.pod.memory_use import MemoryUse, read_rollup, read_status

SIZE = 64 * MIB
SHARING = f"""
import os, sys
block = b"x" * {SIZE}
children = []
for _ in range(3):
    if (child := os.fork()) == 0:
        sys.stdin.read()
        os._exit(0)
    children.append(child)
print(*children, flush=True)
sys.stdin.read()
for child in children:
    os.waitpid(child, 0)
"""


@pytest.fixture
def sharing():
    """Four processes that share a block of memory: the first made the others by fork."""
    with subprocess.Popen(
        (sys.executable, "-c", SHARING), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield (process.pid, *map(int, process.stdout.readline().split()))
        process.stdin.close()


def _end(pid: int) -> None:
    """Ends the process and waits until its memory is free. It stays a zombie until its parent ends."""
    os.kill(pid, signal.SIGKILL)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        os.sched_yield()


def test_pages_of_a_process_that_ends_during_a_measurement_count_once(sharing, monkeypatch):
    _, last, *others = sharing
    pids = (last, *others, sharing[0])
    before = MemoryUse().bytes_of(pids)
    assert SIZE < before < 2 * SIZE
    read = memory_use._parts
    ended = []

    def read_and_end(pid):
        parts = read(pid)
        if pid == last and not ended:
            _end(pid)
            ended.append(pid)
        return parts

    monkeypatch.setattr(memory_use, "_parts", read_and_end)
    assert MemoryUse().bytes_of(pids) <= before
    assert ended == [last]


def test_processes_that_end_in_every_measurement_are_measured_a_limited_number_of_times(sharing, monkeypatch):
    calls = []
    monkeypatch.setattr(memory_use, "_shrank", lambda pid, resident: calls.append(pid) or True)
    assert SIZE < MemoryUse().bytes_of(sharing) < 2 * SIZE
    assert len(calls) == 1 + memory_use._REPEATS


def test_a_process_that_shares_nothing_is_measured_once(monkeypatch):
    def fail(pid, resident):
        raise AssertionError(pid)

    monkeypatch.setattr(memory_use, "_shrank", fail)
    text = b"Rss: 3000 kB\nPss: 2500 kB\nPss_Anon: 2000 kB\nAnonymous: 2000 kB\nSwapPss: 5 kB\n"
    assert not read_rollup(text).divided
    monkeypatch.setattr(memory_use, "_parts", lambda pid: read_rollup(text))
    assert MemoryUse().bytes_of([2**22 + 1, 2**22 + 2]) == 2 * 2005 * 1024


def test_kernels_before_5_4_and_processes_of_other_users():
    old = read_rollup(b"Rss: 4000 kB\nPss: 1000 kB\nAnonymous: 4000 kB\n")
    assert (old.private, old.divided) == (1000 * 1024, True)
    status = read_status(b"RssAnon: 100 kB\nRssShmem: 7 kB\nVmSwap: 1 kB\n")
    assert (status.private, status.shared, status.divided) == (101 * 1024, 7 * 1024, False)
