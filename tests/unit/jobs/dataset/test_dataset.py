from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.kit.dataset_case import DatasetCase

from gridmill.domain.dataset import (
    Aggregate,
    AsOfJoin,
    Basis,
    DatasetSpec,
    Join,
    Label,
    Lag,
    Split,
    SplitBy,
    Window,
)
from gridmill.errors import DataError, InputError
from gridmill.jobs.dataset.compile import SplitBounds, compile_dataset
from gridmill.jobs.expressions import expression_columns

START = datetime(2020, 1, 1, tzinfo=UTC)
BASIS = Basis(table="obs", time="t", entity=("e",))
GOLDEN = Path(__file__).parents[3] / "golden"


def hours(count: int) -> list[datetime]:
    return [START + timedelta(hours=n) for n in range(count)]


@pytest.fixture
def case(tmp_path: Path) -> DatasetCase:
    case = DatasetCase(tmp_path)
    case.give(
        "obs",
        {
            "e": ["a"] * 40 + ["b"] * 40,
            "t": hours(40) * 2,
            "x": [float(n % 7) for n in range(80)],
            "s": ["u"] * 80,
        },
    )
    case.give("places", {"e": ["a", "b", "c"], "alt": [10, 20, 30]})
    return case


# what it gives


def test_the_query_as_text() -> None:
    spec = DatasetSpec(
        basis=Basis(table="hourly", time="time", entity=("origin",), columns=("temp",)),
        joins=(Join(table="airports", on=("origin",), columns=("alt",)),),
        asof_joins=(
            AsOfJoin(
                table="weather/daily",
                on=("origin",),
                known_at="day + INTERVAL 1 DAY -- the next midnight",
                columns=("rain",),
                prefix="day_",
                within_seconds=172800,
            ),
        ),
        windows=(
            Window(column="temp", aggregates=(Aggregate.MEAN, Aggregate.LAST), span_seconds=86400),
            Window(column="wind", aggregates=(Aggregate.COUNT,), span_rows=24),
        ),
        lags=(Lag(column="temp", steps=(1, 24)),),
        features={"feels": "temp - wind / 2"},
        label=Label(column="temp", horizon_seconds=21600, name="ahead"),
        split=Split(validation_from="2013-10-01", test_from="2013-11-15"),
    )
    assert spec.basis is not None
    assert spec.split is not None
    tables = {
        "hourly": {
            "origin": "VARCHAR",
            "time": "TIMESTAMP",
            "temp": "DOUBLE",
            "wind": "BIGINT",
            "other": "BLOB",
        },
        "airports": {"origin": "VARCHAR", "alt": "BIGINT"},
        "weather/daily": {"origin": "VARCHAR", "day": "DATE", "rain": "DOUBLE"},
    }
    validation_from, test_from = spec.split.times
    bounds = SplitBounds(validation_from=validation_from, test_from=test_from)
    compiled = compile_dataset(spec, spec.basis, tables, used=("temp", "wind"), bounds=bounds)
    assert compiled.text == (GOLDEN / "dataset.sql").read_text().rstrip("\n")
    assert compiled.columns[:3] == ("origin", "time", "temp")


def test_columns_and_what_they_are(case: DatasetCase) -> None:
    output = case.make(
        DatasetSpec(
            basis=BASIS,
            joins=(Join(table="places", on=("e",)),),
            windows=(Window(column="x", aggregates=(Aggregate.MEAN,), span_rows=2),),
            features={"double": "2 * x", "day": "t::DATE"},
            label=Label(column="x", horizon_seconds=7200, name="y"),
            split=Split(validation=0.2, test=0.2),
        )
    )
    names = [column.name for column in output.columns]
    assert names == ["e", "t", "x", "s", "alt", "x_mean_2rows", "double", "day", "y", "split"]
    assert dict(zip(names, (c.type for c in output.columns), strict=True))["t"] == "timestamp[us, tz=UTC]"
    details = output.details
    assert details["features"] == ["x", "s", "alt", "x_mean_2rows", "double"]
    assert (details["label"], details["label_column"], details["time"], details["entity"]) == (
        "y",
        "x",
        "t",
        ["e"],
    )
    assert details["bounds"] == {"validation": "2020-01-01T23:24:00Z", "test": "2020-01-02T07:12:00Z"}
    assert details["splits"] == {"train": 44, "validation": 12, "test": 12}
    assert details["dropped"] == {"no label": 4, "label reaches into the next split": 8}
    assert output.rows == 68
    assert details["point_in_time"]
    assert details["columns"]["alt"]["mean"] == 15  # over the training rows


