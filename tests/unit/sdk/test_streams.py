"""Streams go on after an event's id, whatever became of the connection; ids have one form."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import httpx
import pytest
from tests.kit.faulty_proxy import FaultyProxy, faulty_proxy

from gridmill.api.app import make_app
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import event_id, sequence_of
from gridmill.errors import InputError
from gridmill.http.server import serve
from gridmill.sdk.client import Client
from gridmill.sdk.discovery import OpenGrid, home_settings
from gridmill.sdk.grid_http import over_tcp
from gridmill.testing.fake_grid import FakeGrid

TWO = Pipeline(name="p", jobs=tuple(Job(name=name, command=CommandSpec(run="true")) for name in "ab"))


@pytest.fixture
def grid() -> FakeGrid:
    made = FakeGrid()
    made.start_run(TWO)
    for number in range(60):
        made.emit("p-1", "ab"[number % 2], "metric", {"text": f"{number}\n"})
        made.emit("p-1", "ab"[number % 2], "log", {"stream": "out", "text": f"{number}\n"})
    return made


@pytest.fixture
def proxy(grid: FakeGrid) -> Iterator[FaultyProxy]:
    server = serve(make_app(grid))
    with faulty_proxy(server.address) as made:
        yield made
    server.stop()


def cut_some(proxy: FaultyProxy) -> None:
    """From now on the first answer of a stream is lost, of the second half arrives, the third is whole."""
    fates = cycle(["cut", "short", ""])
    proxy.fault = lambda method, path: next(fates) if "/events" in path or "/logs" in path else ""


@pytest.mark.parametrize("stream", ["events", "logs"])
@pytest.mark.parametrize("job", [None, "a"])
def test_a_connection_that_is_cut_loses_and_doubles_no_event(
    grid: FakeGrid, proxy: FaultyProxy, job: str | None, stream: str
) -> None:
    cut_some(proxy)
    found, after = list[dict](), ""
    while True:
        asked = {"after": after, "limit": "7"} | ({"job": job} if job else {})
        with suppress(httpx.TransportError):
            page = httpx.get(f"{proxy.endpoint}/v1/runs/p-1/{stream}", params=asked).json()
            if not page:
                break
            found += page
            after = page[-1]["id"]
    assert [one["id"] for one in found] == [one.id for one in getattr(grid, stream)("p-1", job=job)]
    assert proxy.faults > 10


def test_python_follows_a_run_over_a_connection_that_is_cut(
    grid: FakeGrid, proxy: FaultyProxy, tmp_path: Path
) -> None:
    client = Client(
        home_settings(tmp_path),
        dial=lambda: OpenGrid(grid=over_tcp(proxy.endpoint, None), close=lambda: None),
    )
    cut_some(proxy)
    every = grid.events("p-1")
    assert [*client.events("p-1", follow=True)] == [*every]
    assert [*client.events("p-1", after=every[10].id)] == [*every[11:]]
    assert [*client.log_entries("p-1", follow=True)] == [*grid.logs("p-1")]
    assert [one for tick in client.watch("p-1", after=every[3].id) for one in tick.events] == [*every[4:]]


def test_ids_grow_as_text_and_are_read_back() -> None:
    numbers = [0, 1, 9, 10, 255, 2**32, 2**62, 2**63 - 1]
    ids = [event_id(number) for number in numbers]
    assert ids == sorted(ids)
    assert [sequence_of(one) for one in ids] == numbers
    assert sequence_of("") == 0


@pytest.mark.parametrize(
    "wrong", ["7", "-1", "8" + 15 * "0", 15 * "0", 15 * "0" + "G", 16 * "\u0660", 16 * " "]
)
def test_what_is_no_id_is_refused(grid: FakeGrid, wrong: str) -> None:
    with pytest.raises(InputError, match="is not the id of an event"):
        grid.events("p-1", after=wrong)
