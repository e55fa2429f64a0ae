"""Reads the rows of a large request to a service, by the rules of HTTP requests, and writes their features.

A file is read in pieces, so that a file of any size needs little memory. It is read twice: first to check the
rows and to write their features, and later to write the rows with their predictions.
"""

import csv
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from gridmill.errors import DataError, GridmillError, InputError
from gridmill.serving.errors import FieldsError, Problem, RequestError
from gridmill.serving.fields import Field, FieldKind, RowReader
from gridmill.serving.table_values import checked_values, number_texts

POSITION = "gridmill_position"
"""The column with the position of a row among all rows of the file of features, from 0."""
PIECE_ROWS = 16_384
PIECE_BYTES = 8 * 2**20
"""A piece of a file has at most this number of rows, and ends with the line that reaches these bytes."""
LINE_BYTES = 64 * 2**20
"""The largest length of a line."""
_SEPARATORS = ";\t|"
"""Characters that other programs write between the cells of a line."""

RowCallback = Callable[[int, int, int], None]
"""A function that gets the number of rows so far, the bytes read so far, and all bytes (0: unknown)."""
Piece: TypeAlias = Any
"""Some neighboring rows of a request: numbered lines, or a batch and the number of rows before it."""
_DECODE = msgspec.json.Decoder().decode


