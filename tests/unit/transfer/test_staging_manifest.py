import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridmill import codec
from gridmill.domain.farm_protocol import FileEntry, Manifest
from gridmill.errors import ConflictError, InputError, NotFoundError, UnsafePathError
from gridmill.farm.unix_users import acting_as
from gridmill.transfer.chunk_manifest import CHUNK_BYTES, HashCache, scan, scan_files
from gridmill.transfer.paths import check_manifest, check_path, chunk_sizes, file_below, folder_below
from gridmill.transfer.stream import Chunk, Decoder, decode, encode, hash_of, size_bytes

LATER = 4_000_000_000 * 1_000_000_000  # in 2096


def named(data):
    return hash_of(data)


def tree(folder, files):
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def entry(path, data=b"x", chunk_bytes=4):
    chunks = tuple(named(data[at : at + chunk_bytes]) for at in range(0, len(data), chunk_bytes))
    return FileEntry(path=path, size_bytes=len(data), chunks=chunks)


def test_a_folder_is_its_files_in_order_each_in_chunks(tmp_path):
    files = {"b/two": b"0123456789", "a": b"abc", "b/empty": b""}
    manifest = scan(tree(tmp_path, files), chunk_bytes=4)
    assert manifest == Manifest(
        files=tuple(entry(path, files[path]) for path in ("a", "b/empty", "b/two")), chunk_bytes=4
    )
    check_manifest(manifest)
    assert chunk_sizes(manifest) == {named(b"abc"): 3, named(b"0123"): 4, named(b"4567"): 4, named(b"89"): 2}


def test_a_single_file_has_an_empty_path(tmp_path):
    manifest = scan(tree(tmp_path, {"a": b"abcde"}) / "a", chunk_bytes=4)
    assert manifest.files == (entry("", b"abcde"),)
    check_manifest(manifest)


def test_only_the_files_that_are_named(tmp_path):
    tree(tmp_path, {"a": b"1", "b/c": b"2", "b/d": b"3"})
    manifest = scan_files(tmp_path, ["b/c", "a", "a"], chunk_bytes=4)
    assert manifest.files == (entry("a", b"1"), entry("b/c", b"2"))
    with pytest.raises(NotFoundError, match="b/e"):
        scan_files(tmp_path, ["b/e"])
    with pytest.raises(UnsafePathError):
        scan_files(tmp_path / "b", ["../a"])


def test_what_cannot_travel_is_refused_by_its_place(tmp_path):
    with pytest.raises(NotFoundError, match="nothing"):
        scan(tmp_path / "nothing")
    for make, error in (
        (lambda path: path.symlink_to("/etc/passwd"), UnsafePathError),
        (lambda path: path.symlink_to("/etc"), UnsafePathError),
        (os.mkfifo, InputError),
        (lambda path: (path.parent / "back\\slash").write_text(""), UnsafePathError),
        (lambda path: Path(os.fsdecode(bytes(path.parent) + b"/\xff")).write_text(""), UnsafePathError),
    ):
        folder = tmp_path / f"case{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        make(folder / "odd")
        with pytest.raises(error):
            scan(folder)


def test_a_link_on_the_way_is_not_followed(tmp_path):
    tree(tmp_path, {"real/a": b"1"})
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(UnsafePathError, match="link"), file_below(tmp_path, "link/a"):
        pass
    with pytest.raises(UnsafePathError), folder_below(tmp_path, "link/new", make=True):
        pass
    assert not (tmp_path / "real/new").exists()


def test_what_is_unchanged_is_not_read_again(tmp_path):
    folder = tree(tmp_path / "tree", {"a": b"abc", "b": b"def"})
    cache = HashCache(tmp_path / "hashes", now_ns=lambda: LATER)
    first = scan(folder, cache=cache)
    kept = tmp_path / "hashes"
    kept.write_bytes(kept.read_bytes().replace(named(b"abc").encode(), b"0" * 64))
    assert scan(folder, cache=cache).files[0].chunks == ("0" * 64,)  # believed, so not read
    (folder / "a").write_bytes(b"abd")
    assert scan(folder, cache=cache).files == (entry("a", b"abd"), first.files[1])
    kept.write_bytes(b"nonsense")
    assert scan(folder, cache=cache).files == (entry("a", b"abd"), first.files[1])


