"""An embedded control node gives way to one that comes to stay."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from gridmill.errors import StorageError
from gridmill.model.job import CommandSpec, Job
from gridmill.model.pipeline import Pipeline
from gridmill.sdk.client import Client
from gridmill.sdk.connected import let_others_in
from gridmill.sdk.dial import Dialled, home_settings
from gridmill.sdk.turn import asking, is_asked
from gridmill.testing.grid import FakeGrid

_THREADS = 4
_DEMO = Pipeline(name="demo", jobs=(Job(name="first", command=CommandSpec(run="true")),))


def test_who_asks_is_seen_for_as_long_as_it_does(tmp_path: Path) -> None:
    assert not is_asked(tmp_path)
    with asking(tmp_path):
        assert is_asked(tmp_path)
        assert is_asked(tmp_path)
    assert not is_asked(tmp_path)


def test_those_who_look_do_not_see_each_other(tmp_path: Path) -> None:
    with asking(tmp_path):
        pass
    with ThreadPoolExecutor(_THREADS) as threads:
        assert not any(threads.map(is_asked, [tmp_path] * 2000))


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


def test_where_nobody_can_ask_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "control.next").mkdir()
    told = rf"{tmp_path}/control.next cannot be locked: Is a directory"
    with pytest.raises(StorageError, match=told), asking(tmp_path):
        pass
    assert not is_asked(tmp_path)


def test_of_several_threads_one_gives_way(tmp_path: Path) -> None:
    said: list[str] = []
    asks = ExitStack()
    there = Dialled(grid=FakeGrid(), close=lambda: said.append("closed the next one"))
    there.grid.start_run(_DEMO)

    def give_way() -> None:
        said.append("gave way")
        threading.Event().wait(0.1)  # for the others to see that somebody asks
        asks.close()

    here = Dialled(grid=FakeGrid(), close=lambda: None, embedded=True, give_way=give_way)
    dialled = iter((here, there))
    client = Client(home_settings(tmp_path), dial=lambda: next(dialled))
    asks.enter_context(asking(tmp_path))
    together = threading.Barrier(_THREADS)

    def look(_: int) -> None:
        together.wait()
        client.status("demo")

    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(look, range(_THREADS)))
    assert said == ["gave way"]


def test_an_embedded_one_ends_for_who_asks_and_its_client_goes_on_there(tmp_path: Path) -> None:
    said: list[str] = []
    asks = ExitStack()

    def give_way() -> None:
        said.append("gave way")
        asks.close()  # it is up now

    here = Dialled(grid=FakeGrid(), close=lambda: said.append("closed"), embedded=True, give_way=give_way)
    there = Dialled(grid=FakeGrid(), close=lambda: None)
    dialled = iter((here, there))
    client = Client(home_settings(tmp_path), dial=lambda: next(dialled))
    let_others_in(client, lambda grid: lambda: said.append("listens no more"))
    run = there.grid.start_run(_DEMO)
    asks.enter_context(asking(tmp_path))
    assert client.status("demo").run.id == run.run.id
    assert said == ["listens no more", "gave way", "closed"]
    assert not client.embedded
    let_others_in(client, lambda grid: lambda: said.append("never"))
    client.close()
    assert "never" not in said
