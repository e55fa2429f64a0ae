"""Errors for columns whose texts can be read in several ways. The error shows all ways to read the texts,
and the line to write into the pipeline file."""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.domain.calendar import show_moment
from gridmill.domain.frozen import dataclass
from gridmill.domain.sink import ColumnType
from gridmill.errors import DataError
from gridmill.jobs.sink.convert import ARROW, TextRules, as_texts, trimmed
from gridmill.jobs.sink.dates import DateReadings, distinct
from gridmill.jobs.sink.form_detection import FormCandidates
from gridmill.jobs.sink.value_forms import MARKS, NOT_A_NUMBER, ORDERS, UNITS, Form, Forms, as_plain, readings

_NUMBERS = (ColumnType.INTEGER, ColumnType.FLOAT)
_TIMES = (ColumnType.DATE, ColumnType.TIMESTAMP)
_PLAIN_NUMBER = r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$"
_ISO = r"^\d{4}-\d{2}-\d{2}(?:[T ][0-9:.Z+-]+)?$"
_EXAMPLE_ROWS = 1000
_ORDER_NAMES = {Form.DAY_FIRST: "day first", Form.MONTH_FIRST: "month first"}
_UNIT_NAMES = {
    Form.DIGITS: "year, month and day",
    Form.SECONDS: "seconds since 1970",
    Form.MILLISECONDS: "milliseconds since 1970",
    Form.MICROSECONDS: "microseconds since 1970",
    Form.NANOSECONDS: "nanoseconds since 1970",
}


