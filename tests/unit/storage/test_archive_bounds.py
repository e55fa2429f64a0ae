"""An archive of a project that would exhaust memory or disk, or is none, is refused before that happens."""

import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest

from gridmill.errors import GridmillError, InputError, StorageError
from gridmill.storage import archive
from gridmill.storage.archive import unpacked


def refused(source: Path, root: Path, kind: type[GridmillError], match: str) -> None:
    with pytest.raises(kind, match=match), unpacked(source, root):
        pass
    assert list(root.iterdir()) == []


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def test_a_device_without_an_end(root: Path):
    refused(Path("/dev/zero"), root, InputError, "this is not a file")


def test_a_pipe_that_nobody_writes_to(root: Path, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", root, InputError, "this is not a file")


def test_a_folder(root: Path, tmp_path: Path):
    refused(tmp_path, root, InputError, "this is not a file")


def test_a_manifest_that_is_small_in_the_file_and_huge_in_memory(root: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(archive, "_MANIFEST_BYTES", 100_000)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("manifest.json", b" " * 100_001)
    refused(tmp_path / "bomb.zip", root, InputError, "the manifest has 97.7 KiB; the limit is 97.7 KiB")


def test_more_bytes_than_the_disk_has(root: Path, tmp_path: Path):
    size = shutil.disk_usage(root).free + 2**40
    content = {
        "project": {"format": 1, "gridmill": "0.1.0", "uris": ["models/a/b/c"]},
        "files": {"files/models/a/b/c/model.bin": {"sha256": "0" * 64, "size_bytes": size}},
    }
    with zipfile.ZipFile(tmp_path / "large.zip", "w") as large:
        large.writestr("files/models/a/b/c/model.bin", b"")
        large.writestr("manifest.json", json.dumps(content))
    refused(tmp_path / "large.zip", root, StorageError, "the archive needs .* are free")
