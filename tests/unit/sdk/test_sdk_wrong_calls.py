"""Wrong calls of the Python API: each is an error of Gridmill that names the field, none is Python's."""

import dataclasses
import inspect
import pickle
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gridmill
from gridmill.declarations import parse_declarations, read_pipeline
from gridmill.declarations.construct import construct, validated, written
from gridmill.domain import job as model
from gridmill.domain.amounts import GIB
from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.errors import GridmillError, InputError, PipelineError
from gridmill.sdk.client import Client
from gridmill.sdk.discovery import OpenGrid, home_settings
from gridmill.testing.fake_grid import FakeGrid

ROOT = Path(__file__).resolve().parents[3]
ECHO = {"name": "a", "command": "echo"}


def job(**fields: Any) -> gridmill.Job:
    return gridmill.Job(**ECHO | fields)


def train(**fields: Any) -> gridmill.Job:
    return gridmill.Job(name="t", training={"dataset": "d", "model": "gbdt", **fields})


def pipe(*jobs: Any, **fields: Any) -> gridmill.Pipeline:
    return gridmill.Pipeline(name="p", jobs=list(jobs), **fields)


CYCLE: dict[str, Any] = {}
CYCLE["env"] = CYCLE

NOUNS: list[tuple[Callable[[], Any], str]] = [
    (lambda: job(timeout_seconds=300), "Job 'a': timeout_seconds: there is no field `timeout_seconds`; did"),
    (lambda: job(memory_bytes="2GiB"), "Job 'a': memory_bytes: there is no field .*; did you mean `memory`"),
    (lambda: job(memory="2GX"), "Job 'a': memory: expected a size such as 2GiB, got '2GX'"),
    (lambda: job(memory=-1), "Job 'a': memory: expected a size|must be more than 0"),
    (lambda: job(memory=[1]), "memory: expected a size such as 2GiB, got \\[1\\]"),
    (lambda: job(timeout="5 parsecs"), "Job 'a': timeout: expected a duration such as 5m, got '5 parsecs'"),
    (lambda: job(timeout=0), "Job 'a': timeout: `timeout` must be more than 0, got 0"),
    (lambda: job(timeout=object()), "Job 'a': timeout: expected a duration such as 5m, got <object"),
    (lambda: job(retries="three"), "Job 'a': retries: expected a whole number, got 'three'"),
    (lambda: job(retries=1.5), "Job 'a': retries: expected a whole number, got 1.5"),
    (lambda: job(retries=True), "Job 'a': retries: expected a whole number, got true"),
    (lambda: job(cache="yes"), "Job 'a': cache: expected true or false, got 'yes'|expected"),
    (lambda: job(cpus=float("nan")), "Job 'a': cpus: nan is not a finite number"),
    (lambda: job(cpus="many"), "Job 'a': cpus: expected a number, got 'many'"),
    (lambda: job(priority=2**70), "Job 'a': priority: the number .* is too large"),
    (lambda: job(needs=5), None),
    (lambda: job(needs={"a": 1}), "Job 'a': needs: expected a list|expected text"),
    (lambda: job(when="later"), "Job 'a': when: expected one of success, failure, always, got 'later'"),
    (lambda: job(when="failure"), "`when: failure` needs `needs`"),
    (lambda: job(command=5), None),
    (
        lambda: job(command=None),
        "Job 'a': needs one of sink, dataset, training, prediction, service, command",
    ),
    (lambda: job(command={"cmd": "echo"}), "Job 'a': command.cmd: there is no field `cmd`"),
    (lambda: job(command={"run": "echo", "env": ["A=1"]}), "command.env: expected fields"),
    (lambda: job(command="echo \0"), "Job 'a': command: the character '.x00' cannot be used in text"),
    (lambda: job(command={"run": "echo", "env": CYCLE}), "nested deeper than 50 levels"),
    (lambda: job(sink="x.csv"), "has sink and command; only one of .* can be given"),
    (lambda: job(name="My Job"), "name: expected a name of a-z, 0-9, _ and -, .* got 'My Job'"),
    (lambda: job(name=None), "needs `name`|expected a name"),
    (lambda: job(matrix={"region": ["eu", "us"]}), "Job 'a': matrix: a matrix works only in pipeline files"),
    (lambda: job(image="ubuntu"), "Job 'a': image: there is no field `image`"),
    (lambda: gridmill.Job("a"), "Job: the fields must be passed by name"),
    (lambda: gridmill.Job(command="echo"), "Job: needs `name`"),
    (lambda: train(model="gbtd"), "Job 't': training.model: expected one of .*; did you mean `gbdt`"),
    (lambda: train(model=5), "Job 't': training.model: expected one of lstm"),
    (lambda: train(epochs="ten"), "Job 't': training.epochs: expected a whole number, got 'ten'"),
    (lambda: train(dataset=None), "Job 't': training.*needs `dataset`|expected text"),
    (lambda: gridmill.TrainingSpec(dataset="d", model="gbtd"), "TrainingSpec: model: expected one of"),
    (lambda: gridmill.TrainingSpec(model="gbdt"), "TrainingSpec.*: needs `dataset`"),
    (lambda: gridmill.Window(column="x", span_seconds=5), "did you mean `span`"),
    (lambda: gridmill.Window(column="x", aggregates="mean"), "needs one of span, span_rows"),
    (lambda: gridmill.Label(column="x", horizon="soon"), "Label: horizon: expected a duration such as"),
    (lambda: gridmill.Label(column="x", horizon_months=1), "did you mean `horizon`"),
    (lambda: gridmill.Split(validation=0.6, test=0.5), "Split: `validation` and `test` must be shares"),
    (lambda: gridmill.Split(validation="half"), "Split: validation: expected a number, got 'half'"),
    (lambda: gridmill.Source(), "Source"),
    (lambda: gridmill.Source(path="a", format="avro"), "Source: format: expected one of csv"),
    (lambda: gridmill.Source("a", path="b"), "Source: the fields must be passed by name"),
    (lambda: gridmill.SqlSource(url="sqlite:///x"), "needs one of table, query"),
    (lambda: gridmill.SinkSpec(source="a", columns={"x": "float64"}), "columns.x: expected one of string"),
    (lambda: gridmill.SinkSpec(source="a", columns=["x"]), "SinkSpec: columns: expected fields"),
    (lambda: gridmill.Constraint(column="x", minimum=0), "Constraint: minimum: there is no field"),
    (
        lambda: gridmill.DatasetSpec(basis={"table": "t", "time": "at"}, sql="select 1"),
        "has basis and sql; only one",
    ),
    (lambda: gridmill.PredictionSpec(dataset="d", models="m", workers="all"), "a whole number or auto"),
    (lambda: gridmill.Resource(name="r", type="trainng"), "did you mean `training`"),
    (lambda: gridmill.Resource(name="r", type="training", size=5), "use `rows` and `columns`"),
    (lambda: gridmill.Resource(name="r", type="training", keep_seconds=5), "did you mean `keep`"),
    (lambda: gridmill.Resource(name="r", type="training", gpus=-1), "`gpus` must not be negative"),
    (lambda: gridmill.Pipeline(name="p", jobs=5), "Pipeline 'p': jobs: expected fields"),
    (lambda: gridmill.Pipeline(name="p", jobs=[]), "Pipeline 'p': jobs: a pipeline needs at least one job"),
    (lambda: gridmill.Pipeline(name="p", jobs=["a"]), "Pipeline 'p': jobs: expected fields"),
    (lambda: gridmill.Pipeline(name="p"), "Pipeline 'p': needs `jobs`"),
    (lambda: pipe(job(), job()), "two records have the name `a`"),
    (lambda: pipe(job(needs="b")), "Pipeline 'p': jobs.a.needs.*: there is no job `b`"),
    (lambda: pipe(job(needs="a")), "`a` needs itself"),
    (
        lambda: pipe(job(needs="b"), job(name="b", needs="a")),
        "Pipeline 'p': jobs.*needs each other|cycle|circle",
    ),
    (lambda: pipe(job(needs="first"), job(name="firts")), "there is no job `first`; did you mean `firts`"),
    (lambda: pipe(job(), folder="/no/such/folder"), "Pipeline 'p': folder: there is no folder"),
    (lambda: pipe(job(), folder=5), "Pipeline 'p': folder: there is no folder 5"),
    (lambda: pipe(job(), schedule={"every": "often"}), "Pipeline 'p': schedule.every: expected a period"),
    (lambda: pipe(train()), "there is no job `d`"),
    (lambda: pipe(dataclasses.replace(job(), timeout_seconds="5m")), None),
    (lambda: pipe(dataclasses.replace(job(), retries="x")), "jobs.a.retries: expected a whole number"),
]


