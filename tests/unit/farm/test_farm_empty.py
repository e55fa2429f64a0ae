"""Folders that are left empty at a farm."""

from pathlib import Path

from tests.unit.transfer.test_staging_manifest import tree

from gridmill.farm.files import remove_empty


def below(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*")}


def test_what_is_empty_goes_and_nothing_else(tmp_path: Path) -> None:
    root = tree(tmp_path / "root", {"files/p/j/a/file": b"1"})
    for empty in ("files/p/j/b/deep", "files/p/k", "made/nothing/inside", "outside"):
        (root / empty).mkdir(parents=True)
    (tmp_path / "elsewhere/empty").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path / "elsewhere")
    remove_empty(root, {"made/nothing"})
    there = {"files", "files/p", "files/p/j", "files/p/j/a", "files/p/j/a/file", "link"}
    assert below(root) == there | {"made", "made/nothing", "made/nothing/inside"}
    assert (tmp_path / "elsewhere/empty").is_dir()
    remove_empty(root, ())
    assert below(root) == there
