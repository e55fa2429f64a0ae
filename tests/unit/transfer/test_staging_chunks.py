import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.unit.transfer.test_staging_manifest import named, tree

from gridmill import codec
from gridmill.domain.farm_protocol import FileEntry, Manifest
from gridmill.errors import (
    CapacityError,
    ConflictError,
    DataError,
    InputError,
    NotFoundError,
    StorageError,
    UnsafePathError,
)
from gridmill.transfer.chunk_manifest import scan
from gridmill.transfer.chunk_store import ChunkStore
from gridmill.transfer.durable import SEALED_NS
from gridmill.transfer.stream import Chunk
from gridmill.transfer.tree_writer import TreeCheckout


def chunk(data):
    return Chunk(hash=named(data), data=data)


A, B, C = (chunk(data) for data in (b"aaaa", b"bbbb", b"cccc"))


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_chunks_are_there_after_it_is_opened_again(tmp_path):
    store = ChunkStore(tmp_path, 100)
    assert store.missing([A.hash, B.hash, A.hash]) == (A.hash, B.hash)
    store.send([A, B, A])
    store.send([B])
    again = ChunkStore(tmp_path, 100)
    assert again.missing([A.hash, B.hash, C.hash]) == (C.hash,)
    assert list(again.fetch([B.hash, A.hash])) == [B, A]
    assert store.size_bytes == again.size_bytes == 8
    with pytest.raises(NotFoundError):
        list(again.fetch([C.hash]))


def test_a_damaged_chunk_is_not_kept_nor_what_came_with_it(tmp_path):
    store = ChunkStore(tmp_path, 100)
    with pytest.raises(DataError, match=B.hash):
        store.send([A, Chunk(hash=B.hash, data=b"bbbx")])
    with pytest.raises(InputError):
        store.send([Chunk(hash="../../etc/passwd", data=b"")])
    assert files(tmp_path) == []
    assert store.size_bytes == 0


def test_the_least_recently_used_goes(tmp_path):
    store = ChunkStore(tmp_path, 8)
    store.send([A])
    store.send([B])
    for one, used_ns in ((A, 10**15), (B, 2 * 10**15)):
        os.utime(store.path(one.hash), ns=(used_ns, SEALED_NS))  # long ago
    store.missing([A.hash])
    store = ChunkStore(tmp_path, 8)  # the order is known after a restart
    store.send([C])
    assert store.missing([A.hash, B.hash, C.hash]) == (B.hash,)
    assert store.size_bytes == 8


def test_it_knows_the_order_of_use_without_a_restart_too(tmp_path):
    store = ChunkStore(tmp_path, 8)
    store.send([A, B])
    store.missing([A.hash])
    store.send([C])
    assert store.missing([A.hash, B.hash, C.hash]) == (B.hash,)


def test_what_was_half_written_goes_when_it_is_opened(tmp_path):
    draft = ChunkStore(tmp_path, 8).drafts / "draft"
    draft.write_bytes(b"aa")
    store = ChunkStore(tmp_path, 8)
    assert not draft.exists()
    tree(store.drafts, {"trees/draft/a": b"aa"})
    TreeCheckout(tmp_path / "root", store)
    assert files(tmp_path) == []


def test_what_is_pinned_stays(tmp_path):
    ChunkStore(tmp_path, 8).pin("p-1.t.1", [A.hash, B.hash])
    store = ChunkStore(tmp_path, 8)
    store.send([A, B])
    with pytest.raises(StorageError, match="in use"):
        store.send([C])
    assert store.missing([A.hash, B.hash]) == ()
    store.pin("p-2.t.1", [B.hash])
    store.unpin("p-1.t.1")
    store.unpin("p-1.t.1")
    store.send([C])
    assert ChunkStore(tmp_path, 8).missing([A.hash, B.hash, C.hash]) == (A.hash,)
    with pytest.raises(UnsafePathError):
        store.pin("../x", [])


def test_threads_may_send_the_same(tmp_path):
    store = ChunkStore(tmp_path, 1000)
    chunks = [chunk(bytes([number]) * 4) for number in range(40)]
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(store.send, chunks[at % 7 :]) for at in range(20)]:
            done.result()
    assert store.missing(one.hash for one in chunks) == ()
    assert store.size_bytes == 160
    assert not list(store.drafts.iterdir())


