"""Chunks that are kept for attempts which have not started yet: they give way to everything else."""

from pathlib import Path

import pytest

from gridmill.domain.farm_protocol import Manifest
from gridmill.domain.usage import DiskSpace
from gridmill.errors import StorageError, UnavailableError
from gridmill.transfer.chunk_manifest import scan
from gridmill.transfer.chunk_store import ChunkStore
from gridmill.transfer.disk_room import DiskRoom
from gridmill.transfer.early_pins import EarlyPins
from gridmill.transfer.engine import push
from gridmill.transfer.tree_writer import TreeCheckout

QUOTA = 1000


class Disk(DiskRoom):
    """A disk of `size` bytes, on which the chunks of one store are."""

    def __init__(self, folder: Path, size: int) -> None:
        super().__init__(folder)
        self.size, self.used = size, 0
        self.store: ChunkStore | None = None

    def space(self) -> DiskSpace:
        held = self.store.size_bytes if self.store is not None else 0
        free = max(0, self.size - self.used - held)
        return DiskSpace(place="farm", path="/", size_bytes=self.size, free_bytes=free, reserve_bytes=0)


class Farm:
    """A store with folders that are built from it, and the folders at home."""

    def __init__(self, folder: Path, quota: int = QUOTA, disk: Disk | None = None) -> None:
        self.home = folder / "home"
        self.store = ChunkStore(folder / "chunks", quota, name="t", disk=disk)
        if disk is not None:
            disk.store = self.store
        self.placer = TreeCheckout(folder / "root", self.store)

    def tree(self, name: str, size: int) -> Manifest:
        path = self.home / name
        path.mkdir(parents=True)
        (path / "file").write_bytes(name.encode()[:1] * size)
        return scan(path)

    def early(self, name: str, manifest: Manifest, owner: str = "next", seconds: float = 60.0) -> bool:
        """Sends a folder early; whether all of it is there."""
        if self.placer.expect_early(name, manifest, owner, seconds):
            push(manifest, self.home / name, self.store)
        return not self.placer.expect_early(name, manifest, owner, seconds)

    def place(self, name: str, manifest: Manifest, owner: str) -> int:
        """Sends a folder for an attempt that starts. The number of chunks that had to be sent."""
        lacking = self.placer.place(name, manifest, owner)
        if lacking:
            push(manifest, self.home / name, self.store)
            assert self.placer.place(name, manifest, owner) == ()
        return len(lacking)


@pytest.fixture
def farm(tmp_path: Path) -> Farm:
    return Farm(tmp_path)


def test_an_attempt_finds_its_early_inputs_and_takes_them_over(farm: Farm) -> None:
    one = farm.tree("one", 400)
    assert farm.early("one", one)
    assert not (farm.placer._root / "one").exists()  # nothing is built before the attempt starts
    assert farm.place("one", one, "next") == 0
    assert not farm.store.is_early("next")
    farm.placer.release("next")
    assert farm.store.evict(QUOTA) == 400


def test_early_inputs_outlast_unused_chunks(farm: Farm) -> None:
    old, one, big = farm.tree("old", 300), farm.tree("one", 400), farm.tree("big", 500)
    farm.place("old", old, "done")
    farm.placer.release("done")
    assert farm.early("one", one)
    farm.place("big", big, "running")
    assert farm.place("one", one, "next") == 0


def test_early_inputs_give_way_to_an_attempt_within_the_quota(farm: Farm) -> None:
    one, big = farm.tree("one", 400), farm.tree("big", 900)
    assert farm.early("one", one)
    farm.place("big", big, "running")
    assert not farm.store.is_early("next")
    with pytest.raises(UnavailableError, match="400 B of inputs of the next jobs do not fit"):
        farm.early("one", one)
    farm.placer.release("running")
    assert farm.early("one", one)


