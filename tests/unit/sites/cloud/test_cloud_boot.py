import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gridmill.domain.pod_protocol import EventType
from gridmill.pod.journal import Journal
from gridmill.sites.cloud.boot import (
    END,
    NOTICES,
    USER_DATA_BYTES,
    MachineKeys,
    WatchSettings,
    arm_script,
    user_data,
)

KEYS = MachineKeys(host_private="PRIVATE\n", host_public="ssh-ed25519 HOST", user_public="ssh-ed25519 USER")
pytestmark = pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the watcher needs Linux")


class Watched:
    """A watcher of this machine, whose end is a file."""

    def __init__(self, folder: Path, **changes: object) -> None:
        self.folder, self.run, self.farm = folder / "watch", folder / "run", folder / "farm"
        self.ended = folder / "ended"
        settings = {"dead_man_seconds": 600, "cap_seconds": 600, "step_seconds": 0} | changes
        end = f"echo $ROUND >> {self.ended}"
        self.settings = WatchSettings(**settings, end_command=end, farm=str(self.farm), run=str(self.run))
        self.folder.mkdir()
        (self.folder / "settings").write_text(self.settings.text().replace("STEP=0", "STEP=0.05"))

    @contextmanager
    def watching(self, **environment: str) -> Iterator[None]:
        script = arm_script(self.settings).split("<<'GRIDMILL-END'\n")[1].partition("GRIDMILL-END\n")[0]
        locks = environment.pop("locks", "/proc/locks")
        (self.folder / "watch.sh").write_text(script.replace("/proc/locks", locks))
        started = subprocess.Popen(
            ["sh", str(self.folder / "watch.sh")],
            env={**os.environ, "GRIDMILL_WATCH": str(self.folder), **environment},
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield
        finally:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()

    def state(self) -> dict[str, int]:
        path = self.run / "state"
        text = path.read_text() if path.exists() else ""
        return {name: int(value) for name, _, value in (word.partition("=") for word in text.split())}

    def contact(self, mark: str) -> None:
        self.run.mkdir(exist_ok=True)
        (self.run / "contact").write_text(mark)

    def reason(self) -> str:
        return (self.folder / "reason").read_text().strip()


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_user_data_arms_the_watcher_first_and_injects_the_keys():
    watch = WatchSettings(dead_man_seconds=900, cap_seconds=14400, notice_command=NOTICES["aws"])
    text = user_data(watch, KEYS)
    head, _, body = text.partition("\n")
    config = json.loads(body)
    assert head == "#cloud-config"
    assert config["bootcmd"][0] == ["sh", "-c", arm_script(watch)]
    assert config["ssh_keys"] == {"ed25519_private": "PRIVATE\n", "ed25519_public": "ssh-ed25519 HOST"}
    assert config["ssh_authorized_keys"] == ["ssh-ed25519 USER"]
    assert (config["disable_root"], config["ssh_pwauth"]) == (False, False)
    assert len(text) < USER_DATA_BYTES - 2048, "with real keys it must be below the limit of EC2"
    assert user_data(watch, KEYS) == text, "a repeated request must be the same"


def test_the_scripts_are_valid_and_hold_upgrades():
    script = arm_script(WatchSettings(dead_man_seconds=900, cap_seconds=14400))
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
    assert "mask --now --no-block apt-daily.timer" in script
    assert script.index("watch.sh") < script.index("apt-daily"), "armed before anything else"


def test_a_machine_without_contact_ends(tmp_path):
    watched = Watched(tmp_path, dead_man_seconds=1)
    with watched.watching():
        until(watched.ended.exists)
    assert "no contact to the control node and no running job" in watched.reason()


_SHIFTED_CLOCK = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) {
    char text[32] = "0";
    const char *path = getenv("CLOCK_SHIFT");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file >= 0) { if (read(file, text, sizeof text - 1) < 0) text[0] = 0; close(file); }
    return atol(text);
}
int clock_gettime(clockid_t clock, struct timespec *at) {
    int result = syscall(SYS_clock_gettime, clock, at);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) at->tv_sec += shift();
    return result;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""
"""Shifts the wall clock of the processes of a watcher, by the seconds in a file."""


