"""Windows and lags over rows that become known at a time of their own, against a naive reading in Python."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import isclose
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
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
    Window,
)
from gridmill.errors import DataError, InputError

START = datetime(2020, 1, 1, tzinfo=UTC)
Row = Mapping[str, Any]
ALL = tuple(Aggregate)
QUICK = settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.generate],
)
VALUES = st.one_of(st.none(), st.integers(-4, 4).map(float))
OBSERVED = st.lists(
    st.fixed_dictionaries(
        {
            "e": st.sampled_from("ab"),
            "c": st.sampled_from(["u", "v", None]),
            "m": st.integers(0, 12),
            "x": VALUES,
        }
    ),
    min_size=1,
    max_size=12,
)
NEWS = st.lists(
    st.fixed_dictionaries({"c": st.sampled_from("uv"), "m": st.integers(0, 14), "x": VALUES}),
    min_size=1,
    max_size=12,
)

WINDOWS = (
    Window(column="x", aggregates=ALL, span_seconds=240),
    Window(column="x", aggregates=ALL, span_rows=2),
    Window(column="x", aggregates=ALL, span_seconds=240, on=("c",), prefix="c_"),
    Window(column="x", aggregates=ALL, span_rows=2, on=("c",), prefix="c_"),
    Window(column="x", aggregates=ALL, span_seconds=300, table="news", known_at="k", on=("c",), prefix="n_"),
    Window(column="x", aggregates=ALL, span_rows=3, table="news", known_at="k", on=("c",), prefix="n_"),
)
LAGS = (
    Lag(column="x", steps=(1, 2)),
    Lag(column="x", back_seconds=(60, 180)),
    Lag(column="x", steps=(1,), back_seconds=(120,), table="news", known_at="k", on=("c",), prefix="n_"),
)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def make(observed: Sequence[Row], news: Sequence[Row], spec: DatasetSpec) -> list[dict[str, Any]]:
    with TemporaryDirectory() as folder:
        case = DatasetCase(Path(folder))
        times = pa.timestamp("us", "UTC")
        case.give(
            "obs",
            {
                "e": pa.array([row["e"] for row in observed], pa.string()),
                "c": pa.array([row["c"] for row in observed], pa.string()),
                "t": pa.array([at(row["m"]) for row in observed], times),
                "x": pa.array([row["x"] for row in observed], pa.float64()),
            },
        )
        case.give(
            "news",
            {
                "c": pa.array([row["c"] for row in news], pa.string()),
                "k": pa.array([at(row["m"]) for row in news], times),
                "x": pa.array([row["x"] for row in news], pa.float64()),
            },
        )
        return case.rows(spec)


def ordered(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["k"], row["x"] is None, row["x"] or 0))


def aggregated(rows: Sequence[Row], prefix: str, name: str) -> dict[str, object]:
    known = [row["x"] for row in rows if row["x"] is not None]
    made = {
        "count": len(known),
        "sum": sum(known) if known else None,
        "mean": mean(known) if known else None,
        "min": min(known, default=None),
        "max": max(known, default=None),
        "std": stdev(known) if len(known) > 1 else None,
        "last": known[-1] if known else None,
        "distinct": len(set(known)),
    }
    return {f"{prefix}x_{aggregate}_{name}": value for aggregate, value in made.items()}


def back(rows: Sequence[Row], moment: float) -> object:
    known = [row["x"] for row in rows if row["k"] <= moment]
    return known[-1] if known else None


def features(row: Row, observed: Sequence[Row], news: Sequence[Row], late: int) -> dict[str, object]:
    now = row["m"]
    seen = ordered([{**r, "k": r["m"] + late} for r in observed])
    heard = ordered([{**r, "k": r["m"]} for r in news if r["c"] == row["c"]])
    mine = [r for r in seen if r["e"] == row["e"]]
    behind = {f"x_lag_{n}m": back(mine, now - n) for n in (1, 3)}
    if not late:  # rows of the same entity at the same time are in the order of all their values
        mine.sort(key=lambda r: (r["k"], r["c"] is None, r["c"] or "", r["x"] is None, r["x"] or 0))
    same = [r for r in seen if r["c"] == row["c"] and r["c"] is not None]
    made: dict[str, object] = {}
    for rows, prefix, minutes, count in ((mine, "", 4, 2), (same, "c_", 4, 2), (heard, "n_", 5, 3)):
        past = [r for r in rows if r["k"] < now]
        made |= aggregated([r for r in past if r["k"] >= now - minutes], prefix, f"{minutes}m")
        made |= aggregated(past[-count:], prefix, f"{count}rows")
    past = [r for r in mine if r["k"] < now]
    made |= {f"x_lag_{n}": past[-n]["x"] if len(past) >= n else None for n in (1, 2)}
    made |= behind
    past = [r for r in heard if r["k"] < now]
    return made | {"n_x_lag_1": past[-1]["x"] if past else None, "n_x_lag_2m": back(heard, now - 2)}


def same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float | int):
        return isclose(one, other, abs_tol=1e-9)
    return one == other


@pytest.mark.parametrize("late", [0, 2])
@settings(QUICK, max_examples=5)
@given(observed=OBSERVED, news=NEWS)
def test_windows_and_lags_of_any_table(late: int, observed: list[Row], news: list[Row]) -> None:
    windows_and_lags_are_right(late, observed, news)


@pytest.mark.long
@pytest.mark.parametrize("late", [0, 2])
@QUICK
@given(observed=OBSERVED, news=NEWS)
def test_windows_and_lags_of_more_tables(late: int, observed: list[Row], news: list[Row]) -> None:
    windows_and_lags_are_right(late, observed, news)


def windows_and_lags_are_right(late: int, observed: list[Row], news: list[Row]) -> None:
    known_at = f"t + INTERVAL {late} MINUTE" if late else None
    spec = DatasetSpec(
        basis=Basis(table="obs", time="t", entity=("e",), known_at=known_at), windows=WINDOWS, lags=LAGS
    )
    got = make(observed, news, spec)
    assert len(got) == len(observed)
    for row in got:
        minutes = (row["t"] - START).total_seconds() / 60
        expected = features({**row, "m": minutes}, observed, news, late)
        wrong = {name: (row[name], value) for name, value in expected.items() if not same(row[name], value)}
        assert not wrong


SECONDS = st.sampled_from([60.0, 150.0, 420.0])


@st.composite
def parts(draw: st.DrawFn) -> dict[str, Any]:
    """Where a window or lag looks."""
    where = draw(st.sampled_from(["mine", "same", "news", "late"]))
    prefix = draw(st.uuids()).hex
    match where:
        case "mine":
            return {"prefix": prefix}
        case "same":
            return {"prefix": prefix, "on": ("c",)}
        case "late":
            return {"prefix": prefix, "known_at": "t + INTERVAL 90 SECOND"}
    return {"prefix": prefix, "table": "news", "known_at": "k", "on": ("c",)}


@st.composite
def declarations(draw: st.DrawFn) -> DatasetSpec:
    """Any mix of windows, lags and joins."""
    windows = st.builds(
        lambda where, span, some: Window(column="x", aggregates=tuple(some), **span, **where),
        parts(),
        st.one_of(
            SECONDS.map(lambda s: {"span_seconds": s}), st.integers(1, 3).map(lambda n: {"span_rows": n})
        ),
        st.lists(st.sampled_from(ALL), min_size=1, max_size=2, unique=True),
    )
    lags = st.builds(
        lambda where, steps, seconds: Lag(
            column="x", steps=tuple(steps), back_seconds=tuple(seconds), **where
        ),
        parts(),
        st.lists(st.integers(1, 3), min_size=1, max_size=2, unique=True),
        st.lists(SECONDS, max_size=1),
    )
    asof = AsOfJoin(table="news", known_at="k", on=("c",), columns=("x",), prefix="news_")
    return DatasetSpec(
        basis=Basis(table="obs", time="t", entity=("e",)),
        windows=tuple(draw(st.lists(windows, max_size=3))),
        lags=tuple(draw(st.lists(lags, max_size=2))),
        asof_joins=draw(st.sampled_from([(), (asof,)])),
    )


@settings(QUICK, max_examples=10)
@given(spec=declarations(), observed=OBSERVED, news=NEWS, data=st.data())
def test_no_row_at_or_after_the_basis_time_changes_a_feature(
    spec: DatasetSpec, observed: list[Row], news: list[Row], data: st.DataObject
) -> None:
    """Rows are added, changed, removed from a moment on: who is there until then sees no difference."""
    now = data.draw(st.integers(0, 12), label="now")
    others = data.draw(OBSERVED, label="others")
    more = data.draw(NEWS, label="more")
    kept = [row for row in observed if row["m"] <= now] or [{"e": "a", "c": "u", "m": now, "x": 1.0}]
    past, then = [r for r in kept if r["m"] < now], [r for r in kept if r["m"] == now]
    heard = [row for row in news if row["m"] < now] or [{"c": "u", "m": -1, "x": 0.0}]
    first = make(
        [*kept, *(r for r in observed if r["m"] > now)], [*heard, *(r for r in news if r["m"] >= now)], spec
    )
    second = make(
        [*past, *then, *(r for r in others if r["m"] >= now)],
        [*heard, *(r for r in more if r["m"] >= now)],
        spec,
    )

    def seen(rows: list[dict[str, Any]]) -> set[tuple[object, ...]]:
        mine = {(r["e"], r["c"], at(r["m"]), r["x"]) for r in kept}
        return {tuple(row.values()) for row in rows if (row["e"], row["c"], row["t"], row["x"]) in mine}

    assert seen(first) == seen(second)


LEAVE = Label(table="news", on=("c",), known_at="k", horizon_seconds=240, outcome=LabelRule.ANY, name="left")


UNTIL = {None: None, "basis": None, "2020-01-01T00:08": 8, "2020-01-01T00:30": 30}
"""`known_until`, and the minute that it says."""


@settings(QUICK, max_examples=20)
@given(
    observed=OBSERVED,
    news=NEWS,
    outcome=st.sampled_from(list(LabelRule)),
    until=st.sampled_from(list(UNTIL)),
    delay=st.sampled_from([None, 2]),
)
def test_labels_made_of_events(
    observed: list[Row], news: list[Row], outcome: LabelRule, until: str | None, delay: int | None
) -> None:
    column = None if outcome in (LabelRule.ANY, LabelRule.COUNT) else "x"
    label = Label(
        table="news",
        on=("c",),
        known_at="k",
        horizon_seconds=240,
        outcome=outcome,
        column=column,
        known_until=until,
        delay_seconds=None if delay is None else 60 * delay,
        name="left",
    )
    newest, last = (max(row["m"] for row in rows) for rows in (news, observed))
    end = newest if until is None else max(newest, last - (delay or 0)) if until == "basis" else UNTIL[until]
    expected = []
    for row in observed:
        events = [n["x"] for n in news if n["c"] == row["c"] and row["m"] < n["m"] <= row["m"] + 4]
        known = [value for value in events if value is not None]
        value = {
            LabelRule.ANY: bool(events),
            LabelRule.COUNT: len(events),
            LabelRule.SUM: sum(known),
            LabelRule.MEAN: mean(known) if known else None,
            LabelRule.MIN: min(known, default=None),
            LabelRule.MAX: max(known, default=None),
        }[outcome]
        if row["m"] + 4 <= end and value is not None:
            expected.append((row["e"], row["m"], value))
    spec = DatasetSpec(basis=Basis(table="obs", time="t", entity=("e",)), label=label)
    if len({row[-1] for row in expected}) < 2:
        with pytest.raises(DataError, match=r"no row is left|nothing to learn"):
            make(observed, news, spec)
        return
    rows = make(observed, news, spec)
    got = [(row["e"], (row["t"] - START).total_seconds() / 60, row["left"]) for row in rows]
    assert (
        sorted(got) == pytest.approx(sorted(expected))
        if outcome == LabelRule.MEAN
        else sorted(got) == sorted(expected)
    )


def test_earlier_labels_are_seen_once_they_are_known() -> None:
    """A label of three minutes ahead, known two minutes later still: five minutes lie between."""
    observed = [{"e": "a", "c": "u", "m": m, "x": float(m)} for m in range(12)]
    spec = DatasetSpec(
        basis=Basis(table="obs", time="t", entity=("e",)),
        label=Label(column="x", horizon_seconds=180, delay_seconds=120, name="y"),
        windows=(
            Window(column="y", aggregates=(Aggregate.MAX,), span_seconds=36000),
            Window(column="y", aggregates=(Aggregate.COUNT,), span_rows=2),
        ),
        lags=(Lag(column="y", steps=(1,)),),
    )
    rows = make(observed, [{"c": "u", "m": 0, "x": 0.0}], spec)
    assert [row["y_max_10h"] for row in rows] == [None] * 6 + [3, 4, 5]
    assert [row["y_lag_1"] for row in rows] == [None] * 6 + [3, 4, 5]
    assert [row["y_count_2rows"] for row in rows] == [0] * 6 + [1, 2, 2]


def test_joined_rows_must_have_been_known() -> None:
    observed = [{"e": "a", "c": "u", "m": m, "x": float(m)} for m in range(4)]
    news = [{"c": "u", "m": 2, "x": 7.0}]
    basis = Basis(table="obs", time="t", entity=("e",))
    join = {"table": "news", "on": ("c",), "columns": ("x",), "prefix": "n_"}
    rows = make(observed, news, DatasetSpec(basis=basis, joins=(Join(**join, known_at="k"),)))
    assert [row["n_x"] for row in rows] == [None, None, None, 7]
    rows = make(observed, news, DatasetSpec(basis=basis, joins=(Join(**join, exempt=True),)))
    assert [row["n_x"] for row in rows] == [7] * 4
    with pytest.raises(InputError, match="does not declare when its rows become known"):
        make(observed, news, DatasetSpec(basis=basis, joins=(Join(**join),)))
    window = Window(column="x", aggregates=ALL, span_rows=2, table="news")
    with pytest.raises(InputError, match="does not declare when its rows become known"):
        make(observed, news, DatasetSpec(basis=basis, windows=(window,)))


def test_a_column_may_be_called_like_a_word_of_sql(tmp_path: Path) -> None:
    case = DatasetCase(tmp_path)
    moments = pa.array([datetime(2020, 1, day, tzinfo=UTC) for day in (1, 2, 3)], pa.timestamp("us", "UTC"))
    case.give("obs", {"e": ["a"] * 3, "t": moments, "end": moments, "x": [1.0, 2.0, 4.0]})
    case.give("news", {"e": ["a"] * 3, "at": moments, "n": [1.0, 2.0, 4.0]})
    spec = DatasetSpec(
        basis=Basis(table="obs", time="t", entity=("e",), columns=("x",), known_at="end"),
        asof_joins=(AsOfJoin(table="news", on=("e",), known_at="at"),),
        windows=(Window(column="n", aggregates=(Aggregate.SUM,), span_rows=9, table="news", known_at="at"),),
        lags=(Lag(column="x", steps=(1,)),),
        features={"same": "x"},
    )
    rows = case.rows(spec)
    assert [row["n"] for row in rows] == [None, 1.0, 2.0]
    assert [row["n_sum_9rows"] for row in rows] == [None, 1.0, 3.0]
    assert [row["x_lag_1"] for row in rows] == [None, 1.0, 2.0]
    assert [row["same"] for row in rows] == [1.0, 2.0, 4.0]
