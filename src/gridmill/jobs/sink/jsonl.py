"""The JSON Lines reader reads files with one JSON object per line.

Arrow parses the complete blocks of the file. Python parses the few blocks that Arrow cannot parse.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import field
from decimal import Decimal
from math import isinf
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.json as pj

from gridmill.domain.frozen import dataclass
from gridmill.domain.source import Source
from gridmill.errors import DataError
from gridmill.jobs.sink.files import SourceFile, open_file
from gridmill.jobs.sink.formats import NUMBERS, ExpectedTypes, Seen, check_names, pick
from gridmill.jobs.sink.lossless import is_beyond

_LONG = re.compile(rb"(?<![0-9.eE])[0-9]{16}")
"""A pattern for numbers that a float may not represent exactly."""
LARGEST_EXACT = 2.0**53
"""All whole numbers below this number can be stored exactly as floats."""
BLOCK_BYTES = 4 * 2**20
LONGEST_LINE_BYTES = 64 * 2**20


@dataclass(slots=True)
class JsonLinesReader:
    """Reads a file of JSON objects, one object per line. If the object in a line lacks a field, the value of
    the field is missing."""

    file: SourceFile
    source: Source
    texts: frozenset[str] = frozenset()
    """Columns of the file whose values are read as texts. Numbers in these columns become texts as they are
    written in the file."""
    integers: frozenset[str] = frozenset()
    """Columns that are declared as `integer`. In columns that are declared as `integer`, 12.0 and true are
    whole numbers, whatever other lines contain."""
    floats: frozenset[str] = frozenset()
    """Columns that are declared as `float`. In columns that are declared as `float`, the value true is 1."""
    _times: set[str] = field(default_factory=set, init=False)

    def names(self) -> tuple[str, ...] | None:
        """Return None, because the columns are known only after the complete file has been read."""
        return None

    def batches(
        self, columns: tuple[str, ...] | None, seen: Seen, haste: ExpectedTypes | None = None
    ) -> Iterator[pa.Table]:
        """Yield all rows with the types that Arrow uses for JSON. Times remain texts."""
        line = 1
        with open_file(self.file) as opened:
            for block in _blocks(opened.stream):
                seen(opened.raw.tell())
                if block.strip():
                    table = self._table(block, line)
                    check_names(self.file, tuple(table.column_names))
                    yield (
                        table.select([name for name in columns if name in table.column_names])
                        if columns
                        else table
                    )
                line += block.count(b"\n")

    def lines(self, rows: Iterator[int]) -> Iterator[int | None]:
        """Yield the line number of each row."""
        with open_file(self.file) as opened:
            lines = (number for number, line in enumerate(_each_line(opened.stream), start=1) if line.strip())
            yield from pick(lines, rows)

    def _table(self, block: bytes, first_line: int) -> pa.Table:
        with suppress(pa.ArrowInvalid):
            table = self._by_arrow(block)
            if not (any(map(_holds_large, table.columns)) and _LONG.search(block)):
                return table
        objects = list(self._objects(block, first_line))
        try:
            return _from_objects(self._numbered(objects), self.texts)
        except UnicodeEncodeError as error:
            raise DataError(
                "a text contains half of a surrogate pair, such as \\ud800, which is not a character",
                place=f"{self.file.name}:{first_line + _half(block)}",
            ) from error

    def _by_arrow(self, block: bytes) -> pa.Table:
        """Parse a block with Arrow, and read times as texts.

        Arrow converts texts that look like times to times. A single block does not show whether all values
        of the column are times, so texts must stay texts.
        """
        table = _parse(block, self.texts | self._times)
        times = {item.name for item in table.schema if pa.types.is_timestamp(item.type)}
        if times:
            self._times |= times
            table = _parse(block, self.texts | self._times)
        return table

    def _numbered(self, objects: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return the objects. In columns that are declared as numbers, numbers without a fraction become
        integers."""
        kinds: dict[str, tuple[type[bool | float], ...]]
        kinds = {**dict.fromkeys(self.integers, (bool, float)), **dict.fromkeys(self.floats, (bool,))}
        if not kinds:
            return objects
        return [
            {
                name: _whole(_plain(value), kinds[name]) if name in kinds else value
                for name, value in item.items()
            }
            for item in objects
        ]

    def _objects(self, block: bytes, first_line: int) -> Iterator[Mapping[str, Any]]:
        for number, line in enumerate(block.split(b"\n"), start=first_line):
            if line.strip():
                yield self._object(line, number)

    def _object(self, line: bytes, number: int) -> Mapping[str, Any]:
        place = f"{self.file.name}:{number}"
        try:
            value = json.loads(line, **(_AS_WRITTEN if self.texts else _FINITE))
        except UnicodeDecodeError as error:
            raise DataError(f"byte {line[error.start]:#04x} is not UTF-8", place=place) from error
        except (ValueError, RecursionError) as error:  # Python refuses numbers of more than 4,300 digits
            raise DataError(
                f"the line is not a JSON object: {error}",
                hint="Write one complete JSON object on each line.",
                place=place,
            ) from error
        if not isinstance(value, dict):
            raise DataError(f"the line is not a JSON object but {type(value).__name__}", place=place)
        return value


