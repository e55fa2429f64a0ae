"""No part of a dataset reads a label before it is known, whatever its `known_at` says."""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.kit.dataset_case import DatasetCase

from gridmill.domain.artifact import Artifact, ArtifactKind, Input, Output
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
    SplitBy,
    Window,
)
from gridmill.domain.remarks import remarks_of
from gridmill.errors import DataError, InputError
from gridmill.jobs.dataset.run import run
from gridmill.jobs.dataset.suspicious_features import suspect_lines, suspects

START = datetime(2020, 1, 1, tzinfo=UTC)
BASIS = Basis(table="tx", time="t", entity=("e",))
DAY = 86400.0
DELAYED = Label(column="f", delay_seconds=7 * DAY)
COUNT = (Aggregate.COUNT, Aggregate.LAST)


def rows_of(seed: int = 0, count: int = 60) -> list[dict[str, object]]:
    """Transactions of three users over 40 days; `late` is when something became known of one."""
    draw = random.Random(seed)
    made = []
    for number in range(count):
        time = START + timedelta(hours=draw.randrange(40 * 24))
        late = None if draw.random() < 0.1 else time + timedelta(hours=draw.randrange(-48, 300))
        made.append(
            {"id": number, "e": draw.choice("abc"), "t": time, "late": late, "f": number, "x": float(number)}
        )
    return made


def case_of(folder: Path, rows: list[dict[str, object]]) -> DatasetCase:
    case = DatasetCase(folder)
    case.give("tx", pa.Table.from_pylist(rows))
    return case


def made(case: DatasetCase, spec: DatasetSpec) -> dict[int, dict[str, object]]:
    return {row["id"]: row for row in case.rows(spec)}


def known_by(rows: list[dict[str, object]], row: dict[str, object], known: object) -> list[dict[str, object]]:
    """The entity's rows that were known strictly before the row's time, in the order in which they were."""
    seen = [(known(one), one) for one in rows if one["e"] == row["e"] and known(one) is not None]
    return [one for at, one in sorted(seen, key=lambda pair: (pair[0], pair[1]["f"])) if at < row["t"]]


def later(*times: datetime | None) -> datetime | None:
    return None if None in times else max(times)


KNOWN_AT = {
    "t": lambda row: row["t"],
    "t - INTERVAL 1 DAY": lambda row: row["t"] - timedelta(days=1),
    "late": lambda row: row["late"],
    "t + INTERVAL 9 DAY": lambda row: row["t"] + timedelta(days=9),
    "CASE WHEN f % 2 = 0 THEN t END -- of the label": lambda row: row["t"] if row["f"] % 2 == 0 else None,
}
LABELS = {
    "delay": (DELAYED, lambda row: row["t"] + timedelta(days=7)),
    "known_at": (Label(column="f", known_at="late"), lambda row: row["late"]),
    "both": (
        Label(column="f", known_at="late", delay_seconds=DAY),
        lambda row: row["late"] and row["late"] + timedelta(days=1),
    ),
    "at once": (Label(column="f"), lambda row: row["t"]),
    "other name": (Label(column="f", name="y", delay_seconds=DAY), lambda row: row["t"] + timedelta(days=1)),
}


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("known_at", KNOWN_AT)
@pytest.mark.parametrize(
    "table", [None, *(pytest.param(one, marks=pytest.mark.long) for one in ("tx", "copy"))]
)
def test_a_part_over_the_label_sees_it_once_it_is_known(tmp_path, label, known_at, table):
    rows = rows_of(len(label) + len(known_at))
    case = case_of(tmp_path, rows)
    case.tables["copy"] = case.tables["tx"]
    declared, clock = LABELS[label]
    from_ = table or "tx"
    spec = DatasetSpec(
        basis=BASIS,
        windows=(
            Window(column="f", aggregates=COUNT, span_seconds=400 * DAY, table=table, known_at=known_at),
            Window(column="x", aggregates=COUNT, span_seconds=400 * DAY, table=table, known_at=known_at),
        ),
        lags=(Lag(column="f", steps=(1,), table=table, known_at=known_at),),
        asof_joins=(AsOfJoin(table=from_, known_at=known_at, on=("e",), columns=("f",), prefix="last_"),),
        joins=(Join(table=from_, known_at=known_at, on=("id",), columns=("f", "x"), prefix="same_"),),
        label=declared,
    )
    decides = "CASE" in known_at
    found = made(case, spec)
    assert found

    def mine(row: dict[str, object]) -> datetime | None:
        return later(KNOWN_AT[known_at](row), clock(row))

    for row in (one for one in rows if one["id"] in found):
        got, seen = found[row["id"]], known_by(rows, row, mine)
        last = seen[-1]["f"] if seen else None
        assert got["f_count_400d"] == len(seen)
        assert (got["f_last_400d"], got["f_lag_1"], got["last_f"]) == (last, last, last)
        plain = known_by(rows, row, mine if decides else KNOWN_AT[known_at])
        assert got["x_count_400d"] == len(plain)
        at = mine(row)
        assert got["same_f"] == (row["f"] if at is not None and at < row["t"] else None)
        if label not in ("known_at", "both"):
            assert got["same_f"] is None


