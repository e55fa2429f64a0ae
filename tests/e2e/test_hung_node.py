"""A control node that is up and hung is reported as hung by every command, within seconds."""

import json
import os
import signal
import time

import pytest

from tests.e2e.conftest import Place, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.long]

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
