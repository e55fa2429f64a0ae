"""Encoders: fitted on training rows alone, no row sees its own label, the same numbers applied again."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import mean, pstdev

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.kit.dataset_case import DatasetCase

from gridmill.domain.dataset import Basis, DatasetSpec, Encoder, Label, Method, Split, SplitBy
from gridmill.errors import InputError
from gridmill.jobs.dataset.encode import load_encoders
from gridmill.jobs.dataset.encoders import apply

START = datetime(2020, 1, 1, tzinfo=UTC)
BASIS = Basis(table="obs", time="t", entity=("e",))
SPLIT = Split(test_from="2020-01-02T00:00:00")


def hours(count: int) -> list[datetime]:
    return [START + timedelta(hours=n) for n in range(count)]


@pytest.fixture
def case(tmp_path: Path) -> DatasetCase:
    """24 hours to train on, 16 to test on, where all is different."""
    case = DatasetCase(tmp_path)
    case.give(
        "obs",
        {
            "e": ["a"] * 40,
            "t": hours(40),
            "x": [float(n % 5) for n in range(24)] + [100.0] * 16,
            "n": [None if n % 4 == 0 else n % 3 for n in range(40)],
            "c": ["u" if n % 3 else "v" for n in range(24)] + ["w"] * 16,
            "y": [float(n % 2) for n in range(40)],
        },
    )
    return case


def spec(*encoders: Encoder, label: Label | None = None, split: Split | None = SPLIT) -> DatasetSpec:
    return DatasetSpec(basis=BASIS, label=label or Label(column="y"), split=split, encoders=encoders)


TRAIN = [float(n % 5) for n in range(24)]


@pytest.mark.parametrize(
    ("method", "center", "scale"),
    [
        (Method.STANDARD, mean(TRAIN), pstdev(TRAIN)),
        (Method.MINMAX, 0.0, 4.0),
        (Method.ROBUST, 2.0, 2.0),
    ],
)
def test_scalers_know_the_training_rows_only(
    case: DatasetCase, method: Method, center: float, scale: float
) -> None:
    output = case.make(spec(Encoder(columns=("x",), method=method)))
    expected = [(x - center) / scale for x in [*TRAIN, *[100.0] * 16]]
    assert [row["x"] for row in case.table(output).to_pylist()] == pytest.approx(expected)
    (told,) = output.details["encoders"]
    assert (told["center"], told["scale"]) == pytest.approx((center, scale))


def test_a_scaled_columns_later_values_are_scaled_with_it(case: DatasetCase) -> None:
    label = Label(columns=("x",), next_rows=2)
    rows = case.rows(spec(Encoder(columns=("x",), method=Method.STANDARD), label=label))
    train = [row for row in rows if row["split"] == "train"]
    for one, other in pairwise(train):
        assert one["x_label_1"] == pytest.approx(other["x"])
    # the last two hours have labels in the next split: they are left out, but were there to be fitted on
    assert len(train) == 22
    assert train[0]["x"] == pytest.approx((0 - mean(TRAIN)) / pstdev(TRAIN))


def test_rows_that_are_in_no_split_tell_no_encoder_anything(case: DatasetCase) -> None:
    until = Split(test_from="2020-01-01T12:00:00", until="2020-01-02T00:00:00")
    for split in (until, replace(until, test_from=None)):
        rows = case.rows(spec(Encoder(columns=("x",), method=Method.MINMAX), split=split))
        assert max(row["x"] for row in rows) == 1  # from then on it is 100
    gap = Split(test_from="2020-01-02T12:00:00", gap_seconds=12 * 3600)
    rows = case.rows(spec(Encoder(columns=("x",), method=Method.MINMAX), label=Label(column="n"), split=gap))
    assert max(row["x"] for row in rows if row["split"] == "train") == 1  # some rows in the gap have no label
    apart = Split(by=SplitBy.RANDOM, on=("n",), test=0.4, test_from="2020-01-01T12:00:00")
    output = case.make(spec(Encoder(columns=("n",), method=Method.MEAN), split=apart))
    train = [row["n"] for row in case.table(output).to_pylist() if row["split"] == "train"]
    (told,) = output.details["encoders"]
    assert told["fill"] == pytest.approx(mean(n for n in train if n is not None))


def test_missing_values_then_scaled(case: DatasetCase) -> None:
    fill = Encoder(columns=("n",), method=Method.MEDIAN)
    scale = Encoder(columns=("n",), method=Method.STANDARD)
    known = [n % 3 for n in range(24) if n % 4]
    filled = [1 if n % 4 == 0 else n % 3 for n in range(24)]
    assert sorted(known)[len(known) // 2] == 1
    rows = case.rows(spec(fill, scale))
    expected = [(value - mean(filled)) / pstdev(filled) for value in filled]
    assert [row["n"] for row in rows[:24]] == pytest.approx(expected)
    for method, value in ((Method.CONSTANT, -7.0), (Method.MOST_FREQUENT, None)):
        rows = case.rows(spec(Encoder(columns=("n",), method=method, value=value)))
        assert rows[0]["n"] == (-7 if value else 0)


def test_categories(case: DatasetCase) -> None:
    output = case.make(spec(Encoder(columns=("c",), method=Method.ONEHOT, keep=True)))
    rows = case.table(output).to_pylist()
    assert output.details["features"] == ["x", "n", "c", "c_u", "c_v"]
    assert [(row["c_u"], row["c_v"]) for row in rows[:3]] == [(0, 1), (1, 0), (1, 0)]
    assert {(row["c_u"], row["c_v"]) for row in rows[24:]} == {(0, 0)}
    output = case.make(spec(Encoder(columns=("c",), method=Method.ORDINAL)))
    assert [row["c_ordinal"] for row in case.table(output).to_pylist()][22:26] == [0, 0, -1, -1]
    assert "c" not in [column.name for column in output.columns]
    rows = case.rows(spec(Encoder(columns=("c",), method=Method.FREQUENCY)))
    assert [row["c_frequency"] for row in rows][:2] == pytest.approx([8 / 24, 16 / 24])
    rows = case.rows(spec(Encoder(columns=("e",), method=Method.FREQUENCY, keep=True)))
    assert rows[0]["e_frequency"] == 1


ROWS = st.lists(
    st.tuples(st.integers(0, 20), st.sampled_from(["u", "v", None]), st.integers(0, 3).map(float)),
    min_size=4,
    max_size=30,
)


@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
@given(rows=ROWS, delay=st.sampled_from([None, 3]), smoothing=st.sampled_from([0.0, 2.0]))
def test_no_row_sees_a_label_that_was_not_known(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[int, str | None, float]],
    delay: int | None,
    smoothing: float,
) -> None:
    rows = [*rows, (0, "u", 0.0), (1, "u", 1.0), (25, "v", 1.0)]
    case = DatasetCase(tmp_path_factory.mktemp("d"))
    case.give(
        "obs",
        {
            "e": ["a"] * len(rows),
            "t": [START + timedelta(hours=row[0]) for row in rows],
            "c": pa.array([row[1] for row in rows], pa.string()),
            "y": [row[2] for row in rows],
        },
    )
    label = Label(column="y", delay_seconds=delay and delay * 3600.0)
    split = Split(test_from="2020-01-01T15:00:00")
    encoder = Encoder(columns=("c",), method=Method.TARGET, smoothing=smoothing, keep=True)
    for made in case.rows(spec(encoder, label=label, split=split)):
        now = (made["t"] - START).total_seconds() / 3600
        seen = [r for r in rows if r[0] + (delay or 0) < min(now, 15 if delay else now) and r[0] < 15]
        mine = [r[2] for r in seen if r[1] == made["c"] and r[1] is not None]
        if not seen:
            assert made["c_target"] is None
            continue
        overall = mean(r[2] for r in seen)
        weight = len(mine) + smoothing
        expected = (sum(mine) + smoothing * overall) / weight if weight else overall
        assert made["c_target"] == pytest.approx(expected)


def test_the_numbers_are_kept_and_can_be_applied_again(case: DatasetCase) -> None:
    output = case.make(
        spec(
            Encoder(columns=("n",), method=Method.MEAN),
            Encoder(columns=("x", "n"), method=Method.ROBUST),
            Encoder(columns=("c",), method=Method.TARGET, smoothing=1.0),
        )
    )
    fitted = load_encoders(case.folder / "root" / output.uri)
    raw = case.table(case.tables["obs"])
    again = apply(raw, fitted)
    made = case.table(output)
    tested = slice(24, 40)  # what training rows became by `target` depends on when they were
    for name in ("x", "n", "c_target"):
        assert again[name].to_pylist()[tested] == pytest.approx(made[name].to_pylist()[tested])


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (Encoder(columns=("c",), method=Method.STANDARD), "needs numbers"),
        (Encoder(columns=("xx",), method=Method.STANDARD), "'xx' is not a feature"),
        (Encoder(columns=("e",), method=Method.ONEHOT), "'e' is not a feature"),
        (Encoder(columns=("y",), method=Method.STANDARD), "'y' is not a feature"),
    ],
)
def test_what_cannot_be_encoded_is_said(case: DatasetCase, encoder: Encoder, message: str) -> None:
    with pytest.raises(InputError, match=message):
        case.make(spec(encoder))
    assert not list((case.folder / "root").glob("datasets/p/d/*"))


def test_statistics_tell_distribution_missing_values_and_correlation(case: DatasetCase) -> None:
    found = case.make(spec(split=None)).details["statistics"]
    assert (found["rows"], found["every"]) == (40, 1)
    assert found["columns"]["n"]["missing"] == 0.25
    assert found["columns"]["c"]["top"][0] == ["u", 0.4]
    x = found["columns"]["x"]
    assert sum(x["histogram"]["counts"]) == 40
    assert x["quantiles"]["0.5"] == 3.5
    names = found["correlation"]["columns"]
    values = found["correlation"]["values"]
    assert names == ["x", "n", "y" if "y" in names else "label"]
    assert all(values[n][n] == 1 for n in range(3))
    assert values[0][1] == values[1][0]
    assert abs(values[0][2]) <= 1
