"""The command line knows pipelines by what was run: from their files, else as they ran."""

from pathlib import Path

import pytest
from test_cli import FILE, Cli


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, capfd)


def second(cli: Cli) -> object:
    return cli.fake.pipeline("demo").jobs[1].command.run


def test_what_was_run_is_listed_with_its_file_and_its_last_run(cli: Cli) -> None:
    cli("run", cli.file)
    cli("run", cli.file)
    assert cli("list", "pipelines") == 0
    assert str(cli.file) in cli.out
    assert "demo-2 succeeded" in cli.out
    (listed,) = cli.json("list", "pipelines")
    assert (listed["name"], listed["file"], listed["last_run"]) == ("demo", str(cli.file), "demo-2")
    assert listed["applied"] is False
    assert cli("show", "pipeline", "demo") == 0
    assert str(cli.file) in cli.out
    assert "its last run" in cli.out


def test_its_name_reads_its_file_again_and_says_so(cli: Cli) -> None:
    cli("run", cli.file, "--set", "rate=3")
    cli.file.write_text(FILE.replace("echo ${rate}", "echo new ${rate}"))
    assert cli("run", "demo") == 0
    assert f"pipeline demo: read from {cli.file}" in cli.err
    assert second(cli) == "echo new 0.5"
    assert cli("plan", "demo", "--set", "rate=4") == 0
    assert f"pipeline demo: read from {cli.file}" in cli.err


def test_where_its_file_is_gone_or_declares_another_the_kept_declaration_is_used(cli: Cli) -> None:
    cli("run", cli.file, "--set", "rate=3")
    cli.file.unlink()
    assert cli("run", "demo") == 0
    assert f"{cli.file} does not exist any more" in cli.err
    assert "as in its last run" in cli.err
    assert second(cli) == "echo 3"
    assert cli("run", "demo", "--set", "rate=4") == 0
    assert second(cli) == "echo 4"
    cli.file.write_text(FILE.replace("pipeline: demo", "pipeline: other"))
    assert cli("run", "demo") == 0
    assert f"{cli.file} does not declare the pipeline any more" in cli.err
    assert cli("plan", "demo") == 0
    assert "as in its last run" in cli.err


def test_an_error_in_its_file_is_no_reason_to_run_something_older(cli: Cli) -> None:
    cli("run", cli.file)
    cli.file.write_text(FILE.replace("needs:", "nedes:"))
    assert cli("run", "demo") == 2
    assert "nedes" in cli.err
    assert len(cli.fake.runs().items) == 1


def test_an_applied_pipeline_is_run_as_it_was_applied(cli: Cli) -> None:
    cli("apply", "-f", cli.file, "--set", "rate=3")
    cli.file.write_text(FILE.replace("echo", "printf"))
    assert cli("run", "demo") == 0
    assert "pipeline demo: as it was applied" in cli.err
    assert second(cli) == "echo 3"
    assert cli("show", "pipeline", "demo") == 0
    assert "gridmill apply" in cli.out


def test_a_pipeline_of_another_machine_is_not_read_from_a_file_here(cli: Cli) -> None:
    cli("run", cli.file)
    known = cli.fake.pipeline("demo")
    cli.fake.start_run(
        type(known)(**{name: getattr(known, name) for name in known.__slots__} | {"host": "far"})
    )
    assert cli("run", "demo") == 0
    assert f"{cli.file} is on the machine far" in cli.err