class RequestRows(ABC):
    """The rows of a large request to a model. `label` names the request in errors. `ending` is the ending of
    the file of the answer."""

    def __init__(self, label: str, reader: RowReader, ending: str) -> None:
        self.label, self.reader, self.ending = label, reader, ending
        self.is_list = False
        """Whether a row is a list of objects, which has no columns that an answer could repeat."""
        self.hint = ""
        """The hint of an error in a row, if the rule has none."""
        self.table_versions: Mapping[str, int] = {}
        """The version numbers of the tables from which features are computed, by the names of the tables."""
        self.not_present: Mapping[str, Mapping[str, int]] = {}
        """The numbers of computed values that are not present, by feature and status."""

    def features(self) -> Iterator[pa.Table]:
        """Yield the values of the features, in pieces. A row of a model that reads sequences has `sequence`
        rows in a piece. Raises DataError for a row that the service would refuse."""
        for piece, features in self.computed(self.pieces()):
            yield features
            self.accept(piece)

    def computed(self, pieces: Iterator[Piece]) -> Iterator[tuple[Piece, pa.Table]]:
        """Yield each piece with the features of its rows."""
        for piece in pieces:
            yield piece, self.features_of(piece)

    @abstractmethod
    def pieces(self) -> Iterator[Piece]:
        """Yield all rows, in pieces. Raises InputError, DataError."""

    @abstractmethod
    def features_of(self, piece: Piece) -> pa.Table:
        """Return the features of the rows of a piece. Raises DataError."""

    @abstractmethod
    def accept(self, piece: Piece) -> None:
        """Learn from a piece whose rows are right what `batches` needs. Raises DataError."""

    @abstractmethod
    def batches(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the columns of the rows, and all rows in batches. Call it after `features`."""

    def bytes_read(self) -> tuple[int, int]:
        """Return the bytes that `features` has read so far, and all bytes (0: unknown)."""
        return 0, 0

    def shown(self) -> Iterator[pa.RecordBatch] | None:
        """Return what the answer shows about the features of each row, or None if it shows nothing. Call it
        after `write_features`."""
        return None

    def write_features(self, to: Path, on_rows: RowCallback | None = None) -> int:
        """Write the features of all rows with their positions as Parquet, and return the number of rows.
        Raises DataError for a row that the service would refuse, and for a request without rows; InputError
        for a file that cannot be read."""
        schema = pa.schema([*map(_arrow_field, self.reader.fields), pa.field(POSITION, pa.int64())])
        length, written = self.reader.sequence or 1, 0
        with _writing(to), pq.ParquetWriter(to, schema) as writer:
            for table in self.features():
                positions = pa.array(range(written, written + table.num_rows), pa.int64())
                writer.write_table(table.append_column(POSITION, positions).cast(schema))
                written += table.num_rows
                if on_rows is not None:
                    on_rows(written // length, *self.bytes_read())
        if not written:
            raise DataError(f"{self.label} has no rows", place="data")
        return written // length

    def refused(self, place: str, error: RequestError) -> DataError:
        """Return the error for a row that the service refuses. `place` names the row in the file."""
        first = error.problems[0] if error.problems else None
        field = f", field {first.field!r}" if first is not None and first.field is not None else ""
        more = f" ({len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
        text = first.problem if first is not None else error.message
        return DataError(
            f"{self.label}, {place}{field}: {text}{more}", hint=error.hint or self.hint, place="data"
        )


def _arrow_field(field: Field) -> pa.Field:
    return pa.field(field.name, pa.string() if field.kind == FieldKind.TEXT else pa.float64())


class LineRows(RequestRows):
    """The rows of a JSON Lines file. A line is what an HTTP request of JSON Lines would send."""

    def __init__(self, path: Path, reader: RowReader, ending: str) -> None:
        super().__init__(str(path), reader, ending)
        self.path, self.is_list = path, reader.sequence is not None
        self._schema = pa.schema([])
        self._read_bytes = 0

    def bytes_read(self) -> tuple[int, int]:
        """Return the bytes of the lines read so far, and the size of the file."""
        return self._read_bytes, self.path.stat().st_size

    def lines(self) -> Iterator[list[tuple[int, bytes]]]:
        """Yield the lines that are not blank, with their numbers from 1, in pieces."""
        piece, size, number, self._read_bytes = [], 0, 0, 0
        most = max(1, PIECE_ROWS // (self.reader.sequence or 1))
        with reading(self.label), self.path.open("rb") as file:
            while line := file.readline(LINE_BYTES + 1):
                number += 1
                if len(line) > LINE_BYTES:
                    text = f"{self.label}, line {number}: the line has more than {LINE_BYTES} bytes"
                    raise DataError(text, place="data")
                self._read_bytes += len(line)
                if line.strip():
                    piece.append((number, line.rstrip(b"\r\n")))  # as HTTP splits a body
                    size += len(line)
                if len(piece) >= most or size >= PIECE_BYTES:
                    yield piece
                    piece, size = [], 0
        if piece:
            yield piece

    def pieces(self) -> Iterator[list[tuple[int, bytes]]]:
        """See `lines`."""
        return self.lines()

    def accept(self, piece: Sequence[tuple[int, bytes]]) -> None:
        """Find the columns of the lines, if the answer is a table."""
        if self.ending != ".jsonl" and not self.is_list:
            self._schema = self._unified(piece)

    def features_of(self, piece: Sequence[tuple[int, bytes]]) -> pa.Table:
        """Return the features of a piece of numbered lines."""
        values = self.reader.values_of([self._row(number, line) for number, line in piece])
        return pa.table(dict(self._columns(values)))

    def _row(self, number: int, line: bytes) -> Any:  # noqa: ANN401  a decoded row
        try:
            row = self.reader.row_of_line(line)
            if row == []:  # the rule of the reader, but with the number of the line
                self.reader.values_of([row])
            return row
        except RequestError as error:
            raise self.refused(f"line {number}", error) from error

    def _columns(self, values: Sequence[tuple[Any, ...]]) -> Iterator[tuple[str, pa.Array]]:
        for field, column in zip(self.reader.fields, zip(*values, strict=True), strict=True):
            if field.kind == FieldKind.TEXT:
                yield field.name, pa.array(column, pa.string())
            else:
                numbers = [None if value is None else float(value) for value in column]
                yield field.name, pa.array(numbers, pa.float64())

    def _unified(self, piece: Sequence[tuple[int, bytes]]) -> pa.Schema:
        """Return the columns of the lines so far. Raises DataError for a column with values of several
        types."""
        found = _table([_DECODE(line) for _, line in piece], None, f"{self.label}, from line {piece[0][0]}")
        try:
            return pa.unify_schemas([self._schema, found.schema], promote_options="permissive")
        except pa.ArrowException as error:
            raise _several_types(self.label, error) from error

    def batches(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the fields of the lines as columns."""
        return self._schema, self._batches(self._schema)

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for piece in self.lines():
            yield from _table([_DECODE(line) for _, line in piece], schema, self.label).to_batches()


def _table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None, label: str) -> pa.Table:
    names = schema.names if schema is not None else dict.fromkeys(name for row in rows for name in row)
    kinds = schema.types if schema is not None else [None] * len(names)
    arrays: dict[str, pa.Array] = {}
    for name, kind in zip(names, kinds, strict=True):
        try:
            arrays[name] = pa.array([row.get(name) for row in rows], kind)
        except (pa.ArrowException, OverflowError, TypeError) as error:
            raise _several_types(f"{label}: column {name!r}", error) from error
    return pa.table(arrays, schema=schema)


