import json
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.kit.sink_case import TABLE, SinkCase

from gridmill.domain.sink import ColumnType, Constraint
from gridmill.errors import DataError
from gridmill.jobs.sink import load_job
from gridmill.jobs.sink.schema_evolution import evolve

FORMATS = ("csv", "jsonl", "parquet")


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


def put(case: SinkCase, name: str, rows: list[dict[str, object]]) -> None:
    path = case.folder / name
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))
    else:
        lines = [
            ",".join(rows[0]),
            *(",".join("" if v is None else str(v) for v in row.values()) for row in rows),
        ]
        path.write_text("\n".join(lines) + "\n")


def types(case: SinkCase) -> dict[str, str]:
    return {item.name: str(item.type) for item in case.table().schema}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_new_column_is_added_and_missing_before(case: SinkCase, form: str, at_once: bool) -> None:
    put(case, f"1.{form}", [{"a": 1}])
    first = None if at_once else case.load(f"*.{form}")
    put(case, f"2.{form}", [{"a": 2, "b": "x"}])
    output = case.load(f"*.{form}")
    put(case, f"3.{form}", [{"a": 3}])  # as older ones, without the column
    case.load(f"*.{form}")
    assert case.rows() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}, {"a": 3, "b": None}]
    assert output.details["columns"]["b"]["nulls"] == 1
    if first is not None:
        assert case.rows(first.table_version) == [{"a": 1}]


@pytest.mark.parametrize("form", FORMATS)
def test_whole_numbers_widen_and_what_is_gone_stays(case: SinkCase, form: str) -> None:
    put(case, f"1.{form}", [{"a": 1}])
    first = case.load(f"*.{form}")
    (case.folder / f"1.{form}").unlink()
    put(case, f"2.{form}", [{"a": 2.5}])
    output = case.load(f"*.{form}")
    assert types(case) == {"a": "double"}
    assert case.rows() == [{"a": 1.0}, {"a": 2.5}]
    assert output.details["columns"]["a"]["mean"] == 1.75
    assert not output.details["loaded_anew"]
    assert case.rows(first.table_version) == [{"a": 1}]
    assert case.load(f"*.{form}").table_version == output.table_version
    put(case, f"3.{form}", [{"a": 3}])
    case.load(f"*.{form}")
    assert case.rows() == [{"a": 1.0}, {"a": 2.5}, {"a": 3.0}]


