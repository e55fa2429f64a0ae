"""The files of a version with their hashes: all kinds of names, nothing read twice, whole or not at all."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridmill.codec import decode, encode
from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.version_manifest import VersionContents, VersionManifest, contents_uri, manifest_uri
from gridmill.errors import NotFoundError, StorageError, UnsafePathError
from gridmill.storage.manifests import keep_manifest
from gridmill.transfer.contents import list_contents, place_of, read_contents, read_manifest, write_contents

VERSION = Artifact(
    id="p/j@3",
    name="p/j",
    number=3,
    output=Output(kind=ArtifactKind.FILES, uri="files/p/j/p-1.j.1"),
    fingerprint="f",
    made_from=("p/i@1",),
)


def test_every_file_has_its_size_and_the_hash_that_sha256sum_prints(tmp_path: Path):
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "deep/er/rows").write_bytes(b"1\n2\n")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "large").write_bytes(os.urandom(5 << 20))
    (tmp_path / "link").symlink_to("empty")
    found = list_contents(tmp_path)
    assert [one.path for one in found.files] == ["deep/er/rows", "empty", "large"]
    for one in found.files:
        content = (tmp_path / one.path).read_bytes()
        assert (one.size_bytes, one.sha256) == (len(content), hashlib.sha256(content).hexdigest())


@given(
    st.sets(
        st.binary(min_size=1, max_size=20).filter(lambda n: not {0, 47} & {*n} and n not in (b".", b"..")),
        max_size=5,
    )
)
def test_every_name_comes_back_from_json(tmp_path_factory: pytest.TempPathFactory, names: set[bytes]):
    folder = tmp_path_factory.mktemp("odd")
    for name in names:
        with open(os.path.join(os.fsencode(folder), name), "wb") as file:
            file.write(name)
    found = decode(encode(list_contents(folder)), VersionContents)
    places = [os.fsencode(place_of(folder, one.path)) for one in found.files]
    assert {os.path.basename(place) for place in places} == names
    assert all(os.path.isfile(place) for place in places)


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../../x", "a/..", "%2Fetc/passwd", "%2E%2E/x"]
)
def test_a_path_that_leads_elsewhere_is_refused(tmp_path: Path, path: str):
    with pytest.raises(UnsafePathError, match="not a valid path of a version's file"):
        place_of(tmp_path, path)


def test_what_is_known_and_looks_the_same_is_not_read_again(tmp_path: Path):
    (tmp_path / "old").write_text("a")
    (tmp_path / "new").write_text("b")
    before = list_contents(tmp_path)
    known = VersionContents(files=tuple(replace(one, sha256=f"known {one.path}") for one in before.files))
    (tmp_path / "new").write_text("cc")
    found = {one.path: one.sha256 for one in list_contents(tmp_path, known).files}
    assert found == {"old": "known old", "new": hashlib.sha256(b"cc").hexdigest()}


def test_a_manifest_has_the_record_and_the_files_and_is_whole(tmp_path: Path):
    folder, listed = tmp_path / VERSION.output.uri, contents_uri(VERSION.output.uri)
    folder.mkdir(parents=True)
    (folder / "rows").write_text("1\n")
    write_contents(tmp_path / listed, list_contents(folder))
    keep_manifest(tmp_path, VERSION, listed)
    path = tmp_path / manifest_uri("p/j", 3)
    assert path == tmp_path / "manifests/p/j/3.json"
    found = decode(path.read_bytes(), VersionManifest)
    assert (found.version, found.contents) == (VERSION, list_contents(folder))
    assert found == read_manifest(tmp_path, VERSION)
    keep_manifest(tmp_path, VERSION, listed)  # a commit that failed is tried again
    assert found == read_manifest(tmp_path, VERSION)
    assert sorted(one.name for one in path.parent.iterdir()) == [".p-1.j.1.draft", "3.json"]


def test_what_several_processes_wrote_is_looked_at_again(tmp_path: Path):
    folder, listed = tmp_path / VERSION.output.uri, contents_uri(VERSION.output.uri)
    folder.mkdir(parents=True)
    (folder / "of-rank-0").write_text("1\n")
    write_contents(tmp_path / listed, list_contents(folder))
    (folder / "of-rank-1").write_text("2\n")
    keep_manifest(tmp_path, VERSION, listed, shared=True)
    assert read_manifest(tmp_path, VERSION).contents == list_contents(folder)


def test_what_is_not_there_or_damaged_is_said(tmp_path: Path):
    with pytest.raises(NotFoundError, match="p/j@3 has no manifest"):
        read_manifest(tmp_path, VERSION)
    listed = contents_uri(VERSION.output.uri)
    assert read_contents(tmp_path / listed) is None
    keep_manifest(tmp_path, VERSION, listed)
    assert read_manifest(tmp_path, VERSION).contents is None, "nobody listed them"
    (tmp_path / listed).write_text('{"files": [')
    with pytest.raises(StorageError, match="the list of the version's files cannot be read"):
        keep_manifest(tmp_path, VERSION, listed)
    assert read_manifest(tmp_path, VERSION).contents is None, "the one before is as it was"
    (tmp_path / manifest_uri("p/j", 3)).write_text("{")
    with pytest.raises(StorageError, match="manifest of p/j@3 cannot be read"):
        read_manifest(tmp_path, VERSION)
