"""The CSV reader returns columns of text in batches.

The CSV reader counts lines only if an error message needs a line number. The reader searches the bytes of
the file for numbers that begin with a zero or a plus, because Arrow reads 01234 as 1234.
"""

import csv
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from io import TextIOWrapper
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
from numpy.typing import NDArray

from gridmill.domain.frozen import dataclass
from gridmill.domain.source import Source
from gridmill.errors import DataError
from gridmill.jobs.sink.files import OpenedFile, SourceFile, open_file
from gridmill.jobs.sink.formats import ExpectedTypes, Seen, Types, UnexpectedTypeError, check_names, pick

_ZERO, _PLUS, _QUOTE, _LINE = b'0+"\n'
_BYTES = np.arange(256)
_DIGITS = np.isin(_BYTES, np.frombuffer(b"0123456789abcdefABCDEFxX", np.uint8))
_NEXT = np.isin(_BYTES, np.frombuffer(b"0123456789xX", np.uint8))
_SIGNS = np.isin(_BYTES, np.frombuffer(b"+-", np.uint8))
_PIECE_BYTES = 2**18
"""The number of bytes of a file that are examined together. This number of bytes fits into the cache of the
CPU."""
_BELOW = _ZERO
"""All bytes that can come before a value are smaller than the digits, except some delimiters."""


