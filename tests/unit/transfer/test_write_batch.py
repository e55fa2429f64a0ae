"""Manifests of one tick are on the disk together before their versions are committed."""

from pathlib import Path
from shutil import rmtree

import pytest

from gridmill.codec import decode
from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.version_manifest import VersionManifest, manifest_uri
from gridmill.errors import StorageError
from gridmill.storage.root import StorageRoot
from gridmill.transfer.write_batch import WriteBatch


def version(job: str, number: int = 1, fingerprint: str = "f") -> Artifact:
    output = Output(kind=ArtifactKind.FILES, uri="")
    name = f"p/{job}"
    return Artifact(id=f"{name}@{number}", name=name, number=number, output=output, fingerprint=fingerprint)


def manifest(folder: Path, one: Artifact) -> VersionManifest:
    return decode((folder / manifest_uri(one.name, one.number)).read_bytes(), VersionManifest)


def test_files_appear_together_and_whole(tmp_path: Path):
    batch = WriteBatch()
    paths = [tmp_path / f"{number}" / "file" for number in range(150)]
    for path in paths:
        batch.add(path, path.parent.name.encode())
    assert not any(path.exists() for path in paths)
    batch.place()
    assert [path.read_text() for path in paths] == [path.parent.name for path in paths]
    assert all([one.name for one in path.parent.iterdir()] == ["file"] for path in paths)
    batch.place()  # nothing is left to do


def test_the_last_for_a_path_counts_and_no_draft_stays(tmp_path: Path):
    batch = WriteBatch()
    for text in (b"1", b"2"):
        batch.add(tmp_path / "file", text)
    batch.place()
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("file", "2")]


def test_what_failed_is_not_placed_later(tmp_path: Path):
    batch = WriteBatch()
    batch.add(tmp_path / "gone" / "file", b"")
    batch.add(tmp_path / "there" / "file", b"")
    rmtree(tmp_path / "gone")
    with pytest.raises(StorageError, match="cannot be written: No such file or directory"):
        batch.place()
    batch.place()
    assert list((tmp_path / "there").iterdir()) == []


def test_a_path_that_cannot_be_written_is_said_at_once(tmp_path: Path):
    (tmp_path / "file").touch()
    batch = WriteBatch()
    with pytest.raises(StorageError, match="cannot be written: File exists"):
        batch.add(tmp_path / "file" / "below", b"")
    batch.place()


def test_manifests_are_there_once_they_are_synced(tmp_path: Path):
    root, many = StorageRoot(tmp_path, tmp_path / "bundles"), [version(f"j{number}") for number in range(3)]
    for one in many:
        root.keep_manifest(one, "")
    root.sync_manifests()
    assert [manifest(tmp_path, one).version for one in many] == many


def test_after_a_failure_each_manifest_is_written_by_itself(tmp_path: Path):
    root, good, bad = StorageRoot(tmp_path, tmp_path / "bundles"), version("good"), version("bad")
    for one in (good, bad):
        root.keep_manifest(one, "")
    folder = (tmp_path / manifest_uri(bad.name, bad.number)).parent
    rmtree(folder)
    folder.touch()
    with pytest.raises(StorageError, match="cannot be written"):
        root.sync_manifests()
    root.keep_manifest(good, "")
    assert manifest(tmp_path, good).version == good
    with pytest.raises(StorageError, match="cannot be written"):
        root.keep_manifest(bad, "")
    root.sync_manifests()
    root.keep_manifest(version("good", fingerprint="g"), "")
    assert manifest(tmp_path, good).version == good, "written together again"
