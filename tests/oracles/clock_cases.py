"""Random schedules over random stretches of time, compared with the brute-force clock."""

from bisect import bisect_right
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from zoneinfo import ZoneInfo

from gridmill.domain.due_times import GRACE_SECONDS, decide, latest_until, next_after
from gridmill.domain.schedule import CatchUp, Schedule, ScheduleSpec
from tests.oracles.clock import DAYS, MONTHS, Cron, due, due_months, local_minutes

ZONES = (
    "UTC",
    "Europe/Amsterdam",
    "America/New_York",
    "America/Sao_Paulo",
    "Australia/Lord_Howe",  # half an hour of daylight saving
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Africa/Casablanca",  # several changes a year
    "Pacific/Apia",
    "America/St_Johns",
)
FIRST, LAST = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (2018, 2028))
HOUR, DAY = 3600, 86_400


@cache
def changes(zone: str) -> tuple[int, ...]:
    """The hours before which the clocks of a zone are changed."""
    here = ZoneInfo(zone)
    offsets = [(time, datetime.fromtimestamp(time, here).utcoffset()) for time in range(FIRST, LAST, HOUR)]
    return tuple(time for (_, before), (time, after) in pairwise(offsets) if before != after)


def drawn_field(random: Random, least: int, most: int, names: list[str]) -> str:
    def value() -> str:
        number = random.randint(least, most)
        return names[number - least] if names and random.random() < 0.3 else str(number)

    def term() -> str:
        span = random.choice(["*", f"{value()}-{value()}", value(), value()])
        step = f"/{random.randint(1, most - least)}" if random.random() < 0.3 else ""
        return span + step

    return ",".join(term() for _ in range(random.choice([1, 1, 1, 2, 3])))


def drawn_expression(random: Random) -> str:
    """An expression that is due often enough to be compared."""
    if random.random() < 0.05:
        return random.choice(["@hourly", "@daily", "@weekly", "@monthly"])
    night = random.random() < 0.5  # the hours in which clocks are changed
    hour = random.choice(["*", "2", "1-3", "0", "*/2", "23-3"]) if night else drawn_field(random, 0, 23, [])
    day, month, weekday = "*", "*", "*"
    if random.random() < 0.3:
        day = drawn_field(random, 1, 28, [])
    if random.random() < 0.2:
        month = drawn_field(random, 1, 12, MONTHS)
    if random.random() < 0.3:
        weekday = drawn_field(random, 0, 6, DAYS)
    return " ".join([drawn_field(random, 0, 59, []), hour, day, month, weekday])


def drawn_stretch(random: Random, zone: str) -> tuple[int, int]:
    """A few days, most often around a change of the clocks."""
    moments = changes(zone)
    begin = random.randrange(FIRST, LAST - 10 * DAY, 60)
    if moments and random.random() < 0.8:
        begin = random.choice(moments) - random.randrange(0, 2 * DAY, 60)
    return begin, begin + random.randrange(DAY, 4 * DAY, 60)


def due_times(spec: ScheduleSpec, begin: int, end: int, since: float = 0.0) -> list[int]:
    """By the engine: the due times in [begin, end), one after the other."""
    times: list[int] = []
    time = float(begin) - 1
    while (following := next_after(spec, since, time)) < end:
        assert following > time, f"next_after({time}) is {following}: not after it"
        times.append(int(following))
        time = following
    return times


def case(seed: int, _: Path) -> None:
    """One schedule in one zone over a few days, then through a node that comes and goes."""
    random = Random(seed)
    zone = random.choice(ZONES)
    begin, end = drawn_stretch(random, zone)
    spec, since = drawn_spec(random, zone, begin, end)
    expected = compare(spec, begin, end, since)
    compare_scheduler(random, spec, begin, end, expected, since)


def drawn_spec(random: Random, zone: str, begin: int, end: int) -> tuple[ScheduleSpec, int]:
    """A schedule, and when it was applied."""
    catch_up, kind = random.choice(list(CatchUp)), random.random()
    if kind < 0.7:
        return ScheduleSpec(cron=drawn_expression(random), zone=zone, catch_up=catch_up), begin
    if kind < 0.85:
        every = 60.0 * random.choice([1, 7, 15, 60, 24 * 60, random.randint(1, 3000)])
        return ScheduleSpec(every_seconds=every, zone=zone, catch_up=catch_up), begin - random.randrange(
            0, 90 * DAY, 60
        )
    months = random.choice([1, 1, 2, 3, 12])
    spec = ScheduleSpec(every_months=months, zone=zone, catch_up=catch_up)
    return spec, _months_before(random.randrange(begin, end, 60), months * random.randint(1, 4), zone)


