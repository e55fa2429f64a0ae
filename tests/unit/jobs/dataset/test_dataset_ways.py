"""The same dataset made in one go, by appended rows, after a crash, with 1 or 4 buckets: the same rows."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.kit.dataset_case import DatasetCase

from gridmill.domain.artifact import Artifact, Input, Output
from gridmill.domain.dataset import (
    UNTIL_BASIS,
    Aggregate,
    AsOfJoin,
    Basis,
    DatasetSpec,
    Encoder,
    Label,
    LabelRule,
    Method,
    Split,
    SplitBy,
    Window,
)
from gridmill.errors import InputError
from gridmill.jobs.dataset.run import run
from gridmill.jobs.tables import plain_schema

START = datetime(2020, 1, 1, tzinfo=UTC)
HOURS = 24 * 40
SPEC = DatasetSpec(
    basis=Basis(table="events", time="t", entity=("user",)),
    asof_joins=(AsOfJoin(table="prices", known_at="k", on=("user",), columns=("p",)),),
    windows=(
        Window(column="x", aggregates=tuple(Aggregate), span_seconds=3 * 86400),
        Window(column="p", aggregates=(Aggregate.MEAN,), span_seconds=86400, table="prices", known_at="k"),
    ),
    label=Label(column="x", horizon_seconds=3600, name="next"),
    split=Split(validation_from="2020-01-20", test_from="2020-01-25"),
    encoders=(
        Encoder(columns=("x", "p"), method=Method.STANDARD),
        Encoder(columns=("kind",), method=Method.TARGET),
    ),
)


def events(seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    count = HOURS * 6
    hours = np.sort(rng.integers(0, HOURS, count))
    return pa.table(
        {
            "user": pa.array([f"u{n}" for n in rng.integers(0, 7, count)]),
            "t": pa.array([START + timedelta(hours=int(h)) for h in hours], pa.timestamp("us", "UTC")),
            "x": rng.normal(5, 2, count),
            "kind": pa.array([f"k{n}" for n in rng.integers(0, 3, count)]),
        }
    )


def prices() -> pa.Table:
    rng = np.random.default_rng(1)
    hours = range(0, HOURS, 5)
    return pa.table(
        {
            "user": pa.array([f"u{n % 7}" for n, _ in enumerate(hours)]),
            "k": pa.array([START + timedelta(hours=h) for h in hours], pa.timestamp("us", "UTC")),
            "p": rng.normal(100, 9, len(hours)),
        }
    )


def upto(table: pa.Table, column: str, hours: int) -> pa.Table:
    moment = pa.scalar(START + timedelta(hours=hours), pa.timestamp("us", "UTC"))
    return table.filter(pa.compute.less(table[column], moment))


def append(case: DatasetCase, name: str, table: pa.Table) -> None:
    """One more load of a sink."""
    path = case.folder / "root" / "sinks" / "p" / name / "table"
    write_deltalake(path, table.cast(plain_schema(table.schema)), mode="append")
    version = DeltaTable(path).version()
    case.tables[name] = replace(case.tables[name], table_version=version)


def give(case: DatasetCase, name: str, table: pa.Table) -> None:
    case.give(name, table)
    version = DeltaTable(case.folder / "root" / case.tables[name].uri).version()
    case.tables[name] = replace(case.tables[name], table_version=version)


def make(case: DatasetCase, spec: DatasetSpec, earlier: Output | None = None) -> Output:
    spec.check()
    context = case.context(spec)
    if earlier is not None:
        artifact = Artifact(id="p/d@1", name="p/d", number=1, output=earlier, fingerprint="")
        order = replace(context.order, earlier=(Input(name="d", artifact=artifact),))
        context = replace(context, order=order)
    return run(context).outputs[0]


def rows_of(case: DatasetCase, output: Output) -> list[dict[str, Any]]:
    rows = case.table(output).to_pylist()
    return sorted(rows, key=lambda row: (row["user"], row["t"], repr(row.get("next")), repr(row.get("x"))))


def assert_same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        assert left.keys() == right.keys()
        for name, value in left.items():
            if isinstance(value, float):
                assert right[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
            else:
                assert right[name] == value, name


@pytest.fixture
def case(tmp_path: Path) -> DatasetCase:
    case = DatasetCase(tmp_path)
    give(case, "events", events())
    give(case, "prices", prices())
    return case


def test_buckets_give_the_same_rows(case: DatasetCase) -> None:
    one, four = (make(case, replace(SPEC, buckets=count)) for count in (1, 4))
    assert (one.details["buckets"], four.details["buckets"]) == (1, 4)
    assert len(list((case.folder / "root" / four.uri).glob("part-*.parquet"))) == 1  # encoded in one pass
    plain = replace(SPEC, encoders=())
    one_plain, four_plain = (make(case, replace(plain, buckets=count)) for count in (1, 4))
    assert len(list((case.folder / "root" / four_plain.uri).glob("part-*.parquet"))) > 1
    assert_same(rows_of(case, one), rows_of(case, four))
    assert_same(rows_of(case, one_plain), rows_of(case, four_plain))
    for name in ("splits", "dropped", "features"):
        assert one.details[name] == four.details[name]


def test_rows_of_an_entity_stay_together_in_buckets(case: DatasetCase) -> None:
    table = case.table(make(case, replace(SPEC, encoders=(), buckets=4)))
    seen: list[str] = []
    for user in table["user"].to_pylist():
        if not seen or seen[-1] != user:
            seen.append(user)
    assert len(seen) == len(set(seen))


GONE = Label(
    table="prices", on=("user",), known_at="k", horizon_seconds=86400, outcome=LabelRule.COUNT, name="next"
)
HASHED = Split(by=SplitBy.RANDOM, test=0.3)
WAYS = {
    "all": SPEC,
    "own label": replace(
        SPEC,
        label=Label(column="x", known_at="t + INTERVAL 2 HOUR", name="next"),
        encoders=(Encoder(columns=("p", "x_mean_3d"), method=Method.STANDARD),),
    ),
    "own label by another key": replace(
        SPEC,
        label=Label(column="x", known_at="t + INTERVAL 2 HOUR", name="next"),
        windows=(
            Window(column="next", aggregates=(Aggregate.SUM,), span_seconds=86400, on=("kind",)),
            Window(column="x", aggregates=(Aggregate.MAX,), span_rows=4, on=("kind",)),
        ),
        encoders=(),
    ),
    "label of events": replace(SPEC, label=GONE),
    "label of events, delayed": replace(SPEC, label=replace(GONE, delay_seconds=7200)),
    "label of events, until the basis": replace(
        SPEC, label=replace(GONE, delay_seconds=7200, known_until=UNTIL_BASIS)
    ),
    "no label": replace(SPEC, label=None, encoders=(Encoder(columns=("x",), method=Method.ROBUST),)),
    "rows": replace(
        SPEC,
        windows=(Window(column="x", aggregates=(Aggregate.MEAN, Aggregate.LAST), span_rows=5),),
        encoders=(),
    ),
    "nothing left to the query": replace(
        SPEC,
        windows=(
            Window(
                column="x", aggregates=(Aggregate.MEAN, Aggregate.STD, Aggregate.LAST), span_seconds=86400
            ),
            Window(
                column="p", aggregates=(Aggregate.COUNT,), span_seconds=86400, table="prices", known_at="k"
            ),
        ),
        label=None,
        encoders=(),
    ),
    "drawn": replace(SPEC, split=HASHED, encoders=()),
}


LATE = {"label of events": (50, -50), "label of events, delayed": (50, -50)}
"""Hours by which the other table ends before the rows do; or after them."""
EACH = [*((way, 0) for way in WAYS), *((way, late) for way, each in LATE.items() for late in each)]


@pytest.mark.parametrize(
    ("way", "late"),
    [
        pytest.param(way, late, marks=pytest.mark.long if late or number % 4 else ())
        for number, (way, late) in enumerate(EACH)
    ],
)
def test_appended_rows_give_what_all_rows_give(tmp_path: Path, way: str, late: int) -> None:
    spec = replace(WAYS[way], incremental=True)
    grown, whole = DatasetCase(tmp_path / "a"), DatasetCase(tmp_path / "b")
    cuts = (HOURS - 200, HOURS - 100, HOURS)
    give(grown, "events", upto(events(), "t", cuts[0]))
    give(grown, "prices", upto(prices(), "k", cuts[0] - late))
    made = make(grown, spec)
    for before, cut in pairwise(cuts):
        fresh = upto(events(), "t", cut)
        append(grown, "events", fresh.slice(upto(events(), "t", before).num_rows))
        fresh = upto(prices(), "k", cut - late)
        append(grown, "prices", fresh.slice(upto(prices(), "k", before - late).num_rows))
        before_files = {path.name: path.stat().st_ino for path in files(grown, made)}
        made = make(grown, spec, made)
        assert made.details["kept_rows"] > 0.7 * (made.rows or 0)
        now = {path.name: path.stat().st_ino for path in files(grown, made)}
        assert before_files.items() < now.items()  # the very same files, and new ones
    give(whole, "events", events())
    give(whole, "prices", upto(prices(), "k", HOURS - late))
    full = make(whole, spec)
    assert_same(rows_of(grown, made), rows_of(whole, full))
    for name in ("splits", "dropped", "features", "encoders"):
        assert made.details[name] == full.details[name], name


@pytest.mark.parametrize(
    "until",
    [
        pytest.param("2020-01-31T12:00", marks=pytest.mark.long),
        "2020-02-04",
        pytest.param("2020-03-01", marks=pytest.mark.long),
    ],
)
def test_appended_rows_of_a_label_that_is_known_until_a_time(case: DatasetCase, until: str) -> None:
    """Of events before that time, which may come later, and after it."""
    label = replace(GONE, known_until=until)
    spec = replace(SPEC, label=label, windows=(), encoders=(), incremental=True)
    full = make(case, replace(spec, incremental=False))
    give(case, "events", upto(events(), "t", HOURS - 200))
    give(case, "prices", upto(prices(), "k", HOURS - 200))
    made = make(case, spec)
    append(case, "events", events().slice(upto(events(), "t", HOURS - 200).num_rows))
    append(case, "prices", prices().slice(upto(prices(), "k", HOURS - 200).num_rows))
    assert_same(rows_of(case, make(case, spec, made)), rows_of(case, full))


def files(case: DatasetCase, output: Output) -> list[Path]:
    return sorted((case.folder / "root" / output.uri).glob("*.parquet"))


def test_all_is_computed_where_more_than_later_rows_came(
    case: DatasetCase, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = replace(SPEC, incremental=True)
    give(case, "events", upto(events(), "t", HOURS - 100))
    made = make(case, spec)
    append(case, "events", events().slice(0, 3))
    again = make(case, spec, made)
    assert again.details["kept_rows"] == 0
    assert "events got rows from 2020-01-01" in capsys.readouterr().out
    give(case, "events", upto(events(), "t", HOURS - 50))
    assert make(case, spec, again).details["kept_rows"] == 0
    assert "were replaced" in capsys.readouterr().out
    other = replace(spec, windows=spec.windows[:1])
    assert make(case, other, again).details["kept_rows"] == 0
    assert "declaration has changed" in capsys.readouterr().out


def test_an_attempt_after_a_crash_makes_the_same(case: DatasetCase) -> None:
    """What a killed attempt left behind is in nobody's way: same rows, byte for byte."""
    context = case.context(SPEC)
    draft = context.below_root(context.order.output_uri)
    draft = draft.with_name(f".{draft.name}.draft")
    (draft / "raw").mkdir(parents=True)
    (draft / "raw" / "part-00000.parquet").write_bytes(b"half of a file")
    (draft / "part-00000.parquet").write_bytes(b"half of a file")
    made, other = run(context).outputs[0], make(case, SPEC)
    assert [p.read_bytes() for p in files(case, made)] == [p.read_bytes() for p in files(case, other)]
    assert not draft.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": Split(validation=0.1, test=0.1)}, "split at times"),
        ({"label": Label(column="x", steps=2)}, "count rows ahead"),
        (
            {"windows": (Window(column="next", aggregates=(Aggregate.MEAN,), span_rows=2),)},
            "windows over labels",
        ),
    ],
)
def test_what_cannot_grow_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(SPEC, incremental=True, **change).check()
