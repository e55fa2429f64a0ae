"""The plan of a run names the machine, the time and the cost before anything is rented, and a deadline or a
budget decides which resource a job gets."""

from collections.abc import Mapping

import pytest
from tests.kit.rented_site import AWS, RentedGrid

from gridmill.control.rentable import ASK_AGAIN_SECONDS, OFFERS_SECONDS
from gridmill.control.site_monitor import SiteMonitor
from gridmill.control.steps.job_terms import over_budget, spent_micros
from gridmill.control.usecases.rental_preview import away_text
from gridmill.control.usecases.runs import RunUseCases
from gridmill.domain.command import CommandSpec
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job, JobKind
from gridmill.domain.lease import Lease, lease_cost_micros
from gridmill.domain.machine import Offer, SelfEnd
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.rental_estimate import CostKind, Phase, estimate_lines
from gridmill.domain.resource import Resource
from gridmill.domain.run import JobRun
from gridmill.domain.site import Site, SiteKind, SiteOffers
from gridmill.domain.states import AttemptState, Cause, JobState
from gridmill.domain.views import PlannedJob
from gridmill.errors import PipelineError, UnavailableError
from gridmill.scheduler.rental_preview import chosen_within
from gridmill.stores.memory import MemoryStore
from gridmill.testing.cloud.catalog import CHARGES
from gridmill.testing.simulated_site import Behaviour

TRAIN = Job(name="train", command=CommandSpec(run="true"), resource="burst", cache=False)


def pipeline(**fields: object) -> Pipeline:
    """A pipeline with one job on a rented machine."""
    return Pipeline(name="p", jobs=(replace(TRAIN, **fields),))


def planned(grid: RentedGrid, **fields: object) -> PlannedJob:
    """The plan of that job."""
    (one,) = RunUseCases(grid.node).plan_run(pipeline(**fields)).jobs
    return one


def measured(grid: RentedGrid) -> None:
    """Run the job once, so that its duration and the boot of a machine are known."""
    grid.submit(pipeline())
    grid.until(grid.is_over)


def test_the_first_plan_names_the_machine_and_what_is_not_known():
    grid = RentedGrid()
    rental = planned(grid).rentals["burst"]
    assert rental.instance_type == "gpu.one"
    assert "the duration of the job, until it has run once" in rental.unknown
    assert rental.total_micros is None
    assert not grid.leases()


def test_the_plan_says_whether_a_running_job_holds_off_the_dead_man_timer():
    rental = planned(RentedGrid()).rentals["burst"]
    [line] = [line for line in estimate_lines(rental) if line.startswith("while the control node is away")]
    assert "ends itself after 15 m 00 s without contact, also while the job runs, because site" in line
    assert "has no bucket for results" in line


@pytest.mark.parametrize(
    ("settings", "self_end", "kind", "text"),
    [
        ({"export": "s3://b/r"}, SelfEnd.SHUTDOWN, JobKind.COMMAND, "the job continues, at most until"),
        ({"export": "s3://b/r"}, SelfEnd.SHUTDOWN, JobKind.COMMAND, "has run for 24 h 00 m"),
        (
            {"export": "s3://b/r"},
            SelfEnd.SHUTDOWN,
            JobKind.COMMAND,
            "a running job, the machine ends",
        ),
        (
            {"export": "s3://b/r"},
            SelfEnd.OWN_CALL,
            JobKind.SERVICE,
            "because a service does not count as a running job",
        ),
        ({"dead_man": "5m"}, SelfEnd.OWN_CALL, JobKind.COMMAND, "ends itself after 5 m 00 s without contact"),
        ({}, SelfEnd.PROVIDER_TIMER, JobKind.COMMAND, "until the provider ends it after max_hours"),
        ({}, SelfEnd.NONE, JobKind.COMMAND, "until `gridmill reap` or the control node ends it"),
    ],
)
def test_the_sentence_about_a_machine_without_contact(settings, self_end, kind, text):
    site = Site(name="aws", kind=SiteKind.CLOUD, settings=settings)
    resource = Resource(name="burst", type=JobKind.COMMAND, site="aws")
    assert text in away_text(kind, resource, site, self_end)


def test_the_plan_after_one_run_agrees_with_the_bill_of_the_next():
    grid = RentedGrid()
    measured(grid)
    rental = planned(grid).rentals["burst"]
    assert set(rental.seconds) == set(Phase)
    assert 0 < rental.seconds[Phase.BOOT] < 180
    before = sum(item.cost_micros for item in grid.account.bill() if item.kind == "machine")
    grid.submit(pipeline())
    grid.until(grid.is_over)
    after = sum(item.cost_micros for item in grid.account.bill() if item.kind == "machine")
    assert rental.micros[CostKind.MACHINE] == pytest.approx(after - before, rel=0.3)


