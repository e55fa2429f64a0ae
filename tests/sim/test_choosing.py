"""Jobs that may go to several resources, on a grid with a second site in another place."""

from dataclasses import replace

import pytest
from tests.sim.test_races import command, finish, job_of, simulation

from gridmill.control.settle import settle_attempt
from gridmill.errors import PipelineError
from gridmill.model.amounts import GIB, Amounts
from gridmill.model.job import JobKind, JobSize
from gridmill.model.message import Outcome
from gridmill.model.pipeline import Pipeline
from gridmill.model.resource import Measurement, Resource, Use
from gridmill.model.run import Attempt, JobRun
from gridmill.model.site import Node, Site, SiteKind
from gridmill.model.state import AttemptState, JobState, RunState
from gridmill.model.way import Carriage, Crossing
from gridmill.testing.behaviour import Behaviour
from gridmill.testing.simulation import Simulation

FARM = Site(
    name="farm",
    kind=SiteKind.SIMULATED,
    nodes=(Node(name="sim", capacity=Amounts(cpus=8, memory_bytes=32 * GIB)),),
)
HERE = Resource(name="here", type=JobKind.COMMAND)
THERE = Resource(name="there", type=JobKind.COMMAND, site="farm")


def measured(resource: Resource, seconds: float) -> Measurement:
    return Measurement(
        attempt_id=resource.name,
        subject="command/p/j",
        job="p/j",
        size=JobSize(),
        given=Amounts(),
        use=Use(wall_seconds=seconds),
        ended=0.0,
        resource=resource.name,
        site=resource.site,
    )


def grid(here: float, there: float) -> Simulation:
    made = simulation(lambda order: Behaviour(seconds=1.0))
    control = made.node.control
    control.sites["farm"] = made.world
    control.ledger.load()
    transaction = control.begin()
    transaction.put(FARM, HERE, THERE, measured(HERE, here), measured(THERE, there))
    control.ledger.commit(transaction)
    return made


def pipeline(*names: str, **settings: object) -> Pipeline:
    return Pipeline(name="p", jobs=(command("j", resources=names or ("here", "there"), **settings),))


def test_it_goes_where_it_is_done_first_and_says_why() -> None:
    for here, there, expected in ((100.0, 10.0, "there"), (10.0, 100.0, "here")):
        one = grid(here, there)
        run = finish(one, one.submit(pipeline()))
        job = job_of(one, run, "j")
        assert (run.state, job.resource) == (RunState.SUCCEEDED, expected)
        assert job.sizing.why[-1].endswith("done first")
        assert one.node.control.ledger.store.list(Measurement)[-1].noun.resource == expected


def test_a_pinned_one_goes_where_it_is_told() -> None:
    one = grid(100.0, 10.0)
    run = finish(one, one.submit(pipeline(at="local")))
    assert job_of(one, run, "j").resource == "here"
    with pytest.raises(PipelineError, match="'elsewhere'"):
        one.submit(pipeline(at="elsewhere"))
    with pytest.raises(PipelineError, match="'nowhere'"):
        one.submit(pipeline("here", "nowhere"))


def test_one_that_waits_at_a_site_that_is_cut_off_goes_elsewhere_and_one_that_runs_stays() -> None:
    one = grid(100.0, 10.0)
    control = one.node.control
    del control.sites["farm"]  # not opened: nothing comes up there
    run = one.submit(pipeline())
    assert one.run_until(lambda: waiting(one, run.id) is not None, at_most_steps=100)
    job = waiting(one, run.id)
    assert job is not None
    assert job.resource == "there"
    control.away.add("farm")
    run = finish(one, run)
    job = job_of(one, run, "j")
    assert (run.state, job.resource, job.moves) == (RunState.SUCCEEDED, "here", 1)
    assert "farm does not answer" in job.sizing.why[-1]


def waiting(one: Simulation, run_id: str) -> JobRun | None:
    job = one.node.control.ledger.snapshot.job_runs.get(f"{run_id}/j")
    return job if job is not None and job.state is JobState.WAITING else None


def test_a_restart_goes_on_looking() -> None:
    one = grid(100.0, 10.0)
    del one.node.control.sites["farm"]
    run = one.submit(pipeline())
    assert one.run_until(lambda: waiting(one, run.id) is not None, at_most_steps=100)
    one.control_dies()
    one.node.control.away.add("farm")
    run = finish(one, run)
    assert job_of(one, run, "j").resource == "here"


def test_one_whose_resource_was_removed_fails_and_says_so() -> None:
    one = grid(100.0, 10.0)
    first = command("first")
    jobs = (first, replace(pipeline().jobs[0], needs=("first",)))
    run = one.submit(Pipeline(name="p", jobs=jobs))
    with one.node.changing() as transaction:
        transaction.delete(Resource, "here")
    run = finish(one, run)
    assert "there is no resource 'here'" in job_of(one, run, "j").message


def test_what_was_carried_for_an_attempt_teaches_how_quick_the_way_is_also_after_a_restart() -> None:
    one = grid(100.0, 10.0)
    control = one.node.control
    run = one.submit(Pipeline(name="p", jobs=(command("i"), replace(pipeline().jobs[0], needs=("i",)))))
    assert one.run_until(lambda: bool(running(one, f"{run.id}/j")), at_most_steps=100)
    [attempt] = running(one, f"{run.id}/j")
    there = Crossing(carried_bytes=10_000_000, reused_bytes=1, seconds=2.0)
    outcome = Outcome(state=AttemptState.SUCCEEDED, carriage=Carriage(there=there, round_trip_seconds=0.1))
    transaction = control.begin()
    settle_attempt(control, transaction, attempt, outcome)
    control.ledger.commit(transaction)
    one.control_dies()
    control = one.node.control
    control.ledger.load()
    way = control.ledger.snapshot.sites["farm"].way
    assert way is not None
    assert (way.there and way.there.bytes_per_second, way.back) == (5e6, None)
    assert (way.round_trip_seconds, way.staged) == (0.1, ("p/i@1", "p/j@1"))
    assert control.ledger.fetch(Attempt, attempt.id).carriage == outcome.carriage


def running(one: Simulation, job_run_id: str) -> list[Attempt]:
    attempts = one.node.control.ledger.snapshot.attempts.values()
    return [a for a in attempts if a.job_run_id == job_run_id and a.state is AttemptState.RUNNING]
