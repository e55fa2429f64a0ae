"""What a farm says of trees that take long to read, and what it forgets of an attempt."""

import os
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from gridmill import codec
from gridmill.domain.amounts import Amounts
from gridmill.domain.farm_protocol import FileEntry, Manifest, PlaceTree
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.service_log import LOG_FOLDER, READY_FOLDER, writer_of
from gridmill.errors import InputError, NotFoundError, UnavailableError
from gridmill.farm.deployment import AttemptRecord
from gridmill.farm.files import TenantFiles, TreeScans
from gridmill.farm.store import RecordStore
from gridmill.transfer.chunk_manifest import CHUNK_BYTES, HASH, HashCacheFile, seen
from gridmill.transfer.stream import Chunk, hash_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/out").mkdir(parents=True)
    (tmp_path / "root/out/file").write_text("what it made")
    return tmp_path / "root"


def kept_at(folder: Path) -> Path:
    folder.mkdir()
    return folder / f"{sha256(b'out').hexdigest()}.json"


def asked_until_told(scans: TreeScans) -> Manifest:
    while True:
        try:
            return scans.scan("out")
        except UnavailableError:
            continue


def test_a_tree_that_takes_long_is_not_known_yet_and_read_once(root: Path, tmp_path: Path) -> None:
    slow = kept_at(tmp_path / "hashes")
    os.mkfifo(slow)  # whoever reads what was kept waits here
    scans = TreeScans(root, tmp_path / "hashes", None, patience_seconds=0.01)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="still being read"):
            scans.scan("out")
    slow.write_bytes(b"")  # for one reader
    assert [file.path for file in asked_until_told(scans).files] == ["file"]


def test_what_a_file_hashed_to_is_not_read_again(root: Path, tmp_path: Path) -> None:
    looked = (root / "out/file").stat()
    kept = HashCacheFile(hash=HASH, chunk_bytes=CHUNK_BYTES, files={"file": (seen(looked), ("0" * 64,))})
    kept_at(tmp_path / "hashes").write_bytes(codec.encode(kept))
    (file,) = TreeScans(root, tmp_path / "hashes", None).scan("out").files
    assert file.chunks == ("0" * 64,)


def test_what_fails_is_told_and_tried_again(root: Path, tmp_path: Path) -> None:
    scans = TreeScans(root, tmp_path / "hashes", None)
    with pytest.raises(NotFoundError):
        scans.scan("later")
    (root / "later").mkdir()
    assert scans.scan("later").files == ()


