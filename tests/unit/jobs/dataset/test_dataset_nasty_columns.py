"""Statistics, charts and reports of columns that are hard to describe: none of them ends a job."""

import io
import json
import warnings
from datetime import timedelta
from math import isfinite
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from tests.fuzz.nasty_columns import case
from tests.kit.dataset_case import DatasetCase

from gridmill.cli.describe import describe
from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.column_statistics import column_lines, columns_left_out
from gridmill.domain.dataset import Aggregate, Basis, DatasetSpec, Label, Window
from gridmill.domain.views import VersionView
from gridmill.errors import GridmillError
from gridmill.jobs.column_moments import Moments
from gridmill.jobs.dataset.describe import BINS, SampledRows, statistics
from gridmill.jobs.metrics import regression
from gridmill.jobs.prediction.finish import _moment
from gridmill.jobs.sink.column_stats import merged
from gridmill.jobs.sink.metrics import drifts, histograms
from gridmill.report.svg import Series, line_chart, ticks

COLUMNS = {
    "constant": "19.99::DOUBLE",
    "nearly constant": "19.99 + i % 2 * 3.5e-15",
    "64-bit ids": "1790000000000000000 + i",
    "above 2^53": "9007199254740992 + i",
    "1e308": "CASE WHEN i % 2 = 0 THEN 1e308 ELSE -1e308 END",
    "the largest": "CASE WHEN i % 2 = 0 THEN 1.7976931348623157e308 ELSE -1.7976931348623157e308 END",
    "the smallest": "5e-324 * i",
    "infinite": "CASE WHEN i % 2 = 0 THEN 'inf'::DOUBLE ELSE '-inf'::DOUBLE END",
    "one infinite": "CASE WHEN i = 0 THEN 'inf'::DOUBLE ELSE i END",
    "not a number": "'nan'::DOUBLE",
    "missing": "NULL",
    "missing numbers": "NULL::DOUBLE",
    "missing texts": "NULL::VARCHAR",
    "all of int64": "CASE WHEN i % 2 = 0 THEN 9223372036854775807 ELSE -9223372036854775808 END",
    "uint64": "(18446744073709551615 - i)::UBIGINT",
    "hugeint": "170141183460469231731687303715884105727::HUGEINT - i",
    "decimal": "(i * 1.23)::DECIMAL(38, 10)",
    "bool": "i % 2 = 0",
    "date": "DATE '2024-01-01' + i::INTEGER",
    "infinite date": "'infinity'::DATE",
    "infinite time": "'-infinity'::TIMESTAMP",
    "far time": "TIMESTAMP '200000-01-01'",
    "nanoseconds": "'2024-01-01 00:00:00.123456789'::TIMESTAMP_NS",
    "clock": "TIME '12:00:00'",
    "interval": "INTERVAL (i) HOUR",
    "uuid": "uuid()",
    "bytes": "'ab'::BLOB",
    "enum": "'a'::ENUM('a', 'b')",
    "bits": "'101'::BIT",
    "struct": "{'a': i, 'b': 'x'}",
    "list": "[i, 2]",
    "map": "MAP {i: 2}",
    "array": "[i, 2, 3]::INTEGER[3]",
    "union": "union_value(k := 1)",
    "long text": "repeat('é', 100000)",
    'odd "name" \' `; -- \n {{ x }}': "i",
    "ünï <b>&": "i",
    "[/bold] %s": "i::VARCHAR",
}
REFUSED = {"uint64", "nanoseconds", "interval", "union"}
"""No table keeps these: an error names the column."""


def make(folder: Path, columns: dict[str, str], rows: int, label: Label | None = None) -> Output:
    case = DatasetCase(folder)
    case.give("t", {"i": pa.array(range(rows), pa.int64()), "y": pa.array([k % 3 for k in range(rows)])})
    listed = ", ".join(f'{sql} AS "{name.replace(chr(34), chr(34) * 2)}"' for name, sql in columns.items())
    return case.make(DatasetSpec(sql=f"SELECT y, {listed} FROM t", tables=("t",), label=label))


