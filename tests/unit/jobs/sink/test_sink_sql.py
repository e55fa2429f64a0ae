import sqlite3
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from tests.kit.sink_case import SinkCase

from gridmill.domain.artifact import Output
from gridmill.domain.sink import SinkSpec
from gridmill.domain.source import Source, SqlSource
from gridmill.errors import ConflictError, DataError, InputError
from gridmill.jobs.sink.run import run
from gridmill.jobs.sink.sql_staging import CursorPosition, edge_of, read_position
from gridmill.settings import fill_in_environment


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    made = SinkCase(tmp_path)
    change(
        made, "CREATE TABLE sales (id INTEGER PRIMARY KEY, price DECIMAL(8, 2), at TIMESTAMP, paid BOOLEAN)"
    )
    change(made, "INSERT INTO sales VALUES (1, 9.5, '2024-01-01 10:00:00', 1), (2, NULL, NULL, 0)")
    return made


def change(case: SinkCase, *statements: str) -> None:
    with sqlite3.connect(case.folder / "shop.db") as database:
        for statement in statements:
            database.execute(statement)


def load(case: SinkCase, **sql: object) -> Output:
    given = {"url": "sqlite:///shop.db", "table": "sales", "cursor": "id"} | sql
    if "query" in sql:
        del given["table"]
    return run(case.context(SinkSpec(source=Source(sql=SqlSource(**given))))).outputs[0]


def ids(case: SinkCase) -> list[object]:
    return sorted(row["id"] for row in case.rows())


def test_rows_come_in_the_declared_types(case: SinkCase) -> None:
    output = load(case)
    assert (output.rows, output.table_version) == (2, 1)
    assert [str(item.type) for item in case.table().schema] == [
        "int64",
        "double",
        "timestamp[us, tz=UTC]",
        "bool",
    ]
    assert case.rows() == [
        {"id": 1, "price": 9.5, "at": datetime(2024, 1, 1, 10, tzinfo=UTC), "paid": True},
        {"id": 2, "price": None, "at": None, "paid": False},
    ]


def test_only_what_is_beyond_the_position_is_loaded_and_nothing_new_makes_no_version(case: SinkCase) -> None:
    load(case)
    assert load(case).table_version == 1
    change(case, "INSERT INTO sales (id) VALUES (3), (4)", "UPDATE sales SET price = 0 WHERE id = 1")
    output = load(case)
    assert (output.table_version, output.rows, output.details["rows_added"]) == (2, 4, 2)
    assert case.rows()[0]["price"] == 9.5  # a row that was loaded is not looked at again
    assert load(case).table_version == 2


def test_rows_that_the_cursor_does_not_see_are_counted(
    case: SinkCase, capsys: pytest.CaptureFixture[str]
) -> None:
    change(case, "UPDATE sales SET at = NULL")
    assert load(case, cursor="at").rows == 0
    assert "2 rows not loaded: no value, NaN or infinity in the cursor" in capsys.readouterr().out
    change(case, "UPDATE sales SET at = '2024-01-01 10:00:00' WHERE id = 1")
    output = load(case, cursor="at")
    assert (output.rows, output.details["unseen"]) == (1, 1)
    change(case, "UPDATE sales SET at = '2024-01-01 11:00:00' WHERE id = 2")
    output = load(case, cursor="at")
    assert (output.rows, output.details["unseen"]) == (2, 0)


def test_a_position_outlives_other_commits_to_the_table(case: SinkCase) -> None:
    load(case)
    for number in range(3, 9):
        change(case, f"INSERT INTO sales (id) VALUES ({number})")
        load(case)
        load(case)
    assert ids(case) == list(range(1, 9))


def test_without_a_cursor_the_table_is_what_the_database_holds_now(case: SinkCase) -> None:
    assert load(case, cursor=None).table_version == 1
    assert load(case, cursor=None).table_version == 1
    change(case, "DELETE FROM sales WHERE id = 1", "INSERT INTO sales (id) VALUES (7)")
    assert load(case, cursor=None).table_version == 2
    assert ids(case) == [2, 7]
    change(case, "DELETE FROM sales")
    with pytest.raises(DataError, match="no rows"):  # and not: nothing new
        load(case, cursor=None)
    assert ids(case) == [2, 7]


def test_a_lag_holds_back_what_may_not_be_complete(case: SinkCase) -> None:
    change(case, "CREATE TABLE events (id INTEGER, hour INTEGER)", "INSERT INTO events VALUES (1, 1), (2, 2)")
    load(case, table="events", cursor="hour", lag=0)
    assert ids(case) == [1]
    change(case, "INSERT INTO events VALUES (3, 2), (4, 3)")  # a tie, and something newer
    load(case, table="events", cursor="hour", lag=0)
    load(case, table="events", cursor="hour", lag=0)
    assert ids(case) == [1, 2, 3]
    load(case, table="events", cursor="hour")  # another lag loads nothing again
    assert ids(case) == [1, 2, 3, 4]


def test_a_query_is_read_like_a_table(case: SinkCase) -> None:
    query = "SELECT id, price * 2 AS twice FROM sales WHERE price IS NOT NULL -- all;\n;"
    load(case, query=query)
    assert case.rows() == [{"id": 1, "twice": 19.0}]


def test_types_widen(case: SinkCase) -> None:
    change(case, "CREATE TABLE loose (id INTEGER, x)", "INSERT INTO loose VALUES (1, 1)")
    load(case, table="loose")
    change(case, "INSERT INTO loose VALUES (2, 2.5)")
    load(case, table="loose")
    assert [row["x"] for row in case.rows()] == [1.0, 2.5]


