"""When a machine is given, and when it is taken back."""

import os
import shlex
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gridmill.domain.owner_idle import BUSY_CPUS, IdleRules, OwnerPresence, is_idle, note, spare_bytes, within
from gridmill.domain.site import Gpu, NodeUtilization
from gridmill.sites import owner_activity as logind
from gridmill.sites.machine import count_gpus, look_at_machine, owners_processes, read_gpus, read_process
from gridmill.sites.owner_activity import (
    IdleWatch,
    InputDevices,
    open_device,
    read_sessions,
    seconds_since_input,
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
    assert is_idle(after(begun, now=299.0), RULES, given=False, now=299.0, hour=12)[0] is False
    assert is_idle(after(begun, now=300.0), RULES, given=False, now=300.0, hour=12) == (True, "")


@pytest.mark.parametrize(
    ("look", "keys", "why"),
    [
        (
            NodeUtilization(busy_cpus=2, owner_cpus=BUSY_CPUS + 0.1, used_bytes=0),
            1e9,
            "the owner's processes use 0.6 CPUs",
        ),
        (NodeUtilization(busy_cpus=2, owner_cpus=0, used_bytes=15 * GIB), 1e9, "memory is nearly used up"),
        (QUIET, 0.0, "somebody is at the keyboard"),
    ],
)
def test_it_is_taken_back_at_the_first_sign(look: NodeUtilization, keys: float, why: str) -> None:
    seen = after(OwnerPresence(seen=0.0), look, keys=keys, now=1000.0)
    given, said = is_idle(seen, RULES, given=True, now=1000.0, hour=12)
    assert not given
    assert said.startswith(why)


@pytest.mark.parametrize(
    ("used", "spare"), [(0, 8 * GIB), (4 * GIB, 8 * GIB), (10 * GIB, 4.4 * GIB), (16 * GIB, 2**20)]
)
def test_no_more_memory_is_given_than_the_owner_leaves(used: int, spare: float) -> None:
    """A tenth of it is nobody's, so that the machine does not swap."""
    given = spare_bytes(8 * GIB, memory_bytes=16 * GIB, used_bytes=used)
    assert given == pytest.approx(spare)


def test_jobs_of_the_grid_are_no_sign_of_the_owner() -> None:
    busy = NodeUtilization(busy_cpus=8.0, owner_cpus=0.0, used_bytes=0)
    assert is_idle(after(OwnerPresence(seen=0.0), busy, now=1000.0), RULES, given=True, now=1000.0, hour=1)[0]


def test_a_key_pressed_before_the_machine_was_given_counts_from_then() -> None:
    seen = after(OwnerPresence(seen=0.0), keys=100.0, now=1000.0)
    assert seen.seen == 900.0
    assert not is_idle(seen, RULES, given=False, now=1000.0, hour=12)[0]
    assert is_idle(after(seen, keys=300.0, now=1200.0), RULES, given=False, now=1200.0, hour=12)[0]


@pytest.mark.parametrize(
    ("hours", "inside", "outside"), [((19, 7), (19, 23, 0, 6), (7, 12, 18)), ((9, 17), (9, 16), (8, 17, 0))]
)
def test_hours_go_past_midnight(hours: tuple[int, int], inside: list[int], outside: list[int]) -> None:
    assert all(within(hours, hour) for hour in inside)
    assert not any(within(hours, hour) for hour in outside)
    rules = IdleRules(after_seconds=0.0, hours=hours)
    given = [
        is_idle(OwnerPresence(seen=0.0), rules, given=True, now=9.0, hour=hour)[0]
        for hour in (*inside, *outside)
    ]
    assert given == [True] * len(inside) + [False] * len(outside)


def test_a_busy_process_that_is_not_ours_is_the_owners() -> None:
    """Its parent has ended: what descends from the one that looks is not the owner's."""
    start = f"{shlex.quote(sys.executable)} -c 'while True: pass' > /dev/null 2>&1 & echo $!"
    pid = int(subprocess.run(["sh", "-c", start], capture_output=True, text=True, check=True).stdout)
    try:
        seen = owners_processes()
        looks = (look_at_machine(0.5) for _ in range(100))  # on a busy machine it may not run for a while
        look = next(one for one in looks if one.owner_cpus > 0.1)
    finally:
        os.kill(pid, signal.SIGKILL)
    assert pid in seen
    assert look.used_bytes > 0


@pytest.mark.parametrize(
    ("pid", "name", "ticks"), [(7, "make (x) y", 15 + 200), (1, "bash", 15), (700, "systemd", 15)]
)
def test_the_time_of_orphans_that_ended_is_not_that_of_who_adopted_them(
    pid: int, name: str, ticks: int
) -> None:
    """Ray's and a pod's processes whose parent has ended are waited for by the first process."""
    stat = f"{pid} ({name}) R 0 1 1 0 -1 4194560 1 1 0 0 10 5 150 50 20 0 1 0 27 0 0"
    found = read_process(pid, stat)
    assert (found.ticks, found.runs, found.parent) == (ticks, True, 0)


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
        seen = owners_processes()
        assert 1 in seen
        assert not {ours.pid, int(children.read_text()), os.getpid()} & seen


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


def test_input_is_seen_by_access_times(tmp_path: Path) -> None:
    (tmp_path / "pts").mkdir()
    (tmp_path / "pts" / "0").touch()
    assert seconds_since_input(tmp_path) < 60.0
    os.utime(tmp_path / "pts" / "0", (0, 0))
    assert seconds_since_input(tmp_path) > 1e9
    assert seconds_since_input(tmp_path / "nothing") >= 1e9


def event(kind: int) -> bytes:
    """As the kernel writes one (struct input_event), and the one that ends each report."""
    return struct.pack("@llHHi", 0, 0, kind, 30, 1) + struct.pack("@llHHi", 0, 0, 0, 0, 0)


KEY, MOUSE, STICK = 1, 2, 3


def test_a_key_is_seen_by_its_event_and_only_once(tmp_path: Path) -> None:
    """A fifo stands for the device: it is read without waiting, too."""
    (tmp_path / "input").mkdir()
    os.mkfifo(tmp_path / "input" / "event3")
    devices = InputDevices(tmp_path)
    try:
        assert devices.seconds_since(100.0) > 1e8
        with (tmp_path / "input" / "event3").open("wb", buffering=0) as keyboard:
            assert devices.seconds_since(101.0) > 1e8
            keyboard.write(event(STICK))
            assert devices.seconds_since(102.0) > 1e8, "what drifts by itself is nobody"
            keyboard.write(event(STICK) + event(KEY))
            assert devices.seconds_since(103.0) == 0.0
            assert devices.seconds_since(113.0) == 10.0
            keyboard.write(event(MOUSE))
            assert devices.seconds_since(114.0) == 0.0
        assert not devices.blind
        assert devices.seconds_since(120.0) == 6.0, "it was unplugged"
    finally:
        devices.close()


def not_the_second(path: Path) -> int:
    """As for a user who may read the first device only (a stick, say)."""
    if path.name == "event1":
        raise PermissionError
    return open_device(path)


def test_a_desktop_is_asked_where_a_keyboard_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    os.mkfifo(tmp_path / "input" / "event0")
    watch = IdleWatch(tmp_path, InputDevices(tmp_path, not_the_second), lambda now: 7.0)
    try:
        assert watch.seconds_since_input() > 1e8
        assert not watch.cannot_watch
        os.mkfifo(tmp_path / "input" / "event1")
        assert watch.seconds_since_input() == 7.0
        assert watch.cannot_watch
    finally:
        watch.close()


def session(idle: str, *, since: int = 0, of: str = "user", kind: str = "wayland") -> str:
    return f"Type={kind}\nClass={of}\nState=active\nIdleHint={idle}\nIdleSinceHint={since}\n"


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ((), 1e9),
        ((session("no"),), 0.0),
        ((session("yes", since=960_000_000),), 40.0),
        ((session("yes", since=960_000_000), session("no", kind="x11")), 0.0),
        ((session("no", of="greeter"), session("no", kind="tty")), 1e9),
    ],
)
def test_a_desktop_is_in_use_until_it_says_that_it_is_idle(told: tuple[str, ...], seconds: float) -> None:
    assert read_sessions("\n".join(told), now=1000.0) == seconds


def test_a_machine_whose_logind_does_not_answer_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "loginctl"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(logind, "_PATIENCE_SECONDS", 0.1)
    assert logind.seconds_since_use(0.0) == 0.0
    monkeypatch.setattr(logind, "_PATIENCE_SECONDS", 60.0)  # a machine may be busy
    program.write_text("#!/bin/sh\nexit 1\n")
    assert logind.seconds_since_use(0.0) > 1e6, "it has no logind"
    program.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert logind.seconds_since_use(0.0) > 1e6, "there is none"
