"""What counts as a sign of a machine's owner, and what does not: terminals, SSH, input devices, desktops."""

import os
import pty
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.kit import logind as bus
from tests.kit import sshd
from tests.kit.ports import free_port

from gridmill.bootstrap.loose_machines import LocalProvider
from gridmill.cli.join import OwnerWatch
from gridmill.domain.owner_idle import IdleRules
from gridmill.domain.site import NodeUtilization
from gridmill.sites.desktop_sessions import DesktopSessions
from gridmill.sites.owner_activity import IdleWatch, InputDevices, SshSessions, Terminals, open_device
from gridmill.sites.process_table import (
    Table,
    below,
    grid_processes,
    is_alive,
    is_grid_terminal,
    kill_trees,
    owner_processes,
    read_one,
    read_table,
    ssh_sessions,
)

LONG_AGO = 10**6
READER = "import sys\nfor line in sys.stdin: print(line)"


@contextmanager
def running(words: list[str], *, stderr: int | None = None) -> "Iterator[subprocess.Popen[str]]":
    """A program with its input and output; killed at the end, also where a check fails."""
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=stderr, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def nobody(device: int) -> bool:
    return False


@contextmanager
def typed_into(folder: Path, reader: list[str]) -> Iterator[tuple[int, Path]]:
    """A real terminal with a program that reads it, last used long ago, and its name below `folder`. What is
    written to the descriptor is typed."""
    keyboard, screen = pty.openpty()
    path = Path(os.ttyname(screen))
    (folder / "pts").mkdir(exist_ok=True)
    (folder / "pts" / path.name).symlink_to(path)

    def take() -> None:  # it is the controlling terminal of a session of its own, as at a login
        os.setsid()
        with os.fdopen(os.open(path, os.O_RDWR)):
            termios.tcgetattr(0)

    with subprocess.Popen(reader, stdin=screen, stdout=screen, stderr=screen, preexec_fn=take) as program:
        os.close(screen)
        os.utime(path, (LONG_AGO, LONG_AGO))
        try:
            yield keyboard, folder / "pts" / path.name
        finally:
            program.kill()
            os.close(keyboard)


def press(keyboard: int) -> None:
    """A key and Enter; the reader has read them when it prints its second line."""
    os.write(keyboard, b"x\n")
    told, until = b"", time.monotonic() + 60
    while told.count(b"\n") < 2:
        assert select.select([keyboard], [], [], max(0.0, until - time.monotonic()))[0]
        told += os.read(keyboard, 1024)


class AtRest(LocalProvider):
    """This machine, as if nothing but its terminals, SSH and devices were in use."""

    def look(self, seconds: float) -> NodeUtilization:
        return NodeUtilization(busy_cpus=2.0, owner_cpus=0.0, used_bytes=0)


def my_processes() -> Table:
    """Those of this test: others run on this machine, too."""
    table = read_table()
    return {pid: table[pid] for pid in below(os.getpid(), table)}


def watch_of(devices: Path, inputs: InputDevices | None = None) -> IdleWatch:
    return IdleWatch(devices, inputs, processes=my_processes)


def lent(watch: IdleWatch) -> OwnerWatch:
    owner = OwnerWatch(AtRest(watch), IdleRules(after_seconds=0.0))
    assert owner.look(is_lent=False) == (True, "")
    assert owner.look(is_lent=True) == (True, "")
    return owner


def test_a_key_at_a_real_terminal_takes_a_lent_machine_back(tmp_path: Path) -> None:
    """The kernel writes the time of a key only once in 8 s: any change counts."""
    with typed_into(tmp_path, [sys.executable, "-c", READER]) as (keyboard, path):
        owner = lent(watch_of(tmp_path))
        press(keyboard)
        assert owner.look(is_lent=True) == (False, f"input at a terminal (pts/{path.name})")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may set the times of /dev/ptmx")
def test_keys_that_no_program_reads_leave_a_trace_at_ptmx() -> None:
    keyboard, screen = pty.openpty()
    try:
        os.utime("/dev/ptmx", (LONG_AGO, LONG_AGO))
        os.write(keyboard, b"x")
        assert os.stat("/dev/ptmx").st_mtime > LONG_AGO
    finally:
        os.close(keyboard)
        os.close(screen)


def test_keys_that_no_program_reads_take_a_lent_machine_back(tmp_path: Path) -> None:
    """As while a command runs that takes no input."""
    (tmp_path / "ptmx").touch()
    os.utime(tmp_path / "ptmx", (LONG_AGO, LONG_AGO))
    owner = lent(watch_of(tmp_path))
    (tmp_path / "ptmx").touch()
    assert owner.look(is_lent=True) == (False, "input at a terminal (ptmx)")


