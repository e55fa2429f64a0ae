"""The compiled query against a naive reading of the same words in Python, on small random tables."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import isclose
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kit.dataset_case import DatasetCase

from gridmill.domain.dataset import Aggregate, AsOfJoin, Basis, DatasetSpec, Label, Lag, Window
from gridmill.errors import DataError

START = datetime(2020, 1, 1, tzinfo=UTC)
Row = Mapping[str, Any]

ENTITIES = st.sampled_from(["a", "b"])
VALUES = st.one_of(st.none(), st.integers(-5, 5).map(float))
MINUTES = st.integers(0, 12)
OBSERVED = st.lists(
    st.fixed_dictionaries({"e": ENTITIES, "m": MINUTES, "x": VALUES}), min_size=1, max_size=14
)
NEWS = st.lists(st.fixed_dictionaries({"e": ENTITIES, "m": MINUTES, "n": VALUES}), min_size=1, max_size=20)
SOME_NEWS: list[Row] = [{"e": "a", "m": 0, "n": 0.0}]
QUICK = settings(
    max_examples=8, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)

SPEC = DatasetSpec(
    basis=Basis(table="obs", time="t", entity=("e",)),
    asof_joins=(
        AsOfJoin(table="news", known_at="k", on=("e",), columns=("n",), prefix="last_"),
        AsOfJoin(
            table="news", known_at="k - INTERVAL 1 MINUTE", columns=("n",), prefix="any_", within_seconds=180
        ),
    ),
    windows=(
        Window(column="x", aggregates=tuple(Aggregate), span_seconds=300),
        Window(column="x", aggregates=tuple(Aggregate), span_rows=3),
    ),
    lags=(Lag(column="x", steps=(1, 2)),),
    features={"twice": "x * 2 + coalesce(x_lag_1, 0)"},
)


def at(row: Row) -> datetime:
    return START + timedelta(minutes=row["m"])


def in_order(rows: Sequence[Row], value: str) -> list[Row]:
    """By time; those at the same time by their values, missing ones last."""
    return sorted(rows, key=lambda row: (row["m"], row[value] is None, row[value] or 0))


def aggregates(rows: Sequence[Row], name: str) -> dict[str, object]:
    known = [row["x"] for row in rows if row["x"] is not None]
    return {
        f"x_count_{name}": len(known),
        f"x_sum_{name}": sum(known) if known else None,
        f"x_mean_{name}": mean(known) if known else None,
        f"x_min_{name}": min(known, default=None),
        f"x_max_{name}": max(known, default=None),
        f"x_std_{name}": stdev(known) if len(known) > 1 else None,
        f"x_last_{name}": known[-1] if known else None,
        f"x_distinct_{name}": len(set(known)),
    }


def newest(news: Sequence[Row], before: int, after: int = -100) -> object:
    known = [row for row in news if after <= row["m"] < before]
    moment = max((row["m"] for row in known), default=None)
    at_once = [row["n"] for row in known if row["m"] == moment]
    values = [value for value in at_once if value is not None]
    return max(values, default=None)


def features(row: Row, observed: Sequence[Row], news: Sequence[Row]) -> dict[str, object]:
    """What may be known of `row`: nothing but rows strictly before it, and itself."""
    past = in_order([r for r in observed if r["e"] == row["e"] and r["m"] < row["m"]], "x")
    lag = {n: past[-n]["x"] if len(past) >= n else None for n in (1, 2)}
    return {
        "e": row["e"],
        "t": at(row),
        "x": row["x"],
        "last_n": newest([n for n in news if n["e"] == row["e"]], row["m"]),
        "any_n": newest([{**n, "m": n["m"] - 1} for n in news], row["m"], row["m"] - 3),
        **aggregates([r for r in past if r["m"] >= row["m"] - 5], "5m"),
        **aggregates(past[-3:], "3rows"),
        "x_lag_1": lag[1],
        "x_lag_2": lag[2],
        "twice": None if row["x"] is None else row["x"] * 2 + (lag[1] or 0),
    }


def made(observed: Sequence[Row], news: Sequence[Row], spec: DatasetSpec = SPEC) -> list[dict[str, Any]]:
    with TemporaryDirectory() as folder:
        case = DatasetCase(Path(folder))
        give(case, "obs", observed, "t", "x")
        give(case, "news", news, "k", "n")
        return case.rows(spec)


def give(case: DatasetCase, name: str, rows: Sequence[Row], time: str, value: str) -> None:
    case.give(
        name,
        {
            "e": pa.array([row["e"] for row in rows], pa.string()),
            time: pa.array([at(row) for row in rows], pa.timestamp("us", "UTC")),
            value: pa.array([row[value] for row in rows], pa.float64()),
        },
    )


def same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float | int):
        return isclose(one, other, abs_tol=1e-9)
    return one == other


@QUICK
@given(OBSERVED, NEWS)
def test_windows_lags_and_as_of_joins(observed: list[Row], news: list[Row]) -> None:
    expected = [
        features(row, observed, news)
        for entity in ("a", "b")
        for row in in_order([r for r in observed if r["e"] == entity], "x")
    ]
    got = made(observed, news)
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert list(one) == ["e", "t", "x", "last_n", "any_n", *list(other)[5:]]
        wrong = {name: (one[name], other[name]) for name in other if not same(one[name], other[name])}
        assert not wrong


@pytest.mark.long
@QUICK
@given(OBSERVED, NEWS, st.data())
def test_what_happens_at_or_after_the_basis_time_changes_no_feature(
    observed: list[Row], news: list[Row], data: st.DataObject
) -> None:
    now = data.draw(MINUTES, label="now")
    later_obs = st.fixed_dictionaries({"e": ENTITIES, "m": st.integers(now, 12), "x": VALUES})
    # news of that minute is known with k - 1 minute before it: only what is after it is later for both joins
    later_news = st.fixed_dictionaries({"e": ENTITIES, "m": st.integers(now + 1, 13), "n": VALUES})
    basis = [row for row in observed if row["m"] == now] or [{"e": "a", "m": now, "x": 1.0}]
    before_obs = [row for row in observed if row["m"] < now]
    before_news = [row for row in news if row["m"] < now + 1] or [{"e": "b", "m": 0, "n": 0.0}]
    others = data.draw(st.lists(later_obs, max_size=12), label="others")
    changed = data.draw(st.lists(later_news, max_size=12), label="changed")

    def of_basis(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        mine = [(row["e"], at(row), row["x"]) for row in basis]
        return [row for row in rows if (row["e"], row["t"], row["x"]) in mine]

    first = of_basis(made([*before_obs, *basis], before_news))
    second = of_basis(made([*before_obs, *basis, *others], [*before_news, *changed]))
    unique = {tuple(row.values()) for row in first}
    assert unique == {tuple(row.values()) for row in second}


@QUICK
@given(OBSERVED, st.integers(1, 4))
def test_labels_ahead_in_time(observed: list[Row], minutes: int) -> None:
    spec = DatasetSpec(
        basis=Basis(table="obs", time="t", entity=("e",)),
        label=Label(column="x", horizon_seconds=60 * minutes, name="y"),
    )
    expected = []
    for entity in ("a", "b"):
        rows = in_order([row for row in observed if row["e"] == entity], "x")
        for row in rows:
            values = [r["x"] for r in rows if r["m"] == row["m"] + minutes and r["x"] is not None]
            if values:
                expected.append((entity, at(row), row["x"], values[-1]))
    check_labelled(observed, spec, expected)


@QUICK
@given(OBSERVED, st.integers(1, 3))
def test_labels_rows_ahead(observed: list[Row], steps: int) -> None:
    spec = DatasetSpec(
        basis=Basis(table="obs", time="t", entity=("e",)), label=Label(column="x", steps=steps, name="y")
    )
    expected = []
    for entity in ("a", "b"):
        rows = in_order([row for row in observed if row["e"] == entity], "x")
        for row in rows:
            later = [r["x"] for r in rows if r["m"] > row["m"]]
            if len(later) >= steps and later[steps - 1] is not None:
                expected.append((entity, at(row), row["x"], later[steps - 1]))
    check_labelled(observed, spec, expected)


def check_labelled(observed: list[Row], spec: DatasetSpec, expected: list[tuple[object, ...]]) -> None:
    if len({row[-1] for row in expected}) < 2:
        with pytest.raises(DataError, match=r"no row is left|nothing to learn"):
            made(observed, SOME_NEWS, spec)
        return
    rows = made(observed, SOME_NEWS, spec)
    assert [(row["e"], row["t"], row["x"], row["y"]) for row in rows] == expected
