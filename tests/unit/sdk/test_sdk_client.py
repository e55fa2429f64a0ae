"""The Python client on a grid in memory."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gridmill
from gridmill.api.app import make_app
from gridmill.domain.amounts import GIB
from gridmill.domain.artifact import ArtifactKind
from gridmill.domain.job import CommandSpec, Job, JobKind, JobSize
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.resource import Resource
from gridmill.domain.states import RunState
from gridmill.errors import (
    ConflictError,
    InputError,
    JobError,
    NotFoundError,
    PipelineError,
    UnavailableError,
)
from gridmill.http.server import serve
from gridmill.sdk.client import Client, connect
from gridmill.sdk.discovery import OpenGrid, home_settings, open_home
from gridmill.sdk.lookup import Noun, read_noun
from gridmill.sdk.notebook import plan_html, register, run_html
from gridmill.sdk.runs import Tick
from gridmill.testing.fake_grid import Act, FakeGrid
from gridmill.testing.local_calls import ServedGrid

FILE = """\
pipeline: demo
parameters: {rate: 0.5}
jobs:
  first:
    command: {run: "true"}
  second:
    needs: [first]
    command: {run: "echo ${rate}"}
"""


def pipeline(name: str = "demo") -> Pipeline:
    return Pipeline(
        name=name,
        jobs=(
            Job(name="first", command=CommandSpec(run="true")),
            Job(name="second", command=CommandSpec(run="true"), needs=("first",)),
        ),
    )


@pytest.fixture
def fake() -> FakeGrid:
    return FakeGrid()


@pytest.fixture
def client(fake: FakeGrid, tmp_path: Path) -> Client:
    return client_on(fake, tmp_path)


def client_on(fake: FakeGrid, home: Path) -> Client:
    return Client(home_settings(home), dial=lambda: OpenGrid(grid=fake, close=lambda: None))


def test_a_pipeline_built_in_python_runs(client: Client) -> None:
    view = client.run(pipeline())
    assert view.run.state == RunState.SUCCEEDED
    assert client.status("demo").run.id == "demo-1"  # the pipeline's newest run
    assert [run.id for run in client.list_runs()] == ["demo-1"]


def test_a_file_runs_with_its_code_bundle_and_parameters(
    client: Client, fake: FakeGrid, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "p.yaml").write_text(FILE)
    view = client.run(folder / "p.yaml", set={"rate": 2.5})
    assert view.run.parameters == {"rate": 2.5}
    kept = client.show("pipeline", "demo")
    assert client.grid.has_bundle(kept.bundle)
    again = list(fake.calls)
    client.run(str(folder / "p.yaml"))
    assert [call for call in fake.calls[len(again) :] if call.startswith("put_bundle")] == []


def test_a_wrong_file_is_explained(client: Client, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("pipeline: demo\njobs: {a: {comand: {run: x}}}\n")
    with pytest.raises(PipelineError) as caught:
        client.run(tmp_path / "p.yaml")
    assert "p.yaml:2" in str(caught.value)
    with pytest.raises(InputError):
        client.run(pipeline(), set={"a": 1})


def test_apply_keeps_all_that_a_file_declares(client: Client, tmp_path: Path) -> None:
    text = f"{FILE}---\nresource: big\ntype: command\nmemory: 2GiB\n"
    (tmp_path / "p.yaml").write_text(text)
    kept = client.apply(tmp_path / "p.yaml")
    assert [noun.name for noun in kept] == ["demo", "big"]
    assert client.list_resources()[0].memory_bytes == 2 * GIB
    assert client.list_pipelines()[0].name == "demo"


def test_a_failed_run_raises_when_checked_and_is_resumed(client: Client, fake: FakeGrid) -> None:
    fake.acts["first"] = Act.FAIL
    assert client.run(pipeline()).run.state == RunState.FAILED
    with pytest.raises(JobError) as caught:
        client.run(pipeline(), check=True)
    error = caught.value
    assert str(error) == ("run demo-2 failed: job first: exit code 3\n  | first starts\n  | it broke")
    assert (error.run, error.job, error.exit_code) == ("demo-2", "first", 3)
    assert error.log == ("first starts", "it broke")
    assert error.hint.startswith("To see its log: gridmill logs demo-2 first")
    assert "gridmill resume demo-2" in error.hint
    fake.acts.clear()
    assert client.resume("demo").run.state == RunState.SUCCEEDED
    assert client.status("demo-1").run.state == RunState.FAILED


def test_watching_gives_every_event_once_and_the_end(client: Client, fake: FakeGrid) -> None:
    fake.acts["second"] = Act.HANG
    client.run(pipeline(), wait=False)
    ticks: list[Tick] = []
    for tick in client.watch("demo-1", every_seconds=0.01):
        ticks.append(tick)
        if len(ticks) == 2:
            client.stop("demo-1")
    seen = [event.id for tick in ticks for event in tick.events]
    assert seen == [event.id for event in fake.events("demo-1")]
    assert ticks[-1].finished
    assert not ticks[0].finished


def test_logs_come_as_lines_of_one_or_of_all_jobs(client: Client) -> None:
    client.run(pipeline())
    assert list(client.logs("demo-1")) == ["first | first starts", "second | second starts"]
    assert list(client.logs("demo", "second", follow=True)) == ["second starts"]
    with pytest.raises(NotFoundError) as caught:
        list(client.logs("demo", "third"))
    assert "first, second" in caught.value.hint


def test_a_project_keeps_its_budget_until_it_is_removed_by_name(client: Client) -> None:
    client.configure_project("vision", budget="200", currency="EUR")
    kept = client.configure_project("vision", share=2.0).project
    assert (kept.share, kept.budget_micros, kept.currency) == (2.0, 200 * 10**6, "EUR")
    assert client.configure_project("vision", budget="10").project.currency == "USD"
    assert client.configure_project("vision", budget="none").project.budget_micros is None
    assert client.configure_project("vision", share=3.0).project.budget_micros is None


def test_resources_are_configured_as_people_write_sizes(client: Client) -> None:
    resource, sizing = client.configure_resource(
        "big", "training", rows="1M", memory="4GiB", cpus=2, workers=3, keep="10m", jobs=("demo/train",)
    )
    assert resource.size is not None
    assert (resource.size.rows, resource.memory_bytes, resource.keep_seconds) == (10**6, 4 * GIB, 600.0)
    assert sizing.workers == 3
    altered, _ = client.alter_resource("big", cpus=1.0)
    assert (altered.cpus, altered.memory_bytes) == (1.0, 4 * GIB)
    with pytest.raises(InputError) as caught:
        client.configure_resource("x", "trainng")
    assert "did you mean `training`?" in str(caught.value)
    altered, _ = client.alter_resource("big", memory="8GiB", rows="2M")
    assert (altered.size, altered.memory_bytes) == (JobSize(rows=2 * 10**6), 8 * GIB)
    client.remove_resource("big")
    assert client.list_resources() == ()


@pytest.mark.parametrize(
    ("noun", "name", "attribute", "value"),
    [
        ("run", "demo", "run.id", "demo-1"),
        ("job", "demo/second", "job.id", "demo-1/second"),
        ("attempt", "demo-1.second.1", "id", "demo-1.second.1"),
        ("site", "local", "kind", "local"),
        ("files", "demo/first", "number", 1),
        ("artifact", "demo/first@1", "kind", ArtifactKind.FILES),
        ("control", "", "pid", 1),
    ],
)
def test_any_noun_is_shown_by_name(
    client: Client, noun: str, name: str, attribute: str, value: object
) -> None:
    client.run(pipeline())
    found = client.show(noun, name)
    for part in attribute.split("."):
        found = getattr(found, part)
    assert found == value


@pytest.mark.parametrize(
    ("noun", "name", "said"),
    [
        ("job", "demo/third", "no job 'third'"),
        ("job", "demo", "is not the name of a job"),
        ("attempt", "demo-1", "is not the id of an attempt"),
        ("attempt", "demo-1.first.7", "no attempt"),
        ("site", "moon", "no site 'moon'"),
        ("model", "demo/first", "is not a model: its kind is files"),
        ("run", "none", "no run 'none'"),
    ],
)
def test_what_is_not_there_is_said(client: Client, noun: str, name: str, said: str) -> None:
    client.run(pipeline())
    with pytest.raises((NotFoundError, InputError)) as caught:
        client.show(noun, name)
    assert said in caught.value.message


def test_artifacts_are_listed_by_kind_and_name(client: Client) -> None:
    client.run(pipeline())
    assert [one.id for one in client.list_artifacts(kind="files", name="demo/first")] == ["demo/first@1"]
    with pytest.raises(InputError) as caught:
        client.list_artifacts(kind="modl")
    assert "model" in caught.value.hint
    client.remove_artifact("demo/first@1")
    assert client.list_artifacts(name="demo/first") == ()


def test_nouns_are_read_in_both_numbers() -> None:
    assert read_noun("runs") == read_noun("Run") == Noun.RUN
    assert read_noun("files") == Noun.FILES
    assert read_noun("versions") == Noun.ARTIFACT
    with pytest.raises(InputError):
        read_noun("thing")


def test_a_report_is_one_whole_file(client: Client, tmp_path: Path) -> None:
    client.run(pipeline())
    assert client.report("demo") == tmp_path / "reports" / "demo-1.html"
    assert "demo-1" in client.report("demo-1", tmp_path / "x.html").read_text()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError):
        client.report("demo", tmp_path / "file" / "x.html")


def test_default_resources_are_not_altered(client: Client, fake: FakeGrid) -> None:
    fake.configure_resource(Resource(name="default-sink", type=JobKind.SINK, default=True))
    with pytest.raises(ConflictError):
        client.alter_resource("default-sink", cpus=1.0)


def test_a_control_node_that_is_up_is_used(fake: FakeGrid, tmp_path: Path) -> None:
    server = ServedGrid(fake, tmp_path)
    with connect(tmp_path, embed=False) as client:
        assert not client.reading
        assert client.run(pipeline()).run.state == RunState.SUCCEEDED
    server.stop()
    tcp = serve(make_app(fake, token="t"))
    (tmp_path / "control.json").write_text('{"token": "t"}')
    with connect(tmp_path, url=tcp.address) as client:
        assert client.status("demo").run.id == "demo-1"
    tcp.stop()


def test_without_a_control_node_the_hint_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        connect(tmp_path, embed=False)
    assert "gridmill up" in caught.value.hint
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "client.sock"))  # nobody listens
    stale.close()
    with pytest.raises(UnavailableError):
        open_home(home_settings(tmp_path), embed=False)
    with pytest.raises(InputError):
        connect(tmp_path, url="127.0.0.1:8700")


def test_a_watch_goes_on_with_the_control_node_that_takes_over(fake: FakeGrid, tmp_path: Path) -> None:
    fake.acts["first"] = Act.HANG
    server = ServedGrid(fake, tmp_path)
    with connect(tmp_path, embed=False) as client:
        client.run(pipeline(), wait=False)
        watching = client.watch("demo-1", every_seconds=0.01)
        assert next(watching).view.run.state == RunState.ACTIVE
        server.stop()
        server = ServedGrid(fake, tmp_path)
        fake.stop_run("demo-1")
        assert list(watching)[-1].view.run.state == RunState.STOPPED
    server.stop()


@pytest.mark.parametrize(
    "verb",
    [
        lambda client: client.control(),
        lambda client: client.prepare(pipeline()),
        lambda client: client.plan(pipeline()),
        lambda client: client.apply(pipeline()),
        lambda client: client.list_runs(),
        lambda client: client.run(pipeline(), wait=False),
    ],
)
def test_a_verb_right_after_its_control_node_ended_is_asked_of_the_next_one(
    fake: FakeGrid, tmp_path: Path, verb: Callable[[Client], Any]
) -> None:
    server = ServedGrid(fake, tmp_path)
    with connect(tmp_path, embed=False) as client:
        server.stop()
        stale = socket.socket(socket.AF_UNIX)
        stale.bind(str(tmp_path / "client.sock"))  # as one that is killed leaves it: who connects is refused
        stale.close()
        servers: list[ServedGrid] = []
        next_one = threading.Timer(0.1, lambda: servers.append(ServedGrid(fake, tmp_path)))
        next_one.start()
        verb(client)
        next_one.join()
        servers.pop().stop()


class Formatter:
    """What IPython's formatter does, as far as we use it."""

    def __init__(self) -> None:
        self.known: dict[type, Callable[[Any], str]] = {}

    def for_type(self, kind: type, function: Callable[[Any], str]) -> None:
        self.known[kind] = function