def _months_before(time: int, months: int, zone: str) -> int:
    local = datetime.fromtimestamp(time, ZoneInfo(zone)).replace(fold=0)
    years, month = divmod(local.month - 1 - months, 12)
    earlier = local.replace(year=local.year + years, month=month + 1, day=min(local.day, 28))
    return int(earlier.timestamp())


def expected_due(spec: ScheduleSpec, begin: int, end: int, since: int = 0) -> list[int]:
    """By the oracle. It looks at two more days before: what a clock shows again it has to have shown once."""
    minutes = local_minutes(spec.zone, begin - 2 * DAY, end)
    if spec.cron is not None:
        found = due(Cron(spec.cron), minutes)
    elif spec.every_months is not None:
        found = due_months(since, spec.every_months, spec.zone, minutes)
    else:
        found = [time for time, _ in minutes if time >= since and (time - since) % spec.every_seconds == 0]
    return [time for time in found if time >= begin]


def compare(spec: ScheduleSpec, begin: int, end: int, since: int = 0) -> list[int]:
    """The due times, which are those of the oracle, in both directions."""
    expected, times = expected_due(spec, begin, end, since), due_times(spec, begin, end, since)
    where = f"{spec.text} in {spec.zone} since {since} from {begin} to {end}"
    assert times == expected, f"{where}: {sorted(set(times) ^ set(expected))[:5]}"
    for number, time in enumerate(expected):
        until = expected[number + 1] - 1 if number + 1 < len(expected) else end - 1
        for moment in (time, time + 0.5, until):
            assert latest_until(spec, since, moment) == time, f"{where}: the latest until {moment}"
    return expected


def compare_scheduler(
    random: Random, spec: ScheduleSpec, begin: int, end: int, expected: list[int], since: int
) -> None:
    """A node looks now and then, is down now and then, and its clock is set back; what it starts is compared
    due time by due time. No look is asked for at once, and there is one for each due time at most."""
    schedule = Schedule(name="p", spec=spec, since=float(since), done=float(begin))
    now = awake_since = handled = float(begin)
    started: list[int] = []
    forgotten = False
    while now < end:
        event = random.random()
        if event < 0.2:
            now += random.uniform(0, 8 * HOUR)
            awake_since = now
        elif event < 0.23:
            now = awake_since = max(float(begin), now - random.uniform(0, 3 * DAY))
        if now >= end:
            break
        if handled > now + DAY:  # all that was done was done by a clock that was wrong
            handled, forgotten = now, True
        pending = expected[bisect_right(expected, handled) : bisect_right(expected, now)]
        wanted = pending if spec.catch_up is CatchUp.ALL else pending[-1:]
        if spec.catch_up is CatchUp.NONE:
            wanted = [time for time in wanted if time >= awake_since - GRACE_SECONDS]
        schedule, begun = _tick(schedule, now, awake_since)
        assert begun == wanted, f"{spec.text}, {spec.catch_up}, at {now}: {begun}, not {wanted}"
        started += begun
        handled = max([handled, *pending])
        look_at = decide(schedule, now, awake_since=awake_since).look_at
        following = next_after(spec, since, max(now, handled))
        assert look_at == following > now, f"{spec.text} at {now}: looks at {look_at}, not {following}"
        now = look_at if random.random() < 0.7 else now + random.uniform(1, HOUR)
    assert forgotten or len(started) == len(set(started)), f"{spec.text}: a due time was started twice"


def _tick(schedule: Schedule, now: float, awake_since: float) -> tuple[Schedule, list[int]]:
    """Do what is decided until nothing is left to do now."""
    begun: list[int] = []
    for _ in range(10_000):
        verdict = decide(schedule, now, awake_since=awake_since)
        if verdict.done is None:
            return schedule, begun
        if verdict.start is not None:
            begun.append(int(verdict.start))
        schedule = schedule.__class__(
            name=schedule.name, spec=schedule.spec, since=schedule.since, done=verdict.done
        )
    raise AssertionError(f"{schedule.spec.text} at {now}: decides without end")
