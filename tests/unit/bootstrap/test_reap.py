"""The reaper finds machines and leftovers without a store, and ends what it was asked to end."""

from dataclasses import replace

import pytest
from tests.unit.testing.cloud.test_simulated_provider import World

from gridmill.bootstrap.reap import Reaper
from gridmill.domain.reaping import ReapOrder, ReapReport, ReapResult
from gridmill.errors import CredentialsError, UnavailableError
from gridmill.testing.cloud.provider_faults import ProviderFaults

ORDER = ReapOrder(kind="simulated")


def reap(world: World, order: ReapOrder) -> ReapReport:
    return Reaper(cloud=world.cloud, order=order, clock=world.clock, pause=world.clock.advance).reap()


def results(report: ReapReport) -> dict[str, str]:
    return {item.id: item.result for item in report.items if item.kind == "machine"}


def aged(world: World, *ages: float) -> list[str]:
    """Machines of these ages, oldest first, each with its own lease and grid."""
    ids = []
    for number, age in enumerate(ages):
        machine = world.launch(f"t{number}", owner=f"grid-{number}")
        ids.append(machine.id)
        following = ages[number + 1] if number + 1 < len(ages) else 0.0
        world.clock.advance(age - following)
    return ids


def test_without_an_order_to_end_nothing_is_changed() -> None:
    world = World()
    aged(world, 300.0)
    report = reap(world, ORDER)
    (machine,) = (item for item in report.items if item.kind == "machine")
    assert (machine.result, machine.owner, machine.age_seconds) == (ReapResult.FOUND, "grid-0", 300.0)
    assert (machine.price_micros, machine.instance_type) == (1_000_000, "gpu.one")
    assert {item.result for item in report.items} == {ReapResult.FOUND}
    assert world.alive_after(0.0) == 1
    assert not any(call.effect for call in world.account.calls if call.method != "launch")


def test_everything_of_one_grid_ends_and_the_rest_stays() -> None:
    world = World(detach_seconds=30.0, orphaned_volumes=1.0)
    aged(world, 300.0, 200.0)
    report = reap(world, replace(ORDER, owner="grid-0", end=True))
    assert {item.result for item in report.items} == {ReapResult.ENDED}
    assert {item.kind for item in report.items} == {"machine", "key", "security-group", "volume", "address"}
    assert [one.request.owner for one in world.account.machines_alive()] == ["grid-1"]
    assert {one.owner for one in world.account.resources_alive()} == {"grid-1"}
    assert reap(world, replace(ORDER, owner="grid-0")).items == ()


def test_young_machines_and_their_resources_are_kept() -> None:
    world = World()
    old, young = aged(world, 7200.0 - 100.0, 300.0)
    world.account.note_contact(young)
    world.account.every[old].ended = world.account.every[old].gone = float("inf")
    fresh = world.launch("t9")
    report = reap(world, replace(ORDER, older_than_seconds=600.0, end=True))
    assert results(report)[young] == results(report)[fresh.id] == ReapResult.KEPT
    assert {item.result for item in report.items if item.lease in ("lease-t1", "lease-t9")} == {"kept"}
    assert len(world.account.machines_alive()) == 2


def test_young_resources_without_a_machine_are_kept() -> None:
    world = World(no_machine=frozenset({("north-1a", "*")}))
    with pytest.raises(Exception, match="no free"):
        world.launch()
    kept = reap(world, replace(ORDER, older_than_seconds=600.0, end=True))
    assert {(item.kind, item.result) for item in kept.items} == {("key", "kept"), ("security-group", "kept")}
    reap(world, replace(ORDER, end=True))
    assert world.account.resources_alive() == ()


def test_old_resources_whose_machine_left_the_list_are_deleted() -> None:
    world = World(orphaned_volumes=1.0)
    world.launch()
    world.alive_after(100.0)
    (machine,) = world.account.every.values()
    machine.ended, machine.gone = world.clock.monotonic(), -1e9
    world.clock.advance(700.0)
    old = replace(ORDER, older_than_seconds=600.0, end=True)
    assert world.cloud.machines() == ()
    assert {item.result for item in reap(world, old).items} == {ReapResult.ENDED}
    assert world.account.resources_alive() == ()


def test_machines_end_also_if_their_prices_cannot_be_read() -> None:
    world = World()
    aged(world, 200.0)

    def broken(region: str = "", instance_type: str = "") -> tuple[()]:
        assert world.account.machines_alive() == ()
        raise ValueError("the answer is not valid")

    world.cloud.offers = broken  # type: ignore[method-assign]
    report = reap(world, replace(ORDER, end=True))
    assert {item.result for item in report.items} == {ReapResult.ENDED}
    assert report.items[0].price_micros is None


def test_server_errors_lost_answers_and_ignored_calls_are_survived() -> None:
    for seed in range(20):
        world = World(server_errors=0.3, lost_answers=0.2, lag_seconds=60.0, detach_seconds=20.0)
        world.account.random.seed(seed)
        world.account.give_faults("launch", "none", "none", "none")
        aged(world, 400.0, 300.0, 250.0)
        world.account.use_faults(replace(world.account.faults, ignored_terminates=0.3))
        report = reap(world, replace(ORDER, end=True))
        assert {item.result for item in report.items} == {ReapResult.ENDED}, seed
        assert world.account.machines_alive() == ()
        assert world.account.resources_alive() == ()


def test_what_does_not_end_in_time_is_reported() -> None:
    world = World(ignored_terminates=1.0)
    aged(world, 200.0)
    report = reap(world, replace(ORDER, end=True, wait_seconds=60.0))
    remaining = {item.kind: item.problem for item in report.items if item.result is ReapResult.REMAINS}
    assert remaining["machine"] == "its end is not confirmed yet"
    assert "in use" in remaining["security-group"]
    assert world.alive_after(0.0) == 1


def test_a_machine_that_no_list_shows_any_more_has_ended() -> None:
    world = World()
    (machine_id,) = aged(world, 200.0)
    machine = world.account.every[machine_id]
    reaper = Reaper(
        cloud=world.cloud, order=replace(ORDER, end=True), clock=world.clock, pause=world.clock.advance
    )
    terminate = world.cloud.terminate
    world.cloud.terminate = lambda one: (terminate(one), setattr(machine, "gone", -1e9))[0]  # type: ignore[method-assign, assignment, func-returns-value]
    before = world.clock.monotonic()
    report = reaper.reap()
    assert {item.result for item in report.items} == {ReapResult.ENDED}
    assert world.clock.monotonic() - before >= world.cloud.traits.list_lag_seconds


def test_refused_credentials_and_a_silent_provider_are_errors() -> None:
    world = World()
    world.account.credentials_end = 0.0
    with pytest.raises(CredentialsError):
        reap(world, replace(ORDER, end=True))
    world = World()
    world.account.go_away(1e6)
    with pytest.raises(UnavailableError):
        reap(world, replace(ORDER, end=True))
    assert 250.0 < world.clock.monotonic() <= 300.0


def test_a_machine_of_an_unknown_price_is_found() -> None:
    world = World()
    world.launch(instance_type="odd.unpriced")
    (machine, *_) = reap(world, ORDER).items
    assert (machine.kind, machine.price_micros) == ("machine", None)
    world.account.use_faults(ProviderFaults(next_faults={"offers": ("before",)}))
    assert reap(world, ORDER).items[0].price_micros is None
