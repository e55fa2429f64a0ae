"""Jobs that may go to several resources, on a grid with a second site in another place."""

from collections.abc import Sequence
from dataclasses import replace
from threading import Barrier

import pytest
from tests.sim.test_parts import swarm as swarm_of
from tests.sim.test_races import command, finish, job_of, service, simulation

from gridmill.control.state import BRING_UPS
from gridmill.control.steps.end_attempt import settle_attempt
from gridmill.control.ticks import look_elsewhere
from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.artifact import Artifact
from gridmill.domain.deployment import Deployment
from gridmill.domain.farm_protocol import FarmStatus
from gridmill.domain.job import Job, JobKind, JobSize
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import AttemptOutcome
from gridmill.domain.resource import MeasuredUse, Measurement, Resource
from gridmill.domain.route import AttemptTransfers, Route, Transfer
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.sink import SinkSpec, Source
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.domain.states import AttemptState, DeploymentState, JobState, RunState
from gridmill.errors import ConflictError, PipelineError
from gridmill.testing.simulated_site import Behaviour
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
        use=MeasuredUse(wall_seconds=seconds),
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
        assert job.sizing.why[-1].endswith("the earliest expected end")
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
    control.site_states.unreachable.add("farm")
    run = finish(one, run)
    job = job_of(one, run, "j")
    assert (run.state, job.resource, job.moves) == (RunState.SUCCEEDED, "here", 1)
    assert "farm does not answer" in job.sizing.why[-1]


def test_what_was_to_come_up_for_one_that_went_elsewhere_is_called_off() -> None:
    """It may stand in its site's line for hours, and would hold a place for its keep, for nobody."""
    one = grid(100.0, 10.0)
    control = one.node.control
    one.world.dial_seconds = 1e6
    run = one.submit(pipeline())
    assert one.run_until(lambda: bool(control.ledger.snapshot.deployments), at_most_steps=100)
    [coming] = control.ledger.snapshot.deployments.values()
    assert coming.resource == "there"
    one.world.dial_seconds = 0.1
    control.site_states.unreachable.add("farm")
    assert job_of(one, finish(one, run), "j").resource == "here"
    gone = one.store.get(Deployment, coming.id).noun
    assert gone.state in (DeploymentState.RELEASING, DeploymentState.GONE)
    assert gone.message == "no job waits for it"


def waiting(one: Simulation, run_id: str) -> JobRun | None:
    job = one.node.control.ledger.snapshot.job_runs.get(f"{run_id}/j")
    return job if job is not None and job.state is JobState.WAITING else None


def test_a_restart_goes_on_looking() -> None:
    one = grid(100.0, 10.0)
    del one.node.control.sites["farm"]
    run = one.submit(pipeline())
    assert one.run_until(lambda: waiting(one, run.id) is not None, at_most_steps=100)
    one.control_dies()
    one.node.control.site_states.unreachable.add("farm")
    run = finish(one, run)
    assert job_of(one, run, "j").resource == "here"


def test_a_resource_that_a_job_may_go_to_is_not_removed() -> None:
    one = grid(100.0, 10.0)
    run = one.submit(Pipeline(name="p", jobs=(command("i"), replace(pipeline().jobs[0], needs=("i",)))))
    for name in ("here", "there"):
        with pytest.raises(ConflictError, match=f"{name!r} is used by run {run.id}"):
            service(one).remove_resource(name)
    assert finish(one, run).state is RunState.SUCCEEDED
    service(one).remove_resource("there")


def test_what_was_carried_for_an_attempt_teaches_how_quick_the_way_is_also_after_a_restart() -> None:
    one = grid(100.0, 10.0)
    control = one.node.control
    run = one.submit(Pipeline(name="p", jobs=(command("i"), replace(pipeline().jobs[0], needs=("i",)))))
    assert one.run_until(lambda: bool(running(one, f"{run.id}/j")), at_most_steps=100)
    [attempt] = running(one, f"{run.id}/j")
    there = Transfer(transferred_bytes=10_000_000, reused_bytes=1, seconds=2.0)
    outcome = AttemptOutcome(
        state=AttemptState.SUCCEEDED, transfers=AttemptTransfers(upload=there, round_trip_seconds=0.1)
    )
    transaction = control.begin()
    settle_attempt(control.endings, transaction, attempt, outcome)
    control.ledger.commit(transaction)
    one.control_dies()
    control = one.node.control
    control.ledger.load()
    way = control.ledger.snapshot.sites["farm"].route
    assert way is not None
    assert (way.upload and way.upload.bytes_per_second, way.download) == (5e6, None)
    assert (way.round_trip_seconds, way.staged) == (0.1, ("p/i@1", "p/j@1"))
    assert control.ledger.fetch(Attempt, attempt.id).transfers == outcome.transfers


