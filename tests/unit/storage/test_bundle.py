"""Code bundles: what is in, the same content the same hash, and nothing that leaves its folder."""

import gzip
import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from gridmill.errors import ConflictError, InputError, StorageError, UnsafePathError
from gridmill.storage.bundle import make_bundle
from gridmill.storage.unpack import bundle_hash, unpack_bundle


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write(tmp_path / "project", {"pipeline.yaml": "pipeline: a", "src/job.py": "print(1)"})


def names(bundle: Path) -> list[str]:
    with tarfile.open(bundle) as archive:
        return archive.getnames()


def everything(project: Path) -> list[str]:
    return [str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()]


def bundled(project: Path, **limits: int) -> list[str]:
    return names(make_bundle(project, project.parent / "cache", **limits).path)


def test_a_bundle_unpacks_to_the_same_files(project: Path, tmp_path: Path) -> None:
    (project / "src/job.py").chmod(0o700)
    bundle = make_bundle(project, tmp_path / "cache")
    unpack_bundle(bundle.path, tmp_path / "out", expected=bundle.hash)
    assert (tmp_path / "out/pipeline.yaml").read_text() == "pipeline: a"
    assert os.access(tmp_path / "out/src/job.py", os.X_OK)
    assert not os.access(tmp_path / "out/pipeline.yaml", os.X_OK)
    assert (bundle.files, bundle.size_bytes) == (2, 19)
    assert bundle_hash(bundle.path) == bundle_hash(bundle.path.read_bytes()) == bundle.hash


def test_hash_and_bytes_depend_on_content_alone(project: Path, tmp_path: Path) -> None:
    first = make_bundle(project, tmp_path / "one")
    os.utime(project / "pipeline.yaml", (1, 1))
    (project / "pipeline.yaml").chmod(0o640)
    second = make_bundle(project, tmp_path / "two")
    assert first.hash == second.hash
    assert first.path.read_bytes() == second.path.read_bytes()


@pytest.mark.parametrize("change", ["content", "name", "mode", "link"])
def test_what_matters_changes_the_hash(project: Path, tmp_path: Path, change: str) -> None:
    before = make_bundle(project, tmp_path / "cache").hash
    file = project / "src/job.py"
    match change:
        case "content":
            file.write_text("print(2)")
        case "name":
            file.rename(project / "src/other.py")
        case "mode":
            file.chmod(0o755)
        case "link":
            file.unlink()
            file.symlink_to("../pipeline.yaml")
    assert make_bundle(project, tmp_path / "cache").hash != before


def test_ignore_rules_are_gits_and_gridmillignore_wins(project: Path) -> None:
    write(
        project,
        {
            ".gitignore": "*.csv\n/build/\n!keep.csv\n",
            ".gridmillignore": "!small.csv\n*.log\n",
            "big.csv": "",
            "small.csv": "",
            "keep.csv": "",
            "run.log": "",
            "build/x.py": "",
            "src/build/y.py": "",
            "data/.gitignore": "*\n!.gitignore\n!in.csv\n",
            "data/in.csv": "",
            "data/out.txt": "",
        },
    )
    ignored = {"big.csv", "run.log", "build/x.py", "data/out.txt"}
    assert set(bundled(project)) == {*everything(project)} - ignored


def test_some_things_are_never_part_of_a_project(project: Path) -> None:
    never = [".git/config", ".venv/bin/python", "src/__pycache__/a.pyc", "old.pyc", ".gridmill/store.db"]
    write(project, dict.fromkeys([*never, "env/pyvenv.cfg", "env/lib.py"], "x"))
    os.mkfifo(project / "pipe")
    assert bundled(project) == ["pipeline.yaml", "src/job.py"]


def test_secrets_and_caches_are_left_out_unless_a_rule_includes_them(project: Path) -> None:
    files = [".env", ".env.production", "src/.env", ".env.example", "node_modules/a/index.js", ".tox/x"]
    write(project, dict.fromkeys(files, "x"))
    bundle = make_bundle(project, project.parent / "cache")
    assert names(bundle.path) == [".env.example", "pipeline.yaml", "src/job.py"]
    assert bundle.secrets == (".env", ".env.production", "src/.env")
    write(project, {".gridmillignore": "!/.env\n!node_modules\n.env.*\n/src/.env\n"})
    bundle = make_bundle(project, project.parent / "cache")
    assert {".env", "node_modules/a/index.js"} < set(names(bundle.path))
    assert bundle.secrets == ()