def _several_types(what: str, error: Exception) -> DataError:
    return DataError(
        f"{what}: the values of a column must have the same type in a table: {error}",
        hint="Write the answer as .jsonl.",
        place="data",
    )


class TableRows(RequestRows):
    """The rows of a table with columns: a Parquet file, or a version of a sink or dataset."""

    def __init__(
        self, label: str, reader: RowReader, ending: str, opened: Callable[[], pa.RecordBatchReader]
    ) -> None:
        super().__init__(label, reader, ending)
        self._opened = opened

    def batches(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the columns and rows of the table."""
        with reading(self.label):
            reader = self._opened()
        return reader.schema, self._explained(reader)

    def _explained(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        with reading(self.label):
            yield from (batch for batch in reader if batch.num_rows)

    def pieces(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield each batch with the number of rows before it."""
        schema, batches = self.batches()
        self.check_names(schema.names)
        done = 0
        for batch in batches:
            yield done, batch
            done += batch.num_rows

    def accept(self, piece: tuple[int, pa.RecordBatch]) -> None:
        """Do nothing, because the columns of a table are known."""

    def check_names(self, names: Sequence[str]) -> None:
        """Raise DataError if a column is missing."""
        check_columns(self.label, names, [field.name for field in self.reader.fields], self.hint)

    def features_of(self, piece: tuple[int, pa.RecordBatch]) -> pa.Table:
        """Return the features of a batch."""
        before, batch = piece
        columns: dict[str, pa.Array] = {}
        wrong: list[Problem] = []
        for field in self.reader.fields:
            try:
                columns[field.name] = checked_values(field, self.converted(field, batch[field.name]))
            except FieldsError as error:
                wrong += error.problems
        if wrong:
            row = min(one.row or 0 for one in wrong)
            of_row = tuple(one for one in wrong if one.row == row)
            raise self.refused(self.place_of(before + row), FieldsError(of_row))
        return pa.table(columns)

    def converted(self, field: Field, values: pa.Array) -> pa.Array:
        """Return the values of a column as they are in a request."""
        return values

    def place_of(self, row: int) -> str:
        """Return the text that names a row, which is counted from 0, in errors."""
        return f"row {row + 1}"


class CsvRows(TableRows):
    """The rows of a CSV file. A cell of a number or boolean is converted as in JSON. An empty cell is a
    missing value."""

    def __init__(self, path: Path, reader: RowReader, ending: str) -> None:
        super().__init__(str(path), reader, ending, self._typed)
        self.path = path
        self.names = self._header()
        self._fit: dict[str, list[str]] = {name: list(_KINDS) for name in self.names}
        self._file: pa.NativeFile | None = None

    def bytes_read(self) -> tuple[int, int]:
        """Return the bytes that the reader has read, and the size of the file."""
        return (self._file.tell() if self._file is not None else 0), self.path.stat().st_size

    def _header(self) -> list[str]:
        with reading(self.label), self.path.open(encoding="utf-8-sig", newline="") as file:
            names = next(filter(None, csv.reader(file)), [])
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            text = f"{self.label}: several columns have the same name: {', '.join(map(repr, twice))}"
            raise DataError(text, place="data")
        if not names:
            raise DataError(f"{self.label} has no rows", place="data")
        return names

    def _read(self, types: Mapping[str, pa.DataType]) -> pa.RecordBatchReader:
        self._file = pa.OSFile(str(self.path))
        reader = pa.csv.open_csv(
            self._file,
            parse_options=pa.csv.ParseOptions(newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(
                column_types=types,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        return pa.RecordBatchReader.from_batches(reader.schema, self._ragged(reader))

    def _ragged(self, batches: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        """Yield the batches. If a row has too few or too many cells, the error names its line."""
        try:
            yield from batches
        except pa.ArrowInvalid as error:
            raise self._explained_error(error) from error

    def _explained_error(self, error: Exception) -> DataError:
        for line, cells in self._cells():
            if len(cells) != len(self.names):
                text = f"the line has {len(cells)} cells, but the first line has {len(self.names)} names"
                return DataError(f"{self.label}, line {line}: {text}", place="data")
        return DataError(f"{self.label}: {error}", place="data")

    def _cells(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the first line and the cells of each row, without the names of the columns."""
        with self.path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            before, rows = 0, -1
            for cells in reader:
                if cells:
                    rows += 1
                    if rows:
                        yield before + 1, cells
                before = reader.line_num

    def place_of(self, row: int) -> str:
        """Return the text that names the line of a row."""
        for number, (line, _) in enumerate(self._cells()):
            if number == row:
                return f"line {line}"
        return f"row {row + 1}"

    def pieces(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield each batch of lines, whose cells are texts, with the number of rows before it."""
        self.check_names(self.names)
        done = 0
        with reading(self.label):
            try:
                reader = self._read(dict.fromkeys(self.names, pa.string()))
            except pa.ArrowInvalid as error:
                raise self._explained_error(error) from error
            for batch in reader:
                if batch.num_rows:
                    yield done, batch
                    done += batch.num_rows

    def converted(self, field: Field, values: pa.Array) -> pa.Array:
        """Return the cells of a column as numbers, or as texts for a field that is a text."""
        return values if field.kind == FieldKind.TEXT else number_texts(field, values)

    def accept(self, piece: tuple[int, pa.RecordBatch]) -> None:
        """Keep for each column the kinds that fit all cells so far."""
        batch = piece[1]
        for name, fit in self._fit.items():
            if fit:
                cells = batch[name].drop_null()
                self._fit[name] = [kind for kind in fit if _fits(cells, kind)]

    def _typed(self) -> pa.RecordBatchReader:
        """Return the rows with the narrowest types that keep the cells as they are."""
        types = {name: _KINDS[fit[0]] if fit else pa.string() for name, fit in self._fit.items()}
        return self._read(types)


_KINDS: Mapping[str, pa.DataType] = {
    r"^-?(0|[1-9]\d{0,17})$": pa.int64(),
    r"^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$": pa.float64(),
    r"^(true|false)$": pa.bool_(),
    r"^\d{4}-\d\d-\d\d$": pa.date32(),
    r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?$": pa.timestamp("us"),
}
"""The forms of cells that are no texts, from the narrowest. A number with leading zeros is a text, because it
is often a code."""


def _fits(cells: pa.Array, form: str) -> bool:
    if not len(cells):
        return True
    if not pc.all(pc.match_substring_regex(cells, form)).as_py():
        return False
    try:
        cells.cast(_KINDS[form])
    except pa.ArrowException:  # a day such as February 30
        return False
    return True


def check_columns(label: str, names: Sequence[str], needed: Sequence[str], hint: str) -> None:
    """Raise DataError if a table lacks a column that it needs."""
    missing = [name for name in needed if name not in names]
    if not missing:
        return
    if len(names) == 1 and (found := [one for one in _SEPARATORS if one in names[0]]):
        raise DataError(
            f"{label}: the names of the columns are separated by {found[0]!r}, not by ','",
            hint="Write the file with a comma between two cells, and a point in decimal numbers.",
            place="data",
        )
    noun = "the column" if len(missing) == 1 else "the columns"
    raise DataError(
        f"{label} lacks {noun} {', '.join(f'`{name}`' for name in missing)}",
        hint=hint or f"The model computes predictions from {', '.join(needed)}.",
        place="data",
    )


@contextmanager
def reading(label: str) -> Iterator[None]:
    """Convert errors of files and tables to InputError."""
    try:
        yield
    except GridmillError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(
            f"{label} is not UTF-8: byte 0x{error.object[error.start]:02x}",
            hint=f"Convert the file, for example: iconv -f latin1 -t utf-8 {label} > utf8.csv",
            place="data",
        ) from error
    except FileNotFoundError as error:
        raise InputError(f"there is no file {label!r}", place="data") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{label} cannot be read: {reason}", place="data") from error
    except (pa.ArrowException, csv.Error) as error:
        raise InputError(f"{label} cannot be read: {error}", place="data") from error


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"the features of the rows cannot be written to {path.parent}: {reason}",
            hint="Set the environment variable TMPDIR to a folder with more space.",
        ) from error