def test_a_budget_below_the_cost_refuses_the_run_before_a_machine_is_rented():
    grid = RentedGrid()
    measured(grid)
    count = len(grid.leases())
    assert "exceeds the budget of 0.0010 USD" in planned(grid, budget_micros=1000).problem
    with pytest.raises(PipelineError, match=r"p: jobs\.train: the expected cost of .* exceeds the budget"):
        RunUseCases(grid.node).start_run(pipeline(budget_micros=1000))
    assert len(grid.leases()) == count
    assert not planned(grid, budget_micros=50_000_000).problem


def test_a_job_that_no_offer_fits_cannot_run_and_has_the_reason():
    grid = RentedGrid(settings={"max_price": "0.01", "instance_type": "gpu.one"})
    assert "a price above 0.0100 USD per hour" in planned(grid).problem


def test_a_provider_that_does_not_answer_leaves_the_plan_unchecked():
    grid = RentedGrid()

    def fail(*_: object) -> Mapping[str, object]:
        raise UnavailableError("the provider does not answer")

    grid.world.provider.offers = fail
    one = planned(grid)
    assert one.unchecked == "what aws offers: the provider does not answer"
    assert not one.problem


def observed(grid: RentedGrid) -> Site:
    """The site after the site monitor has looked at it once."""
    SiteMonitor(grid.node).survey(grid.node.control.ledger.snapshot.sites[AWS])
    return grid.node.control.ledger.snapshot.sites[AWS]


def test_the_nodes_are_the_machines_that_can_be_rented_within_the_terms_of_the_resources():
    grid = RentedGrid(settings={"max_price": "2"})
    assert {node.name for node in observed(grid).kinds_of_nodes} == {
        "sim.small",
        "sim.large",
        "gpu.one",
        "odd.unpriced",
    }
    changed = replace(grid.node.control.ledger.snapshot.resources["burst"], settings={"max_price": "20"})
    with grid.node.changing() as transaction:
        transaction.put(changed)
    assert "gpu.eight" in {node.name for node in observed(grid).kinds_of_nodes}


def test_a_job_that_no_offer_within_the_terms_fits_fails_without_a_lease():
    grid = RentedGrid(settings={"max_price": "0.5", "gpu_memory": "20GB"})
    observed(grid)
    grid.submit(pipeline())
    grid.until(lambda: not grid.node.control.ledger.snapshot.runs)
    failed = grid.store.get(JobRun, "p-1/train").noun
    assert failed.state is JobState.FAILED
    assert "no machine of aws can be rented within the terms of resource 'burst': the offers have" in (
        failed.message
    )
    assert "a price above 0.5000 USD per hour, too little GPU memory" in failed.message
    assert grid.leases() == []


def test_offers_are_read_once_until_they_are_old_or_a_resource_has_new_terms():
    grid = RentedGrid()
    asked: list[tuple[str, str]] = []
    offers = grid.world.provider.offers

    def counted(region: str = "", instance_type: str = "") -> tuple[Offer, ...]:
        asked.append((region, instance_type))
        return offers(region, instance_type)

    grid.world.provider.offers = counted
    monitor = SiteMonitor(grid.node)
    site = grid.node.control.ledger.snapshot.sites[AWS]
    for _ in range(3):
        monitor.survey(site)
    assert asked == [("", "")]
    grid.clock.advance(OFFERS_SECONDS)
    monitor.survey(site)
    assert asked == [("", "")] * 2

    def fail(region: str, instance_type: str) -> tuple[Offer, ...]:
        asked.append((region, instance_type))
        raise UnavailableError("the provider does not answer")

    grid.world.provider.offers = fail
    grid.clock.advance(OFFERS_SECONDS)
    for _ in range(3):
        monitor.survey(site)
    assert asked == [("", "")] * 3
    grid.clock.advance(ASK_AGAIN_SECONDS)
    monitor.survey(site)
    assert asked == [("", "")] * 4
    assert grid.node.control.ledger.snapshot.sites[AWS].market is not None


def test_the_times_of_the_plan_include_boot_and_release():
    grid = RentedGrid()
    measured(grid)
    made = RunUseCases(grid.node).plan_run(pipeline())
    (one,) = made.jobs
    rental = one.rentals["burst"]
    assert (one.starts, one.ends) == (0.0, pytest.approx(rental.total_seconds))
    assert made.expected_seconds == pytest.approx(rental.total_seconds)
    assert rental.seconds[Phase.BOOT] > 10


