"""In which order jobs are served by what was measured, and about how long one waits."""

from dataclasses import replace

import pytest
from tests.unit.scheduler.test_planning_plan import (
    NOW,
    a_deployment,
    a_job,
    a_run,
    a_site,
    an_attempt,
    command,
    started,
)

from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.job import CommandSpec, Job, JobSize
from gridmill.domain.project import Project
from gridmill.domain.resource import MeasuredUse, Measurement
from gridmill.domain.states import JobState
from gridmill.scheduler import wait_estimate
from gridmill.scheduler.explain import why_waiting
from gridmill.scheduler.forecast import lasted
from gridmill.scheduler.plan import plan
from gridmill.scheduler.snapshot import Snapshot
from gridmill.scheduler.wait_estimate import WaitForecasts


def measured(job: str, *seconds: float) -> list[Measurement]:
    return [
        Measurement(
            attempt_id=f"{job}.{k}",
            subject=f"command/p/{job}",
            job=f"p/{job}",
            size=JobSize(),
            given=Amounts(),
            use=MeasuredUse(wall_seconds=took),
            ended=0.0,
        )
        for k, took in enumerate(seconds)
    ]


def sized(job, left):
    return replace(job, sizing=replace(job.sizing, left_seconds=left))


def first_of(*jobs, second=None):
    snapshot = Snapshot((a_site(), command(), a_run(), second or a_run(2), a_deployment(memory=GIB), *jobs))
    return started(plan(snapshot, NOW))[0]


def test_what_is_expected_to_be_short_goes_before_what_came_somewhat_earlier():
    long, short = sized(a_job("long"), 3000.0), sized(a_job("short", run=2), 60.0)
    assert first_of(long, short) == "p-2/short"


def test_what_nobody_measured_keeps_the_order_of_the_runs():
    assert first_of(a_job("one"), a_job("two", run=2)) == "p-1/one"


def test_a_priority_goes_before_what_is_short():
    long, short = sized(a_job("long", priority=1), 3000.0), sized(a_job("short", run=2), 60.0)
    assert first_of(long, short) == "p-1/long"


def test_the_same_job_takes_turns_in_the_order_of_the_runs_however_short():
    first, second = sized(a_job("load"), 3000.0), sized(a_job("load", run=2), 1.0)
    assert first_of(first, second) == "p-1/load"


def crowded(*nouns, attained=40.0):
    """A pod with room for one job, and one that has run for so long."""
    busy = a_job("busy", state=JobState.RUNNING)
    attempt = replace(an_attempt(busy), started=NOW - attained)
    return Snapshot((a_site(share=1.0), command(), a_run(), a_deployment(memory=GIB), busy, attempt, *nouns))


def test_a_wait_is_told_from_what_is_left_of_what_runs():
    snapshot = crowded(a_job("mine"), *measured("busy", 90.0, 100.0, 110.0, 120.0, 130.0))
    wait = WaitForecasts(snapshot, NOW).of("p-1/mine")
    assert wait is not None
    assert wait == (70.0, 60.0, 90.0)
    assert why_waiting(snapshot, "p-1/mine", NOW).endswith("; about 1 m 10 s (1 m 00 s - 1 m 30 s)")


@pytest.mark.parametrize("project", [None, Project(name="default"), Project(name="default", cpus=99.0)])
def test_of_many_resources_each_job_is_looked_up_once_and_waits_for_what_runs_there(monkeypatch, project):
    asked: list[str] = []

    def counted(job, *rest):
        asked.append(job)
        return lasted(job, *rest)

    monkeypatch.setattr(wait_estimate, "lasted", counted)
    snapshot = Snapshot((a_site(share=1.0), a_run(), *([project] if project else [])))
    for number in range(20):
        resource = f"r{number:02}"
        busy = a_job(f"busy{number}", resource=resource, state=JobState.RUNNING)
        place = a_deployment(f"{resource}-1", resource=resource, memory=GIB)
        attempt = replace(an_attempt(busy, place.pods[0].id), started=NOW)
        mine = a_job(f"mine{number}", resource=resource)
        told = *measured(f"busy{number}", 10.0 + number), *measured(f"mine{number}", 5.0)
        for noun in (command(name=resource), busy, place, attempt, mine, *told):
            snapshot.put(noun)
    several = WaitForecasts(snapshot, NOW)
    found = [several.of(f"p-1/mine{number}") for number in range(20)]
    assert [wait and wait.likely for wait in found] == [10.0 + number for number in range(20)]
    assert len(asked) == len(set(asked)) == 40


