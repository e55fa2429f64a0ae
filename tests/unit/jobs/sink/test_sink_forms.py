"""Dates and numbers in common forms: what is recognized, and what is refused with the line to add."""

import json
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from tests.kit.sink_case import SinkCase
from tests.oracles import form_cases

from gridmill.domain.sink import ColumnType, OnMisfit
from gridmill.domain.source import Source
from gridmill.errors import DataError, InputError

DAY = date(2024, 1, 5)
TIME = datetime(2024, 1, 5, 15, 4, tzinfo=UTC)


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


def _column(case: SinkCase, *texts: str, delimiter: str = ";", **spec: object) -> list[object]:
    """The values of a column of a CSV file of these texts."""
    rows = "".join(f'"{text}"{delimiter}{number}\n' for number, text in enumerate(texts))
    case.write("a.csv", f"x{delimiter}n\n{rows}")
    case.load(delimiter=delimiter, **spec)
    return case.table().sort_by("n")["x"].to_pylist()


@pytest.mark.parametrize(
    "text",
    [
        "2024/01/05",
        "2024/1/5",
        "2024-1-5",
        "2024.01.05",
        "Jan 5 2024",
        "Jan 5, 2024",
        "January 5, 2024",
        "Jan. 5 2024",
        "Fri, Jan 5 2024",
        "5 Jan 2024",
        "05-JAN-2024",
        "5 January 2024",
        "5. Jan 2024",
        "5th January 2024",
        "05JAN2024",
        "2024 Jan 5",
        "2024-W01-5",
        "2024W015",
    ],
)
def test_dates_in_forms_that_have_one_meaning(case: SinkCase, text: str):
    assert _column(case, text, text) == [DAY, DAY]


@pytest.mark.parametrize(
    "text",
    [
        "2024-01-05 3:04 PM",
        "2024-01-05 03:04pm",
        "2024/01/05 15:04",
        "2024/1/5 15:04:00.000",
        "2024-01-05T17:04:00+02:00",
        "2024/01/05 10:04 -0500",
        "2024-01-05 15:04 UTC",
        "Jan 5 2024 3:04 p.m.",
        "January 5, 2024 at 3:04 PM",
        "5 Jan 2024 15:04:00",
        "Fri, 05 Jan 2024 15:04:00 +0000",
        "5 Jan 2024 16:04:00 +0100",
        "Fri Jan  5 15:04:00 2024",
        "05/Jan/2024:15:04:00 +0000",
        "20240105T150400Z",
        "20240105T150400",
        "2024-W01-5T15:04",
        "2024-01-05T15:04:00,000Z",
    ],
)
def test_times_in_forms_that_have_one_meaning(case: SinkCase, text: str):
    assert _column(case, text) == [TIME]


def test_a_column_may_mix_them(case: SinkCase):
    assert _column(case, "2024-01-05", "Jan 5 2024", "2024/01/05 15:04") == [
        datetime(2024, 1, 5, tzinfo=UTC),
        datetime(2024, 1, 5, tzinfo=UTC),
        TIME,
    ]


@pytest.mark.parametrize(
    "text",
    [
        "2024/02/30",
        "2024-13-01",
        "Thu, Jan 5 2024",  # it was a Friday
        "2024-W54-1",
        "2024/01-05",
        "Jan 5 2024 25:00",
        "2024/01/05 13:04 PM",
        "5 Foo 2024",
        "2024.1.5",  # a version, perhaps
        "2024-005",  # a number of an invoice, perhaps
        "2024-W01",
    ],
)
def test_what_is_no_time_stays_text(case: SinkCase, text: str):
    assert _column(case, text) == [text]


def test_the_error_for_another_form_names_the_cure(case: SinkCase):
    with pytest.raises(DataError, match="column 'x': '5 Foo 2024' is not of type timestamp") as caught:
        _column(case, "2024-01-05", "5 Foo 2024", columns={"x": ColumnType.TIMESTAMP})
    assert "timestamp_format: {x: '%d.%m.%Y %H:%M'}" in caught.value.hint
    assert caught.value.place == "a.csv:3"


def test_an_ordinal_date_where_the_column_is_declared(case: SinkCase):
    assert _column(case, "2024-005", columns={"x": ColumnType.DATE}) == [DAY]