def test_a_job_that_follows_on_the_same_machine_waits_for_no_boot():
    grid = RentedGrid()
    measured(grid)
    jobs = (TRAIN, replace(TRAIN, name="again", needs=("train",)))
    grid.submit(Pipeline(name="p", jobs=jobs))
    grid.until(grid.is_over)
    first, second = RunUseCases(grid.node).plan_run(Pipeline(name="p", jobs=jobs)).jobs
    phases = first.rentals["burst"].seconds
    assert second.starts == pytest.approx(first.ends - phases[Phase.RELEASE])
    assert second.ends - second.starts == pytest.approx(first.ends - first.starts - phases[Phase.BOOT], abs=1)


def behave_at(seconds: dict[str, Behaviour]) -> RentedGrid:
    """A grid whose jobs behave as given, by name, and otherwise run for a minute."""
    return RentedGrid(behave=lambda order: seconds.get(order.job.name, Behaviour(seconds=60.0)))


def priced(grid: RentedGrid) -> None:
    """Add a resource with dear machines, and measure the job on both resources."""
    burst = grid.node.control.ledger.snapshot.resources["burst"]
    with grid.node.changing() as transaction:
        transaction.put(
            replace(burst, settings={"instance_type": "gpu.one"}),
            Resource(name="big", type=JobKind.COMMAND, site=AWS, gpus=1, settings={"gpu_memory": "40GB"}),
        )
    observed(grid)
    for resource in ("burst", "big"):
        grid.submit(pipeline(resource=resource))
        grid.until(grid.is_over)


def test_the_choice_by_deadline_is_made_when_the_job_is_ready():
    grid = behave_at({"first": Behaviour(seconds=600.0)})
    priced(grid)
    train = replace(TRAIN, resource=None, resources=("big", "burst"), deadline_seconds=3600.0)
    first = replace(TRAIN, name="first")
    jobs = (first, replace(train, needs=("first",)))
    run = RunUseCases(grid.node).start_run(Pipeline(name="p", jobs=jobs)).run
    grid.until(
        lambda: grid.node.control.ledger.snapshot.job_runs[f"{run.id}/first"].state is JobState.RUNNING
    )
    job_run = grid.node.control.ledger.snapshot.job_runs[f"{run.id}/train"]
    assert job_run.job.resources == ("burst", "big"), "the cheapest at the start of the run is named first"
    # the cheap type is not offered any more when the job is ready
    site = grid.node.control.ledger.snapshot.sites[AWS]
    left = tuple(one for one in site.market.offers if one.instance_type == "gpu.eight")
    with grid.node.changing() as transaction:
        transaction.put(replace(site, market=replace(site.market, offers=left)))
    grid.until(lambda: not grid.node.control.ledger.snapshot.runs)
    done = grid.store.get(JobRun, f"{run.id}/train").noun
    assert done.resource == "big"
    assert "big: the cheapest resource that meets the deadline" in " ".join(done.sizing.why)


