"""The money of rented machines: forecasts against actual costs, and budgets that stop new rentals."""

from tests.kit.rented_site import AWS, RentedGrid

from gridmill.control.site_monitor import SiteMonitor
from gridmill.control.steps.end_attempt import settle_attempt
from gridmill.control.usecases.leases import LeaseUseCases
from gridmill.control.usecases.pipelines import PipelineUseCases
from gridmill.control.usecases.projects import ProjectUseCases
from gridmill.control.usecases.runs import RunUseCases
from gridmill.domain.charges import CostKind
from gridmill.domain.command import CommandSpec
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job, JobKind
from gridmill.domain.lease_cost import CostBy
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import AttemptOutcome, Event
from gridmill.domain.project import Project
from gridmill.domain.resource import Resource
from gridmill.domain.route import AttemptTransfers, Transfer
from gridmill.domain.run import JobRun, Run
from gridmill.domain.run_costs import run_costs
from gridmill.domain.schedule import ScheduleSpec
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.states import AttemptState, JobState
from gridmill.errors import UnavailableError
from gridmill.testing.cloud.catalog import CHARGES
from gridmill.testing.simulated_site import Behaviour

TRAIN = Job(name="train", command=CommandSpec(run="true"), resource="burst", cache=False)
PIPELINE = Pipeline(name="p", jobs=(TRAIN,))


def start(grid: RentedGrid, pipeline: Pipeline = PIPELINE) -> Run:
    """Start a run as a client does."""
    return RunUseCases(grid.node).start_run(pipeline).run


def finished(grid: RentedGrid, pipeline: Pipeline = PIPELINE) -> Run:
    """Run a pipeline to its end."""
    run = start(grid, pipeline)
    grid.until(grid.is_over)
    return run


def test_the_forecast_is_stored_when_the_run_starts_and_shown_against_the_cost():
    grid = RentedGrid()
    first = finished(grid)
    assert first.forecast is not None
    assert first.forecast.unknown[0] == "train: the duration of the job, until it has run once"
    second = finished(grid)
    uses = LeaseUseCases(grid.node)
    (row,) = uses.costs(by=CostBy.RUN, run=second.id)
    assert second.forecast is not None
    assert row.forecast_micros == second.forecast.micros["USD"] > 0
    # a simulated provider bills what was forecast: the boot, the job, the disk and the address
    assert abs(row.micros + row.overhead_micros - row.forecast_micros) < 0.3 * row.forecast_micros
    (job,) = uses.costs(by=CostBy.JOB, run=second.id, job="train")
    assert job.forecast_micros == row.forecast_micros
    (line,) = run_costs(second, [row])
    assert "expected at the start: 0.0" in line
    assert grid.store.get(JobRun, f"{second.id}/train").noun.forecast is not None


def test_a_run_starts_although_the_provider_does_not_answer():
    grid = RentedGrid()

    def fail(region: str = "", instance_type: str = "") -> tuple[object, ...]:
        raise UnavailableError("no answer")

    grid.world.provider.offers = fail
    run = start(grid)
    assert run.forecast is not None
    assert "no answer" in run.forecast.unknown[0]


def test_a_run_without_rented_machines_has_no_forecast():
    grid = RentedGrid()
    with grid.node.changing() as transaction:
        transaction.put(Site(name="local", kind=SiteKind.LOCAL, nodes=grid.world.nodes()))
    local = replace(TRAIN, resource=None)
    assert start(grid, Pipeline(name="q", jobs=(local,))).forecast is None


def use_budget(grid: RentedGrid, amount: int) -> None:
    """Limit the cost of the project `vision`."""
    ProjectUseCases(grid.node).configure_project(Project(name="vision", budget_micros=amount))


def test_a_used_budget_of_a_project_stops_its_rentals_until_it_is_raised():
    grid = RentedGrid()
    use_budget(grid, 10_000)
    own = replace(PIPELINE, project="vision")
    finished(grid, own)
    assert len(grid.leases()) == 1
    run = start(grid, own)

    def told() -> list[Event]:
        return [one for one in grid.store.events(run_id=run.id) if one.body.get("what") == "budget"]

    grid.until(lambda: bool(told()))
    (event,) = told()
    assert event.body["message"].startswith(
        "no further machine is rented: the budget of project vision for 2023-11, 0.0100 USD, is used up"
    )
    view = RunUseCases(grid.node).job(run.id, "train")
    assert (view.job.state, len(grid.leases())) == (JobState.WAITING, 1)
    assert "the budget of project vision" in view.why
    (listed,) = [one for one in ProjectUseCases(grid.node).projects().items if one.name == "vision"]
    assert listed.month_micros > 10_000
    assert any("budget of project vision" in one for one in LeaseUseCases(grid.node)._rented_lines(run))
    # its jobs may use machines that are rented for other projects
    start(grid, Pipeline(name="q", jobs=(TRAIN,)))
    grid.until(grid.is_over)
    assert [one.project for one in grid.leases()] == ["vision", "default"]
    use_budget(grid, 10_000_000)
    finished(grid, own)
    assert [one.project for one in grid.leases()] == ["vision", "default", "vision"]


