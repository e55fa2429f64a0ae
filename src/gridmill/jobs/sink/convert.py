"""Converts values to the types of a table, and finds the first value that does not fit its type.

Texts are read as numbers and times in the forms that were detected for their column.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.domain.frozen import dataclass
from gridmill.domain.sink import ColumnType
from gridmill.domain.source import UNIX_UNITS
from gridmill.jobs.sink.dates import DateReadings, Mask, Numbers, counted, distinct
from gridmill.jobs.sink.lossless import (
    EXACT,
    count_cut,
    count_rounded,
    has_keys,
    in_day,
    inexact_rows,
    is_key,
)
from gridmill.jobs.sink.value_forms import (
    ANY,
    MARKS,
    NOT_A_NUMBER,
    ORDERS,
    UNITS,
    Form,
    Forms,
    as_plain,
    only,
)

_TIMESTAMP = pa.timestamp("us", "UTC")
_WHOLE = r"^[+]?(-?[0-9]+)(\.0*)?$"
_EXPONENT = r"^[+-]?[0-9]*\.?[0-9]+[eE][+-]?[0-9]{1,3}$|^[+-]?[0-9]+\.[eE][+-]?[0-9]{1,3}$"


def plain_numbers(texts: pa.ChunkedArray, forms: Forms, *, declared: bool) -> pa.ChunkedArray:
    """Return the numbers as texts that Arrow can read.

    While it is unknown whether the comma or the point is the decimal separator, a text is accepted only if
    it is the same number with either separator. A text that is not the same number in both cases becomes a
    text that Arrow rejects.
    """
    mark = only(forms, MARKS)
    if mark is not None:
        return as_plain(texts, mark, declared=declared)
    one, other = (as_plain(texts, mark, declared=declared) for mark in MARKS)
    return pc.if_else(pc.equal(one, other), one, pa.scalar(NOT_A_NUMBER, pa.string()))


def whole_numbers(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the texts as integers. A number whose decimals are all zero is an integer too (100.0, 1e2).
    Raises ArrowInvalid."""
    try:
        return texts.cast(pa.int64())
    except pa.ArrowInvalid:
        plain = pc.replace_substring_regex(texts, _WHOLE, r"\1")
        if pc.any(pc.match_substring_regex(plain, "[.eE]")).as_py():
            different, codes = distinct(plain)
            numbers = pa.array([_whole(text) for text in different.to_pylist()], pa.string())
            plain = pa.chunked_array([numbers.take(codes)])
        return plain.cast(pa.int64())


def _whole(text: str) -> str:
    """Return the text with digits only if it is a whole number with an exponent. Return any other text
    unchanged."""
    if not pc.match_substring_regex(pa.scalar(text), _EXPONENT).as_py():
        return text
    number = Decimal(text)
    whole = number.adjusted() < 20 and number == number.to_integral_value()
    return str(int(number)) if whole else text


def times_of(texts: pa.ChunkedArray, forms: Forms, *, dates: bool, declared: bool) -> pa.ChunkedArray:
    """Return the texts as times (or as dates if `dates` is true), read in the forms of their column.

    If several forms are possible, a text must be the same time in each form. Raises ValueError for a text
    that is not a time, and for a text that means different times in different forms.
    """
    different, codes = distinct(texts)
    readings = DateReadings(different, declared)
    micros, ok, timed = readings.plain.micros, readings.plain.ok, readings.plain.timed
    for family in (ORDERS, UNITS):
        decided, agreed = _agreed(readings, [form for form in family if form in forms])
        micros = np.where(agreed, decided, micros)
        ok = ok | agreed
        timed = timed | (
            readings.by(family) & np.logical_or.reduce([readings.forms[form].timed for form in family])
        )
    if not ok.all() or (dates and (timed & ok).any()):
        raise ValueError
    times = pa.array(micros, pa.int64()).cast(_TIMESTAMP).take(codes)
    return pa.chunked_array([times.cast(pa.date32()) if dates else times])


def _agreed(found: DateReadings, forms: list[Form]) -> tuple[Numbers, Mask]:
    """Return the times of the texts that are the same time in all of the forms.

    While several forms are possible, only texts that are the same time in all of the forms have a certain
    meaning.
    """
    if not forms:
        return np.zeros(len(found.texts), np.int64), np.zeros(len(found.texts), bool)
    readings = [found.forms[form] for form in forms]
    micros = readings[0].micros
    same = [reading.ok & (reading.micros == micros) for reading in readings]
    return micros, np.logical_and.reduce(same)


