"""This module computes the due times of a cron expression in a time zone. The module is imported only when a
schedule has a cron expression.

The cron library finds the local times that match an expression. This module converts matching local times to
moments by two rules. A cron expression that names hours is due once for each local time: a time that a clock
change skips is due right after the change, and a time that occurs twice is due at its first occurrence. A
cron expression for every hour is due whenever the local time matches: a skipped time is left out, and a
repeated time is due twice.
"""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import chain
from math import floor

from cronsim import CronSim, CronSimError

from gridmill.domain.calendar import (
    last_change,
    local_time,
    moment_of,
    next_change,
    offset_seconds,
    zone_named,
)
from gridmill.errors import InputError

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_FIELDS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("weekday", 0, 6, _DAYS),  # `_value` also accepts 7, because cron uses both 0 and 7 for Sunday
)
"""For each field of a cron expression: its name, its smallest value, its largest value, and the names of its
values, starting with the smallest value."""
_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_TERM = re.compile(r"(?:(\w+)-(\w+)|(\*|\w+))(?:/(\d+))?")
_HINT = 'Five fields: minute, hour, day, month, weekday; for example "0 6 * * *".'
_MINUTE = timedelta(minutes=1)


def check_cron(expression: str, zone: str) -> None:
    """Raise InputError for an invalid cron expression or time zone, and for an expression that matches no
    time."""
    zone_named(zone, "schedule.zone")
    try:
        next(_local_times(expression, datetime(2000, 1, 1)))
    except (CronSimError, StopIteration) as error:
        raise InputError(
            f"{expression!r} is not a cron expression: {str(error).lower() or 'no time matches it'}",
            hint=_HINT,
            place="schedule.cron",
        ) from error


def next_after(expression: str, zone: str, time: float) -> float:
    """Return the first due time after `time`; both are in Unix seconds."""
    tz = zone_named(zone)
    return (
        _next_of_every_hour(expression, tz, time) if _every_hour(expression) else _next(expression, tz, time)
    )


def latest_until(expression: str, zone: str, time: float) -> float:
    """Return the last due time that is at most `time`; both are in Unix seconds."""
    tz = zone_named(zone)
    return (
        _last_of_every_hour(expression, tz, time) if _every_hour(expression) else _last(expression, tz, time)
    )


# Expressions for certain hours: moments have the order of their local times, because `moment_of` never
# decreases.


def _next(expression: str, zone: tzinfo, time: float) -> float:
    moments = (moment_of(one, zone) for one in _local_times(expression, local_time(time, zone)))
    return next(moment for moment in moments if moment > time)


def _last(expression: str, zone: tzinfo, time: float) -> float:
    here = local_time(time, zone)
    aware = here.replace(tzinfo=zone)
    # In the second pass of a repeated hour, all of its times were already due in the first pass.
    repeated = (aware.replace(fold=0).utcoffset() or timedelta()) - (aware.utcoffset() or timedelta())
    moments = (moment_of(one, zone) for one in _local_times(expression, here + repeated + _MINUTE, back=True))
    return next(moment for moment in moments if moment <= time)


# Expressions for every hour: between two changes of the clock, local time is the moment plus an offset.


def _next_of_every_hour(expression: str, zone: tzinfo, time: float) -> float:
    begin = time
    while True:
        offset = offset_seconds(begin, zone)
        # A change of the clock may be at a due time: the new offset applies to that due time.
        since = begin if begin == time else begin - 1
        local = next(_local_times(expression, _utc_like(since + offset)))
        moment = _seconds(local) - offset
        change = next_change(begin, moment, zone)
        if change is None:
            return moment
        begin = change


def _last_of_every_hour(expression: str, zone: tzinfo, time: float) -> float:
    end = time
    while True:
        offset = offset_seconds(end, zone)
        local = next(_local_times(expression, _utc_like(floor(end) + 1 + offset), back=True))
        moment = _seconds(local) - offset
        change = last_change(end, moment, zone)
        if change is None:
            return moment
        end = change - 1


_EPOCH = datetime(1970, 1, 1)


def _utc_like(seconds: float) -> datetime:
    return _EPOCH + timedelta(seconds=seconds)


def _seconds(local: datetime) -> float:
    return (local - _EPOCH).total_seconds()


# --- expressions


def _local_times(expression: str, start: datetime, *, back: bool = False) -> Iterator[datetime]:
    """Return the matching local times after `start`, or before `start` if `back` is true. Raises
    CronSimError."""
    return CronSim(_plain(expression), start, reverse=back)


@lru_cache(maxsize=256)
def _every_hour(expression: str) -> bool:
    return len(CronSim(_plain(expression), _EPOCH).hours) == 24


@lru_cache(maxsize=256)
def _plain(expression: str) -> str:
    """Return the cron expression with its ranges and steps written out as lists, because the library reads
    only lists correctly."""
    fields = _ALIASES.get(expression.strip().lower(), expression).upper().split()
    if len(fields) != len(_FIELDS):
        raise CronSimError("Wrong number of fields")
    return " ".join(_plain_field(text, *field) for text, field in zip(fields, _FIELDS, strict=True))


def _plain_field(text: str, name: str, least: int, most: int, names: tuple[str, ...]) -> str:
    return ",".join(_plain_term(term, name, least, most, names) for term in text.split(","))


def _plain_term(term: str, name: str, least: int, most: int, names: tuple[str, ...]) -> str:
    match = _TERM.fullmatch(term)
    if match is None or (match[1] is None and match[4] is None):
        return term  # unchanged, because the library reads single values, `*`, `L` and `5#2` correctly
    step = int(match[4] or 1)
    if not 1 <= step <= most - least + 1:
        raise CronSimError(f"Bad {name}: a step of {step} is not between 1 and {most - least + 1}")
    if match[3] == "*":
        return term
    first = _value(match[1] or match[3], name, least, most, names)
    last = _value(match[2], name, least, most, names) if match[2] else most
    values = (
        range(first, last + 1) if first <= last else chain(range(first, most + 1), range(least, last + 1))
    )
    return ",".join(str(value) for value in list(values)[::step])


def _value(text: str, name: str, least: int, most: int, names: tuple[str, ...]) -> int:
    if text in names:
        return least + names.index(text)
    if not text.isdecimal() or not least <= int(text) <= most + (name == "weekday"):
        raise CronSimError(f"Bad {name}")
    return int(text)
