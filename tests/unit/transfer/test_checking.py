"""Whatever happens to the files of a version is noticed before a job reads them."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.version_manifest import FileProblem
from gridmill.errors import DataError
from gridmill.storage.manifests import new_manifest, write_manifest
from gridmill.transfer import verify
from gridmill.transfer.contents import list_contents
from gridmill.transfer.verify import check_inputs, find_troubles, seal

URI = "files/p/j/p-1.j.1"


def version(kind: ArtifactKind = ArtifactKind.FILES) -> Artifact:
    return Artifact(id="p/j@1", name="p/j", number=1, output=Output(kind=kind, uri=URI), fingerprint="f")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / URI
    (made / "deep").mkdir(parents=True)
    (made / "a").write_text("12345")
    (made / "deep/b%41").write_text("")
    write_manifest(tmp_path, new_manifest(version(), list_contents(made)))
    return made


def keeping_times(path: Path, text: str) -> None:
    looked = path.stat()
    path.write_text(text)
    os.utime(path, ns=(looked.st_atime_ns, looked.st_mtime_ns))


CHANGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda it: (it / "a").write_text("54321"), "a was changed"),
    (lambda it: keeping_times(it / "a", "54321"), "a was changed"),
    (lambda it: (it / "a").write_text("1234567"), "a was changed"),
    (lambda it: (it / "a").unlink(), "a is missing"),
    (lambda it: (it / "deep/b%41").unlink(), "deep/b%2541 is missing"),
    (lambda it: ((it / "a").unlink(), (it / "a").symlink_to("deep/b%41")), "a was changed"),
    (lambda it: ((it / "a").unlink(), (it / "a").mkdir()), "a was changed"),
    (lambda it: (it / "deep/c").write_text(""), "deep/c was added"),
]


@pytest.mark.parametrize(("change", "said"), CHANGES, ids=[str(n) for n in range(len(CHANGES))])
def test_a_change_is_named(tmp_path: Path, folder: Path, change: Callable[[Path], object], said: str):
    check_inputs(tmp_path, [version()])
    change(folder)
    with pytest.raises(DataError, match="p/j@1 was changed after it was made") as raised:
        check_inputs(tmp_path, [version()])
    assert said in raised.value.message
    assert "gridmill verify p/j@1" in raised.value.hint
    assert "--force" in raised.value.hint


LINK_CHANGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda it: it.unlink(), "deep/link is missing"),
    (lambda it: (it.unlink(), it.symlink_to("b%41")), "deep/link was changed"),
    (lambda it: (it.unlink(), it.write_text("12345")), "deep/link was changed"),
    (lambda it: (it.unlink(), it.mkdir()), "deep/link was changed"),
    (lambda it: (it.parent / "other").symlink_to("b%41"), "deep/other was added"),
]


@pytest.mark.parametrize(("change", "said"), LINK_CHANGES, ids=[str(n) for n in range(len(LINK_CHANGES))])
def test_links_are_a_part_of_a_version(
    tmp_path: Path, folder: Path, change: Callable[[Path], object], said: str
):
    (folder / "deep/link").symlink_to("../a")
    (folder / "nowhere").symlink_to("/no/such \udcff")
    write_manifest(tmp_path, new_manifest(version(), list_contents(folder)))
    assert find_troubles(tmp_path, version(), read_all=True) == ()
    change(folder / "deep/link")
    assert [one.text for one in find_troubles(tmp_path, version())] == [said]


def test_links_of_a_version_whose_links_were_never_listed_are_not_checked(tmp_path: Path, folder: Path):
    contents = replace(list_contents(folder), links=None)
    write_manifest(tmp_path, new_manifest(version(), contents))
    (folder / "link").symlink_to("a")
    assert find_troubles(tmp_path, version()) == ()


def test_what_does_not_change_the_content_is_no_change(tmp_path: Path, folder: Path):
    os.utime(folder / "a", ns=(1, 1))
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__/x.pyc").write_text("")
    (folder / ".nfs0001").write_text("")
    assert find_troubles(tmp_path, version()) == ()


def test_many_troubles_are_counted(tmp_path: Path, folder: Path):
    for number in range(5):
        (folder / f"x{number}").write_text("")
    with pytest.raises(DataError, match="x0 was added, x1 was added, x2 was added and 2 more"):
        check_inputs(tmp_path, [version()])


def test_large_versions_are_read_only_where_a_time_has_changed(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(verify, "SMALL_BYTES", 0)
    keeping_times(folder / "a", "54321")
    assert find_troubles(tmp_path, version()) == ()
    assert [one.text for one in find_troubles(tmp_path, version(), read_all=True)] == ["a was changed"]
    os.utime(folder / "a", ns=(1, 1))
    assert [one.text for one in find_troubles(tmp_path, version())] == ["a was changed"]


def test_other_files_of_a_table_are_of_its_other_versions(tmp_path: Path):
    made = tmp_path / URI
    made.mkdir(parents=True)
    (made / "one.parquet").write_text("1")
    write_manifest(tmp_path, new_manifest(version(ArtifactKind.SINK), list_contents(made)))
    (made / "two.parquet").write_text("2")
    check_inputs(tmp_path, [version(ArtifactKind.SINK)])
    (made / "one.parquet").unlink()
    found = find_troubles(tmp_path, version(ArtifactKind.SINK))
    assert found == (FileProblem(path="one.parquet", kind="missing"),)


def test_a_version_of_before_there_were_manifests_is_not_checked(tmp_path: Path):
    check_inputs(tmp_path, [version()])


def test_sealed_files_cannot_be_written(tmp_path: Path, folder: Path):
    (folder / "run").write_text("#!/bin/sh")
    (folder / "run").chmod(0o755)
    seal(folder, list_contents(folder))
    assert [(folder / name).stat().st_mode & 0o777 for name in ("a", "run", "deep")] == [0o444, 0o555, 0o755]
