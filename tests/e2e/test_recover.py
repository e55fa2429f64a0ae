"""A home whose store was lost is refused, recovered, and used on: no old file gets into a new result."""

import os
import shutil
import signal
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gridmill.bootstrap.node import read
from gridmill.codec import to_builtins
from gridmill.domain.artifact import Artifact, ArtifactKind
from gridmill.domain.run import JobRun, Run
from gridmill.settings import Settings
from gridmill.stores.sql import make
from tests.e2e.conftest import Place, a_place, eventually

pytestmark = pytest.mark.e2e

PIPELINE = """
pipeline: shop
parameters: {n: 1, pause: "0"}
jobs:
  sales: {sink: {source: "data/*.csv"}}
  rows:
    needs: [sales]
    dataset: {sql: "select day, sold * ${n} as sold from sales", tables: [sales], time: day}
  first: {command: "sleep ${pause}; echo ${n} > $GRIDMILL_OUTPUT/first-${n}.txt"}
  second:
    needs: [first]
    command: "sleep ${pause}; cat $GRIDMILL_INPUT_FIRST/* > $GRIDMILL_OUTPUT/second-${n}.txt"
  third:
    needs: [second, rows]
    command: "sleep ${pause}; cat $GRIDMILL_INPUT_SECOND/* > $GRIDMILL_OUTPUT/third-${n}.txt"
"""
JOBS = ("sales", "rows", "first", "second", "third")


def project(place: Place) -> Path:
    file = place.write(PIPELINE)
    (file.parent / "data").mkdir()
    (file.parent / "data" / "1.csv").write_text("day,sold\n2024-01-01,1\n2024-01-02,2\n")
    return file


def versions(place: Place) -> dict[str, Artifact]:
    """The records of versions that are in the store, also where no control node is up."""
    with closing(make(place.home / "store.db")) as store:
        return {record.noun.id: record.noun for record in store.list(Artifact)}