def test_how_a_form_is_read_is_shown(case: SinkCase):
    case.write("a.csv", "x,y\n13/02/2024,1\n")
    output = case.load()
    assert "column x: '13/02/2024' is read as 2024-02-13" in output.details["remarks"]


# day and month


def test_a_day_beyond_12_decides_for_the_column(case: SinkCase):
    assert _column(case, "01/02/2024", "13/02/2024", "2024-02-14") == [
        date(2024, 2, 1),
        date(2024, 2, 13),
        date(2024, 2, 14),
    ]
    (case.folder / "m").mkdir()
    american = SinkCase(case.folder / "m")
    assert _column(american, "01/02/2024", "02/13/2024") == [date(2024, 1, 2), date(2024, 2, 13)]


@pytest.mark.parametrize("declared", [{}, {"columns": {"x": ColumnType.DATE}}])
def test_where_no_row_decides_both_readings_are_shown(case: SinkCase, declared: dict[str, object]):
    with pytest.raises(DataError) as caught:
        _column(case, "2024-01-05", "01/02/2024", **declared)
    error = caught.value
    assert (
        error.message
        == "column 'x': '01/02/2024' is 1 February 2024 or 2 January 2024, and no row shows which is right"
    )
    assert "`timestamp_format: {x: '%d/%m/%Y'}` (day first)" in error.hint
    assert "`timestamp_format: {x: '%m/%d/%Y'}` (month first)" in error.hint
    assert error.place == "a.csv:3"


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("01/02/2024", "%d/%m/%Y"),
        ("1.2.2024 10:30", "%d.%m.%Y %H:%M"),
        ("01-02-2024 10:30:15", "%d-%m-%Y %H:%M:%S"),
        ("01/02/2024 3:04 PM", "%d/%m/%Y %I:%M %p"),
        ("01/02/2024 10:30:15.5+02:00", "%d/%m/%Y %H:%M:%S.%f%z"),
    ],
)
def test_the_line_of_the_hint_loads_the_file(case: SinkCase, text: str, pattern: str):
    with pytest.raises(DataError) as caught:
        _column(case, text)
    assert f"`timestamp_format: {{x: {pattern!r}}}`" in caught.value.hint
    (value,) = _column(case, text, timestamp_format={"x": pattern})
    assert (value.month, value.day) == (2, 1)


def test_a_date_that_is_the_same_in_both_orders_decides_nothing(case: SinkCase):
    assert _column(case, "01/01/2024") == [date(2024, 1, 1)]
    case.write("b.csv", "x;n\n13/01/2024;1\n")
    case.load(delimiter=";")
    assert sorted(case.table()["x"].to_pylist()) == [date(2024, 1, 1), date(2024, 1, 13)]


def test_rows_of_one_load_must_agree(case: SinkCase):
    with pytest.raises(
        DataError, match="'13/02/2024' has the day first, and '02/13/2024' has the month first"
    ):
        _column(case, "13/02/2024", "02/13/2024")


def test_rows_of_several_files_must_agree(case: SinkCase):
    """Also where the first file shows nothing, and rows of a wrong type are rejected."""
    case.write("a.csv", "x\n5 Jan 2024\n")
    case.write("b.csv", "x\n2024-W07-3\n1.23.2024\n24.12.1984\n")
    for more in ({}, {"columns": {"x": ColumnType.DATE}, "on_misfit": OnMisfit.REJECT}):
        with pytest.raises(DataError, match=r"has the day first, and .* has the month first"):
            case.load(**more)


def test_the_order_of_the_first_load_is_kept(case: SinkCase):
    _column(case, "13/02/2024")
    case.write("b.csv", "x;n\n01/02/2024;1\n")
    case.load(delimiter=";")
    assert sorted(case.table()["x"].to_pylist()) == [date(2024, 2, 1), date(2024, 2, 13)]
    case.write("c.csv", "x;n\n02/13/2024;1\n")
    with pytest.raises(DataError, match=r"'02/13/2024'") as caught:
        case.load(delimiter=";")
    assert caught.value.place == "c.csv:2"


def test_a_later_row_of_another_order_is_rejected(case: SinkCase):
    spec = {"columns": {"x": ColumnType.DATE}, "on_misfit": OnMisfit.REJECT}
    _column(case, "13/02/2024", **spec)
    case.write("b.csv", "x;n\n01/02/2024;1\n02/13/2024;2\n")
    output = case.load(delimiter=";", **spec)
    assert sorted(case.table()["x"].to_pylist()) == [date(2024, 2, 1), date(2024, 2, 13)]
    assert [row["reasons"] for row in case.rejects(output)] == [["x: not of type date"]]