def test_no_label_of_a_split_lies_in_the_next(case: DatasetCase) -> None:
    spec = DatasetSpec(
        basis=BASIS,
        label=Label(column="x", steps=3),
        split=Split(validation_from="2020-01-02T00:00:00Z", test_from="2020-01-02T10:00:00+02:00"),
    )
    rows = case.rows(spec)
    last = {row["split"]: row["t"] for row in rows}
    assert max(row["t"] for row in rows if row["split"] == "train") == START + timedelta(hours=20)
    assert max(row["t"] for row in rows if row["split"] == "validation") == START + timedelta(hours=28)
    assert set(last) == {"train", "validation", "test"}


def test_the_rows_own_value_as_label_is_no_feature(case: DatasetCase) -> None:
    output = case.make(DatasetSpec(basis=BASIS, label=Label(column="x"), lags=(Lag(column="x", steps=(1,)),)))
    assert output.details["features"] == ["s", "x_lag_1"]
    assert output.details["label_column"] is None
    assert [c.name for c in output.columns] == ["e", "t", "s", "x_lag_1", "label"]


def test_plain_sql(case: DatasetCase) -> None:
    spec = DatasetSpec(
        tables=("obs",), sql="select e, max(t) as last, sum(x) as total from obs group by all;"
    )
    output = case.make(spec)
    assert [row["e"] for row in case.table(output).to_pylist()] == ["a", "b"]
    assert output.details["features"] == ["e", "total"]
    assert not output.details["point_in_time"]


def test_plain_sql_compares_times(case: DatasetCase) -> None:
    sql = "select * from obs where t >= TIMESTAMP '2020-01-02 12:00:00' and e = 'a'"
    assert len(case.rows(DatasetSpec(tables=("obs",), sql=sql))) == 4


def test_plain_sql_keeps_an_order_it_gives(case: DatasetCase) -> None:
    rows = case.rows(DatasetSpec(tables=("places",), sql="select * from places order by alt desc"))
    assert [row["alt"] for row in rows] == [30, 20, 10]


def test_sql_with_a_time_takes_labels_splits_and_lags(case: DatasetCase) -> None:
    output = case.make(
        DatasetSpec(
            tables=("obs", "places"),
            sql="select obs.*, alt from obs join places using (e) where x > 0",
            time="t",
            entity=("e",),
            lags=(Lag(column="x", steps=(1,)),),
            label=Label(column="x", steps=1),
            split=Split(test=0.25),
        )
    )
    assert output.details["features"] == ["x", "s", "alt", "x_lag_1"]
    assert set(output.details["splits"]) == {"train", "test"}


def test_datasets_read_datasets(case: DatasetCase) -> None:
    sql = "select e, date_trunc('day', t) + interval 1 day as known, avg(x) as mean from obs group by all"
    case.make(DatasetSpec(tables=("obs",), sql=sql), name="daily")
    spec = DatasetSpec(basis=BASIS, asof_joins=(AsOfJoin(table="daily", on=("e",), known_at="known"),))
    rows = case.rows(spec)
    assert [row["mean"] for row in rows[:25]] == [None] * 25  # at midnight itself it is not known yet
    assert rows[25]["mean"] == pytest.approx(sum(n % 7 for n in range(24)) / 24)


