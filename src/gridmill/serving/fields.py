"""The fields of a model's signature, and the conversion of named values into the inputs of the model.

JSON has no NaN and no infinity. A missing number is null, and becomes NaN, as in training.
"""

import codecs
import json
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt

from gridmill.domain.frozen import dataclass
from gridmill.jobs.features import Encoding, Floats
from gridmill.serving.errors import SHOWN, FieldsError, MalformedError, Problem

TOO_LARGE = "the number is too large for a double"
_BYTE = re.compile(r"\(byte (\d+)\)")
_NOT_JSON = re.compile(rb"-?(NaN|nan|Infinity|inf)")
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_TRUNCATED = "Input data was truncated"
"""The text of msgspec for JSON that is not complete, and also for half of a surrogate pair near the end."""
_MOST_DIGITS = 400
"""A number with more digits is too large for a double."""


class FieldKind(StrEnum):
    """The kind of the values of a field."""

    NUMBER = "number"
    BOOLEAN = "boolean"
    TEXT = "text"


_TYPES: dict[FieldKind, Any] = {
    FieldKind.NUMBER: float | None,
    FieldKind.BOOLEAN: bool | float | None,
    FieldKind.TEXT: str | None,
}
_WORDS = {
    FieldKind.NUMBER: "a number or null",
    FieldKind.BOOLEAN: "true, false or null",
    FieldKind.TEXT: "a text or null",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of each row of a request. `categories` are the texts that the model knows."""

    name: str
    kind: FieldKind
    categories: tuple[str, ...] = ()
    others: bool = False


def field_of(encoding: Encoding) -> Field:
    """Return the field that an encoding reads."""
    if encoding.categories is None:
        kind = FieldKind.BOOLEAN if encoding.type == "bool" else FieldKind.NUMBER
        return Field(name=encoding.column, kind=kind)
    return Field(
        name=encoding.column, kind=FieldKind.TEXT, categories=encoding.categories, others=encoding.others
    )


class RowReader:
    """Reads rows with named fields from JSON, and converts them to the inputs of a model.

    A row of a model without a sequence is an object. A row of a model with a sequence is a list of objects,
    the oldest first, and the last `sequence` of them are used. If the list has fewer objects, the first is
    repeated, as in training. Unknown fields are ignored.
    """

    def __init__(self, encodings: Sequence[Encoding], sequence: int | None) -> None:
        self.fields = tuple(map(field_of, encodings))
        self.sequence = sequence
        self.width = sum(len(one.inputs) for one in encodings)
        row = _struct(self.fields)
        item = list[row] if sequence is not None else row  # type: ignore[valid-type]  # a class made here
        self._rows = msgspec.json.Decoder(list[item])  # type: ignore[valid-type]
        self._named = msgspec.json.Decoder(msgspec.defstruct("Body", [("rows", list[item])]))  # type: ignore[valid-type]
        self._line = msgspec.json.Decoder(item)
        self._encode = _encoder(self.fields)

    def read(self, body: bytes) -> Floats:
        """Return the inputs [rows, inputs] or [rows, sequence, inputs] of a body: a list of rows, or an
        object with the list `rows`. Raises MalformedError, FieldsError."""
        try:
            if body[:1] == b"[":
                return self.inputs_of(self._rows.decode(body))
            named: Any = self._named.decode(body)
            return self.inputs_of(named.rows)
        except msgspec.ValidationError as error:
            raise self._explained(body, error) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise not_json("body", body, error) from error

    def read_line(self, line: bytes) -> Floats:
        """Return the inputs of one row. Raises MalformedError, FieldsError."""
        return self.inputs_of([self.row_of_line(line)])

    def row_of_line(self, line: bytes) -> Any:  # noqa: ANN401  a row, or a list of rows
        """Return the decoded row of one line. Raises MalformedError, FieldsError."""
        try:
            return self._line.decode(line)
        except msgspec.ValidationError as error:
            raise FieldsError(tuple(self._problems([untyped(line, "line")], str(error)))) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise not_json("line", line, error) from error

    def inputs_of(self, rows: Sequence[Any]) -> Floats:
        """Return the inputs of decoded rows."""
        if self.sequence is None:
            return self._encode([astuple(row) for row in rows])
        return self._encode(self.values_of(rows)).reshape(len(rows), self.sequence, self.width)

    def values_of(self, rows: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the values of the fields of decoded rows. A row of a model with a sequence has `sequence`
        tuples. Raises FieldsError for a row that is an empty list."""
        if self.sequence is None:
            return [astuple(row) for row in rows]
        empty = [Problem(row=n, problem="the list has no objects") for n, row in enumerate(rows) if not row]
        if empty:
            raise FieldsError(tuple(empty))
        length = self.sequence
        windows = [[row[0]] * (length - len(row)) + row[-length:] for row in rows]
        return [astuple(one) for window in windows for one in window]

    def inputs_of_columns(self, columns: Sequence[Any]) -> Floats:
        """Return the inputs [values, inputs] of the values of each field, in the order of the fields."""
        return _encode_columns(self.fields, columns)

    def _explained(self, body: bytes, error: msgspec.ValidationError) -> FieldsError:
        """Return the error with every wrong field of every row, because the decoder stops at the first."""
        content = untyped(body)
        rows = content.get("rows") if isinstance(content, dict) else content
        if not isinstance(rows, list):
            names = ", ".join(repr(one.name) for one in self.fields[:3])
            more = f" and {len(self.fields) - 3} more" if len(self.fields) > 3 else ""
            return FieldsError(
                (Problem(field="rows", problem="the body has no list of rows"),),
                hint=f'Send {{"rows": [...]}}, where each row has the fields {names}{more}. '
                "`GET /openapi.json` has an example.",
            )
        return FieldsError(tuple(self._problems(rows, str(error))))

    def _problems(self, rows: Sequence[Any], otherwise: str) -> list[Problem]:
        found: list[Problem] = []
        for number, row in enumerate(rows):
            found += self._of_row(number, row)
            if len(found) > SHOWN:
                break
        return found or [Problem(problem=otherwise)]

    def _of_row(self, number: int, row: object) -> list[Problem]:
        if self.sequence is None:
            return self._of_object(number, row)
        if not isinstance(row, list):
            text = f"the model reads sequences, so each row is a list of up to {self.sequence} objects"
            return [Problem(row=number, problem=text)]
        return [problem for one in row for problem in self._of_object(number, one)]

    def _of_object(self, number: int, row: object) -> list[Problem]:
        if not isinstance(row, dict):
            return [Problem(row=number, problem=f"the row is {_word(row)}, not an object with named fields")]
        return [
            Problem(row=number, field=field.name, problem=problem)
            for field in self.fields
            if (problem := problem_of(field, row))
        ]


astuple: Callable[[Any], tuple[Any, ...]] = msgspec.structs.astuple


def not_json(what: str, text: bytes, error: Exception) -> MalformedError:
    """Return the error for a text that is not valid JSON. `what` is the word for the text."""
    if not text.strip():
        return MalformedError(f"the {what} is empty, not valid JSON")
    reason, hint = _syntax(text, error)
    return MalformedError(f"the {what} is not valid JSON: {reason}", hint=hint)


def _syntax(text: bytes, error: Exception) -> tuple[str, str]:
    """Return what is wrong with a text that is not valid JSON, with the place if it is known, and a hint."""
    if text.startswith(_MARKS):
        return "it begins with a byte order mark", "Send UTF-8 without a byte order mark."
    if isinstance(error, RecursionError):
        return "it is nested too deeply", ""
    try:
        text.decode()
    except UnicodeDecodeError as wrong:
        return f"it is not UTF-8: byte 0x{text[wrong.start]:02x} (byte {wrong.start})", ""
    if isinstance(error, json.JSONDecodeError):
        place = len(error.doc[: error.pos].encode())
        reason = f"{error.msg[:1].lower()}{error.msg[1:]} (byte {place})"
    else:
        reason = str(error).removeprefix("JSON is malformed: ")
        found = _BYTE.search(reason)
        place = int(found[1]) if found else 0
    if reason == _TRUNCATED:
        reason = "half of a surrogate pair, such as \\ud800" if _is_json(text) else "it is not complete"
    has_constant = _NOT_JSON.match(text, place) is not None
    return reason, "JSON has no NaN and no infinity. Send null for a missing value." if has_constant else ""


def _is_json(text: bytes) -> bool:
    """Return whether the module `json` decodes a text. It accepts half of a surrogate pair, which a text
    cannot have in UTF-8."""
    try:
        json.loads(text, parse_int=_integer)
    except (ValueError, RecursionError):
        return False
    return True


def untyped(text: bytes, what: str = "body") -> Any:  # noqa: ANN401  any JSON
    """Decode JSON whose fields are wrong. Numbers that are too large become infinite. Raises MalformedError,
    because the error in the fields may come before an error in the syntax."""
    try:
        return json.loads(text, parse_constant=_refused_constant, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise not_json(what, text, error) from error


def _integer(digits: str) -> float:
    """Return a whole number. Python refuses to read thousands of digits, so such a number is infinite."""
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


def _refused_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _struct(fields: Sequence[Field]) -> type[msgspec.Struct]:
    """Return a class for a row. Its attributes have names of their own, because the name of a column need not
    be a Python identifier."""
    names = {f"f{number}": field.name for number, field in enumerate(fields)}
    return msgspec.defstruct(
        "Row",
        [(own, _TYPES[field.kind]) for own, field in zip(names, fields, strict=True)],
        rename=names,
        gc=False,
    )


def _encoder(fields: Sequence[Field]) -> Callable[[list[tuple[Any, ...]]], Floats]:
    """Return a function that encodes rows. It makes one list of all inputs, because a request usually has few
    rows, and each array of NumPy takes a microsecond."""
    if not any(field.kind == FieldKind.TEXT for field in fields):
        width = len(fields)
        return lambda rows: np.array(rows, np.float64).reshape(len(rows), width)
    parts = _parts(fields)
    width = sum(
        len(field.categories) + field.others if field.kind == FieldKind.TEXT else 1 for field in fields
    )

    def encode(rows: list[tuple[Any, ...]]) -> Floats:
        inputs: list[Any] = []
        for row in rows:
            for begin, end, known, unknown in parts:
                inputs += row[begin:end] if known is None else known.get(row[begin], unknown)
        return np.array(inputs, np.float64).reshape(len(rows), width)

    return encode


_Known = dict[str | None, tuple[float, ...]]


def _parts(fields: Sequence[Field]) -> list[tuple[int, int, _Known | None, tuple[float, ...]]]:
    """Return the parts of a row: from the place of the first to after the last of its fields. A part is one
    text with its codes, or several numbers next to each other, which are copied together."""
    parts: list[tuple[int, int, _Known | None, tuple[float, ...]]] = []
    for place, field in enumerate(fields):
        if field.kind == FieldKind.TEXT:
            parts.append((place, place + 1, *_codes(field)))
        elif parts and parts[-1][2] is None:
            parts[-1] = (parts[-1][0], place + 1, None, ())
        else:
            parts.append((place, place + 1, None, ()))
    return parts


def _codes(field: Field) -> tuple[_Known, tuple[float, ...]]:
    """Return the inputs of each category and of a missing text, and the inputs of an unknown text."""
    width = len(field.categories) + field.others
    missing = (0.0,) * width
    known: _Known = {None: missing}
    known |= {name: _one_at(place, width) for place, name in enumerate(field.categories)}
    return known, _one_at(len(field.categories), width) if field.others else missing


def _one_at(place: int, width: int) -> tuple[float, ...]:
    return tuple(float(number == place) for number in range(width))


def _encode_columns(fields: Sequence[Field], columns: Sequence[Any]) -> Floats:
    return np.concatenate([_encoded(*one) for one in zip(fields, columns, strict=True)], axis=1)


def _encoded(field: Field, values: Any) -> Floats:  # noqa: ANN401  a list or an array
    if field.kind != FieldKind.TEXT:
        numbers: Floats = np.array(values, np.float64).reshape(-1, 1)
        numbers[~np.isfinite(numbers)] = np.nan
        return numbers
    width = len(field.categories) + field.others
    place = {name: number for number, name in enumerate(field.categories)}
    rest = len(field.categories) if field.others else -1
    codes = np.array([-1 if one is None else place.get(one, rest) for one in values], np.int64)
    hot: npt.NDArray[np.bool_] = codes[:, None] == np.arange(width)
    return hot.astype(np.float64)


def problem_of(field: Field, row: dict[str, Any]) -> str | None:
    """Return the problem with the value of a field in a row, or None if the value is right."""
    if field.name not in row:
        return "the field is missing; send null if the value is unknown"
    value = row[field.name]
    if value is None or _fits(field.kind, value):
        return None
    if isinstance(value, int | float) and not _in_range(value):
        return TOO_LARGE
    return f"the value is {_word(value)}, not {_WORDS[field.kind]}"


def _fits(kind: FieldKind, value: object) -> bool:
    if kind == FieldKind.TEXT:
        return isinstance(value, str)
    if isinstance(value, bool):
        return kind == FieldKind.BOOLEAN
    return isinstance(value, int | float) and _in_range(value)


def _in_range(value: float) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except OverflowError:
        return False


def _word(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int | float):
        return "a number"
    return "a text" if isinstance(value, str) else "a list" if isinstance(value, list) else "an object"
