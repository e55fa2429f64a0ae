"""Words of other tools in a pipeline file: the message names what is written here; files alike in name."""

from dataclasses import replace
from pathlib import Path

import pytest

from gridmill.declarations import parse_declarations, read_again, read_pipeline
from gridmill.declarations.other_tools import FIELDS, VALUES
from gridmill.declarations.schema import parts
from gridmill.domain.pipeline import FieldLines, Pipeline, place_message, with_lines
from gridmill.errors import InputError, PipelineError

TABLES = "pipeline: p\njobs:\n  s: {sink: {source: a.csv}}\n  d: {dataset: {basis: {table: s, time: t}}}\n"


def refused(text: str) -> PipelineError:
    with pytest.raises(PipelineError) as caught:
        parse_declarations(text, file="f.yaml")
    return caught.value


@pytest.mark.parametrize(
    ("field", "cure"),
    {
        "depends_on: [s]": "use `needs: [JOB]`",
        "env: {A: b}": "use `env: {NAME: value}` below `command`",
        "gpus: 2": "gridmill configure resource NAME --type TYPE --gpus 1",
        "image: python:3.12": "use `container: IMAGE`",
        "cmd: ls": "use `command: ...`",
        "foreach: [1, 2]": "use `matrix:",
    }.items(),
)
def test_a_field_of_another_tool_is_answered_with_ours(field: str, cure: str) -> None:
    name, _, _ = field.partition(":")
    error = refused(TABLES + f"  x: {{command: ls, {field}}}\n")
    assert error.place == f"f.yaml:5: jobs.x.{name}"
    assert f"there is no field `{name}`" in error.message
    assert cure in error.message
    assert "The fields here are needs, when" in error.hint


@pytest.mark.parametrize(
    ("model", "cure"),
    {
        "xgboost": "use `gbdt`",
        "LightGBM": "use `gbdt`",
        "random-forest": "use `gbdt`",
        "logistic": "use `linear`",
        "prophet": "`custom`",
        "gbtd": "did you mean `gbdt`?",
    }.items(),
)
def test_a_model_of_another_library_is_answered_with_ours(model: str, cure: str) -> None:
    error = refused(TABLES + f"  m: {{training: {{dataset: d, model: {model}}}}}\n")
    assert cure in error.message
    assert error.place == "f.yaml:5: jobs.m.training.model"
    assert "docs/reference/pipeline.md, section Training" in error.hint


def test_no_word_of_another_tool_is_one_of_ours() -> None:
    fields = {noun: {*parts(noun)} - {"name"} for noun in FIELDS}  # names are keys in a file
    taken = [f"{noun.__name__}.{word}" for noun in FIELDS for word in fields[noun].intersection(FIELDS[noun])]
    taken += [
        f"{enum.__name__}.{word}" for enum, words in VALUES.items() for word in words if word in list(enum)
    ]
    assert taken == []


def test_no_hint_names_the_json_schema() -> None:
    for text in ("pipeline: p\n", TABLES + "  x: {command: ls, timeout: soon}\n", TABLES + "  x: {}\n"):
        assert "schema" not in refused(text).hint


def test_an_unknown_job_is_answered_with_those_that_there_are() -> None:
    error = refused(TABLES + "  m: {training: {dataset: nothing, model: gbdt}}\n")
    assert error.message == "there is no job `nothing`; the file has the dataset jobs d"


def test_a_file_is_suggested_only_where_its_name_is_alike(tmp_path: Path) -> None:
    for name in ("long.yaml", "hallo.yaml"):
        (tmp_path / name).write_text("pipeline: p\n")
    with pytest.raises(PipelineError) as alike:
        read_pipeline(tmp_path / "hello.yaml")
    assert alike.value.hint == "Did you mean `hallo.yaml`?"
    (tmp_path / "hallo.yaml").unlink()
    with pytest.raises(PipelineError) as other:
        read_pipeline(tmp_path / "hello.yaml")
    assert other.value.hint == "That folder contains long.yaml."


def read(text: str) -> Pipeline:
    (pipeline,) = parse_declarations(text, file="f.yaml")
    assert isinstance(pipeline, Pipeline)
    return pipeline


LONG = """pipeline: p
jobs:
  s: {sink: {source: a.csv}}
  d:
    dataset:
      basis: {table: s, time: t}
      features:
        double: x * 2
  train:
    matrix: {model: [gbdt, linear]}
    training:
      dataset: d
      model: ${model}
"""


def test_a_pipeline_knows_the_lines_of_its_fields() -> None:
    lines = read(LONG).lines
    assert lines is not None
    assert lines.place("jobs.d.dataset.features.double") == "f.yaml:8: jobs.d.dataset.features.double"
    assert lines.place("jobs.s.sink.source.path") == "f.yaml:3: jobs.s.sink.source.path"
    assert lines.place("jobs.train-gbdt.training.model") == "f.yaml:13: jobs.train-gbdt.training.model"
    assert lines.place("jobs.unknown.sink") == "jobs.unknown.sink"
    assert set(lines.of_job("d").at) == {path for path in lines.at if path.startswith("jobs.d")}


def test_a_failed_jobs_message_gets_file_and_line() -> None:
    lines = read(LONG).lines
    assert lines is not None
    told = "dataset.features.double: column 'x' is text"
    assert (
        place_message(told, "dataset", "d", lines)
        == "f.yaml:8: jobs.d.dataset.features.double: column 'x' is text"
    )
    for other in ("a.csv:3: 'x' is no number", "no row is left", "dataset gone: nothing"):
        assert place_message(other, "dataset", "d", lines) == other
    assert place_message(told, "dataset", "d", None) == told
    several = "2 problems\n  dataset.features.double: 'x'\n  dataset.label: 'y'"
    assert (
        place_message(several, "dataset", "d", lines)
        == "2 problems\n  f.yaml:8: jobs.d.dataset.features.double: 'x'\n"
        f"  {lines.place('jobs.d.dataset.label')}: 'y'"
    )


def test_an_error_of_the_control_node_gets_file_and_line() -> None:
    lines = FieldLines(file="f.yaml", at={"jobs.d": 4, "jobs.d.resource": 9})
    told = r"^f.yaml:9: jobs.d.resource: there is none$"
    with pytest.raises(InputError, match=told), with_lines(lines, "p"):
        raise InputError("there is none", place="p: jobs.d.resource")


def test_lines_are_kept_when_a_pipeline_is_read_again() -> None:
    first = read(LONG)
    assert first.written is not None
    again = read_again(first.written)
    assert again.lines == first.lines
    assert replace(again, folder="") == replace(first, folder="")