def test_room_is_kept_for_what_comes_only_while_it_comes(tmp_path):
    store = ChunkStore(tmp_path, 12)
    store.pin("t.1", [A.hash, B.hash, C.hash])
    store.drafts.rmdir()
    with pytest.raises(StorageError):
        store.send([A, B])
    store.drafts.mkdir()
    store.send([A, B])
    store.send([C])
    assert store.missing([A.hash, B.hash, C.hash]) == ()


def test_what_cannot_be_named_leaves_nothing(tmp_path):
    store = ChunkStore(tmp_path, 8)
    (tmp_path / "chunks").rmdir()
    with pytest.raises(StorageError):
        store.send([A, B])
    assert list(store.drafts.iterdir()) == []
    (tmp_path / "chunks").mkdir()
    store.send([A, B])
    assert store.missing([A.hash, B.hash]) == ()


def test_a_folder_that_was_left_empty_goes_when_it_is_opened(tmp_path):
    ChunkStore(tmp_path, 8).send([A])
    (lot,) = (tmp_path / "chunks").iterdir()
    (lot / A.hash).unlink()
    ChunkStore(tmp_path, 8)
    assert not lot.exists()


def test_chunks_that_were_kept_by_their_first_letters_are_there(tmp_path):
    ChunkStore(tmp_path, 100).send([A])
    (lot,) = (tmp_path / "chunks").iterdir()
    lot.rename(lot.with_name(A.hash[:2]))  # as earlier versions did
    store = ChunkStore(tmp_path, 100)
    assert store.missing([A.hash]) == ()
    assert list(store.fetch([A.hash])) == [A]


def test_a_folder_goes_with_the_last_chunk_in_it(tmp_path):
    store = ChunkStore(tmp_path, 8)
    store.send([A, B])
    store.send([C])
    assert store.missing([A.hash, B.hash, C.hash]) == (A.hash,)
    store.send([A])
    assert len(list((tmp_path / "chunks").iterdir())) == 2


def test_a_chunk_that_somebody_took_away_is_missing(tmp_path):
    store = ChunkStore(tmp_path, 100)
    store.send([A])
    store.path(A.hash).unlink()
    assert store.missing([A.hash]) == (A.hash,)
    store.send([A])
    assert store.size_bytes == 4


KILLED = """
import sys
from pathlib import Path
from gridmill.transfer.chunk_store import ChunkStore
from gridmill.transfer.stream import Chunk, hash_of
store = ChunkStore(Path(sys.argv[1]), 1 << 40)
print("on", flush=True)
number = 0
while True:
    number += 1
    data = [bytes([number % 251, at]) * 50_000 for at in range(8)]
    store.send([Chunk(hash=hash_of(one), data=one) for one in data])
    if number == int(sys.argv[2]):
        print("there", flush=True)
"""


