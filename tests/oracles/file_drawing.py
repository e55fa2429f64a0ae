"""Random files of values at the limits of their types, and their bytes as CSV, lines of JSON and Parquet."""

import bz2
import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from tests.oracles.files import SourceFile
from tests.oracles.values import CLOCKS, NAMED, STAMPS, Cell, Number, Quoted, Typed, Value

FLAVOURS = ("small", "big", "float", "boolean", "date", "timestamp", "string", "named", "clocked")
KINDS = {"small": "integer", "big": "integer", "named": "date", "clocked": "timestamp"}
"""Flavours of columns whose type has another name."""
PLAIN = {"named": "date", "clocked": "timestamp"}
"""Flavours of texts, as typed values."""

_BIG = (2**63 - 1, -(2**63), 2**53 + 1, 2**53 - 1, -(2**53) - 1, 0, 1_790_000_000_000_000_001)
_FLOATS = (
    "0.1",
    "-0.0",
    "5e-324",
    "2.2250738585072014e-308",
    "1.7976931348623157e308",
    "1e-7",
    "2.5",
    "123456.789",
)
_FLOATS_TOO = ("9007199254740992.0", "-1.5E+3", "3", "-12", "0.30000000000000004", "1e22", "1e23", "100.0")
_DATES = ("0001-01-01", "9999-12-31", "1969-12-31", "2024-02-29", "1900-03-01", "1582-10-10", "2000-01-01")
_TIMES = (
    "1969-12-31T23:59:59.999999Z",
    "1969-12-31 23:59:59.000001",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999Z",
    "2024-02-29T12:30",
    "2024-03-31 02:30:00+01:00",
    "2024-10-27T02:30:00.5-09:30",
    "1677-09-21T00:12:43Z",
    "2262-04-12T00:00:00Z",
    "2000-01-01T00:00:00+14:00",
)
_TEXTS = (
    "a,b", 'quo"te', "line\nbreak", "é", "日本", "𝄞", " lead", "trail ", "'", "NULL", "None", "-", "'; --",
    "\u2028", "\ufeff", "1_000", "1,5,5",
    "0x10", "\t", "\\", "\\N", "007", "1e5", "true", "2024-01-01", "nan",
    "inf", ";", "a|b", "#", "12345678901234567890", "٣", "e\u0301", "x\u0000y", "=1+1", "\r\n", "{}", '""',
)  # fmt: skip
_PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
    ".zip": lambda data: _zipped(data),
}
PACKINGS = tuple(_PACKERS)


@dataclass(frozen=True)
class Column:
    """A column of a history: all its values are of one flavour until an operation says otherwise."""

    name: str
    flavour: str
    missing: float = 0.0

    @property
    def kind(self) -> str:
        return KINDS.get(self.flavour, self.flavour)


@dataclass(frozen=True)
class Style:
    """How the files of a history are written."""

    form: str
    packing: str = ""
    delimiter: str = ","
    newline: str = "\n"
    bom: bool = False
    nulls: tuple[str, ...] = ("", "NA", "NaN", "null")

    @property
    def suffix(self) -> str:
        return f".{self.form}{self.packing}"


def drawn_style(random: Random) -> Style:
    form = random.choice(["csv", "csv", "csv", "jsonl", "jsonl", "parquet"])
    if form == "parquet":
        return Style(form)
    packing = random.choice(PACKINGS) if random.random() < 0.4 else ""
    if form == "jsonl":
        return Style(form, packing)
    return Style(
        form,
        packing,
        random.choice([",", ",", ";", "|", "\t"]),
        random.choice(["\n", "\n", "\r\n"]),
        random.random() < 0.15,
        random.choice([Style.nulls, Style.nulls, ("", "-", "n/a")]),
    )