def test_an_exemption_is_needed_and_shown(tmp_path):
    rows = rows_of()
    case = case_of(tmp_path, rows)
    window = Window(column="f", aggregates=COUNT, span_seconds=400 * DAY, table="tx", known_at="t")
    asof = AsOfJoin(table="tx", known_at="t", on=("e",), columns=("f",), prefix="last_")
    spec = DatasetSpec(basis=BASIS, windows=(window,), asof_joins=(asof,), label=DELAYED)
    kept = {id_: row["f_count_400d"] for id_, row in made(case, spec).items()}
    why = "labels of the shop are public at once"
    exempt = replace(spec, windows=(replace(window, exempt=why),), asof_joins=(replace(asof, exempt=why),))
    early = made(case, exempt)
    assert sum(row["f_count_400d"] for row in early.values()) > sum(kept.values())
    for row in rows:
        seen = known_by(rows, row, lambda one: one["t"])
        assert early[row["id"]]["f_count_400d"] == len(seen)
        assert early[row["id"]]["last_f"] == (seen[-1]["f"] if seen else None)
    lines = remarks(case.make(exempt))
    assert f"windows: f of tx can hold a label before it is known (exempt: {why})" in lines
    assert f"asof_joins: f of tx can hold a label before it is known (exempt: {why})" in lines


def remarks(output: Output) -> list[str]:
    version = Artifact(id="p/d@1", name="p/d", number=1, output=output, fingerprint="")
    return [one.text for one in remarks_of(version)]


def test_a_time_that_the_label_overrules_is_shown(tmp_path):
    case = case_of(tmp_path, rows_of())
    window = Window(column="f", aggregates=COUNT, span_seconds=DAY, known_at="t")
    lines = remarks(case.make(DatasetSpec(basis=BASIS, windows=(window,), label=DELAYED)))
    assert (
        "f with `known_at: t` contains a label only from the time at which the label is known: 7d after `t`"
        in lines
    )


def test_a_copy_that_another_job_loaded_or_made_has_the_same_clock(tmp_path):
    rows = rows_of()
    case = case_of(tmp_path, rows)
    case.give("loaded_again", pa.Table.from_pylist(rows))
    view = case.make(DatasetSpec(sql="SELECT e, t, f, x * 2 AS z FROM tx", tables=("tx",)), "view")
    short = case.make(DatasetSpec(sql="SELECT e, t AS moment, f FROM tx", tables=("tx",)), "short")
    window = Window(column="f", aggregates=COUNT, span_seconds=400 * DAY, known_at="t")
    own = case.rows(DatasetSpec(basis=BASIS, windows=(window,), label=DELAYED))

    def with_table(name: str, known_at: str = "t", exempt: str = "") -> list[dict[str, object]]:
        part = replace(window, table=name, known_at=known_at, exempt=exempt)
        context = case.context(DatasetSpec(basis=BASIS, windows=(part,), label=DELAYED))
        inputs = tuple(
            Input(
                name=key,
                artifact=Artifact(
                    id=f"p/{key}@1",
                    name=f"p/{key}",
                    number=1,
                    output=output,
                    fingerprint="",
                    made_from=("p/tx@1",) if output.kind == ArtifactKind.DATASET else (),
                ),
            )
            for key, output in case.tables.items()
        )
        object.__setattr__(context, "order", replace(context.order, inputs=inputs))
        return case.table(run(context).outputs[0]).to_pylist()

    assert view.kind == short.kind == ArtifactKind.DATASET
    assert with_table("loaded_again") == own
    assert with_table("view") == own
    with pytest.raises(
        InputError, match=r"the label's column .* 'short' has no column 't' to compute this time from"
    ):
        with_table("short", "moment")
    assert with_table("short", "moment", "checked by hand") != own


