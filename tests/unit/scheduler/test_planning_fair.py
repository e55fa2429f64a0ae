"""Shares and quotas of projects: who goes first, and who waits though there is room."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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

from gridmill.domain.amounts import GIB
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.project import Project
from gridmill.domain.states import JobState
from gridmill.errors import InputError
from gridmill.scheduler.explain import why_waiting
from gridmill.scheduler.fair_share import HALF_LIFE_SECONDS, charged, decayed
from gridmill.scheduler.plan import plan
from gridmill.scheduler.snapshot import Snapshot

WEEK = HALF_LIFE_SECONDS


def jobs(project, count, **fields):
    return [a_job(f"{project}{k}", project=project, order=k, **fields) for k in range(count)]


def grid(*nouns, memory=4 * GIB, gpus=0, cpus=8.0):
    place = a_deployment(memory=memory, cpus=cpus, gpus=gpus)
    resource = command(gpus=gpus, workers=1)
    return Snapshot((a_site(cpus=cpus, memory=memory, gpus=gpus), resource, a_run(), a_run(2), place, *nouns))


def of(wanted):
    """`aab`: whose jobs are started, in order."""
    return "".join(name.partition("/")[2][0] for name in started(wanted))


def test_projects_take_turns_by_their_shares():
    snapshot = grid(
        Project(name="a", share=2.0), Project(name="b"), *jobs("a", 9), *jobs("b", 9), memory=6 * GIB
    )
    assert of(plan(snapshot, NOW)) == "ababaa"


def test_without_projects_and_for_one_alone_the_order_is_as_it_was():
    assert of(plan(grid(*jobs("default", 3)), NOW)) == "ddd"
    assert of(plan(grid(Project(name="a"), *jobs("a", 3)), NOW)) == "aaa"


def test_the_project_that_used_less_goes_first_until_it_used_as_much():
    used = Project(name="a", used_seconds=1500.0, used_at=NOW)
    snapshot = grid(used, Project(name="b"), *jobs("a", 9), *jobs("b", 9), memory=6 * GIB)
    assert of(plan(snapshot, NOW)) == "bbbaba"


def test_what_runs_counts_too():
    running = a_job("a", project="a", state=JobState.RUNNING)
    attempt = replace(an_attempt(running), project="a", placed=NOW - 900.0)
    snapshot = grid(Project(name="a"), Project(name="b"), running, attempt, *jobs("a", 3), *jobs("b", 4))
    assert of(plan(snapshot, NOW)) == "bbb"


def test_a_priority_goes_before_a_share():
    used = Project(name="a", used_seconds=1e6, used_at=NOW)
    snapshot = grid(used, Project(name="b"), *jobs("a", 2, priority=1), *jobs("b", 2))
    assert of(plan(snapshot, NOW)) == "aabb"


def test_within_a_project_the_order_is_as_it_was_over_several_classes_and_resources():
    mixed = [a_job(f"a{k}", memory=(1 + k % 3) * GIB, project="a", order=k) for k in range(4)]
    snapshot = grid(Project(name="a"), Project(name="b"), *mixed, *jobs("b", 2), memory=16 * GIB)
    names = started(plan(snapshot, NOW))
    assert [name for name in names if "/a" in name] == [f"p-1/a{k}" for k in range(4)]
    assert len(names) == 6


def test_what_was_used_counts_half_after_a_week():
    assert decayed(100.0, 0.0, WEEK) == 50.0
    once = charged(Project(name="a", share=3.0, gpus=2), 100.0, 0.0)
    twice = charged(once, 10.0, 2 * WEEK)
    assert (twice.used_seconds, twice.used_at) == (35.0, 2 * WEEK)
    assert (twice.share, twice.gpus) == (3.0, 2)


@pytest.mark.parametrize(
    ("quota", "each", "count"),
    [
        ({"cpus": 2}, {}, 2),
        ({"cpus": 4}, {"cpus": 2.0}, 2),
        ({"memory_bytes": 3 * GIB}, {}, 3),
        ({"gpus": 2}, {"gpus": 1}, 2),
        ({"gpus": 0}, {}, 4),
        ({}, {}, 4),
    ],
)
def test_no_more_is_started_than_a_quota_allows(quota, each, count):
    snapshot = grid(Project(name="a", **quota), *jobs("a", 4, **each), memory=8 * GIB, gpus=8)
    assert of(plan(snapshot, NOW)) == "a" * count


def test_behind_a_quota_that_is_used_up_others_go_on_and_no_room_is_kept():
    running = a_job("a", project="a", gpus=1, state=JobState.RUNNING)
    attempt = replace(an_attempt(running, gpus=1), project="a")
    waiting = jobs("a", 3, gpus=1, ready=NOW - 1000.0)
    snapshot = grid(Project(name="a", gpus=1), running, attempt, *waiting, *jobs("default", 3), gpus=4)
    wanted = plan(snapshot, NOW)
    assert of(wanted) == "ddd"
    assert not wanted.bring_ups
    told = why_waiting(snapshot, waiting[0].id, NOW)
    assert told == "quota of project a: 1 of 1 GPU in use"


def test_no_more_is_brought_up_than_a_quota_allows():
    project = Project(name="a", cpus=2)
    many = jobs("a", 30, memory=4 * GIB)
    site = a_site(memory=64 * GIB, cpus=16.0)
    snapshot = Snapshot((site, command(memory_bytes=4 * GIB), a_run(), project, *many))
    assert sum(len(up.nodes) for up in plan(snapshot, NOW).bring_ups) <= 2


def test_a_job_larger_than_the_whole_quota_is_refused():
    snapshot = grid(Project(name="a", gpus=2), *jobs("a", 2, gpus=4), gpus=8)
    refusals = plan(snapshot, NOW).refusals
    assert [one.job_run_id for one in refusals] == ["p-1/a0", "p-1/a1"]
    assert refusals[0].message == "needs more than the whole quota of project a: 4 of 2 GPUs"
    assert "gridmill configure project a" in refusals[0].hint


def test_a_gang_is_within_the_quota_with_all_its_ranks():
    gang = Job(name="a0", command=CommandSpec(run="true", workers=3))
    waiting = replace(jobs("a", 1)[0], job=gang)
    assert len(plan(grid(Project(name="a", cpus=3), waiting), NOW).starts) == 3
    four = replace(waiting, job=replace(gang, command=CommandSpec(run="true", workers=4)))
    assert plan(grid(Project(name="a", cpus=3), four), NOW).refusals


def test_a_project_is_checked():
    for wrong in ({"share": 0.0}, {"share": -1.0}, {"share": float("nan")}, {"gpus": -1}, {"cpus": -0.5}):
        with pytest.raises(InputError):
            Project(name="a", **wrong).check()


PROJECTS = ("a", "b", "c")


@settings(max_examples=60, deadline=None)
@given(
    quotas=st.lists(
        st.tuples(*(st.none() | st.integers(0, most) for most in (6, 8, 3))),
        min_size=3,
        max_size=3,
    ),
    wants=st.lists(
        st.tuples(st.sampled_from(PROJECTS), st.integers(1, 3), st.integers(0, 2), st.integers(1, 3)),
        max_size=25,
    ),
    ends=st.lists(st.integers(0, 30), max_size=12),
)
def test_whatever_comes_no_quota_is_exceeded_and_everyone_comes_to_an_end(quotas, wants, ends):
    """Jobs that end at any time: what each project has at once stays within its quota, and when all that run
    have ended again and again nobody is left who is not refused."""
    projects = {
        name: Project(name=name, cpus=cpus, memory_bytes=None if memory is None else memory * GIB, gpus=gpus)
        for name, (cpus, memory, gpus) in zip(PROJECTS, quotas, strict=True)
    }
    waiting = [
        replace(
            a_job(f"j{k}", memory=memory * GIB, gpus=gpus, project=name, order=k, ready=0.0),
            job=Job(name=f"j{k}", command=CommandSpec(run="true", workers=workers if workers > 1 else None)),
        )
        for k, (name, memory, gpus, workers) in enumerate(wants)
    ]
    snapshot = grid(*projects.values(), *waiting, memory=12 * GIB, gpus=6)
    live, now = dict[str, list](), NOW
    for step in range(len(waiting) * 3 + len(ends) + 3):
        now += 1.0
        wanted = plan(snapshot, now)
        for refusal in wanted.refusals:
            snapshot.put(replace(snapshot.job_runs[refusal.job_run_id], state=JobState.FAILED))
        for rank, start in enumerate(wanted.starts):
            job = snapshot.job_runs[start.job_run_id]
            attempt = an_attempt(job, memory=start.memory_bytes, gpus=start.gpus)
            name = f"{attempt.id}.{rank}.{step}"
            attempt = replace(attempt, id=name, project=job.project, placed=now)
            live.setdefault(job.id, []).append(attempt)
        for key, attempts in live.items():
            snapshot.put(replace(snapshot.job_runs[key], state=JobState.RUNNING))
            for attempt in attempts:
                snapshot.put(attempt)
        _check(projects, live)
        index = ends[step] if step < len(ends) else 0
        for key in sorted(live)[index : index + 1] if live else ():
            for attempt in live.pop(key):
                snapshot.remove(type(attempt), attempt.id)
            snapshot.put(replace(snapshot.job_runs[key], state=JobState.SUCCEEDED))
    assert not live
    assert not [job for job in snapshot.job_runs.values() if job.state is JobState.WAITING]
    assert not snapshot.places.tallies


def _check(projects, live):
    for name, project in projects.items():
        mine = [attempt for attempts in live.values() for attempt in attempts if attempt.project == name]
        assert project.cpus is None or len(mine) <= project.cpus
        assert project.gpus is None or sum(one.given.gpus for one in mine) <= project.gpus
        used = sum(one.given.memory_bytes for one in mine)
        assert project.memory_bytes is None or used <= project.memory_bytes


@settings(max_examples=8, deadline=None)
@given(
    shares=st.tuples(st.sampled_from([1.0, 2.0, 3.0]), st.sampled_from([1.0, 2.0])),
    seconds=st.tuples(st.integers(600, 3000), st.integers(600, 3000)),
)
def test_what_projects_use_converges_to_their_shares(shares, seconds):
    """Both always have jobs that wait, of whatever length: each uses its share of the time, within a tenth of
    it after some days."""
    projects = [Project(name=name, share=share) for name, share in zip("ab", shares, strict=True)]
    snapshot = grid(*projects, memory=4 * GIB)
    used, ends, number, now = {"a": 0.0, "b": 0.0}, [], 0, NOW
    while now < NOW + 2 * 86_400.0:
        for name in "ab":
            queue = snapshot.lines.waiting.get("a")
            mine = [g for g in queue.classes.values() if g.demand.project == name] if queue else []
            for _ in range(4 - sum(len(group.members) for group in mine)):
                number += 1
                snapshot.put(a_job(f"{name}{number}", project=name, order=number))
        for start in plan(snapshot, now).starts:
            job = snapshot.job_runs[start.job_run_id]
            attempt = replace(an_attempt(job), project=job.project, placed=now)
            snapshot.put(replace(job, state=JobState.RUNNING))
            snapshot.put(attempt)
            ends.append((now + seconds["ab".index(job.project)], attempt, job.id))
        ends.sort(key=lambda end: end[0])
        now, attempt, key = ends.pop(0)
        snapshot.remove(type(attempt), attempt.id)
        snapshot.remove(type(snapshot.job_runs[key]), key)
        used[attempt.project] += now - attempt.placed
        snapshot.put(charged(snapshot.projects[attempt.project], now - attempt.placed, now))
    part = used["a"] / (used["a"] + used["b"])
    assert abs(part - shares[0] / sum(shares)) < 0.1
