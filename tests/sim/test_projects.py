"""Whole projects: backed up from one grid, restored into another."""

import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_races import command, finish, service, simulation
from test_versions import alias, model

from gridmill.codec import decode, encode
from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.command import CommandSpec
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.states import RunState
from gridmill.errors import ConflictError, InputError, NotFoundError, StorageError, UnsafePathError
from gridmill.ports.store import Put
from gridmill.storage import archive as archives
from gridmill.storage.archive import ArchiveManifest
from gridmill.storage.manifests import new_manifest, write_manifest
from gridmill.storage.root import StorageRoot
from gridmill.testing.simulation import Simulation
from gridmill.testing.store_samples import a_job_run, a_run
from gridmill.transfer.contents import list_contents

NAMES = st.sampled_from(["a", "b.parquet", "deep/c", "deep/_delta_log/0.json"])
CONTENTS = st.dictionaries(NAMES, st.binary(max_size=50), min_size=1, max_size=4)


def at(place: Path) -> Simulation:
    grid = simulation()
    grid.node.control.storage = StorageRoot(place / "root", bundles=place / "bundles")
    return grid


def keep(grid: Simulation, place: Path, one: Artifact, contents: dict[str, bytes]) -> None:
    grid.store.commit([Put(noun=one, expected=0)])
    for name, content in contents.items():
        path = place / "root" / one.output.uri / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    contents_of = list_contents(place / "root" / one.output.uri) if contents else None
    write_manifest(place / "root", new_manifest(one, contents_of))