def test_a_table_of_its_own_with_a_column_of_that_name_keeps_its_clock(tmp_path):
    rows = rows_of()
    case = case_of(tmp_path, rows)
    case.give("news", pa.Table.from_pylist([{"e": row["e"], "at": row["t"], "f": row["f"]} for row in rows]))
    part = Window(column="f", aggregates=COUNT, span_seconds=400 * DAY, table="news", known_at="at")
    found = made(case, DatasetSpec(basis=BASIS, windows=(part,), label=DELAYED))
    for row in rows:
        assert found[row["id"]]["f_count_400d"] == len(known_by(rows, row, lambda one: one["t"]))


def test_the_later_value_of_a_column_that_is_no_feature_is_known_late(tmp_path):
    rows = rows_of()
    case = case_of(tmp_path, rows)
    label = Label(column="f", horizon_seconds=3600, delay_seconds=7 * DAY, name="y")
    windows = (
        Window(column="f", aggregates=COUNT, span_seconds=400 * DAY),
        Window(column="f", aggregates=COUNT, span_seconds=400 * DAY, known_at="t", prefix="own_"),
    )
    rows += [row | {"id": row["id"] + 100, "t": row["t"] + timedelta(hours=1)} for row in rows]
    case.give("tx", pa.Table.from_pylist(rows))
    spec = DatasetSpec(basis=replace(BASIS, columns=("id", "x")), windows=windows, label=label)
    found = made(case, spec)
    assert found
    for row in (one for one in rows if one["id"] in found):
        seen = len(known_by(rows, row, lambda one: one["t"] + timedelta(days=7)))
        assert found[row["id"]]["f_count_400d"] == found[row["id"]]["own_f_count_400d"] == seen
    shown = made(case, replace(spec, basis=replace(BASIS, columns=("id", "f"))))
    row = max((one for one in rows if one["id"] in shown), key=lambda one: one["t"])
    assert shown[row["id"]]["f_count_400d"] == len(known_by(rows, row, lambda one: one["t"]))


@pytest.mark.parametrize("delay", [None, 2 * DAY])
@pytest.mark.parametrize("known_at", ["seen", "seen - INTERVAL 3 DAY", "told"])
def test_events_of_the_label_are_seen_by_the_labels_clock(tmp_path, delay, known_at):
    rows = rows_of()
    case = case_of(tmp_path, rows)
    events = [
        {"e": row["e"], "seen": row["t"], "told": row["t"] + timedelta(hours=30), "f": row["f"]}
        for row in rows[:30]
    ]
    case.give("frauds", pa.Table.from_pylist(events))
    label = Label(
        table="frauds",
        on=("e",),
        known_at="told",
        horizon_seconds=2 * DAY,
        delay_seconds=delay,
        outcome=LabelRule.ANY,
        name="y",
    )
    part = Window(column="f", aggregates=COUNT, span_seconds=400 * DAY, table="frauds", known_at=known_at)
    found = made(case, DatasetSpec(basis=BASIS, windows=(part,), label=label))
    clocks = {"seen": 0, "seen - INTERVAL 3 DAY": -72, "told": 30}
    hours = max(clocks[known_at], 30 + (delay or 0) / 3600)
    seen = [row | {"t": row["seen"]} for row in events]
    for row in (one for one in rows if one["id"] in found):
        expected = known_by(seen, row, lambda one: one["seen"] + timedelta(hours=hours))
        assert found[row["id"]]["f_count_400d"] == len(expected)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            DatasetSpec(
                basis=BASIS,
                label=DELAYED,
                windows=(Window(column="x", aggregates=COUNT, span_rows=2, on=("F",)),),
            ),
            r"windows.on: 'F' is the label; its value must not decide",
        ),
        (
            DatasetSpec(basis=BASIS, label=Label(column="f"), joins=(Join(table="k", on=("f",)),)),
            r"joins.on: 'f' is the label",
        ),
        (
            DatasetSpec(basis=replace(BASIS, entity=("f",)), label=Label(column="f")),
            r"entity: 'f' is the label",
        ),
        (
            DatasetSpec(
                basis=BASIS,
                label=Label(column="f", steps=1, name="y"),
                lags=(Lag(column="y", steps=(1,), known_at="t"),),
            ),
            r"lags.known_at: 'y' is the label, which has a `known_at` of its own",
        ),
    ],
)
def test_what_would_tell_the_label_by_another_way_is_refused(spec, message):
    with pytest.raises(InputError, match=message):
        spec.check()


