"""Code that a pod copies itself: few, small files, and no links."""

import pytest

from gridmill.pod.python_environments import is_small_code


def few(folder):
    (folder / "a.py").write_text("x")
    (folder / "b").mkdir()
    (folder / "b" / "c.py").write_text("y")


def many(folder):
    for index in range(17):
        (folder / str(index)).touch()


def nested(folder):
    for index in range(9):
        (folder / str(index)).mkdir()
        (folder / str(index) / "file").touch()


def large(folder):
    (folder / "a").write_bytes(bytes(256 * 1024))
    (folder / "b").write_bytes(b"x")


def linked(folder):
    (folder / "a").symlink_to("b")


@pytest.mark.parametrize(
    ("make", "small"), [(few, True), (many, False), (nested, False), (large, False), (linked, False)]
)
def test_code_is_small(tmp_path, make, small):
    make(tmp_path)
    assert is_small_code(tmp_path) is small
