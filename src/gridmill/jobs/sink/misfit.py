"""What users read of a value that does not fit its column."""

import pyarrow as pa

from gridmill.errors import DataError
from gridmill.jobs.sink.convert import TYPES, Loss, MisfitError, TextRules

_DECLARED = (
    "Correct the value, change the type under `columns`, add the text to the source's `nulls`, or set "
    "`on_misfit: reject`."
)
_INFERRED = (
    "All rows loaded before had this type. Give the column another under `columns`: {{{name}: string}}."
)
_DIGITS = (
    "`columns: {{{name}: string}}` keeps every digit, `columns: {{{name}: float}}` takes the nearest float."
)
_ZEROS = "`columns: {{{name}: string}}` keeps it, `columns: {{{name}: {type}}}` drops it."
_TIMES = " Where times have this form: `timestamp_format: {{{name}: '%d.%m.%Y %H:%M'}}` under `source`."
_NUMERIC = (
    " Where numbers are times, `timestamp_format: {{{name}: unix_s}}` under `source` shows their unit "
    "(`unix_s`, `unix_ms`, `unix_us`, `unix_ns`, or a pattern, as '%Y%m%d')."
)
_DECIMAL = " Where the comma is the sign before the decimals: `decimal: ','` under `source`."


def misfit(item: pa.Field, error: MisfitError, place: str, rules: TextRules) -> DataError:
    """The error for a value that is not of the type of the column `item`."""
    name, value, type_ = item.name, shown(error.value), TYPES.get(item.type, item.type)
    if error.loss == Loss.DIGITS:
        said = f"column {name!r} has fractions, and {value} is a whole number that no float holds exactly"
        return DataError(said, hint=_DIGITS.format(name=name), place=place)
    if error.loss == Loss.ZEROS:
        sign = "a plus" if str(error.value).strip().startswith("+") else "a zero"
        said = f"column {name!r} has numbers, and {value} begins with {sign}, which no number keeps"
        return DataError(said, hint=_ZEROS.format(name=name, type=type_), place=place)
    hint = _DECLARED if rules.declared else _INFERRED.format(name=name)
    return DataError(
        f"column {name!r}: {value} is not of type {type_}",
        hint=hint + _cure(item, error.value, rules).format(name=name),
        place=place,
    )


def _cure(item: pa.Field, value: object, rules: TextRules) -> str:
    """What to declare where the value is right, and only its form is unknown."""
    text = str(value).strip()
    if pa.types.is_temporal(item.type) and rules.time_format is None:
        return _NUMERIC if text.replace(".", "", 1).lstrip("-").isdigit() else _TIMES
    if item.type in (pa.int64(), pa.float64()) and "," in text:
        return _DECIMAL
    return ""


def no_wider(name: str, number: int, place: str) -> DataError:
    """The error for a value with a fraction in a column whose rows have a number that no float holds."""
    said = f"column {name!r} has a fraction here, and the table has {number}, which no float holds exactly"
    return DataError(said, hint=_DIGITS.format(name=name), place=place)


def shown(value: object) -> str:
    """A value of a file, cut where it is long."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