def shown(output: Output) -> str:
    """What `show` prints; the version's details are what JSON can carry."""
    json.dumps(output.details, allow_nan=False)
    version = Artifact(id="p/d@1", name="p/d", number=1, output=output, fingerprint="")
    screen = io.StringIO()
    Console(file=screen, width=300).print(describe(VersionView(artifact=version, lineage=(), used_by=())))
    return screen.getvalue()


@pytest.mark.parametrize("rows", [1, pytest.param(2, marks=pytest.mark.long), 300])
@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_any_column_is_described(tmp_path, name, rows):
    label = Label(column="y") if rows > 1 else None
    if name in REFUSED:
        with pytest.raises(GridmillError, match=name):
            make(tmp_path, {name: COLUMNS[name]}, rows, label)
        return
    output = make(tmp_path, {name: COLUMNS[name]}, rows, label)
    assert output.rows == rows
    assert "distributions" in shown(output) or rows == 1


def test_a_mean_of_a_constant_price_is_a_feature(tmp_path):
    case = DatasetCase(tmp_path)
    hours = [1_700_000_000_000_000 + 3_600_000_000 * k for k in range(500)]
    case.give("t", {"price": [19.99] * 500, "time": pa.array(hours, pa.timestamp("us"))})
    window = Window(column="price", aggregates=(Aggregate.MEAN, Aggregate.STD), span_seconds=30 * 86400)
    output = case.make(
        DatasetSpec(basis=Basis(table="t", time="time", columns=("price",)), windows=(window,))
    )
    assert "price_mean_30d" in shown(output)


def test_a_basis_time_without_end_is_told(tmp_path):
    case = DatasetCase(tmp_path)
    case.give("t", {"x": [1.0, 2.0], "time": pa.array([0, 2**62], pa.timestamp("us"))})
    with pytest.raises(GridmillError, match="outside the years 1 to 9999 in 1 rows"):
        case.make(DatasetSpec(basis=Basis(table="t", time="time", columns=("x",))))


def statistics_of(values: list[float]) -> dict[str, object]:
    table = pa.table({"x": pa.array(values, pa.float64()), "y": pa.array(values[::-1], pa.float64())})
    sample = SampledRows(schema=table.schema, columns=("x", "y"), rows=len(values))
    sample.take(table)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return statistics(sample)


@given(st.lists(st.floats(), max_size=40))
@example([1.7976931348623157e308, -1.7976931348623157e308])
@example([5e-324, 0.0, 1e-320])
@example([19.99, 19.990000000000002])
@example([1e308, 5e-324, -1e308])
def test_statistics_of_any_numbers_are_finite_and_count_each_once(values):
    found = statistics_of(values)
    json.dumps(found, allow_nan=False)
    facts = found["columns"]["x"]
    assert "problem" not in facts
    known = [value for value in values if isfinite(value)]
    if not known:
        assert "histogram" not in facts
        return
    histogram, quantiles = facts["histogram"], list(facts["quantiles"].values())
    assert sum(histogram["counts"]) == len(known)
    assert len(histogram["counts"]) in (1, BINS)
    assert min(known) <= histogram["from"] <= histogram["to"] <= max(known)
    assert quantiles == sorted(quantiles)
    assert all(
        value is None or -1 <= value <= 1 for row in found["correlation"].get("values", []) for value in row
    )


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(2, 50))
def test_a_constant_correlates_with_nothing(value, rows):
    table = pa.table({"x": np.full(rows, value), "y": np.arange(rows, dtype=float)})
    sample = SampledRows(schema=table.schema, columns=("x", "y"), rows=rows)
    sample.take(table)
    assert statistics(sample)["correlation"]["values"] == [[None, None], [None, 1.0]]


