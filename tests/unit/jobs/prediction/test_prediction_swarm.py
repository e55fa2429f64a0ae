"""The swarm under real kills: every shard once, no worker left, deadly shards named."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gridmill.errors import DataError, JobError, StorageError
from gridmill.jobs.child_processes import in_child
from gridmill.jobs.prediction.swarm import run_swarm

pytestmark = pytest.mark.e2e


def children() -> set[int]:
    """Processes of this one that live."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {int(pid) for pid in listed}


def write_shard(folder: Path, shard: int) -> dict[str, object]:
    with (folder / f"done-{shard}").open("a") as file:
        file.write(f"{os.getpid()}\n")
    return {"rows": 1}


def die_once(folder: Path, shard: int) -> None:
    """A real SIGKILL in the middle of a shard, the first time it is done."""
    marker = folder / f"killed-{shard}"
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 3])
def test_what_a_killed_worker_had_is_done_by_a_new_one(tmp_path, workers):
    before = children()

    def work(shard: int) -> dict[str, object]:
        if shard in (0, 4, 9):
            die_once(tmp_path, shard)
        return write_shard(tmp_path, shard)

    told = []
    state = run_swarm(work, 10, workers, lambda state: told.append(len(state.done)))
    assert sorted(state.done) == list(range(10))
    assert told == list(range(1, 11))
    assert sorted(state.deaths) == [f"shard {shard}: killed by SIGKILL" for shard in (0, 4, 9)]
    assert all(len((tmp_path / f"done-{shard}").read_text().split()) == 1 for shard in range(10))
    assert children() == before


def test_a_shard_that_kills_every_worker_fails_the_job_by_name(tmp_path):
    before = children()

    def work(shard: int) -> dict[str, object]:
        if shard == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return write_shard(tmp_path, shard)

    with pytest.raises(JobError, match="3 workers died at shard 5, the last one: killed by SIGKILL"):
        run_swarm(work, 8, 2, lambda state: None)
    assert children() == before


def test_a_crash_is_a_death_with_its_traceback_in_the_log(capfd):
    def work(shard: int) -> dict[str, object]:
        raise ZeroDivisionError("no such thing")

    with pytest.raises(JobError, match="exit code 70"):
        run_swarm(work, 1, 1, lambda state: None)
    assert capfd.readouterr().err.count("ZeroDivisionError: no such thing") == 3


def test_an_explained_error_ends_the_swarm_at_once_and_stays_itself():
    before = children()

    def work(shard: int) -> dict[str, object]:
        raise DataError("the column is gone", hint="bring it back", place="data.csv:3")

    with pytest.raises(DataError) as caught:
        run_swarm(work, 5, 2, lambda state: None)
    assert (caught.value.hint, caught.value.place) == ("bring it back", "data.csv:3")
    assert children() == before


def test_a_full_disk_is_a_storage_error():
    def work(shard: int) -> dict[str, object]:
        with open("/dev/full", "w") as file:
            file.write("x")
        return {}

    with pytest.raises(StorageError, match="No space left"):
        run_swarm(work, 1, 1, lambda state: None)


def test_what_runs_in_a_child_returns_its_result_and_its_errors(tmp_path):
    assert in_child(lambda: {"pid": os.getpid()}, "asking", tmp_path)["pid"] != os.getpid()
    with pytest.raises(JobError, match=r"the process that was asking ended \(killed by SIGKILL\)"):
        in_child(lambda: os.kill(os.getpid(), signal.SIGKILL) or {}, "asking", tmp_path)


COORDINATOR = """
import os, signal, sys
from gridmill.jobs.prediction.swarm import run_swarm
def work(shard):
    os.write(1, f"{os.getpid()}\\n".encode())
    signal.pause()
run_swarm(work, 4, 3, lambda state: None)
"""


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends while it is read
        return False
    return state != "Z"


def test_a_killed_coordinator_leaves_no_worker():
    with subprocess.Popen(
        [sys.executable, "-c", COORDINATOR], stdout=subprocess.PIPE, text=True
    ) as coordinator:
        workers = [int(coordinator.stdout.readline()) for _ in range(3)]
        assert all(alive(pid) for pid in workers)
        coordinator.kill()
        assert coordinator.stdout.read() == ""  # ends when the last holder of the pipe has
    deadline = time.monotonic() + 120
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < deadline
        os.sched_yield()


WITHOUT_PANDAS = """
import sys
import pyarrow
from gridmill.jobs.arrow import keep_pandas_out
keep_pandas_out()
pyarrow.array([1.5]).to_numpy()
assert "pandas" not in sys.modules
assert not any("Hidden" in repr(finder) for finder in sys.meta_path)
"""


def test_pyarrow_does_not_spend_its_time_on_pandas():
    subprocess.run([sys.executable, "-c", WITHOUT_PANDAS], check=True)
