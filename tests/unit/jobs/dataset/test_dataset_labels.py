"""Labels of several rows and columns, labels that are known late, and every way to split."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from tests.kit.dataset_case import DatasetCase

from gridmill.domain.dataset import (
    Aggregate,
    AsOfJoin,
    Basis,
    DatasetSpec,
    Encoder,
    Join,
    Label,
    LabelRule,
    Lag,
    Method,
    Split,
    SplitBy,
    Window,
)
from gridmill.errors import DataError, InputError

START = datetime(2020, 1, 1, tzinfo=UTC)
BASIS = Basis(table="obs", time="t", entity=("e",))


@pytest.fixture
def case(tmp_path: Path) -> DatasetCase:
    case = DatasetCase(tmp_path)
    times = [START + timedelta(hours=n) for n in range(40)]
    case.give(
        "obs",
        {
            "e": [f"e{n // 40}" for n in range(400)],
            "t": times * 10,
            "x": [float(n) for n in range(400)],
            "y": [n * 10 for n in range(400)],
            "known": [time + timedelta(hours=5) for time in times] * 10,
        },
    )
    return case


def test_the_next_rows_of_several_columns_are_a_label_each(case: DatasetCase) -> None:
    output = case.make(DatasetSpec(basis=BASIS, label=Label(columns=("x", "y"), next_rows=3, name="ahead")))
    rows = case.table(output).to_pylist()
    names = [f"{column}_ahead_{step}" for step in (1, 2, 3) for column in ("x", "y")]
    assert [column.name for column in output.columns][-6:] == names
    assert len(rows) == 10 * 37
    for row in rows:
        assert [row[name] - row["x"] * (10 if name[0] == "y" else 1) for name in names] == [
            1,
            10,
            2,
            20,
            3,
            30,
        ]
    details = output.details
    assert details["labels"][3] == {"name": "y_ahead_2", "column": "y", "step": 2}
    assert {"x", "y"} <= set(details["features"])
    assert not set(names) & set(details["features"])
    assert details["dropped"] == {"no label": 30}


def test_a_missing_value_among_the_next_rows_leaves_no_label(case: DatasetCase) -> None:
    times = [START + timedelta(hours=n) for n in range(6)]
    for gap in (None, float("nan")):
        case.give("obs", {"e": ["a"] * 6, "t": times, "x": [0.0, 1.0, gap, 3.0, 4.0, 5.0]})
        rows = case.rows(DatasetSpec(basis=BASIS, label=Label(column="x", next_rows=2)))
        assert [(row["x_label_1"], row["x_label_2"]) for row in rows] == [(3, 4), (4, 5)]


def test_rows_at_the_same_time_do_not_see_each_other_ahead(case: DatasetCase) -> None:
    times = [START + timedelta(hours=n) for n in (0, 0, 1, 1, 2)]
    case.give("obs", {"e": ["a"] * 5, "t": times, "x": [0.0, 1.0, 2.0, 3.0, 4.0]})
    rows = case.rows(DatasetSpec(basis=BASIS, label=Label(column="x", next_rows=1)))
    assert [row["x_label_1"] for row in rows] == [2, 2, 4, 4]


@pytest.mark.parametrize(
    ("label", "kept"),
    [
        (Label(column="x", name="l"), 20),
        (Label(column="x", name="l", delay_seconds=3 * 3600), 17),
        (Label(column="x", name="l", known_at="known"), 15),
        (Label(column="x", name="l", known_at="known - INTERVAL 1 HOUR", delay_seconds=7200), 14),
        (Label(column="x", name="l", horizon_seconds=7200), 18),
        (Label(column="x", name="l", horizon_seconds=7200, known_at="known"), 13),
        (Label(column="x", name="l", steps=2, delay_seconds=7200), 16),
        (Label(column="x", name="l", next_rows=2, known_at="known"), 13),
    ],
)
def test_no_training_label_is_known_after_validation_begins(
    case: DatasetCase, label: Label, kept: int
) -> None:
    split = Split(validation_from="2020-01-01T20:00:00")
    output = case.make(DatasetSpec(basis=BASIS, label=label, split=split))
    assert output.details["splits"]["train"] == 10 * kept


def test_a_split_has_an_end(case: DatasetCase) -> None:
    split = Split(test_from="2020-01-01T20:00:00", until="2020-01-01T30:00:00".replace("T30", "T23"))
    output = case.make(DatasetSpec(basis=BASIS, label=Label(column="x", steps=1), split=split))
    assert output.details["splits"] == {"test": 20, "train": 190}
    assert output.details["dropped"] == {
        "after the end of the splits": 170,
        "label reaches into the next split": 20,
    }
    assert output.details["bounds"]["until"] == "2020-01-01T23:00:00Z"


def test_seven_hours_of_training_of_gap_and_of_test(case: DatasetCase) -> None:
    split = Split(test_from="2020-01-01T14:00:00", until="2020-01-01T21:00:00", gap_seconds=7 * 3600)
    output = case.make(DatasetSpec(basis=BASIS, label=Label(column="y"), split=split))
    hours: dict[str, set[int]] = {}
    for row in case.table(output).to_pylist():
        hours.setdefault(row["split"], set()).add(row["t"].hour)
    assert hours == {"train": set(range(7)), "test": set(range(14, 21))}
    assert output.details["dropped"] == {"after the end of the splits": 190, "in the gap before a split": 70}


@pytest.mark.parametrize(
    ("split", "dropped"),
    [
        (Split(validation=0.25, test=0.25, gap_seconds=2 * 3600), 40),
        (Split(validation_from="2020-01-01T10:00:00", test_from="2020-01-01T20:00:00", gap_seconds=3600), 20),
        (Split(validation_from="2020-01-01T10:00:00", gap_seconds=3600), 10),
    ],
)
def test_a_gap_is_before_validation_and_before_test(case: DatasetCase, split: Split, dropped: int) -> None:
    output = case.make(DatasetSpec(basis=BASIS, label=Label(column="y"), split=split))
    assert output.details["dropped"] == {"in the gap before a split": dropped}
    rows = case.table(output).to_pylist()
    of = [[row["t"] for row in rows if row["split"] == name] for name in ("train", "validation", "test")]
    for earlier, later in pairwise(filter(None, of)):
        assert (min(later) - max(earlier)).total_seconds() > split.gap_seconds


def test_a_label_may_reach_into_the_gap(case: DatasetCase) -> None:
    split = Split(test_from="2020-01-01T20:00:00", gap_seconds=2 * 3600)
    for ahead, reaching in ((1, 0), (2, 0), (3, 10)):
        label = Label(column="y", horizon_seconds=ahead * 3600)
        dropped = case.make(DatasetSpec(basis=BASIS, label=label, split=split)).details["dropped"]
        assert dropped["in the gap before a split"] == 20
        assert dropped.get("label reaches into the next split", 0) == reaching


def test_a_gap_that_leaves_nothing_to_train_on_is_refused(case: DatasetCase) -> None:
    split = Split(test_from="2020-01-01T20:00:00", gap_seconds=20 * 3600)
    with pytest.raises(InputError, match=r"test begins at 2020-01-01 20:00 after a gap of 20 h"):
        case.make(DatasetSpec(basis=BASIS, label=Label(column="y"), split=split))


def test_a_random_split_stays_when_rows_are_added(case: DatasetCase) -> None:
    split = Split(by=SplitBy.RANDOM, validation=0.25, test=0.25, seed=3)
    spec = DatasetSpec(basis=BASIS, label=Label(column="y"), split=split)
    whole = {(row["e"], row["t"]): row["split"] for row in case.rows(spec)}
    shares = {name: list(whole.values()).count(name) / len(whole) for name in set(whole.values())}
    assert shares == pytest.approx({"train": 0.5, "validation": 0.25, "test": 0.25}, abs=0.08)
    table = case.table(case.tables["obs"])
    case.give("obs", table.slice(0, 200))
    half = {(row["e"], row["t"]): row["split"] for row in case.rows(spec)}
    assert half.items() <= whole.items()
    other = DatasetSpec(basis=BASIS, label=Label(column="y"), split=Split(by=SplitBy.RANDOM, test=0.25))
    assert {(row["e"], row["t"]): row["split"] for row in case.rows(other)} != half


def test_no_entity_is_in_two_splits(case: DatasetCase) -> None:
    split = Split(by=SplitBy.ENTITY, validation=0.3, test=0.3, seed=1)
    rows = case.rows(DatasetSpec(basis=BASIS, label=Label(column="y"), split=split))
    places = {(row["e"], row["split"]) for row in rows}
    assert len(places) == len({entity for entity, _ in places}) == 10
    assert {name for _, name in places} == {"train", "validation", "test"}


def test_entities_and_times_must_agree_where_both_split(case: DatasetCase) -> None:
    split = Split(by=SplitBy.ENTITY, test=0.4, seed=1, test_from="2020-01-01T20:00:00")
    output = case.make(DatasetSpec(basis=BASIS, label=Label(column="y"), split=split))
    rows = case.table(output).to_pylist()
    entities = {name: {r["e"] for r in rows if r["split"] == name} for name in ("train", "test")}
    assert entities["train"].isdisjoint(entities["test"])
    assert max(row["t"] for row in rows if row["split"] == "train") < min(
        row["t"] for row in rows if row["split"] == "test"
    )
    assert output.details["dropped"] == {"in one split by time, in another by chance or entity": 200}


@pytest.mark.parametrize(
    ("noun", "message"),
    [
        (Label(column="x", steps=1, horizon_seconds=5), "has horizon and steps"),
        (Label(), "needs one of column, columns"),
        (Label(columns=("x", "y")), "a label that spans several rows cannot have several columns"),
        (Split(seed=4), "need `by: random`"),
        (Split(by=SplitBy.RANDOM, test_from="2020-01-02"), "needs shares"),
        (Split(test_from="2020-01-02", until="2020-01-01"), "test begins at .* not before the end"),
        (Split(gap_seconds=60), "needs a validation or test split"),
        (Split(by=SplitBy.RANDOM, test=0.2, gap_seconds=60), "the splits have no times"),
        (
            Split(validation_from="2020-01-01", test_from="2020-01-02", gap_seconds=86400),
            "the validation split would be empty",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(noun: Label | Split, message: str) -> None:
    with pytest.raises(InputError, match=message):
        noun.check()


def test_rows_with_a_missing_value_are_dropped_where_it_is_required(case: DatasetCase) -> None:
    basis = Basis(table="obs", time="t", entity=("e",), columns=("x",))
    lags = (Lag(column="x", steps=(2,)),)
    output = case.make(DatasetSpec(basis=basis, lags=lags, required=("x_lag_2", "y")))
    assert output.details["dropped"] == {"missing value": 20}
    with pytest.raises(InputError, match="has no column 'zz'"):
        case.make(DatasetSpec(basis=basis, required=("zz",)))


MEAN = (Aggregate.COUNT, Aggregate.MAX)


@pytest.mark.parametrize("table", [None, "obs"])
@pytest.mark.parametrize("name", ["x", "late"])
def test_a_value_that_is_a_delayed_label_is_not_seen_before_it_is_known(
    case: DatasetCase, name: str, table: str | None
) -> None:
    spec = DatasetSpec(
        basis=BASIS,
        windows=(Window(column="x", aggregates=MEAN, span_seconds=86400, table=table),),
        lags=(Lag(column="x", steps=(1,), table=table),),
        label=Label(column="x", delay_seconds=5 * 3600, name=name),
    )
    rows = case.rows(spec)[:40]
    assert [row["x_count_1d"] for row in rows[:8]] == [0, 0, 0, 0, 0, 0, 1, 2]
    assert rows[10]["x_max_1d"] == rows[10]["x_lag_1"] == 4.0
    own = replace(spec, windows=(replace(spec.windows[0], known_at="t"),), lags=())
    assert [row["x_count_1d"] for row in case.rows(own)[:8]] == [0, 0, 0, 0, 0, 0, 1, 2]
    exempt = replace(own, windows=(replace(own.windows[0], exempt="it is public"),))
    assert [row["x_count_1d"] for row in case.rows(exempt)[:3]] == [0, 1, 2]


@pytest.mark.parametrize(
    "label",
    [Label(column="x", delay_seconds=5 * 3600), Label(column="x", known_at="known -- landed")],
    ids=["delay", "known_at"],
)
def test_an_as_of_join_of_the_rows_themselves_sees_late_labels_once_they_are_known(
    case: DatasetCase, label: Label
) -> None:
    join = AsOfJoin(table="obs", on=("e",), known_at="t", prefix="last_")
    rows = case.rows(DatasetSpec(basis=BASIS, asof_joins=(join,), label=label))[:40]
    assert [row["last_x"] for row in rows[:8]] == [None] * 6 + [0.0, 1.0]
    assert [row["last_y"] for row in rows[:3]] == [None, 0, 10]
    later = replace(join, known_at="t + INTERVAL 7 HOUR", columns=("x",))
    rows = case.rows(DatasetSpec(basis=BASIS, asof_joins=(later,), label=label))[:40]
    assert [row["last_x"] for row in rows[:10]] == [None] * 8 + [0.0, 1.0]


def test_an_as_of_join_sees_no_label_that_is_never_known(case: DatasetCase) -> None:
    never = Label(column="x", known_at="CASE WHEN x % 2 = 0 THEN known END")
    join = AsOfJoin(table="obs", on=("e",), known_at="t", columns=("x",), prefix="last_")
    rows = case.rows(DatasetSpec(basis=BASIS, asof_joins=(join,), label=never))
    assert {row["last_x"] % 2 for row in rows if row["last_x"] is not None} == {0}


def test_a_label_of_rows_that_are_known_late_is_known_late(case: DatasetCase) -> None:
    spec = DatasetSpec(
        basis=replace(BASIS, known_at="known"),
        windows=(Window(column="label", aggregates=MEAN, span_seconds=86400),),
        label=Label(column="x", steps=1),
        split=Split(validation_from="2020-01-01T20:00", test_from="2020-01-02T04:00"),
    )
    output = case.make(spec)
    rows = [row for row in case.table(output).to_pylist() if row["e"] == "e0"]
    assert [row["label_count_1d"] for row in rows[:9]] == [0, 0, 0, 0, 0, 0, 0, 1, 2]
    assert [row["t"].hour for row in rows if row["split"] == "train"] == list(range(14))
    explicit = replace(spec, label=Label(column="x", steps=1, known_at="t"))
    assert case.rows(explicit)[2]["label_count_1d"] == 1


def test_a_column_that_was_encoded_away_cannot_be_encoded_again(case: DatasetCase) -> None:
    split, wanted = Split(test=0.2), (Method.ONEHOT, Method.ORDINAL)
    coded = tuple(Encoder(columns=("y",), method=method, most=2) for method in wanted)
    with pytest.raises(
        InputError, match="'y' does not exist any more: the encoder `onehot` replaced it by y_0, y_10"
    ):
        case.make(DatasetSpec(basis=BASIS, split=split, encoders=coded))
    kept = tuple(replace(one, keep=True, method=Method.ORDINAL) for one in coded)
    with pytest.raises(InputError, match="two encoders `ordinal` encode the column 'y'"):
        case.make(DatasetSpec(basis=BASIS, split=split, encoders=kept))


@pytest.mark.parametrize(
    ("noun", "message"),
    [
        (Window(column="x", aggregates=(), span_rows=2), "names no aggregates"),
        (Join(table="obs", on=()), "names no columns to join on"),
        (Label(column="x", name="split"), "a label cannot be called 'split'"),
        (Label(column="x", name=""), "a label cannot be called ''"),
        (Label(column="x", columns=("x",), next_rows=2), "has column and columns"),
        (DatasetSpec(basis=BASIS, features={"split": "1"}), "a feature cannot be called 'split'"),
    ],
)
def test_what_makes_nothing_or_takes_a_kept_name_is_refused(
    noun: Window | Join | Label | DatasetSpec, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        noun.check()


def test_the_label_of_several_rows_at_once_is_known_with_the_one_that_it_is_of(tmp_path: Path) -> None:
    """Of two rows at the label's time one has no value: when that one is known says nothing of the other."""
    case = DatasetCase(tmp_path)
    first, then, later = (START + timedelta(hours=n) for n in (0, 1, 9))
    times = {"t": [first, then, then, later], "k": [first, later, then, later]}
    case.give("obs", {"e": ["a"] * 4, "x": [1.0, 2.0, None, 5.0], "y": [1, 1, 2, 1], **times})
    spec = DatasetSpec(
        basis=Basis(table="obs", time="t", entity=("e",)),
        label=Label(column="x", horizon_seconds=3600, known_at="k"),
        split=Split(test_from=(START + timedelta(hours=3)).isoformat()),
    )
    with pytest.raises(DataError, match="label reaches into the next split: 1"):
        case.make(spec)


