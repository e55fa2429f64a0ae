"""The published JSON Schema accepts what is read and refuses what is refused; published files are current."""

import json
import subprocess
import sys
from pathlib import Path

import jsonschema_rs
import pytest

from gridmill.declarations import json_schema
from gridmill.declarations.schema_export import schema_text
from gridmill.declarations.yaml import parse_documents

REPOSITORY = Path(__file__).parents[3]
EXAMPLES = sorted((REPOSITORY / "examples").glob("*/*.yaml"))
SCHEMA = json_schema()
JOB = "pipeline: p\njobs:\n  a: "


def problems(text: str) -> list[str]:
    """What the schema finds, on the document as plain JSON."""
    (document,) = parse_documents(text, "f.yaml")
    checked = jsonschema_rs.validator_for(SCHEMA)
    return [error.message for error in checked.iter_errors(json.loads(json.dumps(document.value)))]


def test_it_is_a_schema_of_draft_2020_12() -> None:
    jsonschema_rs.meta.validate(SCHEMA)
    assert "2020-12" in SCHEMA["$schema"]
    assert "$id" not in SCHEMA


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_every_example_is_valid(path: Path) -> None:
    assert problems(path.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "resource: r\ntype: training\nrows: 1M\nkeep: 5m",
        "site: s\nkind: slurm",
        JOB + "{command: [echo, 1], timeout: 5m, memory: 2GiB, rows: 250k, retries: '${n}', needs: b}",
        JOB + "{sink: data/*.csv}",
        JOB + "{sink: {source: [a.csv, b.csv], columns: {t: timestamp}}}",
        JOB + "{training: {dataset: d, model: '${model}', epochs: '${epochs}'}}",
    ],
)
def test_what_is_read_is_valid(text: str) -> None:
    assert problems(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "jobs: {a: {command: x}}",
        "pipeline: p",
        "pipeline: P Q\njobs: {a: {command: x}}",
        "resource: r\nkeep: 5m",
        JOB + "{comand: x}",
        JOB + "{command: x, sink: {source: x}}",
        JOB + "{retries: 1}",
        JOB + "{command: x, timeout: soon}",
        JOB + "{command: x, memory: 5 parsecs}",
        JOB + "{command: x, cache: yes}",
        JOB + "{command: x, timeout_seconds: 5}",
        JOB + "{training: {model: lstm}}",
        JOB + "{training: {dataset: d, model: lstn}}",
    ],
)
def test_what_is_refused_is_invalid(text: str) -> None:
    assert problems(text)


def test_fields_have_their_names_in_yaml_and_say_what_they_are() -> None:
    job = SCHEMA["$defs"]["Job"]["properties"]
    assert job["timeout"]["description"].startswith("Longest time for one attempt.")
    assert job["timeout"]["examples"] == ["2h"]
    assert job["retries"]["default"] == 0
    assert not {"name", "timeout_seconds", "memory_bytes"} & set(job)
    assert {"folder", "bundle"}.isdisjoint(SCHEMA["$defs"]["PipelineDocument"]["properties"])


def test_the_schema_is_shipped_and_published_as_it_is() -> None:
    for name in ("schema/pipeline.schema.json", "src/gridmill/declarations/pipeline.schema.json"):
        assert (REPOSITORY / name).read_text() == schema_text(), "run python docs/generate.py"


def test_generated_pages_are_current() -> None:
    command = [sys.executable, str(REPOSITORY / "docs" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
