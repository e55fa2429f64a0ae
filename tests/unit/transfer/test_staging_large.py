"""Large files come chunk by chunk, are written once, and are whole or not there."""

import errno
import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.unit.transfer.test_staging_chunks import chunk, contents, placed
from tests.unit.transfer.test_staging_manifest import named, tree

from gridmill import codec
from gridmill.domain.farm_protocol import FileEntry, Manifest
from gridmill.errors import DataError, InputError, StorageError
from gridmill.transfer.chunk_manifest import scan
from gridmill.transfer.chunk_store import ChunkStore
from gridmill.transfer.durable import seal
from gridmill.transfer.engine import ScannedTree, pull, push
from gridmill.transfer.stream import ChunkStream
from gridmill.transfer.tree_writer import TreeCheckout

LETTERS = b"abcdefghijklmnopqrstuvwxyz"
FILES = {"large": LETTERS, "small": b"abcd", "none": b"", "again": LETTERS}


def chunks(data, size=4):
    return [chunk(data[at : at + size]) for at in range(0, len(data), size)]


def single(tmp_path):
    return sorted(path.name for path in (tmp_path / "store/chunks").rglob("*") if path.is_file())


def test_it_is_written_once_and_linked(tmp_path):
    store, placer = placed(tmp_path)
    root = tree(tmp_path / "from", FILES)
    manifest = scan(root, chunk_bytes=4)
    assert set(placer.place("x", manifest, "t.1")) == {one.hash for one in chunks(LETTERS)}
    push(manifest, root, store)
    assert placer.place("x", manifest, "t.1") == ()
    assert contents(tmp_path / "root/x") == FILES
    assert single(tmp_path) == [named(b"abcd")]  # that of the small file
    (kept,) = (tmp_path / "store/large").iterdir()
    assert {os.stat(tmp_path / "root/x" / name).st_ino for name in ("large", "again")} == {kept.stat().st_ino}
    assert kept.stat().st_mode & 0o777 == 0o444
    assert store.size_bytes == len(LETTERS) + 4
    assert [one.data for one in store.fetch(manifest.files[1].chunks)] == [
        one.data for one in chunks(LETTERS)
    ]
    again = ChunkStore(tmp_path / "store", 1000)
    assert (again.expect(manifest), again.size_bytes) == ((), store.size_bytes)


def test_chunks_come_in_any_order_and_several_times(tmp_path):
    store, placer = placed(tmp_path, quota=1 << 20)
    data = {name: os.urandom(5000) for name in ("a", "b")}
    data["c"] = data["a"] + data["b"]
    manifest = scan(tree(tmp_path / "from", data), chunk_bytes=100)
    placer.place("x", manifest, "t.1")
    coming = 3 * [one for name in ("a", "b") for one in chunks(data[name], 100)]
    random.Random(1).shuffle(coming)
    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(store.send, [one]) for one in coming]:
            done.result()
    assert placer.place("x", manifest, "t.1") == ()
    assert contents(tmp_path / "root/x") == data
    assert single(tmp_path) == []


def test_what_arrived_before_a_kill_is_known_by_its_hash(tmp_path):
    store, placer = placed(tmp_path)
    manifest = scan(tree(tmp_path / "from", {"large": LETTERS}), chunk_bytes=4)
    placer.place("x", manifest, "t.1")
    a, b, c, *others = chunks(LETTERS)
    store.send([a, c])
    again = ChunkStore(tmp_path / "store", 1000)
    again.send([b])  # the transfer goes on before anybody has looked
    (coming,) = (tmp_path / "store/coming").iterdir()
    with coming.open("r+b") as file:
        file.write(b"_")  # as after a power failure
    again = ChunkStore(tmp_path / "store", 1000)
    placer = TreeCheckout(tmp_path / "root", again)
    assert placer.place("x", manifest, "t.1") == (a.hash, *(one.hash for one in others))
    again.send([a, *others])
    assert placer.place("x", manifest, "t.1") == ()
    assert contents(tmp_path / "root") == {"x/large": LETTERS}


def flow(name, pieces):
    return ChunkStream(hash=name.hash, size_bytes=len(name.data), pieces=iter(pieces))


