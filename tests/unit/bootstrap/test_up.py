"""Whom `gridmill up` takes a home over from, and when it does not try to."""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from gridmill.__main__ import main
from gridmill.bootstrap.home_lock import lock_home
from gridmill.bootstrap.serving import is_permanent
from gridmill.http.server import listen_at
from gridmill.sdk.start_lock import asking
from gridmill.testing.fake_grid import FakeGrid
from gridmill.testing.local_calls import ServedGrid


@pytest.fixture
def port() -> Iterator[int]:
    """One that is taken."""
    with listen_at("127.0.0.1", 0) as taken:
        yield taken.getsockname()[1]


def test_nobody_gives_way_to_one_whose_port_is_taken(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with lock_home(tmp_path):
        served = ServedGrid(FakeGrid(), tmp_path, stays=False)
        assert up(tmp_path, port) == 8
        assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
        served.stop()
    assert not served.ended_for_server, "nobody was asked"


def test_a_home_that_has_one_is_refused_whatever_the_port(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with lock_home(tmp_path):
        announce(tmp_path)
        assert up(tmp_path, port) == 6
    assert f"a control node (process {os.getpid()}) already owns" in capsys.readouterr().err


def test_the_second_of_two_that_start_at_once_waits_for_the_first_and_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadPoolExecutor(1) as threads, lock_home(tmp_path):
        with asking(tmp_path):
            second = threads.submit(up, tmp_path, 0)
            assert not wait([second], timeout=1).done
            announce(tmp_path)
        assert second.result() == 6
    told = capsys.readouterr().err
    assert "already owns" in told
    assert "does not end" not in told


def test_one_that_was_killed_does_not_stay_because_its_number_is_ours(tmp_path: Path) -> None:
    announce(tmp_path)
    with lock_home(tmp_path):
        assert not is_permanent(tmp_path)
        announce(tmp_path)
        assert is_permanent(tmp_path)


def announce(home: Path) -> None:
    (home / "control.json").write_text(json.dumps({"pid": os.getpid()}))


def up(home: Path, port: int) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["--home", str(home), "up", "--listen", f"127.0.0.1:{port}"])
    assert isinstance(ended.value.code, int)
    return ended.value.code
