"""What users read of a value that does not fit its column."""

import pyarrow as pa

from gridmill.errors import DataError
from gridmill.jobs.sink.convert import TYPES, Loss, MisfitError

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


def misfit(item: pa.Field, error: MisfitError, place: str, *, declared: bool) -> DataError:
    """The error for a value that is not of the type of the column `item`."""
    name, value, type_ = item.name, shown(error.value), TYPES.get(item.type, item.type)
    if error.loss == Loss.DIGITS:
        said = f"column {name!r} has fractions, and {value} is a whole number that no float holds exactly"
        return DataError(said, hint=_DIGITS.format(name=name), place=place)
    if error.loss == Loss.ZEROS:
        sign = "a plus" if str(error.value).strip().startswith("+") else "a zero"
        said = f"column {name!r} has numbers, and {value} begins with {sign}, which no number keeps"
        return DataError(said, hint=_ZEROS.format(name=name, type=type_), place=place)
    return DataError(
        f"column {name!r}: {value} is not of type {type_}",
        hint=_DECLARED if declared else _INFERRED.format(name=name),
        place=place,
    )


def no_wider(name: str, number: int, place: str) -> DataError:
    """The error for a value with a fraction in a column whose rows have a number that no float holds."""
    said = f"column {name!r} has a fraction here, and the table has {number}, which no float holds exactly"
    return DataError(said, hint=_DIGITS.format(name=name), place=place)


def shown(value: object) -> str:
    """A value of a file, cut where it is long."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
