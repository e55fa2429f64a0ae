"""Loads a time range of a source, and finds the rows of the table that are replaced by the load.

The key of a data file contains the time range of its rows, so that the table itself records which ranges are
loaded.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from gridmill.errors import ConflictError, InputError
from gridmill.jobs.sink.files import SourceFile
from gridmill.jobs.sink.files_to_load import LoadedFile, LoadPlan, load_anew

_UNITS = (timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1))
_BEGINS_BITS, _LENGTH_BITS = 37, 25
_ORIGIN = datetime(1, 1, 1, tzinfo=UTC)

Stretch = tuple[datetime, datetime]
"""A time range with its start (inclusive) and its end (exclusive)."""


def key_of(stretch: Stretch) -> str:
    """Return the key of a time range as 16 hex digits: the time unit (2 bits), then the start since the year
    1 and the length in that unit.

    Raises InputError for a time range with fractions of a second, or a time range that is too long for the
    key.
    """
    begins, length = stretch[0] - _ORIGIN, stretch[1] - stretch[0]
    for code, unit in enumerate(_UNITS):
        if not begins % unit and not length % unit and length // unit < 1 << _LENGTH_BITS:
            number = code << (_BEGINS_BITS + _LENGTH_BITS) | begins // unit << _LENGTH_BITS | length // unit
            return f"{number:016x}"
    raise InputError(
        f"from {_shown(stretch[0])} to {_shown(stretch[1])} is not a range of whole seconds of at most a "
        "year",
        hint="A longer range must begin and end at whole minutes, hours or days.",
    )


def stretch_of(key: str) -> Stretch:
    """Return the time range that a key contains."""
    number = int(key, 16)
    unit = _UNITS[number >> (_BEGINS_BITS + _LENGTH_BITS)]
    begins = _ORIGIN + (number >> _LENGTH_BITS & (1 << _BEGINS_BITS) - 1) * unit
    return begins, begins + (number & (1 << _LENGTH_BITS) - 1) * unit


def decide_stretch(new: Sequence[SourceFile], loaded: Sequence[LoadedFile], *, anew: bool) -> LoadPlan:
    """Return the plan of the load. The rows of a time range replace the rows that were loaded for this
    range, or for parts of it.

    Raises ConflictError if the time range overlaps only partly with a loaded range, because it is unknown
    which rows belong to both ranges. Raises ConflictError also if the table must be loaded again from the
    beginning but has rows of other ranges.
    """
    if anew:
        plan = load_anew(new, loaded)
        return LoadPlan(load=plan.load, remove=plan.remove, anew=True, seen=len(new), partial=True)
    own = stretch_of(new[0].key)
    inside = [entry for entry in loaded if not entry.foreign and _is_replaced(entry, own)]
    same = [entry for entry in inside if (entry.key, entry.content) == (new[0].key, new[0].content)]
    if same:
        return LoadPlan(remove=tuple(set(inside) - set(same)), seen=len(new), partial=True)
    # a table without rows must get the columns of its first rows
    empty = not any(entry.rows for entry in loaded)
    return LoadPlan(load=tuple(new), remove=tuple(inside), anew=empty, seen=len(new), partial=True)


def _is_replaced(entry: LoadedFile, own: Stretch) -> bool:
    begins, ends = stretch_of(entry.key)
    if ends <= own[0] or own[1] <= begins:
        return False
    if entry.rows and not (own[0] <= begins and ends <= own[1]):
        raise ConflictError(
            f"the rows from {_shown(begins)} to {_shown(ends)} were loaded together, but the rows from "
            f"{_shown(own[0])} to {_shown(own[1])} are only a part of them",
            hint="Load the whole earlier range again, or a range that contains it.",
        )
    return True


def _shown(moment: datetime) -> str:
    text = moment.replace(tzinfo=None).isoformat()
    return text.removesuffix("T00:00:00")
