"""No digit, zero or part of a time is lost by an inferred type; what a declared one loses is counted."""

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.kit.sink_case import SinkCase

from gridmill.domain.artifact import Output
from gridmill.domain.remarks import REMARKS
from gridmill.domain.sink import ColumnType, OnMisfit
from gridmill.errors import DataError
from gridmill.jobs.sink.csv import LeadingZeros

LARGE = 2**53 + 1
TIMES = [datetime(2024, 1, 2), datetime(2024, 1, 2, 6)]
FORMATS = ("csv", "jsonl", "parquet")


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


def put(case: SinkCase, name: str, values: list[object], column: str = "id") -> None:
    path = case.folder / name
    if path.suffix == ".parquet":
        pq.write_table(pa.table({column: values, "n": list(range(len(values)))}), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(f'{{"{column}": {v}, "n": {n}}}\n' for n, v in enumerate(values)))
    else:
        path.write_text(f"{column},n\n" + "".join(f"{v},{n}\n" for n, v in enumerate(values)))


def types(case: SinkCase) -> Mapping[str, str]:
    return {item.name: str(item.type) for item in case.table().schema}


def ids(case: SinkCase) -> list[object]:
    return [row["id"] for row in case.table().sort_by("n").to_pylist()]


def remarks(output: Output) -> list[str]:
    return list(output.details[REMARKS])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("whole_first", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
def test_whole_numbers_that_no_float_holds_stand_in_the_way_of_fractions(
    case: SinkCase, form: str, whole_first: bool, at_once: bool
) -> None:
    whole, fractions = [1, LARGE], [2.5, 1.5]
    put(case, f"1.{form}", whole if whole_first else fractions)
    if not at_once:
        case.load(f"*.{form}")
    put(case, f"2.{form}", fractions if whole_first else whole)
    with pytest.raises(DataError, match=str(LARGE)) as caught:
        case.load(f"*.{form}")
    file = 2 if not at_once else 1 if whole_first else 2
    row = 1 if whole_first and not at_once else 2
    line = f": row {row}" if form == "parquet" else f":{row + (form == 'csv')}"
    assert caught.value.place == f"{file}.{form}{line}"
    assert "column 'id'" in caught.value.message
    assert "columns: {id: string}" in caught.value.hint
    assert "columns: {id: float}" in caught.value.hint


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_in_one_file_and_one_block_too(case: SinkCase, form: str) -> None:
    put(case, f"1.{form}", [LARGE, 1.5])
    with pytest.raises(DataError, match=str(LARGE)) as caught:
        case.load(f"*.{form}")
    assert caught.value.place == f"1.{form}:{2 if form == 'csv' else 1}"


@pytest.mark.parametrize("form", FORMATS)
def test_as_text_every_digit_stays(case: SinkCase, form: str) -> None:
    put(case, f"1.{form}", [1, LARGE])
    put(case, f"2.{form}", [1.5])
    case.load(f"*.{form}", columns={"id": ColumnType.STRING})
    assert {row["id"] for row in case.rows()} == {"1", str(LARGE), "1.5"}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("reject", [False, True])
def test_a_declared_float_is_the_nearest_and_is_counted(case: SinkCase, form: str, reject: bool) -> None:
    put(case, f"1.{form}", [1, LARGE, 2**60])
    output = case.load(
        f"*.{form}",
        columns={"id": ColumnType.FLOAT},
        on_misfit=OnMisfit.REJECT if reject else OnMisfit.FAIL,
    )
    assert ids(case) == [1.0, 2.0**53, 2.0**60]
    assert remarks(output) == ["1 value of column id rounded to the nearest float"]


@pytest.mark.parametrize("form", FORMATS)
def test_large_whole_numbers_that_are_floats_widen(case: SinkCase, form: str) -> None:
    put(case, f"1.{form}", [2**60, 3])
    case.load(f"*.{form}")
    put(case, f"2.{form}", [2.5])
    output = case.load(f"*.{form}")
    assert sorted(ids(case)) == [2.5, 3.0, 2.0**60]
    assert not remarks(output)


def test_the_first_rows_do_not_hide_later_ones(case: SinkCase) -> None:
    put(case, "1.csv", [1.5] * 6000 + [LARGE])
    with pytest.raises(DataError, match=str(LARGE)) as caught:
        case.load()
    assert caught.value.place == "1.csv:6002"


def test_json_beyond_64_bits_stays_text_as_in_csv(case: SinkCase) -> None:
    key = 2**64 + 3
    put(case, "1.jsonl", [key, key + 1, 5])
    case.load("*.jsonl")
    assert ids(case) == [str(key), str(key + 1), "5"]


def test_numbers_within_json_objects_keep_their_digits(case: SinkCase) -> None:
    case.write("1.jsonl", f'{{"o": {{"id": {LARGE}}}}}\n{{"o": {{"id": 1.5}}}}\n')
    case.load("*.jsonl")
    assert [row["o"] for row in case.table().to_pylist()] == [f'{{"id": {LARGE}}}', '{"id": 1.5}']


def test_large_floats_of_json_stay_floats(case: SinkCase) -> None:
    put(case, "1.jsonl", ["1e300", "0.1234567890123456789", 1])
    case.load("*.jsonl")
    assert ids(case) == [1e300, 0.1234567890123456789, 1.0]


@pytest.mark.parametrize("first", [[12345, 2], [1.5, 2.5]])
@pytest.mark.parametrize("late", [False, True])
def test_a_number_with_leading_zeros_is_text(case: SinkCase, first: list[object], late: bool) -> None:
    put(case, "1.csv", [*first, *(first if not late else first * 3000), "01234"], "zip")
    output = case.load()
    assert types(case)["zip"] == "string"
    assert "01234" in {row["zip"] for row in case.rows()}
    assert remarks(output) == ["column zip is text, because numbers in it begin with a zero or a plus"]


@pytest.mark.parametrize("value", ["01234", '"01234"', "-01", " 01234", "0x1f"])
@pytest.mark.parametrize("rest", ["x", "2024-01-02", "03:00", '"a, ""b""\n01"'])
def test_also_in_a_later_load_and_beside_other_columns(case: SinkCase, value: str, rest: str) -> None:
    case.write("1.csv", f"zip,rest\n12345,{rest}\n")
    case.load()
    assert types(case)["zip"] == "int64"
    case.write("2.csv", f"zip,rest\n12345,{rest}\n{value},{rest}\n")
    with pytest.raises(DataError) as caught:
        case.load()
    assert caught.value.place.startswith("2.csv:")
    assert "columns: {zip: string}" in caught.value.hint


@pytest.mark.parametrize("first", [["1.5"], ["1"], ["1.5"] * 6000, ["1"] * 6000])
def test_a_telephone_number_is_text(case: SinkCase, first: list[object]) -> None:
    put(case, "1.csv", [*first, "+31612345678"])
    case.load()
    assert "+31612345678" in ids(case)


def test_a_plus_before_few_digits_is_a_number(case: SinkCase) -> None:
    put(case, "1.csv", ["+3", "-2", "+0.5"])
    case.load()
    assert ids(case) == [3.0, -2.0, 0.5]


def test_a_declared_integer_drops_zeros(case: SinkCase) -> None:
    put(case, "1.csv", ["01234", "5"])
    case.load(columns={"id": ColumnType.INTEGER})
    assert ids(case) == [1234, 5]


def test_zero_itself_and_fractions_below_one_are_numbers(case: SinkCase) -> None:
    put(case, "1.csv", ["0", "0.5", "-0.25", "10", "00.75"])
    case.load()
    assert ids(case) == [0.0, 0.5, -0.25, 10.0, 0.75]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a,b\n1,2\n3,40\n", False),
        ("a,b\n1,02\n", True),
        ("a,b\n02,1\n", False),
        ('a,b\n"x, 01",1\n', False),
        ('a,b\n"x\n,01",1\n', None),
        ('a,b\n"x ""y"" ,",01\n', True),
        ('a,b\n"x","01"\n', True),
        ("a,b\n2024-01-02,1\n", False),
        ("a,b\n01:02,0.5\n", False),
        ("a,b\n1,-007\n", True),
        ("a,b\n1,0", False),
        ("a,b\n1,00", True),
    ],
)
def test_zeros_are_found_in_bytes_however_they_are_cut(text: str, found: bool | None, size: int) -> None:
    zeros, data = LeadingZeros(delimiter=ord(","), columns=[1], width=2), text.encode()
    blocks = [data[at : at + size] for at in range(0, len(data), size)]
    seen = [zeros.see(block, block.count(b'"')) for block in (*blocks, b"")]
    assert found is None or any(seen) == found


