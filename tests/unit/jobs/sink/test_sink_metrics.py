import random
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.kit.sink_case import SinkCase

from gridmill.domain.sink import Constraint
from gridmill.errors import InputError
from gridmill.jobs.sink.column_stats import merged
from gridmill.jobs.sink.metrics import SAMPLE_ROWS, RowSample, histograms


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


def test_each_load_is_measured_and_the_table_as_a_whole(case: SinkCase) -> None:
    one, two = [1, 5, None, 7], [2, 2, 100]
    case.write("1.csv", "a,b\n" + "".join(f"{'' if a is None else a},x\n" for a in one))
    case.load()
    case.write("2.csv", "a,b\n" + "".join(f"{a},y\n" for a in two))
    details = case.load().details
    load = details["metrics"]
    assert load["rows"] == 3
    assert load["columns"]["a"] == {
        "nulls": 0,
        "distinct": 2,
        "min": 2,
        "max": 100,
        "mean": pytest.approx(mean(two)),
        "std": pytest.approx(stdev(two)),
    }
    whole = [a for a in [*one, *two] if a is not None]
    assert details["columns"]["a"] == {
        "nulls": 1,
        "distinct": 3,  # at least: the loads are not looked at together
        "min": 1,
        "max": 100,
        "mean": pytest.approx(mean(whole)),
        "std": pytest.approx(stdev(whole)),
    }
    assert details["columns"]["b"]["max"] == "y"


def test_a_replaced_file_counts_no_more(case: SinkCase) -> None:
    case.write("1.csv", "a\n1\n")
    case.write("2.csv", "a\n9\n")
    case.load()
    case.write("2.csv", "a\n4\n")
    assert case.load().details["columns"]["a"]["max"] == 4


def test_rejected_and_repeated_rows_are_not_measured(case: SinkCase) -> None:
    case.write("a.csv", "a\n1\n1\n-9\n3\n")
    load = case.load(constraints=(Constraint(column="a", min=0), Constraint(unique=("a",)))).details[
        "metrics"
    ]
    assert (load["rows"], load["columns"]["a"]["mean"], load["columns"]["a"]["min"]) == (2, 2.0, 1)


def test_own_metrics_of_the_load(case: SinkCase) -> None:
    case.write("a.csv", "pieces,price\n2,1.5\n1,4\n")
    metrics = {"revenue": "sum(pieces * price)"}
    assert case.load(metrics=metrics).details["metrics"]["values"] == {"revenue": 7.0}
    with pytest.raises(InputError, match="a metric cannot be computed") as caught:
        case.load(metrics={"revenue": "sum(prize)"}, select=("price",))
    assert caught.value.place == "sink.metrics.revenue"


def prices(case: SinkCase, name: str, draw: Callable[[], float], rows: int) -> None:
    items = ["tea", "tea", "coffee"]
    table = pa.table(
        {
            "price": [draw() for _ in range(rows)],
            "id": [random.random() for _ in range(rows)],
            "item": [random.choice(items) for _ in range(rows)],
            "key": [f"{name}-{number}" for number in range(rows)],
        }
    )
    pq.write_table(table, case.folder / name)


def test_drift_against_the_load_before(case: SinkCase) -> None:
    random.seed(7)
    prices(case, "1.parquet", lambda: random.gauss(10, 2), 5000)
    assert case.load("*.parquet").details["drift"] == {}
    prices(case, "2.parquet", lambda: random.gauss(10, 2), 3000)
    drift = case.load("*.parquet").details["drift"]
    assert drift["shifted"] == {}
    assert set(drift["columns"]) == {"price", "id", "item"}  # a key is new in every load
    prices(case, "3.parquet", lambda: random.gauss(13, 2), 3000)
    drift = case.load("*.parquet").details["drift"]
    assert list(drift["shifted"]) == ["price"]
    assert drift["shifted"]["price"] > 1
    prices(case, "4.parquet", lambda: random.gauss(13, 2), 20)  # of few rows, chance says more
    assert case.load("*.parquet").details["drift"]["shifted"] == {}
    assert case.load("*.parquet", drift_threshold=None).details["drift"]["shifted"] == {}


def test_missing_values_are_drift(case: SinkCase) -> None:
    for name, missing in (("1", 0.0), ("2", 0.6)):
        random.seed(3)
        rows = [None if random.random() < missing else random.gauss(0, 1) for _ in range(4000)]
        pq.write_table(pa.table({"a": pa.array(rows, pa.float64())}), case.folder / f"{name}.parquet")
        details = case.load("*.parquet").details
    assert list(details["drift"]["shifted"]) == ["a"]


@pytest.mark.parametrize("rows", [1, 999, SAMPLE_ROWS, 3 * SAMPLE_ROWS + 17, 11 * SAMPLE_ROWS])
def test_the_sample_is_every_nth_row_however_it_comes(rows: int) -> None:
    table = pa.record_batch({"a": pa.array(range(rows), pa.int64())})
    for batch in (777, 10_000, rows):
        sample = RowSample()
        for start in range(0, rows, batch):
            sample.see(table.slice(start, batch))
        taken = sample.rows()["a"].to_pylist()
        assert taken == list(range(0, rows, sample.step))
        assert min(rows, SAMPLE_ROWS) <= len(taken) <= 2 * SAMPLE_ROWS


def test_facts_of_a_column_that_came_later() -> None:
    added = {"a": {"nulls": 0, "distinct": 1, "min": 1, "max": 1, "mean": 1.0, "std": None}}
    assert merged({}, 10, added, 1)["a"]["nulls"] == 10


def test_what_is_not_a_number_is_in_no_bin() -> None:
    found = histograms(pa.table({"a": [1.0, float("nan"), 2.0, None] * 5}))["a"]
    assert (found["edges"], found["counts"]) == ([1.0, 2.0], [0, 5, 5, 10])


def test_the_most_frequent_texts_are_bins_the_first_come_first() -> None:
    texts = ["b", "a", None, "c", "b", "a"] * 3 + [f"rare {n % 25}" for n in range(50)]
    found = histograms(pa.table({"a": texts, "key": [str(n) for n in range(len(texts))]}))
    assert found["a"]["values"] == ["b", "a", "c", *(f"rare {n}" for n in range(17))]
    assert found["a"]["counts"] == [6, 6, 3, *[2] * 17, 16, 3]
    assert "key" not in found