def test_what_nobody_asks_about_again_holds_up_no_other(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gridmill.farm.files.MOST_WAITING", 1)
    slow = kept_at(tmp_path / "hashes")
    os.mkfifo(slow)
    scans = TreeScans(root, tmp_path / "hashes", None, patience_seconds=0.0)
    with pytest.raises(UnavailableError, match="still being read"):
        scans.scan("out")
    with pytest.raises(UnavailableError, match="which is the limit"):
        scans.scan("later")
    slow.write_bytes(b"")
    (root / "later").mkdir()
    while True:  # until that one is read
        try:
            assert scans.scan("later").files == ()
            return
        except UnavailableError:
            continue


def test_of_trees_that_nobody_names_little_is_kept(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gridmill.farm.files.MOST_KEPT", 1)
    newest = kept_at(tmp_path / "hashes")
    for at, path in enumerate((newest, *(newest.with_name(f"{one}.json") for one in "abc"))):
        path.touch()
        os.utime(path, (1e9 - at, 1e9 - at))
    TreeScans(root, tmp_path / "hashes", None).scan("out")
    assert list((tmp_path / "hashes").glob("*.json")) == [newest]


def order(attempt: str) -> AttemptOrder:
    return AttemptOrder(
        attempt_id=attempt,
        token="t",
        run_id="r",
        pipeline="p",
        job=Job(name="j", command=CommandSpec(run="true")),
        given=Amounts(cpus=1, memory_bytes=1),
        root="",
        output_uri="out",
        checkpoint_uri="checkpoints/j.g",
    )


@pytest.fixture
def records(tmp_path: Path) -> RecordStore:
    return RecordStore(tmp_path / "records.db")


@pytest.fixture
def carried(root: Path, tmp_path: Path, records: RecordStore) -> TenantFiles:
    made = TenantFiles("home", root, tmp_path / "chunks", 2**20, None, records=records, now=lambda: 1.0)
    (root / "checkpoints/j.g").mkdir(parents=True)
    (root / "checkpoints/j.g/epoch").write_text("3")
    for rank in "01":
        made.started(f"d.{rank}", order(f"a.{rank}"))
    return made


def files(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


def test_nothing_is_left_of_the_last_attempt(carried: TenantFiles, records: RecordStore, root: Path) -> None:
    carried.delete_attempt("a.1")
    assert files(root) == ["epoch", "file"]
    carried.delete_attempt("a.0")
    assert files(root) == []
    assert records.all(AttemptRecord) == ()


def test_what_is_replaced_is_not_given_for_what_it_was(carried: TenantFiles) -> None:
    (before,) = carried.scan("out").files
    after = Chunk(hash=hash_of(b"other"), data=b"other")
    carried.store.send([after])
    entry = FileEntry(path="file", size_bytes=5, chunks=(after.hash,))
    place = PlaceTree(uri="out", manifest=Manifest(files=(entry,), chunk_bytes=CHUNK_BYTES), attempt_id="b")
    assert carried.place(place) == ()
    with pytest.raises(NotFoundError):
        carried.fetch(before.chunks)


def test_what_is_read_next_is_kept(carried: TenantFiles) -> None:
    (file,) = carried.scan("out").files
    carried.delete_attempt("a.1")
    carried.delete_attempt("a.0", keep=True)
    assert [chunk.data for chunk in carried.fetch(file.chunks)] == [b"what it made"]


def test_what_is_let_go_of_takes_nothing_more(carried: TenantFiles, root: Path) -> None:
    before = files(root)
    chunk = Chunk(hash=hash_of(b"late"), data=b"late")
    carried.send([chunk])
    entry = FileEntry(path="file", size_bytes=4, chunks=(chunk.hash,))
    place = PlaceTree(uri="in", manifest=Manifest(files=(entry,), chunk_bytes=CHUNK_BYTES), attempt_id="b")
    carried.close()
    with pytest.raises(UnavailableError, match="closing the files"):
        carried.send([Chunk(hash=hash_of(b"later"), data=b"later")])
    with pytest.raises(UnavailableError, match="closing the files"):
        carried.place(place)
    assert files(root) == before
    assert carried.store.missing([hash_of(b"later")]) == (hash_of(b"later"),)


def test_what_is_placed_while_empty_folders_go_is_there(carried: TenantFiles, root: Path) -> None:
    chunk = Chunk(hash=hash_of(b"read"), data=b"read")
    manifest = Manifest(
        files=(FileEntry(path="file", size_bytes=4, chunks=(chunk.hash,)),), chunk_bytes=CHUNK_BYTES
    )

    def tidy() -> None:
        for _ in range(9):
            carried.delete_draft("b")
            carried.tidy()

    carried.store.send([chunk])
    with ThreadPoolExecutor(1) as pool:
        for number in range(40):
            tidied = pool.submit(tidy)
            place = PlaceTree(uri=f"x/y/{number}/z", manifest=manifest, attempt_id=f"a{number}")
            assert carried.place(place) == ()
            tidied.result()
            assert (root / place.uri / "file").read_text() == "read"
            carried.delete_attempt(place.attempt_id)
    carried.delete_draft("b")
    carried.tidy()
    assert not (root / "x").exists()


def test_what_could_not_be_tidied_is_tidied_another_time(
    carried: TenantFiles, root: Path, tmp_path: Path
) -> None:
    (root / "empty").mkdir()
    carried.delete_draft("b")
    (tmp_path / "chunks/placed").rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        carried.tidy()
    (tmp_path / "away").rename(tmp_path / "chunks/placed")
    carried.tidy()
    assert not (root / "empty").exists()


def test_log_files_that_the_home_has_are_deleted_and_no_other_files(carried: TenantFiles, root: Path) -> None:
    log, writer = root / "out" / LOG_FOLDER, writer_of("a.0", "t")
    (log / READY_FOLDER).mkdir(parents=True)
    taken, other = f"rows-{writer}-0-7.jsonl", f"rows-{writer}-0-8.jsonl"
    for name in (taken, other):
        (log / READY_FOLDER / name).write_text("1\n")
    (log / f"rows-{writer}-0.part").write_text("2\n")
    for _ in range(2):
        carried.delete_log_files("a.0", [taken, f"rows-{writer}-0.part"])
        assert files(root) == sorted(["epoch", "file", other])
    for wrong in ("file", "../file", f"../../{other}", ""):
        with pytest.raises(InputError, match="is not the name of a log file"):
            carried.delete_log_files("a.0", [other, wrong])
    with pytest.raises(NotFoundError):
        carried.delete_log_files("b.0", [other])
    assert files(root) == sorted(["epoch", "file", other])