def nanoseconds(*values: int) -> pa.Array:
    return pa.array(values, pa.timestamp("ns"))


def test_times_that_are_cut_are_counted(case: SinkCase) -> None:
    table = pa.table({"t": nanoseconds(1, 1000, 2001), "n": [0, 1, 2]})
    pq.write_table(table, case.folder / "1.parquet")
    assert remarks(case.load("*.parquet")) == ["2 values of column t cut to whole microseconds"]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_times_of_text_that_are_cut_are_counted(case: SinkCase, form: str) -> None:
    quote = '"' if form == "jsonl" else ""
    texts = [f"{quote}2024-01-01T00:00:00.{part}{quote}" for part in ("123456", "123456700", "1234560")]
    put(case, f"1.{form}", texts)
    assert remarks(case.load(f"*.{form}")) == ["1 value of column id cut to whole microseconds"]
    assert ids(case)[1] == datetime(2024, 1, 1, 0, 0, 0, 123456, UTC)


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_times_too_far_away_are_refused(case: SinkCase, unit: str) -> None:
    values = [0, 18446744073710 * (1000 if unit == "ms" else 1)]  # as microseconds 64 bits overflow, to 1970
    pq.write_table(pa.table({"t": pa.array(values, pa.timestamp(unit))}), case.folder / "1.parquet")
    with pytest.raises(DataError, match="a time beyond the years 1 to 9999' is not of type timestamp"):
        case.load("*.parquet")


