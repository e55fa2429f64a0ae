"""The plan of a run names the machine, the time and the cost before anything is rented, and a deadline or a
budget decides which resource a job gets."""

from collections.abc import Mapping

import pytest
from tests.kit.rented_site import AWS, RentedGrid

from gridmill.control.rentable import OFFERS_SECONDS
from gridmill.control.site_monitor import SiteMonitor
from gridmill.control.usecases.runs import RunUseCases
from gridmill.domain.command import CommandSpec
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job
from gridmill.domain.machine import Offer
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.rental_estimate import CostKind, Phase
from gridmill.domain.run import JobRun
from gridmill.domain.site import Site
from gridmill.domain.states import JobState
from gridmill.domain.views import PlannedJob
from gridmill.errors import PipelineError, UnavailableError

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

    def fail(*_: object) -> tuple[Offer, ...]:
        raise UnavailableError("the provider does not answer")

    grid.world.provider.offers = fail
    grid.clock.advance(OFFERS_SECONDS)
    monitor.survey(site)
    assert grid.node.control.ledger.snapshot.sites[AWS].market is not None
