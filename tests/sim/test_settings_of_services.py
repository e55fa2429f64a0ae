"""The settings and API keys of services on a simulated grid."""

import hashlib

import pytest
from test_services import cases, grid, is_running, running_execution, started, until
from test_versions import alias

from gridmill.control.usecases.service import Service as Cases
from gridmill.domain.service import ServiceState
from gridmill.domain.service_settings import ServiceSettings
from gridmill.domain.serving import ServiceOrder
from gridmill.errors import ConflictError, InputError, NotFoundError
from gridmill.testing.simulation import Simulation

__all__ = ["cases", "grid"]


def order_now(grid: Simulation) -> ServiceOrder:
    return grid.world.orders[running_execution(grid).order.attempt_id]


def test_an_update_of_settings_reaches_the_running_process_and_a_restart_keeps_them(
    grid: Simulation, cases: Cases
) -> None:
    started(grid, cases, settings=ServiceSettings(max_batch=32, cors_origins=("https://shop.example",)))
    assert (order_now(grid).max_batch, order_now(grid).cors_origins) == (32, ("https://shop.example",))
    cases.update_service("rain", settings=ServiceSettings(timeout_seconds=3.0))
    view = until(grid, cases, is_running)
    assert view.service.generation == 2
    assert (order_now(grid).max_batch, order_now(grid).timeout_seconds) == (32, 3.0)
    assert cases.update_service("rain", settings=ServiceSettings(timeout_seconds=3.0)).service.generation == 2
    cases.stop_service("rain")
    until(grid, cases, lambda view: view.state is ServiceState.STOPPED)
    cases.start_service("rain", settings=ServiceSettings(max_batch=64))
    until(grid, cases, is_running)
    assert (order_now(grid).max_batch, order_now(grid).timeout_seconds) == (64, 3.0)
    with pytest.raises(ConflictError, match="already runs with other options: settings"):
        cases.start_service("rain", settings=ServiceSettings(max_batch=65))


def test_an_open_service_is_neither_started_nor_made_by_an_update(grid: Simulation, cases: Cases) -> None:
    with pytest.raises(InputError, match=r"no TLS .* and no API keys"):
        cases.start_service("rain", model="w/m@1", settings=ServiceSettings(host="0.0.0.0"))
    view = started(grid, cases)
    with pytest.raises(InputError, match="other machines could reach the service"):
        cases.update_service("rain", port=8123, settings=ServiceSettings(host="0.0.0.0"))
    accepted = ServiceSettings(host="0.0.0.0", accept_open=True)
    with pytest.raises(InputError, match="only with another port"):
        cases.update_service("rain", settings=accepted)
    cases.update_service("rain", port=8123, settings=accepted)
    assert until(grid, cases, is_running).url == "http://0.0.0.0:8123"
    assert order_now(grid).port == 8123 != view.service.port
    with pytest.raises(InputError, match="no API keys"):
        cases.update_service("rain", settings=ServiceSettings(accept_open=False))


def test_a_certificate_that_cannot_be_read_is_refused_before_the_start(cases: Cases) -> None:
    tls = ServiceSettings(certificate_file="/nowhere/crt.pem", key_file="/nowhere/key.pem")
    with pytest.raises(InputError, match=r"certificate /nowhere/crt.pem .* No such file") as caught:
        cases.start_service("rain", model="w/m@1", settings=tls)
    assert caught.value.place == "certificate"


def test_an_api_key_is_shown_once_and_stored_as_its_hash(grid: Simulation, cases: Cases) -> None:
    started(grid, cases)
    assert order_now(grid).api_keys is None
    made = cases.add_service_key("rain", "shop")
    until(grid, cases, is_running)
    line = f"{hashlib.sha256(made.key.encode()).hexdigest()} shop"
    assert order_now(grid).api_keys == (line,)
    (shown,) = cases.service("rain").service.keys
    assert (shown.name, shown.sha256) == ("shop", "")
    assert made.key not in repr(grid.store.list(type(cases.service("rain").service)))
    with pytest.raises(ConflictError, match="already has an API key 'shop'"):
        cases.add_service_key("rain", "shop")
    other = cases.add_service_key("rain", "app")
    assert other.key != made.key
    cases.remove_service_key("rain", "shop")
    with pytest.raises(NotFoundError, match="no API key 'shop'"):
        cases.remove_service_key("rain", "shop")
    cases.remove_service_key("rain", "app")
    until(grid, cases, is_running)
    # the service stays closed after its last key was deleted
    assert order_now(grid).api_keys == ()
    cases.update_service("rain", settings=ServiceSettings(require_keys=False))
    until(grid, cases, is_running)
    assert order_now(grid).api_keys is None


def test_a_stopped_service_keeps_its_keys(grid: Simulation, cases: Cases) -> None:
    started(grid, cases)
    cases.add_service_key("rain", "shop")
    cases.stop_service("rain")
    until(grid, cases, lambda view: view.state is ServiceState.STOPPED)
    cases.add_service_key("rain", "app")
    cases.start_service("rain")
    until(grid, cases, is_running)
    assert [line.split()[1] for line in order_now(grid).api_keys or ()] == ["shop", "app"]


