import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.transfer.test_staging_chunks import contents
from tests.unit.transfer.test_staging_manifest import named, tree

from gridmill.errors import (
    ConflictError,
    DataError,
    InterruptedRunError,
    NotFoundError,
    StorageError,
    UnavailableError,
)
from gridmill.transfer.chunk_manifest import scan
from gridmill.transfer.chunk_store import ChunkStore
from gridmill.transfer.engine import BATCH_BYTES, TransferLimits, batches, pull, push, transfer_chunks
from gridmill.transfer.progress import LATELY_SECONDS, TransferProgress
from gridmill.transfer.stream import Chunk
from gridmill.transfer.tree_writer import TreeCheckout

AT_ONCE = TransferLimits(wait_seconds=0.0)
FILES = {f"f{at}": bytes([at]) * (at + 1) for at in range(9)} | {"big": bytes(range(97))}


class Faulty:
    """A store before which calls fail, or chunks are damaged, as the script says: one word per call."""

    def __init__(self, store, script=()):
        self.store, self.script, self.sent = store, list(script), []

    def _next(self):
        word = self.script.pop(0) if self.script else None
        if isinstance(word, Exception):
            raise word
        return word

    def missing(self, chunks):
        self._next()
        return self.store.missing(chunks)

    def send(self, chunks):
        self._next()
        self.sent += [chunk.hash for chunk in chunks]
        self.store.send(chunks)

    def fetch(self, chunks):
        word = self._next()
        for chunk in self.store.fetch(chunks):
            yield replace(chunk, data=chunk.data[:-1]) if word == "cut off" else chunk


def case(tmp_path, script=(), quota=1000):
    store = ChunkStore(tmp_path / "far", quota)
    root = tree(tmp_path / "from", FILES)
    return Faulty(store, script), root, scan(root, chunk_bytes=10)


def test_a_tree_goes_there_and_comes_back(tmp_path):
    far, root, manifest = case(tmp_path)
    push(manifest, root, far)
    near = ChunkStore(tmp_path / "near", 1000)
    pull(manifest, near, far)
    assert TreeCheckout(tmp_path / "back", near).place("x", manifest, "t.1") == ()
    assert contents(tmp_path / "back/x") == FILES


def test_what_is_there_does_not_travel_again(tmp_path):
    far, root, manifest = case(tmp_path)
    push(manifest, root, far)
    far.sent.clear()
    (root / "big").write_bytes(bytes(range(97)) + b"more")
    progress = TransferProgress()
    push(scan(root, chunk_bytes=10), root, far, progress=progress)
    assert len(far.sent) == 2  # the last chunk, which grew, and one more
    look = progress.look()
    assert (look.total_bytes, look.transferred_bytes, look.left_bytes) == (146, 11, 0)


def test_it_goes_on_after_a_cut(tmp_path):
    far, root, manifest = case(
        tmp_path, [UnavailableError("cut"), None, UnavailableError("cut"), UnavailableError("cut")]
    )
    push(manifest, root, far, terms=AT_ONCE)
    assert far.store.missing(scan_hashes(manifest)) == ()
    assert sorted(far.sent) == sorted(set(scan_hashes(manifest)))


def scan_hashes(manifest):
    return [chunk for entry in manifest.files for chunk in entry.chunks]


def test_after_the_patience_it_says_why(tmp_path):
    far, root, manifest = case(tmp_path, [UnavailableError("cut for ever")] * 3)
    with pytest.raises(UnavailableError, match="for ever"):
        push(manifest, root, far, terms=replace(AT_ONCE, patience_seconds=-1.0))


def test_a_full_disk_there_is_told_at_once(tmp_path):
    far, root, manifest = case(tmp_path, quota=50)
    far.store.pin("t.1", scan_hashes(manifest))
    with pytest.raises(StorageError, match="quota"):
        push(manifest, root, far)


