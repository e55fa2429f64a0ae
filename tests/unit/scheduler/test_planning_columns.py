"""What is said, before a run, of columns that are named and not there."""

from dataclasses import replace

import pytest

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
from gridmill.domain.job import Job
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.scheduler.missing_columns import Known, columns_of, missing, missing_text

KNOWN = {"sales": ("shop", "day", "sold"), "shops": ("shop", "City"), "prices": ("shop", "since", "price")}
BASIS = Basis(table="sales", time="day", entity=("shop",))
GOOD = DatasetSpec(
    basis=BASIS,
    joins=(Join(table="shops", on=("shop",), columns=("City",)),),
    asof_joins=(AsOfJoin(table="prices", on=("shop",), known_at="since", columns=("price",)),),
    windows=(
        Window(column="sold", span_seconds=60.0, aggregates=(Aggregate.MEAN,)),
        Window(column="label", span_seconds=60.0, aggregates=(Aggregate.MEAN,)),
        Window(
            table="prices",
            column="price",
            known_at="since + INTERVAL 1 DAY",
            span_rows=3,
            aggregates=(Aggregate.MAX,),
        ),
    ),
    lags=(Lag(column="sold", steps=(1,)),),
    features={"twice": "2 * nothing_is_said_of_this"},
    label=Label(column="sold", horizon_seconds=60.0),
)


def missing_texts(job: Job, known: Known) -> tuple[str, ...]:
    return tuple(missing_text(one, known) for one in missing(columns_of(job), known))


def said(spec: DatasetSpec) -> tuple[str, ...]:
    return missing_texts(Job(name="d", dataset=spec), KNOWN)


def test_nothing_is_said_where_all_is_there_or_nobody_knows() -> None:
    assert said(GOOD) == ()
    assert missing_texts(Job(name="d", dataset=replace(GOOD, basis=replace(BASIS, time="dya"))), {}) == ()
    assert said(DatasetSpec(sql="select nothing from sales", tables=("sales",))) == ()


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            replace(GOOD, basis=replace(BASIS, time="dya")),
            "dataset.basis.time: 'sales' has no 'dya'; did you mean `day`?",
        ),
        (
            replace(GOOD, lags=(Lag(column="zzz", steps=(1,)),)),
            "dataset.lags[0].column: 'sales' has no 'zzz'; it has shop, day, sold",
        ),
        (
            replace(GOOD, joins=(Join(table="shops", on=("shop",), columns=("city",)),)),
            "dataset.joins[0].columns: 'shops' has no 'city'; did you mean `City`?",
        ),
        (
            replace(GOOD, asof_joins=(AsOfJoin(table="prices", on=("shop",), known_at="sinse"),)),
            "dataset.asof_joins[0].known_at: 'prices' has no 'sinse'; did you mean `since`?",
        ),
        (
            replace(GOOD, label=Label(column="slod", horizon_seconds=60.0)),
            "dataset.label.column: 'sales' has no 'slod'; did you mean `sold`?",
        ),
        (
            replace(
                GOOD,
                label=Label(
                    table="prices", on=("shp",), known_at="since", horizon_seconds=60.0, outcome=LabelRule.ANY
                ),
            ),
            "dataset.label.on: 'sales' has no 'shp'; did you mean `shop`?",
        ),
    ],
)  # fmt: skip
def test_a_column_that_is_not_there_is_named_with_its_field(spec: DatasetSpec, text: str) -> None:
    assert text in said(spec)


def test_all_are_said() -> None:
    wrong = replace(GOOD, basis=replace(BASIS, columns=("a", "sold", "b")))
    assert len(said(wrong)) == 2


def test_features_of_a_training_are_those_of_its_dataset() -> None:
    spec = TrainingSpec(dataset="d", model=ModelKind.LINEAR, features=("sold_lag_1", "sold_lag_9"))
    found = missing_texts(Job(name="m", training=spec), {"d": ("sold_lag_1", "sold_mean")})
    assert found == ("training.features: 'd' has no 'sold_lag_9'; did you mean `sold_lag_1`?",)


def test_the_same_letters_in_another_case_count_if_case_is_ignored():
    job = Job(name="d", dataset=replace(GOOD, basis=replace(BASIS, time="DAY")))
    assert [one.column for one in missing(columns_of(job), KNOWN)] == ["DAY"]
    assert missing(columns_of(job), KNOWN, ignore_case=True) == ()