def test_a_used_budget_ends_no_machine():
    grid = RentedGrid(behave=lambda order: Behaviour(seconds=3000.0))
    use_budget(grid, 100_000)
    finished(grid, replace(PIPELINE, project="vision"))
    (lease,) = grid.leases()
    assert lease.tries[0].ended - lease.tries[0].confirmed > 3000


def sent(size_bytes: int) -> AttemptOutcome:
    """The success of an attempt whose result was transferred home."""
    transfers = AttemptTransfers(download=Transfer(transferred_bytes=size_bytes))
    return AttemptOutcome(state=AttemptState.SUCCEEDED, transfers=transfers)


def test_the_transferred_bytes_of_an_attempt_are_part_of_the_cost():
    grid = RentedGrid()
    run = start(grid)
    control = grid.node.control
    grid.until(lambda: bool(control.ledger.snapshot.attempts))
    with grid.node.changing() as transaction:
        (attempt,) = control.ledger.snapshot.attempts.values()
        settle_attempt(control.starting.endings, transaction, attempt, sent(2 * 10**9))
    grid.until(grid.is_over)
    (row,) = LeaseUseCases(grid.node).costs(by=CostBy.JOB, run=run.id)
    assert row.kinds[CostKind.EGRESS] == 2 * CHARGES.egress_micros


def test_the_bytes_of_an_attempt_that_ends_at_a_restart_are_part_of_the_cost():
    grid = RentedGrid()
    run = start(grid)
    grid.until(lambda: any(one.uses for one in grid.leases()))
    grid.control_dies()
    control = grid.node.control
    with grid.node.changing() as transaction:
        (attempt,) = control.ledger.snapshot.attempts.values()
        settle_attempt(control.starting.endings, transaction, attempt, sent(2 * 10**9))
    grid.until(grid.is_over)
    (row,) = LeaseUseCases(grid.node).costs(by=CostBy.JOB, run=run.id)
    assert row.kinds[CostKind.EGRESS] == 2 * CHARGES.egress_micros


def test_each_machine_of_a_gang_pays_for_its_own_transfers():
    grid = RentedGrid(workers=2)
    gang = replace(TRAIN, command=CommandSpec(run="true", workers=2))
    run = start(grid, Pipeline(name="g", jobs=(gang,)))
    control = grid.node.control
    grid.until(lambda: len(control.ledger.snapshot.attempts) == 2)
    for size_bytes, attempt in enumerate(tuple(control.ledger.snapshot.attempts.values()), 1):
        with grid.node.changing() as transaction:
            settle_attempt(control.starting.endings, transaction, attempt, sent(size_bytes * 10**9))
    grid.until(grid.is_over)
    sizes = [sum(use.egress_bytes for use in lease.uses) for lease in grid.leases()]
    assert sorted(sizes) == [1 * 10**9, 2 * 10**9]
    (row,) = LeaseUseCases(grid.node).costs(by=CostBy.RUN, run=run.id)
    assert row.kinds[CostKind.EGRESS] == 3 * CHARGES.egress_micros


def with_resources(grid: RentedGrid, *resources: Resource) -> None:
    """Limit the budget of the resource `burst` to 0, and add resources."""
    burst = grid.node.control.ledger.snapshot.resources["burst"]
    with grid.node.changing() as transaction:
        transaction.put(replace(burst, settings={"budget": "0"}), *resources)


def test_a_resource_with_a_used_budget_takes_no_machines_from_other_resources():
    grid = RentedGrid(settings={"max_machines": "1"})
    with_resources(grid, Resource(name="other", type=JobKind.COMMAND, site=AWS, gpus=1, workers=1))
    halted = start(grid)
    for _ in range(5):
        grid.advance()
    assert "the budget of resource burst" in RunUseCases(grid.node).job(halted.id, "train").why
    run = start(grid, Pipeline(name="q", jobs=(replace(TRAIN, resource="other"),)))
    grid.until(lambda: run.id not in grid.node.control.ledger.snapshot.runs)
    assert [one.resource for one in grid.leases()] == ["other"]


