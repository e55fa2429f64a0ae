"""What is wrong in a pipeline file is said with file, line and field; nothing else ever escapes."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gridmill.declarations import parse_declarations, read_pipeline
from gridmill.errors import PipelineError

JOB = "pipeline: p\njobs:\n  a: "
GOLDEN = Path(__file__).parents[2] / "golden" / "pipeline_errors.txt"


def golden() -> Iterator[tuple[str, str, str]]:
    for entry in GOLDEN.read_text().split("\n### ")[1:]:
        name, rest = entry.split("\n", 1)
        text, message = rest.rsplit("\n=> ", 1)
        yield name, text, message.strip()


BAD = {name: (text, message) for name, text, message in golden()}


def said(text: str, **set_values: object) -> str:
    with pytest.raises(PipelineError) as caught:
        parse_declarations(text, file="f.yaml", set_values=set_values)
    return str(caught.value)


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_said_with_its_place(name: str) -> None:
    text, message = BAD[name]
    assert said(text) == message


def test_a_control_character_is_refused() -> None:
    assert said("pipeline: p\njobs: \x07") == "f.yaml:2: broken YAML: control characters are not allowed"


def test_an_empty_file_is_refused() -> None:
    assert said("") == "f.yaml: the file is empty"


def test_all_problems_are_said_at_once_in_order_of_lines() -> None:
    text = "pipeline: p\njobs:\n  a: {comand: x}\n  b: {command: y, timeout: soon}\n  c: {command: [z, {}]}"
    assert said(text) == (
        "f.yaml: 3 problems\n"
        "  f.yaml:3: jobs.a.comand: there is no field `comand`; did you mean `command`?\n"
        "  f.yaml:4: jobs.b.timeout: expected a duration such as 5m, got 'soon'\n"
        "  f.yaml:5: jobs.c.command: expected text or a list of text, got ['z', {}]"
    )


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("budget: much", "jobs.a.budget: expected an amount of money such as 2.50, got 'much'"),
        ("budget: -1", "jobs.a.budget: expected an amount of money such as 2.50, got -1"),
        ("budget: 0.0000001", "jobs.a.budget: expected an amount of money such as 2.50, got 1e-07"),
        ("deadline: 0", "jobs.a.deadline: `deadline` must be more than 0, got 0.0"),
    ],
)
def test_a_wrong_budget_or_deadline_is_refused(written: str, message: str) -> None:
    assert said(f"pipeline: p\njobs:\n  a: {{command: x, {written}}}") == f"f.yaml:3: {message}"


def test_no_more_than_ten_are_listed() -> None:
    jobs = "\n".join(f"  j{number}: {{command: x, retries: no}}" for number in range(30))
    lines = said(f"pipeline: p\njobs:\n{jobs}").splitlines()
    assert (len(lines), lines[0], lines[-1]) == (12, "f.yaml: 30 problems", "  and 20 more")


def test_hints_say_what_to_do() -> None:
    for text, hint in {
        "pipeline: p\njobs:\n\ta: x": "Indent with spaces",
        "pipeline: p\njobs: a: b": "Put quotes around text that contains `: `",
        JOB + "{comand: x}": "The fields here are needs, when, resource",
        JOB + '{command: "${HOME}"}': "For a variable of the shell, write $${NAME}.",
        JOB + "{command: x, needs: [b]}": "pipeline/job",
        "": "Start with `pipeline: NAME`",
    }.items():
        with pytest.raises(PipelineError) as caught:
            parse_declarations(text, file="f.yaml")
        assert hint in caught.value.hint


def test_an_unknown_set_is_refused() -> None:
    text = "pipeline: p\nparameters: {epochs: 1}\njobs: {a: {command: x}}"
    assert said(text, epoch=3) == (
        "f.yaml:2: parameters: --set epoch: there is no parameter `epoch`; did you mean `epochs`?"
    )
    assert said(text, epochs="many") == (
        "f.yaml:2: parameters.epochs: --set epochs: expected a number like its default 1, got 'many'"
    )


def test_a_billion_laughs_are_few() -> None:
    lines = ["pipeline: p", "description: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"x{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "more than 100000 values, including the values that aliases repeat" in said("\n".join(lines))


def test_a_second_document_has_its_own_lines() -> None:
    assert said("pipeline: p\njobs: {a: {command: x}}\n---\nresource: r\ntype: sinc") == (
        "f.yaml:5: type: expected one of sink, dataset, training, prediction, service, command, got 'sinc'; "
        "did you mean `sink`?"
    )


def test_memory_without_a_unit_is_told() -> None:
    assert said("pipeline: p\njobs:\n  a: {memory: 4, command: x}") == (
        "f.yaml:3: jobs.a.memory: 4 bytes of memory are too few for any job"
    )
    assert "resources.r.memory: 512 bytes" in said(
        "pipeline: p\nresources: {r: {type: command, memory: 512}}\njobs: {a: {command: x}}"
    )


# files


def refused(path: Path) -> PipelineError:
    with pytest.raises(PipelineError) as caught:
        read_pipeline(path)
    return caught.value


def test_a_missing_file_names_what_is_near(tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text("")
    error = refused(tmp_path / "pipelin.yaml")
    assert str(error) == f"{tmp_path}/pipelin.yaml: the file does not exist"
    assert error.hint == "Did you mean `pipeline.yaml`?"


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "weather.yaml").write_text("")
    error = refused(tmp_path)
    assert str(error) == f"{tmp_path}: this is a folder, not a file"
    assert error.hint == f"Name the file: {tmp_path}/weather.yaml"


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_bytes("pipeline: p\ndescription: Köln".encode("latin-1"))
    assert str(refused(tmp_path / "p.yaml")) == f"{tmp_path}/p.yaml:2: byte 0xf6 is not UTF-8"


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_bytes(b"#" * 2**20 + b"\n")
    assert str(refused(tmp_path / "p.yaml")) == f"{tmp_path}/p.yaml: the file is larger than 1 MiB"


def test_a_file_without_a_pipeline(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("resource: r\ntype: sink")
    assert str(refused(path)) == f"{path}: declares no pipeline"
    path.write_text("pipeline: a\njobs: {a: {command: x}}\n---\npipeline: b\njobs: {a: {command: x}}")
    assert str(refused(path)) == f"{path}: declares 2 pipelines (a, b) instead of one"


# nothing but PipelineError

WORDS = st.sampled_from(
    [
        "pipeline",
        "jobs",
        "resources",
        "parameters",
        "a",
        "b",
        "command",
        "run",
        "env",
        "needs",
        "sink",
        "source",
        "dataset",
        "training",
        "prediction",
        "model",
        "lstm",
        "label",
        "window",
        "basis",
        "joins",
        "5m",
        "${a}",
        "${env:A}",
        "$${",
        "timeout",
        "rows",
        "name",
        "type",
        "<<",
        "~",
        "1M",
        "-1",
        ".inf",
        "*a",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | WORDS
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


def nothing_else_escapes(text: str) -> None:
    with suppress(PipelineError):
        parse_declarations(text)


@settings(deadline=None)
@given(VALUES)
def test_no_value_makes_anything_but_a_pipeline_error(value: object) -> None:
    nothing_else_escapes(yaml.safe_dump(value))


@settings(deadline=None)
@given(st.dictionaries(WORDS, VALUES, max_size=6), VALUES)
def test_no_pipeline_makes_anything_but_a_pipeline_error(fields: dict[str, object], other: object) -> None:
    jobs = {"a": {"command": "x", **fields}, "b": other}
    nothing_else_escapes(yaml.safe_dump({"pipeline": "p", "jobs": jobs}))
    nothing_else_escapes(yaml.safe_dump({"pipeline": "p", **fields}))


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from("ab:-{}[],&*!|>'\"%@`#~<$ \t\n\r\0\x07é\ud800"), max_size=60))
def test_no_text_makes_anything_but_a_pipeline_error(text: str) -> None:
    nothing_else_escapes("pipeline: p\n" + text)