def test_those_before_it_are_waited_for_too():
    told = measured("busy", 100.0), measured("other", 30.0)
    snapshot = crowded(a_job("other"), a_job("mine", order=1), *(one for some in told for one in some))
    wait = WaitForecasts(snapshot, NOW).of("p-1/mine")
    assert wait is not None
    assert wait.likely == 90.0


def test_what_runs_longer_than_ever_before_is_expected_to_last_on():
    wait = WaitForecasts(crowded(a_job("mine"), *measured("busy", 10.0, 20.0)), NOW).of("p-1/mine")
    assert wait is not None
    assert wait.low < wait.likely == 40.0 < wait.high


def test_those_of_other_projects_go_first_while_they_used_less():
    """One place; b used nothing yet: its first job passes mine, then a has used less than b has."""
    told = measured("busy", 100.0), measured("b1", 2000.0), measured("b2", 30.0), measured("mine", 5.0)
    theirs = [a_job(f"b{k}", project="b", order=2 + k) for k in (1, 2)]
    used = Project(name="a", used_seconds=1000.0, used_at=NOW)
    mine = a_job("mine", project="a")
    snapshot = crowded(mine, *theirs, used, Project(name="b"), *(one for some in told for one in some))
    waits = WaitForecasts(snapshot, NOW)
    assert [waits.of(f"p-1/{name}").likely for name in ("b1", "mine", "b2")] == [60.0, 2060.0, 2065.0]
    assert "; project b used less of its share; about 34 m" in why_waiting(snapshot, mine.id, NOW)


def test_a_project_at_its_quota_waits_for_the_end_of_its_own():
    """The pod has room for two; the quota of a for one; what b runs there ends earlier."""
    runs = a_job("busy", state=JobState.RUNNING, project="a"), a_job("other", state=JobState.RUNNING)
    attempts = [replace(an_attempt(one), started=NOW, project=one.project) for one in runs]
    told = *measured("busy", 100.0), *measured("other", 30.0)
    mine, place = a_job("mine", project="a"), a_deployment(memory=3 * GIB, cpus=2.0)
    nouns = (a_site(share=1.0), command(), a_run(), place, *runs, *attempts, mine, *told)
    wait = WaitForecasts(Snapshot((*nouns, Project(name="a", cpus=1))), NOW).of("p-1/mine")
    assert wait is not None
    assert wait.likely == 100.0
    why = why_waiting(Snapshot((*nouns, Project(name="a", cpus=1))), "p-1/mine", NOW)
    assert why == "quota of project a: 1 of 1 CPU in use; about 1 m 40 s"


def test_nothing_is_told_where_nothing_was_measured():
    assert WaitForecasts(crowded(a_job("mine")), NOW).of("p-1/mine") is None
    free = Snapshot((a_site(), command(), a_run(), a_deployment(memory=GIB), a_job("mine", MIB)))
    assert WaitForecasts(free, NOW).of("p-1/mine") is None


def test_why_a_gang_that_asks_for_no_memory_waits_is_told():
    gang = replace(a_job("g", 0), job=Job(name="g", command=CommandSpec(run="true", workers=9)))
    snapshot = Snapshot((a_site(share=1.0), command(), a_run(), gang))
    assert "needs room for 9 workers at once; site local has room for" in why_waiting(snapshot, gang.id, NOW)
