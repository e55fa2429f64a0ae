"""Whose a pipeline's folders below a storage root are."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gridmill.errors import ConflictError, UnavailableError
from gridmill.storage.root import claim


def test_the_first_has_it_for_good_and_the_second_is_told_who(tmp_path: Path):
    claim(tmp_path, "sales", "one", "/home/a")
    claim(tmp_path, "sales", "one", "/moved/a")
    claim(tmp_path, "other", "two", "/home/b")
    with pytest.raises(
        ConflictError, match=re.escape("pipeline 'sales' of another home (/home/a on ")
    ) as caught:
        claim(tmp_path, "sales", "two", "/home/b")
    assert str(tmp_path / "owners" / "sales") in caught.value.hint


def test_of_many_at_once_one_has_it(tmp_path: Path):
    def tried(number: int) -> bool:
        try:
            claim(tmp_path, "sales", str(number), "/home")
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(tried, range(64))) == 1
    assert [path.name for path in (tmp_path / "owners").iterdir()] == ["sales"]


def test_a_killed_claim_is_nobodys(tmp_path: Path):
    (tmp_path / "owners" / "sales").mkdir(parents=True)  # made by hand, or its file was lost
    claim(tmp_path, "sales", "two", "/home/b")
    with pytest.raises(ConflictError):
        claim(tmp_path, "sales", "one", "/home/a")


def test_a_root_that_cannot_be_written_says_so(tmp_path: Path):
    (tmp_path / "root").write_text("a file")
    with pytest.raises(UnavailableError, match="cannot write to the storage root"):
        claim(tmp_path / "root", "sales", "one", "/home/a")