def test_decimals_that_are_rounded_are_counted(case: SinkCase) -> None:
    values = [Decimal("0.1000"), Decimal("1234567890123456.1234"), None]
    pq.write_table(pa.table({"d": pa.array(values, pa.decimal128(20, 4))}), case.folder / "1.parquet")
    assert remarks(case.load("*.parquet")) == ["1 value of column d rounded to the nearest float"]


def test_whole_decimals_are_integers(case: SinkCase) -> None:
    values = [Decimal(LARGE), Decimal(-3)]
    pq.write_table(pa.table({"d": pa.array(values, pa.decimal128(38, 0))}), case.folder / "1.parquet")
    case.load("*.parquet")
    assert {row["d"] for row in case.rows()} == {LARGE, -3}


def test_times_do_not_become_dates_by_themselves(case: SinkCase) -> None:
    pq.write_table(pa.table({"d": [date(2024, 1, 1)]}), case.folder / "1.parquet")
    case.load("*.parquet")
    pq.write_table(pa.table({"d": TIMES}), case.folder / "2.parquet")
    case.load("*.parquet")
    assert datetime(2024, 1, 2, 6, tzinfo=UTC) in {row["d"] for row in case.rows()}


def test_a_declared_date_cuts_times_and_counts_them(case: SinkCase) -> None:
    pq.write_table(pa.table({"d": TIMES}), case.folder / "1.parquet")
    output = case.load("*.parquet", columns={"d": ColumnType.DATE})
    assert remarks(output) == ["1 value of column d cut to their date"]
    other = SinkCase(case.folder / "other")
    other.folder.mkdir()
    other.write("1.csv", "d\n01/02/2013 13:05\n01/02/2013 00:00\n")
    output = other.load(timestamp_format="%d/%m/%Y %H:%M", columns={"d": ColumnType.DATE})
    assert remarks(output) == ["1 value of column d cut to their date"]


@pytest.mark.parametrize("value", [5, 0.5])
def test_other_numbers_than_0_and_1_are_no_booleans(case: SinkCase, value: object) -> None:
    put(case, "1.parquet", [True])
    case.load("*.parquet")
    put(case, "2.parquet", [value])
    with pytest.raises(DataError, match=f"{value} is not of type boolean"):
        case.load("*.parquet")


@pytest.mark.parametrize(
    "type_", [pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.date32(), pa.date64(), pa.time64("us")]
)
@pytest.mark.parametrize("declared", [ColumnType.INTEGER, ColumnType.FLOAT, ColumnType.BOOLEAN])
def test_times_are_no_numbers(case: SinkCase, type_: pa.DataType, declared: ColumnType) -> None:
    times = pa.array([None, 86_400_000], pa.int64()).cast(pa.int32() if type_ == pa.date32() else pa.int64())
    pq.write_table(pa.table({"at": times.cast(type_)}), case.folder / "1.parquet")
    with pytest.raises(DataError, match=f"is not of type {declared}") as caught:
        case.load("*.parquet", columns={"at": declared})
    assert caught.value.place == "1.parquet: row 2"


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "America/New_York"])
def test_a_time_is_cut_to_its_date_in_utc(case: SinkCase, zone: str | None) -> None:
    times = pa.array([-1, 0], pa.int64())
    pq.write_table(pa.table({"on": times.cast(pa.timestamp("ms", zone))}), case.folder / "1.parquet")
    case.load("*.parquet", columns={"on": ColumnType.DATE})
    assert {row["on"] for row in case.rows()} == {date(1969, 12, 31), date(1970, 1, 1)}


