"""First loads of sources that hold no rows yet."""

import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.kit.sink_case import SinkCase

from gridmill.domain.artifact import Output
from gridmill.domain.sink import ColumnType, Constraint, SinkSpec
from gridmill.domain.source import Source, SqlSource
from gridmill.errors import ConflictError, DataError
from gridmill.jobs.sink.run import run

TYPES = {"a": ColumnType.INTEGER, "b": ColumnType.TIMESTAMP}


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


def change(case: SinkCase, *statements: str) -> None:
    with sqlite3.connect(case.folder / "shop.db") as database:
        for statement in statements:
            database.execute(statement)


def load_sql(case: SinkCase, columns: dict[str, ColumnType] | None = None, **sql: str) -> Output:
    source = Source(sql=SqlSource(url="sqlite:///shop.db", **sql))
    return run(case.context(SinkSpec(source=source, columns=columns or {}))).outputs[0]


def types(case: SinkCase) -> dict[str, str]:
    return {item.name: str(item.type) for item in case.table().schema}


@pytest.mark.parametrize("end", ["\n", ""])
def test_a_header_alone_makes_an_empty_table_where_types_are_declared(case: SinkCase, end: str) -> None:
    case.write("a.csv", f"a,b{end}")
    first = case.load(columns=TYPES)
    assert (first.rows, first.details["columns"]) == (0, {})
    assert types(case) == {"a": "int64", "b": "timestamp[us, tz=UTC]"}
    assert case.load(columns=TYPES).table_version == first.table_version
    case.write("a.csv", "a,b\n1,2024-01-01\n")
    assert case.load(columns=TYPES).rows == 1
    case.write("a.csv", "a,b\n")
    with pytest.raises(DataError, match="no rows"):  # and not: nothing was ever there
        case.load(columns=TYPES)
    assert len(case.rows()) == 1


def test_other_types_of_an_empty_table(case: SinkCase) -> None:
    case.write("a.csv", "a,b\n")
    case.load(columns=TYPES)
    case.load(columns=TYPES | {"a": ColumnType.STRING})
    assert types(case)["a"] == "string"


def test_the_hint_says_which_types_are_missing(case: SinkCase) -> None:
    case.write("a.csv", "a,b\n")
    with pytest.raises(DataError, match="the source has no rows") as caught:
        case.load(columns={"a": ColumnType.INTEGER})
    assert "{b: float}" in caught.value.hint


def test_rows_that_are_all_rejected_are_no_empty_source(case: SinkCase) -> None:
    case.write("a.csv", "a,b\n-1,\n")
    with pytest.raises(DataError, match="all 1 break constraints"):
        case.load(columns=TYPES, constraints=(Constraint(column="a", min=0),))


def test_parquet_tells_its_types(case: SinkCase) -> None:
    pq.write_table(
        pa.schema([("a", pa.int32()), ("s", pa.string())]).empty_table(), case.folder / "a.parquet"
    )
    assert case.load("a.parquet").rows == 0
    assert types(case) == {"a": "int64", "s": "string"}


@pytest.mark.parametrize("cursor", [{}, {"cursor": "id"}], ids=["whole", "cursor"])
def test_a_database_tells_the_types_of_an_empty_table(case: SinkCase, cursor: dict[str, str]) -> None:
    change(case, "CREATE TABLE sales (id INTEGER, price DOUBLE, at TIMESTAMP, note TEXT)")
    first = load_sql(case, table="sales", **cursor)
    assert types(case) == {"id": "int64", "price": "double", "at": "timestamp[us, tz=UTC]", "note": "string"}
    assert load_sql(case, table="sales", **cursor).table_version == first.table_version
    change(case, "INSERT INTO sales VALUES (1, 2.5, '2024-01-01', 'x'), (2, NULL, NULL, NULL)")
    assert load_sql(case, table="sales", **cursor).rows == 2
    change(case, "INSERT INTO sales (id) VALUES (3)")
    assert load_sql(case, table="sales", **cursor).rows == 3


def test_a_query_needs_declared_types(case: SinkCase) -> None:
    change(case, "CREATE TABLE sales (id INTEGER)")
    with pytest.raises(DataError, match="no rows"):
        load_sql(case, query="SELECT id, id * 2 AS twice FROM sales")
    declared = {"id": ColumnType.INTEGER, "twice": ColumnType.FLOAT}
    assert load_sql(case, declared, query="SELECT id, id * 2 AS twice FROM sales").rows == 0
    assert types(case) == {"id": "int64", "twice": "double"}


def test_a_table_with_rows_does_not_become_empty_by_another_declaration(case: SinkCase) -> None:
    change(case, "CREATE TABLE sales (id INTEGER)", "INSERT INTO sales VALUES (1)")
    load_sql(case, table="sales", cursor="id")
    change(case, "DELETE FROM sales")
    with pytest.raises((ConflictError, DataError), match=r"do not exist in the source any more|no rows"):
        load_sql(case, {"id": ColumnType.STRING}, table="sales", cursor="id")
    assert case.rows() == [{"id": 1}]


def test_no_lines_of_json_make_an_empty_table_of_declared_columns(case: SinkCase) -> None:
    case.write("a.jsonl", "")
    with pytest.raises(DataError, match="the source has no rows"):
        case.load("*.jsonl")
    assert case.load("*.jsonl", columns=TYPES).rows == 0
    assert types(case) == {"a": "int64", "b": "timestamp[us, tz=UTC]"}
    case.write("b.jsonl", '{"a": 1, "b": null, "c": "x"}\n')
    case.load("*.jsonl", columns=TYPES)
    assert case.rows() == [{"a": 1, "b": None, "c": "x"}]
