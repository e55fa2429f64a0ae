"""Folders for archives: in use while somebody holds them, left when whoever made them is gone."""

from pathlib import Path

from gridmill.ports.disk import DiskArea
from gridmill.storage.archive import STAGING, is_left, staging
from gridmill.storage.disk_usage import LocalHomeFolders


def test_one_is_in_use_until_its_end_and_then_gone(tmp_path: Path) -> None:
    with staging(tmp_path / "root") as folder:
        assert not is_left(folder)
    assert not folder.exists()


def test_housekeeping_sees_what_was_left_and_takes_it_away_whole(tmp_path: Path) -> None:
    house = LocalHomeFolders(tmp_path, tmp_path / "root")
    left = tmp_path / "root" / f"{STAGING}dead"
    deep = left / "files" / "datasets" / "p" / "j"
    deep.mkdir(parents=True)
    (deep / "part").write_bytes(b"four")
    with staging(tmp_path / "root") as used:
        found = {thing.name: thing for thing in house.items()}
        assert {name: thing.ended for name, thing in found.items()} == {left.name: True, used.name: False}
        assert found[left.name].size_bytes == 4
        assert {thing.area for thing in found.values()} == {DiskArea.IMPORT}
        house.move_to_trash(found[left.name])
        assert not left.exists()
        (going,) = (thing for thing in house.items() if thing.name != used.name)
        house.delete(going)
        assert list((tmp_path / "root").iterdir()) == [used]