def test_loading_anew_from_less_than_there_was_is_refused(case: SinkCase) -> None:
    load(case)
    change(case, "DELETE FROM sales WHERE id = 1")
    with pytest.raises(ConflictError, match="1 of its rows"):
        load(case, query="SELECT * FROM sales")
    assert ids(case) == [1, 2]


@pytest.mark.parametrize(
    ("sql", "message", "hint"),
    [
        ({"table": "sale"}, "there is no table 'sale'", "Did you mean `sales`?"),
        ({"cursor": "idd"}, "there is no column 'idd', which `cursor` names", "Did you mean `id`?"),
        ({"query": "SELECT absent"}, "the database reports: no such column: absent", ""),
        (
            {"cursor": "paid", "query": "SELECT x'00' AS paid"},
            "a cursor column holds numbers, times or texts",
            "",
        ),
        ({"url": "sqlite:///none.db"}, "the SQLite file .*none.db does not exist", ""),
        ({"url": "nosuch://h/d"}, "SQLAlchemy does not know the database 'nosuch'", "install"),
        ({"url": "mysql://h/d"}, "the package 'MySQLdb' is not installed here", "pip install"),
        (
            {"url": "postgresql://u:${env:NOT_SET}@h/d"},
            "the environment variable 'NOT_SET' is not set",
            "Set it",
        ),
        ({"cursor": "at", "lag": 5}, "a `lag` needs a cursor of numbers or times", "lag: 0"),
    ],
)
def test_what_is_wrong_is_said_once(case: SinkCase, sql: dict[str, object], message: str, hint: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(case, **sql)
    assert hint in caught.value.hint


def test_secrets_are_quoted_within_a_url() -> None:
    env = {"P": "a/b@c", "URL": "postgresql://u:a%2Fb@h/d"}
    filled = fill_in_environment("postgresql://u:${env:P}@h/d", "url", in_url=True, environment=env)
    assert filled == "postgresql://u:a%2Fb%40c@h/d"
    assert fill_in_environment("${env:URL}", "url", in_url=True, environment=env) == env["URL"]


@pytest.mark.parametrize(
    "value",
    [7, 1.5, Decimal("1.50"), "x", date(2024, 1, 31), datetime(2024, 1, 31, 1, 2, 3, 4, tzinfo=UTC)],
)
def test_positions_are_the_same_after_json(value: object) -> None:
    position = CursorPosition(value=value, included=True)
    assert read_position(position.written()) == position


def test_a_cursor_that_changed_its_type_is_refused() -> None:
    source = SqlSource(url="sqlite:///x", table="t", cursor="c")
    with pytest.raises(DataError, match="another type"):
        edge_of("x", source, CursorPosition(value=1, included=True), "t")


def test_a_colon_in_a_query_is_no_parameter(case: SinkCase) -> None:
    load(case, query="SELECT id, 'at :noon ::' AS said FROM sales", cursor=None)
    assert case.rows()[0] == {"id": 1, "said": "at :noon ::"}


def test_texts_are_compared_as_the_database_sorts_them(case: SinkCase) -> None:
    change(
        case,
        "CREATE TABLE items (id INTEGER, name TEXT COLLATE NOCASE)",
        "INSERT INTO items VALUES (1, 'item-005')",
    )
    load(case, table="items", cursor="name")
    change(case, "INSERT INTO items VALUES (2, 'Item-006'), (3, 'ITEM-005')")
    load(case, table="items", cursor="name")
    assert ids(case) == [1, 2]  # 3 is at a loaded value: equal, as the database sorts
    change(case, "INSERT INTO items VALUES (4, 'item-007'), (5, 'Item-008')")
    load(case, table="items", cursor="name", lag=0)
    assert ids(case) == [1, 2, 4]


def test_a_late_row_above_the_loaded_and_below_the_held_back_is_loaded(case: SinkCase) -> None:
    change(case, "INSERT INTO sales (id) VALUES (10)")
    load(case, lag=0)
    assert ids(case) == [1, 2]
    change(case, "INSERT INTO sales (id) VALUES (5), (20)")
    load(case, lag=0)
    change(case, "INSERT INTO sales (id) VALUES (15)")
    load(case, lag=5)
    assert ids(case) == [1, 2, 5, 10]
    load(case)
    assert ids(case) == [1, 2, 5, 10, 15, 20]


def test_a_first_load_that_holds_back_all_rows_makes_an_empty_table(case: SinkCase) -> None:
    change(case, "UPDATE sales SET at = '2024-01-01 10:00:00'")
    assert load(case, cursor="at", lag=0).rows == 0
    change(case, "INSERT INTO sales (id, at) VALUES (3, '2024-01-01 11:00:00')")
    assert load(case, cursor="at", lag=0).rows == 2
    assert ids(case) == [1, 2]


def test_infinity_in_a_cursor_does_not_end_loading(
    case: SinkCase, capsys: pytest.CaptureFixture[str]
) -> None:
    change(case, "CREATE TABLE seen (id INTEGER, at REAL)", "INSERT INTO seen VALUES (1, 1.5), (2, 9e999)")
    load(case, table="seen", cursor="at")
    assert "1 row not loaded: no value, NaN or infinity" in capsys.readouterr().out
    change(case, "INSERT INTO seen VALUES (3, 2.5)")
    load(case, table="seen", cursor="at")
    assert ids(case) == [1, 3]
