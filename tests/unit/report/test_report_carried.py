"""What the report says of data that was carried, and of the place that was chosen, in fact."""

from dataclasses import replace

from gridmill.domain.amounts import MIB, Amounts
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.resource import MeasuredUse
from gridmill.domain.route import AttemptTransfers, Transfer
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.states import AttemptState, JobState, RunState
from gridmill.domain.views import JobView, RunView
from gridmill.report.render import render
from gridmill.report.transfers import in_fact, transfer_lines

ATTEMPT = Attempt(
    id="p-1.j.1",
    run_id="p-1",
    job_run_id="p-1/j",
    token="",
    deployment_id="trainer-1",
    pod_id="trainer-1.0",
    state=AttemptState.SUCCEEDED,
    given=Amounts(cpus=1.0, memory_bytes=MIB),
    placed=103.0,
    ended=600.0,
    use=MeasuredUse(wall_seconds=360.0),
    transfers=AttemptTransfers(
        upload=Transfer(transferred_bytes=75 * MIB, reused_bytes=25 * MIB, seconds=7.5),
        download=Transfer(transferred_bytes=MIB, seconds=0.5),
    ),
)


def view(*attempts: Attempt, **more: object) -> JobView:
    job = Job(name="j", command=CommandSpec(run="true"), **more)  # type: ignore[arg-type]
    made = JobRun(
        id="p-1/j",
        run_id="p-1",
        pipeline="p",
        job=job,
        order=0,
        state=JobState.SUCCEEDED,
        resource="trainer",
        ready=100.0,
    )
    return JobView(job=made, attempts=attempts)


def test_it_shows_what_travelled_how_quick_and_what_was_there() -> None:
    job = view(replace(ATTEMPT, id="p-1.j.0"), ATTEMPT)  # a retry: both count
    run = Run(id="p-1", pipeline="p", order=1, state=RunState.SUCCEEDED, created=100.0)
    [line] = transfer_lines(RunView(run=run, jobs=(job, view())))
    assert (line.there.carried, line.there.reused, line.there.took) == ("150 MiB", "25%", "15.0 s")
    assert (line.there.rate, line.back.carried, line.back.rate) == ("10 MiB/s", "2 MiB", "2 MiB/s")
    page = render(RunView(run=run, jobs=(job,)), ())
    assert "Transfers to and from other sites" in page
    assert "actual: 6 min + 16 s transfer + 3 s wait, on trainer-1.0" in page
    assert "Transfers to" not in render(RunView(run=run, jobs=(view(),)), ())


def test_what_could_not_have_run_elsewhere_says_nothing() -> None:
    here = replace(ATTEMPT, transfers=None)
    assert in_fact(view(here)) == ()
    assert in_fact(view(here, resources=("a", "b"))) == ("actual: 6 min + 3 s wait, on trainer-1.0",)
