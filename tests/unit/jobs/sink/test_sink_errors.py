"""What is wrong with a source, said with its place."""

import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.kit.sink_case import TABLE, SinkCase

from gridmill.domain.sink import ColumnType
from gridmill.domain.source import Compression
from gridmill.errors import DataError, InputError

CSV = "a,b\n1,x\n2,y\n"


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


def data_files(case: SinkCase) -> list[Path]:
    return sorted((case.folder / "root" / TABLE).glob("*.parquet"))


@pytest.mark.parametrize(
    ("content", "spec", "place", "message"),
    [
        ("a,b\n1,2\n3\n", {}, "a.csv:3", "this row has 1 values, but the header has 2 columns: 3"),
        (
            'a,b\n"1\n2",2\n3,4,5\n',
            {},
            "a.csv:4",
            "this row has 3 values, but the header has 2 columns: 3, 4, 5",
        ),
        ('a,b\n1,x\n2,"y\n3,z\n', {}, "a.csv:3", "a value begins with a double quote that is never closed"),
        ('a,b\n"1,x\n2,y\n', {}, "a.csv:2", "a value begins with a double quote that is never closed"),
        ('a,b\n1,x\n2,"y' + "\n3,z" * 2**20, {}, "a.csv:3", "a double quote that is never closed"),
        (
            "a,b,A\n1,2,3\n",
            {},
            "a.csv",
            r"columns 'a' and 'A' have the same name \(they are the columns 1, 3\)",
        ),
        ("a,b,a\n1,2,3\n", {}, "a.csv", r"column 'a' appears 2 times \(as column 1, 3\)"),
        ("a\0b,c\n1,2\n", {}, "a.csv", "the name of column 1 contains a zero byte"),
        ("a,b\n1,2\n", {"rename": {"a": "B"}}, "a.csv", "two columns would have the name 'b'"),
        (
            "a,b\n1,2\n",
            {"add": {"A": "x"}},
            "a.csv",
            "the file has a column 'a', but `add` adds the column 'A'",
        ),
        ("\n\na,b\n1,2\n\n3\n", {}, "a.csv:6", "this row has 1 values, but the header has 2 columns: 3"),
        ("a,b\n1,2\n", {"select": ("aa",)}, "a.csv", "there is no column 'aa', which `select` names"),
        ("a,b\n1,2\n", {"rename": {"c": "d"}}, "a.csv", "there is no column 'c', which `rename` names"),
        ("a,b\n1,2\n", {"columns": {"c": "float"}}, "a.csv", "there is no column 'c', which `columns` names"),
        ("a,b\n1,2\n", {"rename": {"a": "b"}}, "a.csv", "two columns would have the name 'b'"),
        ("a;b\n1;2\n", {}, "a.csv", "the file has only one column, 'a;b'"),
        ("a\tb\n1\t2\n", {}, "a.csv", "the file has only one column"),
        ("a,b\n", {}, "a.csv", "the source has no rows"),
        ("a,b", {}, "a.csv", "the source has no rows"),
        ("<!DOCTYPE html>\n<html>\n</html>\n", {}, "a.csv", "this is a web page, not a CSV file"),
        ("", {}, "a.csv", "the file is empty: it has no header"),
        (b"a,b\n1,x\n2,\xff\n", {}, "a.csv:3", "byte 0xff at position 3 of this line is not utf-8"),
        (b"a\xff,b\n1,x\n", {}, "a.csv:1", "byte 0xff at position 2 of this line is not utf-8"),
    ],
)
def test_errors_in_csv_name_the_place(
    case: SinkCase, content: str | bytes, spec: dict[str, object], place: str, message: str
) -> None:
    case.write("a.csv", content)
    if "columns" in spec:
        spec = {"columns": {"c": ColumnType.FLOAT}}
    with pytest.raises(DataError, match=message) as caught:
        case.load(**spec)
    assert caught.value.place == place
    assert not data_files(case)


@pytest.mark.parametrize(
    ("type_", "value"),
    [("integer", "1.5"), ("float", "x"), ("boolean", "maybe"), ("date", "2013-13-01"), ("timestamp", "noon")],
)
def test_wrong_types_name_line_column_and_value(case: SinkCase, type_: str, value: str) -> None:
    good = {"integer": "1", "float": "1", "boolean": "true", "date": "2013-01-01", "timestamp": "2013-01-01"}
    lines = [good[type_]] * 5000
    lines[4321] = value
    case.write("a.csv", "k,v\n" + "".join(f'"two\nlines",{line}\n' for line in lines))
    with pytest.raises(DataError, match=f"column 'v': '{value}' is not of type {type_}") as caught:
        case.load(columns={"v": ColumnType(type_)})
    assert caught.value.place == f"a.csv:{2 + 2 * 4321}"
    assert "nulls" in caught.value.hint