def test_a_damaged_chunk_is_asked_for_again(tmp_path):
    far, root, manifest = case(tmp_path)
    push(manifest, root, far)
    near = ChunkStore(tmp_path / "near", 1000)
    far.script = ["cut off"] * 2
    pull(manifest, near, far, terms=AT_ONCE)
    assert near.missing(scan_hashes(manifest)) == ()
    far.script = ["cut off"] * 9
    with pytest.raises(DataError, match="chunk"):
        pull(manifest, ChunkStore(tmp_path / "other", 1000), far, terms=AT_ONCE)


def test_a_file_that_changed_is_named(tmp_path):
    far, root, manifest = case(tmp_path)
    (root / "f3").write_bytes(b"____")
    with pytest.raises(ConflictError, match="f3"):
        push(manifest, root, far, terms=AT_ONCE)
    (root / "f3").unlink()
    with pytest.raises(NotFoundError, match="f3"):
        push(manifest, root, far, terms=AT_ONCE)


def test_it_can_be_stopped(tmp_path):
    far, root, manifest = case(tmp_path, [UnavailableError("cut")] * 9)
    stop = threading.Event()
    stop.set()
    with pytest.raises(InterruptedRunError):
        push(manifest, root, far, stop=stop)


def test_one_thread_that_fails_ends_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr("gridmill.transfer.engine.BATCH_BYTES", 10)
    monkeypatch.setattr("gridmill.transfer.engine._THIN_BYTES_PER_SECOND", 1e-9)

    class Split(Faulty):
        def send(self, chunks):
            if not self.sent:
                return super().send(chunks)  # how quick the line is tells the first
            if named(b"\x08" * 9) in {chunk.hash for chunk in chunks}:
                raise StorageError("full")
            raise UnavailableError("away")

    _, root, manifest = case(tmp_path)
    with pytest.raises(StorageError, match="full"):
        push(
            manifest,
            root,
            Split(ChunkStore(tmp_path / "far", 1000)),
            terms=TransferLimits(parallel=20, wait_seconds=300.0),
        )


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_progress_tells_rate_and_what_is_left():
    clock = Clock()
    progress = TransferProgress(clock=clock)
    assert progress.look().left_seconds == 0.0
    progress.expect(100, 20)
    assert progress.look().left_seconds is None
    clock.now = 2.0
    progress.arrived(20)
    assert progress.look().bytes_per_second == 0.0  # it could all be in some buffer
    clock.now = 4.0
    progress.arrived(20)
    look = progress.look()
    assert (look.bytes_per_second, look.left_bytes, look.left_seconds) == (10.0, 40, 4.0)


def test_the_rate_is_that_of_the_latest_half_minute():
    clock = Clock()
    progress = TransferProgress(clock=clock)
    progress.expect(10_000, 0)
    progress.moved(500)  # what the line's two ends hold at once
    for _ in range(9):
        clock.now += 1.0
        progress.moved(10)
    assert progress.look().bytes_per_second == 10.0
    for _ in range(2 * int(LATELY_SECONDS)):
        clock.now += 1.0
        progress.moved(100)
    look = progress.look()
    assert (look.bytes_per_second, look.still_seconds) == (100.0, 0.0)
    clock.now += LATELY_SECONDS
    look = progress.look()
    assert (look.bytes_per_second, look.left_seconds, look.still_seconds) == (0.0, None, LATELY_SECONDS)
    progress.moved(-1000)
    assert progress.look().bytes_per_second == 0.0
    clock.now += 5.0
    progress.moved(100)
    assert progress.look().bytes_per_second == 20.0


class Meeting(Faulty):
    """Of what comes after the first, so many have to come at once."""

    def __init__(self, store, parties):
        super().__init__(store)
        self.batches, self._meet = [], threading.Barrier(parties, timeout=60)

    def send(self, chunks):
        self.batches.append(len(chunks))
        if len(self.batches) > 1:
            self._meet.wait()
        super().send(chunks)