def test_a_label_may_be_called_like_the_column_that_it_is_a_later_value_of(case: DatasetCase) -> None:
    basis = replace(BASIS, columns=("y",))
    for label in (Label(column="x", horizon_seconds=7200, name="x"), Label(column="x", steps=2, name="x")):
        spec = DatasetSpec(
            basis=basis,
            label=label,
            windows=(Window(column="y", aggregates=(Aggregate.COUNT,), span_rows=2),),
        )
        rows = case.rows(spec)
        assert len(rows) == 10 * 38
        assert all(row[label.name] == row["y"] / 10 + 2 for row in rows)
        split = Split(by=SplitBy.RANDOM, on=("x",), test=0.5)
        with pytest.raises(InputError, match="is the name of both the label and a column"):
            case.make(replace(spec, split=split))


def test_windows_see_the_labels_of_earlier_rows_that_are_made_of_events(case: DatasetCase) -> None:
    """A row of hour n has the events of the two hours after it; that is known at hour n + 2."""
    hours = [1, 3, 4, 9]
    case.give("exits", {"e": ["e0"] * 4, "k": [START + timedelta(hours=n) for n in hours]})
    label = Label(
        table="exits",
        on=("e",),
        known_at="k",
        horizon_seconds=7200,
        outcome=LabelRule.COUNT,
        known_until="basis",
        name="ends",
    )
    window = Window(column="ends", aggregates=(Aggregate.SUM, Aggregate.COUNT), span_rows=3)
    rows = [
        row for row in case.rows(DatasetSpec(basis=BASIS, label=label, windows=(window,))) if row["e"] == "e0"
    ]
    labels = [sum(n < hour <= n + 2 for hour in hours) for n in range(40)]
    assert [row["ends"] for row in rows] == labels[:38]
    for n, row in enumerate(rows):
        known = labels[: max(0, n - 2)][-3:]
        assert (row["ends_sum_3rows"], row["ends_count_3rows"]) == (sum(known) if known else None, len(known))


def test_a_label_of_several_rows_is_no_value_to_look_back_at(case: DatasetCase) -> None:
    label = Label(column="x", next_rows=2, name="ahead")
    with pytest.raises(InputError, match="several rows ahead"):
        case.make(DatasetSpec(basis=BASIS, label=label, lags=(Lag(column="ahead", steps=(1,)),)))


def test_a_required_feature_that_is_not_a_number_is_missing(case: DatasetCase) -> None:
    features = {"root": "CASE WHEN x > 300 THEN 'nan'::DOUBLE ELSE x END", "text": "CAST(x AS VARCHAR)"}
    output = case.make(DatasetSpec(basis=BASIS, features=features, required=("root", "text")))
    assert (output.rows, output.details["dropped"]) == (301, {"missing value": 99})
