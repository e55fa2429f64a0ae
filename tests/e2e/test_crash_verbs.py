"""SIGKILL of whoever changes what is kept: schedules, removals, cleaning, imports, datasets that grow.

A place is killed before and after each commit, and between commits where files are moved: with the first one.
"""

import hashlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from gridmill.domain.artifact import Artifact
from gridmill.domain.run import Run
from gridmill.domain.schedule import Schedule
from gridmill.domain.states import RunState
from gridmill.errors import TABLE, InternalError, UnavailableError
from gridmill.ports.store import Store
from gridmill.stores.sql import make
from tests.e2e.conftest import Place, a_place, eventually, files_below

pytestmark = pytest.mark.e2e

SCHEDULED = """
pipeline: due
schedule: {every: 1h}
jobs:
  tell: {command: "echo told >> MARKS"}
"""
GROWING = """
pipeline: grown
jobs:
  load:
    sink:
      source: {path: "in/*.csv"}
      columns: {t: timestamp}
  rows:
    dataset:
      basis: {table: load, time: t, entity: [station]}
      lags: [{column: rain, steps: [1]}]
      incremental: true
"""
DAY_HOURS = 24


def day(place: Place, number: int) -> None:
    """A file with that day's rows."""
    first = datetime(2024, 1, 1) + timedelta(days=number)
    hours = (first + timedelta(hours=hour) for hour in range(DAY_HOURS))
    lines = [f"{hour.isoformat()},{station},{hour.hour}.5" for hour in hours for station in "ab"]
    folder = place.folder / "project" / "in"
    folder.mkdir(exist_ok=True)
    (folder / f"{number}.csv").write_text("\n".join(["t,station,rain", *lines]) + "\n")


