"""What `plan` says is wrong is what a run fails with; what it says nothing of succeeds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gridmill.cli.init import PIPELINE, write_example

pytestmark = pytest.mark.e2e

WRONG = {
    "column": ("{column: rentals, steps: [1, 6]}", "{column: rentalls, steps: [1, 6]}", "rentalls"),
    "sql": ("isodow(day)", "isodow(day", "syntax error"),
    "type": ("rentals: integer}", "station: integer}", "is not of type integer"),
    "rows": ("label: {column: rentals, steps: 1}", "label: {column: rentals, steps: 900}", "no row is left"),
    "sequence": (
        "{dataset: features, model: naive}",
        "{dataset: features, model: lstm, sequence: 900}",
        "900 rows",
    ),
}


def gridmill(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gridmill", "--home", str(home), *words],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_new_pipeline_runs(tmp_path: Path) -> None:
    write_example(tmp_path / "new")
    file = str(tmp_path / "new" / PIPELINE)
    planned = gridmill(tmp_path / "h", "plan", file)
    assert planned.returncode == 0, planned.stdout
    ran = gridmill(tmp_path / "h", "run", file)
    assert (ran.returncode, "6 of 6 jobs done" in ran.stdout) == (0, True), ran.stdout + ran.stderr


@pytest.mark.long
@pytest.mark.parametrize("name", WRONG)
def test_a_run_fails_with_what_the_plan_says(name: str, tmp_path: Path) -> None:
    old, new, words = WRONG[name]
    write_example(tmp_path / "new")
    file = tmp_path / "new" / PIPELINE
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    planned, ran = gridmill(tmp_path / "h", "plan", str(file)), gridmill(tmp_path / "h", "run", str(file))
    assert planned.returncode == 2, planned.stdout
    assert ran.returncode == 1, ran.stdout
    assert words in planned.stdout
    assert words in ran.stdout
    assert f"{file}:" in planned.stdout
    assert name == "type" or f"{file}:" in ran.stdout  # of a value the file of the data and its line
