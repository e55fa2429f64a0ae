"""The plan of a run names the machine, the time and the cost before anything is rented, and a deadline or a
budget decides which resource a job gets."""

from collections.abc import Mapping

import pytest
from tests.kit.rented_site import RentedGrid

from gridmill.control.usecases.runs import RunUseCases
from gridmill.domain.command import CommandSpec
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.rental_estimate import CostKind, Phase
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