def views(place: Place, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What is told of versions, but for what changes with each run."""
    with closing(read(Settings(home=place.home, root=place.home / "storage"))) as node:
        found = {name: to_builtins(node.grid.version(name)) for name in names}
    return {
        name: {key: value for key, value in view.items() if key not in ("names", "used_by")}
        for name, view in found.items()
    }


def states(view: dict) -> dict[str, str]:
    return {job["job"]["job"]["name"]: job["job"]["state"] for job in view["jobs"]}


def check_files(place: Place) -> None:
    """Each version of a command has exactly the file that its own run wrote."""
    for name, version in versions(place).items():
        if version.kind == ArtifactKind.FILES:
            job, folder = version.name.partition("/")[2], place.home / "storage" / version.output.uri
            number = version.parameters["n"]
            assert os.listdir(folder) == [f"{job}-{number}.txt"], name
            assert (folder / f"{job}-{number}.txt").read_text() == f"{number}\n", name


def lose(place: Place) -> None:
    for path in place.home.glob("store.db*"):
        path.unlink()


def test_a_home_is_recovered_and_used_on(place: Place):
    file = project(place)
    assert place.gridmill("run", file).returncode == 0
    assert place.gridmill("run", file, "--set", "n=2").returncode == 0
    assert (
        place.gridmill("configure", "resource", "big", "--type", "command", "--memory", "1GiB").returncode
        == 0
    )
    before, known = versions(place), views(place, versions(place))
    lose(place)
    for words in (["list", "runs"], ["run", file], ["show", "artifact", "shop/first"], ["status"]):
        refused = place.gridmill(*words)
        assert refused.returncode != 0, words
        assert "the store is missing, but the storage root" in refused.stderr, words
        assert "gridmill recover" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert not (place.home / "store.db").exists()
    assert place.gridmill("doctor").returncode == 1
    assert place.gridmill("recover", "--dry-run").returncode == 0
    assert not (place.home / "store.db").exists()
    done = place.json("recover")
    assert f"version {min(before)}" in done["restored"]
    assert {"resource big", "pipeline shop"} <= set(done["restored"])
    assert (versions(place), views(place, before)) == (before, known)
    assert place.json("recover")["restored"] == []
    again = place.json("run", file, "--set", "n=2")
    assert again["run"]["id"] == "shop-1001"
    assert states(again) == dict.fromkeys(JOBS, "unchanged")
    new = place.json("run", file, "--set", "n=3")
    assert new["run"]["state"] == "succeeded"
    made = versions(place).keys() - before.keys()
    assert made == {f"shop/{job}@3" for job in ("rows", "first", "second", "third")}
    check_files(place)
    assert place.gridmill("verify").returncode == 0


def test_a_run_with_a_damaged_record_can_be_seen_stopped_removed_and_run_again(place: Place):
    file = project(place)
    run = place.start("run", file, "--set", "pause=600", "--json")
    place.meet(run, lambda: (place.home / "store.db").exists() and _runs(place, "shop-1/first"))
    place.crash(run)
    _kill_pods(place)
    with closing(make(place.home / "store.db")) as store:
        connection = store._connections.writer()  # type: ignore[attr-defined]
        connection.execute(
            "UPDATE record SET body = replace(body, 'first', 'fIrst') WHERE key = 'shop-1/first'"
        )
    up = place.start("up", "--listen", "off")
    assert eventually(lambda: place.json("show", "run", "shop-1")["run"]["state"] == "failed")
    shown = place.gridmill("show", "run", "shop-1").stdout
    assert "the record of job `first` in the store was damaged and is lost" in " ".join(shown.split())
    status = place.gridmill("status").stdout
    assert "1 record of the store damaged" in " ".join(status.split())
    refused = place.gridmill("resume", "shop-1")
    assert "cannot continue" in refused.stderr
    assert place.gridmill("stop", "shop-1").returncode in (0, 1)
    assert place.gridmill("remove", "run", "shop-1").returncode == 0
    assert place.json("run", file)["run"]["state"] == "succeeded"
    doctor = place.gridmill("doctor")
    assert "JobRun shop-1/first" in doctor.stdout
    assert place.gridmill("down").returncode == 0
    _, warnings = up.communicate(timeout=60)
    assert warnings.count("the record of JobRun shop-1/first in the store is damaged") == 1
    assert "1 record of the store damaged" in " ".join(place.gridmill("status").stdout.split())
    assert place.gridmill("recover").returncode == 0
    assert "of the store damaged" not in " ".join(place.gridmill("status").stdout.split())
    assert place.gridmill("doctor").returncode == 0


def _runs(place: Place, job_run: str) -> bool:
    with closing(make(place.home / "store.db")) as store:
        record = store.get(JobRun, job_run)
        return record is not None and record.noun.state == "running"


def _kill_pods(place: Place) -> None:
    """Until there are none: one that is killed may just have started another process."""

    def are_gone() -> bool:
        left = place.leftovers()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    assert eventually(are_gone)


LOSSES = ("deleted", "emptied", "truncated", "rubbish")


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 20, 5))
def test_a_store_that_is_lost_at_any_moment_of_a_run(tmp_path: Path, first: int):
    for seed in range(first, first + 5):
        with a_place(tmp_path / str(seed)) as place:
            place.folder.mkdir()
            lost_at_a_moment(place, Random(seed), LOSSES[seed % 4] if seed >= 8 else "deleted")
        shutil.rmtree(tmp_path / str(seed))


def lost_at_a_moment(place: Place, random: Random, how: str) -> None:
    file = project(place)
    assert place.gridmill("run", file).returncode == 0
    finished = views(place, versions(place))
    words = ("run", file, "--set", "n=2", "--set", "pause=0.2")
    run = place.start(*words, "--json")
    place.meet(run, lambda: place.node_pid() and _has_run(place, "shop-2"))
    time.sleep(random.uniform(0.0, 1.5))  # any moment of it, or after its end
    place.crash(run)
    if random.random() < 0.5:
        _kill_pods(place)
    before = versions(place)
    size = (place.home / "store.db").stat().st_size
    match how:
        case "deleted":
            lose(place)
        case "emptied":
            lose(place)
            (place.home / "store.db").write_bytes(b"")
        case "truncated":
            os.truncate(place.home / "store.db", random.randrange(100, size))
        case "rubbish":
            lose(place)
            (place.home / "store.db").write_bytes(random.randbytes(size))
    refused = place.gridmill("list", "artifacts")
    if how != "truncated":  # SQLite may not notice at once that the end is missing
        assert refused.returncode != 0
        assert "gridmill recover" in refused.stderr
    assert "internal error" not in refused.stderr
    place.json("recover")
    after = versions(place)
    assert before.items() <= after.items()
    assert views(place, finished) == finished
    again = place.json(*words)
    assert again["run"]["state"] == "succeeded", again["run"]["message"]
    committed = {one.name.partition("/")[2] for one in before.values() if one.parameters.get("n") == 2}
    assert not [job for job in committed if states(again)[job] != "unchanged"]
    assert {*states(place.json("run", file)).values()} == {"unchanged"}
    assert after.items() <= versions(place).items()
    check_files(place)
    with closing(make(place.home / "store.db")) as store:
        runs = [record.noun.id for record in store.list(Run)]
        assert len(runs) == len(set(runs))
    _kill_pods(place)


def _has_run(place: Place, run_id: str) -> bool:
    with closing(make(place.home / "store.db")) as store:
        return store.get(Run, run_id) is not None
