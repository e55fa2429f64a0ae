"""What passes a due time, when a run is not needed, and when a block of new files is closed."""

from dataclasses import replace

import pytest
from tests.kit.control_records import a_job_run

from gridmill.control.ticks.schedules import (
    ASLEEP_SECONDS,
    ListedSources,
    decide_block,
    decide_passed,
    decide_restorable,
    decide_slept,
    decide_unchanged,
)
from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.due_times import DueDecision
from gridmill.domain.job import When
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.schedule import Continuous, Schedule, ScheduleSpec
from gridmill.ports.storage import FileStat

SCHEDULE = Schedule(name="p", spec=ScheduleSpec(every_seconds=10.0), since=100.0)


@pytest.mark.parametrize(
    ("before", "offset", "slept"),
    [
        (None, 50.0, True),
        (50.0, 50.0, False),
        (50.0, 50.0 + ASLEEP_SECONDS, False),
        (50.0, 50.1 + ASLEEP_SECONDS, True),
        (50.0, 49.9 - ASLEEP_SECONDS, True),
    ],
)
def test_a_machine_slept_if_its_clocks_moved_apart(before: float | None, offset: float, slept: bool):
    assert decide_slept(before, offset) == slept


@pytest.mark.parametrize(
    ("done", "passes", "skipped"), [(None, 100.0, 1), (None, 99.0, 0), (120.0, 120.0, 1), (120.0, 110.0, 0)]
)
def test_a_due_time_counts_as_skipped_unless_the_clock_was_set_back(done, passes, skipped):
    after = decide_passed(replace(SCHEDULE, done=done), DueDecision(done=passes, message="skipped one"))
    assert (after.done, after.message, after.skipped) == (passes, "skipped one", skipped)


def version(name: str) -> Artifact:
    output = Output(kind=ArtifactKind.FILES, uri="")
    return Artifact(id=f"p/{name}@1", name=f"p/{name}", number=1, output=output, fingerprint="f")


def test_a_run_is_needed_unless_all_jobs_but_those_after_failures_are_unchanged():
    jobs = [a_job_run(name).job for name in ("a", "b", "alarm")]
    pipeline = Pipeline(name="p", jobs=(*jobs[:2], replace(jobs[2], when=When.FAILURE)))
    assert decide_restorable(pipeline, {name: version(name) for name in ("a", "b")})
    assert not decide_restorable(pipeline, {name: version(name) for name in ("a", "alarm")})


def test_the_reason_why_no_run_is_needed_names_three_jobs():
    one = decide_unchanged(SCHEDULE, {"a": version("a")})
    assert (one.unchanged, one.message) == (1, "there was no new data: no change of `a` since p/a@1")
    many = decide_unchanged(SCHEDULE, {name: version(name) for name in "abcde"})
    assert many.message.endswith("`c` since p/c@1 and 2 more")


CONTINUOUS = Continuous(max_files=3, max_bytes=100, max_wait_seconds=30.0, check_seconds=5.0)


def files(count: int, size_bytes: int = 1) -> frozenset[FileStat]:
    return frozenset(
        FileStat(path=f"{number}.csv", size_bytes=size_bytes, mtime_ns=0) for number in range(count)
    )


@pytest.mark.parametrize(
    ("new", "size_bytes", "since", "closed", "wait"),
    [
        (2, 1, None, False, 5.0),
        (3, 1, None, True, 5.0),
        (2, 50, None, True, 5.0),
        (2, 49, None, False, 5.0),
        (1, 1, 172.0, False, 2.0),
        (1, 1, 170.0, True, 5.0),
    ],
)
def test_a_block_is_closed_by_its_files_its_bytes_or_its_wait(new, size_bytes, since, closed, wait):
    found = files(new, size_bytes)
    block = decide_block(
        CONTINUOUS, ListedSources(files=found, waiting="1 changes"), frozenset(), since, 200.0
    )
    assert (block.is_closed, block.wait_seconds) == (closed, wait)
    assert block.waiting_since == (200.0 if since is None else since)
    assert block.message == ("1 changes" if closed else f"{new} new files wait for their block to be closed")


def test_files_that_were_loaded_are_not_new():
    seen = files(4)
    block = decide_block(CONTINUOUS, ListedSources(files=seen, waiting="1 changes"), seen, 100.0, 200.0)
    assert (block.is_closed, block.waiting_since, block.message) == (False, None, "1 changes")
    more = decide_block(CONTINUOUS, ListedSources(files=files(6)), seen, None, 200.0)
    assert (more.is_closed, more.waiting_since) == (False, 200.0)


def test_a_source_that_only_its_load_can_check_is_new_at_each_check():
    at_once = replace(CONTINUOUS, max_wait_seconds=0.0)
    live = ListedSources(files=frozenset(), is_live=True)
    assert decide_block(at_once, live, frozenset(), None, 200.0).is_closed
    assert not decide_block(CONTINUOUS, live, frozenset(), None, 200.0).is_closed
