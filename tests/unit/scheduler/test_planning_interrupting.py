"""Which running jobs make room for which waiting ones, and what becomes of them."""

from dataclasses import replace

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
from gridmill.domain.pod_protocol import AttemptOutcome
from gridmill.domain.project import Project
from gridmill.domain.run import Preemption
from gridmill.domain.states import AttemptState, Cause, JobState
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.scheduler.explain import why_waiting
from gridmill.scheduler.gang_results import together
from gridmill.scheduler.outcomes import settle
from gridmill.scheduler.plan import plan
from gridmill.scheduler.snapshot import Snapshot

LATE = NOW + 10_000.0


def running(name, *, began=NOW, memory=2 * GIB, gpus=0, ranks=0, **fields):
    """A job and its attempts, one per rank; the ranks run on the pods a-1.0, a-1.1, ..."""
    job = a_job(name, memory=memory, gpus=gpus, state=JobState.RUNNING, **fields)
    attempts = [
        replace(
            an_attempt(job, pod=f"a-1.{rank}", memory=memory, gpus=gpus),
            id=f"p-1.{name}.1" + (f".{rank}" if rank else ""),
            started=began,
            resumable=True,
            gang=f"p-1.{name}.1" if ranks else "",
            rank=rank,
            ranks=ranks,
        )
        for rank in range(ranks or 1)
    ]
    return (job, *attempts)


def waiting(name="short", left=10.0, memory=2 * GIB, **fields):
    job = a_job(name, memory=memory, run=2, **fields)
    return replace(job, sizing=replace(job.sizing, left_seconds=left))