@pytest.mark.parametrize("beside", ['"x"', str(LARGE), "true", "3", "0.5"])
@pytest.mark.parametrize("value", ["-1500.0", "-1.5E+3"])
def test_a_whole_number_of_json_with_a_fraction_of_zero_is_one_whatever_is_beside_it(
    case: SinkCase, value: str, beside: str
) -> None:
    put(case, "1.jsonl", [value, beside])
    case.load("*.jsonl", columns={"id": ColumnType.INTEGER}, on_misfit=OnMisfit.REJECT)
    assert -1500 in [row["id"] for row in case.rows()]


@pytest.mark.parametrize("beside", ['"x"', "false", "0.5"])
def test_true_in_numbers_of_json_is_1_whatever_is_beside_it(case: SinkCase, beside: str) -> None:
    put(case, "1.jsonl", ["true", beside, "-0.0"])
    case.load("*.jsonl", columns={"id": ColumnType.FLOAT}, on_misfit=OnMisfit.REJECT)
    assert {str(row["id"]) for row in case.rows()} >= {"1.0", "-0.0"}


def test_a_text_of_space_alone_is_missing_in_a_declared_column(case: SinkCase) -> None:
    put(case, "1.jsonl", ['" 12 "', '" "', '""'])
    case.load("*.jsonl", columns={"id": ColumnType.INTEGER})
    assert [row["id"] for row in case.rows()] == [12, None, None]


def test_unsigned_numbers_beyond_64_bits_are_refused_with_their_place(case: SinkCase) -> None:
    table = pa.table({"id": pa.array([1, 2**63], pa.uint64())})
    pq.write_table(table, case.folder / "1.parquet")
    with pytest.raises(DataError, match=str(2**63)) as caught:
        case.load("*.parquet")
    assert caught.value.place == "1.parquet: row 2"
    case.load("*.parquet", columns={"id": ColumnType.STRING})
    assert {row["id"] for row in case.rows()} == {"1", str(2**63)}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_blank_line_of_a_single_column_is_a_missing_value(case: SinkCase, end: str) -> None:
    case.write("1.csv", end.join(["", "", "id", "1", "", "3", "x", ""]))
    case.load()
    assert case.table().to_pylist() == [{"id": "1"}, {"id": None}, {"id": "3"}, {"id": "x"}]
    case.write("2.csv", end.join(["", "n,m", "1,2", "", "3,4", ""]))
    with pytest.raises(DataError):
        case.load(columns={"id": ColumnType.INTEGER})


def test_the_line_of_a_misfit_counts_blank_lines(case: SinkCase) -> None:
    case.write("1.csv", '\nid\n1\n\n"a\nb"\n\n3\nx\n')
    with pytest.raises(DataError) as caught:
        case.load(columns={"id": ColumnType.INTEGER})
    assert caught.value.place == "1.csv:5"
    case.write("1.csv", "\nid\n1\n\n3\n\nx\n")
    with pytest.raises(DataError) as caught:
        case.load(columns={"id": ColumnType.INTEGER})
    assert caught.value.place == "1.csv:7"


def test_blank_lines_of_several_columns_are_no_rows(case: SinkCase) -> None:
    case.write("1.csv", "a,b\n1,2\n\n3,4\n\n")
    assert case.load().rows == 2


@pytest.mark.parametrize("text", ["9007199254740993.0", "9007199254740993.00e0", "90071992547409930e-1"])
def test_a_whole_number_of_json_keeps_its_digits_however_it_is_written(tmp_path: Path, text: str) -> None:
    case = SinkCase(tmp_path)
    case.write("a.jsonl", f'{{"id": {text}}}\n{{"id": -{text}}}\n{{"id": 12.0}}\n')
    case.load("*.jsonl", columns={"id": ColumnType.INTEGER})
    assert sorted(row["id"] for row in case.rows()) == [-9007199254740993, 12, 9007199254740993]


def test_a_fraction_of_json_beyond_all_exact_floats_is_no_whole_number(tmp_path: Path) -> None:
    case = SinkCase(tmp_path)
    case.write("a.jsonl", '{"id": 9007199254740993.5}\n')
    with pytest.raises(DataError, match="id"):
        case.load("*.jsonl", columns={"id": ColumnType.INTEGER})
