"""A query of a stretch of time: its rows replace those of the same stretch, however often it is loaded."""

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from shutil import rmtree

import pytest
from tests.kit.sink_case import SinkCase

from gridmill.domain.artifact import Output
from gridmill.domain.sink import SinkSpec
from gridmill.domain.source import Source, SqlSource
from gridmill.errors import ConflictError, DataError, InputError
from gridmill.jobs.sink.run import run
from gridmill.jobs.sink.time_ranges import key_of, stretch_of

QUERY = "SELECT id, at, who FROM sales WHERE at >= '${from}' AND at < '${to}' AND who <> '${who}'"


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    made = SinkCase(tmp_path)
    change(made, "CREATE TABLE sales (id INTEGER, at TIMESTAMP, who TEXT)")
    add(made, 1, "2024-01-01 10:00:00")
    add(made, 2, "2024-01-01 23:00:00")
    add(made, 3, "2024-01-03 00:00:00")
    return made


def change(case: SinkCase, statement: str, *values: object) -> None:
    with sqlite3.connect(case.folder / "shop.db") as database:
        database.execute(statement, values)


def add(case: SinkCase, number: int, at: str, who: str = "x") -> None:
    change(case, "INSERT INTO sales VALUES (?, ?, ?)", number, at, who)


def load(case: SinkCase, begins: str, ends: str, query: str = QUERY, **more: object) -> Output:
    values = {"from": begins, "to": ends, "who": "O'Brien' or '1'='1", **more}
    sql = SqlSource(url="sqlite:///shop.db", query=query, parameters=values)
    return run(case.context(SinkSpec(source=Source(sql=sql)))).outputs[0]


def ids(case: SinkCase) -> list[object]:
    return sorted(row["id"] for row in case.rows())


def test_stretches_add_up_and_each_replaces_itself(case: SinkCase) -> None:
    load(case, "2024-01-03", "2024-01-04")
    load(case, "2024-01-01", "2024-01-02")
    assert ids(case) == [1, 2, 3]
    same = load(case, "2024-01-01", "2024-01-02")
    assert (ids(case), same.table_version) == ([1, 2, 3], 2)
    change(case, "DELETE FROM sales WHERE id = 1")
    add(case, 4, "2024-01-01 12:00:00")
    add(case, 5, "2024-01-03 12:00:00")
    load(case, "2024-01-01", "2024-01-02")
    assert ids(case) == [2, 3, 4], "rows of other stretches stay as they were loaded"


def test_times_are_compared_as_the_database_writes_them(case: SinkCase) -> None:
    load(case, "2024-01-01T10:00:00", "2024-01-01T23:00:00")
    assert ids(case) == [1]
    load(case, "2024-01-02T00:00:00+01:00", "2024-01-02T01:00:00+01:00")
    assert ids(case) == [1, 2]


def test_empty_stretches_make_an_empty_table_until_there_are_rows(case: SinkCase) -> None:
    assert load(case, "2023-01-01", "2023-01-02").rows == 0
    assert load(case, "2023-01-02", "2023-01-03").rows == 0
    assert load(case, "2024-01-01", "2024-01-02").rows == 2
    assert str(case.table().schema.field("id").type) == "int64"
    assert load(case, "2023-01-02", "2023-01-03").rows == 2
    change(case, "DELETE FROM sales")
    assert load(case, "2024-01-01", "2024-01-02").rows == 0
    assert str(case.table().schema.field("id").type) == "int64"


def test_stretches_that_are_alike_are_not_the_same(case: SinkCase) -> None:
    query = "SELECT 1 AS one WHERE '${from}' < '${to}'"
    load(case, "2024-01-01", "2024-01-02", query)
    assert load(case, "2024-01-02", "2024-01-03", query).rows == 2
    load(case, "2024-01-01", "2024-01-02", query)
    assert len(case.rows()) == 2


def test_a_longer_stretch_replaces_what_it_holds_and_a_part_of_one_is_refused(case: SinkCase) -> None:
    load(case, "2024-01-01", "2024-01-02")
    load(case, "2024-01-03", "2024-01-04")
    load(case, "2024-01-01", "2024-01-05")
    assert ids(case) == [1, 2, 3]
    with pytest.raises(ConflictError, match="from 2024-01-01 to 2024-01-05 were loaded together"):
        load(case, "2024-01-04", "2024-01-06")


def test_another_query_loads_anew_and_never_loses_rows(case: SinkCase) -> None:
    load(case, "2024-01-01", "2024-01-02")
    load(case, "2024-01-03", "2024-01-04")
    other = QUERY.replace("SELECT id", "SELECT id + 10 AS id")
    with pytest.raises(ConflictError, match="must be loaded again from the beginning"):
        load(case, "2024-01-03", "2024-01-04", other)
    with pytest.raises(ConflictError, match="must be loaded again from the beginning"):
        load(case, "2024-01-03", "2024-01-04", who="y")
    assert ids(case) == [1, 2, 3]


def test_values_are_bound_whatever_they_hold(case: SinkCase) -> None:
    add(case, 7, "2024-01-01", "O'Brien")
    for query in ("who = '${n}'", "who = ${n}", "who IN ${l}", "who IN (${l})", "who LIKE '%${n}'"):
        values = {"n": "O'Brien", "l": ("O'Brien", "x' or '1'='1")}
        sql = SqlSource(
            url="sqlite:///shop.db", query=f"SELECT id, ':a' AS c FROM sales WHERE {query}", parameters=values
        )
        context = case.context(SinkSpec(source=Source(sql=sql)))
        rmtree(case.folder / "root", ignore_errors=True)
        assert run(context).outputs[0].rows == 1, query
        assert [(row["id"], row["c"]) for row in case.rows()] == [(7, ":a")]


def test_one_bound_alone_is_a_part_of_the_query(case: SinkCase) -> None:
    query = "SELECT id FROM sales WHERE at < '${to}'"
    load(case, "2000-01-01", "2024-01-02", query)
    with pytest.raises(ConflictError, match="must be loaded again from the beginning"):
        load(case, "2000-01-01", "2024-01-04", query)
    assert ids(case) == [1, 2]


def test_bounds_do_not_go_with_a_cursor() -> None:
    values = {"from": "2024-01-01", "to": "2024-01-02", "who": ""}
    with pytest.raises(InputError, match="continues where the last load ended"):
        SqlSource(url="sqlite:///x", query=QUERY, cursor="id", parameters=values).check()


def test_a_query_that_the_database_refuses_changes_nothing(case: SinkCase) -> None:
    load(case, "2024-01-01", "2024-01-02")
    change(case, "DROP TABLE sales")
    with pytest.raises(DataError, match="no such table"):
        load(case, "2024-01-01", "2024-01-02")
    assert ids(case) == [1, 2]


def test_a_key_tells_its_stretch() -> None:
    random = Random(1)
    origin = datetime(1900, 1, 1, tzinfo=UTC)
    for unit in (timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)):
        for _ in range(50):
            begins = origin + random.randrange(10**4) * unit
            stretch = (begins, begins + random.randrange(1, 10**5) * unit)
            assert stretch_of(key_of(stretch)) == stretch
    with pytest.raises(InputError, match="whole seconds"):
        key_of((origin, origin + timedelta(seconds=0.5)))
