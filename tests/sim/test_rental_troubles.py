"""Troubles with rented machines are shown with the machine, its cost per hour and the command that ends it,
until they are over."""

import pytest
from tests.kit.rented_site import AWS, RentedGrid, with_terms
from tests.sim.test_rented_machines import is_ready

from gridmill.control.usecases.leases import LeaseUseCases
from gridmill.domain.lease import LeaseState
from gridmill.domain.machine import Machine
from gridmill.domain.run import Run
from gridmill.errors import UnavailableError
from gridmill.testing.simulated_site import Behaviour

MACHINE_TEXT = (
    "Machine m-0001 costs 1.00 USD per hour; `gridmill stop lease lease-1` ends it, and `gridmill reap"
)


def screens(grid: RentedGrid, run_id: str = "p-1") -> dict[str, str]:
    """What `status`, `list leases` and the report show about the first lease."""
    uses, run = LeaseUseCases(grid.node), grid.store.get(Run, run_id).noun
    return {
        "status": " ".join(grid.node.control.problems.lasting.values()),
        "list leases": " ".join(one.problem for one in uses.leases().items),
        "report": " ".join(uses._rented_lines(run)),
    }


def revoke(grid: RentedGrid) -> None:
    """Revoke the credentials of the account."""
    grid.account.credentials_end = grid.clock.monotonic()


def is_shown(grid: RentedGrid, text: str) -> bool:
    """Whether all screens show the text and the machine."""
    return all(text in shown and MACHINE_TEXT in shown for shown in screens(grid).values())


def test_revoked_credentials_are_shown_on_every_screen_until_they_are_renewed():
    grid = RentedGrid(behave=lambda order: Behaviour(seconds=3000.0))
    grid.start()
    grid.until(is_ready(grid))
    revoke(grid)
    grid.until(lambda: is_shown(grid, "refuses the credentials"), seconds=300.0)
    assert (grid.leases()[0].state, grid.alive()) == (LeaseState.READY, 1)
    grid.account.credentials_end = float("inf")
    grid.until(lambda: not any("credentials" in shown for shown in screens(grid).values()), seconds=120.0)
    grid.until(grid.is_over, seconds=6000.0)
    assert (len(grid.leases()), grid.alive()) == (1, 0)


def test_a_machine_in_a_region_that_disappears_is_shown_until_its_end_is_confirmed():
    grid = RentedGrid(behave=lambda order: Behaviour(seconds=3000.0))
    grid.start()
    grid.until(is_ready(grid))
    provider = grid.world.provider
    machines, terminate = provider.machines, provider.terminate
    asked: list[str] = []

    def refuse(machine: Machine) -> None:
        asked.append(machine.id)
        raise UnavailableError(f"the region {machine.region} does not exist any more")

    provider.machines = lambda owner="": tuple(one for one in machines(owner) if one.region != "north-1")
    provider.terminate, offers = refuse, provider.offers
    provider.offers = lambda *wanted: tuple(one for one in offers(*wanted) if one.region != "north-1")
    grid.node.control.rentals.at(AWS, 0.0).market_at = None
    grid.until(lambda: is_shown(grid, "the region north-1 does not exist any more"))
    began = grid.clock.monotonic()
    grid.until(lambda: grid.clock.monotonic() > began + 300.0)
    lease = grid.leases()[0]
    assert (lease.is_open, lease.tries[0].ended) == (True, None)
    regions = [one.request.region for one in grid.account.machines_alive()]
    assert regions.count("north-1") == 1  # the job runs again in another region
    assert len(asked) > 5  # the request is repeated
    provider.machines, provider.terminate = machines, terminate
    grid.until(lambda: not grid.leases()[0].is_open, seconds=1200.0)
    assert not any("m-0001" in shown for shown in screens(grid).values())


@pytest.mark.parametrize("budget", ["0", "0.0"])
def test_a_budget_of_nothing_rents_nothing_and_is_shown(budget: str):
    grid = with_terms(budget=budget)
    grid.start()
    shown = grid.node.control.problems.lasting
    grid.until(lambda: "budget of resource burst" in shown)
    began = grid.clock.monotonic()
    grid.until(lambda: grid.clock.monotonic() > began + 60.0)
    assert shown["budget of resource burst"].startswith(
        "the budget of resource burst for 2023-11, 0.0000 USD"
    )
    assert "launch" not in {one.method for one in grid.account.calls}
    assert grid.account.cost_micros() == 0


def test_machines_that_a_restored_store_does_not_know_are_shown_and_left():
    grid = RentedGrid(behave=lambda order: Behaviour(seconds=3000.0))
    grid.start()
    grid.until(is_ready(grid))
    restored = RentedGrid(clock=grid.clock, account=grid.account)  # with the store of the time before
    problems = restored.node.control.problems.lasting
    restored.until(lambda: "1.00 USD" in problems.get(f"rental at {AWS} m-0001", ""), seconds=600.0)
    shown = problems[f"rental at {AWS} m-0001"]
    assert "machine m-0001 (gpu.one in north-1a) at aws" in shown
    assert "costs 1.00 USD per hour. `gridmill reap" in shown  # although no lease needs the prices
    assert grid.alive() == 1
