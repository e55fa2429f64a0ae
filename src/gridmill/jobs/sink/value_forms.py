"""The forms of numbers and times for which a single value does not show which form is meant.

Numbers with a decimal comma or with groups of thousands are rewritten as numbers that Arrow can read.
"""

from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc


class Form(StrEnum):
    """A form in which a number or a time is written as text. A column has at most one form of each
    family."""

    POINT = "point"
    COMMA = "comma"
    DAY_FIRST = "day_first"
    MONTH_FIRST = "month_first"
    DIGITS = "digits"
    SECONDS = "unix_s"
    MILLISECONDS = "unix_ms"
    MICROSECONDS = "unix_us"
    NANOSECONDS = "unix_ns"


MARKS = (Form.POINT, Form.COMMA)
"""The family of forms for the decimal separator of a number."""
ORDERS = (Form.DAY_FIRST, Form.MONTH_FIRST)
"""The family of forms for the part that comes first in a date such as 01/02/2024."""
UNITS = (Form.DIGITS, Form.SECONDS, Form.MILLISECONDS, Form.MICROSECONDS, Form.NANOSECONDS)
"""The family of forms for a number in a column of times: its digits are a date, or it counts time since
1970."""

Forms = frozenset[Form]
ANY: Forms = frozenset(Form)
"""All forms of all families. All of them are possible for a column whose texts have not been read yet."""


def only(forms: Forms, family: tuple[Form, ...]) -> Form | None:
    """Return the only form of a family in `forms`, or None if several forms are possible."""
    left = [form for form in family if form in forms]
    return left[0] if len(left) == 1 else None


NOT_A_NUMBER = "?"
"""The text that replaces a text which is not a number."""
_SIGNS = {Form.POINT: r"\.", Form.COMMA: ","}
_GROUPS = {Form.POINT: r"(?:,\d{3})+|(?:['’]\d{3})+", Form.COMMA: r"(?:\.\d{3})+|(?:['’]\d{3})+"}
_SPACED = r"|(?:[ \x{a0}\x{202f}]\d{3})+"
"""A pattern for numbers whose groups of digits are separated by spaces. Telephone numbers have such groups
too, so these texts are numbers only if the column is declared as numbers."""
_DROPPED = {Form.POINT: r"[,'’ \x{a0}\x{202f}]", Form.COMMA: r"[.'’ \x{a0}\x{202f}]"}
_AMBIGUOUS = r"^[+-]?[1-9]\d{0,2},\d{3}$"


def _pattern(mark: Form, declared: bool) -> str:
    groups = _GROUPS[mark] + (_SPACED if declared else "")
    whole = rf"(?:\d+|[1-9]\d{{0,2}}(?:{groups}))"
    return rf"^[+-]?(?:{whole}(?:{_SIGNS[mark]}\d*)?|{_SIGNS[mark]}\d+)(?:[eE][+-]?\d+)?$|^[+-]?(?i:inf|nan)$"


def as_plain(texts: pa.ChunkedArray, mark: Form, *, declared: bool) -> pa.ChunkedArray:
    """Return the numbers without groups and with a decimal point. Other texts become NOT_A_NUMBER."""
    plain = pc.replace_substring_regex(texts, _DROPPED[mark], "")
    if mark == Form.COMMA:
        plain = pc.replace_substring(plain, ",", ".")
    is_number = pc.match_substring_regex(texts, _pattern(mark, declared))
    return pc.if_else(is_number, plain, pa.scalar(NOT_A_NUMBER, pa.string()))


def is_ambiguous(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return for each text whether it is a number both with a decimal point and with a decimal comma, such
    as 1,234."""
    return pc.match_substring_regex(texts, _AMBIGUOUS)


def readings(text: str) -> dict[Form, str]:
    """Return a text as plain numbers, one number for each possible decimal separator."""
    column = pa.chunked_array([[text]], pa.string())
    by_mark = {mark: as_plain(column, mark, declared=True)[0].as_py() for mark in MARKS}
    return {mark: number for mark, number in by_mark.items() if number != NOT_A_NUMBER}