def test_rows_without_time_or_entity_are_dropped_and_counted(case: DatasetCase) -> None:
    case.give("obs", {"e": ["a", None, "a"], "t": [START, START, None], "x": [1.0, 2.0, 3.0]})
    output = case.make(DatasetSpec(basis=BASIS))
    assert (output.rows, output.details["dropped"]) == (1, {"no time or no entity": 2})


def test_the_same_input_gives_the_same_bytes(case: DatasetCase) -> None:
    spec = DatasetSpec(
        basis=BASIS,
        windows=(Window(column="x", aggregates=tuple(Aggregate), span_seconds=36000),),
        label=Label(column="x", horizon_seconds=3600),
        split=Split(test=0.3),
    )
    files = [
        sorted((case.folder / "root" / case.make(spec, name, cpus=cpus).uri).iterdir())
        for name, cpus in (("d", 1), ("e", 4))
    ]
    assert [[file.name for file in part] for part in files] == [["part-00000.parquet"]] * 2
    assert files[0][0].read_bytes() == files[1][0].read_bytes()


def test_rows_are_sorted_by_entity_and_time(case: DatasetCase) -> None:
    output = case.make(DatasetSpec(basis=BASIS, label=Label(column="x", steps=1), split=Split(test=0.3)))
    table = case.table(output)
    by_time = table.select(["e", "t"])
    assert by_time == by_time.sort_by([("e", "ascending"), ("t", "ascending")])
    assert table["split"].to_pylist().count("test") == output.details["splits"]["test"]


def test_a_failed_attempt_leaves_nothing(case: DatasetCase) -> None:
    with pytest.raises(DataError):
        case.make(DatasetSpec(basis=BASIS, label=Label(column="x", horizon_seconds=1e7)))
    assert not list((case.folder / "root").glob("datasets/p/d/*"))
    assert not list((case.folder / "root").glob("datasets/p/d/.*"))


def test_parts_are_compressed_well_known_parquet(case: DatasetCase) -> None:
    output = case.make(DatasetSpec(basis=BASIS))
    file = next((case.folder / "root" / output.uri).glob("*.parquet"))
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"


# what is wrong

