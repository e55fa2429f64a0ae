"""A control node that is up and hung is reported as hung by every command, within seconds."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import Place, eventually

pytestmark = pytest.mark.e2e

PIPELINE = "pipeline: small\njobs: {only: {command: echo done}}\n"
COMMANDS = (
    ("status",),
    ("status", "small"),
    ("status", "small", "--watch"),
    ("list", "runs"),
    ("logs", "small"),
    ("report", "small"),
    ("stop", "small"),
    ("resume", "small"),
    ("run", "FILE"),
    ("plan", "FILE"),
    ("doctor",),
    ("down",),
)
SECONDS, START_SECONDS = 5.0, 5.0
"""What is promised, and what a command may take to start on a busy machine."""


@pytest.mark.long
def test_every_command_reports_a_stopped_control_node(place: Place):
    node = place.start("up", "--listen", "127.0.0.1:0")
    file = str(place.write(PIPELINE))
    announced = place.home / "control.json"
    assert eventually(announced.exists)
    assert place.gridmill("run", file).returncode == 0
    url = json.loads(announced.read_text())["url"]
    os.kill(node.pid, signal.SIGSTOP)
    try:
        for command in (*COMMANDS, ("--url", url, "status")):
            began = time.monotonic()
            done = place.gridmill(*(file if word == "FILE" else word for word in command))
            took, told = time.monotonic() - began, done.stdout + done.stderr
            assert done.returncode in (1, 8), (command, told)
            assert f"process {node.pid}) is hung: it is stopped" in told, (command, told)
            assert f"kill -CONT {node.pid}" in told, (command, told)
            assert took < SECONDS + START_SECONDS, (command, took)
    finally:
        os.kill(node.pid, signal.SIGCONT)
    assert place.gridmill("status").returncode == 0


ONLY_URL = """
import sys, time
import gridmill
grid = gridmill.connect(url=sys.argv[1], token=sys.argv[2])
print(grid.control().pid, flush=True)
sys.stdin.readline()
began = time.monotonic()
try:
    grid.control()
except gridmill.GridmillError as error:
    print(time.monotonic() - began, error.message, error.hint, flush=True)
"""


def test_with_only_a_url_a_stopped_control_node_is_reported_as_fast(place: Place, tmp_path: Path):
    node = place.start("up", "--listen", "127.0.0.1:0")
    announced = place.home / "control.json"
    assert eventually(announced.exists)
    told = json.loads(announced.read_text())
    client = subprocess.Popen(
        (sys.executable, "-c", ONLY_URL, told["url"], told["token"]),
        env={**place.env, "GRIDMILL_HOME": str(tmp_path / "another home")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert client.stdout.readline() == f"{node.pid}\n"
        os.kill(node.pid, signal.SIGSTOP)
        seconds, _, message = client.communicate("\n", timeout=60)[0].partition(" ")
        assert f"process {node.pid}) is hung: it is stopped" in message
        assert f"`kill -CONT {node.pid}`" in message
        assert float(seconds) < SECONDS
    finally:
        os.kill(node.pid, signal.SIGCONT)
        client.kill()
        client.communicate()
