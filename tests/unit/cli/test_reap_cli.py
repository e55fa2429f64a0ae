"""The command `reap` lists first, ends with --yes, and has exit codes for cron."""

import json

import pytest
from typer.testing import CliRunner

from gridmill.bootstrap.host import ProgramHost
from gridmill.cli.app import app
from gridmill.cli.invocation import Invocation
from gridmill.errors import CredentialsError, InputError, NotFoundError

TWO = ("reap", "simulated", "--set", "machines=2")


def call(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words), obj=Invocation(host=ProgramHost()))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def test_machines_are_listed_and_the_exit_code_shows_that_some_exist() -> None:
    text = call(*TWO, code=1)
    assert "m-0001" in text
    assert "1.00 USD" in text
    assert "2 machines and 8 other resources at simulated: 10 found" in text
    assert "`--owner GRID --yes` or `--all --yes`" in text


def test_nothing_is_found() -> None:
    assert call("reap", "simulated") == "0 machines and 0 other resources at simulated\n"


def test_the_machines_of_one_grid_are_ended() -> None:
    report = json.loads(call(*TWO, "--owner", "grid-0", "--yes", "--json"))
    assert report["ended"]
    assert {(item["owner"], item["result"]) for item in report["items"]} == {("grid-0", "ended")}
    assert "10 ended" in call(*TWO, "--all", "--yes")


def test_young_machines_are_kept() -> None:
    assert "10 kept" in call(*TWO, "--all", "--older-than", "6h", "--yes")


def test_all_grids_are_ended_only_on_request() -> None:
    with pytest.raises(InputError, match="all grids"):
        call(*TWO, "--yes")


def test_a_lease_is_ended_only_together_with_its_grid() -> None:
    lease = json.loads(call(*TWO, "--json", code=1))["items"][0]["lease"]
    with pytest.raises(InputError, match=f"would end what belongs to {lease} of every grid"):
        call(*TWO, "--lease", lease, "--yes")
    assert "`--owner GRID --yes` or `--all --yes`" in call(*TWO, "--lease", lease, code=1)
    assert "with `--yes` to end" in call(*TWO, "--lease", lease, "--owner", "grid-0", code=1)
    report = json.loads(call(*TWO, "--lease", lease, "--owner", "grid-0", "--yes", "--json"))
    assert {item["lease"] for item in report["items"]} == {lease}


def test_errors_name_what_is_wrong() -> None:
    with pytest.raises(NotFoundError, match="clouds"):
        call("reap", "nowhere")
    with pytest.raises(CredentialsError):
        call(*TWO, "--set", "faults=credentials")
    with pytest.raises(InputError, match="uses no home"):
        call(*TWO, "--set", "secret=cloud-key")
