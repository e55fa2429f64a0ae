"""An embedded control node gives way to one that comes to stay."""

from contextlib import ExitStack
from pathlib import Path

from gridmill.model.job import CommandSpec, Job
from gridmill.model.pipeline import Pipeline
from gridmill.sdk.client import Client
from gridmill.sdk.dial import Dialled, home_settings
from gridmill.sdk.turn import asking, is_asked
from gridmill.testing.grid import FakeGrid


def test_who_asks_is_seen_for_as_long_as_it_does(tmp_path: Path) -> None:
    assert not is_asked(tmp_path)
    with asking(tmp_path):
        assert is_asked(tmp_path)
        assert is_asked(tmp_path)
    assert not is_asked(tmp_path)


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
    client.let_others_in(lambda grid: lambda: said.append("listens no more"))
    demo = Pipeline(name="demo", jobs=(Job(name="first", command=CommandSpec(run="true")),))
    run = there.grid.start_run(demo)
    asks.enter_context(asking(tmp_path))
    assert client.status("demo").run.id == run.run.id
    assert said == ["listens no more", "gave way", "closed"]
    assert not client.embedded
    client.let_others_in(lambda grid: lambda: said.append("never"))
    client.close()
    assert "never" not in said