def test_a_deployment_that_starts_without_a_machine_ends_if_a_budget_is_used():
    grid = RentedGrid()
    grid.world.provider.is_cut = True
    start(grid)
    grid.until(lambda: bool(grid.node.control.ledger.snapshot.deployments))
    with_resources(grid)
    grid.until(lambda: not grid.node.control.ledger.snapshot.deployments)
    assert not grid.leases()


def test_a_job_uses_another_of_its_resources_if_a_budget_is_used():
    grid = RentedGrid()
    with_resources(grid, Resource(name="other", type=JobKind.COMMAND, site=AWS, gpus=1, workers=1))
    grid.until(lambda: bool(grid.node.control.rentals.used_budgets))
    several = replace(TRAIN, resource=None, resources=("burst", "other"))
    run = finished(grid, Pipeline(name="q", jobs=(several,)))
    done = grid.store.get(JobRun, f"{run.id}/train").noun
    assert (done.state, done.resource) == (JobState.SUCCEEDED, "other")
    assert "burst rents no machine, because a budget is used up" in " ".join(done.sizing.why)


def test_what_is_unknown_about_other_sites_is_no_part_of_the_forecast():
    grid = RentedGrid()
    with grid.node.changing() as transaction:
        transaction.put(Site(name="ray", kind=SiteKind.RAY))
        transaction.put(Resource(name="own", type=JobKind.COMMAND, site="ray"))
    own = replace(TRAIN, resource="own", deadline_seconds=3600.0)
    pipeline = Pipeline(name="q", jobs=(own,))
    (planned,) = RunUseCases(grid.node).plan_run(pipeline).jobs
    assert "no node of the site was seen yet" in planned.unchecked
    assert start(grid, pipeline).forecast is None


def test_an_event_about_a_used_budget_is_not_repeated_after_a_restart():
    grid = RentedGrid()
    use_budget(grid, 0)
    run = start(grid, replace(PIPELINE, project="vision"))

    def events() -> list[Event]:
        return [one for one in grid.store.events(run_id=run.id) if one.body.get("what") == "budget"]

    grid.until(lambda: bool(events()))
    grid.control_dies()
    grid.until(lambda: bool(grid.node.control.rentals.used_budgets))
    for _ in range(5):
        grid.advance()
    assert len(events()) == 1


def test_the_open_leases_of_a_site_that_does_not_answer_after_a_restart_count_for_a_budget():
    grid = RentedGrid(behave=lambda order: Behaviour(seconds=3000.0))
    use_budget(grid, 100_000)
    start(grid, replace(PIPELINE, project="vision"))
    grid.until(lambda: grid.alive() == 1)
    grid.clock.advance(3600.0)
    grid.world.provider.is_cut = True
    grid.control_dies()
    grid.advance()
    used = grid.node.control.rentals.used_budgets
    assert "may be used up: which machines of aws have ended is not known" in used["project", "vision"]


def test_a_budget_names_the_costs_that_it_does_not_include():
    grid = RentedGrid()
    grid.world.provider.traits = replace(grid.world.provider.traits, charges=None)
    use_budget(grid, 10_000_000)
    finished(grid, replace(PIPELINE, project="vision"))
    grid.advance()
    told = dict(grid.node.control.problems.lasting)
    assert told["uncounted costs of project vision"].startswith(
        "the budget of project vision for 2023-11 does not include the disks, addresses and data of some"
        " machines, because their prices are unknown"
    )


def test_the_run_of_a_schedule_has_a_forecast_from_the_last_offers():
    grid = RentedGrid()
    finished(grid)
    SiteMonitor(grid.node).survey(grid.node.control.ledger.snapshot.sites[AWS])
    by_hand = finished(grid)
    hourly = replace(PIPELINE, schedule=ScheduleSpec(every_seconds=3600.0))
    PipelineUseCases(grid.node).apply(hourly)

    def scheduled() -> list[Run]:
        return [one.noun for one in grid.store.list(Run) if one.noun.due is not None]

    grid.until(lambda: bool(scheduled()), seconds=2 * 3600.0)
    (run,) = scheduled()
    assert run.forecast is not None
    expected, planned = run.forecast.micros["USD"], by_hand.forecast.micros["USD"]
    assert not run.forecast.unknown
    assert abs(expected - planned) < 0.1 * planned, "the boot of the second machine was measured meanwhile"
    assert grid.store.get(JobRun, f"{run.id}/train").noun.forecast is not None
