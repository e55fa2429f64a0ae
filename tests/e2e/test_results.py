"""What a program gets back from Gridmill: errors that explain, metrics, tables, predictions."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import gridmill
from gridmill.domain.states import JobState
from gridmill.errors import JobError, TimeLimitError
from tests.e2e.conftest import Place

pytestmark = pytest.mark.e2e

PIPELINE = """\
pipeline: shop
jobs:
  sales: {sink: {source: sales.csv, columns: {day: timestamp, sold: float}}}
  features:
    dataset:
      basis: {table: sales, time: day, entity: [shop]}
      lags: [{column: sold, steps: [1, 2]}]
      label: {column: sold, horizon: 1d, name: next}
      split: {validation: 0.2, test: 0.2}
  line: {training: {dataset: features, model: linear}}
  said: {prediction: {dataset: features, models: line, split: test}}
  count:
    command: |
      echo '{"type": "metric", "name": "words", "value": 3}' >&$GRIDMILL_EVENTS_FD
      echo three > $GRIDMILL_OUTPUT/words
"""


def write_shop(place: Place) -> Path:
    days = [f"2024-{1 + n // 28:02}-{1 + n % 28:02}" for n in range(280)]
    rows = [f"{shop},{day},{10 + n % 7}" for shop in "ab" for n, day in enumerate(days)]
    place.write("\n".join(["shop,day,sold", *rows]) + "\n", "sales.csv")
    return place.write(PIPELINE)


def test_an_unchanged_run_has_its_metrics_and_its_results_are_read(place: Place):
    file = write_shop(place)
    with gridmill.connect(place.home) as grid:
        first = {one.job.job.name: one for one in grid.run(file, check=True).jobs}
        again = {one.job.job.name: one for one in grid.run(file, check=True).jobs}
        assert {one.job.state for one in again.values()} == {JobState.UNCHANGED}
        for name, one in again.items():
            assert dict(one.metrics) == dict(first[name].metrics) | (
                {"rows_added": 0.0} if name == "sales" else {}
            ), name
        assert again["count"].metrics["words"] == 3
        assert again["line"].metrics["test_rmse"] > 0
        beside = read_results(place.home)
        assert grid.load("count").files()[0].read_text() == "three\n"
    assert read_results(place.home) == beside
    done = place.gridmill("export", "sales@latest", "--to", place.folder / "x.parquet")
    assert done.returncode == 0, done.stderr
    assert pq.read_table(place.folder / "x.parquet").num_rows == 560
    assert Path(place.gridmill("path", "shop/said").stdout.strip()).is_dir()


def read_results(home: Path) -> list[object]:
    """The same with and without a control node."""
    test = gridmill.load("shop/features", home=home).to_arrow(split="test")
    said = gridmill.load("shop/said@1", home=home).to_arrow()
    found = gridmill.load("shop/line", home=home).predict(test)
    assert found["prediction"].to_pylist() == said["prediction"].to_pylist()
    return [len(gridmill.load("shop/sales", home=home).to_arrow()), said.to_pylist()]


def test_the_error_of_a_run_names_its_job_exit_code_and_last_lines(place: Place):
    broken = gridmill.Pipeline(
        name="pf",
        jobs={
            "first": {"command": "echo fine"},
            "load": {"command": "echo reading; echo 'no column sold' >&2; exit 7", "needs": "first"},
            "after": {"command": "true", "needs": "load"},
        },
    )
    with gridmill.connect(place.home) as grid:
        with pytest.raises(JobError) as caught:
            grid.run(broken, check=True)
        error = caught.value
        assert (error.run, error.job, error.exit_code) == ("pf-1", "load", 7)
        assert set(error.log) == {"reading", "no column sold"}
        assert str(error).startswith("run pf-1 failed: job load: ")
        assert "exit code 7" in str(error)
        assert "  | no column sold" in str(error)
        assert "To see its log: gridmill logs pf-1 load" in error.hint
        with pytest.raises(JobError, match="job load"):
            grid.resume("pf-1", check=True)
        slow = gridmill.Pipeline(
            name="slow", jobs=gridmill.Job(name="a", command="sleep 60", timeout="300ms")
        )
        with pytest.raises(TimeLimitError, match="run slow-1 failed: job a: "):
            grid.run(slow, check=True)