def test_dates_widen_to_times(case: SinkCase) -> None:
    put(case, "1.csv", [{"d": date(2024, 1, 1)}])
    case.load()
    put(case, "2.csv", [{"d": "2024-01-02T06:00:00Z"}])
    case.load()
    assert [row["d"] for row in case.rows()] == [
        datetime(2024, 1, 1, tzinfo=UTC),
        datetime(2024, 1, 2, 6, tzinfo=UTC),
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_else_changes_by_itself(case: SinkCase, form: str) -> None:
    put(case, f"1.{form}", [{"a": 1, "b": "x"}])
    first = case.load(f"*.{form}")
    put(case, f"2.{form}", [{"a": "two", "b": "x"}])
    with pytest.raises(DataError, match="column 'a': 'two' is not of type integer") as caught:
        case.load(f"*.{form}")
    assert caught.value.place.startswith(f"2.{form}")
    assert "columns" in caught.value.hint
    put(case, f"2.{form}", [{"b": "y"}])
    if form != "jsonl":  # there a value that is not written is missing
        with pytest.raises(DataError, match="the file lacks a, which the table has") as caught:
            case.load(f"*.{form}")
        assert caught.value.place == f"2.{form}"
    assert case.table().num_rows == first.rows


def test_a_declared_type_never_widens(case: SinkCase) -> None:
    put(case, "1.csv", [{"a": 1}])
    case.load(columns={"a": ColumnType.INTEGER})
    put(case, "2.csv", [{"a": 1.5}])
    with pytest.raises(DataError, match=r"'1\.5' is not of type integer"):
        case.load(columns={"a": ColumnType.INTEGER})


def test_new_columns_and_wider_ones_together_after_a_kill(
    case: SinkCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    unique = (Constraint(unique=("a",)),)
    put(case, "1.csv", [{"a": 1}])
    before = case.load(constraints=unique)
    put(case, "2.csv", [{"a": 1, "b": 1}, {"a": 2, "b": 1}])
    for at in ("add_columns", "commit"):
        with monkeypatch.context() as patch:
            patch.setattr(load_job, at, die)
            with pytest.raises(KeyboardInterrupt):
                case.load(constraints=unique)
    assert case.load(constraints=unique).rows == 2
    put(case, "3.csv", [{"a": 1.5, "b": 1.5, "c": "x"}, {"a": 2, "b": 0, "c": "y"}])
    with monkeypatch.context() as patch:
        patch.setattr(load_job, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            case.load(constraints=unique)
    output = case.load(constraints=unique)
    assert case.rows() == [
        {"a": 1.0, "b": None, "c": None},
        {"a": 1.5, "b": 1.5, "c": "x"},
        {"a": 2.0, "b": 1.0, "c": None},
    ]
    assert [row["source"] for row in case.rejects(output)] == ["2.csv", "3.csv"]
    assert case.rows(before.table_version) == [{"a": 1}]
    assert not list((case.folder / "root" / TABLE).glob("*/*.parquet"))


def test_the_decision_alone() -> None:
    table = pa.schema([("a", pa.int64()), ("b", pa.float64()), ("c", pa.string())])
    found = {"a": pa.float64(), "b": pa.int64(), "c": pa.int64(), "d": None, "e": pa.bool_()}
    assert evolve(table, found, {}) == pa.schema(
        [
            ("a", pa.float64()),
            ("b", pa.float64()),
            ("c", pa.string()),
            ("d", pa.string()),
            ("e", pa.bool_()),
        ]
    )
    assert evolve(table, {"a": pa.string()}, {}) == table
    assert evolve(table, {"a": pa.float64()}, {"a": ColumnType.INTEGER}) == table


def test_a_load_that_dies_once_the_columns_are_there_refuses_no_file_later(
    case: SinkCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(case, "1.csv", [{"a": 1}])
    case.load()
    put(case, "2.csv", [{"a": 2, "b": "x"}])
    put(case, "3.csv", [{"a": 3}])
    with monkeypatch.context() as patch:
        patch.setattr(load_job, "commit", _die)
        with pytest.raises(KeyboardInterrupt):
            case.load()
    assert "b" in types(case)
    case.load()
    assert case.rows() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}, {"a": 3, "b": None}]


def _die(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize(("value", "type_"), [(5, "int64"), (2.5, "double"), ("x", "string")])
def test_a_column_without_a_value_takes_the_type_of_the_first_ones(
    case: SinkCase, form: str, value: object, type_: str
) -> None:
    put(case, f"1.{form}", [{"a": 1, "b": None}])
    first = case.load(f"*.{form}")
    put(case, f"2.{form}", [{"a": 2, "b": None}])
    case.load(f"*.{form}")
    put(case, f"3.{form}", [{"a": 3, "b": value}])
    case.load(f"*.{form}")
    assert types(case) == {"a": "int64", "b": type_}
    assert case.rows() == [{"a": 1, "b": None}, {"a": 2, "b": None}, {"a": 3, "b": value}]
    assert case.rows(first.table_version) == [{"a": 1, "b": None}]


def test_a_column_that_has_had_a_text_stays_one_of_texts(case: SinkCase) -> None:
    for number, value in enumerate(["", "x", "5"]):
        case.write(f"{number}.csv", f"a,b\n{number},{value}\n")
        case.load()
    assert [row["b"] for row in case.rows()] == [None, "x", "5"]


def test_quoted_texts_that_mean_missing_tell_no_type(case: SinkCase) -> None:
    case.write("1.csv", '"a","b"\n"1",""\n"2","NA"\n')
    case.load()
    case.write("2.csv", '"a","b"\n"3","x"\n')
    case.load()
    assert [row["b"] for row in case.rows()] == [None, None, "x"]


@pytest.mark.parametrize("at_once", [False, True])
def test_booleans_are_no_numbers_in_a_later_file_either(case: SinkCase, at_once: bool) -> None:
    put(case, "1.jsonl", [{"a": 1}])
    if not at_once:
        case.load("*.jsonl")
    put(case, "2.jsonl", [{"a": True}])
    if at_once:
        assert case.load("*.jsonl").rows == 2
        assert types(case) == {"a": "string"}
    else:
        with pytest.raises(DataError, match="column 'a': True is not of type integer"):
            case.load("*.jsonl")
