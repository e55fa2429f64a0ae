"""Due times against a clock that looks at each minute."""

from pathlib import Path

import pytest
from tests.oracles.clock_cases import FIRST, LAST, ZONES, case, compare, due_times, expected_due

from gridmill.errors import InputError
from gridmill.model.schedule import ScheduleSpec
from gridmill.planning.schedules import check_spec


@pytest.mark.parametrize("seed", range(25))
def test_due_times_are_those_of_a_clock_that_looks_at_each_minute(seed: int, tmp_path: Path) -> None:
    case(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(25, 325))
def test_due_times_of_more_cases(seed: int, tmp_path: Path) -> None:
    case(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("expression", ["30 2 * * *", "*/30 1-3 * * *", "15 * * * *", "0 0 1 * MON"])
def test_due_times_of_ten_years(zone: str, expression: str) -> None:
    compare(expression, zone, FIRST, LAST)


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
        assert len(expected_due(expression, BERLIN, begin, begin + hours * 3600)) == times
        compare(expression, BERLIN, begin, begin + hours * 3600)


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
    expected = expected_due(same, "UTC", begin, end)
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