@pytest.mark.parametrize(
    ("thin_bytes_per_second", "parties", "sizes"), [(1e12, 1, [1] * 9), (1e-9, 4, [1, 2, 2, 2, 2])]
)
def test_over_a_thin_line_batches_are_small_over_a_quick_one_many_go_at_once(
    tmp_path, monkeypatch, thin_bytes_per_second, parties, sizes
):
    monkeypatch.setattr("gridmill.transfer.engine._THIN_BYTES_PER_SECOND", thin_bytes_per_second)
    monkeypatch.setattr("gridmill.transfer.engine._THIN_BATCH_BYTES", 5)
    monkeypatch.setattr("gridmill.transfer.engine.BATCH_BYTES", 10)
    root = tree(tmp_path / "from", {f"f{at}": bytes([at]) * 5 for at in range(9)})
    far = Meeting(ChunkStore(tmp_path / "far", 1000), parties)
    push(scan(root, chunk_bytes=10), root, far)
    assert far.batches == sizes


def test_what_is_said_of_small_ones_does_not_count():
    progress = TransferProgress()
    progress.expect(100, 40)
    progress.moved(90)
    assert (progress.look().transferred_bytes, progress.look().left_bytes) == (60, 0)
    progress.arrived(60, 90)
    assert progress.look().transferred_bytes == 60


def test_it_stays_within_a_limit(tmp_path):
    class Waits(threading.Event):
        asked = 0.0

        def wait(self, timeout=None):
            self.asked = max(self.asked, timeout)
            return False

    far, root, manifest = case(tmp_path)
    stop = Waits()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gridmill.transfer.engine.BATCH_BYTES", 10)
        patch.setattr("gridmill.transfer.engine._POLL_SECONDS", 1000.0)
        push(manifest, root, far, stop=stop, terms=TransferLimits(parallel=1, limit_bytes_per_second=1.0))
    assert stop.asked > 9.0


@given(st.lists(st.integers(0, 3 * BATCH_BYTES), max_size=30))
def test_batches_hold_everything_once_and_are_not_too_large(numbers):
    sizes = {f"c{at}": size for at, size in enumerate(numbers)}
    made = list(batches(sizes, sizes))
    assert [chunk for batch in made for chunk in batch] == list(sizes)
    for batch in made:
        assert len(batch) == 1 or sum(sizes[chunk] for chunk in batch) <= BATCH_BYTES


def test_nothing_lacking_nothing_travels(tmp_path):
    far = Faulty(ChunkStore(tmp_path, 10))
    transfer_chunks({}, far, far)
    assert far.sent == []
    far.store.send([Chunk(hash=named(b"a"), data=b"a")])
    transfer_chunks({named(b"a"): 1}, far, far)
    assert far.sent == []


def test_a_trouble_is_over_once_bytes_move_for_a_while():
    now = 0.0
    progress = TransferProgress(clock=lambda: now)
    progress.expect(1000, 0)
    progress.hindered("the farm does not answer")
    now = 5.0
    progress.moved(10)
    assert progress.look().trouble == "the farm does not answer"
    now = 11.0
    progress.moved(10)
    assert progress.look().trouble == ""


def test_why_something_is_sent_again_is_known_until_it_arrives(tmp_path):
    seen = []

    class Looking(Faulty):
        def send(self, chunks):
            seen.append(progress.look().trouble)
            super().send(chunks)

    store = ChunkStore(tmp_path / "far", 1000)
    root = tree(tmp_path / "from", FILES)
    manifest = scan(root, chunk_bytes=10)
    progress = TransferProgress()
    far = Looking(
        store, [None, UnavailableError("the bucket closed the connection before the end of the object")]
    )
    push(manifest, root, far, progress=progress, terms=AT_ONCE)
    assert "the bucket closed the connection before the end of the object" in seen
    assert progress.look().trouble == ""
