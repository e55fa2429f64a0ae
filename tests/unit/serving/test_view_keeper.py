"""The process that keeps a view on a machine which reads the files of its home from a shared storage root."""

from contextlib import closing
from pathlib import Path

import pytest
from tests.kit.keyed_service import view_orders
from tests.kit.small_disks import fill, small_disk
from tests.unit.online.test_online_sent import Pair, content

from gridmill.domain.service_features import SENT_FILE, SENT_FOLDER, ViewStatus
from gridmill.domain.serving import ServedVersion, ServiceOrder
from gridmill.online.definition import FILE, OnlineDefinition
from gridmill.online.sent_files import note_damage, read_sent_files
from gridmill.online.view import current_file
from gridmill.pod.service_files import ServiceFiles
from gridmill.serving.view_keeper import LATE_SECONDS, RETRY_SECONDS, SHARED_LOOK_SECONDS, ViewKeeper
from gridmill.serving.view_keepers import ViewKeepers


class Node:
    """A node that sees the folder of the view at home, and the process of its copy in `folder`."""

    def __init__(self, tmp: Path, seed: int, folder: Path | None = None) -> None:
        self.pair = Pair(tmp, seed)
        self.home, self.now = self.pair.home, 1000.0
        OnlineDefinition(plan=self.pair.day.online.plan()).save(self.home)
        self.folder = folder or tmp / "work"
        self.folder.mkdir(exist_ok=True)
        self.order()
        self.copy = self.folder / "views" / self.home.name
        self.pair.there = self.copy
        self.keeper = ViewKeeper(self.folder, str(self.copy), lambda: self.now)

    def order(self) -> None:
        """What the pod writes when the control node has sent the newest versions."""
        version = ServedVersion(label="w/m@1", folder="", features=str(self.home))
        views = view_orders(self.pair.day.online, self.pair.day.online.now).copied()
        ServiceFiles(self.folder, 0.0).write(ServiceOrder(name="any", versions=(version,)), views)

    def change(self) -> None:
        """The home changes the view, and writes the change to a file."""
        self.pair.day.append()
        self.pair.day.step()
        self.pair.day.online.refresh()
        self.pair.send()

    def rebuild(self) -> None:
        """The home builds the view again, and writes another snapshot."""
        self.pair.day.online.build()
        self.pair.send()

    def newest(self) -> Path:
        """The newest file at home."""
        sent = read_sent_files(self.home)
        assert sent is not None
        return self.home / SENT_FOLDER / sent.series / sent.files()[-1].name

    def tick(self, seconds: float = SHARED_LOOK_SECONDS) -> ViewStatus:
        self.now += seconds
        self.keeper.tick()
        return self.keeper.report.state


def test_the_copy_follows_the_files_at_home_without_another_order(tmp_path: Path) -> None:
    node = Node(tmp_path, 0)
    assert node.tick() is ViewStatus.BUILDING
    assert node.keeper.report.problem == ""
    node.pair.send()
    node.tick()
    assert node.keeper.report.is_complete
    node.pair.check()
    node.change()
    node.tick(SHARED_LOOK_SECONDS / 2)
    assert content(node.copy) != content(node.home)
    node.tick()
    node.pair.check()
    assert node.keeper.report.checked_at == node.pair.day.online.now
    node.rebuild()
    node.tick()
    node.pair.check()
    assert [one.name for one in node.copy.glob("view-*.sqlite")] == [current_file(node.copy).name]


@pytest.mark.parametrize("snapshot", [True, False])
@pytest.mark.parametrize("left_bytes", [None, 0, 100])
def test_a_file_that_becomes_visible_late_is_no_problem(
    tmp_path: Path, snapshot: bool, left_bytes: int | None
) -> None:
    node = Node(tmp_path, 1)
    node.pair.send()
    node.tick()
    before = content(node.copy)
    (node.rebuild if snapshot else node.change)()
    file, moved = node.newest(), tmp_path / "moved"
    file.rename(moved)
    if left_bytes is not None:
        file.write_bytes(moved.read_bytes()[:left_bytes])
    for _ in range(3):
        assert node.tick(RETRY_SECONDS) is not ViewStatus.FAILING
        assert content(node.copy) == before
    node.tick(LATE_SECONDS)
    assert node.tick(RETRY_SECONDS) is ViewStatus.FAILING
    assert f"{file} of a sent view" in node.keeper.report.problem
    assert content(node.copy) == before
    moved.replace(file)
    assert node.tick(RETRY_SECONDS) is not ViewStatus.FAILING
    node.pair.check()


