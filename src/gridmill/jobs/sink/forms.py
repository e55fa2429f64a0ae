"""The forms that numbers and times are written in, where a single value does not show which one it is."""

from enum import StrEnum


class Form(StrEnum):
    """A way to read a text. A column has at most one of each family."""

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
"""The sign before the decimals of a number."""
ORDERS = (Form.DAY_FIRST, Form.MONTH_FIRST)
"""What comes first in 01/02/2024."""
UNITS = (Form.DIGITS, Form.SECONDS, Form.MILLISECONDS, Form.MICROSECONDS, Form.NANOSECONDS)
"""What a number in a column of times is: its digits are a date, or it counts since 1970."""
FAMILIES = (MARKS, ORDERS, UNITS)

Forms = frozenset[Form]
ANY: Forms = frozenset(Form)
"""Nothing is known of a column."""


def only(forms: Forms, family: tuple[Form, ...]) -> Form | None:
    """The form of a family; None where that is not decided."""
    left = [form for form in family if form in forms]
    return left[0] if len(left) == 1 else None