def as_unit(texts: pa.ChunkedArray, unit: Form) -> pa.ChunkedArray:
    """Return texts of numbers as numbers of `unit` since 1970. Raises ValueError for any other text."""
    different, codes = distinct(texts)
    times = counted(different, unit)
    if not times.ok.all():
        raise ValueError
    return pa.chunked_array([pa.array(times.micros, pa.int64()).cast(_TIMESTAMP).take(codes)])


TIMESTAMP = pa.timestamp("us", "UTC")
ARROW = {
    ColumnType.STRING: pa.string(),
    ColumnType.INTEGER: pa.int64(),
    ColumnType.FLOAT: pa.float64(),
    ColumnType.BOOLEAN: pa.bool_(),
    ColumnType.DATE: pa.date32(),
    ColumnType.TIMESTAMP: TIMESTAMP,
}
TYPES = {arrow: type_ for type_, arrow in ARROW.items()}

Convert: TypeAlias = Callable[[pa.ChunkedArray], pa.ChunkedArray]

_ZONE = r"(?i)(Z|[+-]\d{2}(:?\d{2})?)$"
_FRACTION = r"(\.\d{6})\d+"


class ConversionLoss(Enum):
    """The kinds of information that a value can lose in a conversion."""

    NOTHING = "nothing"
    ZEROS = "zeros"
    DIGITS = "digits"
    TIME = "time"


class MisfitError(Exception):
    """The error for a value that does not have the type of its column, or would lose information (`loss`).
    `row` is the number of the value in the column, from 0."""

    def __init__(self, row: int, value: object, loss: ConversionLoss = ConversionLoss.NOTHING) -> None:
        super().__init__(row, value)
        self.row = row
        self.value = value
        self.loss = loss


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRules:
    """The rules by which the texts of a column are read.

    The texts in `nulls` are missing values. `time_format` is a strptime pattern, or a time unit (`unix_s`).
    `forms` are the forms of the texts in the column. If `forms` is None, Arrow reads the texts directly.
    `known` contains the forms that are possible before any text is read. `declared` means that the type of
    the column was declared, so that texts which could also be other values have this type.
    """

    nulls: tuple[str, ...] = ()
    time_format: str | None = None
    forms: Forms | None = None
    known: Forms = ANY
    declared: bool = False


