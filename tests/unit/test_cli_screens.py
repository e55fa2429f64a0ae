"""Tables on screens of any width: what a row is about is never hidden by what there is to say of it."""

from collections.abc import Sequence
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console, RenderableType

from gridmill.cli.render import run_table
from gridmill.cli.tables import fitted, table
from gridmill.model.state import JobState
from gridmill.model.view import JobView, RunView
from gridmill.testing.store_samples import a_job_run, a_run

REASON = "needs 512 MiB for `other`; box on node-1 has 300 MiB left, free in about 60 s: " + "b " * 100
WIDTHS = (60, 80, 110, 220)


def lines(shown: RenderableType, width: int) -> Sequence[str]:
    screen = Console(file=StringIO(), width=width, highlight=False)
    screen.print(shown)
    written = screen.file.getvalue() if isinstance(screen.file, StringIO) else ""
    return [line for line in written.splitlines() if line.strip()]


def view(*jobs: JobView) -> RunView:
    return RunView(run=a_run(), jobs=jobs)


def waiting(name: str = "quite_a_long_name") -> JobView:
    return JobView(job=replace(a_job_run("p-1", name), state=JobState.WAITING), why=REASON)


def running() -> JobView:
    return JobView(
        job=replace(a_job_run("p-1", "train_the_first_model"), state=JobState.RUNNING, started=0.0),
        progress={"done": 10.0, "total": 4000.0, "unit": "rows"},
        metrics={"train_loss": 0.123456, "validation_rmse": 12.3456},
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_the_grids_status_is_one_line_for_each_job_with_its_name_and_state(width: int) -> None:
    told = lines(run_table(view(running(), waiting()), 100.0, most=20), width)
    head, first, second = told[-3:]
    assert head.split()[:2] == ["job", "state"]
    assert first.split()[:2] == ["train_the_first_model", "running"]
    assert second.split()[:2] == ["quite_a_long_name", "waiting"]
    assert second.rstrip().endswith("…"), "it is the reason that is cut"


@pytest.mark.parametrize("width", WIDTHS)
def test_a_runs_status_has_names_states_and_the_whole_reason(width: int) -> None:
    told = lines(run_table(view(running(), waiting()), 100.0), width)
    assert any(line.split()[:2] == ["quite_a_long_name", "waiting"] for line in told)
    assert any(line.split()[:2] == ["train_the_first_model", "running"] for line in told)
    assert "".join("".join(told).split()).count("b") >= REASON.count("b ")


def test_columns_that_say_nothing_leave_their_room_to_the_reason() -> None:
    waits = replace(waiting(), job=replace(waiting().job, resource=""))
    row = lines(run_table(view(waits), 100.0, most=20), 80)[-1]
    assert row.startswith(f"quite_a_long_name  waiting  {REASON[:40]}")


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_table_hides_nothing(width: int) -> None:
    row = ("alpha_site", "a-name-without-any-break-in-it", "1 CPU, 512.0 MiB", "some words that are folded")
    told = lines(table("name", "node", "has", "says", rows=[row]), width)
    assert "…" not in "".join(told)
    assert sorted("".join("".join(told).split())) == sorted(
        "".join(("name", "node", "has", "says", *row)).replace(" ", "")
    )


@pytest.mark.parametrize("width", [50, 80, 200])
def test_a_fitted_table_breaks_no_word_and_leaves_the_least_needed_out(width: int) -> None:
    head = ("step", "job", "kind", "resource", "says", "")
    row = ("1", "swarm", "prediction", "default-prediction-grid at grid", "nothing is cut", "")
    shown = fitted(head, [row], width, folded=("resource", "says"), left_out=("kind", "says"))
    words = " ".join(lines(shown, width)).split()
    assert {"swarm", "default-prediction-grid", "at", "grid"} <= set(words)
    assert ("kind" in words) == ("prediction" in words) == (width > 50)
    assert "nothing" in words
    assert all(len(line) <= width for line in lines(shown, width))