def test_an_update_of_settings_that_does_not_take_effect_is_rolled_back(
    grid: Simulation, cases: Cases
) -> None:
    started(grid, cases, settings=ServiceSettings(max_batch=32))
    cases.update_service("rain", model="w/m@2")
    before = until(grid, cases, is_running).service
    grid.world.taken_ports.add(8124)
    cases.update_service("rain", port=8124, settings=ServiceSettings(max_batch=64))
    until(grid, cases, lambda view: view.state is ServiceState.FAILING)
    # another change of settings is refused until the rollback
    with pytest.raises(ConflictError, match=r"not in effect yet: port 8124 is taken"):
        cases.update_service("rain", settings=ServiceSettings(max_batch=16))
    cases.rollback_service("rain")
    after = until(grid, cases, is_running).service
    assert (after.version, after.port, after.settings) == (before.version, before.port, before.settings)
    assert (order_now(grid).port, order_now(grid).max_batch) == (before.port, 32)
    # the update that is in effect now was the rollback, so that the next one returns to the version before
    cases.rollback_service("rain")
    assert until(grid, cases, is_running).service.version == "w/m@1"


def test_a_rollback_of_a_version_with_settings_returns_both_and_keeps_the_keys(
    grid: Simulation, cases: Cases
) -> None:
    before = started(grid, cases).service
    grid.world.broken.add("w/m@2")
    cases.update_service("rain", model="w/m@2", settings=ServiceSettings(max_batch=64))
    until(grid, cases, lambda view: view.state is ServiceState.FAILING)
    cases.add_service_key("rain", "shop")
    cases.rollback_service("rain")
    after = until(grid, cases, is_running).service
    assert (after.version, after.settings.max_batch) == ("w/m@1", before.settings.max_batch)
    assert after.settings.require_keys
    assert [one.name for one in after.keys] == ["shop"]


def test_a_service_that_follows_an_alias_goes_back_to_the_version_and_not_to_old_settings(
    grid: Simulation, cases: Cases
) -> None:
    cases.set_alias(alias("champion", 1))
    started(grid, cases, "w/m@champion")
    cases.update_service("rain", settings=ServiceSettings(max_batch=64))
    until(grid, cases, is_running)
    grid.world.broken.add("w/m@2")
    cases.set_alias(alias("champion", 2))
    until(grid, cases, lambda view: view.state is ServiceState.FAILING)
    cases.rollback_service("rain")
    after = until(grid, cases, is_running).service
    assert (after.version, after.settings.max_batch) == ("w/m@1", 64)


def test_a_key_that_is_added_or_deleted_does_not_turn_keys_on_that_a_user_has_turned_off(
    grid: Simulation, cases: Cases
) -> None:
    started(grid, cases)
    cases.add_service_key("rain", "shop")
    until(grid, cases, is_running)
    cases.update_service("rain", settings=ServiceSettings(require_keys=False))
    until(grid, cases, is_running)
    cases.add_service_key("rain", "app")
    cases.remove_service_key("rain", "shop")
    assert until(grid, cases, is_running).service.settings.require_keys is False
    assert order_now(grid).api_keys is None
    cases.update_service("rain", settings=ServiceSettings(require_keys=True))
    until(grid, cases, is_running)
    assert [line.split()[1] for line in order_now(grid).api_keys or ()] == ["app"]


@pytest.mark.parametrize("model", ["w/m@1", "w/m", "w/m@latest"])
def test_a_weight_for_an_alias_is_refused_if_the_service_follows_none(
    grid: Simulation, cases: Cases, model: str
) -> None:
    weight = ServiceSettings(follow_percent=20.0)
    with pytest.raises(InputError, match="follows no alias") as caught:
        cases.start_service("rain", model=model, settings=weight)
    assert caught.value.place == "follow_weight"
    served = started(grid, cases, model).service.version
    with pytest.raises(InputError, match="follows no alias"):
        cases.update_service("rain", settings=weight)
    cases.set_alias(alias("champion", int(served.partition("@")[2])))
    cases.update_service("rain", model="w/m@champion", settings=weight)
    assert until(grid, cases, is_running).service.settings.follow_percent == 20.0


def test_a_service_that_follows_its_alias_by_a_canary_follows_it_in_one_step_again(
    grid: Simulation, cases: Cases
) -> None:
    cases.set_alias(alias("champion", 1))
    given = ServiceSettings(follow_percent=20.0, max_batch=8)
    started(grid, cases, "w/m@champion")
    cases.update_service("rain", settings=given)
    until(grid, cases, is_running)
    cases.update_service("rain", settings=ServiceSettings(unset=("follow_percent", "max_batch")))
    settings = until(grid, cases, is_running).service.settings
    assert (settings.follow_percent, settings.max_batch, settings.unset) == (None, None, ())
    cases.set_alias(alias("champion", 2))
    view = until(grid, cases, lambda view: is_running(view) and view.service.version == "w/m@2")
    assert view.service.canary == ""