def test_a_file_that_was_written_over_is_read_again_whatever_time_it_has(tmp_path):
    folder = tree(tmp_path / "tree", {"a": b"abc", "b": b"abc"})
    cache = HashCache(tmp_path / "hashes", now_ns=lambda: LATER)
    scan(folder, cache=cache)
    for name in ("a", "b"):
        was = (folder / name).stat()
        if name == "b":
            tree(tmp_path, {"new": b"xyz"})
            (tmp_path / "new").replace(folder / name)
            os.utime(folder / name, ns=(was.st_atime_ns, was.st_mtime_ns))
        while (folder / name).stat().st_ctime_ns == was.st_ctime_ns:  # a tick of the clock is milliseconds
            (folder / name).write_bytes(b"xyz")
            os.utime(folder / name, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert scan(folder, cache=cache).files == (
        entry("a", b"xyz", CHUNK_BYTES),
        entry("b", b"xyz", CHUNK_BYTES),
    )


def test_a_file_that_has_just_changed_is_read_again(tmp_path):
    folder = tree(tmp_path / "tree", {"a": b"abc"})
    changed = (folder / "a").stat().st_ctime_ns
    cache = HashCache(tmp_path / "hashes", now_ns=lambda: changed + 1_000_000_000)
    scan(folder, cache=cache)
    cache.open(8)
    assert cache.look("a", (folder / "a").stat()) is None


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    folder = tree(tmp_path / "tree", {"a": b"abc"})

    class Meddler(HashCache):
        def look(self, path, stat):
            (folder / "a").write_bytes(b"longer than before")

    with pytest.raises(ConflictError, match="changed"):
        scan(folder, cache=Meddler(tmp_path / "hashes"))


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "a/../b",
        "./a",
        "a\\b",
        "a\0b",
        "\ud800",
        "a" * 256,
        "a/" * 2100 + "a",
    ],
)
def test_paths_that_lead_elsewhere(path):
    with pytest.raises(UnsafePathError):
        check_path(path)


@given(st.text(st.sampled_from("ab./\\\0é"), max_size=12))
def test_a_path_that_passes_stays_below(path):
    try:
        check_path(path)
    except UnsafePathError:
        return
    assert os.path.normpath(f"/root/{path}") == f"/root/{path}"


@pytest.mark.parametrize(
    "files",
    [
        [entry("a"), entry("a")],
        [entry("a"), entry("a/b")],
        [entry("a/b/c"), entry("a/b")],
        [entry(""), entry("b")],
        [entry("../a")],
        [FileEntry(path="a", size_bytes=5, chunks=(named(b"x"),))],
        [FileEntry(path="a", size_bytes=-1, chunks=())],
        [FileEntry(path="a", size_bytes=1, chunks=("../../x",))],
        [FileEntry(path="a", size_bytes=1, chunks=(named(b"x").upper(),))],
    ],
)
def test_manifests_that_are_refused(files):
    with pytest.raises(InputError):
        check_manifest(Manifest(files=tuple(files), chunk_bytes=4))


def test_chunks_of_a_size_that_is_refused():
    for size in (0, -1, 1 << 40):
        with pytest.raises(InputError, match="chunk size of"):
            check_manifest(Manifest(files=(), chunk_bytes=size))


CONTENTS = st.lists(st.binary(max_size=40), max_size=6)


@given(CONTENTS, st.integers(1, 50))
def test_frames_arrive_however_they_are_cut(contents, cut):
    chunks = [Chunk(hash=named(data), data=data) for data in contents]
    sent = b"".join(encode(chunks))
    assert len(sent) == size_bytes(chunks)
    assert list(decode(sent[at : at + cut] for at in range(0, len(sent), cut))) == chunks


@given(CONTENTS, st.data())
def test_frames_that_are_cut_off_are_refused(contents, data):
    sent = b"".join(encode([Chunk(hash=named(data), data=data) for data in contents]))
    ends = {0}
    for content in contents:
        ends.add(max(ends) + 72 + len(content))
    at = data.draw(st.integers(0, len(sent)))
    decoder = Decoder()
    decoder.feed(sent[:at])
    if at in ends:
        decoder.end()
    else:
        with pytest.raises(InputError, match="middle"):
            decoder.end()


@given(st.binary(min_size=72, max_size=100))
def test_noise_is_no_frame(noise):
    with pytest.raises(InputError):
        list(decode([noise]))


def test_a_frame_that_is_too_large_is_refused_before_it_arrives():
    head = next(encode([Chunk(hash=named(b""), data=b"x" * 11)]))
    with pytest.raises(InputError, match="11 bytes"):
        Decoder(largest_bytes=10).feed(head)


def test_a_manifest_travels_as_json(tmp_path):
    manifest = scan(tree(tmp_path, {"a": b"1"}))
    assert codec.decode(codec.encode(manifest), Manifest) == manifest


def test_a_scan_without_a_cache_writes_nothing(tmp_path):
    folder = tree(tmp_path / "tree", {"a": b"abc"})
    os.utime(folder / "a", (0, 0))
    cache = HashCache(None, now_ns=lambda: LATER)  # all has settled: with a file it would be kept
    assert scan(folder, cache=cache) == scan(folder)
    assert sorted(tmp_path.rglob("*")) == [folder, folder / "a"]
    assert not os.path.isfile(os.devnull)


def test_a_file_that_may_not_be_read_is_no_trouble_of_the_disk(tmp_path):
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        folder.chmod(0o755)
        (folder / "secret").write_text("x")
        (folder / "secret").chmod(0)
        nobody = 65534 if os.geteuid() == 0 else None
        with acting_as(nobody), pytest.raises(InputError, match="secret: cannot be read: Permission denied"):
            scan(folder)
    finally:
        shutil.rmtree(folder)


def test_where_hashes_cannot_be_kept_it_is_scanned_all_the_same(tmp_path):
    (tmp_path / "file").write_text("no folder")
    root = tree(tmp_path / "from", {"a": b"1"})
    cache = HashCache(tmp_path / "file/hashes", now_ns=lambda: LATER)
    assert scan(root, cache=cache) == scan(root)
