"""Trees that are placed at the same time: who has room, who waits and why, and that none holds up another."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gridmill.domain.farm_protocol import Manifest
from gridmill.errors import CapacityError, UnavailableError
from gridmill.transfer.chunk_manifest import scan
from gridmill.transfer.chunk_store import ChunkStore
from gridmill.transfer.engine import push
from gridmill.transfer.space_by_owner import SpaceByOwner
from gridmill.transfer.tree_writer import TreeCheckout

LONG_SECONDS = 120.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def room(clock: Clock) -> SpaceByOwner:
    return SpaceByOwner(100, clock)


def take(room: SpaceByOwner, owner: str, **wanted: int) -> tuple[str, ...]:
    return room.take(owner, " ".join(wanted), wanted, {})


def test_one_that_fits_has_room_and_the_other_waits_for_it(room: SpaceByOwner) -> None:
    assert take(room, "a", one=60) == ()
    with pytest.raises(UnavailableError, match="it needs 60 B, and a use 60 B of the quota of 100 B"):
        take(room, "b", other=60)
    assert take(room, "a", one=60) == ()
    room.give_back("a")
    assert take(room, "b", other=60) == ()


def test_what_several_use_counts_once(room: SpaceByOwner) -> None:
    assert take(room, "a", same=60) == take(room, "b", same=60) == ()
    room.give_back("a")
    with pytest.raises(UnavailableError):
        take(room, "c", other=60)


def test_what_is_used_from_before_counts(room: SpaceByOwner) -> None:
    with pytest.raises(UnavailableError, match="old"):
        room.take("a", "tree", {"one": 60}, {"old": {"x": 60}})


def test_whoever_came_later_and_waits_lets_go(room: SpaceByOwner) -> None:
    take(room, "a", a1=40)
    take(room, "b", b1=40)
    with pytest.raises(UnavailableError):
        take(room, "b", b2=40)
    assert take(room, "a", a2=40) == ("b",)
    with pytest.raises(UnavailableError):
        take(room, "b", b1=40)
    room.give_back("a")
    assert take(room, "b", b1=40) == take(room, "b", b2=40) == ()


def test_nobody_overtakes(room: SpaceByOwner, clock: Clock) -> None:
    take(room, "a", a=60)
    with pytest.raises(UnavailableError):
        take(room, "big", b=90)
    with pytest.raises(UnavailableError, match="behind big"):
        take(room, "small", s=10)
    clock.now = 61.0  # big was stopped: it asks no more
    assert take(room, "small", s=10) == ()


def test_a_tree_that_changed_counts_as_it_is_now(room: SpaceByOwner) -> None:
    for name in ("x", "y", "z"):
        assert room.take("a", "tree", {name: 60}, {}) == ()
    assert room.take("a", "other", {"y": 40}, {}) == ()
    assert room.left_over("a", "tree", {"new"}) == {"z"}
    assert room.left_over("a", "other", {"new"}) == {"y"}


def test_whoever_has_all_keeps_it(room: SpaceByOwner) -> None:
    take(room, "a", a1=40)
    take(room, "b", b1=40)
    with pytest.raises(UnavailableError):
        take(room, "b", b2=40)
    room.waits_no_more("b")
    with pytest.raises(UnavailableError, match="b use 40 B"):
        take(room, "a", a2=40)


def test_more_than_the_quota_is_refused_at_once(room: SpaceByOwner) -> None:
    take(room, "a", a1=60)
    with pytest.raises(CapacityError, match="120 B are needed, which is more than the quota of 100 B"):
        take(room, "a", a2=60)


def tree(folder: Path, content: bytes) -> Manifest:
    folder.mkdir()
    (folder / "file").write_bytes(content)
    return scan(folder)


def test_of_two_trees_one_is_placed_and_then_the_other(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path / "chunks", 100)
    placer = TreeCheckout(tmp_path / "root", store)
    one, other = (tree(tmp_path / name, name.encode() * 20) for name in ("one", "two"))
    assert placer.place("one", one, "a")
    with pytest.raises(UnavailableError, match="a use"):
        placer.place("two", other, "b")
    push(one, tmp_path / "one", store)
    assert placer.place("one", one, "a") == ()
    with pytest.raises(UnavailableError):
        placer.place("two", other, "b")
    placer.release("a")
    assert placer.place("two", other, "b")
    push(other, tmp_path / "two", store)
    assert placer.place("two", other, "b") == ()


def placed(placer: TreeCheckout, store: ChunkStore, there: Path, uri: str, owner: str) -> None:
    if placer.place(uri, scan(there), owner):
        push(scan(there), there, store)
        assert placer.place(uri, scan(there), owner) == ()


def test_what_another_has_made_for_it_ends_the_wait_of_an_attempt(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path / "chunks", 100)
    placer = TreeCheckout(tmp_path / "root", store)
    x, r, t, z, q = (tmp_path / name for name in "xrtzq")
    for folder, size in ((x, 40), (r, 45), (t, 30), (z, 10), (q, 50)):
        tree(folder, folder.name.encode() * size)
    placed(placer, store, z, "z", "early")
    placed(placer, store, x, "x", "late")
    placed(placer, store, r, "r", "other")
    with pytest.raises(UnavailableError):
        placer.place("t", scan(t), "late")
    placer.release("other")
    placed(placer, store, t, "t", "early")
    placed(placer, store, x, "x", "late")
    placed(placer, store, t, "t", "late")
    with pytest.raises(UnavailableError):
        placer.place("q", scan(q), "early")
    assert (tmp_path / "root/x/file").exists()  # it runs


def test_of_a_tree_that_changed_the_old_content_is_kept_no_more(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path / "chunks", 100)
    placer = TreeCheckout(tmp_path / "root", store)
    for number in range(3):
        tree(tmp_path / str(number), str(number).encode() * 60)
        placed(placer, store, tmp_path / str(number), "tree", "a")
    assert store.size_bytes == 60


class Slow(ChunkStore):
    """Gives the file of one name only when it may."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 2**20)
        self.slow, self.begun, self.go = "", threading.Event(), threading.Event()

    def content(self, name: str) -> str:
        if name == self.slow:
            self.begun.set()
            self.go.wait(LONG_SECONDS)
        return super().content(name)


def test_a_tree_that_takes_long_holds_no_other_up(tmp_path: Path) -> None:
    store = Slow(tmp_path / "chunks")
    placer = TreeCheckout(tmp_path / "root", store)
    trees = {name: tree(tmp_path / name, name.encode()) for name in ("long", "short")}
    for name, manifest in trees.items():
        push(manifest, tmp_path / name, store)
    (store.slow,) = trees["long"].files[0].chunks
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(placer.place, "long", trees["long"], "a")
        assert store.begun.wait(LONG_SECONDS)
        try:
            assert pool.submit(placer.place, "short", trees["short"], "b").result(LONG_SECONDS / 2) == ()
            assert not long.done()
        finally:
            store.go.set()
        assert long.result(LONG_SECONDS) == ()
    assert {path.name for path in (tmp_path / "root").iterdir()} == set(trees)
