"""Excel files: dates, merged cells, empty rows, formulas, cells with errors, several sheets."""

import zipfile
from datetime import UTC, date, datetime, time
from pathlib import Path

import pytest
from tests.kit.sink_case import SinkCase

from gridmill.domain.sink import ColumnType
from gridmill.errors import DataError, InputError

openpyxl = pytest.importorskip("openpyxl", reason="openpyxl is not installed")


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


def _book(case: SinkCase, *rows: list[object], name: str = "a.xlsx", **more: list[list[object]]):
    book = openpyxl.Workbook()
    sheet = book.active
    for row in rows:
        sheet.append(row)
    for title, others in more.items():
        other = book.create_sheet(title)
        for row in others:
            other.append(row)
    book.save(case.folder / name)
    return book


def test_cells_of_all_types(case: SinkCase):
    _book(
        case,
        ["id", "day", "at", "zip", "price", "open", "mixed", "clock"],
        [1, date(2024, 1, 5), datetime(2024, 1, 5, 15, 4), "01234", 1.5, True, 7, time(3, 4)],
        [2.0, datetime(2024, 1, 6), datetime(2024, 1, 6), "1235", 2, False, "x", time(5, 6, 7)],
    )
    output = case.load("*.xlsx")
    assert case.rows() == [
        {
            "id": 1,
            "day": date(2024, 1, 5),
            "at": datetime(2024, 1, 5, 15, 4, tzinfo=UTC),
            "zip": "01234",
            "price": 1.5,
            "open": True,
            "mixed": "7",
            "clock": "03:04:00",
        },
        {
            "id": 2,
            "day": date(2024, 1, 6),
            "at": datetime(2024, 1, 6, tzinfo=UTC),
            "zip": "1235",
            "price": 2.0,
            "open": False,
            "mixed": "x",
            "clock": "05:06:07",
        },
    ]
    assert output.details["remarks"] == []


def test_empty_rows_and_columns_are_left_out(case: SinkCase):
    _book(case, [], [None, "a", None, "b"], [], [None, 1, None, "x"], [None, None, None, None], [None, 2])
    case.load("*.xlsx")
    assert case.rows() == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]


def test_a_column_without_a_name(case: SinkCase):
    _book(case, ["a", None], [1, 2])
    case.load("*.xlsx")
    assert case.rows() == [{"a": 1, "column_2": 2}]


def test_cells_with_errors_are_missing_and_counted(case: SinkCase):
    book = openpyxl.Workbook()
    for row in (["a", "b"], [1, "x"], ["#N/A", "y"], ["#DIV/0!", "#N/A"], [4, "z"]):
        book.active.append(row)
    for place in ("A3", "A4"):
        book.active[place].data_type = "e"
    book.active["B4"].data_type = "s"  # a text that looks like an error is none
    book.save(case.folder / "a.xlsx")
    output = case.load("*.xlsx")
    assert [row["a"] for row in sorted(case.rows(), key=lambda row: row["b"])] == [None, 1, None, 4]
    assert sorted(output.details["remarks"]) == [
        "1 value of column a missing because of the cell error #DIV/0!",
        "1 value of column a missing because of the cell error #N/A",
    ]


def test_merged_cells_have_the_value_of_the_first(case: SinkCase):
    book = openpyxl.Workbook()
    for row in (["region", "n", "m"], ["north", 1, 5], [None, 2, None], ["south", 3, 6]):
        book.active.append(row)
    book.active.merge_cells("A2:A3")
    book.active.merge_cells("C2:C3")
    book.save(case.folder / "a.xlsx")
    output = case.load("*.xlsx")
    assert [(row["region"], row["n"], row["m"]) for row in sorted(case.rows(), key=lambda row: row["n"])] == [
        ("north", 1, 5),
        ("north", 2, 5),
        ("south", 3, 6),
    ]
    assert output.details["remarks"] == [
        "1 value of column region taken from the first of their merged cells",
        "1 value of column m taken from the first of their merged cells",
    ]


def test_a_formula_is_the_value_that_was_saved(case: SinkCase):
    _book(case, ["a", "b"], [2, "=A2*3"])
    path = case.folder / "a.xlsx"
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    assert b"<v></v>" in parts[sheet] or b"<v />" in parts[sheet]
    parts[sheet] = parts[sheet].replace(b"<v></v>", b"<v>6</v>").replace(b"<v />", b"<v>6</v>")
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    case.load("*.xlsx")
    assert case.rows() == [{"a": 2, "b": 6}]


def test_one_of_several_sheets_is_named(case: SinkCase):
    _book(case, ["a"], [1], Other=[["b"], [2]], Empty=[])
    with pytest.raises(DataError, match="2 sheets with values") as caught:
        case.load("*.xlsx")
    assert "`sheet: 'Sheet'` or `sheet: 'Other'`" in caught.value.hint
    case.load("*.xlsx", sheet="Other")
    assert case.rows() == [{"b": 2}]
    with pytest.raises(DataError, match="there is no sheet 'Otter'") as caught:
        case.load("*.xlsx", sheet="Otter")
    assert "'Other'" in caught.value.hint


def test_an_error_names_the_row_of_the_sheet(case: SinkCase):
    _book(case, [], ["at"], [], ["2024-01-05"], ["x"])
    with pytest.raises(DataError) as caught:
        case.load("*.xlsx", columns={"at": ColumnType.DATE})
    assert str(caught.value) == "a.xlsx:5: column 'at': 'x' is not of type date"


def test_texts_and_numbers_that_are_times(case: SinkCase):
    _book(case, ["at", "day"], [1704467040, "13/02/2024"], [None, "01/02/2024"])
    case.load("*.xlsx", columns={"at": ColumnType.TIMESTAMP})
    assert case.rows() == [
        {"at": None, "day": date(2024, 2, 1)},
        {"at": datetime(2024, 1, 5, 15, 4, tzinfo=UTC), "day": date(2024, 2, 13)},
    ]


def test_later_files_and_many_rows(case: SinkCase):
    _book(case, ["n", "t"], *[[number, f"t{number}"] for number in range(12_000)])
    case.load("*.xlsx")
    _book(case, ["n", "t"], [0.5, 3], name="b.xlsx")
    case.load("*.xlsx")
    assert len(case.table()) == 12_001
    assert {"n": 0.5, "t": "3"} in case.rows()


def test_what_is_no_excel_file(case: SinkCase):
    case.write("a.xlsx", "a,b\n1,2\n")
    with pytest.raises(DataError, match="not a readable Excel file"):
        case.load("*.xlsx")
    case.write("b.xls", b"\xd0\xcf\x11\xe0")
    with pytest.raises(InputError) as caught:
        case.load("b.xls")
    assert caught.value.hint == "Save it as .xlsx."


def test_an_empty_sheet(case: SinkCase):
    _book(case)
    with pytest.raises(DataError, match="the sheet is empty"):
        case.load("*.xlsx")
