"""Which jobs with several possible resources check them again, and in which order."""

from dataclasses import replace

from tests.kit.control_records import a_job_run, a_run

from gridmill.control.ticks.look_elsewhere import decide_queue
from gridmill.domain.run import JobRun
from gridmill.domain.states import JobState

RUNS = {"p-1": a_run()}


def choosing(name: str, order: int = 0, **changes) -> JobRun:
    job_run = a_job_run(name, order=order)
    return replace(job_run, job=replace(job_run.job, resources=("here", "there")), **changes)


def test_waiting_jobs_check_in_the_order_of_the_queue():
    queue = decide_queue([choosing("b", 1), choosing("c", 2), choosing("a", 0)], RUNS)
    assert queue.to_recheck == ("p-1/a", "p-1/b", "p-1/c")
    assert queue.choosing == set(queue.to_recheck)


def test_jobs_that_run_may_choose_again_and_jobs_that_ended_never():
    jobs = [choosing("a", state=JobState.RUNNING), choosing("b", state=JobState.FAILED)]
    queue = decide_queue([*jobs, choosing("c", state=JobState.BLOCKED)], RUNS)
    assert queue.choosing == {"p-1/a", "p-1/c"}
    assert queue.to_recheck == ()


def test_a_job_with_a_measured_size_a_part_or_without_its_run_stays():
    jobs = [choosing("a", memory_kills=1), choosing("b", parts=2), choosing("c", run_id="p-2")]
    queue = decide_queue([*jobs, a_job_run("d")], RUNS)
    assert queue.to_recheck == ()
    assert queue.choosing == {"p-1/a", "p-1/b", "p-1/c", "p-1/d"}
