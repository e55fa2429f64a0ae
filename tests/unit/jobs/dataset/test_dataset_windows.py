"""Windows: against adding up each range alone, and the same however the rows are cut."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from tests.kit.dataset_case import DatasetCase

from gridmill.domain.dataset import (
    Aggregate,
    AsOfJoin,
    Basis,
    DatasetSpec,
    Join,
    Label,
    LabelRule,
    Lag,
    Split,
    Window,
)
from gridmill.errors import DataError
from gridmill.jobs.dataset import key_order, window_engine, window_kernels, write
from gridmill.jobs.dataset.checks import known_span
from gridmill.jobs.dataset.run import run
from gridmill.jobs.dataset.window_kernels import distinct, rank
from gridmill.jobs.dataset.window_ranges import NOWHERE, KeyedTimes, OwnRows, RowFrames, own_rows
from gridmill.jobs.dataset.window_sums import Floats, KeyedValues, counts, extremes, newest, squares, sums
from gridmill.jobs.tables import open_table

START = datetime(2020, 1, 1, tzinfo=UTC)
SECOND = 1_000_000


def kinds(rng: np.random.Generator, rows: int) -> dict[str, Floats]:
    plain, few = rng.normal(size=rows), rng.random(rows) < 0.1
    return {
        "plain": plain,
        "a large offset": plain * 1e-3 + 1e9,
        "a huge value among small ones": np.where(few, 1e20, plain),
        "not finite": np.where(few, np.nan, np.where(rng.random(rows) < 0.1, np.inf, plain)),
        "moving away": np.cumsum(plain) * 1e-3 + 1e6,
        "mostly zero": np.where(few, 0.1, 0.0),
        "tiny": plain * 1e-300,
    }


def some_rows(seed: int) -> tuple[OwnRows, np.random.Generator]:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 80))
    codes, times = rng.integers(0, 5, rows), rng.integers(0, 40, rows) * SECOND
    order = np.lexsort((times, codes))
    return own_rows(codes[order], times[order]), rng


@pytest.mark.parametrize("seed", range(12))
def test_ranges_are_those_rows(seed: int) -> None:
    own, rng = some_rows(seed)
    times, keys = own.known.times, own.keys
    found, rows = own.before(7), own.newest(3)
    for at in range(len(keys)):
        before = np.flatnonzero((keys == keys[at]) & (times < times[at]))
        recent = before[times[before] >= times[at] - 7 * SECOND]
        assert list(range(found.low[at], found.high[at])) == list(recent)
        assert list(range(rows.low[at], rows.high[at])) == list(before[-3:])
    asked, moments = rng.integers(NOWHERE, keys.max() + 1, 30), rng.integers(-20, 60, 30) * SECOND
    far = KeyedTimes(
        offsets=own.known.offsets, times=own.known.times + np.where(keys == keys.max(), 2**61, 0)
    )
    for known in (own.known, far):
        for key, moment in zip(asked, moments, strict=True):
            mine = range(known.offsets[key], known.offsets[key + 1]) if key != NOWHERE else range(0)
            earlier = sum(known.times[at] < moment for at in mine)
            begin = mine.start if mine else 0
            assert known.find(np.array([key]), np.array([moment]), "left") == begin + earlier
            upto = sum(known.times[at] <= moment for at in mine)
            assert known.find(np.array([key]), np.array([moment]), "right") == begin + upto


@pytest.mark.parametrize("seed", range(12))
def test_aggregates_are_those_of_each_range_alone(seed: int) -> None:
    own, rng = some_rows(seed)
    there = rng.random(len(own.keys)) < 0.8
    for name, numbers in kinds(rng, len(own.keys)).items():
        for frames in (own.before(7), own.newest(4)):
            check(
                name,
                KeyedValues(numbers=np.where(there, numbers, 0.0), present=there, offsets=own.known.offsets),
                frames,
            )


def check(name: str, values: KeyedValues, frames: RowFrames) -> None:
    count, total = counts(values.present, frames), sums(values, frames)
    away = squares(values, frames, count)
    low, high = (extremes(values, frames, largest=largest) for largest in (False, True))
    last = newest(values.present, frames)
    for at, (begin, end) in enumerate(zip(frames.low, frames.high, strict=True)):
        rows = [row for row in range(begin, end) if values.present[row]]
        mine = values.numbers[rows]
        finite = bool(np.isfinite(mine).all())
        assert count[at] == len(rows)
        assert last[at] == (rows[-1] if rows else NOWHERE)
        if finite:
            assert abs(total[at] - math.fsum(mine)) <= 1e-12 * np.abs(mine).sum(), name
        else:
            assert np.array_equal(total[at], mine.sum(), equal_nan=True), name
        if rows:
            assert np.array_equal(low[at], np.fmin.reduce(mine), equal_nan=True)
            assert np.array_equal(high[at], np.maximum.reduce(mine), equal_nan=True)
        if len(rows) > 1:
            exact = math.fsum((mine - math.fsum(mine) / len(mine)) ** 2) if finite else math.nan
            close = math.isclose(away[at], exact, rel_tol=2e-9, abs_tol=(1e-15 * np.abs(mine).max()) ** 2)
            assert close if finite else math.isnan(away[at]), (name, away[at], exact)


@pytest.mark.parametrize("seed", range(6))
def test_different_values_are_counted(seed: int) -> None:
    own, rng = some_rows(seed)
    codes = rng.integers(NOWHERE, 6, len(own.keys))
    for frames in (own.before(7), own.newest(4), own.at(3)):
        wanted = [
            len(set(codes[low:high]) - {NOWHERE}) for low, high in zip(frames.low, frames.high, strict=True)
        ]
        assert distinct(codes, frames).tolist() == wanted


NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "places", "in_order"),
    [
        (pa.array(["b", "", None, "ä", "a"]), [2, 0, NOWHERE, 3, 1], ["", "a", "b", "ä"]),
        (pa.array([2.0, NAN, None, 0.0, -0.0, NAN]), [1, 2, NOWHERE, 0, 0, 2], [0.0, 2.0, NAN]),
        (pa.array([3, 2, 2**63 + 5], pa.uint64()), [1, 0, 2], [2, 3, 2**63 + 5]),
        (pa.array([Decimal("1.50"), Decimal("-2.00")]), [1, 0], [Decimal("-2.00"), Decimal("1.50")]),
        (pa.array([[1, 2], None, [1]]), [1, NOWHERE, 0], [[1], [1, 2]]),
        (pa.array([], pa.string()), [], []),
    ],
    ids=["text", "float", "uint64", "decimal", "list", "none"],
)
def test_values_of_any_type_have_an_order(
    values: pa.Array, places: list[int], in_order: list[object]
) -> None:
    with duckdb.connect() as engine:
        found = rank(values, engine)
    assert found.places.tolist() == places
    assert repr(found.values.to_pylist()) == repr(in_order)


def fill(case: DatasetCase, rows: int = 3000) -> None:
    rng = np.random.default_rng(3)

    def times(count: int, step: float) -> pa.Array:
        moments = [START + timedelta(seconds=float(s)) for s in np.sort(rng.integers(0, 4000, count)) * step]
        return pa.array(moments, pa.timestamp("us", "UTC"))

    case.give(
        "obs",
        {
            "e": pa.array([f"e{n}" for n in rng.integers(0, 20, rows)]),
            "place": pa.array(rng.integers(0, 4, rows), mask=rng.random(rows) < 0.05),
            "t": times(rows, 10.0),
            "late": times(rows, 10.5),
            "x": pa.array(rng.normal(10.0, 1.0, rows), mask=rng.random(rows) < 0.1),
            "n": pa.array(rng.integers(-9, 9, rows)),
            "word": pa.array([f"w{n}" for n in rng.integers(0, 9, rows)]),
            "flag": pa.array(rng.random(rows) < 0.5),
        },
    )
    case.give(
        "news",
        {
            "place": pa.array(rng.integers(0, 6, 500), mask=rng.random(500) < 0.05),
            "k": times(500, 9.0),
            "v": pa.array(rng.normal(size=500), mask=rng.random(500) < 0.2),
            "word": pa.array([f"n{n}" for n in rng.integers(0, 9, 500)]),
        },
    )
    case.give("places", {"place": [0, 1, 2], "size": [1.5, 2.5, 3.5]})


ALL, SOME = tuple(Aggregate), (Aggregate.COUNT, Aggregate.LAST)
SPEC = DatasetSpec(
    basis=Basis(table="obs", time="t", entity=("e",), columns=("x", "n", "word")),
    joins=(Join(table="places", on=("place",)),),
    asof_joins=(
        AsOfJoin(table="news", on=("place",), known_at="k", prefix="place_", within_seconds=900),
        AsOfJoin(table="news", known_at="k + INTERVAL 1 MINUTE", columns=("word",), prefix="any_"),
    ),
    windows=(
        Window(column="x", aggregates=ALL, span_seconds=1800),
        Window(column="n", aggregates=ALL, span_rows=5),
        Window(column="word", aggregates=(*SOME, Aggregate.MAX, Aggregate.DISTINCT), span_seconds=3600),
        Window(column="flag", aggregates=(Aggregate.MEAN,), span_seconds=600),
        Window(column="late", aggregates=(Aggregate.MAX,), span_seconds=600),
        Window(column="x", aggregates=ALL, span_seconds=900, on=("place",), known_at="late", prefix="late_"),
        Window(column="v", aggregates=ALL, span_rows=4, table="news", on=("place",), known_at="k"),
        Window(
            column="v",
            aggregates=(Aggregate.STD,),
            span_seconds=1200,
            table="news",
            on=("place",),
            known_at="k",
        ),
        Window(column="y", aggregates=(Aggregate.MEAN,), span_seconds=3600),
    ),
    lags=(
        Lag(column="x", steps=(1, 3), back_seconds=(600,)),
        Lag(column="word", steps=(2,), table="news", on=("place",), known_at="k"),
    ),
    features={"both": "x + n_sum_5rows"},
    label=Label(column="x", steps=2, name="y"),
    split=Split(test_from="2020-01-01T08:00:00"),
)
PLAIN = replace(SPEC, joins=(), label=None, windows=SPEC.windows[:2])
OF_LABELS = Window(column="y", aggregates=ALL, span_seconds=3600, on=("place",), prefix="place_")
OF_EVENTS = Label(
    table="news",
    on=("place",),
    known_at="k",
    horizon_seconds=900,
    outcome=LabelRule.MAX,
    column="v",
    delay_seconds=60,
    known_until="basis",
    name="y",
)
SPECS = {
    "all": SPEC,
    "plain": PLAIN,
    "no entity": replace(SPEC, basis=replace(SPEC.basis, entity=())),
    "later value": replace(
        SPEC,
        label=Label(column="n", horizon_seconds=600, known_at="late", name="y"),
        windows=(*SPEC.windows[:3], OF_LABELS),
    ),
    "next rows": replace(
        SPEC, label=Label(columns=("x", "n"), next_rows=3, name="y"), windows=SPEC.windows[:-1]
    ),
    "events": replace(SPEC, label=OF_EVENTS, windows=(*SPEC.windows[:3], OF_LABELS)),
    "own, late": replace(
        SPEC,
        label=Label(column="word", known_at="late", delay_seconds=60, name="y"),
        windows=(
            SPEC.windows[1],
            replace(OF_LABELS, aggregates=(Aggregate.MIN, Aggregate.DISTINCT)),
            Window(column="word", aggregates=(Aggregate.MAX,), span_rows=4, on=("place",)),
        ),
        lags=(Lag(column="y", steps=(1, 2), back_seconds=(100,)),),
    ),
}


def cut_small(patch: pytest.MonkeyPatch, rows: int) -> None:
    """So few rows at a time that entities are cut in time; other tables are in files."""
    for name in ("CHUNK_ROWS", "PIECE_ROWS", "BATCH_ROWS", "CHUNK_VALUES"):
        patch.setattr(window_engine, name, rows)
    patch.setattr(key_order, "BATCH_ROWS", rows - 3)
    patch.setattr(window_kernels, "SLICE_ROWS", 2 * rows)
    patch.setattr(write, "MOST_VALUES", 0)


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=() if one in ("all", "events") else pytest.mark.long) for one in SPECS],
)
def test_they_are_the_same_however_rows_are_cut(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, spec = DatasetCase(tmp_path), SPECS[name]
    fill(case, 1200)
    whole = case.table(case.make(spec, cpus=2))
    cut_small(monkeypatch, 53)
    pieces = case.table(case.make(spec, cpus=3))
    assert len(list((tmp_path / "root/datasets/p/d").glob("*/*-0003-*.parquet"))) >= 1
    assert pieces.schema == whole.schema
    assert pieces.num_rows == whole.num_rows > 10
    for column in whole.column_names:
        assert alike(pieces[column], whole[column]), column


def alike(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    if not pa.types.is_floating(one.type):
        return bool(one.equals(other))
    left, right = (column.combine_chunks().fill_null(-1.5).to_numpy() for column in (one, other))
    close = np.allclose(left, right, rtol=1e-9, atol=1e-12, equal_nan=True)
    return close and bool(one.is_null().equals(other.is_null()))


def test_keys_that_are_equal_stay_what_each_of_them_was(tmp_path: Path) -> None:
    case = DatasetCase(tmp_path)
    times = pa.array([START + timedelta(seconds=n) for n in range(4)], pa.timestamp("us", "UTC"))
    case.give("obs", {"t": times, "e": [0.0, -0.0, -0.0, 0.0], "f": ["a"] * 4, "x": [1.0, 2.0, 3.0, 4.0]})
    window = Window(column="x", aggregates=(Aggregate.SUM,), span_seconds=60)
    spec = DatasetSpec(basis=Basis(table="obs", time="t", entity=("f", "e")), windows=(window,))
    made = case.table(case.make(spec))
    assert made["x_sum_1m"].to_pylist() == [None, 1.0, 3.0, 6.0]
    assert np.signbit(made["e"].to_numpy()).tolist() == [False, True, True, False]
    assert made["f"].to_pylist() == ["a"] * 4


def test_windows_by_a_known_at_that_every_row_lacks_are_empty(tmp_path: Path) -> None:
    case = DatasetCase(tmp_path)
    kind = pa.timestamp("us", "UTC")
    times = pa.array([START + timedelta(seconds=n) for n in range(3)], kind)
    case.give("obs", {"t": times, "late": pa.nulls(3, kind), "x": [1.0, 2.0, 3.0]})
    window = Window(column="x", aggregates=ALL, span_seconds=60, known_at="late")
    made = case.table(case.make(DatasetSpec(basis=Basis(table="obs", time="t"), windows=(window,))))
    assert made["x_mean_1m"].to_pylist() == [None] * 3
    assert made["x_count_1m"].to_pylist() == [0] * 3


def test_the_past_of_an_entity_that_is_too_long_to_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = DatasetCase(tmp_path)
    fill(case, 400)
    cut_small(monkeypatch, 53)
    monkeypatch.setattr(write, "LEAST_HISTORY_BYTES", 0)
    context = case.context(replace(SPECS["no entity"], label=None, windows=SPEC.windows[:2]))
    given = replace(context.order.given, memory_bytes=0)
    with pytest.raises(
        DataError, match=r"read rows of the last 30 m 00 s.*no entity.* has \d+ rows in that time"
    ) as caught:
        run(replace(context, order=replace(context.order, given=given)))
    assert "more memory" in caught.value.hint


def test_the_span_of_times_is_what_the_files_tell(tmp_path: Path) -> None:
    case = DatasetCase(tmp_path)
    times = [START, None, START + timedelta(days=3, microseconds=7)]
    case.give("obs", {"t": pa.array(times, pa.timestamp("us", "UTC")), "d": pa.array(["x", "y", "z"])})
    context = case.context(DatasetSpec(basis=Basis(table="obs", time="t")))
    for zoned in (True, False):
        table = open_table(context, case.tables["obs"], zoned=zoned)
        found = known_span(table, "t")
        assert found == (3, datetime(2020, 1, 1), datetime(2020, 1, 4, microsecond=7))
        assert known_span(table, "d") is None