def test_a_later_file_decides_where_the_first_did_not(case: SinkCase):
    for spec in ({}, {"columns": {"x": ColumnType.DATE}, "on_misfit": OnMisfit.REJECT}):
        folder = case.folder / f"f{len(spec)}"
        folder.mkdir()
        one = SinkCase(folder)
        one.write("a.csv", "x\n2024-02-14\n")
        one.load(**spec)
        one.write("b.csv", "x\n13/02/2024\n01/02/2024\n")
        one.load(**spec)
        assert len(one.table()) == 3


@pytest.mark.parametrize("text", ["01/02/24", "13.02.24", "5-Jan-24", "01/02/24 10:30"])
def test_years_of_two_digits_are_refused(case: SinkCase, text: str):
    with pytest.raises(DataError, match="a year of two digits") as caught:
        _column(case, text)
    assert "timestamp_format: {x: '%" in caught.value.hint
    pattern = caught.value.hint.partition("{x: '")[2].partition("'")[0]
    (value,) = _column(case, text, timestamp_format={"x": pattern})
    assert value.year == 2024


# numbers as times


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("20240105", datetime(2024, 1, 5, tzinfo=UTC)),
        ("20240105150400", TIME),
        ("1704467040", TIME),
        ("1704467040.0", TIME),
        ("1704467040000", TIME),
        ("1704467040000000", TIME),
        ("1704467040000000000", TIME),
    ],
)
def test_numbers_in_a_column_declared_timestamp(case: SinkCase, text: str, time: datetime):
    assert _column(case, text, columns={"x": ColumnType.TIMESTAMP}) == [time]


def test_numbers_stay_numbers_without_a_declaration(case: SinkCase):
    assert _column(case, "20240105") == [20240105]


def test_days_of_digits_in_a_column_declared_date(case: SinkCase):
    assert _column(case, "20240105", columns={"x": ColumnType.DATE}) == [DAY]


def test_numbers_of_json_count_as_in_csv(case: SinkCase):
    case.write("a.jsonl", "".join(json.dumps({"x": x}) + "\n" for x in (1704467040000, None)))
    output = case.load("a.jsonl", columns={"x": ColumnType.TIMESTAMP})
    assert case.table()["x"].to_pylist() == [TIME, None]
    assert output.details["remarks"] == ["column x: '1704467040000' is read as 2024-01-05T15:04:00Z"]


def test_the_unit_is_one_for_the_column(case: SinkCase):
    with pytest.raises(DataError, match="do not count the time since 1970 in the same unit"):
        _column(case, "1704467040", "1704467040000", columns={"x": ColumnType.TIMESTAMP})


def test_a_number_that_does_not_show_its_unit(case: SinkCase):
    with pytest.raises(DataError, match="'86400' is not of type timestamp") as caught:
        _column(case, "86400", columns={"x": ColumnType.TIMESTAMP})
    assert "`timestamp_format: {x: unix_s}`" in caught.value.hint
    assert _column(case, "86400", timestamp_format={"x": "unix_s"}) == [datetime(1970, 1, 2, tzinfo=UTC)]


def test_a_number_of_twelve_digits_may_be_two_times(case: SinkCase):
    with pytest.raises(DataError, match=r"5 January 2024 15:04:00 .* or .* 1976 .*milliseconds") as caught:
        _column(case, "202401051504", columns={"x": ColumnType.TIMESTAMP})
    assert "'%Y%m%d%H%M'" in caught.value.hint
    assert "unix_ms" in caught.value.hint


@pytest.mark.parametrize("given", ["unix", {"x": "unix"}])
def test_an_unknown_unit_is_refused(given: str | dict[str, str]):
    with pytest.raises(InputError, match="'unix' is neither a pattern"):
        Source(path="a.csv", timestamp_format=given).check()