def test_permissions_and_empty_folders_are_kept(project: Path, tmp_path: Path) -> None:
    write(
        project, {"key": "secret", "run": "x", "logs/.gitignore": "", "out/a.log": "", ".gitignore": "*.log"}
    )
    for name, mode in {"key": 0o600, "run": 0o700, "src/job.py": 0o664, "pipeline.yaml": 0o775}.items():
        (project / name).chmod(mode)
    (project / "empty/deep").mkdir(parents=True)
    bundle = make_bundle(project, tmp_path / "cache")
    out = tmp_path / "unpacked"
    unpack_bundle(bundle.path, out, expected=bundle.hash)
    found = {
        name: (out / name).stat().st_mode & 0o777 for name in ("key", "run", "src/job.py", "pipeline.yaml")
    }
    assert found == {"key": 0o600, "run": 0o700, "src/job.py": 0o644, "pipeline.yaml": 0o755}
    assert (out / "empty/deep").is_dir()
    assert list((out / "out").iterdir()) == []
    (project / "key").chmod(0o644)
    assert make_bundle(project, tmp_path / "cache").hash != bundle.hash


def test_rules_of_the_work_tree_above_count(tmp_path: Path) -> None:
    write(tmp_path, {".git/HEAD": "", ".gitignore": "*.secret\n"})
    project = write(tmp_path / "examples/a", {"pipeline.yaml": "", "key.secret": ""})
    assert names(make_bundle(project, tmp_path / "cache").path) == ["pipeline.yaml"]


def test_the_cache_and_what_is_left_out_stay_out(project: Path) -> None:
    write(project, {"home/store.db": ""})
    bundle = make_bundle(project, project / "cache", leave_out=[project / "home"])
    assert make_bundle(project, project / "cache", leave_out=[project / "home"]).hash == bundle.hash
    assert names(bundle.path) == ["pipeline.yaml", "src/job.py"]


def test_links_inside_are_kept(project: Path, tmp_path: Path) -> None:
    (project / "latest").symlink_to(project / "src")
    bundle = make_bundle(project, tmp_path / "cache")
    unpack_bundle(bundle.path, tmp_path / "out")
    assert os.readlink(tmp_path / "out/latest") == "src"
    assert (tmp_path / "out/latest/job.py").read_text() == "print(1)"


def test_a_link_that_leads_outside_is_refused(project: Path) -> None:
    (project / "passwords").symlink_to("/etc/passwd")
    with pytest.raises(UnsafePathError, match="points outside the project folder, to /etc/passwd") as caught:
        bundled(project)
    assert caught.value.place == str(project / "passwords")
    assert ".gridmillignore" in caught.value.hint


def test_a_link_to_itself_is_refused(project: Path) -> None:
    (project / "loop").symlink_to("loop")
    with pytest.raises(InputError, match="points to itself"):
        bundled(project)


def test_too_large_names_the_largest_files(project: Path) -> None:
    write(project, {"data/big.bin": "x" * 3000})
    with pytest.raises(InputError) as caught:
        bundled(project, max_bytes=2048)
    assert caught.value.message == (
        "the project has 2.9 KiB; the limit is 2 KiB; "
        "largest: data/big.bin (2.9 KiB), pipeline.yaml (11 B), src/job.py (8 B)"
    )
    assert ".gridmillignore" in caught.value.hint