@pytest.mark.parametrize(("call", "text"), [pytest.param(*one, id=str(n)) for n, one in enumerate(NOUNS)])
def test_a_wrong_declaration_is_an_error_that_names_the_field(call: Callable[[], Any], text: str | None):
    if text is None:
        call()  # a file may say it too
        return
    with pytest.raises(PipelineError, match=text) as caught:
        call()
    assert caught.value.place


VERSION = gridmill.Version(
    artifact=Artifact(
        id="p/a@1",
        name="p/a",
        number=1,
        output=Output(kind=ArtifactKind.DATASET, uri="a"),
        fingerprint="f",
    ),
    root="/nowhere",
)

CALLS: list[tuple[Callable[[Client], Any], str]] = [
    (lambda c: c.run(5), "run\\(\\): `pipeline` is .*got 5"),
    (lambda c: c.run(), "run\\(\\): missing a argument: 'pipeline'|missing .*'pipeline'"),
    (lambda c: c.run("p.yaml", sets={"a": 1}), "there is no argument `sets`; did you mean `set`"),
    (lambda c: c.run("p.yaml", set="a=1"), "run\\(\\): `set` is a dict or None, got 'a=1'"),
    (lambda c: c.run("p.yaml", only=5), "run\\(\\): `only` is a list of texts, got 5"),
    (lambda c: c.run("p.yaml", force="yes"), "run\\(\\): `force` is True or False, got 'yes'"),
    (lambda c: c.run("p.yaml", on_tick=5), "run\\(\\): `on_tick` is a function or None, got 5"),
    (lambda c: c.run("no/such.yaml"), "the file does not exist"),
    (lambda c: c.run("a\0b.yaml"), "embedded null|cannot be read"),
    (lambda c: c.run(pipe(job()), set={"a": 1}), "`set` works only with pipeline files"),
    (lambda c: c.run(dataclasses.replace(pipe(job()), jobs=5)), "jobs: expected fields"),
    (lambda c: c.run(dataclasses.replace(pipe(job()), jobs=())), "at least one job"),
    (lambda c: c.plan({"name": "p"}), "plan\\(\\): `pipeline` is"),
    (lambda c: c.apply(None), "apply\\(\\): `file` is"),
    (lambda c: c.wait(5), "wait\\(\\): `run` is a text, got 5"),
    (lambda c: c.status("nope"), "nope"),
    (lambda c: list(c.logs("nope")), "nope"),
    (lambda c: c.watch("p-1", every_seconds="fast"), "`every_seconds` is a number, got 'fast'"),
    (lambda c: c.list_runs(limit="all"), "`limit` is a whole number or None, got 'all'"),
    (lambda c: c.show("thing"), "'thing'"),
    (lambda c: c.show(5, "x"), "show\\(\\): `noun` is"),
    (lambda c: c.configure_resource("r", "trainng"), "did you mean `training`"),
    (lambda c: c.configure_resource("r", "training", memory="2GX"), "memory: expected a size"),
    (lambda c: c.configure_resource("r", "training", memory_bytes=1), "no argument `memory_bytes`; did you"),
    (lambda c: c.configure_resource("r", "training", workers=0), "`workers` must be more than 0"),
    (lambda c: c.configure_resource("r"), "missing .*'type'"),
    (lambda c: c.alter_resource("nope", cpus=1), "there is no resource 'nope'"),
    (lambda c: c.load("nope/x"), "nope/x"),
    (lambda c: c.load(5), "load\\(\\): `reference` is a text, got 5"),
    (lambda c: c.list_artifacts(kind="modle"), "unknown kind 'modle'"),
    (lambda c: c.preview("p/a", rows="ten"), "`rows` is a whole number, got 'ten'"),
    (lambda c: c.set_alias("p/a", "prod", "3"), "`version` is a whole number or None, got '3'"),
    (lambda c: c.backup(5, path="x"), "`pipelines` is a text, got 5"),
    (lambda c: c.backup("p"), "missing .*'path'"),
    (lambda c: c.report("nope", 5), "`path` is a text or a path or None, got 5"),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Client:
    home = tmp_path_factory.mktemp("h")
    fake = FakeGrid()
    made = Client(home_settings(home), dial=lambda: OpenGrid(grid=fake, close=lambda: None))
    made.configure_resource("r", "training")
    return made


@pytest.mark.parametrize(("call", "text"), [pytest.param(*one, id=str(n)) for n, one in enumerate(CALLS)])
def test_a_wrong_call_is_an_error_of_gridmill(client: Client, call: Callable[[Client], Any], text: str):
    with pytest.raises(GridmillError, match=text):
        call(client)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: gridmill.connect(5), "connect\\(\\): `home` is a text or a path or None, got 5"),
        (lambda: gridmill.connect(hom="x"), "there is no argument `hom`; did you mean `home`"),
        (lambda: gridmill.connect(url=5), "`url` is a text or None, got 5"),
        (lambda: gridmill.load(5), "load\\(\\): `reference` is a text, got 5"),
        (lambda: gridmill.load(), "missing .*'reference'"),
        (lambda: VERSION.to_arrow("x"), "too many positional arguments"),
        (lambda: VERSION.to_pandas(column="x"), "there is no argument `column`; did you mean `columns`"),
        (lambda: VERSION.to_batches(rows="many"), "`rows`"),
        (lambda: VERSION.predict(), "missing .*'rows'"),
        (lambda: VERSION.predict([], trust="yes"), "`trust` is True or False, got 'yes'"),
        (lambda: VERSION.write(5, format="csv"), "`to` is a text or a path or a file, got 5"),
        (lambda: VERSION.write("x.csv", split=5), "`split` is a text or None, got 5"),
    ],
    ids=map(str, range(12)),
)
def test_wrong_arguments_of_functions_and_versions_are_errors_too(call: Callable[[], Any], text: str):
    with pytest.raises(InputError, match=text):
        call()


