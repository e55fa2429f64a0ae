"""A version counts only once its manifest is written, whatever fails in between."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from test_races import command, finish, job_of, service, simulation

from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.run import Attempt
from gridmill.domain.states import AttemptState, Cause, JobState, RunState
from gridmill.domain.version_manifest import FileProblem, FileProblemKind
from gridmill.errors import StorageError
from gridmill.ports.store import Put
from gridmill.storage.disk_usage import LocalHomeFolders
from gridmill.stores.memory import make as make_memory
from gridmill.testing.faults import Fault, FaultScript, FaultyStore
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import NoStorage, Simulation


class FullDisk(NoStorage):
    """No manifest can be written, `times` times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def keep_manifest(self, version: Artifact, listed: str, **how) -> None:
        if self.times:
            self.times -= 1
            raise StorageError("cannot be written: No space left on device")
        super().keep_manifest(version, listed, **how)


def versions(grid: Simulation) -> set[str]:
    return {record.noun.id for record in grid.store.list(Artifact)}


def test_a_manifest_that_cannot_be_written_fails_its_attempt_alone():
    grid = simulation()
    grid.storage = FullDisk(1)
    grid.node.control.storage = grid.storage
    run = grid.submit(Pipeline(name="p", jobs=(command("a"), command("b"))))
    assert finish(grid, run).state == RunState.FAILED
    states = sorted(job_of(grid, run, name).state for name in "ab")
    assert states == [JobState.FAILED, JobState.SUCCEEDED]
    failed = next(one.noun for one in grid.store.list(Attempt) if one.noun.cause is not None)
    assert failed.cause == Cause.STORAGE
    assert (
        "the manifest of the version could not be written: cannot be written: No space left" in failed.message
    )
    assert versions(grid) == grid.storage.manifests
    grid.resume(run.id)
    assert finish(grid, run).state == RunState.SUCCEEDED
    assert versions(grid) == grid.storage.manifests == {"p/a@1", "p/b@1"}


@pytest.mark.parametrize("commit", range(2, 14))
@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.FAIL_AFTER])
def test_no_committed_version_lacks_its_manifest(commit: int, fault: Fault):
    script = FaultScript(*[Fault.NONE] * commit, fault)
    grid = simulation(store=FaultyStore(make_memory(), script))
    run = grid.submit(Pipeline(name="p", jobs=(command("a"), command("b", needs=("a",)))))
    finish(grid, run)
    assert versions(grid) == {"p/a@1", "p/b@1"} <= grid.storage.manifests
    latest = [move for move in grid.storage.moves if move.alias == "latest"]
    assert {move.after for move in latest} <= versions(grid)


def test_a_job_whose_version_has_lost_files_runs_again_and_says_why():
    grid = simulation()
    pipeline = Pipeline(name="p", jobs=(command("a"), command("b", needs=("a",)), command("c")))
    finish(grid, grid.submit(pipeline, force=False))
    again = grid.submit(pipeline, force=False)
    finish(grid, again)
    assert {job_of(grid, again, name).state for name in "abc"} == {JobState.UNCHANGED}
    lost = FileProblem(path="rows.parquet", kind=FileProblemKind.MISSING)
    grid.storage.wrong["p/a@1"] = (lost,)
    planned = service(grid).plan_run(pipeline)
    assert [one.job for one in planned.jobs if not one.unchanged] == ["a", "b"]
    last = grid.submit(pipeline, force=False)
    finish(grid, last)
    states = [job_of(grid, last, name).state for name in "abc"]
    assert states == [JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.UNCHANGED]
    said = [one.body["message"] for one in grid.store.events(run_id=last.id) if one.type == "state"]
    assert "runs again: the files of p/a@1 changed: rows.parquet is missing" in said
    assert job_of(grid, last, "b").artifacts == ("p/b@2",)
    newest = grid.submit(pipeline, force=False)
    finish(grid, newest)
    assert {job_of(grid, newest, name).state for name in "abc"} == {JobState.UNCHANGED}


def test_cleaning_takes_manifests_of_removed_versions_and_lists_that_attempts_left(tmp_path: Path):
    grid = simulation(lambda order: Behaviour(outcome=AttemptState.FAILED, cause=Cause.EXIT))
    grid.node.control.home_folders = LocalHomeFolders(tmp_path, tmp_path / "root")
    finish(grid, grid.submit(Pipeline(name="p", jobs=(command("a"),))))
    output = Output(kind=ArtifactKind.FILES, uri="files/p/a/1")
    there = Artifact(id="p/a@1", name="p/a", number=1, output=output, fingerprint="")
    gone = replace(there, id="p/a@2", number=2, removed=True)
    grid.store.commit([Put(noun=one, expected=0) for one in (there, gone)])
    folder = tmp_path / "root/manifests/p/a"
    folder.mkdir(parents=True)
    names = ("1.json", "2.json", "3.json", "aliases.jsonl", ".p-1.a.1.draft", ".other-1.a.1.draft")
    for name in names:
        (folder / name).touch()
        os.utime(folder / name, (0, 0))
    handed = tmp_path / "root/inputs/p-1.a.1/x"
    handed.mkdir(parents=True)
    os.utime(handed.parent, (0, 0))
    told = service(grid).clean()
    assert {one.name for one in told if one.kind in ("manifest", "handed")} == {
        "manifests/p/a/2.json",
        "manifests/p/a/.p-1.a.1.draft",
        "p-1.a.1",
    }
    left = {path.name for path in folder.iterdir()}
    assert left == set(names) - {"2.json", ".p-1.a.1.draft"}
    assert not handed.exists()
