"""A brute-force clock: which minutes a cron expression is due at, found by looking at each minute.

Written from docs/how-to/schedules.md ("Times and zones") and from crontab(5) for the fields: lists, ranges,
steps, names; where both day and weekday are restricted, either may match.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
NAMES = {
    **{name: number for number, name in enumerate(MONTHS, 1)},
    **{name: number for number, name in enumerate(DAYS)},
}
BOUNDS = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)]
ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class Cron:
    """The values that each field of an expression lets through."""

    def __init__(self, expression: str) -> None:
        fields = ALIASES.get(expression, expression).upper().split()
        sets = [_values(text, *bounds) for text, bounds in zip(fields, BOUNDS, strict=True)]
        self.minutes, self.hours, self.days, self.months, self.weekdays = sets
        self.either = not fields[2].startswith("*") and not fields[4].startswith("*")

    @property
    def every_hour(self) -> bool:
        return self.hours == set(range(24))

    def matches(self, local: datetime) -> bool:
        if local.minute not in self.minutes or local.hour not in self.hours or local.month not in self.months:
            return False
        day, weekday = local.day in self.days, local.isoweekday() % 7 in self.weekdays
        return (day or weekday) if self.either else (day and weekday)


def _values(text: str, least: int, most: int) -> set[int]:
    values: set[int] = set()
    for term in text.split(","):
        span, _, step = term.partition("/")
        values |= set(_span(span, least, most, stepped=bool(step))[:: int(step or 1)])
    return values


def _span(text: str, least: int, most: int, *, stepped: bool) -> list[int]:
    first, dash, last = text.partition("-")
    if first == "*":
        return list(range(least, most + 1))
    begin = _number(first)
    if not dash:
        return list(range(begin, most + 1)) if stepped else [begin % 7 if most == 6 else begin]
    end = _number(last)
    around = [*range(begin, most + 1), *range(least, end + 1)]
    span = list(range(begin, end + 1)) if begin <= end else around
    return [one % 7 for one in span] if most == 6 else span


def _number(text: str) -> int:
    return NAMES[text] if text in NAMES else int(text)


def local_minutes(zone: str, begin: int, end: int) -> Iterator[tuple[int, datetime]]:
    """Each whole minute of [begin, end) in Unix seconds, with the local time that clocks show then."""
    here = ZoneInfo(zone)
    for time in range(begin, end, 60):
        yield time, datetime.fromtimestamp(time, here).replace(tzinfo=None, fold=0)


def due(cron: Cron, minutes: Iterable[tuple[int, datetime]]) -> list[int]:
    """The due times among these minutes, which follow each other.

    For every hour: whenever the local time matches. For certain hours: once for each local time; the times
    that the clock skips are due at the change.
    """
    found: list[int] = []
    latest: datetime | None = None  # the latest local time shown so far
    for time, local in minutes:
        if cron.every_hour:
            matching = cron.matches(local)
        elif latest is None or local > latest:
            matching = any(map(cron.matches, _passed(latest, local)))
        else:
            matching = False  # a repeated hour
        latest = local if latest is None else max(latest, local)
        if matching:
            found.append(time)
    return found


def due_months(since: int, months: int, zone: str, minutes: Iterable[tuple[int, datetime]]) -> list[int]:
    """The due times among these minutes of a schedule of so many months that was applied at `since`.

    The local times keep the day, or are on the last one of a shorter month. Each is due once: where the clock
    shows it first, or at the change that skips it.
    """
    first = datetime.fromtimestamp(since, ZoneInfo(zone)).replace(tzinfo=None, fold=0)
    found: list[int] = []
    latest: datetime | None = None
    for time, local in minutes:
        passed = _passed(latest, local) if latest is None or local > latest else ()
        latest = local if latest is None else max(latest, local)
        if time == since or (time > since and any(_is_months_after(first, months, one) for one in passed)):
            found.append(time)
    return found


def _is_months_after(first: datetime, months: int, local: datetime) -> bool:
    if (local.hour, local.minute) != (first.hour, first.minute):
        return False
    number = (local.year - first.year) * 12 + local.month - first.month
    is_last_day = (local + timedelta(days=1)).day == 1
    on_the_day = local.day == first.day or (is_last_day and local.day < first.day)
    return number > 0 and number % months == 0 and on_the_day


def _passed(latest: datetime | None, local: datetime) -> Sequence[datetime]:
    """The local minutes after the one before up to this one: more than one where the clock jumped."""
    if latest is None:
        return [local]
    return [latest + number * MINUTE for number in range(1, int((local - latest) / MINUTE) + 1)]