@pytest.mark.parametrize("hours", [10, -10])
@pytest.mark.parametrize(("dead_man", "cap"), [(2, 600), (600, 2)])
def test_a_jump_of_the_clock_ends_a_machine_neither_too_early_nor_too_late(tmp_path, hours, dead_man, cap):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler, which makes the shifted clock")
    source, library, jump = tmp_path / "clock.c", tmp_path / "clock.so", tmp_path / "jump"
    source.write_text(_SHIFTED_CLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    jump.write_text("0")
    clock = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(jump)}
    watched = Watched(tmp_path, dead_man_seconds=dead_man, cap_seconds=cap)
    with watched.watching(**clock):
        until(lambda: "silent" in watched.state())
        jump.write_text(str(hours * 3600))
        shown = subprocess.run(["date", "+%s"], env={**os.environ, **clock}, capture_output=True, check=True)
        assert abs(int(shown.stdout) - time.time() - hours * 3600) < 600, "the clock must have jumped"
        until(watched.ended.exists)
    (seconds,) = (int(word) for word in watched.reason().split() if word.isdigit())
    assert 2 <= seconds < 600


def test_contact_lets_the_machine_live_until_the_cap(tmp_path):
    watched = Watched(tmp_path, dead_man_seconds=2, cap_seconds=5)
    with watched.watching():
        mark = 0
        while not watched.ended.exists():
            mark += 1
            watched.contact(str(mark))
            time.sleep(0.05)
    assert "the longest time for which it may be rented" in watched.reason()
    assert int((watched.folder / "used").read_text()) >= 5


def test_the_same_mark_is_no_contact(tmp_path):
    watched = Watched(tmp_path, dead_man_seconds=1)
    watched.contact("1")
    with watched.watching():
        until(watched.ended.exists)
    assert "no contact" in watched.reason()


def attempt(watched: Watched, exportable: str = "a-1") -> Path:
    home = watched.farm / "farm" / "tenants" / "t" / "home"
    (home / "attempts" / "a-1").mkdir(parents=True)
    (home / "attempts" / "a-1" / "order.json").write_text("{}")
    (home / "pods" / "p").mkdir(parents=True)
    (home / "pods" / "p" / "lock").touch()
    (home / "pods" / "p" / "attempts").write_text("a-0 11 5\na-1 0 0\n")
    if exportable:
        (watched.farm / "farm" / "exportable").write_text(f"{exportable}\n")
    return home / "pods" / "p" / "lock"


def test_a_running_job_stops_the_dead_man_timer_but_not_the_cap(tmp_path):
    watched = Watched(tmp_path, dead_man_seconds=1, cap_seconds=3)
    lock = attempt(watched)
    with subprocess.Popen(["flock", str(lock), "sleep", "60"], start_new_session=True) as pod:
        until(lambda: _is_locked(lock))
        with watched.watching():
            until(lambda: watched.state().get("used", 0) >= 2)
            assert not watched.ended.exists()
            assert watched.state()["working"] == 1
            until(watched.ended.exists)
        os.killpg(pod.pid, signal.SIGKILL)
    assert "the longest time" in watched.reason()


@pytest.mark.parametrize("exportable", ["", "a-0", "a-12", "a-."])
def test_a_job_whose_result_no_bucket_takes_does_not_stop_the_dead_man_timer(tmp_path, exportable):
    watched = Watched(tmp_path, dead_man_seconds=1)
    lock = attempt(watched, exportable)
    with subprocess.Popen(["flock", str(lock), "sleep", "60"], start_new_session=True) as pod:
        until(lambda: _is_locked(lock))
        with watched.watching():
            until(watched.ended.exists)
        os.killpg(pod.pid, signal.SIGKILL)
    assert "no running job whose result it can export" in watched.reason()


def test_a_list_of_jobs_that_the_farm_does_not_renew_does_not_stop_the_dead_man_timer(tmp_path):
    watched = Watched(tmp_path, dead_man_seconds=1, stale_seconds=2)
    lock = attempt(watched)
    with subprocess.Popen(["flock", str(lock), "sleep", "60"], start_new_session=True) as pod:
        until(lambda: _is_locked(lock))
        with watched.watching():
            until(watched.ended.exists)
        os.killpg(pod.pid, signal.SIGKILL)
    assert "no running job" in watched.reason()