@pytest.mark.parametrize("number", [1, 3])
def test_killed_at_any_moment_it_holds_whole_chunks(tmp_path, number):
    with subprocess.Popen(
        (sys.executable, "-c", KILLED, str(tmp_path), str(number)), stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"on\n"
        assert process.stdout.readline() == b"there\n"
        process.send_signal(signal.SIGKILL)
    store = ChunkStore(tmp_path, 1 << 40)
    assert not list(store.drafts.iterdir())
    kept = [path.name for path in (tmp_path / "chunks").rglob("*") if path.is_file()]
    assert len(kept) >= 8 * number
    for one in store.fetch(kept):
        one.check()


FULL = """
import os, subprocess, sys
from pathlib import Path
from gridmill.errors import StorageError
from gridmill.transfer.chunk_store import ChunkStore
from gridmill.transfer.stream import Chunk, hash_of
from gridmill.transfer.tree_writer import TreeCheckout
from gridmill.domain.farm_protocol import FileEntry, Manifest
where = Path(sys.argv[1])
subprocess.run(("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(where)), check=True)
store = ChunkStore(where / "store", 1 << 30)
one = bytes(3 << 20)
name = hash_of(one)
def refused(act):
    before = os.statvfs(where).f_bavail
    try:
        act()
    except StorageError as error:
        assert "No space" in str(error), error
        left = [path for path in where.rglob("*") if "drafts" in path.parts and path.is_file()]
        assert not left, left
    else:
        raise AssertionError("it went in")
store.send([Chunk(hash=name, data=one)])
other = b"x" * (2 << 20)
refused(lambda: store.send([Chunk(hash=hash_of(other), data=other)]))
assert store.size_bytes == 3 << 20
placer = TreeCheckout(where / "root", store)
manifest = Manifest(files=(FileEntry(path="a", size_bytes=3 << 20, chunks=(name,)),), chunk_bytes=8 << 20)
refused(lambda: placer.place("x", manifest, "t.1", writable=True))
assert not (where / "root" / "x").exists()
placer.place("x", manifest, "t.1")
assert (where / "root/x/a").stat().st_size == 3 << 20
"""


def test_a_full_disk_leaves_nothing_half_written(tmp_path):
    apart = ("unshare", "--mount", "--map-root-user", "--user")
    if subprocess.run((*apart, "true"), capture_output=True, check=False).returncode:
        pytest.skip("needs mount namespaces: run as root, or allow them to users")
    done = subprocess.run(
        (*apart, sys.executable, "-c", FULL, str(tmp_path)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


FILES = {"a": b"0123456789", "b/c": b"abc", "b/d/e": b"", "b/d/f": b"abc"}


def placed(tmp_path, *, quota=1000, **more):
    store = ChunkStore(tmp_path / "store", quota)
    return store, TreeCheckout(tmp_path / "root", store, **more)


def give(store, folder, chunk_bytes=4):
    manifest = scan(folder, chunk_bytes=chunk_bytes)
    for one in manifest.files:
        data = (folder / one.path).read_bytes()
        store.send([chunk(data[at : at + chunk_bytes]) for at in range(0, len(data), chunk_bytes)])
    return manifest


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_tree_is_made_once_all_its_chunks_are_there(tmp_path):
    store, placer = placed(tmp_path)
    manifest = scan(tree(tmp_path / "from", FILES), chunk_bytes=4)
    lacking = placer.place("sets/x", manifest, "t.1")
    assert lacking == tuple(named(data) for data in (b"0123", b"4567", b"89", b"abc"))
    assert contents(tmp_path / "root") == {}
    give(store, tmp_path / "from")
    assert placer.place("sets/x", manifest, "t.1") == ()
    assert contents(tmp_path / "root/sets/x") == FILES
    assert scan(tmp_path / "root/sets/x", chunk_bytes=4) == manifest
    assert not list((tmp_path / "store/drafts/trees").iterdir())


def test_the_same_again_is_only_looked_at(tmp_path):
    store, placer = placed(tmp_path)
    manifest = give(store, tree(tmp_path / "from", FILES))
    placer.place("x", manifest, "t.1")
    made = (tmp_path / "root/x").stat().st_ino
    placer.place("x", manifest, "t.2")
    assert TreeCheckout(tmp_path / "root", store).place("x", manifest, "t.2") == ()
    assert (tmp_path / "root/x").stat().st_ino == made
    assert [one.owners for one in placer.placed()] == [("t.1", "t.2")]


def test_small_files_are_links_and_cannot_be_changed_but_writable_ones(tmp_path):
    store, placer = placed(tmp_path)
    manifest = give(store, tree(tmp_path / "from", FILES))
    placer.place("x", manifest, "t.1")
    placer.place("y", manifest, "t.1", writable=True)
    assert (tmp_path / "root/x/b/c").stat().st_ino == store.path(named(b"abc")).stat().st_ino
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "root/x").rglob("*") if path.is_file()} == {
        0o444
    }
    (tmp_path / "root/y/b/c").write_bytes(b"mine")
    assert contents(tmp_path / "root/x") == FILES
    placer.place("y", manifest, "t.1", writable=True)
    assert contents(tmp_path / "root/y") == FILES


def test_a_single_file_and_an_empty_folder(tmp_path):
    store, placer = placed(tmp_path)
    one = give(store, tree(tmp_path / "from", {"a": b"12345"}) / "a")
    assert one.files[0].path == ""
    placer.place("models/m", one, "t.1")
    placer.place("models/n", one, "t.1", writable=True)
    assert contents(tmp_path / "root") == {"models/m": b"12345", "models/n": b"12345"}
    placer.place("none", Manifest(files=(), chunk_bytes=4), "t.1")
    assert list((tmp_path / "root/none").iterdir()) == []


def test_other_content_replaces_what_nobody_else_uses(tmp_path):
    store, placer = placed(tmp_path)
    old = give(store, tree(tmp_path / "old", FILES))
    new = give(store, tree(tmp_path / "new", {"a": b"new"}))
    placer.place("x", old, "t.1")
    for uri in ("x", "x/b"):
        with pytest.raises(ConflictError, match="uses x with other content"):
            placer.place(uri, new, "t.2")
    placer.place("x", new, "t.1")
    assert contents(tmp_path / "root/x") == {"a": b"new"}
    (tmp_path / "root/x/b").write_bytes(b"stray")
    placer.place("x", new, "t.1")
    assert contents(tmp_path / "root/x") == {"a": b"new"}


def test_released_by_its_last_attempt_a_tree_goes(tmp_path):
    store, placer = placed(tmp_path)
    manifest = give(store, tree(tmp_path / "from", FILES))
    placer.place("x", manifest, "t.1")
    placer.place("x", manifest, "t.2")
    placer.release("t.1")
    placer.release("t.1")
    assert contents(tmp_path / "root/x") == FILES
    placer.release("t.2")
    assert not (tmp_path / "root/x").exists()
    assert placer.placed() == ()
    assert not list((tmp_path / "store/pins").iterdir())


def test_what_came_there_otherwise_is_not_removed(tmp_path):
    store, placer = placed(tmp_path)
    manifest = give(store, tree(tmp_path / "from", FILES))
    placer.place("x", manifest, "t.1")
    (tmp_path / "root/x").rename(tmp_path / "root/z")
    tree(tmp_path / "root/x", {"mine": b"1"})
    placer.release("t.1")
    assert contents(tmp_path / "root/x") == {"mine": b"1"}


def test_no_link_leads_it_elsewhere(tmp_path):
    store, placer = placed(tmp_path)
    manifest = give(store, tree(tmp_path / "from", FILES))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root/sets").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafePathError, match="link"):
        placer.place("sets/x", manifest, "t.1")
    (tmp_path / "root/x").symlink_to(tmp_path / "elsewhere")
    placer.place("x", manifest, "t.1")
    assert contents(tmp_path / "elsewhere") == {}
    assert contents(tmp_path / "root/x") == FILES


def test_chunks_of_another_size_than_said_are_refused(tmp_path):
    store, placer = placed(tmp_path)
    store.send([A])
    for writable in (False, True):
        manifest = Manifest(files=(FileEntry(path="a", size_bytes=3, chunks=(A.hash,)),), chunk_bytes=4)
        with pytest.raises(InputError, match="4 bytes, not the announced 3"):
            placer.place("x", manifest, "t.1", writable=writable)
    assert contents(tmp_path / "root") == {}
    assert not list((tmp_path / "store/drafts/trees").iterdir())


def test_more_than_the_quota_is_refused_at_once(tmp_path):
    _, placer = placed(tmp_path, quota=5)
    with pytest.raises(CapacityError, match="quota"):
        placer.place("x", scan(tree(tmp_path / "from", FILES), chunk_bytes=4), "t.1")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away: run as root")
def test_folders_and_writable_files_are_the_users(tmp_path):
    store, placer = placed(tmp_path, user=(4321, 4321))
    manifest = give(store, tree(tmp_path / "from", FILES))
    placer.place("sets/x", manifest, "t.1", writable=True)
    made = [tmp_path / "root/sets", *(tmp_path / "root/sets").rglob("*")]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(4321, 4321)}