def test_a_terminal_counts_as_in_use_while_further_keys_would_leave_no_trace(tmp_path: Path) -> None:
    (tmp_path / "pts").mkdir()
    key = tmp_path / "pts" / "3"
    key.touch()
    terminals = Terminals(tmp_path)
    os.utime(key, (1603.0, 0))  # a window of 8 s begins at 1600
    assert [terminals.seconds_since(at, at + 1500.0, nobody) for at in (103.5, 107.9, 109.0)] == [0, 0, 1]
    os.utime(key, (1609.0, 0))
    assert terminals.seconds_since(110.0, 1610.0, nobody) == 0.0
    assert terminals.where == "pts/3"


def test_a_clock_that_is_set_is_no_sign(tmp_path: Path) -> None:
    (tmp_path / "pts").mkdir()
    (tmp_path / "pts" / "3").touch()
    os.utime(tmp_path / "pts" / "3", (1000.0, 0))
    terminals = Terminals(tmp_path)
    assert terminals.seconds_since(50.0, 1600.0, nobody) == pytest.approx(592.0)
    assert terminals.seconds_since(51.0, 900.0, nobody) == pytest.approx(593.0)


def test_a_new_terminal_is_a_sign_and_one_that_is_gone_is_not(tmp_path: Path) -> None:
    (tmp_path / "pts").mkdir()
    terminals = Terminals(tmp_path)
    assert terminals.seconds_since(50.0, 1600.0, nobody) > 1e8
    (tmp_path / "pts" / "3").touch()
    os.utime(tmp_path / "pts" / "3", (1601.0, 0))
    assert terminals.seconds_since(51.0, 1601.0, nobody) == 0.0
    (tmp_path / "pts" / "3").unlink()
    assert terminals.seconds_since(61.0, 1611.0, nobody) == 3.0


AT_A_TERMINAL = """
import os, sys
child, keyboard = os.forkpty()
if not child:
    os.execv(sys.executable, [sys.executable, "-c", "import os; print(os.ttyname(0)); input()"])
print(os.read(keyboard, 100).decode().strip(), flush=True)
input()
"""
"""A program that runs another one at a terminal, as `script` and pexpect do."""
WITH_ONE = "import os; _, screen = os.openpty(); print(os.ttyname(screen), flush=True); input()"
ALL = "import os; master, _ = os.openpty(); print('/dev/ptmx', flush=True); input()"


@pytest.mark.parametrize("code", [AT_A_TERMINAL, WITH_ONE, ALL])
def test_a_terminal_of_a_job_of_the_grid_is_not_the_owners(code: str) -> None:
    words = [sys.executable, "-c", code, "-m", "gridmill.pod"]
    with running(words) as job:
        assert job.stdout is not None
        device = os.stat(job.stdout.readline().strip()).st_rdev
        table = my_processes()
        grid = grid_processes(table, rays=False)
        assert is_grid_terminal(device, table, grid)
        assert not is_grid_terminal(device, table, grid - {job.pid, *children(job.pid)})
        kill_trees(children(job.pid))


def test_a_job_that_begins_during_a_look_is_not_the_owner(tmp_path: Path) -> None:
    """The processes are read before the times of the terminals."""
    with running([sys.executable, "-c", WITH_ONE, "-m", "gridmill.pod"]) as job:
        assert job.stdout is not None
        name = job.stdout.readline().strip().removeprefix("/dev/")
        whole = my_processes()
        looks = [{pid: one for pid, one in whole.items() if pid != job.pid}, whole]
        watch = IdleWatch(tmp_path, processes=lambda: looks.pop(0))
        (tmp_path / "pts").mkdir()
        (tmp_path / name).symlink_to(f"/dev/{name}")
        assert watch.seconds_since_input() > 1e8
        assert looks == []


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# --- SSH

needs_sshd = pytest.mark.skipif(not sshd.is_installed(), reason=sshd.HOW_TO_GET_IT)


def ssh(server: sshd.Sshd, *words: str) -> list[str]:
    return ["ssh", "-F", str(server.config), "-o", "BatchMode=yes", *words]


@needs_sshd
def test_a_login_over_ssh_takes_a_lent_machine_back(tmp_path: Path) -> None:
    (tmp_path / "pts").mkdir()
    with sshd.ssh_server({"LANG": "C"}) as server:
        watch = watch_of(tmp_path)
        assert watch.seconds_since_input() > 1e8
        words = ssh(server, "-tt", server.address, "tty; cat")
        with running(words) as session:
            assert session.stdout is not None
            name = session.stdout.readline().strip().removeprefix("/dev/")
            (tmp_path / name).symlink_to(f"/dev/{name}")
            assert watch.seconds_since_input() < 60.0
            assert watch.sign == f"input at a terminal ({name})"