@pytest.mark.parametrize("hours", [10, -10])
def test_a_wrong_clock_does_not_make_the_list_of_jobs_stale(tmp_path, hours):
    watched = Watched(tmp_path)
    lock = attempt(watched)
    exportable = watched.farm / "farm" / "exportable"
    with subprocess.Popen(["flock", str(lock), "sleep", "60"], start_new_session=True) as pod:
        until(lambda: _is_locked(lock))
        with watched.watching():
            number, states = 0, []
            while len(states) < 5:  # the farm renews the file, and each time comes from the wrong clock
                number += 1
                wrong = time.time() + hours * 3600 + number
                os.utime(exportable, (wrong, wrong))
                used = watched.state().get("used", 0)
                until(lambda used=used: watched.state().get("used", 0) > used)
                states.append(watched.state()["working"])
            assert states == [1] * 5
        os.killpg(pod.pid, signal.SIGKILL)


def test_a_lock_with_the_same_number_on_another_disk_is_not_the_lock_of_a_pod(tmp_path):
    watched = Watched(tmp_path, dead_man_seconds=1)
    other = attempt(watched)
    number = f":{other.stat().st_ino} "
    locks = tmp_path / "locks"
    with subprocess.Popen(["flock", str(tmp_path), "sleep", "60"], start_new_session=True) as holder:
        until(lambda: f" {holder.pid} " in Path("/proc/locks").read_text())
        lines = [line for line in Path("/proc/locks").read_text().splitlines() if f" {holder.pid} " in line]
        locks.write_text("\n".join(re.sub(r":\d+ ", number, line) for line in lines) + "\n")
        with watched.watching(locks=str(locks)):
            until(watched.ended.exists)
        os.killpg(holder.pid, signal.SIGKILL)
    assert "no running job" in watched.reason()


def test_a_job_that_has_ended_without_contact_is_not_running(tmp_path):
    watched = Watched(tmp_path, dead_man_seconds=1)
    lock = attempt(watched)
    journal = Journal(lock.parent / "journal")
    with subprocess.Popen(["flock", str(lock), "sleep", "60"], start_new_session=True) as pod:
        until(lambda: _is_locked(lock))
        with watched.watching():
            until(lambda: watched.state().get("used", 0) >= 2)
            assert watched.state()["working"] == 1
            body = {"text": '"attempt_id":"a-1","type":"ended"'}
            journal.append("a-1", "t", 0.0, EventType.LOG, body)
            journal.append("a-1", "t", 0.0, EventType.ENDED, {"outcome": {}})
            journal.flush()
            until(watched.ended.exists)
        os.killpg(pod.pid, signal.SIGKILL)
    journal.close()


def _is_locked(lock: Path) -> bool:
    return f":{lock.stat().st_ino} " in Path("/proc/locks").read_text()


def test_files_of_a_pod_that_died_are_no_running_job(tmp_path):
    watched = Watched(tmp_path, dead_man_seconds=1)
    attempt(watched)
    with watched.watching():
        until(watched.ended.exists)
    assert "no running job" in watched.reason()


def test_a_watcher_that_is_started_again_gives_no_more_time(tmp_path):
    watched = Watched(tmp_path, dead_man_seconds=600, cap_seconds=3)
    for _ in range(2):
        with watched.watching():
            used = watched.state().get("used", 0)
            until(lambda used=used: watched.state().get("used", 0) > used)
    assert not watched.ended.exists()
    with watched.watching():
        until(watched.ended.exists)
    assert int((watched.folder / "used").read_text()) >= 3


def test_a_notice_of_the_provider_is_stored_once(tmp_path):
    watched = Watched(tmp_path, notice_command="echo action terminate; echo at noon")
    with watched.watching():
        until(lambda: (watched.run / "notice").exists() and watched.state() != {})
        state = watched.state()["used"]
        until(lambda: watched.state()["used"] > state)
    assert (watched.run / "notice").read_text().strip() == "action terminate at noon"


def test_the_farm_sees_that_the_provider_ends_the_machine(tmp_path):
    watched = Watched(tmp_path, notice_command="cat notice 2>/dev/null; true")
    (watched.farm / "farm").mkdir(parents=True)
    ending = watched.farm / "farm" / "ending"
    ending.write_text("of an earlier boot")
    with watched.watching():
        until(lambda: not ending.exists())
        (watched.run / "notice").write_text("terminate")
        until(ending.exists)
    assert ending.read_text().strip() == "the provider ends the machine"


