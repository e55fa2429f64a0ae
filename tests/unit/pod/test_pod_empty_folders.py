"""Emptied folders are used again, and only those that are as the pod made them."""

import os
from pathlib import Path

import pytest

from gridmill.pod.empty_folders import ATTEMPT, INNER, EmptyFolders


@pytest.fixture
def empties(tmp_path):
    made = EmptyFolders(tmp_path / "emptied")
    made.make(tmp_path / "first", ATTEMPT, mode=0o700)
    made.make(tmp_path / "first" / "work", INNER)
    yield made
    made.close()
    assert not (tmp_path / "emptied").exists()


def number(folder: Path) -> int:
    return folder.stat().st_ino


def test_a_cleared_folder_and_those_in_it_are_given_out_again(tmp_path, empties):
    first, work = number(tmp_path / "first"), number(tmp_path / "first" / "work")
    (tmp_path / "first" / "work" / "file").write_text("x")
    (tmp_path / "first" / "work" / "link").symlink_to(tmp_path)
    assert empties.clear(tmp_path / "first", ATTEMPT, 10)
    assert not (tmp_path / "first").exists()
    empties.make(tmp_path / "second", ATTEMPT, mode=0o700)
    empties.make(tmp_path / "second" / "work", INNER)
    assert (first, work) == (number(tmp_path / "second"), number(tmp_path / "second" / "work"))
    assert os.listdir(tmp_path / "second") == ["work"]
    assert os.listdir(tmp_path / "second" / "work") == []


def changed_mode(folder: Path) -> None:
    folder.chmod(0o711)


def changed_attribute(folder: Path) -> None:
    try:
        os.setxattr(folder, "user.note", b"x")
    except OSError:
        pytest.skip("the file system has no attributes")


@pytest.mark.parametrize("change", [changed_mode, changed_attribute])
def test_a_folder_that_a_job_changed_is_removed(tmp_path, empties, change):
    change(tmp_path / "first" / "work")
    old = os.open(tmp_path / "first" / "work", os.O_RDONLY)  # its number stays taken
    assert empties.clear(tmp_path / "first" / "work", INNER, 10)
    assert not (tmp_path / "first" / "work").exists()
    empties.make(tmp_path / "first" / "work", INNER)
    assert number(tmp_path / "first" / "work") != os.fstat(old).st_ino
    os.close(old)


def test_a_folder_with_an_entry_is_not_kept(tmp_path, empties):
    (tmp_path / "first" / "work" / "file").write_text("x")
    empties.keep(tmp_path / "first" / "work", INNER)
    assert (tmp_path / "first" / "work" / "file").exists()


def test_a_folder_that_is_there_is_refused_whether_one_is_kept_or_not(tmp_path, empties):
    (tmp_path / "there").mkdir()
    for _ in range(2):
        with pytest.raises(FileExistsError):
            empties.make(tmp_path / "there", INNER)
        empties.keep(tmp_path / "first" / "work", INNER)


def test_a_link_in_the_place_of_the_folder_is_not_followed(tmp_path, empties):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    (tmp_path / "first" / "work").rmdir()
    (tmp_path / "first" / "work").symlink_to(tmp_path / "other")
    assert not empties.clear(tmp_path / "first" / "work", INNER, 10)
    assert (tmp_path / "other" / "file").exists()
    assert empties.clear(tmp_path / "first", ATTEMPT, 10)
    assert (tmp_path / "other" / "file").exists()


def test_what_is_too_much_to_remove_is_left(tmp_path, empties):
    for index in range(5):
        (tmp_path / "first" / "work" / str(index)).write_text("")
    assert not empties.clear(tmp_path / "first", ATTEMPT, 5)
    assert empties.clear(tmp_path / "first", ATTEMPT, 6)
    assert empties.clear(tmp_path / "first", ATTEMPT, 6)