@dataclass(slots=True)
class LeadingZeros:
    """Examines the blocks of a file, in order, for numbers with a leading zero or plus.

    Only the columns with the numbers in `columns` (from 0) are examined. The file has `width` columns.
    """

    delimiter: int
    columns: Collection[int]
    width: int
    _rest: bytes = b""
    _inside: bool = False
    _around: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self._around = np.isin(_BYTES, [*b'\n\r\t "', self.delimiter])

    def see(self, block: bytes, quotes: int) -> bool:
        """Return whether an examined column has a whole number that begins with a zero before another digit,
        with a plus, or with 0x.

        The result may also be true without such a number if an exact answer would take too long. An empty
        block marks the end of the file. `quotes` is the number of double quotes in the block.
        """
        first, line = block.find(b"\n") + 1, block.rfind(b"\n") + 1
        if block and not first:
            self._rest += block
            # not certain, because a carriage return without a newline may also end lines
            return b"\r" in block
        begin, self._rest = self._rest + (block[:first] or b"\n"), block[line:]
        result = self._is_in(np.frombuffer(begin, np.uint8), begin.count(b'"'), b"+" in begin)
        if first == line:
            return result
        inner = quotes - block.count(b'"', 0, first) - self._rest.count(b'"')
        # a view, because the bytes of a whole block must not be copied
        lines = np.frombuffer(block, np.uint8, line - first, first)
        return self._is_in(lines, inner, b"+" in block) or result

    def _is_in(self, lines: NDArray[np.uint8], quotes: int, plus: bool) -> bool:
        """Return whether these complete lines contain a number with a leading zero or plus."""
        result = self._has_leading_zero(lines, plus)
        self._inside ^= bool(quotes % 2)
        return result

    def _has_leading_zero(self, data: NDArray[np.uint8], plus: bool) -> bool:
        places = self._places(data, plus)
        if not len(places):
            return False
        # assumed, because columns cannot be counted if the data begins within a value of several lines
        if self._inside:
            return True
        columns = self._columns_of(data, places)
        return bool(np.any(np.isin(columns, list(self.columns)) | (columns >= self.width)))

    def _places(self, data: NDArray[np.uint8], plus: bool) -> NDArray[np.intp]:
        """Return the positions at which numbers with a leading zero or plus begin."""
        pieces = (data[at : at + _PIECE_BYTES + 2] for at in range(0, len(data), _PIECE_BYTES))
        found = [self._zeros(piece, plus) + number * _PIECE_BYTES for number, piece in enumerate(pieces)]
        places = np.concatenate(found)
        if len(data) > 1 and data[0] in (_ZERO, _PLUS):
            places = np.concatenate([[0], places])
        places = places[_NEXT[data[places + 1]]]
        return self._whole(data, places[self._is_beginning(data, places - 1)])

    def _zeros(self, data: NDArray[np.uint8], plus: bool) -> NDArray[np.intp]:
        """Return the positions of zeros and plus signs after a byte that can come before a value. The result
        can also contain positions of other bytes."""
        before = data[:-2] < _BELOW
        if self.delimiter >= _BELOW:
            before |= data[:-2] == self.delimiter
        signs = data[1:-1] == _ZERO
        if plus:
            signs |= data[1:-1] == _PLUS
        before &= signs
        return np.flatnonzero(before) + 1

    def _is_beginning(self, data: NDArray[np.uint8], before: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return for each position whether it is the beginning of a value, or comes directly after the sign
        of a value."""
        before = before - ((before >= 0) & _SIGNS[data[before]])
        return (before < 0) | self._around[data[before]]

    def _whole(self, data: NDArray[np.uint8], places: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the positions after which the value has only digits. The values 01:30 and 01.5, for
        example, are not whole numbers.
        """
        result, length = places[:0], 2
        while len(places):
            after = data[places + length]
            result = np.concatenate([result, places[self._around[after]]])
            places, length = places[_DIGITS[after]], length + 1
        return result

    def _columns_of(self, data: NDArray[np.uint8], places: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the number of the column at each position. The data must begin at the start of a line."""
        delimiters, lines = data == self.delimiter, data == _LINE
        quotes = data == _QUOTE
        if quotes.any():
            # an overflow does not change whether the number is even
            outside = np.cumsum(quotes, dtype=np.uint8) & 1 == 0
            delimiters &= outside
            lines &= outside
        ends, signs = np.flatnonzero(lines), np.flatnonzero(delimiters)
        line = np.searchsorted(ends, places)
        starts = np.concatenate([[-1], ends])[line]
        columns: NDArray[np.intp] = np.searchsorted(signs, places) - np.searchsorted(signs, starts)
        return columns


BLOCK_BYTES = 4 * 2**20
"""The size of the text in each batch, in bytes. A record that is longer than the text of a batch is an
error."""
_DELIMITERS = ",;\t|"
_SIGN_BYTES = '0123456789xX+-. "\n\r\t'
csv.field_size_limit(BLOCK_BYTES)


def _sign(sign: str) -> str:
    """Return the character as YAML text."""
    return '"\\t"' if sign == "\t" else f"'{sign}'"


@dataclass(slots=True)
class CsvReader:
    """Reads a CSV file (RFC 4180: quoted fields may contain delimiters, quotes and line ends)."""

    file: SourceFile
    source: Source
    _names: tuple[str, ...] | None = field(default=None, init=False)
    _header_line: int = field(default=1, init=False)

    def names(self) -> tuple[str, ...]:
        """Return the names of the columns in the header. An empty name becomes `column_N`. Raises
        DataError."""
        if self._names is None:
            self._header_line, header = next(self._records(), (1, None))
            if header is None:
                raise DataError(
                    "the file is empty: it has no header",
                    hint="Write its header, or move the file away.",
                    place=self.file.name,
                )
            self._check_page(header)
            self._check_delimiter(header)
            names = (name.strip() or f"column_{number}" for number, name in enumerate(header, start=1))
            self._names = check_names(self.file, tuple(names))
        return self._names

    def _check_page(self, header: Sequence[str]) -> None:
        """Raise DataError if the file is a web page.

        The check for a web page is needed because a server may return a web page instead of a file, and the
        page could be read as a column of texts.
        """
        if header[0].lstrip().lower().startswith(("<!doctype html", "<html")):
            raise DataError(
                "this is a web page, not a CSV file",
                hint="Check that the address leads neither to a login nor to a page about the file.",
                place=self.file.name,
            )

    def _check_delimiter(self, header: Sequence[str]) -> None:
        """Raise DataError if the file has a single column whose name contains another delimiter.

        If the only column has such a name, the other delimiter is probably the delimiter of the file.
        """
        others = _DELIMITERS.replace(self.file.delimiter, "")
        sign = next((sign for sign in others if len(header) == 1 and sign in header[0]), None)
        if sign is not None and self.source.delimiter is None:
            raise DataError(
                f"the file has only one column, {header[0]!r}",
                hint=f"If {_sign(sign)} separates the columns, write "
                f"`source: {{path: ..., delimiter: {_sign(sign)}}}`. "
                f"If the file has only one column, write `delimiter: {_sign(self.file.delimiter)}` there.",
                place=self.file.name,
            )

    def batches(
        self, columns: tuple[str, ...] | None, seen: Seen, haste: ExpectedTypes | None = None
    ) -> Iterator[pa.Table]:
        """Yield all rows. The values of columns without a given type are texts. The values listed in `nulls`
        become null."""
        names = self.names()
        ragged: list[Any] = []
        types = haste.types if haste is not None else {}
        with open_file(self.file) as opened, self._explained(ragged, hasty=haste is not None):
            counted = _QuoteCounter(opened.stream, self.zeros(names, haste))
            reader = pc.open_csv(counted, **self.options(names, columns, ragged, types))
            for batch in reader:
                if counted.zeros:
                    raise UnexpectedTypeError
                seen(opened.raw.tell())
                yield pa.Table.from_batches([batch])
        if counted.quotes % 2:
            self._check_closed()

    def lines(self, rows: Iterator[int]) -> Iterator[int | None]:
        """Yield the line at which the record of each row begins."""
        records = (line for line, _ in self._records())
        next(records, None)  # skips the header, which is not a row
        yield from pick(records, rows)

    def zeros(self, names: tuple[str, ...], haste: ExpectedTypes | None) -> LeadingZeros | None:
        """Return the object that searches the file for numbers that begin with a zero, or None if no column
        needs the search. Raises UnexpectedTypeError if such numbers cannot be found in the bytes of the
        file."""
        watched = [at for at, name in enumerate(names) if haste is not None and name in haste.inferred]
        if not watched:
            return None
        if not self.file.delimiter.isascii() or not is_read_as_ascii(self.source.encoding):
            raise UnexpectedTypeError
        return LeadingZeros(delimiter=ord(self.file.delimiter), columns=watched, width=len(names))

    def options(
        self, names: tuple[str, ...], columns: tuple[str, ...] | None, ragged: list[Any], types: Types
    ) -> dict[str, Any]:
        """Return the options of the CSV reader of Arrow. Rows that have more or fewer values than the header
        are added to `ragged`."""

        def remember(row: Any) -> str:  # noqa: ANN401  pyarrow's InvalidRow
            ragged.append(row)
            return "error"

        return {
            "read_options": pc.ReadOptions(
                use_threads=False,
                block_size=BLOCK_BYTES,
                column_names=list(names),
                # given as a line number, because Arrow counts the blank lines before the header
                skip_rows_after_names=self._header_line,
                encoding=self.source.encoding,
            ),
            "parse_options": pc.ParseOptions(
                delimiter=self.file.delimiter,
                newlines_in_values=True,
                invalid_row_handler=remember,
                ignore_empty_lines=len(names) > 1,
            ),
            "convert_options": pc.ConvertOptions(
                column_types={name: types.get(name, pa.string()) for name in names},
                null_values=list(self.source.nulls),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                include_columns=list(columns or names),
            ),
        }

    @contextmanager
    def _explained(self, ragged: list[Any], *, hasty: bool) -> Iterator[None]:
        try:
            yield
        except pa.ArrowInvalid as error:
            if "straddling" in str(error) and self._is_header_alone():
                return  # no rows: the file ends with the header, after which Arrow needs a line end
            if hasty:
                raise UnexpectedTypeError from error
            raise self._explain(error, ragged) from error
        except UnicodeError as error:
            raise self._bad_text(error) from error
        except pa.ArrowException as error:
            if isinstance(error.__cause__, DataError):
                raise error.__cause__ from None
            raise

    def _explain(self, error: pa.ArrowInvalid, ragged: list[Any]) -> DataError:
        """Return an error with the exact place in the file. To find the place of an error, the file is read
        again by slower code."""
        self._check_closed()
        width = len(self.names())
        for line, row in self._records():
            if len(row) != width:
                return DataError(
                    f"this row has {len(row)} values, but the header has {width} columns: {_shown(row)}",
                    hint="Put a value that contains the delimiter in double quotes, or set `delimiter`.",
                    place=f"{self.file.name}:{line}",
                )
        return DataError(f"not readable as CSV: {error}", place=self.file.name)

    def _is_header_alone(self) -> bool:
        records = self._records()
        next(records, None)
        return next(records, None) is None

    def _check_closed(self) -> None:
        """Raise DataError if a quote is never closed, because all following rows would be part of a single
        value."""
        with open_file(self.file) as opened:
            line = _unclosed(self._text(opened), self.file.delimiter)
        if line is not None:
            raise DataError(
                "a value begins with a double quote that is never closed",
                hint="Check that the file is not cut short. Within a quoted value, write a double quote "
                "twice.",
                place=f"{self.file.name}:{line}",
            )

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield for each record the line at which it begins (from 1) and its values. The first record is the
        header.

        If the file has only one column, a blank line is a record, except before the header.
        """
        with open_file(self.file) as opened:
            try:
                yield from _numbered(self._text(opened), self.file.delimiter)
            except UnicodeError as error:
                raise self._bad_text(error) from error
            except csv.Error as error:
                raise DataError(f"not readable as CSV: {error}", place=self.file.name) from error

    def _text(self, opened: OpenedFile) -> TextIOWrapper:
        encoding = "utf-8-sig" if self.source.encoding.lower() in ("utf-8", "utf8") else self.source.encoding
        return TextIOWrapper(opened.stream, encoding=encoding, newline="")

    def _bad_text(self, error: UnicodeError) -> DataError:
        line, at, data = self._bad_byte()
        if line == 0:
            return DataError(f"is not {self.source.encoding}: {error}", place=self.file.name)
        return DataError(
            f"byte {data[at]:#04x} at position {at + 1} of this line is not {self.source.encoding}",
            hint=f"Under `source`, write `encoding: cp1252` if the text is {_word(data, at, 'cp1252')!r}; or "
            "another encoding, such as `latin-1` or `utf-16`.",
            place=f"{self.file.name}:{line}",
        )

    def _bad_byte(self) -> tuple[int, int, bytes]:
        """Return the line number (from 1) of the first byte that cannot be decoded, its position in this
        line (from 0), and the text of the line."""
        with open_file(self.file) as opened:
            for line, data in enumerate(_lines(opened), start=1):
                try:
                    data.decode(self.source.encoding)
                except UnicodeDecodeError as error:
                    return line, error.start, data
        return 0, 0, b""


def _word(line: bytes, at: int, encoding: str) -> str:
    """Return the text around the byte at this position of a line."""
    return line[max(0, at - 12) : at + 12].decode(encoding, errors="replace").strip()


def is_read_as_ascii(encoding: str) -> bool:
    """Return whether digits, signs and line ends have the same bytes in this encoding as in ASCII."""
    return _SIGN_BYTES.encode(encoding) == _SIGN_BYTES.encode()


class _QuoteCounter:
    """A stream that counts the double quotes in the bytes that are read. An odd number of double quotes
    suggests that a quote is not closed.

    `zeros` is true if a number begins with a zero. The stream stops searching after the first such number.
    """

    def __init__(self, stream: BinaryIO, zeros: LeadingZeros | None = None) -> None:
        self._stream = stream
        self._look = zeros
        self.quotes = 0
        self.zeros = False
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes of the stream."""
        result = self._stream.read(size)
        quotes = int(np.count_nonzero(np.frombuffer(result, np.uint8) == ord('"')))
        self.quotes += quotes
        if self._look is not None and not self.zeros:
            self.zeros = self._look.see(result, quotes)
        return result


def _lines(opened: OpenedFile) -> Iterator[bytes]:
    rest = b""
    while chunk := opened.stream.read(BLOCK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _numbered(text: TextIOWrapper, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(text, delimiter=delimiter)
    begins, width = 1, 0
    for row in reader:
        width = width or len(row)
        if row or width == 1:
            yield begins, row or [""]
        begins = reader.line_num + 1


def _unclosed(text: TextIOWrapper, delimiter: str) -> int | None:
    """Return the line of the record that ends within quotes. Return None if all quotes are closed, or if the
    function cannot find out.
    """
    reader, begins = csv.reader(text, delimiter=delimiter, strict=True), 1
    try:
        for _ in reader:
            begins = reader.line_num + 1
    except (csv.Error, UnicodeError) as error:
        endless = any(words in str(error) for words in ("unexpected end of data", "field limit"))
        return begins if endless else None
    return None


def _shown(row: list[str]) -> str:
    text = ", ".join(row)
    return text if len(text) <= 60 else f"{text[:57]}..."
