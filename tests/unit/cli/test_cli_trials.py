"""`show model NAME --trials`, and metrics that `status` and the summary of a run share."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_cli import Cli

from gridmill.cli.format import job_row
from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.metrics import headline
from gridmill.domain.states import JobState


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, capfd)


def trial(number: int, value: float | None, state: str = "complete", **parameters: object) -> dict[str, Any]:
    return {
        "number": number,
        "state": state,
        "value": value,
        "parameters": parameters,
        "seconds": 1.5,
        "steps": 1,
        "message": "" if value is not None else "it broke",
    }


def keep(cli: Cli, metric: str, *trials: dict[str, Any]) -> None:
    details = {"search": {"metric": metric, "best": 1, "trials": list(trials)}} if trials else {}
    output = Output(kind=ArtifactKind.MODEL, uri="m", details=details)
    cli.fake._artifacts["p/m@1"] = Artifact(id="p/m@1", name="p/m", number=1, output=output, fingerprint="f")


def test_the_best_come_first_and_failed_ones_last(cli: Cli) -> None:
    keep(
        cli,
        "rmse",
        trial(0, 2.5, learning_rate=0.25, max_leaves=4),
        trial(1, 1.5, learning_rate=0.125, max_leaves=8),
        trial(2, None, "fail", learning_rate=9.0, max_leaves=2),
        trial(3, 2.0, "pruned", learning_rate=0.5, max_leaves=3),
    )
    assert cli("show", "model", "p/m", "--trials") == 0
    lines = [line.split() for line in cli.out.splitlines()]
    assert lines[0] == ["trial", "state", "validation", "rmse", "learning_rate", "max_leaves", "took"]
    assert [line[0] for line in lines[1:]] == ["1", "3", "0", "2"]
    assert lines[1][:7] == ["1", "*", "succeeded", "1.5", "0.125", "8", "1.5"]
    assert "ended early" in cli.out
    assert "it broke" in cli.out
    found = cli.json("show", "model", "p/m", "--trials")
    assert [one["number"] for one in found["trials"]] == [1, 3, 0, 2]
    assert found["metric"] == "rmse"


def test_where_higher_is_better_the_highest_comes_first(cli: Cli) -> None:
    keep(cli, "auc", trial(0, 0.5), trial(1, 0.9), trial(2, 0.7))
    found = cli.json("show", "model", "p/m", "--trials")
    assert [one["number"] for one in found["trials"]] == [1, 2, 0]


def test_what_no_search_has_made_is_refused(cli: Cli) -> None:
    keep(cli, "rmse")
    assert cli("show", "model", "p/m", "--trials") == 2
    assert "p/m@1 was trained without a search" in cli.err
    cli("run", cli.file)
    assert cli("show", "run", "demo", "--trials") == 2
    assert "--trials works only with models" in cli.err


def test_status_shows_the_metrics_of_the_summary_once_a_job_has_ended(cli: Cli) -> None:
    cli("run", cli.file)
    values = {"test_rmse": 1.0, "test_r2": 0.9, "validation_rmse": 2.0, "train_loss": 3.0, "trees": 4.0}
    view = replace(cli.fake._views["demo-1"].jobs[0], metrics=values)
    assert job_row(view, 0.0)[-1] == headline(values) == "test_rmse 1, test_r2 0.9"
    running = replace(view, job=replace(view.job, state=JobState.RUNNING))
    assert job_row(running, 0.0)[-1].endswith("train_loss 3, trees 4")
