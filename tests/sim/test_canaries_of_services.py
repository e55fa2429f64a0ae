"""Canaries of services on a simulated grid: a second version gets a part of the requests until it is promoted
or rolled back."""

import pytest
from test_services import a_model, cases, grid, is_running, started, until
from test_settings_of_services import order_now
from test_versions import alias

from gridmill.control.usecases.service import Service as Cases
from gridmill.domain.artifact import Artifact
from gridmill.domain.footprint import memory_of
from gridmill.domain.frozen import replace
from gridmill.domain.job import JobSize
from gridmill.domain.service import ServiceState, ServiceView, pipeline_of
from gridmill.domain.service_canary import without_canary
from gridmill.domain.service_settings import ServiceSettings
from gridmill.errors import ConflictError, InputError
from gridmill.ports.store import Put
from gridmill.testing.simulation import Simulation

__all__ = ["cases", "grid"]


def weights(grid: Simulation) -> dict[str, float]:
    return {one.label: one.weight for one in order_now(grid).versions}


def with_canary(grid: Simulation, cases: Cases) -> ServiceView:
    """A service of w/m@1 with the canary w/m@2, which gets 10 % of the requests."""
    started(grid, cases)
    cases.update_service("rain", canary="w/m@2")
    view = until(grid, cases, is_running)
    assert (view.service.version, view.service.canary) == ("w/m@1", "w/m@2")
    assert weights(grid) == {"w/m@1": 90.0, "w/m@2": 10.0}
    return view


def test_a_canary_gets_its_share_and_is_promoted_and_rolled_back(grid: Simulation, cases: Cases) -> None:
    before = with_canary(grid, cases)
    cases.update_service("rain", weight_percent=50.0)
    until(grid, cases, is_running)
    assert weights(grid) == {"w/m@1": 50.0, "w/m@2": 50.0}
    cases.promote_service("rain")
    view = until(grid, cases, is_running)
    assert (view.service.version, view.service.previous, view.service.canary) == ("w/m@2", "w/m@1", "")
    assert list(weights(grid)) == ["w/m@2"]
    assert view.service.port == before.service.port
    cases.rollback_service("rain")
    assert until(grid, cases, is_running).service.version == "w/m@1"


def test_a_rollback_of_a_canary_leaves_the_version_as_it_is(grid: Simulation, cases: Cases) -> None:
    with_canary(grid, cases)
    cases.rollback_service("rain")
    view = until(grid, cases, is_running)
    assert (view.service.version, view.service.canary, view.service.previous) == ("w/m@1", "", "")
    assert list(weights(grid)) == ["w/m@1"]
    with pytest.raises(ConflictError, match="has no canary"):
        cases.promote_service("rain")
    with pytest.raises(ConflictError, match="has no canary"):
        cases.update_service("rain", weight_percent=5.0)


def test_a_canary_that_cannot_be_loaded_is_not_promoted_and_can_be_rolled_back(
    grid: Simulation, cases: Cases
) -> None:
    started(grid, cases)
    grid.world.broken.add("w/m@2")
    cases.update_service("rain", canary="w/m@2", weight_percent=0.0)
    until(grid, cases, lambda view: view.state is ServiceState.FAILING)
    with pytest.raises(ConflictError, match="not in effect yet"):
        cases.promote_service("rain")
    cases.rollback_service("rain")
    assert until(grid, cases, is_running).service.version == "w/m@1"


def test_a_canary_needs_the_signature_of_the_version(grid: Simulation, cases: Cases) -> None:
    started(grid, cases)
    with pytest.raises(InputError, match="`cloud` are new"):
        cases.update_service("rain", canary="w/m@4")
    with pytest.raises(InputError, match="already serves w/m@1"):
        cases.update_service("rain", canary="w/m@1")
    with pytest.raises(InputError, match="two updates"):
        cases.update_service("rain", canary="w/m@2", model="w/m@3")
    with pytest.raises(InputError, match="from 0 to 100"):
        cases.update_service("rain", canary="w/m@2", weight_percent=101.0)


def test_an_update_of_the_version_ends_the_canary(grid: Simulation, cases: Cases) -> None:
    with_canary(grid, cases)
    cases.update_service("rain", model="w/m@3")
    view = until(grid, cases, is_running)
    assert (view.service.version, view.service.canary) == ("w/m@3", "")


