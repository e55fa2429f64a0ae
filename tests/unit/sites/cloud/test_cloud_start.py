"""The script that starts the light server of a machine."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from gridmill.sites.cloud.install import with_variables
from gridmill.sites.cloud.machine import START

PYTHON = """#!/bin/sh
case "$*" in *invite*) echo '{"join": "again"}'; exit ;; esac
echo "$$ $(cat up.pid) $(cat up.boot)" >> started
echo '{"join": "line", "fingerprint": "f"}'
exec sleep 60
"""
pytestmark = pytest.mark.skipif(
    not Path("/proc/sys/kernel/random/boot_id").exists() or shutil.which("setsid") is None,
    reason="the script runs on Linux machines",
)


KILLING = """#!/bin/sh
kill -9 $PPID
exec SETSID "$@"
"""
KILLED = """echo() { case $* in *-*) ;; [0-9]*) kill -9 $$ ;; esac; printf '%s\\n' "$*"; }
"""
"""Kills the script where it stores the number of the server, unless the server does it."""


def run(folder: Path, path: str = "", before: str = "") -> str:
    values = {"FARM": folder / "farm", "PORT": 1, "PYTHON": folder / "python", "MEMORY": 1, "JOINED": 0}
    script = with_variables(before + START, **values, started="")
    searched = {**os.environ, "PATH": path + os.environ["PATH"]}
    done = subprocess.run(
        ["sh", "-s"], input=script, text=True, capture_output=True, check=False, env=searched
    )
    return done.stdout.strip()


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_a_script_that_is_killed_while_the_server_starts_starts_no_second_one(tmp_path: Path) -> None:
    farm = tmp_path / "farm"
    farm.mkdir()
    (farm / "up.boot").write_text("an earlier boot\n")
    (farm / "up.pid").write_text("1\n")
    program(tmp_path / "python", PYTHON)
    program(tmp_path / "killing" / "setsid", KILLING.replace("SETSID", str(shutil.which("setsid"))))
    assert run(tmp_path, f"{tmp_path}/killing:", KILLED) == ""
    until = time.monotonic() + 60
    while not (farm / "started").exists() and time.monotonic() < until:
        time.sleep(0.02)
    [pid] = map(int, (farm / "started").read_text().split()[:1])
    try:
        assert run(tmp_path) == '{"join": "again"}'
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert (farm / "started").read_text().split() == [str(pid), str(pid), boot]
    finally:
        os.kill(pid, signal.SIGKILL)
