"""What a backfill is cut into, and which chunk is next: pure, and for any range."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.backfill import Backfill, Chunk, ChunkState, chunk_values, spans
from gridmill.domain.due_times import chunk_ids, decide_chunk, is_chunk_kept, outage_over, state_of
from gridmill.domain.job import Job
from gridmill.domain.naming import read_moment
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.run import Run
from gridmill.domain.sink import Outage, SinkSpec
from gridmill.domain.source import Source
from gridmill.domain.states import RunState
from gridmill.errors import InputError

DAY = 86_400.0


def backfill(begins: str = "2013-01-01", ends: str = "2013-01-31", days: float = 7, **settings) -> Backfill:
    return Backfill(name="p", begins=begins, ends=ends, every_seconds=days * DAY, **settings)


def chunk(begins: str, ends: str = "2013-02-01", **settings) -> Chunk:
    return Chunk(pipeline=Pipeline(name="p", jobs=()), begins=begins, ends=ends, **settings)


def run(state: RunState) -> Run:
    return Run(id="p-1", pipeline="p", order=1, state=state, created=0.0)


def test_whole_days_are_written_as_dates_and_the_last_chunk_ends_with_the_range():
    assert spans(backfill()) == (
        ("2013-01-01", "2013-01-08"),
        ("2013-01-08", "2013-01-15"),
        ("2013-01-15", "2013-01-22"),
        ("2013-01-22", "2013-01-29"),
        ("2013-01-29", "2013-01-31"),
    )


def test_other_times_are_written_in_utc():
    half = backfill("2013-01-01T01:00+01:00", "2013-01-02", 0.5)
    assert spans(half) == (
        ("2013-01-01T00:00:00", "2013-01-01T12:00:00"),
        ("2013-01-01T12:00:00", "2013-01-02T00:00:00"),
    )
    assert chunk_ids(half)[0] == "p/2013-01-01T00:00:00..2013-01-01T12:00:00"


def test_days_of_a_zone_begin_at_its_midnights():
    daily = replace(backfill("2026-03-28", "2026-03-31", 1), zone="Europe/Amsterdam")
    assert spans(daily) == (
        ("2026-03-28T00:00:00+01:00", "2026-03-29T00:00:00+01:00"),
        ("2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"),  # 23 hours
        ("2026-03-30T00:00:00+02:00", "2026-03-31T00:00:00+02:00"),
    )


def test_the_due_times_of_a_chunk_are_its_bounds_in_the_zone_of_the_backfill():
    waiting = Pipeline(name="p", jobs=(), awaits=("due", "due_before"))
    assert chunk_values(waiting, ("2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00")) == {
        "due_before": "2026-03-29T00:00:00+01:00",
        "due": "2026-03-30T00:00:00+02:00",
    }
    assert chunk_values(waiting, ("2026-03-29", "2026-03-29T12:00:00")) == {
        "due_before": "2026-03-29T00:00:00+00:00",
        "due": "2026-03-29T12:00:00+00:00",
    }


def test_months_follow_the_calendar():
    monthly = Backfill(name="p", begins="2026-01-31", ends="2026-04-15", every_months=1)
    assert spans(monthly) == (
        ("2026-01-31", "2026-02-28"),
        ("2026-02-28", "2026-03-31"),
        ("2026-03-31", "2026-04-15"),
    )


def test_a_range_without_a_length_is_one_chunk_whatever_the_clocks_do():
    whole = Backfill(name="p", begins="2026-03-28", ends="2026-03-30T01:00", zone="Europe/Amsterdam")
    assert spans(whole) == (("2026-03-28T00:00:00+01:00", "2026-03-30T01:00:00+02:00"),)


@given(
    st.datetimes(datetime(2015, 1, 1), datetime(2030, 1, 1)),
    st.integers(1, 400),
    st.integers(1, 40),
    st.sampled_from(["Europe/Amsterdam", "Pacific/Apia", "Australia/Lord_Howe", "America/Sao_Paulo"]),
    st.booleans(),
)
def test_chunks_of_a_zone_cover_the_range_without_gap_or_overlap(begins, days, step, zone, months):
    length = {"every_months": step} if months else {"every_seconds": step * DAY}
    ends = begins + timedelta(days=days)
    cut = spans(Backfill(name="p", begins=f"{begins}", ends=f"{ends}", zone=zone, **length))
    assert all(one[1] == next_one[0] for one, next_one in pairwise(cut))
    assert all(read_moment(begin) < read_moment(end) for begin, end in cut)
    tz = ZoneInfo(zone)
    assert read_moment(cut[0][0]) == read_moment(f"{begins}", zone=tz)
    assert read_moment(cut[-1][1]) == read_moment(f"{ends}", zone=tz)


@given(
    st.datetimes(datetime(1990, 1, 1), datetime(2050, 1, 1)),
    st.integers(1, 10**6),
    st.integers(1, 999),
    st.floats(0, 1, exclude_max=True),
)
def test_chunks_cover_the_range_once_without_holes(begins, seconds, count, part):
    length = timedelta(seconds=seconds * (count - 1) + max(1e-3, part * seconds))
    ends = begins + length
    cut = spans(Backfill(name="p", begins=f"{begins}", ends=f"{ends}", every_seconds=float(seconds)))
    assert read_moment(cut[0][0]) == begins.replace(tzinfo=UTC)
    assert read_moment(cut[-1][1]) == ends.replace(tzinfo=UTC)
    assert all(before[1] == after[0] for before, after in pairwise(cut))
    lengths = [read_moment(ends) - read_moment(begins) for begins, ends in cut]
    assert all(one == timedelta(seconds=seconds) for one in lengths[:-1])
    assert timedelta() < lengths[-1] <= timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (backfill("2013-01-31"), "ends .* before it begins"),
        (backfill("soon"), "'soon' is not a time"),
        (backfill(days=0), "1s or longer"),
        (backfill(parallel=0), "1 or more"),
        (backfill(days=1 / 86_400), "more than 1000 chunks"),
    ],
)
def test_what_cannot_be_cut_is_refused(wrong, said):
    with pytest.raises(InputError, match=said):
        spans(wrong)


def test_the_oldest_is_next_or_the_newest_as_long_as_there_is_room():
    left = [chunk("2013-01-08"), chunk("2013-01-01"), chunk("2013-01-15")]
    assert decide_chunk(backfill(), left, 0) == left[1]
    assert decide_chunk(backfill(newest_first=True), left, 0) == left[2]
    assert decide_chunk(backfill(), left, 1) is None
    assert decide_chunk(backfill(parallel=2), left, 1) == left[1]
    assert decide_chunk(backfill(stopped=True), left, 0) is None
    assert decide_chunk(backfill(), [], 0) is None


def test_a_chunk_is_skipped_only_where_all_of_it_is_in_an_outage():
    outage = Outage(time="at", begins="2013-01-05", ends="2013-01-15", reason="no power")
    load = Job(name="load", sink=SinkSpec(source=Source(path="*.csv"), outages=(outage,)))
    pipeline = Pipeline(name="p", jobs=(load,))
    said = "in the outage of sink load from 2013-01-05 to 2013-01-15: no power"
    assert outage_over(pipeline, "2013-01-08", "2013-01-15") == said
    assert outage_over(pipeline, "2013-01-08", "2013-01-15T00:00:01") == ""
    assert outage_over(pipeline, "2013-01-01", "2013-01-08") == ""


@pytest.mark.parametrize(
    ("one", "state", "is_done", "is_kept", "forced"),
    [
        (chunk("2013-01-01"), None, ChunkState.LEFT, False, False),
        (chunk("2013-01-01", run="p-1"), RunState.ACTIVE, ChunkState.RUNNING, True, True),
        (chunk("2013-01-01", run="p-1"), RunState.STOPPING, ChunkState.RUNNING, True, True),
        (chunk("2013-01-01", run="p-1"), RunState.SUCCEEDED, ChunkState.DONE, True, False),
        (chunk("2013-01-01", run="p-1"), RunState.FAILED, ChunkState.FAILED, False, False),
        (chunk("2013-01-01", run="p-1"), RunState.STOPPED, ChunkState.STOPPED, False, False),
        (chunk("2013-01-01", run="p-1"), None, ChunkState.FAILED, False, False),
        (chunk("2013-01-01", skipped="outage"), None, ChunkState.SKIPPED, False, False),
        (chunk("2013-01-01", failed="no resource"), None, ChunkState.FAILED, False, False),
    ],
)
def test_a_chunk_stands_as_its_run_does_and_stays_when_it_is_done(one, state, is_done, is_kept, forced):
    known = run(state) if state is not None else None
    assert state_of(one, known) == is_done
    assert is_chunk_kept(one, known, force=False) == is_kept
    assert is_chunk_kept(one, known, force=True) == forced
    assert one.left == (is_done == ChunkState.LEFT)
    assert replace(one, run="", skipped="", failed="").left
