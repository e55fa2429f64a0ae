"""What the benchmarks' page says of results, and that the chains are what each tool is to run."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from bench import chains, measure, planning, sizing, table
from bench.measure import (
    Machine,
    Result,
    Saved,
    Series,
    alternate,
    at_least,
    at_most,
    percentile,
)

MACHINE = Machine(cores=2, memory_gib=24, processor="a processor", system="Linux", python="3.11", load=0.5)


def saved(*results: Result, name: str = "startup") -> Saved:
    return Saved(name=name, results=results, machine=MACHINE, date="2026-01-02", how="By hand.")


def test_a_missed_target_is_shown_as_plainly_as_a_met_one():
    results = (at_most(150, "area", "help", 100, "ms"), at_least(50, "area", "rate", 20, "jobs/s"))
    page = table.page([("startup", saved(*results)), ("demo", None)])
    assert "1 of 2 met." in page
    assert "| area: help | 100 ms |  | ≤ 150 ms | met |" in page
    assert "| area: rate | 20 jobs/s |  | ≥ 50 jobs/s | **missed** |" in page
    assert "Not measured yet: demo." in page


def test_the_page_says_where_and_how_it_was_measured():
    page = table.page([("startup", saved(measure.row("area", "what", 1, "s")))])
    assert "startup: 2 cores (a processor), 24 GiB, Linux, Python 3.11, 2026-01-02" in page
    assert "## Area\n\nBy hand.\n" in page


@pytest.mark.parametrize(
    ("value", "shown"), [(0.12345, "0.123"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,234"), (3.0, "3")]
)
def test_numbers_are_shown_with_three_digits(value: float, shown: str):
    assert table.number(value) == shown


def test_the_page_is_made_of_the_results_that_are_kept():
    assert table.page([(name, measure.load(name)) for name in table.MODULES]) == table.PAGE.read_text()


def test_results_are_kept_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measure, "OUT", tmp_path)
    result = measure.row("area", "what", 2.0, "s", **Series([1.0, 2.0, 4.0]).spread)
    measure.save("some", [result], how="So\nit was.")
    found = measure.load("some", tmp_path)
    assert found is not None
    assert (found.results, found.how) == ((result,), "So it was.")
    assert measure.load("other", tmp_path) is None


def test_all_take_turns_and_the_first_round_does_not_count():
    turns: list[str] = []

    def act(name: str, seconds: float) -> float:
        turns.append(name)
        return seconds

    acts = {"quick": lambda: act("quick", 1.0), "long": lambda: act("long", 61.0)}
    series = alternate(acts, rounds=5)
    assert turns == ["quick", "long"] * 4 + ["quick"] * 2
    assert (len(series["quick"].values), len(series["long"].values)) == (5, 3)


def test_percentiles_are_measurements():
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(range(1, 201), 0.99) == 198


@pytest.mark.parametrize("write", [chains.metaflow, chains.prefect, chains.dagster, chains.luigi])
def test_chains_are_python(write):
    ast.parse(write(20))


def test_a_chain_of_metaflow_has_as_many_steps():
    assert chains.metaflow(20).count("@step") == 20


def test_a_chain_of_gridmill_needs_each_step_before():
    jobs = yaml.safe_load(chains.gridmill(20))["jobs"]
    assert len(jobs) == 20
    assert all(jobs[f"step{n}"] == {"needs": f"step{n - 1}", "command": "true"} for n in range(1, 20))


def test_the_planner_is_held_to_its_limit_at_the_largest_size():
    case = {"worst_ms": 9.0, "cpu_ms": 8.0}
    few = {"case": "plan, one class", "jobs": 1000, "median_ms": 7.0, **case}
    most = {"case": "plan, one class", "jobs": 100_000, "median_ms": 1200.0, **case}
    growth = {"case": "plan, one class", "growth_to_n_log_n": 0.7}
    found = planning.results({"rows": [few, most], "growth": [growth]})
    assert [result.met for result in found] == [None, False, True]


def test_an_unknown_benchmark_is_refused():
    done = subprocess.run(
        (sys.executable, "-m", "bench", "nothing"),
        cwd=measure.REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "there is no nothing; there are startup" in done.stderr


def test_examples_whose_data_is_not_here_are_not_measured_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sizing, "DATA", tmp_path)
    monkeypatch.setattr(sys, "argv", ["sizing", sizing.PUBLISHED])
    sizing.main()
    said = capsys.readouterr().out
    assert "not measured: ett, flights, whose data is not in" in said
    assert "published: nothing was measured" in said
