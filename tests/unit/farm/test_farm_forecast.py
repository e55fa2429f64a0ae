"""About how long who waits at a farm will: told from how long others stayed, and from nothing less."""

from dataclasses import replace

import pytest
from tests.unit.farm.test_farm_rules import NODES, lodging, order

from gridmill.domain.farm_protocol import FutureCapacity
from gridmill.farm.admission import QueueForecast, admit, forecast
from gridmill.farm.deployment import TenantDeployment, TenantDeploymentState
from gridmill.farm.state import KeptForecast

NOW = 1000.0
ONE_NODE = NODES[:1]
"""Of two GPUs."""


def stayed(number: int, seconds: float, tenant: str = "home") -> TenantDeployment:
    one = lodging(number, order(f"past{number}.0"), tenant=tenant)
    up = one.to(TenantDeploymentState.STARTING, NOW - seconds).to(TenantDeploymentState.UP, NOW - seconds)
    return up.to(TenantDeploymentState.GONE, NOW).ended(NOW)


def holding(number: int, gpus: int, began: float, tenant: str = "home") -> TenantDeployment:
    [one] = admit((lodging(number, order(f"d{number}.0", gpus=gpus), tenant=tenant),), ONE_NODE, began)
    return one.to(TenantDeploymentState.UP, began + 1)


def waiting(number: int, gpus: int, tenant: str = "home") -> TenantDeployment:
    return lodging(number, order(f"d{number}.0", gpus=gpus), tenant=tenant)


PAST = [stayed(1, 300.0), stayed(2, 300.0), stayed(3, 300.0)]


def test_how_long_one_stayed_is_counted_from_when_it_got_room() -> None:
    up = lodging(1, order("d.0")).to(TenantDeploymentState.STARTING, 10.0).to(TenantDeploymentState.UP, 20.0)
    assert (up.started, up.stayed_seconds) == (10.0, None)
    assert up.to(TenantDeploymentState.GONE, 70.0).ended(500.0).stayed_seconds == 60.0
    assert lodging(1, order("d.0")).to(TenantDeploymentState.GONE, 70.0).stayed_seconds is None


def test_nothing_is_told_of_too_few_and_nobody_waits_on_an_empty_farm() -> None:
    held = holding(10, 2, NOW - 100)
    assert forecast([*PAST[:2], held, waiting(11, 1)], ONE_NODE, NOW) == QueueForecast(starts={}, openings=())
    assert forecast(PAST, ONE_NODE, NOW).openings == (FutureCapacity(seconds=0.0, gpus=2),)


def test_each_starts_when_those_before_it_are_expected_to_be_gone() -> None:
    line = [*PAST, holding(10, 2, NOW - 100), waiting(11, 2), waiting(12, 1)]
    told = forecast(line, ONE_NODE, NOW)
    assert told.starts == {11: 200.0, 12: 500.0}
    assert told.openings == (FutureCapacity(seconds=500.0, gpus=1), FutureCapacity(seconds=800.0, gpus=2))


def test_who_has_stayed_longer_than_all_before_is_expected_to_stay_as_long_again() -> None:
    told = forecast([*PAST, holding(10, 2, NOW - 400), waiting(11, 1)], ONE_NODE, NOW)
    assert told.starts == {11: 400.0}


def test_a_tenant_is_told_by_its_own_where_it_has_enough() -> None:
    others = [stayed(number, 20.0, tenant="other") for number in (4, 5, 6)]
    line = [*PAST, *others, holding(10, 2, NOW - 10, tenant="other"), waiting(11, 1)]
    assert forecast(line, ONE_NODE, NOW).starts == {11: 10.0}


def test_what_fits_nowhere_holds_up_nobody() -> None:
    never = lodging(11, order("d11.0", memory=1000))
    told = forecast([*PAST, holding(10, 2, NOW - 100), never, waiting(12, 2)], ONE_NODE, NOW)
    assert told.starts == {12: 200.0}
    assert told.openings == (FutureCapacity(seconds=200.0, gpus=0), FutureCapacity(seconds=500.0, gpus=2))


@pytest.mark.parametrize("shares", [1, 4])
def test_openings_count_as_resources_do(shares: int) -> None:
    numbers = tuple(range(2 * shares))
    node = replace(ONE_NODE[0], capacity=replace(ONE_NODE[0].capacity, gpus=len(numbers)))
    assert forecast(PAST, (node,), NOW, shares).openings == (FutureCapacity(seconds=0.0, gpus=len(numbers)),)


def test_behind_very_many_others_follow_at_the_same_pace() -> None:
    line = [holding(10, 2, NOW), *(waiting(100 + number, 1) for number in range(300))]
    told = forecast([*PAST, *line], ONE_NODE, NOW)
    assert told.starts.keys() == {one.number for one in line[1:]}
    seconds = [told.starts[one.number] for one in line[1:]]
    assert seconds == sorted(seconds)
    assert seconds[299] == pytest.approx(seconds[199] * 1.5)
    assert told.openings == ()


def test_a_forecast_is_kept_for_a_moment() -> None:
    readings = iter(at / 5 for at in range(100))
    kept, made = KeptForecast(clock=lambda: next(readings)), []  # it takes 0.2 s to make one

    def make(now: float) -> QueueForecast:
        made.append(now)
        return QueueForecast(starts={}, openings=())

    line, other = (waiting(1, 1),), (waiting(2, 1),)
    for now, everybody in ((0.0, line), (0.9, other), (1.5, other), (6.0, other), (7.0, other), (5.0, other)):
        kept.read(everybody, ONE_NODE, now, make)
    assert made == [0.0, 1.5, 7.0, 5.0]