def test_altering_a_resource_takes_the_names_of_files(client: Client):
    client.configure_resource("mine", "training", memory="2GiB")
    with pytest.raises(PipelineError, match="there is no field `memory_bytes`; did you mean `memory`"):
        client.alter_resource("mine", memory_bytes=5)
    assert client.alter_resource("mine", keep="10m")[0].keep_seconds == 600


def test_what_is_right_is_what_a_file_says():
    text = """
pipeline: p
retain: {versions: 3}
jobs:
  first: {command: echo, timeout: 5m, memory: 2GiB, retries: 2}
  second: {command: [wc, -l], needs: first, cpus: 0.5}
  table: {sink: {source: {path: [a.csv, b.csv]}, columns: {x: float, day: timestamp}}}
  rows:
    dataset:
      basis: {table: table, time: day}
      lags: [{column: x, steps: [1, 7]}]
      windows: [{column: x, span: 30d, aggregates: mean}]
      label: {column: x, horizon: 7d, name: y}
      split: {validation: 0.2, test: 0.2}
  model: {training: {dataset: rows, model: gbdt, trees: 20}}
  said: {prediction: {dataset: rows, models: model, split: null, workers: auto}}
"""
    [expected] = parse_declarations(text)
    made = gridmill.Pipeline(
        name="p",
        retain={"versions": 3},
        jobs=[
            gridmill.Job(
                name="first", command="echo", timeout=timedelta(minutes=5), memory=2 * GIB, retries=2
            ),
            gridmill.Job(name="second", command=["wc", "-l"], needs="first", cpus=np.float64(0.5)),
            gridmill.Job(
                name="table",
                sink=gridmill.SinkSpec(
                    source=gridmill.Source(path=["a.csv", Path("b.csv")]),
                    columns={"x": gridmill.ColumnType.FLOAT, "day": "timestamp"},
                ),
            ),
            gridmill.Job(
                name="rows",
                dataset=gridmill.DatasetSpec(
                    basis=gridmill.Basis(table="table", time="day"),
                    lags=[gridmill.Lag(column="x", steps=[1, 7])],
                    windows=[gridmill.Window(column="x", span="30d", aggregates="mean")],
                    label=gridmill.Label(column="x", horizon="7d", name="y"),
                    split=gridmill.Split(validation=0.2, test=0.2),
                ),
            ),
            gridmill.Job(name="model", training={"dataset": "rows", "model": "gbdt", "trees": 20}),
            gridmill.Job(
                name="said",
                prediction={"dataset": "rows", "models": "model", "split": None, "workers": "auto"},
            ),
        ],
    )
    assert made == dataclasses.replace(expected, written=None)
    by_name = gridmill.Pipeline(name="p", retain={"versions": 3}, jobs={one.name: one for one in made.jobs})
    assert by_name == made


