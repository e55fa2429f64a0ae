"""Backfills from the command line and the client, on a grid in memory."""

from pathlib import Path

import pytest
from tests.unit.cli.test_cli import Cli

from gridmill.codec import decode
from gridmill.control.steps.stored_pipelines import chunks_of
from gridmill.domain.backfill import Backfill
from gridmill.domain.pipeline import Pipeline
from gridmill.errors import PipelineError
from gridmill.sdk.client import Client
from gridmill.sdk.discovery import OpenGrid, home_settings
from gridmill.testing.fake_grid import FakeGrid

FILE = """\
pipeline: weekly
parameters: {from: 2013-01-01, to: 2013-01-08, rate: 1}
jobs:
  count: {command: "echo ${from} ${to} ${rate}"}
"""
MONTHLY = Backfill(name="weekly", begins="2013-01-01", ends="2013-02-01", every_seconds=86_400.0)
MONTH = ("--from", "2013-01-01", "--to", "2013-02-01", "--every", "7d")


class Kept(FakeGrid):
    """Remembers the chunks it was given."""

    chunks = ()

    def start_backfill(self, backfill, chunks=()):
        type(self).chunks = chunks
        return super().start_backfill(backfill, chunks)


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    made = Cli(tmp_path, capfd)
    made.file.write_text(FILE)
    return made


def test_it_is_started_shown_stopped_and_goes_on(cli: Cli) -> None:
    assert cli("start", "backfill", cli.file, *MONTH) == 0
    assert cli.out == "backfill weekly: 5 chunks: 5 left\n"
    assert cli("list", "backfills") == 0
    assert "  7d  " in cli.out
    assert cli("show", "backfill", "weekly") == 0
    assert "2013-01-29  2013-02-01  left" in cli.out
    assert cli("stop", "backfill", "weekly") == 0
    assert "active runs continue" in cli.out
    assert cli.json("show", "backfill", "weekly")["backfill"]["stopped"] is True
    assert cli("start", "backfill", "weekly") == 0
    assert cli.json("list", "backfills")[0]["counts"] == {"left": 5}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("p.yaml", "--from", "2013-01-01"), "needs --from and --to"),
        (("p.yaml",), "needs --from and --to"),
        (("weekly", "--to", "2013-01-01"), "needs --from and --to"),
        (("weekly", *MONTH), "there is no pipeline 'weekly'"),
        (("weekly",), "there is no backfill 'weekly'"),
        (("p.yaml", *MONTH[:-1], "soon"), "'soon'"),
        (("p.yaml", *MONTH, "--parallel", "0"), "`parallel` must be 1 or more"),
    ],
)
def test_what_is_missing_is_said(words: tuple[str, ...], said: str, cli: Cli) -> None:
    given = [cli.file if word == "p.yaml" else word for word in words]
    assert cli("start", "backfill", *given) == 2 or "there is no" in said
    assert said in cli.err


def test_a_run_takes_no_range(cli: Cli) -> None:
    assert cli("start", "run", cli.file, *MONTH) == 2
    assert "No such option: --from" in cli.err
    assert cli("start", "--force", "backfill", cli.file) == 2
    assert "`start` has no options of a backfill" in cli.err


def test_each_chunk_has_its_bounds_in_it_and_the_values_that_were_given(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(FILE)
    client = Client(home_settings(tmp_path / "h"), dial=lambda: OpenGrid(grid=Kept(), close=lambda: None))
    client.start_backfill(file, begins="2013-01-01", ends="2013-01-10", every=7 * 86_400, set={"rate": 2})
    said = [chunk.pipeline.jobs[0].command.run for chunk in Kept.chunks]
    assert said == ["echo 2013-01-01 2013-01-08 2", "echo 2013-01-08 2013-01-10 2"]
    assert len({chunk.pipeline.bundle for chunk in Kept.chunks} - {None}) == 1
    file.write_text(FILE.replace("to: 2013-01-08, ", "").replace("${to}", ""))
    with pytest.raises(PipelineError, match="declares no parameter `to`"):
        client.start_backfill(file, begins="2013-01-01", ends="2013-01-10", every="7d")


def test_a_kept_one_is_filled_in_anew_by_its_name_without_its_file(cli: Cli) -> None:
    assert cli("apply", "-f", cli.file, "--set", "rate=3") == 0
    cli.file.unlink()
    assert cli("backfill", "weekly", *MONTH) == 0
    assert cli.out == "backfill weekly: 5 chunks: 5 left\n"
    assert cli("start", "backfill", "weekly", "--from", "2013-01-01", "--to", "2013-03-01") == 0
    assert cli.out == "backfill weekly: 1 chunk: 1 left\n"
    assert cli("backfill", "weekly", *MONTH, "--set", "rat=1") != 0
    assert "there is no parameter `rat`" in cli.err


def test_chunks_of_a_kept_one_have_its_values_its_code_and_not_its_text(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "resource: other\ntype: command\n---\npipeline: more\njobs: {a: {command: b}}\n---\n" + FILE
    )
    client = Client(home_settings(tmp_path / "h"), dial=lambda: OpenGrid(grid=Kept(), close=lambda: None))
    with pytest.raises(PipelineError, match="parameter `rate`"):
        client.apply(file, set={"rate": 3})  # the other pipeline has none
    client.apply(file)
    file.unlink()
    client.start_backfill("weekly", begins="2013-01-01", ends="2013-01-10", every="7d", set={"rate": 2})
    said = [chunk.pipeline.jobs[0].command.run for chunk in Kept.chunks]
    assert said == ["echo 2013-01-01 2013-01-08 2", "echo 2013-01-08 2013-01-10 2"]
    assert {chunk.pipeline.bundle for chunk in Kept.chunks} == {client.list_pipelines()[-1].bundle}
    assert {chunk.pipeline.written for chunk in Kept.chunks} == {None}
    assert {chunk.pipeline.folder for chunk in Kept.chunks} == {str(tmp_path)}


def test_one_that_was_kept_before_texts_were_says_to_apply_it_again() -> None:
    record = b'{"name": "weekly", "jobs": [], "parameters": {"from": "a", "to": "b"}}'
    with pytest.raises(PipelineError, match="without the text of its file") as caught:
        chunks_of(decode(record, Pipeline), MONTHLY, {})
    assert "Apply the file again" in caught.value.hint
