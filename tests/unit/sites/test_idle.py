"""When a machine is given, and when it is taken back."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gridmill.domain.owner_idle import BUSY_CPUS, IdleRules, OwnerPresence, is_idle, note, spare_bytes, within
from gridmill.domain.site import Gpu, NodeUtilization
from gridmill.sites.machine import count_gpus, look_at_machine, read_gpus
from gridmill.sites.process_table import (
    Process,
    Table,
    grid_processes,
    is_grid_command,
    owner_processes,
    read_process,
    read_table,
    used_ticks,
)

GIB = 2**30
RULES = IdleRules(after_seconds=300.0)
QUIET = NodeUtilization(busy_cpus=2.0, owner_cpus=0.1, used_bytes=4 * GIB)


def after(
    presence: OwnerPresence, look: NodeUtilization = QUIET, *, keys: float = 1e9, now: float
) -> OwnerPresence:
    return note(presence, look, memory_bytes=16 * GIB, input_seconds=keys, now=now)


def test_a_machine_is_given_after_its_owner_was_away_long_enough() -> None:
    begun = OwnerPresence(seen=0.0)
    assert is_idle(after(begun, now=299.0), RULES, lent_at=None, now=299.0, hour=12)[0] is False
    assert is_idle(after(begun, now=300.0), RULES, lent_at=None, now=300.0, hour=12) == (True, "")


@pytest.mark.parametrize(
    ("look", "keys", "why"),
    [
        (
            NodeUtilization(busy_cpus=2, owner_cpus=BUSY_CPUS + 0.1, used_bytes=0),
            1e9,
            "the owner's processes use 0.6 CPUs",
        ),
        (NodeUtilization(busy_cpus=2, owner_cpus=0, used_bytes=15 * GIB), 1e9, "the memory is nearly full"),
        (QUIET, 0.0, "the keyboard or mouse is in use"),
        (QUIET, 4.9, "the keyboard or mouse is in use"),
    ],
)
def test_it_is_taken_back_at_the_first_sign(look: NodeUtilization, keys: float, why: str) -> None:
    seen = after(OwnerPresence(seen=0.0), look, keys=keys, now=1000.0)
    given, said = is_idle(seen, RULES, lent_at=995.0, now=1000.0, hour=12)
    assert not given
    assert said.startswith(why)


@pytest.mark.parametrize(
    ("used", "spare"), [(0, 8 * GIB), (4 * GIB, 8 * GIB), (10 * GIB, 4.025 * GIB), (16 * GIB, 2**20)]
)
def test_no_more_memory_is_given_than_the_owner_leaves(used: int, spare: float) -> None:
    """A tenth of it is nobody's, so that the machine does not swap; some the node itself needs."""
    given = spare_bytes(8 * GIB, memory_bytes=16 * GIB, used_bytes=used)
    assert given == pytest.approx(spare)


def test_jobs_of_the_grid_are_no_sign_of_the_owner() -> None:
    busy = NodeUtilization(busy_cpus=8.0, owner_cpus=0.0, used_bytes=0)
    assert is_idle(
        after(OwnerPresence(seen=0.0), busy, now=1000.0), RULES, lent_at=900.0, now=1000.0, hour=1
    )[0]


def test_a_key_pressed_before_the_machine_was_given_counts_from_then() -> None:
    seen = after(OwnerPresence(seen=0.0), keys=100.0, now=1000.0)
    assert seen.seen == 900.0
    assert not is_idle(seen, RULES, lent_at=None, now=1000.0, hour=12)[0]
    assert is_idle(after(seen, keys=300.0, now=1200.0), RULES, lent_at=None, now=1200.0, hour=12)[0]


@pytest.mark.parametrize(
    ("hours", "inside", "outside"), [((19, 7), (19, 23, 0, 6), (7, 12, 18)), ((9, 17), (9, 16), (8, 17, 0))]
)
def test_hours_go_past_midnight(hours: tuple[int, int], inside: list[int], outside: list[int]) -> None:
    assert all(within(hours, hour) for hour in inside)
    assert not any(within(hours, hour) for hour in outside)
    rules = IdleRules(after_seconds=0.0, hours=hours)
    given = [
        is_idle(OwnerPresence(seen=0.0), rules, lent_at=8.0, now=9.0, hour=hour)[0]
        for hour in (*inside, *outside)
    ]
    assert given == [True] * len(inside) + [False] * len(outside)


def test_a_sign_before_the_machine_was_lent_does_not_take_it_back() -> None:
    seen = after(OwnerPresence(seen=0.0), keys=301.0, now=1000.0)
    assert is_idle(seen, RULES, lent_at=None, now=1000.0, hour=12)[0]
    assert is_idle(after(seen, keys=302.0, now=1001.0), RULES, lent_at=1000.0, now=1001.0, hour=12)[0]


def test_a_machine_whose_owner_is_there_is_not_lent_however_short_the_wait() -> None:
    at_once = IdleRules(after_seconds=0.0)
    here = after(OwnerPresence(seen=0.0), keys=0.0, now=9.0)
    assert not is_idle(here, at_once, lent_at=None, now=9.0, hour=12)[0]
    assert is_idle(after(here, keys=1.0, now=10.0), at_once, lent_at=None, now=10.0, hour=12)[0]