def test_too_many_files(project: Path) -> None:
    with pytest.raises(InputError, match="more than 1 files"):
        bundled(project, max_files=1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_named(project: Path) -> None:
    (project / "src/job.py").chmod(0)
    with pytest.raises(
        InputError, match=r"src/job\.py: cannot read this file for the code bundle: Permission denied"
    ):
        bundled(project)


def test_a_cache_that_cannot_be_written(project: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(StorageError, match="cannot write the code bundle"):
        make_bundle(project, tmp_path / "cache")


def test_unpacking_twice_keeps_the_first(project: Path, tmp_path: Path) -> None:
    bundle = make_bundle(project, tmp_path / "cache")
    unpack_bundle(bundle.path, tmp_path / "out")
    (tmp_path / "out/mine").write_text("")
    unpack_bundle(bundle.path, tmp_path / "out")
    assert (tmp_path / "out/mine").exists()


def archive(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            member.size = 4 if member.isreg() else 0
            tar.addfile(member, io.BytesIO(b"evil"))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    "members",
    [
        [member("../evil")],
        [member("/tmp/evil")],
        [member("a/../../evil")],
        [member("")],
        [member("null", tarfile.CHRTYPE)],
        [member("hard", tarfile.LNKTYPE, "/etc/passwd")],
        [member("out", tarfile.SYMTYPE, "../..")],
        [member("up", tarfile.SYMTYPE, "x/.."), member("x/y"), member("z", tarfile.SYMTYPE, "up/../..")],
        [member("deep/up", tarfile.SYMTYPE, "../"), member("z", tarfile.SYMTYPE, "deep/up/../..")],
    ],
)
def test_unsafe_archives_leave_nothing(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    tar = archive(tmp_path / "bad.tar.gz", *members)
    with pytest.raises(UnsafePathError):
        unpack_bundle(tar, tmp_path / "in/out")
    assert os.listdir(tmp_path) == ["bad.tar.gz", "in"] or os.listdir(tmp_path / "in") == []
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_huge_header_is_refused_before_it_is_read(tmp_path: Path, kind: bytes) -> None:
    """It says 1.5 GiB, all of which tarfile would read into memory; so little of it is there that whoever
    reads it finds a damaged archive."""
    header = member("bomb", kind)
    header.size = 3 * 2**29
    with gzip.open(tmp_path / "bad.tar.gz", "wb") as file:
        file.write(header.tobuf(tarfile.USTAR_FORMAT) + bytes(tarfile.RECORDSIZE))
    with pytest.raises(InputError, match="a header of more than 1 MiB"):
        unpack_bundle(tmp_path / "bad.tar.gz", tmp_path / "out")


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    tar = archive(
        tmp_path / "bad.tar.gz", member("d", tarfile.SYMTYPE, str(tmp_path / "outside")), member("d/evil")
    )
    with pytest.raises((UnsafePathError, StorageError)):
        unpack_bundle(tar, tmp_path / "out")
    assert not list((tmp_path / "outside").iterdir())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("damage", ["cut", "garbage", "flipped"])
def test_damaged_archives(project: Path, tmp_path: Path, damage: str) -> None:
    bundle = make_bundle(project, tmp_path / "cache")
    content = bytearray(bundle.path.read_bytes())
    content[len(content) // 2] ^= 255
    damaged = {"cut": content[:100], "garbage": b"hello", "flipped": content}[damage]
    (tmp_path / "x.tar.gz").write_bytes(damaged)
    with pytest.raises(InputError, match="damaged"):
        unpack_bundle(tmp_path / "x.tar.gz", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_hash_than_expected(project: Path, tmp_path: Path) -> None:
    bundle = make_bundle(project, tmp_path / "cache")
    with pytest.raises(InputError, match=f"does not have the hash {'0' * 64}"):
        unpack_bundle(bundle.path, tmp_path / "out", expected="0" * 64)


def test_hashes_that_were_kept_are_used_and_not_believed_again_once_they_were_wrong(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = tmp_path / "hashes.json"
    monkeypatch.setattr("gridmill.transfer.chunk_manifest.SETTLED_NS", -(2**62))  # as if the files were old
    first = make_bundle(project, tmp_path / "bundles", hashes=hashes)
    assert make_bundle(project, tmp_path / "bundles", hashes=hashes) == first
    right = hashlib.sha256(b"print(1)").hexdigest()
    assert right in hashes.read_text()
    hashes.write_text(hashes.read_text().replace(right, "0" * 64))
    with pytest.raises(ConflictError, match="changed while"):
        make_bundle(project, tmp_path / "bundles", hashes=hashes)
    assert make_bundle(project, tmp_path / "bundles", hashes=hashes) == first
