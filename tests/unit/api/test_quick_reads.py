"""Frequent reads are answered as the routes answer them, and what is not plain is left to the routes."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from gridmill.api.app import make_app
from gridmill.api.quick_reads import THREADS, QuickReads, _Commits
from gridmill.codec import encode
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.job_log import LogEntry
from gridmill.domain.pipeline import Pipeline
from gridmill.http.server import serve
from gridmill.testing.fake_grid import FakeGrid

PIPELINE = Pipeline(name="p", jobs=(Job(name="a", command=CommandSpec(run="true")),))
PATHS = (
    "/v1/control",
    "/v1/runs/p-1",
    "/v1/runs/p-1?since=",
    "/v1/runs/none",
    "/v1/runs/p-1/jobs/a",
    "/v1/runs/p-1/jobs/none",
    "/v1/runs/p-1/events",
    "/v1/runs/p-1/events?limit=1&after=",
    "/v1/runs/p-1/events?job=a&wait_seconds=0",
    "/v1/runs/p-1/events?after=rubbish",
    "/v1/runs/none/events",
    "/v1/runs/p-1/logs?tail=3&job=a",
    "/v1/runs/p-1/logs?search=x",
    "/v1/runs/none/logs",
)
ODD = (
    "/v1/runs/p-1?since=a&since=b",
    "/v1/runs/p-1?x=1",
    "/v1/runs/p-1?since=" + "x" * 101,
    "/v1/runs/" + "x" * 201,
    "/v1/runs/p-1/events?limit=0",
    "/v1/runs/p-1/events?limit=10001",
    "/v1/runs/p-1/events?limit=%2B5",
    "/v1/runs/p-1/events?limit=",
    "/v1/runs/p-1/events?wait_seconds=61",
    "/v1/runs/p-1/events?wait_seconds=-1",
    "/v1/runs/p-1/logs?tail=1000001",
    "/v1/runs/p-1/",
    "/v1/runs/p-1%2Fjobs",
)


class PassedOnError(Exception):
    """The middleware passed the request on."""


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    raise PassedOnError


def quickly(grid: FakeGrid, path: str) -> tuple[int, bytes]:
    """The answer of the middleware alone."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    url = httpx.URL(f"http://localhost{path}")
    scope = {
        "type": "http",
        "method": "GET",
        "path": url.path,
        "query_string": url.query,
        "headers": [],
        "root_path": "",
    }
    asyncio.run(QuickReads(_refuse, grid=grid)(scope, receive, send))
    return sent[0]["status"], sent[1]["body"]


@pytest.fixture(scope="module")
def grid() -> FakeGrid:
    made = FakeGrid()
    made.start_run(PIPELINE)
    return made


@pytest.fixture(scope="module")
def by_routes(grid: FakeGrid) -> Iterator[httpx.Client]:
    """Answers of the routes: with a header of a body the middleware passes every request on."""
    server = serve(make_app(grid))
    with httpx.Client(base_url=server.address, headers={"content-length": "0"}, timeout=60) as client:
        yield client
    server.stop()


@pytest.mark.parametrize("path", [path for path in PATHS if "search" not in path])
def test_a_plain_read_is_answered_as_the_routes_answer_it(
    grid: FakeGrid, by_routes: httpx.Client, path: str
) -> None:
    expected = by_routes.get(path)
    assert quickly(grid, path) == (expected.status_code, expected.content)


@pytest.mark.parametrize("path", [*ODD, "/v1/runs/p-1/logs?search=x", "/v1/pipelines", "/v1/runs/p-1/report"])
def test_what_is_not_plain_is_passed_on(grid: FakeGrid, path: str) -> None:
    with pytest.raises(PassedOnError):
        quickly(grid, path)


@pytest.mark.parametrize("path", [*PATHS, *ODD])
def test_the_whole_application_answers_as_its_routes(by_routes: httpx.Client, path: str) -> None:
    plain = httpx.get(f"{by_routes.base_url}{path}".replace("//v1", "/v1"), timeout=60)
    expected = by_routes.get(path)
    assert (plain.status_code, plain.content) == (expected.status_code, expected.content)
    assert plain.headers.get("content-type") == expected.headers.get("content-type")


