"""The key of a home: made once, read again, and refused with the next step where the file has none."""

from pathlib import Path

import pytest

from gridmill.bootstrap.home_lock import home_secret
from gridmill.errors import StorageError


def test_the_key_is_made_once(tmp_path: Path):
    key = home_secret(tmp_path)
    assert len(key) == 32
    assert home_secret(tmp_path) == key


@pytest.mark.parametrize(
    "content", [b"", b"rubbish", b"\xff\xfe", b"00" * 8], ids=["empty", "text", "bytes", "short"]
)
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(StorageError, match="the key file is damaged") as caught:
        home_secret(tmp_path)
    assert caught.value.place == str(tmp_path / "secret")
    assert "a new key is created" in caught.value.hint
