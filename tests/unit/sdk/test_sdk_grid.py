"""The Grid in memory and the same Grid over HTTP answer alike."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gridmill.api.app import make_app
from gridmill.declarations import parse_declarations
from gridmill.domain.artifact import Alias, ArtifactKind
from gridmill.domain.backfill import Backfill, Chunk, ChunkState, spans
from gridmill.domain.job import CommandSpec, Job, JobKind
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.resource import Resource
from gridmill.domain.states import JobState, RunState
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.errors import InputError, NotFoundError, PipelineError, StaleVersionError, UnavailableError
from gridmill.http.server import serve
from gridmill.ports.grid import Grid
from gridmill.rpc.client import SOCKET, connect_to
from gridmill.rpc.protocol import Hello
from gridmill.sdk.grid_http import over_tcp
from gridmill.testing.fake_grid import Act, FakeGrid
from gridmill.testing.local_calls import ServedGrid

MakeGrid = Callable[[FakeGrid], Grid]


@pytest.fixture(params=["memory", "http", "calls"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeGrid]:
    if request.param == "memory":
        yield lambda fake: fake
        return
    servers: list[Any] = []

    def over_calls(fake: FakeGrid) -> Grid:
        servers.append(ServedGrid(fake, tmp_path))
        return connect_to(tmp_path / SOCKET, Hello(), lambda warning: None).grid()

    if request.param == "calls":
        yield over_calls
        for server in servers:
            server.stop()
        return

    def over_http(fake: FakeGrid) -> Grid:
        servers.append(serve(make_app(fake)))
        return over_tcp(servers[-1].address, None)

    yield over_http
    for server in servers:
        server.stop()


def two_jobs() -> Pipeline:
    return Pipeline(
        name="demo",
        jobs=(
            Job(name="first", command=CommandSpec(run="true")),
            Job(name="second", command=CommandSpec(run=("a", "b"), env={"X": "1"}), needs=("first",)),
        ),
        parameters={"rate": 0.5, "deep": True, "epochs": 3, "label": "t"},
    )


def a_training() -> Pipeline:
    spec = TrainingSpec(dataset="data", model=ModelKind.NAIVE)
    return Pipeline(name="demo", jobs=(Job(name="model", training=spec),))


def test_a_run_comes_back_whole(make: MakeGrid) -> None:
    grid = make(FakeGrid())
    view = grid.start_run(two_jobs(), force=True)
    assert view.run.id == "demo-1"
    assert view.run.state == RunState.SUCCEEDED
    assert view.run.parameters == {"rate": 0.5, "deep": True, "epochs": 3, "label": "t"}
    assert [job.job.state for job in view.jobs] == [JobState.SUCCEEDED] * 2
    assert grid.run("demo-1") == view
    assert grid.runs().items == (view.run,)
    assert grid.runs(pipeline="other").items == ()
    assert grid.runs(states=(RunState.FAILED, RunState.SUCCEEDED)).items == (view.run,)
    assert grid.runs(states=(RunState.FAILED,)).items == ()


def test_a_run_is_removed_with_a_dry_run_first(make: MakeGrid) -> None:
    grid = make(FakeGrid())
    grid.start_run(two_jobs())
    plan = grid.remove_run("demo-1", dry_run=True)
    assert (plan.run, plan.jobs, plan.attempts) == ("demo-1", 2, 2)
    assert plan.versions == ("demo/first@1", "demo/second@1")
    assert grid.remove_run("demo-1") == plan
    assert grid.runs().items == ()
    with pytest.raises(NotFoundError):
        grid.remove_run("demo-1")


def test_only_brings_what_it_needs(make: MakeGrid) -> None:
    grid = make(FakeGrid())
    assert len(grid.start_run(two_jobs(), only=("first",)).jobs) == 1
    assert len(grid.start_run(two_jobs(), only=("second",)).jobs) == 2
    with pytest.raises(NotFoundError):
        grid.start_run(two_jobs(), only=("third",))


def test_a_failed_run_is_resumed_and_a_hanging_one_stopped(make: MakeGrid) -> None:
    fake = FakeGrid(acts={"first": Act.FAIL})
    grid = make(fake)
    assert grid.start_run(two_jobs()).run.state == RunState.FAILED
    fake.acts["first"] = Act.HANG
    assert grid.resume("demo-1").run.state == RunState.ACTIVE
    assert grid.stop_run("demo-1", job="first").jobs[0].job.state == JobState.STOPPED
    assert grid.stop_run("demo-1").run.state == RunState.STOPPED
    fake.acts.clear()
    assert grid.resume("demo-1").run.state == RunState.SUCCEEDED
    assert grid.resume("demo-1").run.state == RunState.SUCCEEDED, "repeating it is no error"


def test_events_page_filter_and_wait(make: MakeGrid) -> None:
    fake = FakeGrid(acts={"first": Act.HANG})
    grid = make(fake)
    grid.start_run(two_jobs())
    every = grid.events("demo-1")
    assert grid.events("demo-1", limit=2) == every[:2]
    assert grid.events("demo-1", after=every[1].id) == every[2:]
    assert {event.job for event in grid.events("demo-1", job="first")} == {"first"}
    assert grid.events("demo-1", after=every[-1].id) == ()
    said = threading.Timer(0.05, fake.emit, ("demo-1", "first", "metric", {"text": "x\n"}))
    said.start()
    new = grid.events("demo-1", after=every[-1].id, wait_seconds=30)
    assert [event.body["text"] for event in new] == ["x\n"]


def test_logs_page_filter_search_and_wait(make: MakeGrid) -> None:
    fake = FakeGrid(acts={"first": Act.HANG})
    grid = make(fake)
    grid.start_run(two_jobs())
    for number in range(5):
        fake.emit("demo-1", "second", "log", {"stream": "out", "text": f"line {number}\n"})
    every = grid.logs("demo-1")
    assert [one.text for one in every] == ["first starts\n", *(f"line {number}\n" for number in range(5))]
    assert grid.logs("demo-1", limit=2) == every[:2]
    assert grid.logs("demo-1", after=every[1].id) == every[2:]
    assert grid.logs("demo-1", job="first") == every[:1]
    assert grid.logs("demo-1", attempt="demo-1.second.1", tail=2)[-2:] == every[-2:]
    assert grid.logs("demo-1", search="line 3") == every[4:5]
    assert grid.logs("demo-1", after="14", until=17)[0].text == "ine"
    said = threading.Timer(0.05, fake.emit, ("demo-1", "first", "log", {"stream": "out", "text": "x\n"}))
    said.start()
    assert [one.text for one in grid.logs("demo-1", after=every[-1].id, wait_seconds=30)] == ["x\n"]
    with pytest.raises(InputError):
        grid.logs("demo-1", after="x")
    with pytest.raises(NotFoundError):
        grid.logs("demo-7")


def test_resources_pipelines_artifacts_bundles(make: MakeGrid) -> None:
    grid = make(FakeGrid())
    resource = Resource(
        name="big", type=JobKind.TRAINING, cpus=2.0, memory_bytes=2**31, jobs=("demo/second",)
    )
    configured, sizing = grid.configure_resource(resource)
    assert (configured, sizing.amounts.memory_bytes) == (resource, 2**31)
    assert grid.resources().items == (resource,)
    grid.remove_resource("big")
    assert grid.resources().items == ()
    assert grid.apply(two_jobs()) == two_jobs()
    assert grid.pipelines().items == (grid.pipeline("demo"),)
    grid.start_run(two_jobs())
    assert [one.id for one in grid.artifacts().items] == ["demo/second@1", "demo/first@1"]
    assert grid.artifacts(kind=ArtifactKind.MODEL).items == ()
    assert grid.artifact("demo/first@1") == grid.artifact("demo/first")
    assert grid.remove_artifact("demo/first@1", dry_run=True).versions == ("demo/first@1",)
    grid.remove_artifact("demo/first@1")
    assert [one.id for one in grid.artifacts().items] == ["demo/second@1"]
    grid.remove_pipeline("demo")
    assert grid.pipelines().items == ()
    digest = "ab" * 32
    assert not grid.has_bundle(digest)
    grid.put_bundle(digest, b"\x00\xff")
    assert grid.has_bundle(digest)


def test_aliases(make: MakeGrid) -> None:
    grid = make(FakeGrid())
    grid.start_run(two_jobs())
    prod = Alias(id="demo/first@prod", name="demo/first", alias="prod", number=1)
    assert grid.set_alias(prod, expected=0).number == 1
    with pytest.raises(StaleVersionError):
        grid.set_alias(prod, expected=0)
    assert [one.id for one in grid.aliases(name="demo/first").items] == ["demo/first@prod"]
    assert grid.artifact("demo/first@prod").id == "demo/first@1"
    grid.remove_alias("demo/first@prod")
    assert grid.aliases().items == ()
    assert grid.version("demo/first").artifact.number == 1
    assert grid.preview("demo/first", rows=2).rows == ((0,), (1,))
    assert [one.part for one in grid.diff("demo/first", "demo/second", key=("a", "b")).differences] == []


def test_models_are_compared(make: MakeGrid) -> None:
    grid = make(FakeGrid())
    for _ in range(2):
        grid.start_run(a_training())
    assert [one.id for one in grid.compare("demo/model").models] == ["demo/model@1", "demo/model@2"]
    assert [one.id for one in grid.compare("demo/model", ("2", "@1")).models] == [
        "demo/model@2",
        "demo/model@1",
    ]
    with pytest.raises(NotFoundError):
        grid.compare("demo/model", ("1", "7"))
    with pytest.raises(InputError, match="all of these are demo/model@1"):
        grid.compare("demo/model@1", ("1",))


def test_the_rest_answers(make: MakeGrid) -> None:
    fake = FakeGrid()
    grid = make(fake)
    grid.start_run(two_jobs())
    assert grid.control().active_runs == 0
    assert grid.sites().items[0].name == "local"
    assert grid.deployments().items == ()
    assert [job.wave for job in grid.plan_run(two_jobs()).jobs] == [1, 2]
    assert "demo-1" in grid.report("demo-1")
    grid.release("anything-1")
    grid.shutdown()
    assert fake.calls[-2:] == ["release anything-1", "shutdown"]


def test_what_is_not_there_is_not_found(make: MakeGrid) -> None:
    grid = make(FakeGrid())
    for ask in (grid.run, grid.pipeline, grid.artifact, grid.remove_resource, grid.report, grid.resume):
        with pytest.raises(NotFoundError):
            ask("none-1")


def test_names_that_are_odd_do_not_reach_other_routes() -> None:
    server = serve(make_app(FakeGrid()))
    try:
        grid = over_tcp(server.address, None)
        for name in ("a/events", "a?b", "ä ö", "%2e%2e", "a#b"):
            with pytest.raises(NotFoundError):
                grid.run(name)
        for name in ("..", ".", "", "../control"):
            with pytest.raises((InputError, NotFoundError)):
                grid.artifact(name)
    finally:
        server.stop()


def test_no_control_node_is_unavailable_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        connect_to(tmp_path / SOCKET, Hello(), lambda warning: None)
    assert "gridmill up" in caught.value.hint


def test_tcp_needs_the_token_and_a_loopback_host() -> None:
    server = serve(make_app(FakeGrid(), token="secret"), host="127.0.0.1", port=0)
    try:
        assert over_tcp(server.address, "secret").control().pid == 1
        for token in (None, "wrong", "sécret"):
            with pytest.raises(InputError) as caught:
                over_tcp(server.address, token).control() if token != "sécret" else _latin(server.address)
            assert "token" in caught.value.message
        answer = httpx.get(
            f"{server.address}/v1/control", headers={"Host": "evil.example", "Authorization": "Bearer secret"}
        )
        assert answer.status_code == 403
        assert httpx.get(f"{server.address}/healthz").json() == {"status": "ok"}
    finally:
        server.stop()


def _latin(address: str) -> None:
    answer = httpx.get(f"{address}/v1/control", headers={"Authorization": "Bearer sécret".encode("latin-1")})
    raise InputError(answer.json()["message"])


def test_a_backfill_comes_back_whole(make: MakeGrid) -> None:
    grid = make(FakeGrid())
    kept = Backfill(name="demo", begins="2013-01-01", ends="2013-01-10", every_seconds=7 * 86_400.0)
    pipelines = [replace(two_jobs(), parameters={"from": b, "to": e}) for b, e in spans(kept)]
    chunks = tuple(
        Chunk(pipeline=one, begins=str(one.parameters["from"]), ends=str(one.parameters["to"]))
        for one in pipelines
    )
    view = grid.start_backfill(kept, chunks)
    assert view.counts == {ChunkState.LEFT: 2}
    assert view.chunks[1].ends == "2013-01-10"
    assert (grid.backfill("demo"), grid.backfills().items) == (view, (view,))
    assert grid.stop_backfill("demo").backfill.stopped
    assert not grid.start_backfill(kept).backfill.stopped
    with pytest.raises(NotFoundError):
        grid.backfill("other")
    with pytest.raises(InputError, match="before it begins"):
        grid.start_backfill(replace(kept, ends="2012-01-01"))


def test_a_kept_pipeline_is_backfilled_by_its_name(make: MakeGrid) -> None:
    grid = make(FakeGrid())
    text = "pipeline: demo\nparameters: {from: a, to: b, rate: 1}\njobs: {count: {command: 'echo ${from}'}}"
    asked = Backfill(name="demo", begins="2013-01-01", ends="2013-01-15", every_seconds=7 * 86_400.0)
    with pytest.raises(NotFoundError):
        grid.backfill_pipeline(asked, {})
    (pipeline,) = parse_declarations(text, file="demo.yaml", folder="/nowhere")
    assert isinstance(pipeline, Pipeline)
    grid.apply(pipeline)
    assert grid.backfill_pipeline(asked, {"rate": "2"}).counts == {ChunkState.LEFT: 2}
    with pytest.raises(PipelineError, match="expected a number"):
        grid.backfill_pipeline(asked, {"rate": "much"})
