"""Shadows of services on a simulated grid: a version gets copies of requests until it is promoted or ends."""

import pytest
from test_canaries_of_services import large, weights
from test_services import cases, grid, is_running, started, until
from test_settings_of_services import order_now

from gridmill.control.usecases.service import Service as Cases
from gridmill.domain.footprint import memory_of
from gridmill.domain.job import JobSize
from gridmill.domain.service import pipeline_of, shadow_bytes
from gridmill.domain.serving import ShadowOrder
from gridmill.errors import ConflictError, InputError
from gridmill.ports.store import Put
from gridmill.testing.simulation import Simulation

__all__ = ["cases", "grid"]


def shadow_now(grid: Simulation) -> tuple[str, float] | None:
    shadow: ShadowOrder | None = order_now(grid).shadow
    return (shadow.version.label, shadow.percent) if shadow is not None else None


def with_shadow(grid: Simulation, cases: Cases) -> None:
    """A service of w/m@1 with the shadow w/m@2, which gets copies of all requests."""
    started(grid, cases)
    cases.update_service("rain", shadow="w/m@2")
    until(grid, cases, is_running)
    assert shadow_now(grid) == ("w/m@2", 100.0)
    assert list(weights(grid)) == ["w/m@1"]


def test_a_shadow_becomes_the_canary_and_then_the_version(grid: Simulation, cases: Cases) -> None:
    with_shadow(grid, cases)
    cases.update_service("rain", shadow_percent=20.0)
    until(grid, cases, is_running)
    assert shadow_now(grid) == ("w/m@2", 20.0)
    cases.promote_service("rain")
    view = until(grid, cases, is_running)
    assert (view.service.version, view.service.canary, view.service.shadow) == ("w/m@1", "w/m@2", None)
    assert weights(grid) == {"w/m@1": 90.0, "w/m@2": 10.0}
    assert shadow_now(grid) is None
    cases.promote_service("rain")
    view = until(grid, cases, is_running)
    assert (view.service.version, view.service.canary, view.service.previous) == ("w/m@2", "", "w/m@1")


def test_a_rollback_ends_first_the_canary_and_then_the_shadow(grid: Simulation, cases: Cases) -> None:
    with_shadow(grid, cases)
    cases.update_service("rain", canary="w/m@3")
    until(grid, cases, is_running)
    cases.rollback_service("rain")
    view = until(grid, cases, is_running)
    assert view.service.canary == ""
    assert shadow_now(grid) == ("w/m@2", 100.0)
    cases.rollback_service("rain")
    view = until(grid, cases, is_running)
    assert (view.service.version, view.service.shadow, view.service.previous) == ("w/m@1", None, "")
    assert shadow_now(grid) is None


def test_an_update_to_the_version_of_the_shadow_ends_it(grid: Simulation, cases: Cases) -> None:
    with_shadow(grid, cases)
    cases.update_service("rain", model="w/m@2")
    view = until(grid, cases, is_running)
    assert (view.service.version, view.service.shadow) == ("w/m@2", None)


def test_a_shadow_needs_the_signature_of_the_version(grid: Simulation, cases: Cases) -> None:
    started(grid, cases)
    with pytest.raises(InputError, match="`cloud` are new"):
        cases.update_service("rain", shadow="w/m@4")
    with pytest.raises(InputError, match="already serves w/m@1"):
        cases.update_service("rain", shadow="w/m@1")
    with pytest.raises(InputError, match="--canary and --shadow are two updates"):
        cases.update_service("rain", canary="w/m@2", shadow="w/m@3")
    with pytest.raises(InputError, match="from 0 to 100"):
        cases.update_service("rain", shadow="w/m@2", shadow_percent=101.0)
    with pytest.raises(ConflictError, match="has no shadow"):
        cases.update_service("rain", shadow_percent=5.0)


def test_the_version_of_a_shadow_is_not_removed(grid: Simulation, cases: Cases) -> None:
    with_shadow(grid, cases)
    with pytest.raises(ConflictError, match="service 'rain' serves"):
        cases.remove_artifact("w/m@2", force=True)


def test_a_shadow_that_does_not_fit_into_the_memory_is_refused(grid: Simulation, cases: Cases) -> None:
    grid.store.commit([Put(noun=large(8, 2**30), expected=0)])
    started(grid, cases)
    with pytest.raises(InputError, match="w/m@8 cannot be a shadow: 1 replicas with all versions need"):
        cases.update_service("rain", shadow="w/m@8")


def test_a_service_with_a_shadow_that_starts_again_gets_memory_for_it(grid: Simulation, cases: Cases) -> None:
    started(grid, cases)
    before = memory_of(pipeline_of(cases.service("rain").service).jobs[0], JobSize(), 1)
    cases.update_service("rain", shadow="w/m@2")
    service = until(grid, cases, is_running).service
    assert memory_of(pipeline_of(service).jobs[0], JobSize(), 1) - before == shadow_bytes(service) > 0
