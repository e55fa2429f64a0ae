"""`remove run` at the command line, and the logs of jobs that an earlier run did."""

from dataclasses import replace
from pathlib import Path

import pytest
from test_cli import Cli

from gridmill.domain.states import JobState
from gridmill.testing.fake_grid import Act


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    made = Cli(tmp_path, capfd)
    made("run", made.file)
    return made


def test_a_dry_run_shows_what_goes_and_what_stays(cli: Cli) -> None:
    assert cli("remove", "run", "demo-1", "--dry-run") == 0
    assert "run demo-1 would be removed: 2 jobs, 2 attempts" in cli.out
    assert "versions of the run that are kept: demo/first@1, demo/second@1" in cli.out
    assert cli("remove", "run", "demo-1") == 0
    assert "run demo-1 removed" in cli.out
    assert cli("show", "run", "demo-1") == 4
    assert cli("remove", "run", "demo-1") == 4


def test_json_and_force(cli: Cli) -> None:
    assert cli("remove", "run", "demo-1", "--force") == 2
    assert cli.json("remove", "run", "demo-1")["versions"] == ["demo/first@1", "demo/second@1"]


def test_a_name_of_a_pipeline_removes_no_run(cli: Cli) -> None:
    assert cli("remove", "run", "demo") == 4
    assert len(cli.fake.runs().items) == 1


def test_an_active_run_is_refused(cli: Cli) -> None:
    cli.fake.acts["first"] = Act.HANG
    cli("run", cli.file, "--detach")
    assert cli("remove", "run", "demo-2") == 5
    assert "demo-2 is active" in cli.err


def unchanged(cli: Cli) -> None:
    """The second run did nothing: its first job stands for what the first run made."""
    cli("run", cli.file)
    view, made = cli.fake._views["demo-2"], cli.fake._views["demo-1"].jobs[0].artifacts
    made = tuple(replace(one, run_id="demo-1") for one in made)
    job = replace(view.jobs[0], job=replace(view.jobs[0].job, state=JobState.UNCHANGED), artifacts=made)
    cli.fake._views["demo-2"] = replace(view, jobs=(job, view.jobs[1]))
    logs = cli.fake._logs
    logs.records = [one for one in logs.records if (one.run_id, one.job) != ("demo-2", "first")]


def test_logs_of_an_unchanged_job_are_those_of_the_run_that_made_its_version(cli: Cli) -> None:
    unchanged(cli)
    assert cli("logs", "demo-2", "first") == 0
    assert cli.out == "first starts\n"
    assert "first is unchanged; run demo-1 made its version: its log follows" in cli.err
    assert cli("logs", "demo-2") == 0
    assert "first | first starts" in cli.out
    assert "second | second starts" in cli.out
    assert cli("logs", "demo-2", "second") == 0
    assert "unchanged" not in cli.err


def test_where_that_run_was_removed_it_says_so(cli: Cli) -> None:
    unchanged(cli)
    cli.fake._logs.delete(["demo-1"])
    assert cli("logs", "demo-2", "first") == 0
    assert "the job wrote nothing in that run, or its log was deleted" in cli.err
    cli("remove", "run", "demo-1")
    assert cli("logs", "demo-2", "first") == 0
    assert "run demo-1, which made its version, was removed" in cli.err