def test_the_farm_sees_that_the_longest_time_is_near(tmp_path):
    watched = Watched(tmp_path, cap_seconds=602, margin_seconds=600)
    (watched.farm / "farm").mkdir(parents=True)
    ending = watched.farm / "farm" / "ending"
    with watched.watching():
        until(lambda: ending.exists() and watched.state().get("used", 0) >= 2)
    assert ending.read_text().strip() == "the machine reaches its longest time"
    assert not watched.ended.exists()


def test_a_shutdown_that_hangs_is_repeated(tmp_path):
    watched = Watched(tmp_path, dead_man_seconds=0)
    with watched.watching():
        until(lambda: watched.ended.exists() and len(watched.ended.read_text().split()) >= 14)
    assert watched.ended.read_text().split()[:3] == ["1", "2", "3"]


def test_a_watcher_that_is_started_again_goes_on_with_its_attempts_to_end_the_machine(tmp_path):
    watched = Watched(tmp_path, dead_man_seconds=0)
    for _ in range(2):
        with watched.watching():
            ended = len(watched.ended.read_text().split()) if watched.ended.exists() else 0
            until(lambda n=ended: watched.ended.exists() and len(watched.ended.read_text().split()) > n + 2)
    rounds = [int(one) for one in watched.ended.read_text().split()]
    assert rounds == list(range(1, len(rounds) + 1))


def test_the_watcher_is_started_again_without_a_limit():
    script = arm_script(WatchSettings(dead_man_seconds=900, cap_seconds=14400))
    unit = script.partition("[Unit]")[2].partition("[Service]")[0]
    assert "StartLimitIntervalSec=0" in unit.splitlines()


def _program(folder: Path, name: str, status: int) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho {name} $* >> {folder}/called\nexit {status}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(("round_", "first"), [("1", "shutdown -h now"), ("13", "poweroff -ff")])
def test_a_late_attempt_to_end_the_machine_does_not_ask_the_system_manager(tmp_path, round_, first):
    _program(tmp_path, "shutdown", 0)
    _program(tmp_path, "poweroff", 0)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ROUND": round_}
    subprocess.run(["sh", "-c", END], env=env, check=True)
    assert (tmp_path / "called").read_text().splitlines()[0] == first


def _metadata_script() -> str:
    watch = WatchSettings(dead_man_seconds=900, cap_seconds=14400)
    commands = json.loads(user_data(watch, KEYS).partition("\n")[2])["bootcmd"]
    return commands[2][2]


def test_the_guest_agent_of_google_keeps_the_host_key(tmp_path):
    watch = WatchSettings(dead_man_seconds=900, cap_seconds=14400)
    script = json.loads(user_data(watch, KEYS).partition("\n")[2])["bootcmd"][3][2]
    product, config = tmp_path / "product_name", tmp_path / "instance_configs.cfg"
    script = script.replace("/sys/class/dmi/id/product_name", str(product))
    script = script.replace("/etc/default/instance_configs.cfg", str(config))
    subprocess.run(["sh", "-c", script], check=True)
    assert not config.exists()
    product.write_text("Google Compute Engine\n")
    config.write_text("[Daemons]\nclock_skew_daemon = true")
    for _ in range(2):
        subprocess.run(["sh", "-c", script], check=True)
    assert config.read_text().splitlines() == [
        "[Daemons]",
        "clock_skew_daemon = true",
        "[InstanceSetup]",
        "set_host_keys = false",
    ]


@pytest.mark.parametrize(
    ("works", "called", "warns"),
    [
        (("iptables", "ip"), "iptables -C", False),
        (("ip",), "ip rule add to 169.254.169.254 ipproto tcp uidrange 1-4294967294 prohibit", False),
        ((), "", True),
    ],
)
def test_the_metadata_is_closed_to_jobs_or_there_is_a_warning(tmp_path, works, called, warns):
    for name in works:
        _program(tmp_path, name, 0)
    env = {"PATH": str(tmp_path)}
    done = subprocess.run(
        ["/bin/sh", "-c", _metadata_script()], env=env, check=True, capture_output=True, text=True
    )
    calls = (tmp_path / "called").read_text() if works else ""
    assert called in calls
    assert ("jobs can read the instance metadata" in done.stderr) is warns
