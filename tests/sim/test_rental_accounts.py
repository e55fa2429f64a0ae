"""The machines of a lease are never sought in another account than their own."""

import pytest
from tests.kit.rented_site import AWS, RentedGrid, RentedSite
from tests.sim.test_rented_machines import is_ready

from gridmill.control.usecases.sites import SiteUseCases
from gridmill.domain.frozen import replace
from gridmill.domain.lease import LeaseState
from gridmill.domain.site import Site
from gridmill.errors import ConflictError
from gridmill.testing.cloud.account import SimulatedAccount
from gridmill.testing.cloud.provider import SimulatedProvider
from gridmill.testing.simulated_site import Behaviour


def _other(grid: RentedGrid) -> SimulatedProvider:
    return SimulatedProvider(SimulatedAccount(grid.clock, name="second"))


def _pass(grid: RentedGrid, seconds: float) -> None:
    until = grid.clock.monotonic() + seconds
    while grid.clock.monotonic() < until:
        grid.advance()


def _shown(grid: RentedGrid) -> str:
    return " ".join(grid.node.control.problems.lasting.values())


def test_a_ready_machine_goes_on_while_the_credentials_are_of_another_account():
    grid = RentedGrid(behave=lambda order: Behaviour(seconds=6000.0))
    grid.start()
    grid.until(is_ready(grid))
    assert grid.leases()[0].account == "simulated"
    grid.world.provider = _other(grid)
    _pass(grid, 900.0)
    assert (grid.leases()[0].state, grid.alive()) == (LeaseState.READY, 1)
    assert "account simulated" in _shown(grid)
    assert "account second" in _shown(grid)
    grid.world.provider = SimulatedProvider(grid.account)
    grid.until(grid.is_over, seconds=9000.0)
    assert grid.alive() == 0
    assert len(grid.leases()) == 1


def test_a_lease_is_not_closed_while_the_credentials_are_of_another_account():
    grid = RentedGrid()
    grid.start()
    grid.until(is_ready(grid))
    second = grid.world.provider = _other(grid)
    grid.until(lambda: grid.leases()[0].state is LeaseState.RELEASING)
    _pass(grid, 900.0)
    (lease,) = grid.leases()
    assert (lease.state, grid.alive()) == (LeaseState.RELEASING, 1)
    assert lease.tries[0].end_accepted is None
    assert "terminate" not in {one.method for one in second.account.calls}
    grid.world.provider = SimulatedProvider(grid.account)
    grid.until(grid.is_over)
    assert (grid.alive(), grid.account.resources_alive()) == (0, ())
    assert not _shown(grid)


def test_a_request_is_not_repeated_in_another_account():
    grid = RentedGrid()
    grid.account.give_faults("launch", "after")
    grid.start()
    grid.until(lambda: grid.alive() == 1)
    second = grid.world.provider = _other(grid)
    _pass(grid, 900.0)
    assert "launch" not in {one.method for one in second.account.calls}
    assert len(grid.leases()[0].tries) == 1
    grid.world.provider = SimulatedProvider(grid.account)
    grid.until(grid.is_over)
    assert grid.alive() == 0


def _changed_site(grid: RentedGrid, provider: SimulatedProvider, **settings: str) -> Site:
    """Change the settings of the site of the leases."""
    control = grid.node.control
    site = replace(control.ledger.snapshot.sites[AWS], settings=settings)
    control.open_site = lambda _: RentedSite(grid.clock, grid.behave, provider)
    return SiteUseCases(grid.node).add_site(site, replace=True)


def test_the_account_and_the_regions_of_open_leases_stay():
    grid = RentedGrid(behave=lambda order: Behaviour(seconds=6000.0))
    grid.start()
    grid.until(is_ready(grid))
    own = SimulatedProvider(grid.account)
    with pytest.raises(ConflictError, match=r"account simulated.* account second"):
        _changed_site(grid, _other(grid), profile="second")
    region = grid.leases()[0].tries[0].region
    with pytest.raises(ConflictError, match=f"region {region}"):
        _changed_site(grid, own, regions="south-")
    assert grid.node.control.ledger.snapshot.sites[AWS].settings == {}
    assert _changed_site(grid, own, regions=f"south-, {region[:3]}").settings["regions"]
