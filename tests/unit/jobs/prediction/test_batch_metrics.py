"""A prediction that is measured in batches has the metrics of all rows together, and needs little memory."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridmill.domain.frozen import replace
from gridmill.domain.training import ModelKind, Objective
from gridmill.jobs.classes import probability_columns
from gridmill.jobs.dataset_reader import Partitions, open_partitions
from gridmill.jobs.intervals import quantile_columns
from gridmill.jobs.model_files import ModelCard
from gridmill.jobs.prediction import batch_metrics
from gridmill.jobs.prediction.batch_metrics import Measured, measure_result
from gridmill.jobs.prediction.worker import part_name

CLASSES = ("a", "b", "c", "d")


def card_of(objective: Objective, count: int, **more: Any) -> ModelCard:
    if objective == Objective.CLASSIFICATION:
        more |= {"classes": CLASSES[:count], "labels": ("y",)}
    else:
        names = tuple(f"y{number}" for number in range(count))
        more |= {"labels": names, "label_columns": names, "usual": tuple(float(one) for one in range(count))}
    return ModelCard(kind=ModelKind.LINEAR, objective=objective, encodings=(), **more)


def write(folder: Path, table: pa.Table, cuts: list[int]) -> int:
    ends = [0, *sorted({one for one in cuts if 0 < one < table.num_rows}), table.num_rows]
    for shard, (start, stop) in enumerate(pairwise(ends)):
        pq.write_table(table.slice(start, stop - start), folder / part_name(shard))
    return len(ends) - 1


def dataset_of(folder: Path, columns: dict[str, Any], rows: int) -> Partitions:
    (folder / "dataset").mkdir()
    pq.write_table(pa.table({"row": np.arange(rows), **columns}), folder / "dataset" / "part.parquet")
    return open_partitions(folder / "dataset")


def close(one: Any, other: Any) -> None:
    """The same keys in the same order, equal counts, and numbers that differ by rounding only."""
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            close(one[name], other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            close(*pair)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12)
    else:
        assert one == other


def compare(folder: Path, table: pa.Table, cuts: list[int], parts: Partitions, card: ModelCard) -> Measured:
    fit = np.arange(table.num_rows) % 7 != 3
    shards = write(folder, table, cuts)
    whole = measure_result(folder, shards, parts, card, fit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_metrics, "WHOLE_ROWS", 0)
        patch.setattr(batch_metrics, "BATCH_ROWS", 5)
        patch.setattr(batch_metrics, "MOST_SCORES", 6)
        made = measure_result(folder, shards, parts, card, fit)
    close(made.metrics, whole.metrics)
    close(made.breakdown, whole.breakdown)
    return whole


SCORES = st.sampled_from([0.0, -0.0, 1.0, 0.5, 0.25, 1e-300, 0.1, 0.1000001, 0.75, 0.7500001])


@settings(max_examples=25, deadline=None)
@given(data=st.data(), count=st.integers(2, 4), threshold=st.sampled_from([None, 0.25]))
def test_the_metrics_of_classes_are_those_of_all_rows_together(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, count: int, threshold: float | None
) -> None:
    folder = tmp_path_factory.mktemp("result")
    truth = data.draw(st.lists(st.sampled_from([*CLASSES, "unknown", None]), min_size=1, max_size=60))
    shares = data.draw(
        st.lists(st.tuples(*[SCORES] * count), min_size=len(truth), max_size=len(truth)), "shares"
    )
    card = card_of(Objective.CLASSIFICATION, count, threshold=threshold if count == 2 else None)
    columns = dict(zip(probability_columns(card.classes), zip(*shares, strict=True), strict=True))
    predicted = [None if number % 11 == 5 else "a" for number in range(len(truth))]
    table = pa.table(
        {
            "row": np.arange(len(truth)),
            "truth": pa.array(truth, pa.string()),
            "prediction": pa.array(predicted, pa.string()),
            **columns,
        }
    )
    parts = dataset_of(folder, {}, len(truth))
    whole = compare(folder, table, data.draw(st.lists(st.integers(1, 60), max_size=4)), parts, card)
    has_rows = any(
        one is not None and number % 7 != 3 and number % 11 != 5 for number, one in enumerate(truth)
    )
    assert bool(whole.metrics) == has_rows


VALUES = st.one_of(st.floats(-1e3, 1e3), st.sampled_from([0.1, 0.1, 5.0]))


@settings(max_examples=25, deadline=None)
@given(
    data=st.data(),
    labels=st.integers(1, 3),
    scaled=st.booleans(),
    quantiles=st.sampled_from([(), (0.1, 0.9)]),
)
def test_the_metrics_of_numbers_are_those_of_all_rows_together(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    labels: int,
    scaled: bool,
    quantiles: tuple[float, ...],
) -> None:
    folder = tmp_path_factory.mktemp("result")
    rows = data.draw(st.integers(1, 60))

    def column(share: int) -> pa.Array:
        values = data.draw(st.lists(st.tuples(*[VALUES] * labels), min_size=rows, max_size=rows))
        kept = [None if share and number % share == 2 else one for number, one in enumerate(values)]
        if labels == 1:
            return pa.array([one and one[0] for one in kept], pa.float64())
        return pa.array([one and list(one) for one in kept], pa.list_(pa.float64()))

    spread = tuple(float(one) for one in range(labels)) if scaled else ()
    card = card_of(Objective.REGRESSION, labels, quantiles=quantiles, spread=spread)
    columns = {"row": np.arange(rows), "truth": column(5), "prediction": column(9)}
    columns |= {name: column(0) for name in quantile_columns(quantiles)}
    present = {f"y{number}": [None, 2.0, 3.0] * 20 for number in range(labels)}
    parts = dataset_of(folder, {name: values[:rows] for name, values in present.items()}, rows)
    compare(folder, pa.table(columns), data.draw(st.lists(st.integers(1, 60), max_size=4)), parts, card)


def test_the_metric_r2_of_a_constant_label_is_left_out(tmp_path: Path) -> None:
    rows = 100
    table = pa.table({"row": np.arange(rows), "truth": [0.1] * rows, "prediction": np.arange(rows) / 7})
    card = replace(card_of(Objective.REGRESSION, 1), label_columns=(None,))
    fit = np.ones(rows, bool)
    shards = write(tmp_path, table, [30])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_metrics, "WHOLE_ROWS", 0)
        made = measure_result(tmp_path, shards, dataset_of(tmp_path, {}, rows), card, fit)
    assert "r2" not in made.metrics
    assert made.metrics["mae"] > 0


MEASURE = """
import sys
from pathlib import Path
import numpy as np
import pyarrow as pa
from tests.unit.jobs.prediction.test_batch_metrics import Objective, card_of
from gridmill.jobs.dataset_reader import open_partitions
from gridmill.jobs.prediction import batch_metrics

