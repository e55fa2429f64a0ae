"""Local times and calendar months in time zones, and the times when the clock of a zone changes.

The time zone database is read only when a zone is used.
"""

from calendar import monthrange
from datetime import UTC, datetime, tzinfo
from importlib import import_module

from gridmill.errors import InputError

_DAY_SECONDS = 86_400


def zone_named(name: str, place: str = "") -> tzinfo:
    """The time zone of that name in the tz database. Raises InputError, naming the place."""
    if name == "UTC":
        return UTC
    try:
        zone: tzinfo = import_module("zoneinfo").ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:  # unknown; a folder of the database; not a name at all
        raise InputError(
            f"unknown time zone {name!r}",
            hint="Use a name of the tz database, for example UTC or Europe/Amsterdam.",
            place=place,
        ) from error
    return zone


def local_time(time: float, zone: tzinfo) -> datetime:
    """The local time at a Unix time, without its zone; `fold` is 1 in the second pass of a repeated hour."""
    return datetime.fromtimestamp(time, zone).replace(tzinfo=None)


def moment_of(local: datetime, zone: tzinfo) -> float:
    """The Unix time of a local time (without a zone).

    A local time that occurs twice means its first occurrence. One that the zone skips means the moment of
    the change.
    """
    first = local.replace(tzinfo=zone, fold=0)
    moment = first.timestamp()
    if local_time(moment, zone) == local:
        return moment
    # skipped; fold=0 reads it with the offset before the gap, so after it, fold=1 the other way round
    return _change_between(local.replace(tzinfo=zone, fold=1).timestamp(), moment, zone)


def offset_seconds(time: float, zone: tzinfo) -> float:
    """What local time is ahead of UTC by, in seconds, at a Unix time."""
    offset = datetime.fromtimestamp(time, zone).utcoffset()
    return 0.0 if offset is None else offset.total_seconds()


def next_change(time: float, until: float, zone: tzinfo) -> float | None:
    """The first Unix time after `time`, and not after `until`, from which another offset holds."""
    offset = offset_seconds(time, zone)
    low = time
    while low < until:
        high = min(low + _DAY_SECONDS, until)
        if offset_seconds(high, zone) != offset:
            return _change_between(low, high, zone)
        low = high
    return None


def last_change(time: float, since: float, zone: tzinfo) -> float | None:
    """The last Unix time not after `time`, and after `since`, from which another offset holds than before."""
    offset = offset_seconds(time, zone)
    high = time
    while high > since:
        low = max(high - _DAY_SECONDS, since)
        if offset_seconds(low, zone) != offset:
            return _change_between(low, high, zone)
        high = low
    return None


def _change_between(low: float, high: float, zone: tzinfo) -> float:
    """The whole second in (low, high] from which the offset at `high` holds; that at `low` is another one."""
    offset = offset_seconds(high, zone)
    before, after = int(low // 1), int(-(-high // 1))
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (before, middle) if offset_seconds(middle, zone) == offset else (middle, after)
    return float(after)


def plus_months(local: datetime, months: int) -> datetime:
    """The local time that many months later or earlier: on the same day, or on the last day of a shorter
    month."""
    years, month = divmod(local.month - 1 + months, 12)
    year = local.year + years
    return local.replace(year=year, month=month + 1, day=min(local.day, monthrange(year, month + 1)[1]))


def months_later(time: float, months: int, zone: tzinfo) -> float:
    """The Unix time at which the local time is that many months later."""
    return moment_of(plus_months(local_time(time, zone), months), zone)


def show_moment(moment: datetime) -> str:
    """`1 January 2024 12:00:00`: day and month cannot be confused."""
    day = f"{moment.day} {moment:%B} {moment.year}"
    return day if moment.time() == datetime.min.time() else f"{day} {moment:%H:%M:%S}"
