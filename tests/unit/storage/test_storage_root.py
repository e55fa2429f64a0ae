"""A folder as storage root: nothing leaves it, sources say what is near, bundles are kept by hash."""

import gzip
import os
from pathlib import Path
from shutil import rmtree

import pytest

from gridmill.domain.source import Source
from gridmill.errors import InputError, StorageError, UnsafePathError
from gridmill.storage.bundle import make_bundle
from gridmill.storage.root import StorageRoot


@pytest.fixture
def root(tmp_path: Path) -> StorageRoot:
    (tmp_path / "storage").mkdir()
    return StorageRoot(tmp_path / "storage", bundles=tmp_path / "bundles")


@pytest.mark.parametrize("uri", ["../x", "a/../../x", "/etc/passwd", "a/..", "x\0y", "out/passwd", "out"])
def test_a_path_that_leaves_the_root_is_refused(root: StorageRoot, uri: str) -> None:
    (Path(root.location) / "out").symlink_to("/etc")
    with pytest.raises(UnsafePathError, match="the storage root"):
        root.path(uri)


def test_paths_below_the_root(root: StorageRoot, tmp_path: Path) -> None:
    assert root.path("models/p/j/1") == tmp_path / "storage/models/p/j/1"
    (tmp_path / "storage/in").symlink_to("models")
    assert root.path("in/x") == tmp_path / "storage/in/x"


def test_a_root_that_is_a_link_itself_is_fine(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "storage").symlink_to("disk")
    assert StorageRoot(tmp_path / "storage", bundles=tmp_path).path("a").parent == tmp_path / "storage"


def test_removing_can_be_repeated(root: StorageRoot, tmp_path: Path) -> None:
    folder = tmp_path / "storage/models/a"
    folder.mkdir(parents=True)
    (folder / "weights").write_text("")
    (folder / "up").symlink_to(tmp_path)
    for _ in range(2):
        root.remove("models/a")
        assert not folder.exists()
    assert tmp_path.exists()


def test_what_is_made_anew_while_the_old_is_removed_stays(
    root: StorageRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = root.path("sinks/p/s")
    (folder / "table").mkdir(parents=True)

    def slowly(path: Path) -> None:
        (folder / "table").mkdir(parents=True, exist_ok=True)
        (folder / "table" / "new").touch()
        rmtree(path)

    monkeypatch.setattr("gridmill.storage.root.rmtree", slowly)
    root.remove("sinks/p/s")
    assert (folder / "table" / "new").exists()
    assert list(folder.parent.iterdir()) == [folder]


def test_the_root_itself_is_not_removed(root: StorageRoot) -> None:
    for uri in ("", ".", "./"):
        with pytest.raises(UnsafePathError, match="itself"):
            root.remove(uri)


def test_free_bytes_of_a_root_that_is_not_there_yet(tmp_path: Path) -> None:
    assert StorageRoot(tmp_path / "not/yet", bundles=tmp_path).free_bytes() > 0


# sources


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in ("data/weather.csv", "data/2013/a.csv.gz", "data/2013/b.csv.gz", "data/notes.txt"):
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(b"a,b\n", mtime=0) if name.endswith("gz") else b"a,b\n")
    return tmp_path / "project"


def names(root: StorageRoot, data: Path, *path: str) -> list[str]:
    source = Source(path=path if len(path) > 1 else path[0])
    return [os.path.relpath(file.path, data) for file in root.describe_source(source, str(data))]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (["data/weather.csv"], ["data/weather.csv"]),
        (["data/*"], ["data/notes.txt", "data/weather.csv"]),
        (["data/**/*.csv*"], ["data/2013/a.csv.gz", "data/2013/b.csv.gz", "data/weather.csv"]),
        (["data/weather.csv", "data/*.csv"], ["data/weather.csv"]),
        (["./data/../data/weather.csv"], ["data/weather.csv"]),
    ],
)
def test_files_are_found_once_and_sorted(
    root: StorageRoot, data: Path, path: list[str], found: list[str]
) -> None:
    assert names(root, data, *path) == found


def test_a_file_is_described_by_size_and_time(root: StorageRoot, data: Path) -> None:
    os.utime(data / "data/weather.csv", ns=(5, 7))
    (file,) = root.describe_source(Source(path=str(data / "data/weather.csv")), "/elsewhere")
    assert (file.path, file.size_bytes, file.mtime_ns) == (str(data / "data/weather.csv"), 4, 7)


def test_a_name_with_glob_signs_can_be_a_file(root: StorageRoot, data: Path) -> None:
    (data / "data/[1].csv").write_text("")
    assert names(root, data, "data/[1].csv") == ["data/[1].csv"]


