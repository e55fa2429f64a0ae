"""The flights pipeline with all of Gridmill's start-up, against a script by hand for the same work."""

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.contestants import GRIDMILL, environment, gridmill_environment, short_folder
from bench.demo import run
from bench.measure import REPOSITORY, Result, Series, alternate, at_most, row, save, timed

AREA = "The flights pipeline"
LIMIT = 1.10
CLOSE = 0.002
FLIGHTS = REPOSITORY / "examples" / "flights"
DATA = REPOSITORY.parent / "shared" / "data" / "nycflights13"
METRIC = "test_auc"
HOW = """
`gridmill run examples/flights/pipeline.yaml --force` on a fresh home each time, its control node, pods and
report included, and `python examples/flights/by_hand.py` in a fresh folder, in turn, after one round that
does not count. The script loads, derives, joins, encodes and learns the same with the same libraries,
settings and thread counts, and as many jobs side by side. Wall time from starting the command to its exit.
Rows of the datasets and the area under the curve of each model on the test rows are shown for both: they
tell whether they did the same work.
"""


def main() -> None:
    if not DATA.is_dir():
        print(f"not measured: flights.parquet and weather.csv of nycflights13 are not in {DATA}")
        return
    with short_folder() as folder:
        ours, theirs = Path(folder) / "gridmill", Path(folder) / "by-hand"
        measured = alternate({"gridmill": _gridmill(ours), "by hand": _by_hand(theirs)})
        results = [*_times(measured["gridmill"], measured["by hand"]), *_sameness(ours, theirs)]
    save("flights", results, how=HOW)


def _gridmill(folder: Path) -> Callable[[], float]:
    command = (str(GRIDMILL), "run", str(FLIGHTS / "pipeline.yaml"), "--force")
    return lambda: _fresh(folder, command, gridmill_environment(folder))


def _by_hand(folder: Path) -> Callable[[], float]:
    command = (sys.executable, str(FLIGHTS / "by_hand.py"), str(folder / "out"))
    return lambda: _fresh(folder, command, environment(folder))


def _fresh(folder: Path, command: tuple[str, ...], env: dict[str, str]) -> float:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return timed(lambda: run(folder, command, env))


def _times(ours: Series, theirs: Series) -> list[Result]:
    return [
        row(AREA, "`gridmill run`, all start-up included", ours.median, "s", **ours.spread),
        row(AREA, "the script by hand", theirs.median, "s", **theirs.spread),
        at_most(LIMIT, AREA, "Gridmill's time over the script's", ours.median / theirs.median, "x"),
    ]


def _sameness(ours: Path, theirs: Path) -> list[Result]:
    by_gridmill, by_hand = _found(ours), json.loads((theirs / "out" / "summary.json").read_text())
    rows = [
        row(AREA, f"rows of {dataset}: {who}", count, "")
        for dataset, own in by_hand["rows"].items()
        for who, count in (("Gridmill", by_gridmill[dataset]["rows"]), ("by hand", own))
    ]
    areas = [
        row(AREA, f"{model}, area under the curve on the test rows: {who}", value, "")
        for model, metrics in by_hand["metrics"].items()
        for who, value in (("Gridmill", by_gridmill[model][METRIC]), ("by hand", metrics[METRIC]))
    ]
    apart = [abs(metrics[METRIC] - by_gridmill[m][METRIC]) for m, metrics in by_hand["metrics"].items()]
    return [*rows, *areas, at_most(CLOSE, AREA, "largest difference of those areas", max(apart), "")]


def _found(folder: Path) -> Mapping[str, Any]:
    """Metrics of each of Gridmill's jobs."""
    command = (str(GRIDMILL), "status", "flights", "--json")
    view = json.loads(run(folder, command, gridmill_environment(folder)))
    return {job["job"]["job"]["name"]: job["metrics"] for job in view["jobs"]}


if __name__ == "__main__":
    main()
