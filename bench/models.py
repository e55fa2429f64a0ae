"""A whole training of boosted trees against scikit-learn alone, and the cost of the check of the files."""

import os
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from bench.measure import Result, Series, alternate, at_most, cpu_seconds, row, save
from gridmill.domain.amounts import Amounts
from gridmill.domain.artifact import Artifact, ArtifactKind, Input, Output
from gridmill.domain.job import Job
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.jobs.context import JobContext, JobResult
from gridmill.jobs.training.run import run

AREA = "Models"
ROWS, WIDTH, TREES, FILES = 1_000_000, 30, 300, 4
SMALL_ROWS = 50_000
MOST, MOST_SECONDS = 1.1, 1.0
KINDS = (ModelKind.GBDT, ModelKind.LINEAR, ModelKind.MLP, ModelKind.LSTM)
HOW = f"""
A `gbdt` training job over {ROWS:,} rows of {WIDTH} numbers (read from Parquet, learned with {TREES} trees,
written, loaded again, compared and measured) against `HistGradientBoostingRegressor.fit` over the same arrays
in memory, in turn, in CPU seconds of one process with one thread. The check of the files is measured in
trainings over {SMALL_ROWS:,} rows with default settings, which are short; of longer ones its share is less.
"""


def main() -> None:
    with TemporaryDirectory() as folder:
        large, small = Path(folder) / "large", Path(folder) / "small"
        results = [*_against_scikit_learn(large), *(one for kind in KINDS for one in _check(small, kind))]
    save("models", results, how=HOW)


def _against_scikit_learn(root: Path) -> list[Result]:
    x, y, split = numbers(ROWS)
    dataset = write(root, x, y, split)
    spec = TrainingSpec(dataset="d", model=ModelKind.GBDT, trees=TREES, patience=TREES)
    acts = {"ours": lambda: train(root, dataset, spec), "theirs": _bare(x, y, split)}
    measured = alternate({name: partial(_cpu, act) for name, act in acts.items()}, rounds=3, warm=False)
    pairs = zip(measured["ours"].values, measured["theirs"].values, strict=True)
    ratio = Series([ours / theirs for ours, theirs in pairs])
    what = f"training of boosted trees, {ROWS // 10**6} M rows of {WIDTH} numbers, against scikit-learn's fit"
    theirs = measured["theirs"]
    return [
        at_most(MOST, AREA, what, ratio.median, "x", **ratio.spread),
        row(AREA, "scikit-learn's fit alone", theirs.median, "CPU s", **theirs.spread),
    ]


def _check(root: Path, kind: ModelKind) -> list[Result]:
    if not root.exists():
        write(root, *numbers(SMALL_ROWS))
    dataset, spec, seconds, share = plain_dataset(), TrainingSpec(dataset="d", model=kind), Series(), Series()
    for _ in range(3):
        begin = time.perf_counter()
        result = train(root, dataset, spec)
        seconds.values.append(result.outputs[0].details["file_check"]["seconds"])
        share.values.append(100 * seconds.values[-1] / (time.perf_counter() - begin))
    what = f"check of a {kind} model's files"
    return [
        at_most(MOST_SECONDS, AREA, what, seconds.median, "s", **seconds.spread),
        row(AREA, f"{what}, of the training's time", share.median, "%", **share.spread),
    ]


def _cpu(act: Callable[[], object]) -> float:
    begin = cpu_seconds(resource.RUSAGE_SELF)
    act()
    return cpu_seconds(resource.RUSAGE_SELF) - begin


def numbers(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, WIDTH))
    y = np.sin(x[:, 0]) * 3 + x[:, 1] * x[:, 2] + x[:, 3:8].sum(axis=1) + random.normal(0, 0.5, rows)
    split = np.where(np.arange(rows) % 10 == 9, "validation", "train")
    split[np.arange(rows) % 20 == 18] = "test"
    return x, y, split


def _bare(x: np.ndarray, y: np.ndarray, split: np.ndarray) -> Callable[[], object]:
    train, held = split == "train", split == "validation"

    def act() -> object:
        model = HistGradientBoostingRegressor(
            max_iter=TREES, n_iter_no_change=TREES, early_stopping=True, random_state=0
        )
        with threadpool_limits(limits=1):
            return model.fit(x[train], y[train], X_val=x[held], y_val=y[held])

    return act


def write(root: Path, x: np.ndarray, y: np.ndarray, split: np.ndarray) -> Artifact:
    (root / "d").mkdir(parents=True)
    table = pa.table({f"x{n}": x[:, n] for n in range(WIDTH)} | {"y": y, "split": split})
    step = -(-len(y) // FILES)
    for number in range(FILES):
        pq.write_table(table.slice(number * step, step), root / "d" / f"part-{number:04}.parquet")
    return plain_dataset()


def plain_dataset() -> Artifact:
    details = {"features": [f"x{n}" for n in range(WIDTH)], "label": "y", "entity": []}
    output = Output(kind=ArtifactKind.DATASET, uri="d", details=details)
    return Artifact(id="p/d@1", name="p/d", number=1, output=output, fingerprint="f")


def train(root: Path, dataset: Artifact, spec: TrainingSpec, workers: int = 1) -> JobResult:
    """A whole training by so many workers, with a CPU each."""
    with TemporaryDirectory(dir=root) as work:
        order = AttemptOrder(
            attempt_id="bench", token="", run_id="b", pipeline="b", job=Job(name="m", training=spec),
            root=str(root), output_uri=str(Path(work).relative_to(root)) + "/m", workers=workers,
            given=Amounts(cpus=workers, memory_bytes=2**34),
            inputs=(Input(name="d", artifact=dataset),),
        )  # fmt: skip
        events = os.open(os.devnull, os.O_WRONLY)
        try:
            return run(JobContext(order=order, work=Path(work), events_fd=events))
        finally:
            os.close(events)


if __name__ == "__main__":
    main()