class AmbiguousTextError(DataError):
    """The values that were read so far do not show how to read the texts. Values that are read later may
    show how to read the texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmbiguousText:
    """The reason why the texts of a column cannot be read. `text` is an example of these texts."""

    text: str
    message: str
    hint: str

    def error(self, place: str) -> AmbiguousTextError:
        """Return an exception with this reason and the given place."""
        return AmbiguousTextError(self.message, hint=self.hint, place=place)


def families_of(type_: ColumnType) -> tuple[tuple[Form, ...], ...]:
    """Return the families of text forms that apply to a column of this type."""
    if type_ in _NUMBERS:
        return (MARKS,)
    return (ORDERS, UNITS) if type_ in _TIMES else ()


def forms_of(narrowing: FormCandidates, type_: ColumnType) -> Forms | None:
    """Return the text forms that still fit all texts of a column. Return None if Arrow can read all texts of
    the column directly."""
    families = families_of(type_)
    plain = not narrowing.written and Form.POINT in narrowing.forms
    if not families or plain or (type_ in _TIMES and not narrowing.written):
        return None
    return frozenset(form for family in families for form in narrowing.left(family))


def is_open(forms: Forms | None, type_: ColumnType) -> bool:
    """Return whether more than one form of a family still fits all texts."""
    return any(forms is None or len(forms & {*family}) > 1 for family in families_of(type_))


def may_fit(column: pa.ChunkedArray, target: pa.DataType, rules: TextRules) -> bool:
    """Return whether any text of the column can be read as the type `target` in a form that still fits all
    texts."""
    texts = as_texts(column, target)
    if texts is None or rules.time_format is not None:
        return False
    different, _ = distinct(trimmed(texts, rules.nulls))
    if target in (ARROW[ColumnType.INTEGER], ARROW[ColumnType.FLOAT]):
        return is_open(rules.forms, ColumnType.FLOAT) and _has_written_number(different)
    if not pa.types.is_temporal(target):
        return False
    found = DateReadings(different, declared=True)
    plain = rules.forms is None and bool(found.plain.ok.any())
    undecided = [family for family in (ORDERS, UNITS) if len((rules.forms or {*Form}) & {*family}) > 1]
    return plain or any(found.by(family).any() for family in undecided)


def _has_written_number(texts: pa.StringArray) -> bool:
    column = pa.chunked_array([texts])
    written = pc.invert(pc.match_substring_regex(column, _PLAIN_NUMBER))
    numbers = [pc.not_equal(as_plain(column, mark, declared=True), NOT_A_NUMBER) for mark in MARKS]
    return bool(pc.any(pc.and_(written, pc.or_(*numbers))).as_py())


def unclear_in(name: str, narrowing: FormCandidates, type_: ColumnType) -> AmbiguousText | None:
    """Return the reason why the texts of a column cannot be read, or None if they can be read."""
    if type_ in _TIMES and narrowing.short:
        return _short(name, narrowing.short)
    for family in families_of(type_):
        left = narrowing.left(family)
        if not left:
            return _contradictory(name, narrowing, family)
        if len(left) > 1 and family in narrowing.opens:
            return _ambiguous(name, narrowing.opens[family], family, left)
    return None


def _short(name: str, text: str) -> AmbiguousText:
    formats = " or ".join(
        f"`timestamp_format: {{{name}: {pattern!r}}}`" for pattern in _patterns(text) if "%y" in pattern
    )
    lines = formats or f"`timestamp_format: {{{name}: PATTERN}}`"
    return AmbiguousText(
        text=text,
        message=f"column {name!r}: {text!r} has a year of two digits, which does not show its century",
        hint=f"Under `source`, write {lines} (69 to 99 are 1969 to 1999, 00 to 68 are 2000 to 2068). "
        + _keep_text(name),
    )


def _contradictory(name: str, narrowing: FormCandidates, family: tuple[Form, ...]) -> AmbiguousText:
    texts = list(dict.fromkeys(narrowing.against[form] for form in family if form in narrowing.against))
    if family == MARKS:
        message = f"{' and '.join(map(repr, texts))} do not use the same decimal sign"
        lines = "`decimal: '.'` or `decimal: ','`"
        hint = f"Correct the values, or write {lines} under `source`. {_keep_text(name)}"
    elif len(texts) == 1:
        message = f"{texts[0]!r} does not have the form of the column's other times"
        hint = f"Correct the value. {_keep_text(name)}"
    elif family == ORDERS:
        message = (
            f"{texts[1]!r} has the day first, and {texts[0]!r} has the month first" if len(texts) > 1 else ""
        )
        hint = f"Correct the values: all rows of a column must have the same order. {_keep_text(name)}"
    else:
        message = f"{' and '.join(map(repr, texts[:2]))} do not count the time since 1970 in the same unit"
        hint = f"Correct the values, or write `timestamp_format: {{{name}: unix_s}}` under `source`."
    return AmbiguousText(text=texts[0], message=f"column {name!r}: {message}", hint=hint)


def _ambiguous(name: str, text: str, family: tuple[Form, ...], left: tuple[Form, ...]) -> AmbiguousText:
    if family == MARKS:
        numbers = readings(text)
        meanings = " or ".join(numbers[mark] for mark in left)
        lines = "`decimal: '.'` (commas group thousands) or `decimal: ','`"
    elif family == ORDERS:
        meanings = " or ".join(show_moment(_moment(text, form)) for form in left)
        lines = " or ".join(
            f"`timestamp_format: {{{name}: {pattern!r}}}` ({_ORDER_NAMES[form]})"
            for form, pattern in zip(ORDERS, _patterns(text), strict=True)
        )
    else:
        units = [form for form in left if DateReadings(pa.array([text]), declared=True).forms[form].ok[0]]
        meanings = " or ".join(f"{show_moment(_moment(text, form))} ({_UNIT_NAMES[form]})" for form in units)
        lines = " or ".join(f"`timestamp_format: {{{name}: {_unit_pattern(text, form)}}}`" for form in units)
    return AmbiguousText(
        text=text,
        message=f"column {name!r}: {text!r} is {meanings}, and no row shows which is right",
        hint=f"Under `source`, write {lines}. {_keep_text(name)}",
    )


def _keep_text(name: str) -> str:
    return f"`columns: {{{name}: string}}` keeps the text."


def _moment(text: str, form: Form) -> datetime:
    reading = DateReadings(pa.array([text]), declared=True).forms[form]
    return datetime.fromtimestamp(0, UTC) + int(reading.micros[0]) * _MICROSECOND


_MICROSECOND = datetime.resolution


def _unit_pattern(text: str, form: Form) -> str:
    if form != Form.DIGITS:
        return str(form)
    return repr("%Y%m%d%H%M%S"[: {8: 6, 12: 10, 14: 12}[len(text)]])


def _patterns(text: str) -> Iterator[str]:
    """Yield the strptime patterns of a numeric date, with the day first and with the month first. Yield a
    single pattern for a date with the name of a month."""
    year = "%y" if re.match(r"^\d{1,2}[-/.]\d{1,2}[-/.]\d{2}(?!\d)", text) else "%Y"
    match = re.match(r"^\d{1,2}([-/.])\d{1,2}[-/.](?:\d{4}|\d{2})(.*)$", text)
    if match:
        sign, rest = match.groups()
        for first in ("%d{0}%m", "%m{0}%d"):
            yield first.format(sign) + sign + year + _clock_pattern(rest)
        return
    named = re.match(r"^\d{1,2}([ /-]*)[A-Za-z]+([ /-]*)\d{2}(.*)$", text)
    if named:
        yield f"%d{named[1]}%b{named[2]}%y{_clock_pattern(named[3])}"


def _clock_pattern(rest: str) -> str:
    """Return the strptime pattern of a time of day."""
    half = re.search(r"[AaPp][Mm]", rest)
    hour = "%I" if half else "%H"
    pattern = re.sub(r"\d{1,2}:\d{2}:\d{2}", f"{hour}:%M:%S", rest, count=1)
    pattern = re.sub(r"\d{1,2}:\d{2}", f"{hour}:%M", pattern, count=1) if "%S" not in pattern else pattern
    pattern = re.sub(r"%S\.\d+", "%S.%f", pattern)
    pattern = re.sub(r"[AaPp][Mm]", "%p", pattern)
    return re.sub(r"(Z|[+-]\d{2}:?\d{2})$", "%z", pattern)


def example(column: pa.ChunkedArray, converted: pa.ChunkedArray, rules: TextRules) -> str:
    """Return a text that shows how Gridmill reads the first text that Arrow cannot read directly. The result
    is empty if the first rows have no such text."""
    texts = as_texts(column.slice(0, _EXAMPLE_ROWS), converted.type)
    if texts is None:
        return ""
    texts = trimmed(texts, rules.nulls)
    plain = _ISO if pa.types.is_temporal(converted.type) else _PLAIN_NUMBER
    odd = pc.fill_null(pc.invert(pc.match_substring_regex(texts, plain)), False)
    for row in np.flatnonzero(odd.to_numpy()).tolist():
        value = converted[row].as_py()
        if value is not None:
            return f"{texts[row].as_py()!r} is read as {_value(value)}"
    return ""


def _value(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else f"{value}"