def test_the_version_of_a_canary_is_not_removed(grid: Simulation, cases: Cases) -> None:
    with_canary(grid, cases)
    with pytest.raises(ConflictError, match="service 'rain' serves"):
        cases.remove_artifact("w/m@2", force=True)


def test_a_version_to_which_the_followed_alias_moves_is_first_a_canary(
    grid: Simulation, cases: Cases
) -> None:
    cases.set_alias(alias("champion", 1))
    started(grid, cases, "w/m@champion", settings=ServiceSettings(follow_percent=5.0))
    cases.set_alias(alias("champion", 2))
    view = until(grid, cases, lambda view: is_running(view) and view.service.canary != "")
    assert (view.service.version, view.service.canary) == ("w/m@1", "w/m@2")
    assert weights(grid) == {"w/m@1": 95.0, "w/m@2": 5.0}
    # the alias moves again before anybody decides
    cases.set_alias(alias("champion", 3))
    until(grid, cases, lambda view: is_running(view) and view.service.canary == "w/m@3")
    cases.promote_service("rain")
    view = until(grid, cases, is_running)
    assert (view.service.version, view.service.follows) == ("w/m@3", "w/m@champion")


def test_a_followed_version_that_was_rolled_back_is_not_taken_again(grid: Simulation, cases: Cases) -> None:
    cases.set_alias(alias("champion", 1))
    started(grid, cases, "w/m@champion", settings=ServiceSettings(follow_percent=0.0))
    cases.set_alias(alias("champion", 2))
    until(grid, cases, lambda view: is_running(view) and view.service.canary == "w/m@2")
    cases.rollback_service("rain")
    cases.set_alias(alias("other", 2))
    grid.run_until(lambda: False, at_most_steps=20)
    view = cases.service("rain")
    assert (view.service.version, view.service.canary, view.service.follows) == ("w/m@1", "", "w/m@champion")
    assert "w/m@2, which was rolled back" in view.message
    cases.set_alias(alias("champion", 3))
    assert until(grid, cases, lambda view: is_running(view) and view.service.canary == "w/m@3")
    # the alias returns to the version that serves
    cases.set_alias(alias("champion", 1))
    view = until(grid, cases, lambda view: is_running(view) and view.service.canary == "")
    assert (view.service.version, view.message) == ("w/m@1", "")


def large(number: int, size_bytes: int) -> Artifact:
    model = a_model(number)
    return replace(model, output=replace(model.output, size_bytes=size_bytes))


def test_a_canary_that_does_not_fit_into_the_memory_of_the_running_attempt_is_refused(
    grid: Simulation, cases: Cases
) -> None:
    grid.store.commit([Put(noun=large(7, 2**20), expected=0), Put(noun=large(8, 2**30), expected=0)])
    started(grid, cases)
    with pytest.raises(InputError, match="w/m@8 cannot be a canary: 1 replicas with two versions need"):
        cases.update_service("rain", canary="w/m@8")
    cases.update_service("rain", canary="w/m@7")
    assert until(grid, cases, is_running).service.canary == "w/m@7"
    cases.update_service("rain", model="w/m@8")  # a new version replaces replicas one after the other
    until(grid, cases, is_running)


def test_a_followed_version_that_does_not_fit_beside_the_served_one_is_not_served(
    grid: Simulation, cases: Cases
) -> None:
    grid.store.commit([Put(noun=large(8, 2**30), expected=0)])
    cases.set_alias(alias("champion", 1))
    started(grid, cases, "w/m@champion", settings=ServiceSettings(follow_percent=5.0))
    cases.set_alias(alias("champion", 8))
    view = until(grid, cases, lambda view: view.service.refusal != "")
    assert "w/m@8, which is not a canary: 1 replicas with two versions need" in view.message
    assert (view.service.version, view.service.canary) == ("w/m@1", "")


def test_a_service_with_a_canary_that_starts_again_gets_memory_for_both_versions(
    grid: Simulation, cases: Cases
) -> None:
    grid.store.commit([Put(noun=large(7, 2**24), expected=0)])
    started(grid, cases)
    cases.update_service("rain", canary="w/m@7")
    service = until(grid, cases, is_running).service
    with_both, alone = (
        memory_of(pipeline_of(one).jobs[0], JobSize(), 1) for one in (service, without_canary(service, 0.0))
    )
    assert with_both - alone == (service.replicas + 1) * 2 * 2**24