LATER = Label(column="x", horizon_seconds=3600)
WRONG = [
    (
        DatasetSpec(basis=Basis(table="obs", time="tt")),
        "table 'obs' has no column 'tt'; did you mean `t`",
        "basis",
    ),
    (DatasetSpec(basis=Basis(table="obs", time="x")), "'x' of 'obs' has type DOUBLE, not timestamp", "basis"),
    (
        DatasetSpec(sql="select * from obs", tables=("obs",), time="x"),
        "'x' of the result of `sql` has type DOUBLE, not timestamp",
        "time",
    ),
    (DatasetSpec(basis=BASIS, lags=(Lag(column="temp", steps=(1,)),)), "has no column 'temp'", "lags"),
    (
        DatasetSpec(basis=BASIS, windows=(Window(column="s", aggregates=(Aggregate.MEAN,), span_rows=2),)),
        "`mean` needs numbers, but 's' of 'obs' has type VARCHAR",
        "windows",
    ),
    (
        DatasetSpec(basis=BASIS, joins=(Join(table="obs", on=("e",)),)),
        "table 'obs' has 40 rows for e=a",
        "joins",
    ),
    (
        DatasetSpec(basis=BASIS, joins=(Join(table="numbers", on=("e",)),)),
        "cannot join on 'e': its type is VARCHAR in 'obs' and BIGINT in 'numbers'",
        "",
    ),
    (
        DatasetSpec(basis=BASIS, asof_joins=(AsOfJoin(table="places", known_at="alt"),)),
        "'alt' of 'places' has type BIGINT, not timestamp",
        "asof_joins.known_at",
    ),
    (DatasetSpec(basis=BASIS, features={"x": "1"}), "would have two columns 'x'", ""),
    (DatasetSpec(basis=BASIS, features={"X": "1"}), "would have two columns 'X'", ""),
    (DatasetSpec(basis=BASIS, features={"f": "xx + 1"}), 'column "xx" not found', "features.f"),
    (DatasetSpec(basis=BASIS, features={"ok": "x", "f": "x + 'a'"}), "Could not convert string 'a'", ""),
    (DatasetSpec(basis=BASIS, features={"f": "x +"}), "syntax error", "features.f"),
    (DatasetSpec(basis=BASIS, features={"f": "lead(x) over ()"}), "has a window", "features.f"),
    (
        DatasetSpec(basis=BASIS, features={"f": "(select max(x) from obs)"}),
        "has a query inside",
        "features.f",
    ),
    (DatasetSpec(basis=BASIS, features={"f": "random()"}), "a different value each time", "features.f"),
    (DatasetSpec(basis=BASIS, features={"f": "1) from obs --"}), "syntax error", "features.f"),
    (
        DatasetSpec(basis=BASIS, features={"f": "1) from obs where (true"}),
        "is not a single expression",
        "features.f",
    ),
    (
        DatasetSpec(basis=BASIS, features={"f": "1, 2) from (select 1"}),
        "is not a single expression",
        "features.f",
    ),
    (DatasetSpec(basis=BASIS, features={"f": "x - label"}, label=LATER), "which is the label", "features.f"),
    (DatasetSpec(basis=BASIS, features={"f": "X"}, label=Label(column="x")), "is the label", "features.f"),
    (
        DatasetSpec(basis=BASIS, features={"f": "__label_time"}, label=LATER),
        "a column name that Gridmill reserves",
        "features.f",
    ),
    (DatasetSpec(basis=BASIS, features={"f": "sum(x)"}), "has sum(), an aggregate", "features.f"),
    (DatasetSpec(basis=BASIS, features={"f": " "}), "there is no expression", "features.f"),
    (DatasetSpec(basis=BASIS, features={"f": "interval 1 day"}), "column 'f' has type INTERVAL", ""),
    (DatasetSpec(sql="select t - t as f from obs", tables=("obs",)), "column 'f' has type INTERVAL", ""),
    (DatasetSpec(basis=BASIS, required=("y",)), "the dataset has no column 'y'", "required"),
    (
        DatasetSpec(basis=BASIS, split=Split(by=SplitBy.RANDOM, test=0.5, on=("y",))),
        "table 'obs' has no column 'y'",
        "split.on",
    ),
    (
        DatasetSpec(basis=BASIS, split=Split(until="2019-01-01", test=0.5)),
        "`until` is 2019-01-01 00:00, but the data begins at 2020-01-01 00:00",
        "split.until",
    ),
    (
        DatasetSpec(sql="select *, 'a' as split from obs", tables=("obs",), time="t"),
        "would have a column 'split'",
        "",
    ),
    (DatasetSpec(sql="select 1 as split from obs", tables=("obs",)), "would have a column 'split'", ""),
    (DatasetSpec(basis=BASIS, label=Label(column="y")), "has no column 'y'", "label"),
    (DatasetSpec(basis=BASIS, label=Label(column="x", horizon_seconds=1e6)), "no row is left", "label"),
    (DatasetSpec(basis=BASIS, label=Label(column="gone")), "no row is left", "label"),
    (DatasetSpec(basis=BASIS, label=Label(column="s", steps=1)), "label 'label' is u in every row", "label"),
    (
        DatasetSpec(basis=BASIS, label=LATER, split=Split(test_from="2021-01-01")),
        "test begins at 2021-01-01 00:00, but the data reaches from 2020-01-01 00:00 to 2020-01-02 15:00",
        "split.test_from",
    ),
    (DatasetSpec(sql="select * frm obs", tables=("obs",)), "syntax error", "sql"),
    (DatasetSpec(sql="select a, from obs where", tables=("obs",)), "syntax error", "sql"),
    (DatasetSpec(sql="select\n  y + 1\nfrom obs", tables=("obs",)), "(line 2: y + 1)", "sql"),
    (DatasetSpec(sql="drop table obs", tables=("obs",)), "only one SELECT can be given", "sql"),
    (DatasetSpec(sql="select * from '/etc/passwd'", tables=("obs",)), "", "sql"),
    (DatasetSpec(sql="select * from obs where x > 99", tables=("obs",)), "no row is left", ""),
    (DatasetSpec(sql="select * from obs where x > 99", tables=("obs",), time="t"), "has no rows", ""),
    (
        DatasetSpec(sql="select x from obs", tables=("obs",), label=Label(column="y")),
        "has no column 'y'",
        "label",
    ),
]