def test_an_exemption_from_nothing_is_refused():
    with pytest.raises(InputError, match="`exempt` needs `known_at`"):
        Window(column="f", aggregates=COUNT, span_rows=1, exempt="why").check()
    with pytest.raises(InputError, match="`exempt` needs `known_at`"):
        Lag(column="f", steps=(1,), exempt="why").check()


# features that are suspiciously close to the label


def table_of(rows: int = 500, **columns: object) -> pa.Table:
    noise = np.random.default_rng(0)
    label = noise.normal(size=rows)
    made = {
        "label": label,
        "leak": label * -3 + noise.normal(0, 0.1, rows),
        "weak": label + noise.normal(0, 1, rows),
        "constant": np.full(rows, 19.99),
        "none": np.full(rows, np.nan),
        "large": label * 1e300,
        "text": ["a"] * rows,
    }
    return pa.table(made | columns)


def test_features_close_to_the_label_are_named():
    found = suspects(table_of(), "label")
    assert [one["column"] for one in found] == ["large", "leak"]
    assert found[1]["correlation"] < -0.99
    assert "leak alone has a correlation of -" in list(suspect_lines(found))[1]


@pytest.mark.parametrize("names", [(0, 1), ("no", "yes"), (False, True)])
def test_a_feature_that_separates_two_classes_is_named(names):
    noise = np.random.default_rng(1)
    truth = noise.random(400) < 0.3
    table = table_of(
        400,
        label=[names[int(one)] for one in truth],
        leak=np.exp(10 * (truth + noise.normal(0, 0.1, 400))),
        weak=truth + noise.normal(0, 1, 400),
        large=noise.normal(size=400),
    )
    found = suspects(table, "label")
    assert [one["column"] for one in found] == ["leak"]
    assert found[0]["auc"] > 0.99
    assert "area under the ROC curve of" in next(suspect_lines(found))


def test_few_rows_and_rare_classes_raise_no_alarm():
    assert suspects(table_of(20), "label") == []
    rare = np.zeros(400)
    rare[:3] = 1
    assert suspects(table_of(400, label=rare, leak=rare), "label") == []
    assert suspects(table_of(400, label=np.ones(400)), "label") == []
    assert suspects(table_of(), None) == []


def test_a_suspicious_feature_is_a_warning_of_the_version(tmp_path):
    rows = [row | {"leak": row["f"] + 0.01, "other": (row["f"] * 37) % 11} for row in rows_of(count=300)]
    case = case_of(tmp_path, rows)
    split = Split(test=0.2, by=SplitBy.RANDOM)
    output = case.make(DatasetSpec(basis=BASIS, label=DELAYED, split=split))
    version = Artifact(id="p/d@1", name="p/d", number=1, output=output, fingerprint="")
    warnings = [one.text for one in remarks_of(version) if one.warning]
    assert any(text.startswith("leak alone has a correlation of 1.000 with the label") for text in warnings)
    assert not any("other" in text for text in warnings)


def test_a_suspect_among_hundreds_of_features_is_found(tmp_path):
    noise = np.random.default_rng(0)
    count = 200
    columns = {f"x{number}": noise.normal(size=count) for number in range(150)}
    label = noise.normal(size=count)
    case = DatasetCase(tmp_path)
    times = pa.array([1_700_000_000_000_000 + 3_600_000_000 * k for k in range(count)], pa.timestamp("us"))
    case.give("tx", {"t": times, **columns, "leak": label * 2, "y": label})
    output = case.make(DatasetSpec(basis=Basis(table="tx", time="t"), label=Label(column="y")))
    assert [one["column"] for one in output.details["suspects"]] == ["leak"]