@pytest.mark.parametrize("file", sorted(ROOT.glob("examples/**/*.yaml")), ids=lambda file: file.parent.name)
def test_every_example_is_the_same_written_out_and_validated_again(file: Path):
    try:
        pipeline = read_pipeline(file)
    except PipelineError:
        pytest.skip("it needs values for its parameters")
    assert validated(pipeline) == pipeline
    for one in pipeline.jobs:
        assert construct(model.Job, (), written(one)) == dataclasses.replace(one, parameters={})


def test_the_classes_are_those_of_the_records():
    made = job()
    assert type(made) is model.Job
    assert isinstance(made, gridmill.Job)
    assert not isinstance(5, gridmill.Job)
    assert pickle.loads(pickle.dumps(made)) == made
    names = list(inspect.signature(gridmill.Job).parameters)
    assert {"name", "timeout", "memory"} <= set(names)
    assert not {"timeout_seconds", "memory_bytes"} & set(names)
    assert gridmill.Job.__doc__ == model.Job.__doc__


def test_a_folder_is_where_relative_paths_start(tmp_path: Path):
    assert pipe(job(), folder=tmp_path).folder == str(tmp_path)
    with pytest.raises(PipelineError, match=r"requirements\.txt"):
        pipe(job(command={"run": "echo", "environment": "requirements.txt"}), folder=tmp_path)