def test_files_of_a_package(root: StorageRoot) -> None:
    (file,) = root.describe_source(Source(path="package://gridmill/py.typ*"), "/")
    assert file.path.endswith("/gridmill/py.typed")


@pytest.mark.parametrize(
    ("path", "message", "hint"),
    [
        (
            "data/wether.csv",
            "source 'data/wether.csv' does not exist",
            "{data}/data contains weather.csv.",
        ),
        ("dta/weather.csv", "source 'dta/weather.csv' does not exist", "{data} contains data."),
        (
            "data/*.parquet",
            "source 'data/*.parquet' matches no file",
            "{data}/data contains 2013, notes.txt, weather.csv, but not *.parquet.",
        ),
        ("data", "'data' is a folder", "Name the files in it, for example data/*.csv."),
        (
            "ftp://b/x",
            "'ftp://b/x': the scheme ftp:// is not supported",
            "Use a file path, package://, http(s)://, s3:// or gs://, or for a database `sql`.",
        ),
        (
            "package://nothing_here/x",
            "no Python package 'nothing_here' is installed",
            "pip install nothing_here",
        ),
        ("package://gridmill", "'package://gridmill' is not of the form package://NAME/PATH", ""),
        ("package://gridmill/../x", "'package://gridmill/../x' leaves the package", "Name a file inside"),
    ],
)
def test_what_is_missing_is_said_with_what_is_near(
    root: StorageRoot, data: Path, path: str, message: str, hint: str
) -> None:
    with pytest.raises(InputError) as caught:
        root.describe_source(Source(path=path), str(data))
    assert message in caught.value.message
    assert hint.format(data=data) in caught.value.hint


# bundles


def test_bundles_are_kept_under_their_hash(root: StorageRoot, data: Path, tmp_path: Path) -> None:
    bundle = make_bundle(data, tmp_path / "cache")
    assert not root.has_bundle(bundle.hash)
    for _ in range(2):
        root.put_bundle(bundle.hash, bundle.path.read_bytes())
        assert root.has_bundle(bundle.hash)
    assert os.listdir(tmp_path / "bundles") == [f"{bundle.hash}.tar.gz"]


def test_a_bundle_with_another_hash_is_refused(root: StorageRoot, data: Path, tmp_path: Path) -> None:
    content = make_bundle(data, tmp_path / "cache").path.read_bytes()
    with pytest.raises(InputError, match="its hash is not"):
        root.put_bundle("0" * 64, content)
    for name in ("../../x", "", "0" * 63, "0" * 64 + "\n"):
        with pytest.raises(InputError, match="is not the hash"):
            root.put_bundle(name, content)


def test_a_bundle_that_cannot_be_written(data: Path, tmp_path: Path) -> None:
    (tmp_path / "bundles").write_text("a file")
    bundle = make_bundle(data, tmp_path / "cache")
    with pytest.raises(StorageError, match="cannot be written"):
        StorageRoot(tmp_path, bundles=tmp_path / "bundles").put_bundle(bundle.hash, bundle.path.read_bytes())


def test_links_are_followed_once_and_pipes_not_at_all(root: StorageRoot, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/b.csv").write_text("a\n1\n")
    (tmp_path / "in/a.csv").symlink_to("b.csv")
    (tmp_path / "in/loop").symlink_to(".")
    (tmp_path / "in/gone.csv").symlink_to("nowhere.csv")
    os.mkfifo(tmp_path / "in/pipe.csv")

    def names(*paths: str) -> list[str]:
        found = root.describe_source(Source(path=paths), str(tmp_path))
        return [str(Path(file.path).relative_to(tmp_path)) for file in found]

    assert names("in/**/*.csv") == names("in/*.csv") == ["in/b.csv"]
    assert names("in/a.csv", "in/b.csv") == ["in/a.csv", "in/b.csv"]
    (tmp_path / "via").symlink_to("in")
    assert names("via/**/*.csv") == names("via/*.csv") == ["via/b.csv"]
    (tmp_path / "in/a").symlink_to("own")
    (tmp_path / "in/own").mkdir()
    (tmp_path / "in/own/c.csv").write_text("a\n1\n")
    assert names("in/*/c.csv") == ["in/own/c.csv"]
    assert names("via/*/c.csv") == ["via/own/c.csv"]
    with pytest.raises(InputError, match=r"is a link to 'nowhere\.csv', which does not exist") as gone:
        names("in/gone.csv")
    assert gone.value.hint == "Change the link to an existing file, or name that file."
    with pytest.raises(InputError, match="is a pipe, a socket or a device, not a file") as pipe:
        names("in/pipe.csv")
    assert pipe.value.hint == "Write the data to a file, and name that file in the source."
