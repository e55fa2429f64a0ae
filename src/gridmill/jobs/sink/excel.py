"""The Excel reader (.xlsx) reads the cells of a sheet in batches. The types of the cells determine the type
of a column."""

import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from datetime import date, datetime, time, timedelta
from importlib import import_module
from typing import Any

import pyarrow as pa

from gridmill.domain.frozen import dataclass
from gridmill.domain.source import Compression, Source
from gridmill.errors import DataError, InputError
from gridmill.jobs.sink.files import SourceFile
from gridmill.jobs.sink.formats import ExpectedTypes, Seen, check_names, pick

BATCH_ROWS = 5000
_MERGED = re.compile(rb'<mergeCell\s+ref="([A-Z]+)([0-9]+):([A-Z]+)([0-9]+)"')
_PIECE_BYTES = 2**20
_WHOLE = 2**53
"""The largest whole number that Excel stores exactly, because Excel stores numbers as floats. All whole
numbers below this number are stored exactly, too."""

Row = tuple[int, list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _MergedRange:
    """A range of merged cells: its rows and columns are counted from 1, and both ends are included."""

    first_row: int
    last_row: int
    first_column: int
    last_column: int


@dataclass(slots=True)
class ExcelReader:
    """Reads a sheet of an Excel file.

    The first row of the sheet that has a value is the header. Rows of the sheet without values are skipped.
    Below the header, all merged cells have the value of the first cell of their range. The value of a
    formula is the value that Excel saved with it. A cell with an error (`#N/A`) becomes a missing value.
    `lost` contains for each column the number of merged cells and the number of cells with errors.
    """

    file: SourceFile
    source: Source
    lost: Counter[str] = field(default_factory=Counter, init=False)
    _names: dict[int, str] | None = field(default=None, init=False)
    _header_row: int = field(default=0, init=False)

    def names(self) -> tuple[str, ...]:
        """Return the names of the columns in the header. Columns that have neither a name nor a value are
        left out. Raises DataError."""
        return tuple(self._columns().values())

    def batches(
        self, columns: tuple[str, ...] | None, seen: Seen, haste: ExpectedTypes | None = None
    ) -> Iterator[pa.Table]:
        """Yield all rows of the sheet. The types of the cells determine the types of the columns."""
        names = self._columns()
        wanted = [(at, name) for at, name in names.items() if columns is None or name in columns]
        order = list(columns) if columns is not None else [name for _, name in wanted]
        self.lost.clear()
        with self._opened() as sheet:
            rows = list[list[Any]]()
            for _, cells in self._rows(sheet):
                rows.append(cells)
                if len(rows) == BATCH_ROWS:
                    yield self._table(rows, wanted).select(order)
                    rows = []
            seen(self.file.size_bytes)
            if rows:
                yield self._table(rows, wanted).select(order)

    def lines(self, rows: Iterator[int]) -> Iterator[int | None]:
        """Yield the row numbers in the sheet."""
        self._columns()
        with self._opened() as sheet:
            yield from pick((number for number, _ in self._rows(sheet)), rows)

    def _columns(self) -> dict[int, str]:
        """Return the names of the columns by the numbers of the columns, from 0."""
        if self._names is None:
            self._names = self._read_columns()
        return self._names

    def _read_columns(self) -> dict[int, str]:
        with self._opened() as sheet:
            used: set[int] = set()
            header: list[Any] = []
            for number, cells in _filled_rows(sheet):
                if not self._header_row:
                    self._header_row, header = number, [_value(cell) for cell in cells]
                used.update(at for at, cell in enumerate(cells) if cell.value is not None)
        if not self._header_row:
            raise DataError("the sheet is empty", hint=self._sheet_hint(), place=self.file.name)
        named = {
            at: (_text(header[at]).strip() if at < len(header) and header[at] is not None else "")
            or f"column_{at + 1}"
            for at in sorted(used)
        }
        check_names(self.file, tuple(named.values()))
        return named

    def _rows(self, sheet: Any) -> Iterator[Row]:  # noqa: ANN401  openpyxl has no types
        """Yield the rows below the header that have a value, with their row numbers in the sheet."""
        merged = _MergedCells(self._merged(sheet))
        for number, cells in _all_rows(sheet):
            if number > self._header_row:
                row = merged.filled(number, cells)
                if any(cell is not None and cell.value is not None for cell in row):
                    yield number, row

    def _table(self, rows: Sequence[list[Any]], wanted: Sequence[tuple[int, str]]) -> pa.Table:
        arrays = []
        for at, name in wanted:
            cells = [row[at] if at < len(row) else None for row in rows]
            self._count(name, cells)
            arrays.append(_array([None if cell is None else _value(cell) for cell in cells]))
        return pa.Table.from_arrays(arrays, names=[name for _, name in wanted])

    def _count(self, name: str, cells: Sequence[Any]) -> None:
        """Count the values that differ from the cells of the sheet."""
        errors = Counter(cell.value for cell in cells if cell is not None and cell.data_type == "e")
        for text, count in errors.items():
            self.lost[f"{name} missing because of the cell error {text}"] += count
        merged = sum(isinstance(cell, _MergedCopy) for cell in cells)
        if merged:
            self.lost[f"{name} taken from the first of their merged cells"] += merged

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Open the sheet of the Excel file. Raises DataError."""
        if self.file.compression != Compression.NONE:
            raise DataError(
                f"an Excel file cannot be read through {self.file.compression}",
                hint="Unpack the file: Excel files are already compressed.",
                place=self.file.name,
            )
        book = None
        try:
            book = _library().load_workbook(self.file.local(), read_only=True, data_only=True)
            sheet = self._sheet(book)
            sheet.reset_dimensions()  # counted anew, because some programs write wrong dimensions
            yield sheet
        except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
            raise DataError(
                f"not a readable Excel file: {error}",
                hint="Save the file as .xlsx; older formats (.xls) cannot be read.",
                place=self.file.name,
            ) from error
        finally:
            if book is not None:
                book.close()

    def _sheet(self, book: Any) -> Any:  # noqa: ANN401
        names = [sheet.title for sheet in book.worksheets]
        if self.source.sheet is not None:
            if self.source.sheet not in names:
                raise DataError(
                    f"there is no sheet {self.source.sheet!r}",
                    hint=f"Its sheets are {', '.join(map(repr, names))}.",
                    place=self.file.name,
                )
            return book[self.source.sheet]
        filled = [sheet for sheet in book.worksheets if _has_cells(sheet)]
        if len(filled) > 1:
            shown = " or ".join(f"`sheet: {sheet.title!r}`" for sheet in filled[:5])
            raise DataError(
                f"the file has {len(filled)} sheets with values",
                hint=f"Write {shown} under `source`.",
                place=self.file.name,
            )
        return filled[0] if filled else book.worksheets[0]

    def _sheet_hint(self) -> str:
        return (
            "Write the sheet's header, or name another `sheet`." if self.source.sheet else "Write its header."
        )

    def _merged(self, sheet: Any) -> list[_MergedRange]:  # noqa: ANN401
        """Return the ranges of merged cells, because openpyxl does not read them in its streaming mode."""
        result, rest = [], b""
        with zipfile.ZipFile(self.file.local()) as archive, archive.open(sheet._worksheet_path) as text:
            while piece := text.read(_PIECE_BYTES):
                rest += piece
                end = 0
                for match in _MERGED.finditer(rest):
                    result.append(_range(*match.groups()))
                    end = match.end()
                rest = rest[max(end, len(rest) - 100) :]
        return result


def _library() -> Any:  # noqa: ANN401
    try:
        return import_module("openpyxl")
    except ImportError as error:
        raise InputError(
            "Excel files need the package openpyxl", hint='pip install "gridmill[data]"'
        ) from error


def _range(first_column: bytes, first_row: bytes, last_column: bytes, last_row: bytes) -> _MergedRange:
    return _MergedRange(
        first_row=int(first_row),
        last_row=int(last_row),
        first_column=_column_number(first_column),
        last_column=_column_number(last_column),
    )


def _column_number(letters: bytes) -> int:
    number = 0
    for letter in letters:
        number = number * 26 + letter - ord("A") + 1
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class _MergedCopy:
    """A cell that has the value of the first cell of its merged range."""

    value: Any
    data_type: str


class _MergedCells:
    """Assigns values to merged cells, row by row."""

    def __init__(self, ranges: Sequence[_MergedRange]) -> None:
        self._ranges = sorted(ranges, key=lambda one: one.first_row)
        self._next = 0
        self._open: list[tuple[_MergedRange, Any]] = []

    def filled(self, number: int, cells: Sequence[Any]) -> list[Any]:
        """Return the cells of a row with the values of its merged cells. The caller must pass the rows of
        the sheet in order."""
        row = list(cells)
        while self._next < len(self._ranges) and self._ranges[self._next].first_row <= number:
            one = self._ranges[self._next]
            self._next += 1
            at = one.first_column - 1
            if one.first_row == number and at < len(row) and row[at].value is not None:
                self._open.append((one, row[at]))
        self._open = [(one, cell) for one, cell in self._open if one.last_row >= number]
        for one, cell in self._open:
            row += [None] * (one.last_column - len(row))
            for at in range(one.first_column - 1, one.last_column):
                if row[at] is None or row[at].value is None:
                    row[at] = _MergedCopy(value=cell.value, data_type=cell.data_type)
        return row


def _all_rows(sheet: Any) -> Iterator[tuple[int, tuple[Any, ...]]]:  # noqa: ANN401
    yield from enumerate(sheet.iter_rows(), start=1)


def _filled_rows(sheet: Any) -> Iterator[tuple[int, tuple[Any, ...]]]:  # noqa: ANN401
    for number, cells in _all_rows(sheet):
        if any(cell.value is not None for cell in cells):
            yield number, cells


def _has_cells(sheet: Any) -> bool:  # noqa: ANN401
    sheet.reset_dimensions()
    return next(_filled_rows(sheet), None) is not None


def _value(cell: Any) -> Any:  # noqa: ANN401
    return None if cell.data_type == "e" else cell.value


def _text(value: object) -> str:
    """Return a value as text for a column of texts. Whole numbers have no fraction, and times are in ISO
    8601."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < _WHOLE:
        return str(int(value))
    if isinstance(value, datetime) and value.time() == time():
        return value.date().isoformat()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value)


def _array(values: Sequence[Any]) -> pa.Array:
    """Return the values as an array of their common type. If the values have several types, return them as
    texts."""
    present_values = [value for value in values if value is not None]
    kinds = {type(value) for value in present_values}
    if not present_values:
        return pa.nulls(len(values))
    if kinds <= {bool}:
        return pa.array(values, pa.bool_())
    if kinds <= {int, float}:
        whole = all(float(value).is_integer() and abs(value) < _WHOLE for value in present_values)
        if whole:
            return pa.array([None if value is None else int(value) for value in values], pa.int64())
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if kinds <= {datetime}:
        return _times(values, present_values)
    if kinds <= {timedelta}:
        return pa.array([None if value is None else value.total_seconds() for value in values], pa.float64())
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _times(values: Sequence[datetime | None], present: Sequence[datetime]) -> pa.Array:
    """Return the values as times, or as dates if no cell has a time of day."""
    if all(value.time() == time() for value in present):
        return pa.array([None if value is None else value.date() for value in values], pa.date32())
    return pa.array(values, pa.timestamp("us"))
