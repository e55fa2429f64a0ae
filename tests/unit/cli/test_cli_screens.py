"""Tables on screens of any width: what a row is about is never hidden by what there is to say of it."""

from collections.abc import Sequence
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console, RenderableType
from tests.kit.report_views import a_model

from gridmill.cli.format import reason_lines
from gridmill.cli.render import run_table
from gridmill.cli.run import _LEFT_OUT, HEAD, _row
from gridmill.cli.session import _folded
from gridmill.cli.show import list_table
from gridmill.cli.tables import FittedTable, table
from gridmill.domain.amounts import MIB, Amounts
from gridmill.domain.metrics import headline
from gridmill.domain.provenance import FIRST, SAME
from gridmill.domain.resource import MeasuredUse
from gridmill.domain.states import JobState
from gridmill.domain.views import JobView, RunView
from gridmill.testing.store_samples import a_job_run, a_run, an_attempt

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


@pytest.mark.parametrize("most", [None, 20])
def test_names_and_states_are_whole_on_the_narrowest_screen(most: int | None) -> None:
    told = lines(run_table(view(running(), waiting()), 100.0, most=most), 40)
    assert any(line.startswith("quite_a_long_name      waiting  ") for line in told)
    assert any(line.startswith("train_the_first_model  running  ") for line in told)


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
    shown = FittedTable(head, [row], folded=("resource", "says"), left_out=("kind", "says"), comfort=0)
    words = " ".join(lines(shown, width)).split()
    assert {"swarm", "default-prediction-grid", "at", "grid"} <= set(words)
    assert ("kind" in words) == ("prediction" in words) == (width > 50)
    assert "nothing" in words
    assert all(len(line) <= width for line in lines(shown, width))


LEARNED = {"test_rmse": 3.996, "test_skill": 0.2685, "test_mae": 2.9, "validation_rmse": 3.4}


def ended(name: str) -> JobView:
    """A training with metrics that has used much of everything."""
    made = replace(a_job_run("p-1", name), state=JobState.SUCCEEDED, started=0.0, ended=4000.0)
    attempt = replace(
        an_attempt(1, run_id="p-1"),
        given=Amounts(cpus=2.0, memory_bytes=1100 * MIB),
        use=MeasuredUse(wall_seconds=4000.0, cpu_seconds=7000.0, peak_memory_bytes=1000 * MIB),
    )
    return JobView(job=made, attempts=(attempt,), metrics=LEARNED)


def test_the_summary_of_a_run_fits_eighty_columns_with_two_lines_of_metrics() -> None:
    rows = [_row(ended("train_a_model_of_much")), _row(ended("lstm"))]
    told = lines(FittedTable(HEAD, rows, folded=("metrics",), left_out=_LEFT_OUT), 80)
    assert all(len(line.rstrip()) <= 80 for line in told)
    assert len(told) <= 1 + 2 * 2
    words = " ".join(told).split()
    assert words.count("3.996,") == words.count("0.2685") == 2


def test_jobs_with_the_same_reason_share_a_line() -> None:
    reasons = {"a": FIRST, "b": FIRST, "c": f"{SAME} p/c@2", "d": f"{SAME} p/d@1", "e": "input `{x}` changed"}
    jobs = [
        replace(
            a_job_run("p-1", name),
            reason=reason,
            state=JobState.UNCHANGED if reason.startswith(SAME) else JobState.SUCCEEDED,
        )
        for name, reason in reasons.items()
    ]
    shown = view(*(JobView(job=one) for one in jobs))
    assert list(reason_lines(shown, 20)) == [
        "a, b executed: first run",
        "restored, nothing changed since p/c@2, p/d@1",
        "e executed: input `{x}` changed",
    ]
    assert list(reason_lines(shown, 1)) == [
        "a and 1 more executed: first run",
        f"and 3 more jobs: `gridmill show job {a_run().id}/JOB` shows why",
    ]


def test_a_list_of_versions_fits_eighty_columns() -> None:
    made = a_model("a_model_with_a_name", 12)
    row = (
        made.id,
        "latest, best",
        "model",
        19_566,
        "270.9 KiB",
        headline(made.output.metrics),
        "2026-11-25 18:43:05",
    )
    head = ("id", "named", "kind", "rows", "size", "metrics", "made")
    told = lines(list_table(head, [row] * 3), 80)
    assert all(len(line.rstrip()) <= 80 for line in told)
    assert len(told) <= 1 + 3 * 3
    assert "p/a_model_with_a_name@12" in told[1]


def test_a_job_whose_environment_is_built_says_so() -> None:
    note = "building environment: pip install numpy (3 of 12 packages)"
    job = replace(running(), progress={"phase": "environment", "done": 0, "note": note}, metrics={})
    text = " ".join(" ".join(lines(run_table(view(job), 100.0), 110)).split())
    assert "train_the_first_model building" in text
    assert note in text
    assert "running" not in text.partition("train_the_first_model")[2]


def test_a_folded_sentence_keeps_its_words_whole() -> None:
    path = "/a/path/without/any/break/" * 5
    folded = _folded(f"report: some words and then {path} and some more words behind it", 40, "  ")
    assert path in folded
    assert all(len(line) <= 40 for line in folded.splitlines() if path not in line)