class Shell:
    """An IPython shell, as far as we use it."""

    def __init__(self) -> None:
        self.html = Formatter()
        self.display_formatter = self
        self.formatters = {"text/html": self.html}


def test_a_notebook_shows_runs_and_plans_as_tables(client: Client) -> None:
    shell = Shell()
    register(shell)
    view = client.run(pipeline("a-b"))
    assert set(shell.html.known) == {type(view), type(client.plan(pipeline()))}
    assert "<td>second</td>" in run_html(view)
    assert "<td>1 GiB</td>" in plan_html(client.plan(pipeline()))
    register()  # without IPython nothing happens


def test_the_public_names_are_these_and_load() -> None:
    for name in gridmill.__all__:
        assert getattr(gridmill, name) is not None
    assert sorted(gridmill.__all__) == dir(gridmill)
    assert set(gridmill.__all__) == {*gridmill._HOME, "__version__"}
    with pytest.raises(AttributeError):
        _ = gridmill.nothing


def test_importing_gridmill_loads_no_heavy_library() -> None:
    heavy = "numpy torch duckdb sqlalchemy pydantic pyarrow httpx fastapi rich typer msgspec deltalake"
    code = f"import sys, gridmill; print([m for m in {heavy.split()!r} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


@pytest.mark.parametrize(("former", "new"), [("export_project", "backup"), ("import_project", "restore")])
def test_a_former_name_of_a_method_gives_the_new_one(client: Client, former: str, new: str) -> None:
    with pytest.raises(InputError, match=f"`{former}` is now `{new}`"):
        getattr(client, former)
    assert not hasattr(client, former)