def is_text(kind: pa.DataType) -> bool:
    """Return whether the Arrow type is a string type of any kind."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_coded(kind: pa.DataType) -> bool:
    """Return whether the Arrow type is dictionary-encoded text."""
    return bool(pa.types.is_dictionary(kind) and kind.value_type == pa.string())


def is_nested(kind: pa.DataType) -> bool:
    """Return whether values of this type are stored unchanged, which applies to lists, structs, maps and
    bytes."""
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def convert(
    column: pa.ChunkedArray, target: pa.DataType, rules: TextRules, *, exact: bool = False
) -> pa.ChunkedArray:
    """Return the column converted to the type `target`. Raises MisfitError for the first value that does not
    fit the type.

    With `exact` (for a type that was not declared), a value must also be represented by `target` without
    loss. Examples of values that do not fit are a whole number that a float cannot represent, a number that
    begins with a zero, and a time of day in a column of dates. Without `exact`, the function `lost` counts
    values that lose information.
    """
    column = plain(column)
    if column.type == target and not pa.types.is_temporal(target):
        return column
    if exact:
        _check_exact(column, target, rules)
    column, to = _converter(column, target, rules)
    try:
        return to(column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OverflowError) as error:
        row = _first_misfit(column, to)
        raise MisfitError(row, _shown(column[row])) from error


def _converter(
    column: pa.ChunkedArray, target: pa.DataType, rules: TextRules
) -> tuple[pa.ChunkedArray, Convert]:
    """Return the function that converts the column to `target`, and the column that the caller passes to
    this function.

    If the numbers of the column are times, they are converted to texts first.
    """
    if rules.declared and (rules.forms is not None or rules.time_format is not None):
        column = as_texts(column, target) or column
    return column, _from_text(target, rules) if is_text(column.type) else _cast(column.type, target)


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column without dictionary encoding."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _check_exact(column: pa.ChunkedArray, target: pa.DataType, rules: TextRules) -> None:
    """Raise MisfitError for the first value that `target` can represent only in part."""
    texts = is_text(column.type)
    numbers = trimmed(column, rules.nulls) if texts else column
    if texts and rules.forms is not None and target in (pa.int64(), pa.float64()):
        numbers = plain_numbers(numbers, rules.forms, declared=rules.declared)
    if texts and target in (pa.int64(), pa.float64()) and has_keys(numbers):
        row = pc.index(is_key(numbers), True).as_py()
        raise MisfitError(row, _shown(column[row]), ConversionLoss.ZEROS)
    if pa.types.is_boolean(column.type) and target in (pa.int64(), pa.float64()):
        for row in (row for row, value in enumerate(column.to_pylist()) if value is not None):
            raise MisfitError(row, _shown(column[row]))
    if target == pa.float64():
        for row in inexact_rows(numbers):
            raise MisfitError(row, _shown(column[row]), ConversionLoss.DIGITS)
    if target == pa.date32() and pa.types.is_timestamp(column.type):
        row = pc.index(in_day(_to_timestamp(column)), True).as_py()
        if row >= 0:
            raise MisfitError(row, _shown(column[row]), ConversionLoss.TIME)


ROUNDED = "rounded to the nearest float"
CUT = "cut to whole microseconds"
DATED = "cut to their date"


def lost(column: pa.ChunkedArray, target: pa.DataType, rules: TextRules) -> tuple[str, int]:
    """Return a text with the information that values lose when they become `target`, and the number of these
    values. The caller has checked that all values of the column fit `target`."""
    column = plain(column)
    if is_text(column.type) and target in (pa.float64(), TIMESTAMP):
        column = trimmed(column, rules.nulls)
    if is_text(column.type) and target == pa.float64() and rules.forms is not None:
        column = plain_numbers(column, rules.forms, declared=rules.declared)
    if target == pa.float64():
        return ROUNDED, count_rounded(column)
    if target == TIMESTAMP:
        return CUT, count_cut(column) if rules.time_format is None or not is_text(column.type) else 0
    if target == pa.date32() and pa.types.is_timestamp(column.type):
        return DATED, int(pc.sum(in_day(_to_timestamp(column))).as_py() or 0)
    if target == pa.date32() and is_text(column.type) and rules.time_format is not None:
        times = _by_pattern(trimmed(column, rules.nulls), rules.time_format)
        return DATED, int(pc.sum(in_day(times)).as_py() or 0)
    return "", 0


def _shown(value: pa.Scalar) -> object:
    try:
        return value.as_py()
    except OverflowError:
        return "a time beyond the years 1 to 9999"


def convert_fitting(
    column: pa.ChunkedArray, target: pa.DataType, rules: TextRules
) -> tuple[pa.ChunkedArray, tuple[int, ...]]:
    """Return the column converted to `target`, and the numbers (from 0) of the rows whose values do not fit.
    Values that do not fit become missing values."""
    column = plain(column)
    try:
        return convert(column, target, rules), ()
    except MisfitError:
        column, to = _converter(column, target, rules)
        rows = tuple(_misfits(column, to))
        bad = set(rows)
        fitting = pa.array([row not in bad for row in range(len(column))], pa.bool_())
        cleaned = pc.if_else(fitting, column, pa.scalar(None, column.type))
        return convert(cleaned, target, rules), rows


def _misfits(column: pa.ChunkedArray, to: Convert) -> Iterator[int]:
    """Yield the numbers of all rows whose values do not fit. If Arrow can compare the values, the function
    tries each distinct value only once."""
    try:
        codes = column.combine_chunks().dictionary_encode()
    except pa.ArrowNotImplementedError:
        yield from _bad_rows(column, to, 0)
        return
    bad = set(_bad_rows(pa.chunked_array([codes.dictionary]), to, 0))
    yield from (row for row, code in enumerate(codes.indices.to_pylist()) if code in bad)


def _bad_rows(column: pa.ChunkedArray, to: Convert, start: int) -> Iterator[int]:
    """Find the rows whose values do not fit by bisection. If all values of a range fit, the range is not
    divided further."""
    try:
        to(column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OverflowError):
        if len(column) == 1:
            yield start
            return
        half = len(column) // 2
        yield from _bad_rows(column.slice(0, half), to, start)
        yield from _bad_rows(column.slice(half), to, start + half)


def fits(column: pa.ChunkedArray, target: pa.DataType, rules: TextRules) -> bool:
    """Return whether every text of the column can be read as `target`."""
    try:
        _from_text(target, rules)(column)
    except (pa.ArrowInvalid, ValueError, OverflowError):
        return False
    return True


def are_plain(texts: pa.ChunkedArray, target: pa.DataType) -> bool:
    """Return whether Arrow can read every text as `target` directly. The texts must be trimmed."""
    try:
        _parser(target, TextRules())(texts)
    except (pa.ArrowInvalid, ValueError, OverflowError):
        return False
    return True


def _first_misfit(column: pa.ChunkedArray, to: Convert) -> int:
    """Return the number of the first row whose value does not fit. The row is found by bisection with O(n)
    conversions in total."""
    start, length = 0, len(column)
    while length > 1:
        half = length // 2
        try:
            to(column.slice(start, half))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OverflowError):
            length = half
        else:
            start, length = start + half, length - half
    return start


def _cast(kind: pa.DataType, target: pa.DataType) -> Convert:
    if pa.types.is_temporal(target) and not pa.types.is_temporal(kind):
        return lambda column: _nothing(column, target)
    if pa.types.is_temporal(kind) and (pa.types.is_primitive(target) and not pa.types.is_temporal(target)):
        return lambda column: _nothing(column, target)
    if pa.types.is_timestamp(target):
        return _to_timestamp
    if pa.types.is_boolean(target) and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return _to_boolean
    if pa.types.is_integer(kind) and pa.types.is_floating(target):
        # a large number has no exact float, and a safe cast would refuse it instead of rounding it
        return lambda column: column.cast(target, safe=False)
    if pa.types.is_boolean(kind) and (pa.types.is_integer(target) or pa.types.is_floating(target)):
        return lambda column: column.cast(pa.int64()).cast(target)
    # converted by way of text, because Arrow's cast does not round to the nearest number
    if pa.types.is_decimal(kind) and pa.types.is_floating(target):
        return lambda column: column.cast(pa.string()).cast(target)
    if pa.types.is_decimal(kind) and target == pa.string():
        return _digits
    if pa.types.is_nested(kind) and target == pa.string():
        return lambda column: pa.chunked_array([[_text(value) for value in column.to_pylist()]], pa.string())
    # by way of a time in UTC, because the date must be that in UTC, not in the time zone of the file
    if pa.types.is_date(target) and pa.types.is_timestamp(kind):
        return lambda column: _in_years(_to_timestamp(column).cast(target))
    if pa.types.is_date(target):
        return lambda column: _in_years(column.cast(target))
    return lambda column: column.cast(target)


def _nothing(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Raise an error, because numbers are not converted to times, and times are not converted to numbers.

    Numbers are not converted to times, because it is unknown whether the numbers count seconds or days.
    """
    if column.null_count < len(column):
        raise ValueError
    return pa.chunked_array([pa.nulls(len(column), target)])


