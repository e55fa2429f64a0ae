"""`list` with a part of what there is: states, how many, and of which pipeline."""

from dataclasses import replace
from pathlib import Path

import pytest
from test_cli import Cli

from gridmill.errors import InputError
from gridmill.sdk.client import Client
from gridmill.sdk.discovery import OpenGrid, home_settings
from gridmill.testing.fake_grid import Act


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    made = Cli(tmp_path, capfd)
    for act in (Act.SUCCEED, Act.FAIL, Act.SUCCEED, Act.FAIL):
        made.fake.acts["first"] = act
        made("run", made.file)
    return made


def ids(cli: Cli, *words: str) -> list[str]:
    return [run["id"] for run in cli.json("list", "runs", *words)]


def test_runs_by_state_newest_first(cli: Cli) -> None:
    assert ids(cli, "--state", "failed") == ["demo-4", "demo-2"]
    assert ids(cli, "--state", "failed", "-n", "1") == ["demo-4"]
    assert ids(cli, "--state", "failed,succeeded", "-n", "3") == ["demo-4", "demo-3", "demo-2"]
    assert ids(cli, "--state", "Failed", "--state", "stopped") == ["demo-4", "demo-2"]
    assert ids(cli, "--pipeline", "other") == []


def test_runs_that_are_left_out_are_mentioned(cli: Cli) -> None:
    assert cli("list", "runs", "-n", "4") == 0
    assert cli.err == ""
    assert cli("list", "runs", "-n", "2") == 0
    assert "demo-3" in cli.out
    assert "demo-2" not in cli.out
    assert "showing the newest 2 of 4 runs; `--all` shows all" in cli.err
    cli("list", "runs", "-n", "2", "--json")
    assert "showing the newest 2" in cli.err


def test_other_lists_have_a_length_too(cli: Cli) -> None:
    assert len(cli.json("list", "artifacts", "-n", "1")) == 1
    assert cli("list", "artifacts", "-n", "1") == 0
    assert "showing the newest 1 of 4 artifacts" in cli.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("runs", "--state", "faild"), "did you mean `failed`"),
        (("runs", "--state", "running"), "did you mean `active`"),
        (("runs", "--state", "purple"), "active, stopping, succeeded, failed, stopped"),
        (("models", "--state", "failed"), "--state works only with runs and deployments"),
        (("models", "--pipeline", "demo"), "--pipeline works only with runs"),
        (("deployments", "--state", "gon"), "did you mean `gone`"),
    ],
)
def test_what_is_no_state_is_refused(cli: Cli, words: tuple[str, ...], said: str) -> None:
    assert cli("list", *words) == 2
    assert said in cli.err


def test_a_length_below_one_is_refused(cli: Cli) -> None:
    assert cli("list", "runs", "-n", "0") == 2


def test_states_in_python(cli: Cli) -> None:
    client = Client(home_settings(cli.home), dial=lambda: OpenGrid(grid=cli.fake, close=lambda: None))
    assert [run.id for run in client.list_runs(states=["failed"])] == ["demo-4", "demo-2"]
    with pytest.raises(InputError, match="'faild' is not a state"):
        client.list_runs(states=["faild"])


def test_all_runs_are_counted(cli: Cli) -> None:
    for _ in range(50):
        cli.fake.start_run(cli.fake.pipeline("demo"))
    assert cli.json("list")["run"] == 54


def test_tables_show_the_newest_50_and_json_has_all(cli: Cli) -> None:
    for _ in range(50):
        cli.fake.start_run(cli.fake.pipeline("demo"))
    assert cli("list", "runs") == 0
    assert "showing the newest 50 of 54 runs" in cli.err
    assert "demo-5 " in cli.out
    assert "demo-4 " not in cli.out
    assert cli("list", "runs", "--all") == 0
    assert cli.err == ""
    assert "demo-4 " in cli.out
    assert len(ids(cli)) == 54
    assert len(ids(cli, "--limit", "51")) == 51
    assert cli("list", "runs", "--all", "-n", "3") == 2
    assert "--all and --limit exclude each other" in cli.err


def test_a_json_list_has_more_than_one_page(cli: Cli) -> None:
    kept = cli.fake.run("demo-4")
    for number in range(5, 1205):
        name = f"demo-{number}"
        cli.fake._views[name] = replace(kept, run=replace(kept.run, id=name))
    assert ids(cli) == [f"demo-{number}" for number in range(1204, 0, -1)]
    assert cli("list", "runs") == 0
    assert "showing the newest 50 of more than 1,050 runs" in cli.err