@given(st.floats(-1e12, 1e12), st.floats(1e-3, 1e3), st.integers(2, 30))
def test_correlations_do_not_depend_on_the_scale(center, scale, exponent):
    random = np.random.default_rng(1)
    x = random.normal(size=200)
    y = x + random.normal(size=200)
    expected = np.corrcoef(x, y)[0, 1]
    table = pa.table({"x": x * scale * 10.0 ** (10 * exponent), "y": y * 10.0 ** (-10 * exponent) * scale})
    sample = SampledRows(schema=table.schema, columns=("x", "y"), rows=200)
    sample.take(table)
    assert statistics(sample)["correlation"]["values"][0][1] == pytest.approx(expected, abs=1e-4)


def test_a_column_that_cannot_be_described_says_so(monkeypatch):
    def fail(values: object) -> dict[str, object]:
        raise ValueError("no bins\nmore")

    monkeypatch.setattr("gridmill.jobs.dataset.describe._distribution", fail)
    found = statistics_of([1.0, 2.0])
    assert found["columns"]["x"]["problem"] == "no bins"
    details = {"statistics": found}
    version = Artifact(
        id="p/d@1",
        name="p/d",
        number=1,
        output=Output(kind=ArtifactKind.DATASET, uri="d", details=details),
        fingerprint="",
    )
    assert column_lines(version)[0].problem == "no bins"
    assert "not computed: no bins" in shown(version.output)


def test_columns_that_are_left_out_are_counted(tmp_path):
    output = make(tmp_path, {f"x{k}": "i" for k in range(100)}, 10)
    version = Artifact(id="p/d@1", name="p/d", number=1, output=output, fingerprint="")
    assert columns_left_out(version) == 101 - 40
    assert "... and 61 more columns without statistics" in shown(output)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("size", [1e200, 1.7e308])
def test_moments_and_metrics_of_large_numbers_are_missing_or_infinite(size):
    moments = Moments()
    moments.see(pa.array([size, -size, size, size, np.inf]))
    told = moments.facts()
    assert all(value is None or isfinite(value) for value in told.values())
    with np.errstate(over="ignore", invalid="ignore"):
        found = regression(np.array([size, -size]), np.array([0.0, 0.0]))
    assert found["mse"] == np.inf


def test_the_facts_of_two_loads_of_large_numbers_are_put_together():
    one = {"x": {"nulls": 0, "distinct": 2, "min": -1e308, "max": 1e308, "mean": -1e308, "std": 1e308}}
    other = {"x": {"nulls": 0, "distinct": 2, "min": -1e308, "max": 1e308, "mean": 1e308, "std": None}}
    found = merged(one, 2, other, 2)["x"]
    assert found["std"] is None


def test_infinities_are_no_edges_of_a_drift():
    sample = pa.table({"x": pa.array([np.inf, -np.inf, np.inf, 1.0, 2.0])})
    kept = json.loads(json.dumps(histograms(sample), allow_nan=False))
    assert drifts(kept, sample) == {"x": 0.0}


def test_a_time_that_python_cannot_hold_is_text_in_a_sample():
    far = pa.array([2**62], pa.timestamp("us"))[0]
    assert "4611686018427387904" in _moment(far, timedelta(hours=1))
    last = pa.array([253402300799_000_000], pa.timestamp("us"))[0]
    assert _moment(last, timedelta(hours=1)).startswith("9999-12-31")


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats()), min_size=1, max_size=20))
@example([(0.0, 1.7976931348623157e308), (1.0, -1.7976931348623157e308)])
@example([(0.0, 5e-324), (1.0, 0.0)])
@example([(0.0, 1.79e18), (1.0, 1.79e18 + 256)])
@example([(0.0, float("inf"))])
def test_a_chart_of_any_points_is_drawn(points):
    chart = line_chart([Series(name="x", points=sorted(points))])
    assert "nan" not in chart
    assert "inf" not in chart


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_there_are_few_ticks_of_any_range(one, other):
    found = ticks(min(one, other), max(one, other))
    assert 1 <= len(found) <= 12
    assert found == sorted(found)


@pytest.mark.parametrize("seed", range(4))
def test_a_dataset_of_random_nasty_columns_is_made(tmp_path, seed):
    case(seed, tmp_path)
