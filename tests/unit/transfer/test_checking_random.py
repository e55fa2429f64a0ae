"""Random changes to the files of a version against a plain comparison of what was there and what is."""

import os
import shutil
from pathlib import Path
from random import Random

import pytest

from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.version_manifest import FileProblemKind
from gridmill.storage.manifests import new_manifest, write_manifest
from gridmill.transfer import verify as checking
from gridmill.transfer.contents import list_contents
from gridmill.transfer.verify import find_troubles, seal, verify

NAMES = ("a", "b.parquet", "deep/c", "deep/er/d", "e é", "%41", b"\xff".decode(errors="surrogateescape"))


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.chmod(0o644)
    path.write_bytes(content)


def there(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def change(random: Random, folder: Path) -> None:
    """One thing that a job, a person or a disk may do."""
    path = folder / random.choice(NAMES)
    match random.randrange(6):
        case 0:
            path.unlink(missing_ok=True)
        case 1 if path.exists():
            looked = path.stat()
            write(path, path.read_bytes()[::-1])
            os.utime(path, ns=(looked.st_atime_ns, looked.st_mtime_ns))
        case 2:
            write(path, random.randbytes(random.randrange(4)))
        case 3 if path.exists():
            os.utime(path, ns=(1, random.randrange(10**15)))
        case 4:
            shutil.rmtree(folder / "deep", ignore_errors=True)
        case 5:
            write(folder / f"new-{random.randrange(3)}", b"")


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("seed", range(60))
def test_what_differs_is_what_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, small: bool
):
    random = Random(seed)
    output = Output(kind=ArtifactKind.FILES, uri="files/p/j/1")
    version = Artifact(id="p/j@1", name="p/j", number=1, output=output, fingerprint="f")
    folder = tmp_path / output.uri
    folder.mkdir(parents=True)
    for name in random.sample(NAMES, random.randrange(len(NAMES))):
        write(folder / name, random.randbytes(random.randrange(4)))
    before, contents = there(folder), list_contents(folder)
    seal(folder, contents)
    write_manifest(tmp_path, new_manifest(version, contents))
    if not small:
        monkeypatch.setattr(checking, "SMALL_BYTES", -1)
    for _ in range(random.randrange(4)):
        change(random, folder)
    after = there(folder)
    wanted = {
        FileProblemKind.MISSING: len(before.keys() - after.keys()),
        FileProblemKind.EXTRA: len(after.keys() - before.keys()),
        FileProblemKind.CHANGED: sum(before[name] != after[name] for name in before.keys() & after.keys()),
    }
    told = [one.kind for one in verify(tmp_path, version, {}).file_problems]
    assert {kind: told.count(kind) for kind in FileProblemKind} == wanted
    quick = [one.kind for one in find_troubles(tmp_path, version)]
    if small:
        assert sorted(quick) == sorted(told)
    else:
        assert {kind: quick.count(kind) for kind in (FileProblemKind.MISSING, FileProblemKind.EXTRA)} == {
            kind: wanted[kind] for kind in (FileProblemKind.MISSING, FileProblemKind.EXTRA)
        }
