"""Runs with many jobs as readers see them: bounded answers, a version of a view, and pages of all jobs."""

from tests.sim.test_races import command, finish, service, simulation

from gridmill.codec import encode
from gridmill.control.usecases.run_views import CHOSEN_JOBS, SHOWN_JOBS, choose_jobs
from gridmill.domain.command import CommandSpec
from gridmill.domain.frozen import replace
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.states import AttemptState, Cause, JobState, RunState
from gridmill.ports.pages import PAGE_BYTES
from gridmill.sdk.listing import Listing
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.store_samples import a_job_run

MANY = 300


def behave(order):
    if order.attempt_id.rpartition(".")[0].endswith("7"):
        return Behaviour(outcome=AttemptState.FAILED, cause=Cause.EXIT)
    return Behaviour()


def many(count: int = MANY) -> Pipeline:
    return Pipeline(name="p", jobs=tuple(command(f"j{number}") for number in range(count)))


def test_the_view_of_a_large_run_counts_all_jobs_and_shows_those_that_failed_or_run():
    grid = simulation(behave)
    cases = service(grid)
    run_id = cases.start_run(many()).run.id
    while cases.run(run_id).states.get(JobState.FAILED, 0) < 3:
        grid.advance()
    view = cases.run(run_id)
    running = view.states[JobState.RUNNING]
    states = [one.job.state for one in view.jobs]
    assert sum(view.counts.values()) == MANY
    assert len(view.jobs) == CHOSEN_JOBS
    assert view.left_out == MANY - CHOSEN_JOBS
    assert view.critical is None
    assert states.count(JobState.FAILED) == min(view.states[JobState.FAILED], CHOSEN_JOBS // 2)
    assert states.count(JobState.RUNNING) == min(running, CHOSEN_JOBS - states.count(JobState.FAILED))
    assert all(one.attempts for one in view.jobs if one.job.state in (JobState.FAILED, JobState.RUNNING))
    assert [one.job.order for one in view.jobs] == sorted(one.job.order for one in view.jobs)


def test_a_large_run_that_has_ended_is_shown_the_same_way_and_its_jobs_are_listed_by_state():
    grid = simulation(behave)
    cases = service(grid)
    view = cases.start_run(many())
    finish(grid, view.run)
    view = cases.run(view.run.id)
    assert view.run.state == RunState.FAILED
    assert view.counts == {JobState.FAILED: 30, JobState.SUCCEEDED: 270}
    assert [one.job.state for one in view.jobs].count(JobState.FAILED) == CHOSEN_JOBS // 2 + 10
    every = tuple(Listing(lambda **page: cases.jobs(view.run.id, **page)))
    assert [one.job.job.name for one in every] == [f"j{number}" for number in range(MANY)]
    assert all(len(one.attempts) == one.job.attempts == 1 for one in every)
    failed = cases.jobs(view.run.id, states=(JobState.FAILED,), limit=1000).items
    assert failed == tuple(one for one in every if one.job.state == JobState.FAILED)
    assert cases.job(view.run.id, "j17") == failed[1]


def test_a_view_that_is_still_right_is_not_sent_again():
    grid = simulation()
    cases = service(grid)
    first = cases.start_run(many(3))
    again = cases.run(first.run.id, since=first.version)
    assert again.unchanged
    assert (again.run, again.jobs, again.counts) == (first.run, (), first.counts)
    grid.advance()
    grid.advance()
    later = cases.run(first.run.id, since=first.version)
    assert not later.unchanged
    assert later.version != first.version
    assert len(later.jobs) == 3
    assert finish(grid, first.run).state == RunState.SUCCEEDED
    ended = cases.run(first.run.id)
    assert cases.run(first.run.id, since=ended.version).unchanged


def test_following_the_events_after_a_view_misses_none():
    grid = simulation()
    cases = service(grid)
    view = cases.start_run(many(3))
    seen = cases.events(view.run.id)
    assert view.last_event == seen[-1].id
    finish(grid, view.run)
    whole = cases.events(view.run.id)
    assert cases.events(view.run.id, after=view.last_event) == whole[len(seen) :]
    assert cases.run(view.run.id).last_event == whole[-1].id


def test_the_view_of_a_run_is_bounded_in_bytes():
    grid = simulation()
    cases = service(grid)
    said = CommandSpec(run="true", env={"TEXT": "x" * 20_000})
    large = tuple(replace(command(f"j{number}"), command=said) for number in range(SHOWN_JOBS))
    view = cases.start_run(Pipeline(name="p", jobs=large))
    assert len(encode(view)) < 1.1 * PAGE_BYTES
    assert 0 < len(view.jobs) < SHOWN_JOBS
    assert view.left_out == SHOWN_JOBS - len(view.jobs)
    assert view.critical is None


def test_of_many_jobs_the_urgent_ones_are_chosen():
    states = [JobState.SUCCEEDED] * 200 + [JobState.FAILED] * 30 + [JobState.RUNNING] * 15
    chosen = choose_jobs(replace(a_job_run(name=f"j{n}"), state=state) for n, state in enumerate(states))
    found = [job.state for job in chosen.jobs]
    assert chosen.counts == {JobState.SUCCEEDED: 200, JobState.FAILED: 30, JobState.RUNNING: 15}
    assert len(found) == CHOSEN_JOBS
    assert found.count(JobState.RUNNING) == 15
    assert found.count(JobState.FAILED) == 25
    assert not chosen.is_whole