def test_a_pipeline_whose_file_is_gone_is_run_as_last_time_with_a_warning(
    fake: FakeGrid, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    file = tmp_path / "demo.yaml"
    file.write_text(FILE)
    with Client(home_settings(tmp_path), dial=lambda: OpenGrid(grid=fake, close=lambda: None)) as client:
        client.run(file, set={"rate": 3})
        client.run("demo")
        assert not recwarn.list
        file.unlink()
        with pytest.warns(
            UserWarning,
            match="demo.yaml does not exist any more; the run uses the pipeline as in its last run",
        ):
            client.run("demo")
        with pytest.raises(NotFoundError, match="no pipeline 'dem'"):
            client.run("dem")


class Killed(FakeGrid):
    """A control node that ends while it is asked something: nobody knows whether it did what was asked."""

    def projects(self, **asked: object) -> Any:
        raise UnavailableError("the control node ended before it answered")

    def remove_project(self, name: str) -> None:
        raise UnavailableError("the control node ended before it answered")


def ending(tmp_path: Path, *, ended: bool) -> Client:
    """A client of a control node that is killed, when `ended`, and of the one that takes over."""
    grids = iter([Killed(), FakeGrid()])
    dial = lambda: OpenGrid(grid=next(grids), close=lambda: None, has_ended=lambda: ended)  # noqa: E731
    return Client(home_settings(tmp_path), dial=dial)


def test_what_only_reads_is_asked_again_where_the_control_node_ended_before_it_answered(
    tmp_path: Path,
) -> None:
    assert ending(tmp_path, ended=True).list_projects() == FakeGrid().projects().items


def test_what_changes_something_is_not_asked_again(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="before it answered"):
        ending(tmp_path, ended=True).remove_project("science")


def test_an_error_of_a_control_node_that_is_up_is_not_asked_away(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="before it answered"):
        ending(tmp_path, ended=False).list_projects()