class ReadyGrid(FakeGrid):
    """A grid whose events are in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.kept, self.threads = b"[]", set[str]()
        self.watchers: list[Callable[[], None]] = []

    def ready(self, name: str, arguments: Mapping[str, Any]) -> bytes | None:
        self.threads.add(threading.current_thread().name)
        return self.kept if name == "events" else None

    def encoded(self, name: str, arguments: Mapping[str, Any]) -> bytes:
        return encode(getattr(self, name)(**arguments))

    def watch(self, watcher: Callable[[], None]) -> None:
        self.watchers.append(watcher)


def test_many_followers_wait_without_threads_and_all_hear_of_a_commit() -> None:
    grid = ReadyGrid()
    server = serve(make_app(grid))
    answers: list[bytes] = []

    async def follow(client: httpx.AsyncClient) -> None:
        answers.append((await client.get("/v1/runs/p-1/events?wait_seconds=20")).content)

    async def together() -> float:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.address, limits=limits, timeout=60) as client:
            tasks = [asyncio.create_task(follow(client)) for _ in range(100)]
            while not grid.watchers:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)
            assert not answers
            assert sum(one.name.startswith(("read", "AnyIO")) for one in threading.enumerate()) <= 40
            grid.kept, begun = b'[{"id":"1"}]', time.monotonic()
            grid.watchers[0]()
            await asyncio.gather(*tasks)
            return time.monotonic() - begun

    try:
        assert asyncio.run(together()) < 15
        assert answers == [b'[{"id":"1"}]'] * 100
        assert len(grid.watchers) == 1
        assert grid.threads == {"gridmill-api"}
    finally:
        server.stop()


def test_a_follower_gets_an_empty_answer_when_its_time_is_over_or_the_server_stops() -> None:
    server = serve(make_app(ReadyGrid()))
    begun = time.monotonic()
    assert httpx.get(f"{server.address}/v1/runs/p-1/events?wait_seconds=1", timeout=60).content == b"[]"
    assert 0.9 < time.monotonic() - begun < 30
    answers: list[bytes] = []

    def follow() -> None:
        answers.append(httpx.get(f"{server.address}/v1/runs/p-1/events?wait_seconds=30", timeout=40).content)

    follower = threading.Thread(target=follow)
    follower.start()
    time.sleep(0.5)
    server.stop()
    follower.join(30)
    assert answers == [b"[]"]


class SlowLogs(FakeGrid):
    """A grid whose logs are on a slow disk."""

    def __init__(self) -> None:
        super().__init__()
        self.reading, self.go_on = threading.Semaphore(0), threading.Event()

    def logs(self, run_id: str, **query: Any) -> tuple[LogEntry, ...]:
        self.reading.release()
        self.go_on.wait(60)
        return ()


def test_slow_reads_of_logs_do_not_delay_the_other_reads() -> None:
    grid = SlowLogs()
    grid.start_run(PIPELINE)
    server = serve(make_app(grid))
    threads = [
        threading.Thread(
            target=httpx.get, args=(f"{server.address}/v1/runs/p-1/logs",), kwargs={"timeout": 60}
        )
        for _ in range(THREADS + 4)
    ]
    try:
        for thread in threads:
            thread.start()
        for _ in range(THREADS):
            assert grid.reading.acquire(timeout=30)
        assert httpx.get(f"{server.address}/v1/control", timeout=20).status_code == 200
    finally:
        grid.go_on.set()
        for thread in threads:
            thread.join(60)
        server.stop()


class ClosingLoop:
    """A loop that another thread closes at once after a check that it is open."""

    def create_future(self) -> object:
        return object()

    def is_closed(self) -> bool:
        return False

    def call_soon_threadsafe(self, callback: object) -> None:
        raise RuntimeError("Event loop is closed")


def test_a_commit_while_the_server_closes_its_loop_does_not_fail() -> None:
    loop: Any = ClosingLoop()
    commits = _Commits(loop)
    commits.next()
    commits.note()