def files(folder: Path) -> dict[str, bytes]:
    """But manifests: these have times, and the moves of aliases tell of imports."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if "manifests" not in Path(name).parts}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    grid = at(tmp_path / "one")
    keep(grid, tmp_path / "one", model(1, 1.0), {"model.json": b"{}"})
    service(grid).backup(("w",), str(tmp_path / "p.zip"))
    return tmp_path / "p.zip"


def test_an_applied_pipeline_replaces_one_that_was_only_run_and_never_the_other_way_round(
    tmp_path: Path,
) -> None:
    ran, applied = Pipeline(name="w", jobs=(command("m"),)), Pipeline(name="w", jobs=(command("n"),))
    grids = {name: at(tmp_path / name) for name in ("ran", "applied", "third")}
    service(grids["ran"]).stop_run(service(grids["ran"]).start_run(ran).run.id)
    assert grids["ran"].run_until(lambda: service(grids["ran"]).runs().items[0].ended is not None)
    service(grids["applied"]).apply(applied)
    for name in ("ran", "applied"):
        service(grids[name]).backup(("w",), str(tmp_path / f"{name}.zip"))
    for name, expected in (("ran", False), ("applied", True), ("ran", True)):
        service(grids["third"]).restore(str(tmp_path / f"{name}.zip"))
        assert service(grids["third"]).pipeline("w").applied is expected


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(made=st.lists(CONTENTS, min_size=1, max_size=4), removed=st.sets(st.integers(1, 4)))
def test_what_is_restored_is_what_was_backed_up(
    tmp_path_factory: pytest.TempPathFactory, made: list[dict[str, bytes]], removed: set[int]
) -> None:
    place = tmp_path_factory.mktemp("projects")
    one, other = at(place / "one"), at(place / "other")
    digest_free = Pipeline(name="w", jobs=(command("m"),))
    service(one).apply(digest_free)
    for number, contents in enumerate(made, start=1):
        sources = ("w/m@1",) if number > 1 else ()
        keep(one, place / "one", model(number, 1.0, made_from=sources), contents)
    for number in removed & set(range(1, len(made) + 1)):
        service(one).remove_artifact(f"w/m@{number}", force=True)
    there = service(one).artifacts().items
    if there:
        service(one).set_alias(alias("prod", there[0].number))
    written = service(one).backup(("w",), str(place / "p.zip"))
    assert len(written.versions) == len(made)
    restored = service(other).restore(str(place / "p.zip"))
    assert restored.versions == written.versions
    for ask in ("artifacts", "aliases", "pipelines"):
        assert getattr(service(other), ask)() == getattr(service(one), ask)()
    assert files(place / "other/root") == files(place / "one/root")
    again = service(other).restore(str(place / "p.zip"))
    assert (again.versions, again.already_present) == ((), len(made))
    assert files(place / "other/root") == files(place / "one/root")
    service(other).backup(("w",), str(place / "q.zip"))
    assert (place / "p.zip").read_bytes() == (place / "q.zip").read_bytes()


def test_runs_go_on_counting_where_the_other_grid_stopped(tmp_path: Path) -> None:
    one, other = at(tmp_path / "one"), at(tmp_path / "other")
    pipeline = Pipeline(name="w", jobs=(command("m", cache=False),))
    for _ in range(2):
        run = one.submit(pipeline)
        finish(one, run)
        made = tmp_path / "one/root" / service(one).artifact("w/m").output.uri
        made.mkdir(parents=True)
        (made / "file").write_bytes(b"1")
    service(one).backup(("w",), str(tmp_path / "p.zip"))
    service(other).restore(str(tmp_path / "p.zip"))
    assert service(other).version("w/m@1").artifact.run_id == "w-1"
    again = other.submit(pipeline)
    assert again.id == "w-3"
    finish(other, again)
    assert service(other).artifact("w/m").number == 3
    assert len(other.node.control.ledger.snapshot.job_runs) == 0


def test_another_version_of_the_same_name_is_a_conflict_and_nothing_is_left(
    tmp_path: Path, archive: Path
) -> None:
    other = at(tmp_path / "other")
    keep(other, tmp_path / "other", model(1, 9.0), {"model.json": b"other"})
    with pytest.raises(ConflictError, match="another version 'w/m@1'"):
        service(other).restore(str(archive))
    assert files(tmp_path / "other/root") == {"models/w/m/1/model.json": b"other"}


def test_a_table_that_has_grown_since_is_said_to_be_another_state_of_it(tmp_path: Path) -> None:
    one, other = at(tmp_path / "one"), at(tmp_path / "other")
    for number in (1, 2):
        made = Output(kind=ArtifactKind.SINK, uri="sinks/w/s/table", table_version=number)
        table = Artifact(id=f"w/s@{number}", name="w/s", number=number, output=made, fingerprint=f"{number}")
        keep(one, tmp_path / "one", table, {f"_delta_log/{number}.json": b"{}"})
        service(one).backup(("w",), str(tmp_path / f"{number}.zip"))
    service(other).restore(str(tmp_path / "1.zip"))
    before = files(tmp_path / "other/root")
    with pytest.raises(
        ConflictError, match="has version w/s@1 and the archive has w/s@2: they are different states"
    ) as caught:
        service(other).restore(str(tmp_path / "2.zip"))
    assert "the same versions" in caught.value.hint
    assert files(tmp_path / "other/root") == before
    assert service(at(tmp_path / "third")).restore(str(tmp_path / "2.zip")).versions == (
        "w/s@1",
        "w/s@2",
    )


def test_files_that_a_crash_left_are_taken_over_others_are_a_conflict(tmp_path: Path, archive: Path) -> None:
    other = at(tmp_path / "other")
    folder = tmp_path / "other/root/models/w/m/1"
    folder.mkdir(parents=True)
    (folder / "model.json").write_bytes(b"not the same")
    with pytest.raises(ConflictError, match="already exists and differs from the archive"):
        service(other).restore(str(archive))
    assert service(other).artifacts().items == ()
    (folder / "model.json").write_bytes(b"{}")
    assert service(other).restore(str(archive)).versions == ("w/m@1",)


def changed(archive: Path, change) -> Path:
    """The archive with its files and manifest passed through `change`."""
    with zipfile.ZipFile(archive) as source:
        members = {name: source.read(name) for name in source.namelist()}
    members = change(members)
    with zipfile.ZipFile(archive, "w") as target:
        for name, content in members.items():
            target.writestr(name, content)
    return archive


def smuggle(name: str):
    def change(members: dict[str, bytes]) -> dict[str, bytes]:
        manifest = decode(members.pop("manifest.json"), ArchiveManifest)
        old, entry = next(iter(manifest.files.items()))
        entries = {name: entry}
        content = members.pop(old)
        return {
            name: content,
            "manifest.json": encode(ArchiveManifest(project=manifest.project, files=entries)),
        }

    return change


@pytest.mark.parametrize(
    "name",
    ["../evil", "files/../../evil", "/evil", "files/models/w/m/1/../../x", "files/o/x", "bundles\\x"],
)
def test_files_where_none_may_be_are_refused(tmp_path: Path, archive: Path, name: str) -> None:
    other = at(tmp_path / "other")
    with pytest.raises(UnsafePathError):
        service(other).restore(str(changed(archive, smuggle(name))))
    assert service(other).artifacts().items == ()
    assert not list(tmp_path.rglob("evil"))


def test_damage_is_seen_before_anything_is_visible(tmp_path: Path, archive: Path) -> None:
    other = service(at(tmp_path / "other"))
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="damaged or incomplete"):
        other.restore(str(archive))
    archive.write_bytes(whole)
    changed(archive, lambda members: {**members, "files/models/w/m/1/model.json": b"[]"})
    with pytest.raises(InputError, match="damaged"):
        other.restore(str(archive))
    archive.write_bytes(whole)
    changed(archive, lambda members: {**members, "files/models/w/m/1/more": b"x"})
    with pytest.raises(InputError, match="manifest"):
        other.restore(str(archive))
    assert other.artifacts().items == ()
    assert files(tmp_path / "other") == {}


def test_an_encrypted_archive_is_one_clear_error(tmp_path: Path, archive: Path) -> None:
    content = bytearray(archive.read_bytes())
    entry = content.find(b"PK\x01\x02")  # the directory's first entry; its flags are 8 bytes on
    content[entry + 8] |= 1
    archive.write_bytes(content)
    with pytest.raises(InputError, match="the archive is encrypted"):
        service(at(tmp_path / "b")).restore(str(archive))


def test_comparing_what_is_there_already_holds_nobody_up(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = at(tmp_path / "b")
    service(grid).restore(str(archive))
    again = at(tmp_path / "b")
    free: list[bool] = []
    real = archives._hash

    def look(path: Path) -> str:
        other = threading.Thread(target=lambda: free.append(_try(again)))
        other.start()
        other.join()
        return real(path)

    monkeypatch.setattr(archives, "_hash", look)
    service(again).restore(str(archive))
    assert free
    assert all(free)


def _try(grid: Simulation) -> bool:
    taken = grid.node.lock.acquire(timeout=2)
    if taken:
        grid.node.lock.release()
    return taken


def test_what_is_not_there_and_what_runs_is_not_backed_up(tmp_path: Path) -> None:
    grid = at(tmp_path / "one")
    with pytest.raises(NotFoundError, match="'w'"):
        service(grid).backup(("w",), str(tmp_path / "p.zip"))
    keep(grid, tmp_path / "one", model(1, 1.0), {"a": b""})
    grid.submit(Pipeline(name="w", jobs=(command("m"),)))
    with pytest.raises(ConflictError, match="w-1"):
        service(grid).backup(("w",), str(tmp_path / "p.zip"))
    assert not (tmp_path / "p.zip").exists()


def test_a_version_that_lost_files_is_not_passed_on_as_whole(tmp_path: Path) -> None:
    grid, one = at(tmp_path / "one"), model(1, 1.0)
    lost = replace(one, output=replace(one.output, size_bytes=5))
    keep(grid, tmp_path / "one", lost, {"model.json": b"{}"})
    with pytest.raises(StorageError, match="w/m@1 has only 2 B of 5 B: files are missing"):
        service(grid).backup(("w",), str(tmp_path / "p.zip"))
    assert list(tmp_path.glob("*p.zip*")) == []


def test_what_changes_during_a_backup_is_a_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = at(tmp_path / "one")
    keep(grid, tmp_path / "one", model(1, 1.0), {"a": b""})
    pipeline = Pipeline(name="w", jobs=(command("m", cache=False),))
    monkeypatch.setattr("gridmill.storage.archive.sync", lambda _: finish(grid, grid.submit(pipeline)))
    with pytest.raises(ConflictError, match="during the backup"):
        service(grid).backup(("w",), str(tmp_path / "p.zip"))
    assert list(tmp_path.glob("*.zip*")) == []


def test_a_version_that_lies_elsewhere_is_refused(tmp_path: Path, archive: Path) -> None:
    def elsewhere(members: dict[str, bytes]) -> dict[str, bytes]:
        manifest = members["manifest.json"].replace(b'"uri":"models/w/m/1"', b'"uri":"../elsewhere"')
        assert manifest != members["manifest.json"]
        return {**members, "manifest.json": manifest}

    with pytest.raises(UnsafePathError, match="elsewhere"):
        service(at(tmp_path / "other")).restore(str(changed(archive, elsewhere)))


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (b'"run_id":"w-1"', b'"run_id":"../../x"', "has a (job|version)"),
        (
            b'"w-1"',
            b'"../../x"',
            "has a run with the id '../../x', but the id of a run has the form w-NUMBER",
        ),
        (b'"id":"w-1"', b'"id":"w-1x"', "has a run with the id 'w-1x'"),
    ],
    ids=["of a version", "of all", "no number"],
)
def test_an_id_that_gridmill_does_not_give_is_refused(
    tmp_path: Path, before: bytes, after: bytes, says: str
) -> None:
    def renamed(members: dict[str, bytes]) -> dict[str, bytes]:
        manifest = members["manifest.json"].replace(before, after)
        assert manifest != members["manifest.json"]
        return {**members, "manifest.json": manifest}

    one = at(tmp_path / "one")
    ended = replace(a_run(pipeline="w", state=RunState.SUCCEEDED), ended=1e9 + 1)
    keep(one, tmp_path / "one", model(2, 1.0, run_id=ended.id), {"model.json": b"{}"})
    one.store.commit([Put(noun=noun, expected=0) for noun in (a_job_run(ended.id), ended)])
    service(one).backup(("w",), str(tmp_path / "p.zip"))
    assert service(at(tmp_path / "right")).restore(str(tmp_path / "p.zip")).versions == ("w/m@2",)
    with pytest.raises(InputError, match=says) as caught:
        service(at(tmp_path / "other")).restore(str(changed(tmp_path / "p.zip", renamed)))
    assert "Back up the project again" in caught.value.hint


def test_a_restored_pipeline_is_unchanged_and_knows_what_its_versions_were_made_from(tmp_path: Path) -> None:
    one, other = at(tmp_path / "one"), at(tmp_path / "other")
    pipeline = Pipeline(name="w", jobs=(command("m"),))
    finish(one, one.submit(pipeline, force=False))
    made = tmp_path / "one/root" / service(one).artifact("w/m").output.uri
    made.mkdir(parents=True)
    (made / "file").write_bytes(b"1")
    for number in range(2):
        service(one).backup(("w",), str(tmp_path / f"{number}.zip"))
    assert (tmp_path / "0.zip").read_bytes() == (tmp_path / "1.zip").read_bytes()
    service(other).restore(str(tmp_path / "0.zip"))
    (planned,) = service(other).plan_run(pipeline).jobs
    assert (planned.unchanged, planned.reason) == (True, "nothing changed since w/m@1")
    other_command = Job(name="m", command=CommandSpec(run="true", outputs=("a",)))
    (planned,) = service(other).plan_run(replace(pipeline, jobs=(other_command,))).jobs
    assert planned.reason == "`m` changed: command.outputs (compared with w/m@1)"
