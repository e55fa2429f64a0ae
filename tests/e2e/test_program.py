"""The real program: a run, its interruption, a lost terminal, and a control node that stays up."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.conftest import processes_mentioning
from tests.kit.left_behind import remove_groups_of_killed_pods

pytestmark = pytest.mark.e2e

DEADLINE_SECONDS = 300.0
FILE = """\
pipeline: demo
jobs:
  first:
    command: {run: "echo first >> MARKS/done"}
  second:
    needs: [first]
    command:
      run: "touch MARKS/began; while [ ! -e MARKS/go ]; do sleep 0.05; done; echo second >> MARKS/done"
"""


class Place:
    """A home, a project and the program on them."""

    def __init__(self, folder: Path, store: str) -> None:
        self.marks = folder / "marks"
        self.marks.mkdir()
        project = folder / "project"
        project.mkdir()
        self.file = project / "p.yaml"
        self.file.write_text(FILE.replace("MARKS", str(self.marks)))
        self.home = folder / "home"
        self.environment = {**os.environ, "GRIDMILL_HOME": str(self.home), "GRIDMILL_STORE": store}

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "gridmill", *map(str, words)]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __call__(self, *words: str | Path) -> tuple[int, str, str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
        return process.returncode, out, err

    def go(self) -> None:
        (self.marks / "go").touch()

    def end(self) -> None:
        """Whatever still waits ends, and so do pods that would wait for more."""
        self.go()
        for pid in processes_mentioning(str(self.home)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        remove_groups_of_killed_pods(self.home)

    def done(self) -> list[str]:
        return (self.marks / "done").read_text().split()


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < until, "the deadline has passed"
        time.sleep(0.02)


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("e"), store="")
    yield place
    place.end()


@pytest.fixture(params=["sqlite", "postgresql"])
def any_place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """For what is kept and read back; what signals do is the same with either store."""
    store = "" if request.param == "sqlite" else request.getfixturevalue("postgresql_url")
    place = Place(tmp_path_factory.mktemp("e"), store)
    yield place
    place.end()


def test_a_run_then_its_logs_report_and_nothing_to_do_again(any_place: Place) -> None:
    place = any_place
    place.go()
    code, out, err = place("run", place.file)
    assert code == 0, err
    assert "demo-1 succeeded" in out
    assert place.done() == ["first", "second"]
    assert (place.home / "reports" / "demo-1.html").stat().st_size > 1000
    view = json.loads(place("run", place.file, "--json")[1])
    assert [job["job"]["state"] for job in view["jobs"]] == ["unchanged", "unchanged"]
    assert place.done() == ["first", "second"]
    code, out, _ = place("status")
    assert (code, "no control node is running" in out, "demo-2" in out) == (0, True, True)


def test_an_interrupted_run_stops_cleanly_and_resume_continues(place: Place) -> None:
    process = place.start("run", place.file)
    wait_for((place.marks / "began").exists)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 130
    assert "gridmill resume demo-1" in out
    place.go()
    code, out, err = place("resume", "demo-1")
    assert code == 0, err
    assert place.done() == ["first", "second"]


def test_a_lost_terminal_stops_the_run(place: Place) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.execve(
            sys.executable, [sys.executable, "-m", "gridmill", "run", str(place.file)], place.environment
        )
    seen = b""
    while not (place.marks / "began").exists():
        seen += os.read(terminal, 65536)
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 130, seen.decode(errors="replace")
    view = json.loads(place("show", "run", "demo-1", "--json")[1])
    assert view["run"]["state"] == "stopped"
    assert place.done() == ["first"]


def test_a_control_node_that_is_up_is_used_by_all_commands(any_place: Place) -> None:
    place = any_place
    node = place.start("up", "--listen", "127.0.0.1:0")
    wait_for((place.home / "control.sock").exists)
    wait_for(lambda: place("status")[0] == 0)
    assert place("run", place.file, "--detach")[1] == "demo-1\n"
    wait_for((place.marks / "began").exists)

    def states() -> list[str]:
        return [one["job"]["state"] for one in json.loads(place("status", "demo", "--json")[1])["jobs"]]

    wait_for(lambda: states() == ["succeeded", "running"])
    assert place("up")[0] == 6
    following = place.start("status", "demo", "--watch", "--json")
    place.go()
    out, _ = following.communicate(timeout=DEADLINE_SECONDS)
    assert json.loads(out.splitlines()[-1])["run"]["state"] == "succeeded"
    node.send_signal(signal.SIGTERM)
    _, err = node.communicate(timeout=DEADLINE_SECONDS)
    assert node.returncode == 0, err
    assert not (place.home / "control.sock").exists()