def _to_boolean(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert the numbers 0 and 1 to booleans. Arrow alone would convert any other number to true."""
    if not pc.all(pc.is_in(column.cast(pa.float64(), safe=False), pa.array([0.0, 1.0, None]))).as_py():
        raise ValueError
    return column.cast(pa.bool_())


def _digits(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return decimals as texts with all digits and without an exponent. Arrow itself would write such a
    number with an exponent, for example 1E-10."""
    texts = column.cast(pa.string())
    if not pc.any(pc.match_substring(texts, "E")).as_py():
        return texts
    return pa.chunked_array([[v if v is None else format(v, "f") for v in column.to_pylist()]], pa.string())


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _to_timestamp(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert a column to times. A time without a zone is read as UTC. Fractions of a microsecond are cut
    off."""
    cut = pa.types.is_timestamp(column.type) and column.type.unit == "ns"
    # nanoseconds always fit after they are cut; seconds or milliseconds may be out of range
    return _in_years(pc.cast(column, TIMESTAMP, safe=not cut))


def as_texts(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray | None:
    """Return a column of numbers as texts that can be read as `target`, because numbers can be times.

    Return None if the column contains neither texts nor numbers that can be times.
    """
    column = plain(column)
    if is_text(column.type):
        return column
    counts = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    return _number_texts(column) if counts and pa.types.is_temporal(target) else None


def _number_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return numbers as texts in the usual notation, without an exponent."""
    if pa.types.is_floating(column.type):
        whole = pc.all(pc.equal(pc.floor(column), column)).as_py()
        largest = pc.max(pc.abs(column)).as_py()
        if whole and largest is not None and largest < EXACT:
            column = column.cast(pa.int64())
    return column.cast(pa.string())


def _from_text(target: pa.DataType, rules: TextRules) -> Convert:
    if target == pa.string():
        return lambda column: column.cast(target)
    parse = _parser(target, rules)
    return lambda column: parse(trimmed(column, rules.nulls))


def _parser(target: pa.DataType, rules: TextRules) -> Convert:
    """Return a function that reads trimmed texts as values of the type `target`."""
    if target in (TIMESTAMP, pa.date32()):
        return _time_parser(target, rules)
    parse: Convert = _READ_AS.get(target) or (lambda column: column.cast(target))
    if target == pa.int64() and rules.declared:
        parse = whole_numbers
    if rules.forms is None or target not in (pa.int64(), pa.float64()):
        return parse
    forms = rules.forms
    return lambda texts: parse(plain_numbers(texts, forms, declared=rules.declared))


def _time_parser(target: pa.DataType, rules: TextRules) -> Convert:
    if rules.time_format in UNIX_UNITS:
        unit = Form(rules.time_format)
        return lambda texts: _in_years(as_unit(texts, unit).cast(target, safe=False))
    if rules.time_format is not None:
        pattern = rules.time_format
        return lambda texts: _by_pattern(texts, pattern).cast(target, safe=False)
    if rules.forms is not None:
        forms = rules.forms
        return lambda texts: times_of(texts, forms, dates=target == pa.date32(), declared=rules.declared)
    return _iso_time if target == TIMESTAMP else _dates


def _finite(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert texts to floats. A number that is too large for a float does not fit, although Arrow alone
    would convert it to infinity."""
    result = texts.cast(pa.float64())
    if pc.any(pc.is_inf(result)).as_py():
        beyond = pc.and_(pc.is_inf(result), pc.match_substring_regex(texts, "[0-9]"))
        if pc.any(beyond).as_py():
            raise ValueError
    return result


def _dates(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert texts to dates. Raises OverflowError for dates outside of the years 1 to 9999."""
    return _in_years(texts.cast(pa.date32()))


def _in_years(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the times unchanged. Raises OverflowError for times outside of the years that Python can
    represent."""
    for end in pc.min_max(times).values():
        end.as_py()
    return times


_READ_AS: Mapping[pa.DataType, Convert] = {pa.float64(): _finite, pa.date32(): _dates}


def is_missing(texts: pa.ChunkedArray, nulls: Sequence[str]) -> bool:
    """Return whether all texts of a column mean "missing". Some of these texts may be quoted."""
    if not set(texts[:1].to_pylist()) <= {None, "", *nulls}:
        return False
    trimmed_texts = trimmed(texts, nulls)
    return bool(trimmed_texts.null_count == len(trimmed_texts))


def trimmed(column: pa.ChunkedArray, nulls: Sequence[str]) -> pa.ChunkedArray:
    """Remove surrounding spaces from the texts. Texts that mean "missing" become null."""
    texts = pc.utf8_trim_whitespace(column.cast(pa.string()))
    missing = pc.is_in(texts, value_set=pa.array([*nulls, ""], pa.string()))
    return pc.if_else(missing, pa.scalar(None, pa.string()), texts)


def _iso_time(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Read texts as times in ISO 8601. A column may have times with and without a time zone."""
    column = pc.replace_substring_regex(column, pattern=_FRACTION, replacement=r"\1")
    zoned = pc.match_substring_regex(pc.utf8_slice_codeunits(column, 10), pattern=_ZONE)
    none = pa.scalar(None, pa.string())
    with_zone = pc.if_else(zoned, column, none).cast(TIMESTAMP)
    without = pc.if_else(zoned, none, column).cast(pa.timestamp("us"))
    return _in_years(pc.coalesce(with_zone, without.cast(TIMESTAMP)))


def _by_pattern(column: pa.ChunkedArray, pattern: str) -> pa.ChunkedArray:
    """Read texts as times by a strptime pattern, each distinct text only once."""
    codes = column.combine_chunks().dictionary_encode()
    times = [_moment(text, pattern) for text in codes.dictionary.to_pylist()]
    return pa.chunked_array([pa.array(times, TIMESTAMP).take(codes.indices)])


def _moment(text: str, pattern: str) -> datetime:
    moment = datetime.strptime(text, pattern)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
