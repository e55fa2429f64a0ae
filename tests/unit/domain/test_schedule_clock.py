"""Due times against a clock that looks at each minute."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from random import Random

import pytest
from tests.oracles.clock_cases import (
    FIRST,
    LAST,
    ZONES,
    case,
    compare,
    compare_scheduler,
    due_times,
    expected_due,
)

from gridmill.domain.due_times import check_spec
from gridmill.domain.schedule import CatchUp, ScheduleSpec
from gridmill.errors import InputError


@pytest.mark.parametrize("seed", range(25))
def test_due_times_are_those_of_a_clock_that_looks_at_each_minute(seed: int, tmp_path: Path) -> None:
    case(seed, tmp_path)


EACH_ZONE = [
    pytest.param(zone, marks=() if zone in ("Europe/Amsterdam", "Australia/Lord_Howe") else pytest.mark.soak)
    for zone in ZONES
]
"""Ten years of one take a quarter of a minute: two of them are tried in `make test-long`."""


@pytest.mark.long
@pytest.mark.parametrize("seed", range(25, 125))
def test_due_times_of_more_cases(seed: int, tmp_path: Path) -> None:
    case(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("zone", EACH_ZONE)
@pytest.mark.parametrize("expression", ["30 2 * * *", "*/30 1-3 * * *", "15 * * * *", "0 0 1 * MON"])
def test_due_times_of_ten_years(zone: str, expression: str) -> None:
    """Each is due once, and started as its `catch_up` says by a node that comes and goes for ten years."""
    spec = ScheduleSpec(cron=expression, zone=zone)
    expected = compare(spec, FIRST, LAST)
    for seed, catch_up in enumerate(CatchUp):
        compare_scheduler(Random(seed), replace(spec, catch_up=catch_up), FIRST, LAST, expected, FIRST)


@pytest.mark.long
@pytest.mark.parametrize("zone", EACH_ZONE)
@pytest.mark.parametrize("months", [1, 12])
def test_months_of_ten_years(zone: str, months: int) -> None:
    spec, since = ScheduleSpec(every_months=months, zone=zone), FIRST + 30 * 86_400 + 150 * 60
    expected = compare(spec, since, LAST, since)
    assert len(expected) == 120 // months
    for seed, catch_up in enumerate(CatchUp):
        compare_scheduler(Random(seed), replace(spec, catch_up=catch_up), since, LAST, expected, since)


@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("Pacific/Apia", "2011-12-29"),  # a day that does not exist
        ("Pacific/Kwajalein", "1993-08-20"),
        ("Antarctica/Troll", "2024-03-30"),  # two hours
        ("Antarctica/Troll", "2024-10-26"),
        ("America/Caracas", "2016-04-30"),  # half an hour, once and for all
        ("Asia/Pyongyang", "2018-05-04"),
        ("Asia/Kathmandu", "1985-12-31"),
        ("America/Sao_Paulo", "2018-11-03"),  # a day without midnight
        ("America/Sao_Paulo", "2019-02-16"),  # a day with two
        ("Atlantic/Azores", "2024-10-26"),
        ("America/Scoresbysund", "2024-03-30"),
        ("Africa/Casablanca", "2024-03-09"),
        ("Africa/Juba", "2021-01-31"),
    ],
)
def test_odd_changes_of_the_clock(zone: str, day: str) -> None:
    begin = int(datetime.fromisoformat(f"{day}T00:00+00:00").timestamp()) - 86_400
    for expression in ("30 2 * * *", "0 0 * * *", "15 23,0-1 * * *", "*/20 * * * *", "59 23 L * *"):
        spec = ScheduleSpec(cron=expression.replace("L", "28-31"), zone=zone)
        compare(spec, begin, begin + 4 * 86_400)
    since = begin - 31 * 86_400
    for minutes in (0, 30, 61, 23 * 60 + 45, 12 * 60):
        compare(ScheduleSpec(every_months=1, zone=zone), begin, begin + 5 * 86_400, since + 60 * minutes)


BERLIN = "Europe/Berlin"
SKIPPING, REPEATING = 1774738800, 1792886400  # midnights (UTC+1, UTC+2) of 2026-03-29 and 2026-10-25


@pytest.mark.parametrize(
    ("expression", "skipping", "repeating"),
    [("*/30 2 * * *", 1, 2), ("30 2 * * *", 1, 1), ("*/30 * * * *", 46, 50), ("30 1-3 * * *", 3, 3)],
)
def test_a_day_that_skips_an_hour_and_one_that_repeats_it(
    expression: str, skipping: int, repeating: int
) -> None:
    for begin, hours, times in ((SKIPPING, 23, skipping), (REPEATING, 25, repeating)):
        spec = ScheduleSpec(cron=expression, zone=BERLIN)
        assert len(compare(spec, begin, begin + hours * 3600)) == times


@pytest.mark.parametrize(
    ("expression", "same"),
    [
        ("@daily", "0 0 * * *"),
        ("5-5/2 * * * *", "5 * * * *"),
        ("0 22-2 * * *", "0 22,23,0,1,2 * * *"),
        ("0 22-4/2 * * *", "0 22,0,2,4 * * *"),
        ("0 6 * * FRI-MON", "0 6 * * FRI,SAT,SUN,MON"),
        ("0 6 * NOV-FEB *", "0 6 * 11,12,1,2 *"),
        ("0 6 * * 5-7", "0 6 * * 5,6,0"),
    ],
)
def test_ranges_that_wrap_and_names(expression: str, same: str) -> None:
    begin, end = FIRST + 290 * 86_400, FIRST + 350 * 86_400
    expected = expected_due(ScheduleSpec(cron=same), begin, end)
    for one in (expression, same):
        assert due_times(ScheduleSpec(cron=one), begin, end) == expected


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("*/90 * * * *", "a step of 90 is not between 1 and 60"),
        ("0 */25 * * *", "a step of 25 is not between 1 and 24"),
        ("60 * * * *", "minute"),
        ("0 6 * * BAN", "week"),
        ("0 0 30 2 *", "day"),
        ("@never", "fields"),
        ("0 6 * *", "fields"),
        ("0 0-24 * * *", "hour"),
    ],
)
def test_what_no_clock_shows_is_refused(expression: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        check_spec(ScheduleSpec(cron=expression))