@needs_sshd
def test_a_command_over_ssh_is_a_sign_once_it_lasts_and_a_tunnel_never() -> None:
    """The server of this test is no child of the machine's first process: nobody's grid here."""
    with sshd.ssh_server({"LANG": "C"}) as server:
        tunnel = ssh(server, "-N", "-v", "-L", f"127.0.0.1:{free_port()}:127.0.0.1:9", server.address)
        command = ssh(server, server.address, "echo begun; cat")
        with (
            running(tunnel, stderr=subprocess.PIPE) as forwarding,
            running(command) as working,
        ):
            assert forwarding.stderr is not None
            assert working.stdout is not None
            assert any("Entering interactive session" in line for line in forwarding.stderr)
            assert working.stdout.readline() == "begun\n"
            uptime, now = time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic()
            table = read_table()
            known = SshSessions()
            mine = set(below(os.getpid(), table))
            found = {pid: start for pid, start in ssh_sessions(table, ()).items() if pid in mine}
            assert len(found) == 1
            assert known.seconds_since(now, uptime - 60.0, found) > 1e8, "it may be a short one"
            assert known.seconds_since(now, uptime + 60.0, found) <= 60.0
            owners = owner_processes(table, frozenset())
            assert forwarding.pid not in owners
            assert working.pid in owners


# --- input devices

KEY, MOUSE, STICK, LID = 1, 2, 3, 5


def event(kind: int, code: int = 30, value: int = 1) -> bytes:
    """As the kernel writes one (struct input_event)."""
    return struct.pack("@llHHi", 1732590245, 123456, kind, code, value)


END = event(0, 0, 0)
RECORDED = {
    "a key of a keyboard": event(4, 4, 458756) + event(KEY, 30, 1) + END + event(KEY, 30, 0) + END,
    "a mouse that is moved": event(MOUSE, 0, -1) + event(MOUSE, 1, 2) + END,
    "a finger on a touchpad": event(STICK, 57, 12) + event(STICK, 53, 700) + event(KEY, 330, 1) + END,
    "a stick that drifts": event(STICK, 0, 127) + END + event(STICK, 0, 128) + END,
    "the lid": event(LID, 0, 1) + END,
    "a plug of a headphone": event(LID, 2, 1) + END,
}
"""Events of devices, one report after the other, as `evemu-record` shows them."""
BY_PEOPLE = tuple(RECORDED)[:3]


@pytest.fixture
def keyboard(tmp_path: Path) -> Path:
    """A fifo stands for the device: it is read without waiting, too."""
    (tmp_path / "input").mkdir()
    os.mkfifo(tmp_path / "input" / "event3")
    return tmp_path / "input" / "event3"


@pytest.mark.parametrize("what", RECORDED)
def test_a_device_that_a_person_used_takes_a_lent_machine_back(what: str, keyboard: Path) -> None:
    watch = watch_of(keyboard.parents[1])
    owner = lent(watch)
    try:
        with keyboard.open("wb", buffering=0) as device:
            device.write(RECORDED[what])
            found = owner.look(is_lent=True)
    finally:
        watch.close()
    assert found == ((False, "the keyboard or mouse is in use") if what in BY_PEOPLE else (True, ""))


def test_a_key_is_seen_by_its_event_and_only_once(keyboard: Path) -> None:
    devices = InputDevices(keyboard.parents[1])
    try:
        assert devices.seconds_since(100.0) > 1e8
        with keyboard.open("wb", buffering=0) as device:
            assert devices.seconds_since(101.0) > 1e8
            device.write(RECORDED["a stick that drifts"])
            assert devices.seconds_since(102.0) > 1e8
            device.write(RECORDED["a stick that drifts"] + RECORDED["a key of a keyboard"])
            assert devices.seconds_since(103.0) == 0.0
            assert devices.seconds_since(113.0) == 10.0
        assert not devices.blind
        assert devices.seconds_since(120.0) == 17.0, "it was unplugged"
    finally:
        devices.close()


# --- desktops


def not_the_second(path: Path) -> int:
    """As for a user who may read the first device only (a stick, say)."""
    if path.name == "event4":
        raise PermissionError
    return open_device(path)


@pytest.fixture
def logind(monkeypatch: pytest.MonkeyPatch) -> Iterator[bus.Logind]:
    if not bus.is_installed():
        pytest.skip(bus.HOW_TO_GET_IT)
    with bus.logind() as served:
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", served.address)
        monkeypatch.setenv("PATH", f"{served.programs}:{os.environ['PATH']}")
        yield served


def looked(desktops: DesktopSessions, of: Callable[[DesktopSessions, float], float]) -> float:
    now = time.monotonic()
    desktops.look(now, time.time())
    return of(desktops, now)