@pytest.fixture(scope="module")
def two_days(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place with two versions of a table and of a dataset of it."""
    with a_place(tmp_path_factory.mktemp("two")) as place:
        file = place.write(GROWING)
        for number in range(2):
            day(place, number)
            done = place.gridmill("run", file)
            assert done.returncode == 0, done.stderr
        assert eventually(lambda: not place.leftovers())
        yield place


@contextmanager
def copy_of(place: Place, folder: Path) -> Iterator[Place]:
    """The same home and project in a folder of its own, which is new."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(place.home, folder / "home", symlinks=True)
    shutil.copytree(place.folder / "project", folder / "project")
    with a_place(folder) as copy:
        yield copy


def contents(folder: Path) -> dict[str, str]:
    """The digest of each file below the folder, without the marks of whose pipelines they are: a run makes
    those, and an import does not."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] != "owners"
    }


def as_an_import_makes_it(folder: Path) -> dict[str, str]:
    """Without manifests, which have the times of the files that were restored, and without where a pipeline
    was run, which an import does not record. Copies of records lie in a folder that each store names."""
    found = {tuple(name.split("/")): hash for name, hash in contents(folder).items()}
    return {
        "/".join(parts if parts[0] != "records" else ("records", *parts[2:])): hash
        for parts, hash in found.items()
        if parts[0] != "manifests" and (parts[0] != "records" or parts[2] != "Origin")
    }


def killed_when(place: Place, condition: Callable[[], object], *words: object) -> bool:
    """Kill the command, its pods and their jobs as soon as the condition holds; False where it had ended
    before, as it may when others keep this machine busy."""
    process = place.start(*words)
    while process.poll() is None and not condition():
        time.sleep(0.001)
    process.kill()
    for pid in place.leftovers():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


KILLED = (TABLE[UnavailableError.code].exit_code, TABLE[InternalError.code].exit_code)
"""Of a command whose control node was killed where GRIDMILL_FAULT says, in the middle of a call or between
two."""
TRIES = 50
"""Until a command was killed in the middle: it is there for a moment only."""


def at_every_commit(begin: Callable[[], AbstractContextManager[Place]], *words: object) -> Iterator[Place]:
    """Places in which the command was killed: before its first commit, after it, before its second, ..."""
    for number in count(1):
        for where in ("before-commit", "after-commit"):
            with begin() as place:
                done = place.gridmill(*words, GRIDMILL_FAULT=f"{where}:{number}")
                if done.returncode == 0:
                    return
                assert done.returncode in KILLED, done.stderr
                yield place


@contextmanager
def records(place: Place) -> Iterator[Store]:
    """What is recorded there."""
    store = make(place.home / "store.db")
    try:
        yield store
    finally:
        store.close()


def versions(place: Place) -> set[str]:
    """Those that are there and not removed, of the dataset."""
    with records(place) as store:
        found = [record.noun for record in store.list(Artifact, parent="grown/rows")]
    return {one.id for one in found if isinstance(one, Artifact) and not one.removed}


def storage(place: Place) -> Path:
    return place.home / "storage"


@pytest.mark.long
def test_a_due_time_fires_once_however_often_the_control_node_is_killed(place: Place):
    marks = place.folder / "marks"
    applied = place.gridmill("apply", "-f", place.write(SCHEDULED.replace("MARKS", str(marks))))
    assert applied.returncode == 0, applied.stderr

    def runs() -> list[Run]:
        with records(place) as store:
            return [record.noun for record in store.list(Run) if isinstance(record.noun, Run)]

    def over() -> bool:
        return [run.state for run in runs()] == [RunState.SUCCEEDED]

    killed, number = 0, 0
    while not over():
        number += 1
        for where in ("before-commit", "after-commit"):
            up = place.start("up", "--listen", "off", GRIDMILL_FAULT=f"{where}:{number}")
            assert eventually(lambda up=up: up.poll() is not None or over())
            killed += up.poll() == -signal.SIGKILL
            up.kill()
            up.wait()
            assert len(runs()) <= 1, "one due time, one run"
    assert killed >= 4, "it has fewer commit points than it must have"
    assert marks.read_text() == "told\n"
    with records(place) as store:
        (schedule,) = [record.noun for record in store.list(Schedule)]
    assert isinstance(schedule, Schedule)
    assert (schedule.runs, schedule.skipped, schedule.done) == (1, 0, schedule.since)


@pytest.mark.long
def test_a_removal_and_cleaning_that_are_killed_go_on_and_take_nothing_else(two_days: Place, tmp_path: Path):
    words, seen = ("remove", "dataset", "grown/rows@1"), []
    first = "datasets/grown/rows/grown-1.rows.1/"
    gone = (first, "manifests/grown/rows/1.json")
    wanted = {name: hash for name, hash in contents(storage(two_days)).items() if not name.startswith(gone)}
    for place in at_every_commit(lambda: copy_of(two_days, tmp_path / "copy"), *words):
        seen.append(len(versions(place)))
        assert contents(storage(place)).items() >= wanted.items()
        again = place.gridmill(*words)
        assert again.returncode == 0, again.stderr
        assert versions(place) == {"grown/rows@2"}
        assert contents(storage(place)) == wanted
    assert seen[0] == 2
    assert seen[-1] == 1, "killed before the commit that counts, and after"
    decided = f"after-commit:{(seen.index(1) + 1) // 2}"
    for count_of_files in (5_000, 20_000, 80_000, 80_000, 320_000):
        with copy_of(two_days, tmp_path / "copy") as place:
            place.gridmill(*words, GRIDMILL_FAULT=decided)
            folder = storage(place) / first
            others = files_of(folder.parent) - files_of(folder)
            for number in range(count_of_files):
                (folder / f"more-{number}").touch()
            killed = killed_when(
                place, lambda at=folder, of=count_of_files: files_of(at.parent) < of, "clean"
            )
            left = files_of(folder.parent) - others
            assert place.gridmill("clean").returncode == 0
            assert contents(storage(place)) == wanted
        if killed and left:
            return
    raise AssertionError("it was never killed in the middle")


def files_of(folder: Path) -> int:
    """How many files there are below it."""
    return sum(len(names) for _, _, names in os.walk(folder))


def test_an_import_that_is_killed_is_whole_or_not_begun_and_can_be_said_again(
    two_days: Place, tmp_path: Path
):
    archive = tmp_path / "grown.zip"
    assert two_days.gridmill("backup", "grown", "-o", archive).returncode == 0
    wanted = as_an_import_makes_it(storage(two_days))

    def check(place: Place) -> None:
        if (place.home / "store.db").exists():
            assert versions(place) in (set(), versions(two_days)), "all of it is visible, or nothing"
        done = place.gridmill("restore", archive)
        assert done.returncode == 0, done.stderr
        assert versions(place) == versions(two_days)
        for left in storage(place).glob(".import-*"):
            os.utime(left, (0, 0))  # what is young may be in use on another machine
        assert place.gridmill("clean").returncode == 0
        assert as_an_import_makes_it(storage(place)) == wanted, "nothing half-read is left"
        assert place.gridmill("verify").returncode == 0

    for place in at_every_commit(lambda: empty(tmp_path / "copy"), "restore", archive):
        check(place)
    for _ in range(TRIES):
        with empty(tmp_path / "between") as place:
            root = storage(place)
            killed = killed_when(place, lambda at=root: files_below(at, "*.parquet"), "restore", archive)
            check(place)
        if killed:
            return
    raise AssertionError("it was never killed in the middle")


@contextmanager
def empty(folder: Path) -> Iterator[Place]:
    """A place with nothing in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with a_place(folder) as place:
        yield place


@pytest.mark.long
def test_a_dataset_that_grows_is_the_same_when_whoever_makes_it_is_killed(two_days: Place, tmp_path: Path):
    def grown(place: Place) -> list[str]:
        done = place.gridmill("run", place.folder / "project" / "pipeline.yaml", "--adopt")
        assert done.returncode == 0, done.stderr
        shown = place.json("show", "dataset", "grown/rows")
        assert (shown["number"], shown["output"]["details"]["kept_rows"]) == (3, 2 * 2 * DAY_HOURS)
        files = contents(storage(place) / shown["output"]["uri"])
        return sorted(digest for name, digest in files.items() if name.endswith(".parquet"))

    with copy_of(two_days, tmp_path / "whole") as place:
        day(place, 2)
        wanted = grown(place)
    for _ in range(TRIES):
        with copy_of(two_days, tmp_path / "copy") as place:
            day(place, 2)
            folder = storage(place) / "datasets" / "grown" / "rows"
            before = len(files_below(folder, "*.parquet"))
            killed = killed_when(
                place,
                lambda at=folder, of=before: len(files_below(at, "*.parquet")) > of,
                *("run", place.folder / "project" / "pipeline.yaml", "--adopt"),
            )
            assert grown(place) == wanted
        if killed:
            return
    raise AssertionError("it was never killed in the middle")
