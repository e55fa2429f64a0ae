"""A search of 50 trials by two workers against one."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.measure import Result, Series, alternate, at_least, row, save, timed
from bench.models import WIDTH, numbers, train, write
from gridmill.domain.artifact import Artifact
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.domain.tuning import Range, Search

AREA = "Search"
ROWS, TRIALS, LEAST = 20_000, 50, 1.8


HOW = f"""
A training job of boosted trees over {ROWS:,} rows of {WIDTH} numbers whose search tries {TRIALS} settings,
with two workers on two CPUs against one worker on one, in turn, by wall time. The time includes reading the
dataset, all trials, the last training with the best settings and its files.
"""


def main() -> None:
    with TemporaryDirectory() as folder:
        dataset = write(Path(folder), *numbers(ROWS))
        acts = {
            workers: partial(timed, partial(_search, Path(folder), dataset, workers)) for workers in (1, 2)
        }
        measured = alternate(acts)
    pairs = zip(measured[1].values, measured[2].values, strict=True)
    faster = Series([one / two for one, two in pairs])
    one = measured[1]
    results: list[Result] = [
        at_least(
            LEAST,
            AREA,
            f"search of {TRIALS} trials, two workers over one",
            faster.median,
            "x",
            **faster.spread,
        ),
        row(AREA, f"search of {TRIALS} trials, one worker", one.median, "s", **one.spread),
    ]
    save("search", results, how=HOW)


def _search(root: Path, dataset: Artifact, workers: int) -> None:
    searched = Search(
        trials=TRIALS,
        parameters={"learning_rate": Range(log=(0.01, 0.3)), "max_leaves": Range(between=(8, 64))},
    )
    spec = TrainingSpec(dataset="d", model=ModelKind.GBDT, trees=100, patience=100, search=searched)
    train(root, dataset, spec, workers)


if __name__ == "__main__":
    main()
