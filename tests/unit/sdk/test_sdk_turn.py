"""One at a time starts a control node of a home."""

import threading
from pathlib import Path

import pytest

from gridmill.errors import StorageError
from gridmill.sdk.start_lock import asking, asking_if_free


def test_whose_turn_it_is_has_it_for_as_long_as_the_block(tmp_path: Path) -> None:
    with asking_if_free(tmp_path) as first, asking_if_free(tmp_path) as second:
        assert (first, second) == (True, False)
    with asking_if_free(tmp_path) as again:
        assert again


def test_who_asks_second_waits_for_the_first(tmp_path: Path) -> None:
    asked = threading.Event()

    def ask() -> None:
        with asking(tmp_path):
            asked.set()

    second = threading.Thread(target=ask)
    with asking(tmp_path):
        second.start()
        assert not asked.wait(0.1)
    second.join()
    assert asked.is_set()


@pytest.mark.parametrize("ask", [asking, asking_if_free])
def test_where_nobody_can_ask_it_is_told(tmp_path: Path, ask) -> None:
    (tmp_path / "control.next").mkdir()
    told = rf"{tmp_path}/control.next cannot be locked: Is a directory"
    with pytest.raises(StorageError, match=told), ask(tmp_path):
        pass