def test_a_definition_that_becomes_visible_late_is_no_problem(tmp_path: Path) -> None:
    node = Node(tmp_path, 2)
    node.pair.send()
    moved = (node.home / FILE).rename(tmp_path / "moved")
    assert node.tick() is ViewStatus.BUILDING
    moved.rename(node.home / FILE)
    node.tick(RETRY_SECONDS)
    node.pair.check()


def test_an_earlier_description_that_is_seen_again_has_no_effect(tmp_path: Path) -> None:
    node = Node(tmp_path, 3)
    node.pair.send()
    earlier = (node.home / SENT_FILE).read_bytes()
    node.change()
    node.tick()
    report, newest = node.keeper.report, (node.home / SENT_FILE).read_bytes()
    (node.home / SENT_FILE).write_bytes(earlier)
    node.tick()
    assert node.keeper.report == report
    (node.home / SENT_FILE).write_bytes(newest)
    node.change()
    node.tick()
    node.pair.check()


@pytest.mark.parametrize("snapshot", [True, False])
def test_after_damage_the_home_begins_a_new_series_and_the_old_view_serves(
    tmp_path: Path, snapshot: bool
) -> None:
    node = Node(tmp_path, 4)
    node.pair.send()
    node.tick()
    before = content(node.copy)
    (node.rebuild if snapshot else node.change)()
    file = node.newest()
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert node.tick() is ViewStatus.FAILING
    assert "is damaged" in node.keeper.report.problem
    assert content(node.copy) == before
    series = read_sent_files(node.home)
    node.pair.send()
    assert read_sent_files(node.home) != series
    node.tick(RETRY_SECONDS)
    assert node.keeper.report.problem == ""
    node.pair.check()


def test_damage_that_only_a_node_has_seen_makes_no_new_snapshot(tmp_path: Path) -> None:
    node = Node(tmp_path, 5)
    before = node.pair.send()
    note_damage(node.newest().parent)
    assert node.pair.send() == before


def test_files_at_home_and_on_the_node_are_bounded(tmp_path: Path) -> None:
    node = Node(tmp_path, 6)
    for _ in range(3):
        node.rebuild()
        node.tick()
    assert len(list((node.home / SENT_FOLDER).iterdir())) == 2
    names = {one.name for one in node.copy.iterdir()}
    assert names - {f"{current_file(node.copy).name}{end}" for end in ("", "-wal", "-shm")} == {
        "current",
        "lock",
    }


def test_a_full_disk_of_the_node_leaves_the_old_view_and_no_half_copy(tmp_path: Path) -> None:
    with small_disk(4 * 2**20) as disk:
        node = Node(tmp_path, 7, disk)
        node.pair.send()
        node.tick()
        shop, at = node.pair.day.requests()[0]
        request = [{"shop": shop, "at": at.isoformat()}]
        with closing(node.pair.features(node.copy)) as replica:
            before = replica.features_for(request).columns.to_pylist()
            node.rebuild()
            ballast = fill(disk, left_bytes=0)
            assert node.tick() is ViewStatus.FAILING
            assert "the disk is full, so the view is not updated" in node.keeper.report.problem
            assert repr(replica.features_for(request).columns.to_pylist()) == repr(before)
            assert list(node.copy.glob("building*")) == []
        ballast.unlink()
        node.tick(RETRY_SECONDS)
        assert node.keeper.report.problem == ""
        node.pair.check()


def test_copies_that_no_order_reads_are_deleted(tmp_path: Path) -> None:
    copies = [tmp_path / "views" / name for name in ("used", "unused")]
    for copy in copies:
        copy.mkdir(parents=True)
    version = ServedVersion(label="w/m@1", folder="", features="any", view=str(copies[0]))
    ViewKeepers(tmp_path).tick([ServiceOrder(name="any", versions=(version,))])
    assert [copy.exists() for copy in copies] == [True, False]