def expecting(tmp_path, data=LETTERS):
    """A store and a placer that lack a file's chunks of four bytes, and how they are asked."""
    store, placer = placed(tmp_path)
    manifest = scan(tree(tmp_path / "from", {"large": data}), chunk_bytes=4)
    assert placer.place("x", manifest, "t.1")
    return store, lambda: placer.place("x", manifest, "t.1")


def test_what_flows_is_written_in_its_place_piece_by_piece(tmp_path):
    store, ask = expecting(tmp_path)
    (coming,) = (tmp_path / "store/coming").iterdir()
    a, *others = chunks(LETTERS)

    def pieces():
        yield a.data[:3]
        assert coming.read_bytes() == a.data[:3]
        yield a.data[3:]

    store.receive([flow(a, pieces())])
    assert a.hash not in ask()
    store.receive(flow(one, [one.data]) for one in others)
    assert ask() == ()
    assert contents(tmp_path / "root") == {"x/large": LETTERS}
    assert single(tmp_path) == []


def test_what_recurs_flows_once(tmp_path):
    data = b"abcdabcdabcdef"
    store, ask = expecting(tmp_path, data)
    store.receive(flow(one, [one.data]) for one in (chunk(b"abcd"), chunk(b"ef")))
    assert ask() == ()
    assert contents(tmp_path / "root") == {"x/large": data}


@pytest.mark.parametrize("wrong", [b"abcX", b"abc", b"", b"abcdefghij"])
def test_what_flows_and_is_something_else_is_as_absent_as_before(tmp_path, wrong):
    store, ask = expecting(tmp_path)
    a, b, *others = chunks(LETTERS)
    store.send([b])
    before = ask()
    with pytest.raises(DataError, match="this hash"):
        store.receive([flow(a, [wrong])])
    assert ask() == before == (a.hash, *(one.hash for one in others))
    store.send([a, *others])
    assert ask() == ()
    assert contents(tmp_path / "root") == {"x/large": LETTERS}


@pytest.mark.parametrize("receive", [True, False])
def test_nobody_writes_where_something_flows(tmp_path, receive):
    """What flowed there may be wrong, and be written over what was right."""
    store, ask = expecting(tmp_path)
    a, *others = chunks(LETTERS)
    store.send(others)

    def pieces():
        yield b"ab"
        store.receive([flow(a, [a.data])]) if receive else store.send([a])
        yield b"XX"

    with pytest.raises(DataError, match="this hash"):
        store.receive([flow(a, pieces())])
    assert ask() == ()
    assert contents(tmp_path / "root") == {"x/large": LETTERS}


def test_what_flows_breaks_off(tmp_path):
    store, ask = expecting(tmp_path)
    a, *others = chunks(LETTERS)

    def pieces():
        yield b"XX"
        raise InputError("broken off")

    store.send(others)
    with pytest.raises(InputError, match="broken off"):
        store.receive([flow(a, pieces())])
    assert ask() == (a.hash,)
    again = ChunkStore(tmp_path / "store", 1000)
    again.receive([flow(a, [a.data])])  # before anybody looked at what was there
    assert (
        TreeCheckout(tmp_path / "root", again).place("x", scan(tmp_path / "from", chunk_bytes=4), "t.1") == ()
    )
    assert contents(tmp_path / "root") == {"x/large": LETTERS}


def test_room_is_made_of_what_flows(tmp_path):
    store, ask = expecting(tmp_path)
    a, *others = chunks(LETTERS)
    store.unpin("t.1")

    def pieces():
        yield a.data[:2]
        store.send([chunk(bytes(999))])
        yield a.data[2:]

    store.receive([flow(a, pieces()), flow(others[0], [others[0].data])])
    assert not list((tmp_path / "store/coming").iterdir())
    assert set(ask()) >= {one.hash for one in others[1:]}