def test_a_job_is_not_tried_again_beyond_its_budget_and_the_event_has_the_reason():
    failure = Behaviour(seconds=60.0, outcome=AttemptState.FAILED, cause=Cause.EXIT)
    behaviours: dict[str, Behaviour] = {}
    grid = behave_at(behaviours)
    measured(grid)
    observed(grid)
    behaviours["train"] = failure
    expected = planned(grid).rentals["burst"].total_micros
    run = RunUseCases(grid.node).start_run(pipeline(retries=5, budget_micros=5 * expected // 2)).run
    grid.until(lambda: not grid.node.control.ledger.snapshot.runs)
    failed = grid.store.get(JobRun, f"{run.id}/train").noun
    assert failed.state is JobState.FAILED
    assert 2 <= failed.attempts < 6
    assert "plus the expected cost of the next attempt" in failed.message
    assert "the cost of the earlier attempts (" in failed.message
    told = [one.body for one in grid.store.events(run_id=run.id) if one.type == "state"]
    assert any("exceeds the budget of" in str(body.get("message", "")) for body in told)


def test_the_plan_warns_if_a_checkpoint_takes_longer_than_the_notice_of_a_spot_machine():
    grid = RentedGrid(settings={"spot": "true", "max_price": "1"})
    grid.world.provider.traits = replace(grid.world.provider.traits, spot_notice_seconds=0.0)
    assert "without a notice" in planned(grid, resumable=True).rentals["burst"].warning
    assert planned(grid).rentals["burst"].warning == ""


def test_a_job_with_a_deadline_keeps_the_machine_that_boots_for_it():
    grid = behave_at({})
    priced(grid)
    seconds = planned(grid).rentals["burst"].total_seconds
    train = replace(TRAIN, resource=None, resources=("burst", "big"), deadline_seconds=1.4 * seconds)
    count = len(grid.leases())
    run = RunUseCases(grid.node).start_run(Pipeline(name="p", jobs=(train,))).run
    grid.until(grid.is_over)
    done = grid.store.get(JobRun, f"{run.id}/train").noun
    assert (done.state, done.resource, done.moves) == (JobState.SUCCEEDED, "burst", 0)
    assert len(grid.leases()) == count + 1


def test_a_job_that_misses_its_deadline_everywhere_does_not_move_to_and_fro():
    grid = behave_at({})
    priced(grid)
    train = replace(TRAIN, resource=None, resources=("burst", "big"), deadline_seconds=10.0)
    run = RunUseCases(grid.node).start_run(Pipeline(name="p", jobs=(train,))).run
    grid.until(grid.is_over)
    done = grid.store.get(JobRun, f"{run.id}/train").noun
    assert (done.state, done.moves) == (JobState.SUCCEEDED, 0)


def test_the_earlier_attempts_of_a_job_cost_the_whole_machine_that_was_rented_for_it():
    grid = RentedGrid()
    run = grid.submit(pipeline())
    grid.until(grid.is_over)
    (lease,) = grid.leases()
    job_run = grid.store.get(JobRun, f"{run.id}/train").noun
    spent = spent_micros((lease,), job_run, "USD", grid.node.control.now())
    assert spent == pytest.approx(lease_cost_micros(lease, grid.node.control.now()), abs=3)


def test_a_plan_knows_whether_the_only_resource_of_a_job_meets_the_deadline():
    grid = RentedGrid()
    with grid.node.changing() as transaction:
        transaction.put(Site(name="farm", kind=SiteKind.SIMULATED, nodes=grid.world.nodes()))
        transaction.put(Resource(name="own", type=JobKind.COMMAND, site="farm"))
    sizing = replace(planned(grid, resource="own").sizing, expected_seconds=60.0)
    job = replace(TRAIN, resource="own", deadline_seconds=3600.0)
    one = replace(planned(grid, resource="own"), sizing=sizing)
    assert chosen_within(job, one, {}).why == "the cheapest resource that meets the deadline"


def test_leases_are_read_once_for_many_waiting_jobs_with_deadlines(monkeypatch: pytest.MonkeyPatch):
    grid = behave_at({})
    priced(grid)
    listed, reads = MemoryStore.list, []

    def counted(store: MemoryStore, kind: type, **options: object) -> object:
        reads.extend([kind] if kind is Lease else [])
        return listed(store, kind, **options)

    monkeypatch.setattr(MemoryStore, "list", counted)
    train = replace(TRAIN, resource=None, resources=("burst", "big"), deadline_seconds=36000.0)
    jobs = tuple(replace(train, name=f"train-{number}") for number in range(20))
    grid.submit(Pipeline(name="p", jobs=jobs))
    grid.until(lambda: bool(grid.node.control.ledger.snapshot.attempts))
    assert len(reads) < 10


def test_the_forecast_counts_for_the_next_attempt_until_the_offers_are_read():
    grid = RentedGrid()
    measured(grid)
    run = RunUseCases(grid.node).start_run(pipeline()).run
    ledger, now = grid.node.control.ledger, grid.node.control.now()
    job_run = ledger.snapshot.job_runs[f"{run.id}/train"]
    assert ledger.snapshot.sites[AWS].market is None
    expected = job_run.forecast.micros["USD"]
    for budget, refused in ((expected, False), (expected - 1, True)):
        limited = replace(job_run, job=replace(job_run.job, budget_micros=budget))
        assert bool(over_budget(ledger, limited, now)) is refused


def test_a_budget_is_checked_when_the_offers_are_read_after_the_job_became_ready():
    grid = RentedGrid()
    measured(grid)
    expected = planned(grid).rentals["burst"].total_micros
    run = RunUseCases(grid.node).start_run(pipeline(budget_micros=5 * expected // 2)).run
    grid.world.provider.is_cut = True
    grid.node.tick()
    snapshot = grid.node.control.ledger.snapshot
    assert snapshot.sites[AWS].market is None
    assert snapshot.job_runs[f"{run.id}/train"].state is JobState.WAITING
    dearer = [
        replace(one, price_micros=one.price_micros and 10 * one.price_micros)
        for one in grid.node.control.rentals.at(AWS, 0.0).offers
    ]
    market = SiteOffers(offers=tuple(dearer), asked=(("", ""),), charges=CHARGES)
    with grid.node.changing() as transaction:
        transaction.put(replace(snapshot.sites[AWS], market=market))
    grid.node.tick()
    done = grid.store.get(JobRun, f"{run.id}/train").noun
    assert (done.state, done.attempts) == (JobState.FAILED, 0)
    assert "Increase `budget`" in done.message
