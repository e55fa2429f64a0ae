"""Windows and lags of earlier labels by another key than the entity: of all rows, whatever rows are computed
at a time, on however many machines."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_dataset_parts import in_parts
from tests.kit.dataset_case import DatasetCase

from gridmill.domain.artifact import Output
from gridmill.domain.dataset import Aggregate, Basis, DatasetSpec, Label, Lag, Window
from gridmill.jobs.dataset import window_engine

START = datetime(2020, 1, 1, tzinfo=UTC)
DELAY = 600.0
LATE = DatasetSpec(
    basis=Basis(table="tx", time="t", entity=("card",), columns=("x",)),
    label=Label(column="fraud", name="fraud", delay_seconds=DELAY),
    windows=(
        Window(
            column="fraud",
            aggregates=(Aggregate.COUNT, Aggregate.SUM, Aggregate.MAX, Aggregate.LAST),
            span_seconds=3600,
            on=("shop",),
        ),
        Window(column="fraud", aggregates=(Aggregate.SUM,), span_rows=5, on=("shop",)),
        Window(column="x", aggregates=(Aggregate.SUM,), span_seconds=3600),
    ),
    lags=(Lag(column="fraud", steps=(1, 3), on=("shop",)),),
)
AHEAD = replace(
    LATE,
    label=Label(column="x", steps=2, name="ahead", delay_seconds=DELAY),
    windows=(
        Window(
            column="ahead",
            aggregates=(Aggregate.COUNT, Aggregate.SUM, Aggregate.MIN),
            span_seconds=7200,
            on=("shop",),
        ),
        Window(column="x", aggregates=(Aggregate.SUM,), span_seconds=3600),
    ),
    lags=(Lag(column="ahead", steps=(1,), on=("shop",)),),
)
UNSHARED = replace(
    LATE,
    windows=(
        *LATE.windows,
        Window(column="fraud", aggregates=(Aggregate.DISTINCT,), span_seconds=3600, on=("shop",)),
    ),
)


def fill(case: DatasetCase, seconds: list[int], seed: int = 0) -> list[dict[str, float]]:
    """Transactions of some cards at some shops; no two of a card, and no two labels of a shop, at once."""
    rows = [
        {
            "t": at * 7 + n % 7,
            "card": (n * 5 + seed) % 11,
            "shop": n % 3,
            "fraud": (n * n + seed) % 4,
            "x": n % 10,
        }
        for n, at in enumerate(sorted(seconds))
    ]
    rows = list({(row["t"], row["card"]): row for row in {row["t"]: row for row in rows}.values()}.values())
    case.give(
        "tx",
        {
            "t": pa.array([START + timedelta(seconds=row["t"]) for row in rows], pa.timestamp("us", "UTC")),
            **{name: [row[name] for row in rows] for name in ("card", "shop", "fraud", "x")},
        },
    )
    return rows


def known_labels(rows: list[dict[str, float]], spec: DatasetSpec) -> list[tuple[float, float, float]]:
    """Shop, time at which it is known, and value of each row's label."""
    if spec.label is not None and spec.label.steps is None:
        return [(row["shop"], row["t"] + DELAY, row["fraud"]) for row in rows]
    found = []
    for row in rows:
        later = [one for one in rows if one["card"] == row["card"] and one["t"] > row["t"]]
        if len(later) >= 2:
            found.append((row["shop"], later[1]["t"] + DELAY, later[1]["x"]))
    return found


