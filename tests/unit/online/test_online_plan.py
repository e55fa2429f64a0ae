"""The plan of features: what a request sends, what is computed by key, and what is refused."""

import pytest

from gridmill.domain.dataset import Aggregate, AsOfJoin, Basis, DatasetSpec, Join, Label, Lag, Window
from gridmill.errors import InputError
from gridmill.jobs.dataset.columns import SQL_RESULT
from gridmill.online.plan import plan_online

TABLES = {
    "obs": {"id": "VARCHAR", "t": "TIMESTAMP", "x": "DOUBLE", "y": "DOUBLE", "kind": "VARCHAR"},
    "news": {"kind": "VARCHAR", "m": "TIMESTAMP", "v": "DOUBLE", "odd": "INTEGER[]"},
    "places": {"id": "VARCHAR", "size": "BIGINT"},
}
BASIS = Basis(table="obs", time="t", entity=("id",))
DAY = 86_400.0


def window(**fields: object) -> Window:
    made: dict[str, object] = {"column": "x", "aggregates": (Aggregate.MEAN,), "span_seconds": DAY, **fields}
    return Window(**made)  # type: ignore[arg-type]


def test_a_request_sends_own_columns_and_keys_and_all_else_is_computed():
    spec = DatasetSpec(
        basis=BASIS,
        windows=(window(), window(table="news", column="v", on=("kind",), known_at="m", prefix="n_")),
        lags=(Lag(column="y", steps=(2,)),),
        joins=(Join(table="places", on=("id",)),),
    )
    plan = plan_online(spec, TABLES)
    assert dict(plan.request) == {"id": "VARCHAR", "x": "DOUBLE", "y": "DOUBLE", "kind": "VARCHAR"}
    assert set(plan.computed) == {"x_mean_1d", "n_v_mean_1d", "y_lag_2", "size"}
    assert plan.tables == ("obs", "places", "news")
    assert plan.features == ("x", "y", "kind", "size", "x_mean_1d", "y_lag_2", "n_v_mean_1d")


def test_only_what_the_model_reads_is_asked_and_stored():
    spec = DatasetSpec(
        basis=BASIS,
        windows=(window(), window(table="news", column="v", on=("kind",), known_at="m", prefix="n_")),
        features={"twice": "2 * n_v_mean_1d + x"},
    )
    plan = plan_online(spec, TABLES, features=["twice"])
    assert dict(plan.request) == {"id": "VARCHAR", "x": "DOUBLE", "kind": "VARCHAR"}
    assert plan.computed == ("n_v_mean_1d",)
    assert plan.tables == ("news",)
    assert list(plan.expressions) == ["twice"]


def test_a_feed_is_as_long_as_the_longest_window_and_lag():
    spec = DatasetSpec(
        basis=BASIS,
        windows=(
            window(),
            window(span_seconds=7 * DAY, aggregates=(Aggregate.MAX,)),
            window(span_seconds=None, span_rows=24),
        ),
        lags=(Lag(column="y", steps=(1, 48)),),
    )
    feed = plan_online(spec, TABLES).feeds[0]
    assert (feed.seconds, feed.rows) == (7 * DAY, 48)


def test_windows_over_labels_of_later_rows_are_refused_by_name():
    spec = DatasetSpec(
        basis=BASIS,
        windows=(window(column="late"), window(column="y")),
        label=Label(column="x", horizon_seconds=DAY, name="late"),
    )
    with pytest.raises(InputError) as caught:
        plan_online(spec, TABLES)
    assert "1 feature cannot be computed by key: late_mean_1d: it reads labels" in str(caught.value)
    assert "sent: [late_mean_1d]" in caught.value.hint
    plan = plan_online(spec, TABLES, sent=["late_mean_1d"])
    assert plan.request["late_mean_1d"] == "DOUBLE"
    assert plan.computed == ("y_mean_1d",)


def test_rows_of_the_declared_sql_and_values_that_cannot_be_stored_are_refused():
    sql = DatasetSpec(sql="SELECT * FROM obs", time="t", entity=("id",), windows=(window(),))
    with pytest.raises(InputError, match="the result of `sql`"):
        plan_online(sql, {**TABLES, SQL_RESULT: TABLES["obs"]})
    odd = DatasetSpec(
        basis=BASIS,
        asof_joins=(AsOfJoin(table="news", on=("kind",), known_at="m", columns=("odd",), prefix="n_"),),
    )
    with pytest.raises(InputError, match=r"n_odd: column 'odd' of news has type INTEGER\[\]"):
        plan_online(odd, TABLES)


def test_a_dataset_without_a_time_is_sent_whole():
    spec = DatasetSpec(sql="SELECT x, y FROM obs", label=Label(column="y"))
    plan = plan_online(spec, {SQL_RESULT: {"x": "DOUBLE", "y": "DOUBLE"}})
    assert (dict(plan.request), plan.feeds, plan.time) == ({"x": "DOUBLE"}, (), None)


def test_an_unknown_feature_is_refused_with_the_nearest_name():
    spec = DatasetSpec(basis=BASIS, windows=(window(),))
    with pytest.raises(InputError, match="did you mean `x_mean_1d`"):
        plan_online(spec, TABLES, features=["x_mean_1"])


def test_the_own_label_is_neither_a_feature_nor_sent():
    spec = DatasetSpec(
        basis=BASIS, windows=(window(column="y"),), label=Label(column="y", delay_seconds=60.0)
    )
    plan = plan_online(spec, TABLES)
    assert "y" not in plan.request
    assert plan.computed == ("y_mean_1d",)
    assert "__label_time" in plan.feeds[0].request.sql
