"""Due times: counted, in time zones, and each dealt with once whatever the clock and the node do."""

from dataclasses import replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridmill.domain.due_times import check_spec, decide, latest_until, next_after, upcoming
from gridmill.domain.schedule import CatchUp, Continuous, Overlap, Schedule, ScheduleSpec
from gridmill.errors import InputError

AMSTERDAM = ZoneInfo("Europe/Amsterdam")


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def schedule(since: float = 1000.0, **spec) -> Schedule:
    return Schedule(name="p", spec=ScheduleSpec(**spec), since=since)


def local(times) -> list[str]:
    return [datetime.fromtimestamp(time, AMSTERDAM).isoformat() for time in times]


def test_a_night_job_keeps_its_hour_over_both_changes_of_the_clock():
    night = ScheduleSpec(cron="30 2 * * *", zone="Europe/Amsterdam")
    spring = replace(schedule(at("2026-03-28T12:00", "Europe/Amsterdam")), spec=night)
    assert local(upcoming(spring, spring.since, 3)) == [
        "2026-03-29T03:00:00+02:00",  # 02:30 does not exist
        "2026-03-30T02:30:00+02:00",
        "2026-03-31T02:30:00+02:00",
    ]
    autumn = replace(spring, since=at("2026-10-24T12:00", "Europe/Amsterdam"))
    assert local(upcoming(autumn, autumn.since, 3)) == [
        "2026-10-25T02:30:00+02:00",  # 02:30 comes twice and is due once
        "2026-10-26T02:30:00+01:00",
        "2026-10-27T02:30:00+01:00",
    ]


EXPRESSIONS = ("*/7 * * * *", "0 6 * * *", "30 2 * * *", "15 */5 * * 1-5", "0 0 1 * *")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(["UTC", "Europe/Amsterdam", "America/New_York", "Asia/Kolkata"]),
    st.floats(1.7e9, 1.9e9),
)
def test_the_latest_due_time_is_the_last_of_the_next_ones(expression, zone, now):
    spec = ScheduleSpec(cron=expression, zone=zone)
    latest = latest_until(spec, 0.0, now)
    assert latest <= now < next_after(spec, 0.0, latest)
    assert next_after(spec, 0.0, latest - 0.5) == latest


specs = st.one_of(
    st.builds(ScheduleSpec, every_seconds=st.sampled_from([1.0, 60.0, 900.0, 7 * 3600.0])),
    st.builds(ScheduleSpec, cron=st.sampled_from(EXPRESSIONS[:2])),
)


@settings(max_examples=60, deadline=None)
@given(
    specs,
    st.sampled_from(CatchUp),
    st.sampled_from(Overlap),
    st.lists(st.tuples(st.floats(0.1, 9000.0), st.booleans(), st.booleans()), min_size=1, max_size=12),
)
def test_no_due_time_is_started_twice_and_none_is_lost_that_should_not_be(spec, catch_up, overlap, looks):
    """Looks at any times, at some of which another run is active or the control node came up just before."""
    spec = replace(spec, catch_up=catch_up, overlap=overlap)
    now = since = 1_700_000_000.0
    kept, started, awake = Schedule(name="p", spec=spec, since=since), [], since
    for seconds, busy, restarted in [*looks, (1.0, False, False)]:
        now += seconds
        awake = now if restarted else awake
        for _ in range(100_000):
            verdict = decide(kept, now, awake_since=awake, active="p-1" if busy else "")
            if verdict.done is None:
                break
            assert verdict.done <= now
            kept = replace(kept, done=verdict.done)
            started += [] if verdict.start is None else [verdict.start]
    assert started == sorted(set(started)), "each due time at most once, in order"
    assert all(next_after(spec, since, time - 0.01) == pytest.approx(time, abs=1e-6) for time in started)
    first = since if spec.every_seconds else next_after(spec, since, since)
    if catch_up is CatchUp.ALL and overlap is not Overlap.SKIP:
        assert len(started) == count(spec, since, first, now), "every one of them"
    if catch_up is CatchUp.LATEST and overlap is not Overlap.SKIP and first <= now:
        assert started[-1] == latest_until(spec, since, now), "the newest one is always made up for"


def count(spec: ScheduleSpec, since: float, first: float, now: float) -> int:
    number = 0
    while first <= now:
        number, first = number + 1, next_after(spec, since, first)
    return number