def expected(rows: list[dict[str, float]], spec: DatasetSpec) -> list[dict[str, float | None]]:
    """Row by row: what was known of the shop's labels before each row."""
    labels = known_labels(rows, spec)
    name, span = ("fraud", 3600) if spec.label == LATE.label else ("ahead", 7200)
    hours = span // 3600
    made = []
    for row in sorted(rows, key=lambda row: (row["card"], row["t"])):
        past = sorted(label for label in labels if label[0] == row["shop"] and label[1] < row["t"])
        seen = [value for _, known, value in past if known >= row["t"] - span]
        values = [value for _, _, value in past]
        one: dict[str, float | None] = {
            f"{name}_count_{hours}h": len(seen),
            f"{name}_sum_{hours}h": sum(seen) if seen else None,
            f"{name}_lag_1": values[-1] if values else None,
        }
        if name == "fraud":
            one |= {
                f"{name}_max_1h": max(seen, default=None),
                f"{name}_last_1h": seen[-1] if seen else None,
                f"{name}_sum_5rows": sum(values[-5:]) if values else None,
                f"{name}_lag_3": values[-3] if len(values) > 2 else None,
            }
        else:
            one[f"{name}_min_2h"] = min(seen, default=None)
        made.append(one)
    return made


def check(case: DatasetCase, output: Output, rows: list[dict[str, float]], spec: DatasetSpec) -> None:
    found = sorted(case.table(output).to_pylist(), key=lambda row: (row["card"], row["t"]))
    wanted = expected(rows, spec)
    if spec.label is not None and spec.label.steps is not None:  # rows without a label are dropped
        keys = {(row["card"], row["t"].timestamp() - START.timestamp()) for row in found}
        ordered = sorted(rows, key=lambda row: (row["card"], row["t"]))
        pairs = zip(ordered, wanted, strict=True)
        wanted = [one for row, one in pairs if (row["card"], row["t"]) in keys]
    assert [{name: row[name] for name in wanted[0]} for row in found] == wanted


@pytest.mark.parametrize("spec", [LATE, AHEAD, UNSHARED], ids=["late", "ahead", "distinct"])
@pytest.mark.parametrize("rows_at_a_time", [7, 40])
def test_each_row_sees_the_labels_of_all_entities(
    spec: DatasetSpec, rows_at_a_time: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = DatasetCase(tmp_path)
    rows = fill(case, [n * 61 % 4001 for n in range(120)])
    for name in ("CHUNK_ROWS", "BATCH_ROWS", "PIECE_ROWS"):
        monkeypatch.setattr(window_engine, name, rows_at_a_time)
    monkeypatch.setattr(window_engine, "CHUNK_VALUES", rows_at_a_time)
    check(case, case.make(spec, cpus=2), rows, spec)
    check(case, in_parts(case, spec, 3), rows, spec)


@settings(max_examples=6, deadline=None)
@given(
    st.lists(st.integers(0, 1500), min_size=2, max_size=60, unique=True),
    st.integers(0, 9),
    st.sampled_from([LATE, AHEAD]),
    st.integers(2, 20),
)
def test_any_rows(
    tmp_path_factory: pytest.TempPathFactory, seconds: list[int], seed: int, spec: DatasetSpec, size: int
) -> None:
    case = DatasetCase(tmp_path_factory.mktemp("case"))
    rows = fill(case, seconds, seed)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CHUNK_ROWS", "BATCH_ROWS", "PIECE_ROWS", "CHUNK_VALUES"):
            patch.setattr(window_engine, name, size)
        if known_labels(rows, spec):
            check(case, case.make(spec), rows, spec)


def test_the_name_of_a_label_that_is_known_with_its_row(tmp_path: Path) -> None:
    """Its windows and lags are those of its column."""
    case = DatasetCase(tmp_path)
    times = [START + timedelta(hours=n) for n in range(4)]
    case.give("tx", {"card": ["a"] * 4, "t": times, "x": [1.0, 2.0, 4.0, 8.0]})
    spec = DatasetSpec(
        basis=Basis(table="tx", time="t", entity=("card",)),
        label=Label(column="x", name="label"),
        windows=(Window(column="label", aggregates=(Aggregate.SUM,), span_rows=2),),
        lags=(Lag(column="label", steps=(1,)),),
    )
    rows = case.rows(spec)
    assert [row["label_sum_2rows"] for row in rows] == [None, 1.0, 3.0, 6.0]
    assert [row["label_lag_1"] for row in rows] == [None, 1.0, 2.0, 4.0]