def test_one_that_cannot_be_put_on_the_disk_is_to_come_anew(tmp_path, monkeypatch):
    store, ask = expecting(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("gridmill.transfer.large_files.seal", full_disk)
        with pytest.raises(StorageError, match="No space left"):
            store.send(chunks(LETTERS))
    assert set(ask()) == {one.hash for one in chunks(LETTERS)}
    store.send(chunks(LETTERS))
    assert ask() == ()
    assert contents(tmp_path / "root") == {"x/large": LETTERS}


def full_disk(path):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_a_file_that_grew_is_made_of_the_one_before(tmp_path):
    store, placer = placed(tmp_path)
    old, new = ({"large": LETTERS + more} for more in (b"", b"ABCDEF"))
    for files, owner in ((old, "t.1"), (new, "t.2")):
        root = tree(tmp_path / owner, files)
        manifest = scan(root, chunk_bytes=4)
        lacking = placer.place(owner, manifest, owner)
        push(manifest, root, store)
        assert placer.place(owner, manifest, owner) == ()
    assert lacking == tuple(one.hash for one in chunks(LETTERS + b"ABCDEF")[6:])
    assert contents(tmp_path / "root") == {"t.1/large": old["large"], "t.2/large": new["large"]}
    placer.release("t.1")
    with pytest.raises(StorageError, match="in use"):
        store.send([chunk(bytes(990))])
    store.send([chunk(bytes(950))])  # the one before goes, and only that
    assert store.expect(manifest) == ()
    assert len(list((tmp_path / "store/large").iterdir())) == 1


def test_what_is_placed_stays_when_room_is_made(tmp_path):
    store, placer = placed(tmp_path, quota=30)
    root = tree(tmp_path / "from", {"large": LETTERS})
    manifest = scan(root, chunk_bytes=4)
    placer.place("x", manifest, "t.1")
    with pytest.raises(StorageError, match="in use"):
        store.send([chunk(b"12345")])  # counts from the beginning
    push(manifest, root, store)
    placer.place("x", manifest, "t.1")
    store.unpin("t.1")
    store.send([chunk(b"12345")])
    assert contents(tmp_path / "root") == {"x/large": LETTERS}
    assert [list((tmp_path / "store" / name).iterdir()) for name in ("large", "layouts")] == [[], []]
    assert set(store.missing(one.hash for one in chunks(LETTERS))) == {one.hash for one in chunks(LETTERS)}


@pytest.mark.parametrize("name", ["large", "small"])
def test_one_that_somebody_wrote_to_is_not_used_again(tmp_path, name):
    store, placer = placed(tmp_path)
    root = tree(tmp_path / "from", {"large": LETTERS, "small": b"123"})
    manifest = scan(root, chunk_bytes=4)
    placer.place("x", manifest, "t.1")
    push(manifest, root, store)
    placer.place("x", manifest, "t.1")
    there = tmp_path / "root/x" / name
    there.chmod(0o600)
    there.write_bytes(there.read_bytes().upper().replace(b"1", b"!"))
    (lacking,) = (file.chunks for file in manifest.files if file.path == name)
    for one in (store, ChunkStore(tmp_path / "store", 1000)):
        placer = TreeCheckout(tmp_path / "root", one)
        assert placer.place("y", manifest, "t.2") == lacking
    push(manifest, root, one)
    assert placer.place("y", manifest, "t.2") == ()
    assert contents(tmp_path / "root/y") == {"large": LETTERS, "small": b"123"}


def test_a_small_file_that_is_a_part_of_a_large_one(tmp_path):
    store, placer = placed(tmp_path)
    root = tree(tmp_path / "from", {"large": LETTERS})
    push(scan(root, chunk_bytes=4), root, store)  # nobody expects it yet
    assert len(single(tmp_path)) == 7
    assert placer.place("x", scan(root, chunk_bytes=4), "t.1") == ()
    assert single(tmp_path) == []
    part = scan(tree(tmp_path / "part", {"small": b"abcd"}), chunk_bytes=4)
    assert placer.place("y", part, "t.2") == ()
    assert contents(tmp_path / "root") == {"x/large": LETTERS, "y/small": b"abcd"}


@pytest.mark.parametrize("by_whom", ["disk", "somebody"])
def test_a_part_of_a_large_one_that_is_damaged_is_not_taken(tmp_path, by_whom):
    store, placer = placed(tmp_path)
    root = tree(tmp_path / "from", {"large": LETTERS})
    push(scan(root, chunk_bytes=4), root, store)
    assert placer.place("x", scan(root, chunk_bytes=4), "t.1") == ()
    (kept,) = (tmp_path / "store/large").iterdir()
    kept.chmod(0o600)
    kept.write_bytes(LETTERS.replace(b"b", b"!"))
    if by_whom == "disk":
        seal(kept)
    part = scan(tree(tmp_path / "part", {"small": b"abcd"}), chunk_bytes=4)
    assert placer.place("y", part, "t.2") == (named(b"abcd"),)
    push(part, tmp_path / "part", store)
    assert placer.place("y", part, "t.2") == ()
    assert contents(tmp_path / "root/y") == {"small": b"abcd"}
    assert set(placer.place("z", scan(root, chunk_bytes=4), "t.3")) == {
        one.hash for one in chunks(LETTERS) if one.data != b"abcd"
    }


def test_sizes_that_its_chunks_do_not_have_are_refused(tmp_path):
    store, placer = placed(tmp_path)
    said = tuple(one.hash for one in (chunk(b"abcd"), chunk(b"efg")))
    manifest = Manifest(files=(FileEntry(path="a", size_bytes=8, chunks=said),), chunk_bytes=4)
    assert placer.place("x", manifest, "t.1") == said
    store.send([chunk(b"abcd"), chunk(b"efg")])
    with pytest.raises(InputError, match="sizes"):
        placer.place("x", manifest, "t.1")
    assert contents(tmp_path / "root") == {}


def test_a_store_for_one_tree_hands_its_files_over(tmp_path):
    store, placer = placed(tmp_path, handing_over=True)
    root = tree(tmp_path / "from", FILES | {"other": LETTERS[:9], "mine": b"123"})
    manifest = scan(root, chunk_bytes=4)
    placer.place("x", manifest, "t.1", writable=True)
    pull(manifest, store, ScannedTree(root, manifest))
    began = {path.name: path.stat().st_ino for path in (tmp_path / "store/large").iterdir()}
    assert placer.place("x", manifest, "t.1", writable=True) == ()
    there = tmp_path / "root/x"
    assert contents(there) == contents(root)
    assert (there / "other").stat().st_ino in began.values()
    assert not {(there / name).stat().st_ino for name in ("large", "again")} & set(began.values())
    assert {path.stat().st_mode & 0o777 for path in there.iterdir()} == {0o644}
    assert all(path.stat().st_mtime > 1.1e9 for path in there.iterdir())


KILLED = """
import sys
from pathlib import Path
from gridmill import codec
from gridmill.domain.farm_protocol import Manifest
from gridmill.transfer.engine import TransferLimits, push
from gridmill.transfer.chunk_store import ChunkStore
from gridmill.transfer.tree_writer import TreeCheckout
where = Path(sys.argv[1])
manifest = codec.decode((where / "manifest").read_bytes(), Manifest)
store = ChunkStore(where / "store", 1 << 40)
placer = TreeCheckout(where / "root", store)
class Told:
    missing = store.missing
    def send(self, chunks):
        for chunk in chunks:
            store.send([chunk])
            print("there", flush=True)
if placer.place("x", manifest, "t.1"):
    push(manifest, where / "from", Told())
    assert not placer.place("x", manifest, "t.1")
print("done", flush=True)
"""


def test_killed_at_any_moment_it_goes_on_where_it_was(tmp_path):
    data = {name: os.urandom(1 << 20) for name in ("a", "b")}
    manifest = scan(tree(tmp_path / "from", data), chunk_bytes=1 << 13)
    (tmp_path / "manifest").write_bytes(codec.encode(manifest))
    command = (sys.executable, "-c", KILLED, str(tmp_path))
    lacking = 256
    for number in (1, 90, 50):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            told = [process.stdout.readline() for _ in range(number)]
            process.send_signal(signal.SIGKILL)
        store = ChunkStore(tmp_path / "store", 1 << 40)
        lacking, before = len(store.expect(manifest)), lacking
        assert lacking <= before - told.count(b"there\n")
        assert not (tmp_path / "root/x").exists() or contents(tmp_path / "root/x") == data
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    assert done.stdout.splitlines().count(b"there") == lacking
    assert contents(tmp_path / "root/x") == data