# decimals and thousands


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["3,14", "2"], [3.14, 2.0]),
        (["1.234,5", "3"], [1234.5, 3.0]),
        (["1.234", "0,5"], [1234.0, 0.5]),
        (["1,234", "0,500"], [1.234, 0.5]),
        (["1,234", "1.5"], [1234.0, 1.5]),
        (["1,234.5", "-2"], [1234.5, -2.0]),
        (["1,234,567", "8"], [1234567, 8]),
        (["1'234", "5"], [1234, 5]),
        (["1.234.567", "1,234"], [1234567.0, 1.234]),
        (["1.234", "2.345"], [1.234, 2.345]),
        (["01234", "1,5"], ["01234", "1,5"]),
        (["3,14", "1.5"], ["3,14", "1.5"]),
        (["555 123 456", "1"], ["555 123 456", "1"]),
        (["1,23,4", "1"], ["1,23,4", "1"]),
    ],
)
@pytest.mark.parametrize("delimiter", [";", ","])
def test_numbers_with_other_signs(case: SinkCase, delimiter: str, texts: list[str], values: list[object]):
    assert _column(case, *texts, delimiter=delimiter) == values


@pytest.mark.parametrize("declared", [{}, {"columns": {"x": ColumnType.FLOAT}}])
def test_a_number_that_may_be_two(case: SinkCase, declared: dict[str, object]):
    with pytest.raises(DataError) as caught:
        _column(case, "5", "1,234", **declared)
    assert caught.value.message == "column 'x': '1,234' is 1234 or 1.234, and no row shows which is right"
    assert caught.value.place == "a.csv:3"
    assert "`decimal: '.'`" in caught.value.hint
    assert "`decimal: ','`" in caught.value.hint


def test_a_declared_decimal_sign(tmp_path: Path):
    for number, (decimal, value) in enumerate({",": 1.234, ".": 1234}.items()):
        case = SinkCase(tmp_path / str(number))
        case.folder.mkdir()
        assert _column(case, "1,234", decimal=decimal) == [value]
        case.write("b.csv", "x;n\n1.500;1\n")
        case.load(delimiter=";", decimal=decimal)
        assert max(case.table()["x"].to_pylist()) == {",": 1500.0, ".": 1234.0}[decimal]
    with pytest.raises(InputError, match="`decimal` must be"):
        Source(path="a.csv", decimal="·").check()


def test_groups_by_spaces_where_the_column_is_declared(case: SinkCase):
    texts = ("1 234 567", "1\u202f234", "12\u00a0345,5")
    assert _column(case, *texts, columns={"x": ColumnType.FLOAT}) == [1234567.0, 1234.0, 12345.5]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_whole_numbers_with_decimals_in_a_column_declared_integer(case: SinkCase, suffix: str):
    texts = ["100.0", "-5.", "1e2", "1.5e1", "+7", "2"]
    if suffix == "csv":
        case.write("a.csv", "x,y\n" + "".join(f"{text},\n" for text in texts))
    else:
        case.write("a.jsonl", "".join(json.dumps({"x": text}) + "\n" for text in texts))
    case.load(f"a.{suffix}", columns={"x": ColumnType.INTEGER})
    assert case.table()["x"].to_pylist() == [100, -5, 100, 15, 7, 2]


@pytest.mark.parametrize("text", ["100.5", "1e-1", "1e30", "9223372036854775808.0", "1e999999999", "nan"])
def test_what_is_no_whole_number_is_refused(case: SinkCase, text: str):
    with pytest.raises(DataError, match="is not of type integer"):
        _column(case, "1", text, columns={"x": ColumnType.INTEGER})


def test_numbers_of_many_digits_lose_none(case: SinkCase):
    with pytest.raises(DataError, match="a float cannot represent exactly"):
        _column(case, "9.007.199.254.740.993", "0,5")
    assert _column(case, "12,345,678,901,234,567,890") == ["12,345,678,901,234,567,890"]


def test_values_beyond_the_first_rows_decide_too(tmp_path: Path):
    for number, spec in enumerate(({}, {"columns": {"d": ColumnType.DATE, "x": ColumnType.FLOAT}})):
        case = SinkCase(tmp_path / str(number))
        case.folder.mkdir()
        rows = "01/02/2024;1,234\n" * 6000 + "13/02/2024;3,14\n"
        case.write("a.csv", "d;x\n" + rows)
        case.load(delimiter=";", **spec)
        assert case.rows()[0] == {"d": date(2024, 2, 1), "x": 1.234}


@pytest.mark.parametrize("seed", [*range(5), 79])
def test_random_columns(tmp_path: Path, seed: int):
    """More of them: `make fuzz`, subject `forms`."""
    form_cases.case(seed, tmp_path)
