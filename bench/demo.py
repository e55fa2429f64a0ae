"""The demo pipeline with all of Gridmill's start-up, against a script written by hand for the same work."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.contestants import GRIDMILL, environment, gridmill_environment, short_folder
from bench.measure import REPOSITORY, Result, Series, alternate, at_most, row, save, timed

AREA = "The demo pipeline"
LIMIT = 1.15
WEATHER = REPOSITORY / "examples" / "weather"
METRIC = "test_rmse"
HOW = """
`gridmill run examples/weather/pipeline.yaml --force` on a fresh home each time, its control node, pods and
report included, and `python examples/weather/by_hand.py` in a fresh folder, in turn, after one round that
does not count. The script loads, joins, learns and predicts the same with the same libraries and settings,
and trains its models in parallel with the same thread counts. Wall time from starting the command to its
exit. The error of each model on the test period is shown for both: it tells whether they did the same work.
"""


def main() -> None:
    with short_folder() as folder:
        ours, theirs = Path(folder) / "gridmill", Path(folder) / "by-hand"
        acts = {"gridmill": _gridmill(ours), "by hand": _by_hand(theirs)}
        measured = alternate(acts)
        results = [*_times(measured["gridmill"], measured["by hand"]), *_errors(ours, theirs)]
    save("demo", results, how=HOW)


def _gridmill(folder: Path) -> Callable[[], float]:
    command = (str(GRIDMILL), "run", str(WEATHER / "pipeline.yaml"), "--force")
    return lambda: _fresh(folder, command, gridmill_environment(folder))


def _by_hand(folder: Path) -> Callable[[], float]:
    command = (sys.executable, str(WEATHER / "by_hand.py"), str(folder / "out"))
    return lambda: _fresh(folder, command, environment(folder))


def _fresh(folder: Path, command: tuple[str, ...], env: dict[str, str]) -> float:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return timed(lambda: run(folder, command, env))


def run(folder: Path, command: tuple[str, ...], env: dict[str, str]) -> str:
    """What the command printed. Raises RuntimeError with its output when it fails."""
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def _times(ours: Series, theirs: Series) -> list[Result]:
    return [
        row(AREA, "`gridmill run`, all start-up included", ours.median, "s", **ours.spread),
        row(AREA, "the script by hand", theirs.median, "s", **theirs.spread),
        at_most(LIMIT, AREA, "Gridmill's time over the script's", ours.median / theirs.median, "x"),
    ]


def _errors(ours: Path, theirs: Path) -> list[Result]:
    command = (str(GRIDMILL), "status", "weather", "--json")
    view = json.loads(run(ours, command, gridmill_environment(ours)))
    by_gridmill = {job["job"]["job"]["name"]: job["metrics"].get(METRIC) for job in view["jobs"]}
    by_hand = json.loads((theirs / "out" / "summary.json").read_text())["metrics"]
    what = "error on the test period (RMSE, °F)"
    return [
        row(AREA, f"{model}, {what}: {who}", value, "")
        for model in by_hand
        for who, value in (("Gridmill", by_gridmill[model]), ("by hand", by_hand[model][METRIC]))
    ]


if __name__ == "__main__":
    main()