@pytest.mark.parametrize(
    ("line", "place", "message"),
    [
        ('{"a": }', "a.jsonl:3", "not a JSON object"),
        ("[1]", "a.jsonl:3", "not a JSON object but list"),
        ('{"a": "x"}', "a.jsonl:3", "column 'a': 'x' is not of type integer"),
        (b'{"a": "\xff"}', "a.jsonl:3", "byte 0xff is not UTF-8"),
        ('{"a": "\\ud800"}', "a.jsonl:3", "half of a surrogate pair"),
    ],
)
def test_errors_in_json_lines_name_the_line(
    case: SinkCase, line: str | bytes, place: str, message: str
) -> None:
    data = line.encode() if isinstance(line, str) else line
    case.write("a.jsonl", b'{"a": 1}\n\n' + data + b"\n")
    with pytest.raises(DataError, match=message) as caught:
        case.load("a.jsonl", columns={"a": ColumnType.INTEGER})
    assert caught.value.place == place


def test_no_file_of_a_sink_lacks_a_column(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    case.write("b.csv", "a,c\n1,2\n")
    with pytest.raises(DataError, match="the file lacks b, which the table has") as caught:
        case.load()
    assert caught.value.place == "b.csv"
    case.load(select=("a",))
    assert len(case.rows()) == 3


def test_a_missing_source_says_what_is_near(case: SinkCase) -> None:
    case.write("weather.csv", CSV)
    with pytest.raises(InputError, match=r"'wether\.csv' does not exist") as caught:
        case.load("wether.csv")
    assert "weather.csv" in caught.value.hint
    with pytest.raises(InputError, match="matches no file"):
        case.load("*.parquet")
    case.write("a.dat", CSV)
    with pytest.raises(InputError, match="cannot detect the format"):
        case.load("a.dat")


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst", "zip"])
@pytest.mark.parametrize("broken", [b"no such thing at all", b""])
def test_files_that_cannot_be_decompressed(case: SinkCase, suffix: str, broken: bytes) -> None:
    (case.folder / f"a.csv.{suffix}").write_bytes(broken)
    with pytest.raises(DataError) as caught:
        case.load(f"a.csv.{suffix}")
    assert caught.value.place == f"a.csv.{suffix}"
    assert "decompressed" in caught.value.message or "empty" in caught.value.message


def test_a_file_cut_short(case: SinkCase) -> None:
    path = case.write("a.csv.gz", CSV * 10_000)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="cannot be decompressed as gzip"):
        case.load("a.csv.gz")


def test_a_zip_of_several_files(case: SinkCase) -> None:
    with zipfile.ZipFile(case.folder / "a.zip", "w") as archive:
        archive.writestr("x.csv", CSV)
        archive.writestr("y.csv", CSV)
    with pytest.raises(
        DataError, match=r"must contain exactly one file, but this one contains 2 \(x.csv, y.csv\)"
    ):
        case.load("a.zip", compression=Compression.ZIP)


def test_no_parquet(case: SinkCase) -> None:
    case.write("a.parquet", "no")
    with pytest.raises(DataError, match="not a readable Parquet file") as caught:
        case.load("a.parquet")
    assert caught.value.place == "a.parquet"


def test_an_added_column_that_json_lines_have(case: SinkCase) -> None:
    case.write("a.jsonl", '{"a": 1}\n{"b": 2}\n')
    with pytest.raises(DataError, match="the file has a column 'b', but `add` adds the column 'b'") as caught:
        case.load("*.jsonl", add={"b": "x"})
    assert caught.value.place == "a.jsonl"


def test_blank_lines_before_a_header_are_no_rows(case: SinkCase) -> None:
    case.write("a.csv", "\r\n\n\na,b\n1,2\n\n3,4\n")
    assert case.load().rows == 2
    assert case.rows() == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


FAR = pa.array([None, 10**16], pa.timestamp("ms"))


@pytest.mark.parametrize(
    ("table", "place", "message"),
    [
        (pa.table([[1], [2]], names=["a", "a"]), "a.parquet", "column 'a' appears 2 times"),
        (pa.table([[1], [2]], names=["a", "A"]), "a.parquet", "columns 'a' and 'A' have the same name"),
        (pa.table({}), "a.parquet", "the file has no columns"),
        (pa.table({"": [1]}), "a.parquet", "a column's name is empty: ''"),
        (
            pa.table({"a": FAR}),
            "a.parquet: row 2",
            "a time beyond the years 1 to 9999' is not of type timestamp",
        ),
    ],
)
def test_parquet_that_no_table_can_hold(case: SinkCase, table: pa.Table, place: str, message: str) -> None:
    pq.write_table(table, case.folder / "a.parquet")
    with pytest.raises(DataError, match=message) as caught:
        case.load("*.parquet")
    assert caught.value.place == place
    assert not data_files(case)


def test_json_lines_with_a_name_that_is_empty(case: SinkCase) -> None:
    case.write("a.jsonl", '{"": 1, "b": 2}\n')
    with pytest.raises(DataError, match="a column's name is empty"):
        case.load("*.jsonl")
    assert case.load("*.jsonl", rename={"": "a"}).rows == 1
