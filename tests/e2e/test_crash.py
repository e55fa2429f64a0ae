"""SIGKILL of the control node at every commit point: jobs go on, nothing is lost or run twice, no log gap."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.states import AttemptState, JobState, RunState
from gridmill.ports.logs import LogQuery
from gridmill.storage.logs import LogFiles
from gridmill.stores.sql import make
from tests.e2e.conftest import eventually
from tests.kit.driver import control_node

LINES = 30
TURNS = 3
PIPELINE = """
pipeline: crash
jobs:
  first:
    command: |
      echo begin >> $MARKS/first
      for i in $(seq {lines}); do echo "line $i"; done
      sleep 0.3
      echo end >> $MARKS/first
  second:
    needs: [first]
    command: |
      echo begin >> $MARKS/second
      for i in $(seq {lines}); do echo "line $i"; done
      echo end >> $MARKS/second
"""

pytestmark = pytest.mark.e2e


@pytest.fixture
def new_store(request: pytest.FixtureRequest, kind: str):
    """A function that gives the address of a new store: empty for the file in the home."""
    if kind == "sqlite":
        return lambda: ""
    server = request.getfixturevalue("postgresql")
    return lambda: server.url(server.create_database())


@pytest.fixture
def home(tmp_path: Path):
    (tmp_path / "marks").mkdir()
    (tmp_path / "project").mkdir()
    text = PIPELINE.replace("{lines}", str(LINES)).replace("$MARKS", str(tmp_path / "marks"))
    (tmp_path / "project" / "crash.yaml").write_text(text)
    yield tmp_path
    for pid in pod_processes(tmp_path / "home"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def pod_processes(home: Path) -> list[int]:
    """Pods of this home that still live (there should be none)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(part.startswith(str(home / "pods").encode()) for part in line):
                found.append(int(entry.name))
    return found


def control(home: Path, store: str, fault: str = "") -> int | None:
    """The exit status of a control node; its words are in the file `log`."""
    settings = {
        "GRIDMILL_HOME": str(home / "home"),
        "GRIDMILL_STORE": store,
        "GRIDMILL_FAULT": fault,
        "GRIDMILL_OBSERVE": "0.2",
    }
    return control_node(home / "project" / "crash.yaml", settings, home / "log")


def said(home: Path) -> str:
    return (home / "log").read_text()


def check_everything(home: Path, address: str) -> None:
    store = make(address or home / "home" / "store.db")
    try:
        (run,) = [record.noun for record in store.list(Run)]
        assert run.state == RunState.SUCCEEDED
        jobs = [record.noun for record in store.list(JobRun, parent=run.id)]
        assert {job.state for job in jobs} == {JobState.SUCCEEDED}
        attempts = [record.noun for record in store.list(Attempt, parent=run.id)]
        assert [a.state for a in attempts] == [AttemptState.SUCCEEDED] * 2, "each job ran exactly once"
        for name in ("first", "second"):
            assert (home / "marks" / name).read_text() == "begin\nend\n"
            entries = LogFiles(home / "home" / "logs").read(LogQuery(run_id=run.id, job=name))
            text = "".join(entry.text for entry in entries if entry.stream == "out")
            assert text == "".join(f"line {n}\n" for n in range(1, LINES + 1))
    finally:
        store.close()
    assert eventually(lambda: not pod_processes(home / "home")), "a pod was left behind"


@pytest.mark.parametrize(
    ("kind", "where", "turn"),
    [
        ("sqlite", "before-commit", 0),
        pytest.param("sqlite", "before-commit", 1, marks=pytest.mark.long),
        pytest.param("sqlite", "before-commit", 2, marks=pytest.mark.long),
        pytest.param("sqlite", "after-commit", None, marks=pytest.mark.long),
        pytest.param("postgresql", "after-commit", None, marks=pytest.mark.long),
    ],
)
def test_killed_at_every_commit_point_the_run_ends_right(
    home: Path, tmp_path: Path, new_store, where: str, turn: int | None
):
    """Every third point is one case's turn; None tries all.

    Before a commit nothing has been said to a server: that is the same for both stores.
    """
    killed = 0
    for number in range(1, 200) if turn is None else range(1 + turn, 200, TURNS):
        for old in ("home", "marks"):
            subprocess.run(["rm", "-rf", str(tmp_path / old)], check=True)
        (tmp_path / "marks").mkdir()
        store = new_store()
        first = control(home, store, f"{where}:{number}")
        if first == 0:
            check_everything(home, store)
            break
        assert first == -signal.SIGKILL, said(home)
        killed += 1
        assert control(home, store) == 0, said(home)
        check_everything(home, store)
    assert killed >= (8 if turn is None else 8 // TURNS), "the run has fewer commit points than it must have"


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_killed_again_and_again_within_one_run_the_run_ends_right(home: Path, new_store):
    store = new_store()
    for _ in range(40):
        done = control(home, store, "after-commit:3")
        if done == 0:
            break
        assert done == -signal.SIGKILL, said(home)
    else:
        assert control(home, store) == 0, said(home)
    check_everything(home, store)