def test_of_a_long_time_away_one_run_is_made_up_for_or_all_or_none():
    now = 1000.0 + 36_000
    for catch_up, start in ((CatchUp.LATEST, now), (CatchUp.ALL, 4600.0), (CatchUp.NONE, None)):
        kept = replace(schedule(every_seconds=3600.0, catch_up=catch_up), done=1000.0)
        verdict = decide(kept, now + 300.0, awake_since=now + 299.0)
        assert verdict.start == start
        assert verdict.done == (start or now)


def test_what_a_clock_that_was_wrong_has_done_does_not_silence_it():
    kept = replace(schedule(every_seconds=3600.0), done=1000.0 + 400 * 86_400)
    assert upcoming(kept, 1000.0 + 86_400.0, 1) == (1000.0 + 25 * 3600.0,)
    verdict = decide(kept, 5000.0, awake_since=0.0)
    assert (verdict.start, verdict.done) == (None, 5000.0)
    assert "set back" in verdict.message
    kept_on = replace(kept, done=verdict.done)
    assert decide(kept_on, 5000.0, awake_since=0.0).look_at == 8200.0
    assert decide(kept_on, 8200.0, awake_since=0.0).start == 8200.0
    begun_ahead = schedule(1000.0 + 400 * 86_400, cron="0 * * * *")
    assert decide(begun_ahead, 5000.0, awake_since=0.0).done == 5000.0
    an_hour = replace(kept, done=1000.0 + 7200.0)
    assert decide(an_hour, 4700.0, awake_since=0.0).look_at == 1000.0 + 10_800.0, (
        "set back a little: not again"
    )


def test_a_paused_or_continuous_one_is_never_due():
    for kept in (
        replace(schedule(every_seconds=1.0), paused=True),
        schedule(continuous=Continuous()),
    ):
        assert decide(kept, 1e9, awake_since=0.0).done is None
        assert upcoming(kept, 1e9, 3) == ()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"cron": "61 * * * *"}, "is not a cron expression: bad minute"),
        ({"cron": "* * * * * *"}, "wrong number of fields"),
        ({"cron": "0 0 30 2 *"}, "is not a cron expression"),
        ({"cron": "0 6 * * *", "zone": "Europe/Amsterdm"}, "unknown time zone 'Europe/Amsterdm'"),
        ({"cron": "0 6 * * *", "zone": "../etc/passwd"}, "unknown time zone"),
    ],
)
def test_what_is_no_expression_or_zone_is_told(spec, words):
    with pytest.raises(InputError, match=words):
        check_spec(ScheduleSpec(**spec))


def test_every_counts_from_its_beginning_which_is_due_too():
    kept = schedule(every_seconds=900.0)
    assert decide(kept, 1000.0, awake_since=0.0).start == 1000.0
    done = replace(kept, done=1000.0)
    assert upcoming(done, 1000.0, 2) == (1900.0, 2800.0)
    assert timedelta(seconds=upcoming(done, 1e6, 1)[0] - 1000.0) % timedelta(minutes=15) == timedelta()


def test_every_month_keeps_the_day_and_the_local_time():
    since = at("2026-01-31T06:00", "Europe/Amsterdam")
    monthly = schedule(since, every_months=1, zone="Europe/Amsterdam")
    assert local(upcoming(monthly, since, 4)) == [
        "2026-02-28T06:00:00+01:00",
        "2026-03-31T06:00:00+02:00",
        "2026-04-30T06:00:00+02:00",
        "2026-05-31T06:00:00+02:00",
    ]
    assert decide(monthly, since, awake_since=since).start == since  # the first moment is due too
    assert latest_until(monthly.spec, since, at("2026-03-31T05:59", "Europe/Amsterdam")) == at(
        "2026-02-28T06:00", "Europe/Amsterdam"
    )


@given(
    st.floats(1.5e9, 1.8e9), st.integers(1, 30), st.floats(0, 3e8), st.sampled_from(["UTC", "Pacific/Apia"])
)
def test_the_latest_month_is_the_one_before_the_next(since, months, later, zone):
    spec = ScheduleSpec(every_months=months, zone=zone)
    now = since + later
    latest, following = latest_until(spec, since, now), next_after(spec, since, now)
    assert since <= latest <= now < following
    assert next_after(spec, since, latest) == following