def running(one: Simulation, job_run_id: str) -> list[Attempt]:
    attempts = one.node.control.ledger.snapshot.attempts.values()
    return [a for a in attempts if a.job_run_id == job_run_id and a.state is AttemptState.RUNNING]


def stands_there(one: Simulation) -> Run:
    """A run whose job waits at a site where nothing comes up."""
    del one.node.control.sites["farm"]
    run = one.submit(pipeline())
    assert one.run_until(lambda: waiting(one, run.id) is not None, at_most_steps=100)
    return run


def test_one_that_cannot_run_where_it_stands_any_more_goes_where_it_can() -> None:
    one = grid(100.0, 10.0)
    run = stands_there(one)
    transaction = one.node.control.begin()
    small = Node(name="sim", capacity=Amounts(cpus=8, memory_bytes=GIB // 2))
    transaction.put(replace(FARM, nodes=(small,)))
    one.node.control.ledger.commit(transaction)
    one.node.control.choices.next_at = one.clock.monotonic() + 3600.0  # nobody looks in between
    run = finish(one, run)
    job = job_of(one, run, "j")
    assert (run.state, job.resource, job.moves) == (RunState.SUCCEEDED, "here", 1)


def test_one_whose_resource_does_not_come_up_goes_where_another_does() -> None:
    one = grid(100.0, 10.0)
    one.node.control.bring_ups.failed["there"] = BRING_UPS
    one.node.control.choices.next_at = one.clock.monotonic() + 3600.0
    run = finish(one, one.submit(pipeline()))
    job = job_of(one, run, "j")
    assert (run.state, job.resource, job.moves) == (RunState.SUCCEEDED, "here", 1)


def test_one_that_nothing_can_run_fails() -> None:
    one = grid(100.0, 10.0)
    run = finish(one, one.submit(pipeline(memory_bytes=64 * GIB)))
    job = job_of(one, run, "j")
    assert (job.state, job.moves) == (JobState.FAILED, 0)
    assert "64 GiB" in job.message


def test_one_that_is_refused_does_not_go_where_it_would_be_refused_as_well() -> None:
    one = grid(1000.0, 900.0)
    run = stands_there(one)
    transaction = one.node.control.begin()
    local = one.node.control.ledger.snapshot.sites["local"]
    for site in (local, FARM):
        transaction.put(replace(site, nodes=(replace(FARM.nodes[0], capacity=Amounts(cpus=8)),)))
    transaction.put(*(replace(measured(HERE, 1.0), attempt_id=f"m{n}") for n in range(5)))
    one.node.control.ledger.commit(transaction)
    one.node.control.choices.next_at = one.clock.monotonic() + 3600.0
    run = finish(one, run)
    job = job_of(one, run, "j")
    assert (job.state, job.resource, job.moves) == (JobState.FAILED, "there", 0)


def test_a_defect_at_one_job_is_told_once_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    one = grid(100.0, 10.0)
    told: list[str] = []
    one.node.control.problems.warn = told.append
    run = stands_there(one)

    def broken(*args: object) -> None:
        raise KeyError("broken")

    monkeypatch.setattr("gridmill.control.steps.resource_choice.made_before", broken)
    for _ in range(3):
        one.node.control.choices.next_at = 0.0
        one.node.tick()
    assert [f"an internal error of Gridmill at {run.id}/j" in line for line in told] == [True]
    assert waiting(one, run.id) is not None


def test_a_moved_one_is_done_in_parts_where_there_are_more_nodes() -> None:
    """One site with one node, where nothing comes up, and one with three."""
    made = simulation(lambda order: Behaviour(seconds=1.0))
    control = made.node.control
    control.ledger.load()
    nodes = tuple(replace(FARM.nodes[0], name=name) for name in ("a", "b", "c"))
    near = Resource(name="near", type=JobKind.PREDICTION, site="near")
    transaction = control.begin()
    transaction.put(replace(FARM, nodes=nodes), replace(FARM, name="near"), near)
    transaction.put(replace(near, name="far", site="farm"))
    control.ledger.commit(transaction)
    control.site_states.unreachable.add("farm")
    swarm = replace(swarm_of(24).job("swarm"), resources=("near", "far"))
    run = made.submit(Pipeline(name="p", jobs=(command("rows"), command("model"), swarm)))

    def looked_at() -> JobRun:
        return control.ledger.snapshot.job_runs[f"{run.id}/swarm"]

    assert made.run_until(lambda: looked_at().state is JobState.WAITING, at_most_steps=100)
    assert looked_at().resource == "near"
    control.site_states.unreachable.symmetric_difference_update(("farm", "near"))
    assert made.run_until(lambda: looked_at().resource == "far", at_most_steps=100)
    assert (looked_at().state, looked_at().parts) == (JobState.RUNNING, 3)


def test_jobs_that_are_ready_together_are_spread_and_stay_where_they_are() -> None:
    """Forty of a minute each, two sites that do eight at a time."""
    made = grid(60.0, 60.0)
    control = made.node.control
    transaction = control.begin()
    names = [f"j{n}" for n in range(40)]
    for resource in (HERE, THERE):
        for name in names:
            known = measured(resource, 60.0)
            key = {"attempt_id": f"{resource.name}{name}", "job": f"p/{name}", "subject": f"command/p/{name}"}
            transaction.put(replace(known, **key))
    control.ledger.commit(transaction)
    jobs = tuple(command(name, resources=("here", "there"), memory_bytes=4 * GIB) for name in names)
    run = finish(made, made.submit(Pipeline(name="p", jobs=jobs)))
    ended = [job_of(made, run, name) for name in names]
    assert 16 <= sum(one.resource == "here" for one in ended) <= 24
    assert sum(one.moves for one in ended) <= 8


def test_some_look_in_a_tick_those_behind_the_others_first(monkeypatch: pytest.MonkeyPatch) -> None:
    one = grid(100.0, 10.0)
    control = one.node.control
    del control.sites["farm"]
    jobs = tuple(command(f"j{n}", resources=("here", "there")) for n in range(5))
    run = one.submit(Pipeline(name="p", jobs=jobs))
    assert one.run_until(lambda: len(control.choices.choosing) == len(jobs), at_most_steps=100)
    looked: list[str] = []

    def look(*given: object) -> bool:
        job_run = given[-1]
        assert isinstance(job_run, JobRun)
        looked.append(job_run.job.name)
        return False

    monkeypatch.setattr(look_elsewhere, "move", look)
    monkeypatch.setattr(look_elsewhere, "LOOKS_PER_TICK", 2)
    control.choices.to_recheck, pauses = [], []
    for _ in range(3):
        control.choices.next_at = 0.0
        pauses.append(look_elsewhere.reconsider_sites(control.job_moves))
    assert looked == ["j4", "j3", "j2", "j1", "j0"]
    assert pauses == [look_elsewhere.PAUSE_SECONDS] * 2 + [look_elsewhere.LOOK_AGAIN_SECONDS]
    assert look_elsewhere.reconsider_sites(control.job_moves) > 0.0
    assert len(looked) == len(jobs)  # not yet again
    one.node.control.sites["farm"] = one.world
    finish(one, run)
    control.choices.next_at = 0.0
    look_elsewhere.reconsider_sites(control.job_moves)
    assert look_elsewhere.reconsider_sites(control.job_moves) == float("inf")  # nobody is left


def test_what_a_file_is_refused_for_is_refused_of_all() -> None:
    one = grid(100.0, 10.0)
    for settings, said in (
        ({"resource": "here"}, "has both `resource` and `resources`"),
        ({"resources": ("here", "here")}, "names the resource 'here' twice"),
    ):
        with pytest.raises(PipelineError, match=said) as refused:
            one.submit(Pipeline(name="p", jobs=(replace(pipeline().jobs[0], **settings),)))
        assert refused.value.place == "p: jobs.j.resources"
    with pytest.raises(PipelineError, match="'nowhere'") as refused:
        one.submit(pipeline("here", "nowhere"))
    assert refused.value.place == "p: jobs.j.resources[1]"


def test_a_sink_that_is_assigned_to_a_resource_goes_there_also_where_its_pipeline_runs_at_a_farm() -> None:
    one = grid(100.0, 10.0)
    control = one.node.control
    loader = Resource(name="loader", type=JobKind.SINK, site="farm", jobs=("p/rows",))
    transaction = control.begin()
    transaction.put(loader, Site(name="gpus", kind=SiteKind.CLUSTER, nodes=FARM.nodes))
    control.ledger.commit(transaction)
    rows = Job(name="rows", sink=SinkSpec(source=Source(path="rows.csv")))
    run = one.submit(Pipeline(name="p", jobs=(rows,), at="gpus"))
    assert control.ledger.snapshot.job_runs[f"{run.id}/rows"].resource == "loader"


class Far:
    """The farm's port, as far as a plan asks it; both of two have to be asked before one answers."""

    def __init__(self, both: Barrier) -> None:
        self.asked: list[str] = []
        self._both = both

    def transfer_progress(self, attempt_id: str) -> dict[str, object]:
        return {}

    def farm_status(self) -> FarmStatus:
        return FarmStatus(version="", protocol=1, root="", nodes=())

    def transfer_problems(self) -> dict[str, str]:
        return {}

    def probe(self) -> Route:
        return Route()

    def missing_sizes(self, versions: Sequence[Artifact]) -> dict[str, int]:
        self.asked += [one.id for one in versions]
        self._both.wait(300.0)
        return {}


def test_a_plan_asks_the_farms_to_which_jobs_may_go_at_once_and_of_what_these_read() -> None:
    one = grid(100.0, 10.0)
    control = one.node.control
    made = Pipeline(name="p", jobs=(command("i"), command("k")))
    finish(one, one.submit(made))
    transaction = control.begin()
    transaction.put(replace(FARM, name="second"), replace(THERE, name="second", site="second"))
    control.ledger.commit(transaction)
    both = Barrier(2)
    farms = Far(both), Far(both)
    control.sites |= dict(zip(("farm", "second"), farms, strict=True))
    reads_k = command("home", needs=("k",))
    service(one).plan_run(replace(made, jobs=(*made.jobs, reads_k)))
    assert [far.asked for far in farms] == [[], []]
    reads_i = command("j", needs=("i",), resources=("here", "there", "second"))
    service(one).plan_run(replace(made, jobs=(*made.jobs, reads_k, reads_i)))
    assert [far.asked for far in farms] == [["p/i@1"], ["p/i@1"]]


class Compared(Far):
    """A farm that has all of the newest version, in which a tenth was new."""

    def missing_sizes(self, versions: Sequence[Artifact]) -> dict[str, int]:
        return {one.id: 0 for one in versions}

    def changed_shares(self, pairs: Sequence[tuple[Artifact, Artifact]]) -> dict[str, float]:
        assert [(newer.id, older.id) for newer, older in pairs] == [("p/i@2", "p/i@1")]
        return {newer.id: 0.1 for newer, _ in pairs}


def test_of_an_input_that_is_made_anew_as_much_travels_as_was_new_the_last_time() -> None:
    one = grid(100.0, 10.0)
    made = Pipeline(name="p", jobs=(command("i"),))
    finish(one, one.submit(made))
    finish(one, one.submit(replace(made, jobs=(replace(command("i"), cache=False),))))
    control = one.node.control
    control.sites["farm"] = Compared(Barrier(1))
    transaction = control.begin()
    transaction.put(replace(control.ledger.snapshot.sites["farm"], kind=SiteKind.CLUSTER))
    control.ledger.commit(transaction)
    anew = replace(command("i"), cache=False)
    reads = command("j", needs=("i",), resources=("here", "there"))
    planned = service(one).plan_run(replace(made, jobs=(anew, reads)))
    size = control.catalog.newest_artifact("p/i").output.size_bytes
    (job,) = [job for job in planned.jobs if job.job == "j"]
    (there,) = [one for one in job.alternatives if one.resource == "there"]
    assert there.transfer.upload_bytes == round(size * 0.1)