def owners_now() -> frozenset[int]:
    table = read_table()
    return owner_processes(table, grid_processes(table, rays=True))


def test_a_busy_process_that_is_not_ours_is_the_owners() -> None:
    """Its parent has ended: what descends from the one that looks is not the owner's."""
    start = f"{shlex.quote(sys.executable)} -c 'while True: pass' > /dev/null 2>&1 & echo $!"
    pid = int(subprocess.run(["sh", "-c", start], capture_output=True, text=True, check=True).stdout)
    try:
        seen = owners_now()
        looks = (look_at_machine(0.5) for _ in range(100))  # on a busy machine it may not run for a while
        look = next(one for one in looks if one.owner_cpus > 0.1)
    finally:
        os.kill(pid, signal.SIGKILL)
    assert pid in seen
    assert look.used_bytes > 0


@pytest.mark.parametrize(
    ("pid", "name", "waited"), [(7, "make (x) y", 200), (1, "bash", 0), (700, "systemd", 0)]
)
def test_the_time_of_orphans_that_ended_is_not_that_of_who_adopted_them(
    pid: int, name: str, waited: int
) -> None:
    """Ray's and a pod's processes whose parent has ended are waited for by the first process."""
    stat = f"{pid} ({name}) R 0 1 1 34817 -1 2129984 1 1 0 0 10 5 150 50 20 0 1 0 27 0 0"
    found = read_process(pid, stat)
    assert (found.ticks, found.children_ticks, found.runs, found.parent) == (15, waited, True, 0)
    assert (found.name, found.terminal, found.start, found.is_kernel) == (name, 34817, 27, True)


def process(parent: int, ticks: int, waited: int = 0, *, start: int = 0, kernel: bool = False) -> Process:
    return Process(
        name="p",
        parent=parent,
        ticks=ticks,
        children_ticks=waited,
        runs=True,
        has_ended=False,
        start=start,
        terminal=0,
        is_kernel=kernel,
    )


@pytest.mark.parametrize(
    ("before", "after", "used"),
    [
        ({1: process(0, 5)}, {1: process(0, 9)}, 4),
        ({1: process(0, 5)}, {1: process(0, 5), 2: process(1, 30, 20, start=1)}, 50),
        ({1: process(0, 5), 2: process(1, 100)}, {1: process(0, 5, 130)}, 30),
        ({1: process(0, 5), 9: process(1, 100)}, {1: process(0, 6, 130)}, 1),
        ({1: process(0, 5), 2: process(1, 90)}, {1: process(0, 5), 2: process(1, 3, start=8)}, 3),
    ],
)
def test_what_the_owner_used_between_two_looks(before: Table, after: Table, used: int) -> None:
    """A child that ended was counted until then; one of the grid's (9) that the owner's shell waited for is
    not the owner's; a number that another process has got begins anew."""
    assert used_ticks(before, after, {1, 2}) == used


def test_kernel_threads_are_nobodys() -> None:
    table = {1: process(0, 0), 2: process(0, 0, kernel=True), 3: process(2, 0, kernel=True)}
    assert owner_processes(table, frozenset()) == {1}


def test_what_descends_from_gridmill_is_not_the_owners(tmp_path: Path) -> None:
    script = tmp_path / "gridmill"
    script.write_text("import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'input()'])\n")
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as ours:
        children = Path(f"/proc/{ours.pid}/task/{ours.pid}/children")
        until = time.monotonic() + 120
        while not children.read_text():
            assert time.monotonic() < until
        seen = owners_now()
        assert 1 in seen
        assert not {ours.pid, int(children.read_text()), os.getpid()} & seen


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        (["python3", "-P", "-m", "gridmill", "run"], True),
        (["/venv/bin/python3.11", "/venv/bin/gridmill", "join"], True),
        (["/venv/lib/ray/core/src/ray/raylet/raylet", "--x"], True),
        (["git", "clone", "https://example.org/gridmill"], False),
        (["vim", "gridmill"], False),
        (["python3", "train.py", "gridmill"], False),
    ],
)
def test_a_word_of_a_command_line_does_not_make_it_the_grids(words: list[str], ours: bool) -> None:
    line = [word.encode() for word in words]
    assert is_grid_command(line, rays=True) is ours
    assert is_grid_command(line, rays=False) is (ours and "raylet" not in words[0])


def test_what_the_driver_tells_of_gpus() -> None:
    told = "NVIDIA H100, PCIe, 81559, 1024, 37\nOld Card, 2048, [N/A], [N/A]\nnonsense\n"
    assert list(read_gpus(told)) == [
        Gpu(model="NVIDIA H100, PCIe", memory_bytes=81559 * 2**20, used_bytes=2**30, busy=0.37),
        Gpu(model="Old Card", memory_bytes=2**31, used_bytes=0, busy=0.0),
    ]


def test_gpus_are_counted_by_their_devices_where_no_driver_tells(tmp_path: Path) -> None:
    assert count_gpus(tmp_path) == 0
    (tmp_path / "kfd").touch()
    assert count_gpus(tmp_path) is None
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    assert count_gpus(tmp_path) == 2