def grid(*nouns, pods=1, memory=4 * GIB):
    """One resource whose one deployment fills the site."""
    site = a_site(memory=memory, count=1)
    place = a_deployment(memory=memory // pods, pods=pods, idle_since=None)
    return Snapshot((site, command(workers=1), a_run(), a_run(2), place, *nouns))


def asked(wanted):
    return [key for one in wanted.interrupts for key in one.attempt_ids]


def test_a_long_job_that_can_resume_makes_room_for_a_short_one():
    wanted = plan(grid(*running("one"), *running("two", began=NOW + 100.0), waiting()), LATE)
    assert asked(wanted) == ["p-1.one.1"]
    assert not started(wanted)
    interruption = wanted.interrupts[0].interruption
    assert interruption.job_run == "p-2/short"
    assert interruption.left_seconds == 10_000.0  # nothing was measured: as long again
    assert interruption.shorter_seconds == 9990.0
    assert interruption.why == "interrupted for p-2/short, 2 h 46 m shorter"


def test_a_job_that_cannot_resume_is_left_alone():
    nouns = [replace(one, resumable=False) if hasattr(one, "resumable") else one for one in running("one")]
    assert not asked(plan(grid(*nouns, waiting(memory=3 * GIB)), LATE))


def test_a_job_is_left_alone_for_its_first_300_seconds_and_longer_each_time():
    for interruptions, until in ((0, 300.0), (1, 600.0), (3, 2400.0)):
        one = running("one", memory=4 * GIB, interruptions=interruptions, served_seconds=20_000.0)
        snapshot = grid(*one, waiting())
        before = plan(snapshot, NOW + until - 1.0)
        assert not asked(before)
        assert before.again_at == NOW + until
        assert asked(plan(snapshot, NOW + until)) == ["p-1.one.1"]


def test_nobody_is_interrupted_where_as_much_is_lost_as_gained():
    """The other job loses what the waiting one takes, and a minute until it goes on."""
    soon = NOW + 1000.0  # and so long is expected to be left of it
    assert not asked(plan(grid(*running("one", memory=4 * GIB), waiting(left=950.0)), soon))
    assert asked(plan(grid(*running("one", memory=4 * GIB), waiting(left=870.0)), soon))


def test_a_minutes_job_on_one_place_does_not_interrupt_a_gang_that_loses_more():
    """All eight ranks would stand still for it, and start again: that is sixteen minutes of a place."""
    snapshot = grid(*running("gang", memory=4 * GIB, ranks=8), waiting(left=60.0), pods=8, memory=32 * GIB)
    assert not asked(plan(snapshot, NOW + 950.0))
    assert len(asked(plan(snapshot, NOW + 970.0))) == 8


def test_nobody_is_interrupted_in_vain():
    """All that may be interrupted is not enough: the other job on the pod cannot resume."""
    fixed = [replace(one, resumable=False) if hasattr(one, "resumable") else one for one in running("two")]
    assert not asked(plan(grid(*running("one"), *fixed, waiting(memory=3 * GIB)), LATE))


def test_only_those_whose_room_is_needed_are_interrupted():
    small = running("small", memory=GIB, began=NOW - 5000.0)
    large = running("large", memory=3 * GIB)
    assert asked(plan(grid(*small, *large, waiting(memory=3 * GIB)), LATE)) == ["p-1.large.1"]


def test_a_higher_priority_interrupts_whatever_its_length_and_a_lower_one_never_does():
    urgent = waiting(left=1e6, priority=1)
    wanted = plan(grid(*running("one", memory=4 * GIB), urgent), LATE)
    assert asked(wanted) == ["p-1.one.1"]
    assert wanted.interrupts[0].interruption.why == "interrupted for p-2/short, whose turn comes first"
    assert not asked(plan(grid(*running("one", memory=4 * GIB, priority=1), waiting()), LATE))


def test_a_higher_priority_waits_for_ten_seconds_only_and_longer_each_time():
    for interruptions, seconds in ((0, 10.0), (2, 40.0)):
        one = running("one", memory=4 * GIB, interruptions=interruptions)
        snapshot = grid(*one, waiting(priority=1))
        before = plan(snapshot, NOW + seconds - 1.0)
        assert not asked(before)
        assert before.again_at == NOW + seconds
        assert asked(plan(snapshot, NOW + seconds)) == ["p-1.one.1"]


def test_nobody_is_interrupted_in_a_pod_that_a_batch_system_ends():
    snapshot = grid(*running("one", memory=4 * GIB), waiting())
    assert asked(plan(snapshot, LATE))
    place = snapshot.deployments["a-1"]
    snapshot.put(replace(place, pods=tuple(replace(pod, ends=LATE + 1e6) for pod in place.pods)))
    assert not asked(plan(snapshot, LATE))


def test_a_gang_that_was_interrupted_counts_as_that_though_rank_0_had_ended_before():
    _, *attempts = running("gang", ranks=2)
    why = Preemption(job_run="p-2/short", left_seconds=1.0)
    first = replace(attempts[0], outcome=AttemptOutcome(state=AttemptState.SUCCEEDED), ended=LATE)
    second = replace(
        attempts[1], outcome=AttemptOutcome(state=AttemptState.STOPPED), ended=LATE, interrupted=why
    )
    head, outcome = together((first, second))
    assert head.interrupted == why
    assert outcome.state is AttemptState.STOPPED


def test_a_gang_is_interrupted_whole_and_makes_room_for_one():
    gang = running("gang", memory=4 * GIB, ranks=2)
    assert asked(plan(grid(*gang, waiting(), pods=2, memory=8 * GIB), LATE)) == [
        "p-1.gang.1",
        "p-1.gang.1.1",
    ]


def test_a_gang_that_waits_gets_room_on_several_pods():
    one = running("one", memory=4 * GIB)
    two = running("two", memory=4 * GIB)
    two = (two[0], replace(two[1], pod_id="a-1.1"))
    gang = replace(waiting(memory=4 * GIB), job=Job(name="short", command=CommandSpec(run="true", workers=2)))
    snapshot = grid(*one, *two, gang, pods=2, memory=8 * GIB)
    assert sorted(asked(plan(snapshot, LATE))) == ["p-1.one.1", "p-1.two.1"]


def test_what_comes_free_is_for_the_one_that_room_is_made_for():
    """While one of two has ended, a smaller job does not take its room, and nobody else is asked."""
    _, attempt = running("one")
    why = Preemption(job_run="p-2/short", left_seconds=1.0)
    yielding = replace(attempt, interrupted=why)
    snapshot = grid(
        running("one")[0], yielding, waiting(memory=4 * GIB), waiting("tiny", left=20.0, memory=GIB)
    )
    wanted = plan(snapshot, LATE)
    assert not started(wanted)
    assert not asked(wanted)
    snapshot.put(replace(yielding, state=AttemptState.STOPPED))
    assert started(plan(snapshot, LATE))[0] == "p-2/short"


def test_it_waits_again_at_once_and_no_try_is_counted():
    job, attempt = running("one")
    why = Preemption(job_run="p-2/short", left_seconds=1234.0, shorter_seconds=240.0)
    for state in (AttemptState.STOPPED, AttemptState.FAILED, AttemptState.LOST):
        ended = replace(attempt, state=state, cause=Cause.STOPPED, interrupted=why)
        after = settle(replace(job, interruptions=1, served_seconds=5.0), ended, NOW + 400.0, largest=GIB)
        assert after.state is JobState.WAITING
        assert (after.failures, after.losses, after.not_before) == (0, 0, NOW + 400.0)
        assert (after.interruptions, after.served_seconds) == (2, 405.0)
        assert after.sizing.left_seconds == 1234.0
        assert after.message == "interrupted for p-2/short, 4 m 00 s shorter; resumes from its checkpoint"


def test_a_user_who_stops_it_meanwhile_has_it_stopped_and_an_end_in_time_counts():
    job, attempt = running("one")
    asked_to = replace(attempt, interrupted=Preemption(job_run="p-2/short", left_seconds=1.0))
    stopped = replace(asked_to, state=AttemptState.STOPPED, stop_requested=True)
    assert settle(job, stopped, LATE, largest=GIB).state is JobState.STOPPED
    done = replace(asked_to, state=AttemptState.SUCCEEDED)
    assert settle(job, done, LATE, largest=GIB).state is JobState.SUCCEEDED


def test_status_says_why_it_waits_again():
    message = "interrupted for p-2/short, 4 m 00 s shorter; resumes from its checkpoint"
    job = a_job("one", memory=4 * GIB, interruptions=1, message=message)
    other, attempt = running("two")
    told = why_waiting(grid(job, other, attempt), job.id, LATE)
    assert told.startswith(message + "; needs 4 GiB")


def test_trainings_with_checkpoints_can_resume_and_what_says_so():
    learned = TrainingSpec(dataset="d", model=ModelKind.LSTM)
    grown = TrainingSpec(dataset="d", model=ModelKind.GBDT)
    assert Job(name="a", training=learned).can_resume
    assert not Job(name="a", training=learned, resumable=False).can_resume
    assert not Job(name="a", training=grown).can_resume
    assert not Job(name="a", command=CommandSpec(run="true")).can_resume
    assert Job(name="a", command=CommandSpec(run="true"), resumable=True).can_resume


def of_a(*nouns, quota, **fields):
    """All of the project a, beside idle pods."""
    mine = [replace(one, project="a") if hasattr(one, "project") else one for one in nouns]
    return grid(Project(name="a", **quota), *mine, **{"pods": 2, "memory": 16 * GIB, **fields})


def test_a_job_at_its_projects_quota_interrupts_one_of_its_own_project():
    two = running("two", memory=4 * GIB)
    two = (two[0], replace(two[1], pod_id="a-1.1"))
    urgent = waiting(left=1e6, priority=1)
    snapshot = of_a(*running("one", began=NOW - 9.0), *two, urgent, quota={"memory_bytes": 6 * GIB})
    wanted = plan(snapshot, LATE)
    assert (asked(wanted), started(wanted)) == (["p-1.one.1"], [])
    assert asked(plan(of_a(*running("one"), waiting(), quota={"cpus": 1}), LATE))  # it is much shorter
    soon = NOW + 1000.0
    assert not asked(plan(of_a(*running("one", priority=1), urgent, quota={"cpus": 1}), soon))
    assert not asked(plan(of_a(*running("one"), waiting(left=1e6), quota={"cpus": 1}), soon))


def test_a_job_at_its_projects_quota_interrupts_one_of_its_project_on_another_resource():
    job, attempt = running("one")
    elsewhere = replace(a_deployment(pods=1), id="b-1", resource="b", pods=())
    job, attempt = replace(job, resource="b"), replace(attempt, deployment_id="b-1", pod_id="b-1.0")
    urgent, tiny = waiting(left=1e6, priority=1), waiting("tiny", left=1e6)
    wanted = of_a(job, attempt, elsewhere, command("b"), urgent, tiny, quota={"cpus": 1})
    assert asked(plan(wanted, LATE)) == ["p-1.one.1"]
    assert not asked(plan(of_a(job, attempt, elsewhere, urgent, quota={"cpus": 2}), LATE)), "it has room"
    wanted.put(replace(attempt, interrupted=Preemption(job_run="p-2/short", left_seconds=1.0), project="a"))
    made = plan(wanted, LATE)
    assert (asked(made), started(made)) == ([], []), "nobody else for the same, nor in its stead"
    wanted.put(replace(attempt, state=AttemptState.STOPPED, project="a"))
    assert started(plan(wanted, LATE)) == ["p-2/short"]


def test_at_a_quota_nobody_is_interrupted_in_vain_nor_of_another_project():
    others = running("one", project="b")
    mine = (a_job("mine", project="a", state=JobState.RUNNING),)
    mine = (*mine, replace(an_attempt(*mine, pod="a-1.1"), project="a"))
    urgent = waiting(priority=1, project="a")
    quota = Project(name="a", cpus=1)
    snapshot = grid(quota, Project(name="b"), *others, *mine, urgent, pods=2, memory=16 * GIB)
    assert not asked(plan(snapshot, LATE))
    larger = waiting(memory=4 * GIB, priority=1)
    fixed = [replace(one, resumable=False) if hasattr(one, "resumable") else one for one in running("two")]
    assert not asked(plan(of_a(*running("one"), *fixed, larger, quota={"memory_bytes": 5 * GIB}), LATE))


def test_a_gang_at_its_projects_quota_gets_room_for_all_its_ranks():
    two = running("two")
    two = (two[0], replace(two[1], pod_id="a-1.1"))
    job = Job(name="short", command=CommandSpec(run="true", workers=2))
    gang = replace(waiting(priority=1), job=job)
    snapshot = of_a(*running("one"), *two, gang, quota={"cpus": 2})
    assert sorted(asked(plan(snapshot, LATE))) == ["p-1.one.1", "p-1.two.1"]
    assert len(asked(plan(of_a(*running("one"), *two, gang, quota={"cpus": 3}), LATE))) == 1


def test_what_comes_free_of_a_quota_is_for_the_one_that_room_is_made_for():
    """A smaller job of the project that would fit into what is left of the quota does not take it."""
    job, attempt = running("one")
    yielding = replace(attempt, interrupted=Preemption(job_run="p-2/short", left_seconds=1.0), project="a")
    tiny = waiting("tiny", left=20.0, memory=GIB)
    snapshot = of_a(job, yielding, waiting(priority=1, memory=3 * GIB), tiny, quota={"memory_bytes": 3 * GIB})
    assert not started(plan(snapshot, LATE))
    snapshot.put(replace(yielding, state=AttemptState.STOPPED))
    assert started(plan(snapshot, LATE)) == ["p-2/short"]