folder = Path(sys.argv[1])
batch_metrics.WHOLE_ROWS, batch_metrics.MOST_SCORES = int(sys.argv[2]), 100_000
batch_metrics.BATCH_ROWS = 20_000
card = card_of(Objective.CLASSIFICATION, 2)
fit = np.ones(400_000, bool)
made = batch_metrics.measure_result(folder, 4, open_partitions(folder / "dataset"), card, fit)
print(made.metrics["auc"], pa.default_memory_pool().max_memory())
"""


def test_a_large_result_is_measured_in_little_memory(tmp_path: Path) -> None:
    count, draw = 100_000, np.random.default_rng(3)
    names = probability_columns(CLASSES[:2])
    for shard in range(4):
        share = draw.random(count)
        truth = np.where(draw.random(count) < share, "b", "a")
        columns = {"row": np.arange(count) + shard * count, "truth": truth, "prediction": truth}
        columns |= {names[0]: 1 - share, names[1]: share}
        pq.write_table(pa.table(columns), tmp_path / part_name(shard), row_group_size=20_000)
    dataset_of(tmp_path, {}, 1)
    aucs, peaks = [], []
    for whole_rows in (0, 10**9):
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, str(tmp_path), str(whole_rows)],
            capture_output=True,
            text=True,
            check=True,
        )
        auc, peak = done.stdout.split()
        aucs.append(float(auc))
        peaks.append(int(peak))
    assert aucs[0] == pytest.approx(aucs[1], rel=1e-12)
    assert peaks[0] < peaks[1] / 2