USE, ARRIVAL = DesktopSessions.seconds_since_use, DesktopSessions.seconds_since_arrival


def test_a_desktop_that_is_no_longer_idle_takes_a_lent_machine_back(
    logind: bus.Logind, keyboard: Path
) -> None:
    """A real logind's interface over a real bus. The keyboards may not all be read."""
    logind.add("c1", idle_since=time.time() - 400.0, began=time.monotonic() - 500.0)
    os.mkfifo(keyboard.with_name("event4"))
    watch = watch_of(keyboard.parents[1], InputDevices(keyboard.parents[1], not_the_second))
    try:
        owner = lent(watch)
        assert watch.cannot_watch
        logind.add("c1", idle_since=time.time(), began=time.monotonic() - 500.0)
        assert owner.look(is_lent=True) == (False, "a user's session is in use")
    finally:
        watch.close()


def test_a_desktop_is_in_use_until_it_says_that_it_is_idle(logind: bus.Logind) -> None:
    desktops, long_ago = DesktopSessions(), time.monotonic() - 1000.0
    assert looked(desktops, USE) >= 1e9
    logind.add("c1", idle_since=time.time() - 40.0, began=long_ago)
    logind.add("2", kind="tty", began=long_ago)
    logind.add("c2", began=long_ago)
    logind.sessions["c2"]["Class"] = "greeter"
    assert looked(desktops, USE) == pytest.approx(40.0, abs=5.0)
    logind.add("c3", kind="x11", began=long_ago)
    assert looked(desktops, USE) == 0.0
    logind.sessions["c3"]["State"] = "closing"
    assert looked(desktops, USE) == pytest.approx(40.0, abs=5.0)


def test_where_keyboards_are_read_a_desktop_counts_when_it_wakes_and_when_somebody_logs_in(
    logind: bus.Logind,
) -> None:
    """One that never says that it is idle does not keep a machine for ever."""
    desktops, long_ago = DesktopSessions(), time.monotonic() - 1000.0
    logind.add("c1", began=long_ago)
    assert looked(desktops, ARRIVAL) == pytest.approx(1000.0, abs=5.0)
    logind.sessions["c1"]["IdleSinceHint"] = int((time.time() - 7.0) * 1e6)
    assert looked(desktops, ARRIVAL) == pytest.approx(7.0, abs=5.0)
    logind.add("4", kind="tty", began=time.monotonic())
    assert looked(desktops, ARRIVAL) < 5.0


def test_a_machine_whose_logind_does_not_answer_is_in_use(
    logind: bus.Logind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer may be missing now and then: a busy machine is not taken back for that."""
    monkeypatch.setattr("gridmill.sites.desktop_sessions._PATIENCE_SECONDS", 0.3)
    logind.answers = False
    assert looked(DesktopSessions(), USE) == 0.0, "nothing is known of it"
    logind.answers = True
    monkeypatch.setattr("gridmill.sites.desktop_sessions._PATIENCE_SECONDS", 60.0)
    desktops = DesktopSessions()
    assert looked(desktops, USE) >= 1e9
    logind.answers = False
    monkeypatch.setattr("gridmill.sites.desktop_sessions._PATIENCE_SECONDS", 0.1)
    assert [looked(desktops, USE) for _ in range(3)] == [1e9, 1e9, 0.0]


def test_a_machine_without_logind_is_asked_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    desktops = DesktopSessions()
    assert looked(desktops, USE) >= 1e9
    program = tmp_path / "loginctl"
    program.write_text("#!/bin/sh\n[ $2 = list-sessions ] && echo c1 || echo Class=user\n")
    program.chmod(0o700)
    now = time.monotonic()
    desktops.look(now, 0.0)
    assert desktops.seconds_since_use(now) >= 1e9
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    program.write_text("#!/bin/sh\n[ $2 = list-sessions ] && echo c1 || printf 'Class=user\\nType=x11\\n'\n")
    desktops.look(now + 31.0, 0.0)
    assert desktops.seconds_since_use(now) == 0.0


# --- afterwards

STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(3):
    os.fork()
print("up", flush=True)
time.sleep(600)
"""


def test_nothing_is_left_of_processes_that_do_not_end_by_themselves() -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as pod:
        assert pod.stdout is not None
        assert pod.stdout.read(8 * 3)
        process = read_one(pod.pid)
        assert process is not None
        assert is_alive(pod.pid, process.start)
        below = children(pod.pid)
        reaper = threading.Thread(target=pod.wait)
        reaper.start()
        kill_trees([pod.pid])
        reaper.join(60)
    assert not is_alive(pod.pid, process.start)
    assert below
    assert all(one is None or one.has_ended for one in map(read_one, below))