@pytest.mark.parametrize(
    ("until", "kept"), [(None, 5), ("basis", 9), ("2024-01-08", 7), ("2024-01-08T12:00+12:00", 7)]
)
@pytest.mark.parametrize("delay", [None, DAY])
def test_events_that_end_before_the_basis_make_no_negatives(tmp_path, until, kept, delay):
    first = datetime(2024, 1, 1, tzinfo=UTC)
    rows = [{"id": n, "e": "a", "t": first + timedelta(days=n), "x": 1.0 * n} for n in range(10)]
    case = case_of(tmp_path, rows)
    case.give("exits", pa.Table.from_pylist([{"e": "a", "t": first + timedelta(days=5)}]))
    label = Label(
        table="exits",
        on=("e",),
        known_at="t",
        horizon_seconds=DAY,
        delay_seconds=delay,
        outcome=LabelRule.ANY,
        known_until=until,
        name="y",
    )
    spec = DatasetSpec(basis=replace(BASIS, columns=("id", "x")), label=label)
    output = case.make(spec)
    kept -= until == "basis" and delay is not None  # the basis says less of what is told later
    assert {row["id"]: row["y"] for row in case.table(output).to_pylist()} == {n: n == 4 for n in range(kept)}
    assert output.details["dropped"] == {"label not known yet": 10 - kept}
    said = " ".join(
        remark.text
        for remark in remarks_of(Artifact(id="p/d@1", name="p/d", number=1, output=output, fingerprint=""))
    )
    assert ("the newest event is at 2024-01-06T00:00:00" in said) == (until is None)


def test_no_event_makes_no_label(tmp_path):
    case = case_of(tmp_path, rows_of())
    case.give(
        "exits", pa.table({"e": pa.array([], pa.string()), "t": pa.array([], pa.timestamp("us", "UTC"))})
    )
    label = Label(
        table="exits", on=("e",), known_at="t", horizon_seconds=DAY, outcome=LabelRule.COUNT, name="y"
    )
    with pytest.raises(DataError, match=r"no row is left .*label not known yet: 60") as caught:
        made(case, DatasetSpec(basis=BASIS, label=label))
    assert "unless `known_until` is set" in caught.value.hint


def test_an_event_that_is_never_known_says_nothing_of_the_time_before(tmp_path):
    first = datetime(2024, 1, 1, tzinfo=UTC)
    case = case_of(
        tmp_path,
        [{"id": n, "e": "a", "t": first + timedelta(days=n), "x": 1.0 * n} for n in range(10)],
    )
    case.give("exits", pa.table({"e": ["a"] * 3, "at_": ["2024-01-06", "infinity", None]}))
    label = Label(
        table="exits",
        on=("e",),
        known_at="at_::TIMESTAMP",
        horizon_seconds=DAY,
        outcome=LabelRule.ANY,
        name="y",
    )
    output = case.make(DatasetSpec(basis=replace(BASIS, columns=("id", "x")), label=label))
    assert {row["id"]: row["y"] for row in case.table(output).to_pylist()} == {n: n == 4 for n in range(5)}


@pytest.mark.parametrize("until", ["soon", "7d"])
def test_known_until_is_a_time_or_the_basis(until):
    label = Label(
        table="e", on=("e",), known_at="t", horizon_seconds=DAY, outcome=LabelRule.ANY, known_until=until
    )
    with pytest.raises(InputError, match=r"label.known_until"):
        label.check()
    with pytest.raises(InputError, match="need `table`"):
        Label(column="x", known_until="basis").check()


def test_an_event_without_a_number_makes_no_label(tmp_path):
    first = datetime(2024, 1, 1, tzinfo=UTC)
    rows = [{"id": n, "e": "a", "t": first + timedelta(days=n), "x": 1.0 * n} for n in range(6)]
    case = case_of(tmp_path, rows)
    times = [first + timedelta(days=day, hours=12) for day in (1, 2, 3, 9)]
    case.give("exits", pa.table({"e": ["a"] * 4, "at_": times, "v": [float("nan"), 4.0, 1.0, 7.0]}))
    label = Label(
        table="exits",
        on=("e",),
        known_at="at_",
        horizon_seconds=DAY,
        outcome=LabelRule.MIN,
        column="v",
        name="y",
    )
    output = case.make(DatasetSpec(basis=replace(BASIS, columns=("id", "x")), label=label))
    assert {row["id"]: row["y"] for row in case.table(output).to_pylist()} == {2: 4.0, 3: 1.0}
    assert output.details["dropped"] == {"no label": 4}