@pytest.mark.parametrize(
    ("spec", "message", "field"), WRONG, ids=[f"{n}: {w[1]}" for n, w in enumerate(WRONG)]
)
def test_errors_say_what_and_where(case: DatasetCase, spec: DatasetSpec, message: str, field: str) -> None:
    nothing = pa.array([None] * 80, pa.float64())
    obs = case.table(case.tables["obs"])
    case.give("numbers", {"e": [1], "v": [2]})
    if spec.label is not None and spec.label.column == "gone":
        case.give("obs", obs.append_column("gone", nothing))
    with pytest.raises(InputError) as caught:
        case.make(spec)
    assert message in caught.value.message
    assert caught.value.place == "dataset" + (f".{field}" if field else "")


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (Split(validation_from="2020-02-01", test_from="2020-01-01"), "is not before test"),
        (Split(test_from="soon"), "'soon' is not a time"),
    ],
)
def test_splits_are_checked_when_declared(split: Split, message: str) -> None:
    with pytest.raises(InputError, match=message):
        split.check()


def test_an_empty_table(case: DatasetCase) -> None:
    case.give("obs", case.table(case.tables["obs"]).slice(0, 0))
    with pytest.raises(DataError, match="table 'obs' has no rows"):
        case.make(DatasetSpec(basis=BASIS))


def test_a_query_of_a_table_that_is_not_named_says_how_it_is_named(case: DatasetCase) -> None:
    with pytest.raises(InputError, match="Table with name others does not exist") as caught:
        case.make(DatasetSpec(tables=("obs",), sql="SELECT * FROM obs JOIN others USING (e)"))
    assert caught.value.hint == "`tables` must list the tables that the query reads; now it lists obs."


def test_errors_name_the_columns_there_are(case: DatasetCase) -> None:
    with pytest.raises(InputError) as caught:
        case.make(DatasetSpec(basis=BASIS, features={"f": "alti"}, joins=(Join(table="places", on=("e",)),)))
    assert "e, t, x, s, alt" in caught.value.hint


@pytest.mark.parametrize(
    ("expression", "word"),
    [("end - x", "end"), ("x + Order", "Order"), ("at + 1", "at"), ("x > (1 - table)", "table")],
)
def test_a_column_called_like_a_word_of_sql_is_to_be_quoted(expression: str, word: str):
    with pytest.raises(InputError) as caught:
        expression_columns(duckdb.connect(), expression, "dataset.features.f")
    assert caught.value.place == "dataset.features.f"
    assert caught.value.hint == f'{word!r} is a reserved word of SQL. If it is a column name, write "{word}".'
    quoted = expression.replace(word, f'"{word}"')
    assert word in expression_columns(duckdb.connect(), quoted, "dataset.features.f")


def test_a_column_with_a_space_before_a_word_of_sql_is_quoted_as_a_whole():
    with pytest.raises(InputError) as caught:
        expression_columns(duckdb.connect(), "hour(Measured At)", "dataset.features.f")
    assert caught.value.hint == (
        "'At' is a reserved word of SQL. If 'Measured At' is a column name, write \"Measured At\"."
    )


@pytest.mark.parametrize("expression", ["x +", "x y", "'end' 'at'", "count() filter"])
def test_what_is_wrong_without_such_a_word_has_no_such_hint(expression: str):
    with pytest.raises(InputError, match="syntax error") as caught:
        expression_columns(duckdb.connect(), expression, "dataset.features.f")
    assert caught.value.hint == ""
