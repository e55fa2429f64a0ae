"""This module computes local times and calendar months in time zones, and the times at which the clock of a
time zone changes.

The database of time zones is read only when a zone is used.
"""

from calendar import monthrange
from datetime import UTC, datetime, tzinfo
from importlib import import_module

from gridmill.errors import InputError

_DAY_SECONDS = 86_400


def zone_named(name: str, place: str = "") -> tzinfo:
    """Return the time zone with that name from the tz database. If the time zone is unknown, the function
    raises InputError with `place`, which is the place of the name in the declaration."""
    if name == "UTC":
        return UTC
    try:
        zone: tzinfo = import_module("zoneinfo").ZoneInfo(name)
    # raised for an unknown name, for a folder of the database, and for an invalid name
    except (KeyError, OSError, ValueError) as error:
        raise InputError(
            f"unknown time zone {name!r}",
            hint="Use a name of the time zone database, for example UTC or Europe/Amsterdam.",
            place=place,
        ) from error
    return zone


def local_time(time: float, zone: tzinfo) -> datetime:
    """Return the local time at a Unix time, without its time zone. The field `fold` of the local time is 1
    in the second pass of a repeated hour."""
    return datetime.fromtimestamp(time, zone).replace(tzinfo=None)


def moment_of(local: datetime, zone: tzinfo) -> float:
    """Return the Unix time of a local time (without a time zone).

    If a local time occurs twice, the function uses its first occurrence. If the time zone skips a local
    time, the function returns the moment of the clock change.
    """
    first = local.replace(tzinfo=zone, fold=0)
    moment = first.timestamp()
    if local_time(moment, zone) == local:
        return moment
    # The zone skips this local time. With fold=0 it is read with the offset before the gap, which gives a
    # moment after the change; with fold=1 with the offset after the gap, which gives a moment before the
    # change.
    return _change_between(local.replace(tzinfo=zone, fold=1).timestamp(), moment, zone)


def offset_seconds(time: float, zone: tzinfo) -> float:
    """Return the number of seconds by which local time is ahead of UTC at a Unix time."""
    offset = datetime.fromtimestamp(time, zone).utcoffset()
    return 0.0 if offset is None else offset.total_seconds()


def next_change(time: float, until: float, zone: tzinfo) -> float | None:
    """Return the first Unix time at which the offset from UTC changes, if it is later than `time` and not
    later than `until`. The result is None if the offset from UTC does not change in this range."""
    offset = offset_seconds(time, zone)
    low = time
    while low < until:
        high = min(low + _DAY_SECONDS, until)
        if offset_seconds(high, zone) != offset:
            return _change_between(low, high, zone)
        low = high
    return None


def last_change(time: float, since: float, zone: tzinfo) -> float | None:
    """Return the last Unix time at which the offset from UTC changed, if it is later than `since` and not
    later than `time`. The result is None if the offset from UTC did not change in this range."""
    offset = offset_seconds(time, zone)
    high = time
    while high > since:
        low = max(high - _DAY_SECONDS, since)
        if offset_seconds(low, zone) != offset:
            return _change_between(low, high, zone)
        high = low
    return None


def _change_between(low: float, high: float, zone: tzinfo) -> float:
    """Return the whole second in (low, high] at which the offset from UTC changes to the offset at `high`.
    The offset from UTC at `low` must differ from the offset at `high`."""
    offset = offset_seconds(high, zone)
    before, after = int(low // 1), int(-(-high // 1))
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (before, middle) if offset_seconds(middle, zone) == offset else (middle, after)
    return float(after)


def plus_months(local: datetime, months: int) -> datetime:
    """Return the local time that is `months` months later (or earlier, if `months` is negative). The day of
    the month is the same, or the last day of a shorter month."""
    years, month = divmod(local.month - 1 + months, 12)
    year = local.year + years
    return local.replace(year=year, month=month + 1, day=min(local.day, monthrange(year, month + 1)[1]))


def months_later(time: float, months: int, zone: tzinfo) -> float:
    """Return the Unix time whose local time is `months` months later than the local time of `time`."""
    return moment_of(plus_months(local_time(time, zone), months), zone)


def show_moment(moment: datetime) -> str:
    """Format a moment as `1 January 2024 12:00:00`, so that readers cannot confuse day and month."""
    day = f"{moment.day} {moment:%B} {moment.year}"
    return day if moment.time() == datetime.min.time() else f"{day} {moment:%H:%M:%S}"