PLACED = """
import sys
from pathlib import Path
from gridmill import codec
from gridmill.domain.farm_protocol import Manifest
from gridmill.transfer.chunk_store import ChunkStore
from gridmill.transfer.tree_writer import TreeCheckout
store = ChunkStore(Path(sys.argv[1]) / "store", 1 << 40)
placer = TreeCheckout(Path(sys.argv[1]) / "root", store)
manifests = [codec.decode(line, Manifest) for line in Path(sys.argv[2]).read_bytes().splitlines()]
print("on", flush=True)
while True:
    for manifest in manifests:
        placer.place("x", manifest, "t.1")
        print("there", flush=True)
"""


def test_killed_at_any_moment_a_tree_is_whole_or_absent(tmp_path):
    store = ChunkStore(tmp_path / "store", 1 << 40)
    trees = [{f"f{at}": bytes([at, one]) * 9 for at in range(50)} for one in (1, 2)]
    manifests = [give(store, tree(tmp_path / f"from{at}", files)) for at, files in enumerate(trees)]
    (tmp_path / "manifests").write_bytes(b"\n".join(map(codec.encode, manifests)))
    command = (sys.executable, "-c", PLACED, str(tmp_path), str(tmp_path / "manifests"))
    for rounds in (1, 2, 7):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            for _ in range(1 + rounds):
                assert process.stdout.readline()
            process.send_signal(signal.SIGKILL)
        there = tmp_path / "root/x"
        assert not there.exists() or contents(there) in trees
        placer = TreeCheckout(tmp_path / "root", ChunkStore(tmp_path / "store", 1 << 40))
        assert placer.place("x", manifests[0], "t.1") == ()
        assert contents(there) == trees[0]