def drawn_text(random: Random, flavour: str) -> str:
    """The text of a value, as a CSV file may hold it."""
    match flavour:
        case "small":
            return str(random.choice([0, -1, 1, random.randint(-99, 99), random.randint(-(2**31), 2**31)]))
        case "big":
            return str(random.choice([*_BIG, random.randint(-(2**63), 2**63 - 1)]))
        case "float":
            return random.choice(
                [*_FLOATS, *_FLOATS_TOO, repr(random.uniform(-1e6, 1e6)), repr(random.random())]
            )
        case "boolean":
            return random.choice(["true", "false", "TRUE", "False"])
        case "date":
            return random.choice([*_DATES, str(date(1, 1, 1) + timedelta(random.randrange(3_652_000)))])
        case "timestamp":
            return random.choice(_TIMES) if random.random() < 0.5 else _drawn_time(random)
        case "named":
            return _drawn_moment(random).strftime(random.choice(NAMED))
        case "clocked":
            clocks = [f"{random.choice(NAMED)} {clock}" for clock in CLOCKS]
            return _drawn_moment(random).strftime(random.choice([*clocks, *STAMPS]))
        case _:
            long = "long " * 20_000 if random.random() < 0.01 else "t"
            return random.choice([*_TEXTS, long, str(random.randint(0, 20)), f"word {random.random()}"])


def _drawn_moment(random: Random) -> datetime:
    """Years of four digits, which strftime writes so."""
    days, seconds = random.randrange(365_000, 3_650_000), random.randrange(86_400)
    return datetime(1, 1, 3, tzinfo=UTC) + timedelta(days, seconds)


def _drawn_time(random: Random) -> str:
    time = datetime(1, 1, 3, tzinfo=UTC) + timedelta(
        microseconds=random.randrange(10**6 * 86_400 * 3_650_000)
    )
    digits = random.choice([0, 0, 1, 3, 6, 6])
    text = time.strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    text += f".{time.microsecond:06d}"[: digits + 1] if digits else ""
    return text + random.choice(["", "Z", "+00:00", "+05:30", "-11:00"])


def drawn_rows(random: Random, columns: Sequence[Column], style: Style, count: int) -> list[dict[str, Cell]]:
    return [{one.name: drawn_cell(random, one, style, number) for one in columns} for number in range(count)]


def drawn_cell(random: Random, column: Column, style: Style, number: int = 1) -> Cell:
    """A value in the form that such a file has. The first text of a column of texts is nothing but a text."""
    if random.random() < column.missing:
        return random.choice(style.nulls) if style.form == "csv" else None
    text = "some text" if column.flavour == "string" and number == 0 else drawn_text(random, column.flavour)
    if style.form == "csv":
        text = "y" if text in style.nulls else text
        return text.replace("\x00", "")
    if style.form == "jsonl":
        return _json_cell(text, column.kind)
    plain = (
        text if column.flavour not in KINDS else drawn_text(random, PLAIN.get(column.flavour, column.flavour))
    )
    return Typed(_typed(plain, column.kind), column.kind)


def _json_cell(text: str, kind: str) -> Cell:
    if kind == "boolean":
        return text.lower() == "true"
    return Number(text) if kind in ("integer", "float") else Quoted(text)


def _typed(text: str, kind: str) -> Value:
    match kind:
        case "integer":
            return int(text)
        case "float":
            return float(text)
        case "boolean":
            return text.lower() == "true"
        case "date":
            return date.fromisoformat(text)
        case "timestamp":
            value = datetime.fromisoformat(text)
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        case _:
            return text


def file_of(
    random: Random,
    name: str,
    modified: float | None,
    style: Style,
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Cell]],
) -> SourceFile:
    """The file with its bytes, and where in it each row begins."""
    header = tuple(one.name for one in columns)
    file = SourceFile(name, b"", modified, style.form, header, tuple(rows))
    match style.form:
        case "csv":
            quoted = random.random() < 0.2
            text, lines = _csv(random, style, header, rows, quoted)
            file = replace(file, lines=lines, content=_PACKERS[style.packing](text), quoted=quoted)
        case "jsonl":
            text, lines = _json_lines(random, rows)
            file = replace(file, lines=lines, content=_PACKERS[style.packing](text), header=_names(rows))
        case _:
            kinds = {one.name: one.kind for one in columns}
            file = replace(file, kinds=kinds, content=_parquet(random, columns, rows))
    return file