def test_early_inputs_do_not_take_the_space_of_an_attempt_that_waits(farm: Farm) -> None:
    running, waiting, one = farm.tree("running", 600), farm.tree("waiting", 500), farm.tree("one", 100)
    farm.place("running", running, "running")
    with pytest.raises(UnavailableError):
        farm.placer.place("waiting", waiting, "waiting")
    with pytest.raises(UnavailableError, match="do not fit"):
        farm.early("one", one)


def test_early_inputs_give_way_on_a_full_disk(tmp_path: Path) -> None:
    disk = Disk(tmp_path, 1000)
    farm = Farm(tmp_path, quota=10_000, disk=disk)
    one, big = farm.tree("one", 400), farm.tree("big", 800)
    assert farm.early("one", one)
    farm.place("big", big, "running")
    assert not farm.store.is_early("next")
    with pytest.raises(UnavailableError):
        farm.early("one", one)
    assert farm.place("big", big, "running") == 0  # the running attempt keeps its data
    farm.placer.release("running")
    assert farm.early("one", one)


def test_an_early_reservation_gives_way_on_a_full_disk(tmp_path: Path) -> None:
    disk = Disk(tmp_path, 1000)
    farm = Farm(tmp_path, quota=10_000, disk=disk)
    one, big = farm.tree("one", 400), farm.tree("big", 800)
    assert farm.placer.expect_early("one", one, "next", 60.0)  # announced, and nothing was sent
    farm.place("big", big, "running")
    assert not farm.store.is_early("next")


def test_a_disk_that_jobs_fill_evicts_early_inputs(tmp_path: Path) -> None:
    disk = Disk(tmp_path, 1000)
    farm = Farm(tmp_path, quota=10_000, disk=disk)
    one = farm.tree("one", 400)
    assert farm.early("one", one)
    disk.relieve()
    assert farm.store.size_bytes == 0


def test_the_bytes_of_an_attempt_are_reserved_once(tmp_path: Path) -> None:
    disk = Disk(tmp_path, 1000)
    farm = Farm(tmp_path, quota=10_000, disk=disk)
    one, other = farm.tree("one", 600), farm.tree("two", 100)
    assert farm.early("two", other, owner="later")
    assert farm.placer.expect_early("one", one, "next", 60.0)
    assert farm.placer.place("one", one, "next")
    assert farm.store.is_early("later")  # there was room for both


def test_a_late_request_for_a_started_attempt_pins_nothing(farm: Farm) -> None:
    one = farm.tree("one", 400)
    farm.place("one", one, "next")
    assert farm.placer.expect_early("one", one, "next", 60.0) == ()
    assert not farm.store.is_early("next")


def test_pins_end_when_they_are_not_renewed() -> None:
    now = [0.0]
    pins = EarlyPins(lambda: now[0])
    pins.pin("a", "one", {"x": 1}, 60.0)
    now[0] = 50.0
    pins.pin("a", "two", {"y": 2}, 60.0)
    now[0] = 109.0
    assert pins.expired() == ()
    assert pins.sizes() == {"x": 1, "y": 2}
    now[0] = 110.0
    assert pins.expired() == ("a",)
    pins.end_tree("a", "one")
    assert pins.sizes() == {"y": 2}
    pins.end_tree("a", "two")
    assert not pins


def test_a_restarted_farm_keeps_the_content_and_may_evict_it(tmp_path: Path) -> None:
    farm = Farm(tmp_path)
    one = farm.tree("one", 400)
    assert farm.early("one", one)
    again = ChunkStore(tmp_path / "chunks", QUOTA)
    assert again.missing(chunk for file in one.files for chunk in file.chunks) == ()
    assert again.evict(QUOTA) == 400


def test_a_quota_filled_by_running_attempts_is_full(farm: Farm) -> None:
    big = farm.tree("big", 900)
    farm.place("big", big, "running")
    one = farm.tree("one", 400)
    with pytest.raises((StorageError, UnavailableError)):
        farm.placer.place("one", one, "other")
