"""Commands in one home right after each other, or at once: a control node that leaves is waited for."""

import os
import signal

import pytest

from tests.e2e.conftest import Place, eventually

pytestmark = pytest.mark.e2e

SLOW = """
pipeline: {name}
jobs:
  wait: {{command: "touch {folder}/{name}-began; trap '' TERM; sleep {seconds}"}}
"""
TURNS = [0, 1, *(pytest.param(turn, marks=pytest.mark.long) for turn in range(2, 6))]


def declare(place: Place, name: str, seconds: float):
    return place.write(SLOW.format(name=name, folder=place.folder, seconds=seconds), f"{name}.yaml")


@pytest.mark.parametrize("turn", TURNS)
def test_a_run_right_after_a_stop_waits_for_the_old_control_node_and_starts(place: Place, turn: int):
    long, quick = declare(place, "long", 300), declare(place, "quick", 0)
    run = place.start("run", long)
    place.wait_for("long-began")
    if turn % 2:  # it listens by then
        place.meet(run, (place.home / "client.sock").exists)
        assert place.gridmill("stop", "long").returncode == 0
    else:
        os.kill(run.pid, signal.SIGINT)
    for _ in range(3):
        after = place.gridmill("run", quick, "--force")
        assert after.returncode == 0, after.stdout + after.stderr
    run.communicate()
    assert place.json("status", "long")["run"]["state"] == "stopped"


def test_runs_at_once_all_succeed(place: Place):
    files = [declare(place, f"p{number}", 0.5 * number) for number in range(4)]
    started = [place.start("run", file) for file in files]
    for run in started:
        out, told = run.communicate(timeout=120)
        assert run.returncode == 0, out + told
    assert eventually(lambda: not place.leftovers())
