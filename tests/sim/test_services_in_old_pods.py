"""Services on a simulated grid whose control node was upgraded while they ran in older pods."""

import pytest
from test_races import service as cases_of
from test_services import cases, grid, is_running, running_execution, started, until
from test_settings_of_services import order_now
from test_versions import alias

from gridmill.control.usecases.service import Service as Cases
from gridmill.domain.pod_protocol import PROTOCOL, SERVICES_PROTOCOL
from gridmill.domain.service import ServiceState
from gridmill.errors import ConflictError
from gridmill.testing import simulated_site
from gridmill.testing.simulation import Simulation

__all__ = ["cases", "grid"]


@pytest.fixture
def upgraded(grid: Simulation, cases: Cases, monkeypatch: pytest.MonkeyPatch) -> Cases:
    """A control node that starts after an upgrade, while the service runs in an older pod."""
    cases.set_alias(alias("champion", 1))
    started(grid, cases, "w/m@champion")
    monkeypatch.setattr(simulated_site, "PROTOCOL", SERVICES_PROTOCOL - 1)
    grid.world.cut_link(running_execution(grid).pod_id, 1.0)
    grid.control_dies()
    after = cases_of(grid)
    until(grid, after, lambda view: "older Gridmill" in view.message)
    return after


def test_a_service_in_an_older_pod_runs_on_and_its_message_shows_how_it_gets_a_new_pod(
    grid: Simulation, upgraded: Cases
) -> None:
    view = upgraded.service("rain")
    assert (view.state, view.service.version) == (ServiceState.RUNNING, "w/m@1")
    (deployment,) = upgraded.deployments().items
    assert f"gridmill remove deployment {deployment.id};" in view.message


def test_an_older_pod_gets_no_order_that_it_would_understand_in_part(
    grid: Simulation, upgraded: Cases
) -> None:
    before = order_now(grid)
    for change in (
        lambda: upgraded.update_service("rain", canary="w/m@2"),
        lambda: upgraded.update_service("rain", model="w/m@2"),
        lambda: upgraded.add_service_key("rain", "shop"),
    ):
        with pytest.raises(ConflictError, match="of an older Gridmill, so it cannot be changed"):
            change()
    upgraded.set_alias(alias("champion", 2))
    view = until(grid, upgraded, lambda view: view.service.refusal != "")
    assert view.service.version == "w/m@1"
    assert view.state is ServiceState.RUNNING
    assert order_now(grid) == before


def test_a_service_starts_in_a_new_pod_after_the_older_pod_was_released(
    grid: Simulation, upgraded: Cases, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = upgraded.service("rain").service.port
    upgraded.stop_service("rain")
    until(grid, upgraded, lambda view: view.state is ServiceState.STOPPED)
    upgraded.start_service("rain")
    (deployment,) = upgraded.deployments().items
    until(grid, upgraded, lambda view: f"gridmill remove deployment {deployment.id}" in view.message)
    monkeypatch.setattr(simulated_site, "PROTOCOL", PROTOCOL)
    upgraded.release(deployment.id)
    view = until(grid, upgraded, is_running)
    assert (view.service.port, view.message) == (port, "")
