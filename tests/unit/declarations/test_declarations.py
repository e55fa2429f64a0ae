"""Pipeline files become nouns: units, short forms, parameters, several documents, every example."""

import subprocess
import sys
from pathlib import Path

import pytest

from gridmill.declarations import external_resources, parse_declarations, read_declarations, read_pipeline
from gridmill.domain.dataset import Aggregate, Lag
from gridmill.domain.job import CommandSpec, Job, JobKind, JobSize
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.resource import Resource
from gridmill.domain.sink import SinkSpec
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.source import Format, Source
from gridmill.domain.training import ModelKind

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*/*.yaml"))


def parse(text: str, **set_values: object) -> Pipeline:
    (pipeline,) = parse_declarations(text, set_values=set_values)
    assert isinstance(pipeline, Pipeline)
    return pipeline


def job(text: str) -> Job:
    """The job of that YAML; other jobs it may refer to are there."""
    jobs = "a: {command: a}, b: {command: b}, table: {sink: t.csv}, features: {dataset: {sql: x}}"
    return parse(f"pipeline: p\njobs:\n  job: {text}\n  <<: {{{jobs}}}").job("job")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_every_example_is_read(path: Path) -> None:
    pipeline = read_pipeline(path)
    assert pipeline.jobs
    assert pipeline.folder == str(path.parent)


def test_a_mapping_key_is_the_name_and_order_is_kept() -> None:
    pipeline = parse("pipeline: p\njobs: {z: {command: a}, b: {command: b}, 1a: {command: c}}")
    assert [job.name for job in pipeline.jobs] == ["z", "b", "1a"]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90", 90), ("5m", 300), ("2h", 7200), ("250ms", 0.25), ("1.5h", 5400), ("1e2", 100)],
)
def test_durations(written: str, seconds: float) -> None:
    assert job(f"{{command: x, timeout: {written}}}").timeout_seconds == seconds


@pytest.mark.parametrize(("written", "size"), [("2GiB", 2**31), ("2000000", 2_000_000), ("512M", 2**29)])
def test_sizes(written: str, size: int) -> None:
    assert job(f"{{command: x, memory: {written}}}").memory_bytes == size


@pytest.mark.parametrize(
    ("written", "micros"), [("2.50", 2_500_000), ("0", 0), ("0.000001", 1), ("12", 12_000_000)]
)
def test_amounts_of_money(written: str, micros: int) -> None:
    declared = job(f"{{command: x, budget: {written}, deadline: 2h}}")
    assert declared.budget_micros == micros
    assert declared.deadline_seconds == 7200.0


@pytest.mark.parametrize(("written", "count"), [("1M", 10**6), ("250k", 250_000), ("42", 42)])
def test_counts(written: str, count: int) -> None:
    assert job(f"{{command: x, rows: {written}}}").rows == count


@pytest.mark.parametrize(
    ("written", "run"),
    [("echo done", "echo done"), ("[echo, 1]", ("echo", "1")), ("{run: [echo, yes]}", ("echo", "yes"))],
)
def test_short_forms_of_commands(written: str, run: object) -> None:
    assert job(f"{{command: {written}}}").command == CommandSpec(run=run)  # type: ignore[arg-type]


def test_short_forms_of_sources_and_lists() -> None:
    assert job("{needs: a, sink: {source: [x.csv, y.csv]}}") == Job(
        name="job", needs=("a",), sink=SinkSpec(source=Source(path=("x.csv", "y.csv")))
    )
    features = "{basis: {table: table, time: t}, windows: [{column: c, aggregates: mean, span: 3h}]}"
    dataset = job(f"{{dataset: {features}}}").dataset
    assert dataset is not None
    assert dataset.windows[0].aggregates == (Aggregate.MEAN,)
    assert dataset.windows[0].span_seconds == 10800


def test_one_number_where_several_may_stand() -> None:
    dataset = job("{dataset: {basis: {table: table, time: t}, lags: [{column: c, steps: 2}]}}").dataset
    assert dataset is not None
    assert dataset.lags == (Lag(column="c", steps=(2,)),)


def test_text_stays_as_it_was_written() -> None:
    command = job("{command: {run: x, env: {A: 1.10, B: true, C: 007, D: no, E: 2013-10-01, F: ''}}}").command
    assert command is not None
    assert command.env == {"A": "1.10", "B": "true", "C": "007", "D": "no", "E": "2013-10-01", "F": ""}


def test_enums_are_read_by_value() -> None:
    sink = job("{sink: {source: {path: x, format: jsonl}}}").sink
    assert sink is not None
    assert sink.source.format is Format.JSONL


def test_what_is_written_as_nothing_has_its_default() -> None:
    assert job("{command: {run: x, env: }, needs: , timeout: }") == Job(
        name="job", command=CommandSpec(run="x")
    )


def test_nothing_is_meant_where_it_is_allowed() -> None:
    jobs = (
        "m: {training: {dataset: d/d, model: naive}}, p: {prediction: {dataset: d/d, models: m, split: null}}"
    )
    prediction = parse(f"pipeline: p\njobs: {{{jobs}}}").job("p").prediction
    assert prediction is not None
    assert prediction.split is None


def test_a_resource_takes_its_size_as_rows_and_columns() -> None:
    pipeline = parse(
        "pipeline: p\njobs: {a: {command: a}}\nresources: {r: {type: sink, rows: 1M, columns: 20}}"
    )
    assert pipeline.resources == (
        Resource(name="r", type=JobKind.SINK, size=JobSize(rows=10**6, columns=20)),
    )


def test_resources_the_file_does_not_declare_are_external() -> None:
    jobs = "a: {command: a, resource: mine}, b: {command: b, resource: theirs}"
    pipeline = parse(f"pipeline: p\nresources: {{mine: {{type: command}}}}\njobs: {{{jobs}}}")
    assert external_resources(pipeline) == ("theirs",)


def test_artifacts_of_other_pipelines_are_allowed() -> None:
    training = job("{training: {dataset: other/features, model: lstm}}").training
    assert training is not None
    assert (training.dataset, training.model) == ("other/features", ModelKind.LSTM)


# parameters

PARAMETERS = """
pipeline: p
parameters: {epochs: 12, horizon: 6h, keep: true, rate: 1.50}
jobs:
  features: {dataset: {sql: x}}
  a: """


def test_text_that_is_one_parameter_takes_its_type() -> None:
    text = PARAMETERS + '{cache: "${keep}", training: {dataset: features, model: lstm, epochs: "${epochs}"}}'
    made = parse(text, epochs="3", keep="false").job("a")
    assert made.training is not None
    assert (made.training.epochs, made.cache) == (3, False)


def test_parameters_within_text_are_written_as_they_were() -> None:
    text = PARAMETERS + '{command: "${horizon} ${rate} ${keep} $${HOME} $HOME $$"}'
    assert parse(text).job("a").command == CommandSpec(run="6h 1.50 true ${HOME} $HOME $$")


def test_the_pipeline_keeps_the_parameters_it_was_given() -> None:
    parameters = parse(PARAMETERS + "{command: x}", epochs=3, horizon="007", rate="2").parameters
    assert parameters == {"epochs": 3, "horizon": "007", "keep": True, "rate": 2}


# files and documents


def test_a_file_of_several_documents(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(
        "---\nresource: trainers\ntype: training\nkeep: 1h\n"
        "---\nsite: farm\nkind: slurm\nsettings: {partition: gpu}\n"
        "---\npipeline: p\njobs: {a: {command: a}}\n---\n# nothing\n"
    )
    resource, site, pipeline = read_declarations(path)
    assert resource == Resource(name="trainers", type=JobKind.TRAINING, keep_seconds=3600)
    assert site == Site(name="farm", kind=SiteKind.SLURM, settings={"partition": "gpu"})
    assert isinstance(pipeline, Pipeline)
    assert read_pipeline(path).resources == (resource,)


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(b"\xef\xbb\xbfpipeline: p\r\njobs:\r\n  a:\r\n    command: x\r\n")
    assert read_pipeline(path).job("a").command == CommandSpec(run="x")


def test_merge_keys_and_aliases() -> None:
    text = """
pipeline: p
jobs:
  a: &base {command: {run: x, env: &env {A: 1}}, retries: 2, timeout: 1m}
  b: {<<: *base, retries: 3}
  c: {command: {run: y, env: {<<: [*env, {A: 2, B: 3}]}}}
"""
    pipeline = parse(text)
    assert pipeline.job("b") == Job(
        name="b", retries=3, timeout_seconds=60, command=CommandSpec(run="x", env={"A": "1"})
    )
    assert pipeline.job("c").command == CommandSpec(run="y", env={"A": "1", "B": "3"})


def test_reading_needs_no_heavy_library() -> None:
    code = (
        "import sys, gridmill; assert 'yaml' not in sys.modules; import gridmill.declarations; "
        "assert not {'pydantic', 'numpy', 'msgspec', 'sqlalchemy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