class _NumberText(str):
    """A number together with the text of the number in the file."""

    __slots__ = ()


class _InexactFloat(float):
    """A float that may lack the last digits of the number in the file. `text` is the number as it is written
    in the file."""

    text: str


def _finite(text: str) -> float | str:
    """Return the text as a float. Return the text itself if the number is too large for a float."""
    number = float(text)
    if isinf(number):
        return text
    if abs(number) < LARGEST_EXACT:
        return number
    large = _InexactFloat(number)
    large.text = text
    return large


_FINITE: Mapping[str, Any] = {"parse_float": _finite}
_AS_WRITTEN: Mapping[str, Any] = {"parse_float": _NumberText, "parse_int": _NumberText}


def _plain(value: Any) -> Any:  # noqa: ANN401  JSON
    """Return the JSON value with plain numbers instead of numbers with their texts."""
    if isinstance(value, _NumberText):
        return int(value) if value.lstrip("-").isdigit() else _finite(value)
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _whole(value: Any, kinds: tuple[type[bool | float], ...]) -> Any:  # noqa: ANN401  JSON
    """Return a value of one of these types as a whole number if it is a whole number. Return any other value
    unchanged. The digits in the file, not the float, determine whether a value is a whole number."""
    if isinstance(value, _InexactFloat) and float in kinds:
        written = Decimal(value.text)
        # returned as text, which cannot be read as the type, so that the value is a misfit
        return int(written) if written == written.to_integral_value() else value.text
    return int(value) if isinstance(value, kinds) and value % 1 == 0 else value


def _half(block: bytes) -> int:
    """Return the number of the first line (from 0) that contains a text which UTF-8 cannot represent."""
    for number, line in enumerate(block.split(b"\n")):
        if line.strip():
            try:
                json.dumps(json.loads(line), ensure_ascii=False).encode()
            except UnicodeEncodeError:
                return number
    return 0


def _parse(block: bytes, texts: Set[str]) -> pa.Table:
    schema = pa.schema([(name, pa.string()) for name in sorted(texts)])
    table = pj.read_json(
        pa.BufferReader(block),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(block) + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer"),
    )
    return table


def _holds_large(column: pa.ChunkedArray) -> bool:
    """Return whether a float in the column, at any depth, is so large that it may have lost digits of a
    whole number."""
    if pa.types.is_floating(column.type):
        return is_beyond(column)
    if not pa.types.is_nested(column.type):
        return False
    return any(_holds_large(pa.chunked_array([part])) for chunk in column.chunks for part in _parts(chunk))


def _parts(nested: pa.Array) -> list[pa.Array]:
    flattened = nested.flatten()
    return flattened if isinstance(flattened, list) else [flattened]


def _from_objects(objects: Sequence[Mapping[str, Any]], texts: Set[str]) -> pa.Table:
    names = dict.fromkeys(name for item in objects for name in item)
    columns = [
        _text_column(name, [item.get(name) for item in objects])
        if name in texts
        else _column(name, [_plain(item.get(name)) if texts else item.get(name) for item in objects])
        for name in names
    ]
    items, arrays = [item for item, _ in columns], [array for _, array in columns]
    return pa.Table.from_arrays(arrays, schema=pa.schema(items))


def _column(name: str, values: list[Any]) -> tuple[pa.Field, pa.Array]:
    """Return the values as an array of their common type.

    If the values have several types, or if no type can represent all their digits, return them as texts.
    """
    try:
        array = pa.array(values)
        return pa.field(name, array.type), array
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        numbers = {type(value) for value in values} <= {int, float, type(None)}
        texts = pa.array([_as_text(value) for value in values], pa.string())
        return pa.field(name, texts.type, metadata={NUMBERS: b""} if numbers else None), texts


def _text_column(name: str, values: list[Any]) -> tuple[pa.Field, pa.Array]:
    return pa.field(name, pa.string()), pa.array([_as_text(value) for value in values], pa.string())


def _as_text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(_plain(value))


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield blocks of complete lines, of about BLOCK_BYTES each."""
    rest = b""
    while chunk := stream.read(BLOCK_BYTES):
        whole, newline, after = chunk.rpartition(b"\n")
        if newline:
            yield rest + whole + newline
            rest = after
        else:
            rest += chunk
        if len(rest) > LONGEST_LINE_BYTES:
            raise DataError(
                f"a line is longer than {LONGEST_LINE_BYTES // 2**20} MiB",
                hint="Write one complete JSON object on each line.",
            )
    if rest:
        yield rest


def _each_line(stream: BinaryIO) -> Iterator[bytes]:
    for block in _blocks(stream):
        yield from block.removesuffix(b"\n").split(b"\n")