def _names(rows: Sequence[Mapping[str, Cell]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for row in rows for name in row))


def _csv(
    random: Random, style: Style, header: Sequence[str], rows: Sequence[Mapping[str, Cell]], always: bool
) -> tuple[bytes, tuple[int, ...]]:
    text = style.newline * (random.random() < 0.1) * 2
    parts, lines = [], []
    for fields in (list(header), *([str(row[name]) for name in header] for row in rows)):
        lines.append(_line(text))
        written = style.delimiter.join(_field(field, style, always, len(header) == 1) for field in fields)
        parts.append(written + style.newline)
        text += parts[-1]
    text = text.removesuffix(style.newline) if rows and random.random() < 0.2 else text
    return text.encode("utf-8-sig" if style.bom else "utf-8"), tuple(lines[1:])


def _line(text: str) -> int:
    return text.replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1


def _field(field: str, style: Style, always: bool, alone: bool) -> str:
    special = any(sign in field for sign in (style.delimiter, '"', "\n", "\r"))
    return '"' + field.replace('"', '""') + '"' if special or always or (alone and not field) else field


def _json_lines(random: Random, rows: Sequence[Mapping[str, Cell]]) -> tuple[bytes, tuple[int, ...]]:
    lines, text, number = [], "", 1
    escaped = random.random() < 0.5
    for row in rows:
        if random.random() < 0.05:
            text, number = text + "\n", number + 1
        lines.append(number)
        pairs = [f"{json.dumps(name)}: {_json_text(cell, escaped)}" for name, cell in row.items()]
        text, number = text + "{" + ", ".join(pairs) + "}\n", number + 1
    return text.encode(), tuple(lines)


def _json_text(cell: Cell, escaped: bool) -> str:
    if isinstance(cell, Number):
        return cell.text
    return json.dumps(cell.text if isinstance(cell, Quoted) else cell, ensure_ascii=escaped)


def _parquet(random: Random, columns: Sequence[Column], rows: Sequence[Mapping[str, Cell]]) -> bytes:
    arrays = {}
    for one in columns:
        cells = [row.get(one.name) for row in rows]
        values = [cell.value if isinstance(cell, Typed) else None for cell in cells]
        arrays[one.name] = _array(random, one.kind, values)
    sink = io.BytesIO()
    pq.write_table(pa.table(arrays), sink, row_group_size=random.choice([1, 3, 1000]))
    return sink.getvalue()


def _array(random: Random, kind: str, values: list[Value]) -> pa.Array:
    there = [value for value in values if value is not None]
    types: dict[str, list[pa.DataType]] = {
        "integer": [pa.int64()],
        "float": [pa.float64()],
        "boolean": [pa.bool_()],
        "date": [pa.date32(), pa.date64()],
        "timestamp": [pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us")],
        "string": [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())],
    }
    choices = types[kind]
    for type_ in (pa.int32(), pa.int16(), pa.int8(), pa.uint64(), pa.uint8()):
        if kind == "integer" and _fits(there, type_):
            choices.append(type_)
    if kind == "timestamp" and random.random() < 0.5:
        values = [value and _plain(value) for value in values]
        return pa.array(values, random.choice([pa.timestamp("us"), pa.timestamp("us", "UTC")]))
    return pa.array(values, random.choice(choices))


def _plain(value: Value) -> Value:
    assert isinstance(value, datetime)
    return value.astimezone(UTC).replace(tzinfo=None)


def _fits(values: list[Value], type_: pa.DataType) -> bool:
    try:
        pa.array(values, type_)
    except (pa.ArrowInvalid, OverflowError):
        return False
    return True


def _zipped(data: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(zipfile.ZipInfo("inside.csv"), data)
    return packed.getvalue()
