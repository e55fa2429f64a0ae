"""The simulated provider ends, bills and hides machines as its faults say. The kill test trusts what these
tests check."""

from dataclasses import replace
from math import inf

import pytest

from gridmill.domain.lease import MICROS
from gridmill.errors import ConflictError, UnavailableError
from gridmill.ports.cloud import LaunchRequest, Machine, MachineState, SelfEnd
from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.account import SimulatedAccount
from gridmill.testing.cloud.catalog import TRAITS
from gridmill.testing.cloud.machine import MachineTimers, read_timers, write_timers
from gridmill.testing.cloud.provider import SimulatedProvider
from gridmill.testing.cloud.provider_faults import ProviderFaults, TokenBucket

TIMERS = MachineTimers(dead_man_seconds=900.0, job_holds=True, max_seconds=7200.0)


class World:
    """An account, a client and a clock."""

    def __init__(self, mode: SelfEnd = SelfEnd.SHUTDOWN, **faults: object) -> None:
        self.clock = FakeClock()
        base = ProviderFaults(boot_seconds=(40.0, 40.0))
        traits = replace(TRAITS[mode], launch_gap_seconds=0.0)
        self.account = SimulatedAccount(
            self.clock,
            traits=traits,
            faults=replace(base, **faults),  # type: ignore[arg-type]
        )
        self.cloud = SimulatedProvider(self.account)

    def launch(self, token: str = "t1", timers: MachineTimers = TIMERS, **other: object) -> Machine:
        request = LaunchRequest(
            token=token,
            lease=f"lease-{token}",
            owner="grid",
            region="north-1",
            zone="north-1a",
            instance_type="gpu.one",
            image="",
            spot=False,
            disk_bytes=100 * 2**30,
            ssh_public_key="key",
            user_data=write_timers(timers),
            max_seconds=7200.0,
        )
        return self.cloud.launch(replace(request, **other))  # type: ignore[arg-type]

    def alive_after(self, seconds: float) -> int:
        self.clock.advance(seconds)
        return len(self.account.machines_alive())


def test_timers_are_read_as_they_were_written() -> None:
    assert read_timers(write_timers(TIMERS)) == TIMERS
    assert read_timers("#!/bin/sh\ntrue") == MachineTimers()


@pytest.mark.parametrize("mode", [SelfEnd.SHUTDOWN, SelfEnd.PROVIDER_TIMER, SelfEnd.OWN_CALL])
def test_a_machine_without_contact_ends_itself(mode: SelfEnd) -> None:
    world = World(mode)
    world.launch()
    assert world.alive_after(28.0 + 899.0) == 1
    assert world.alive_after(20.0) == 0


def test_contact_and_jobs_keep_a_machine_until_its_hard_cap() -> None:
    world = World()
    machine = world.launch()
    assert world.alive_after(600.0) == 1
    assert world.account.note_contact(machine.id)
    world.account.note_job(machine.id, True)
    assert world.alive_after(5000.0) == 1
    world.account.note_job(machine.id, False)
    assert world.alive_after(890.0) == 1
    assert world.alive_after(30.0) == 0

    capped = world.launch("t2")
    world.clock.advance(60.0)
    world.account.note_job(capped.id, True)
    assert world.alive_after(28.0 + 7200.0 - 70.0) == 1
    assert world.alive_after(30.0) == 0


def test_a_job_does_not_hold_a_timer_that_counts_contact_alone() -> None:
    world = World()
    machine = world.launch(timers=replace(TIMERS, job_holds=False))
    world.clock.advance(60.0)
    world.account.note_contact(machine.id)
    world.account.note_job(machine.id, True)
    assert world.alive_after(920.0) == 0


def test_machines_that_cannot_end_themselves_stay() -> None:
    for mode, faults in (
        (SelfEnd.NONE, {}),
        (SelfEnd.SHUTDOWN, {"dead_boots": 1.0}),
        (SelfEnd.SHUTDOWN, {"bad_shutdowns": 1.0}),
        (SelfEnd.SHUTDOWN, {"hangs_per_hour": 1e9}),
    ):
        world = World(mode, **faults)
        world.launch()
        assert world.alive_after(1e6) == 1, (mode, faults)


def test_the_timer_of_the_provider_ends_a_machine_that_never_boots() -> None:
    world = World(SelfEnd.PROVIDER_TIMER, dead_boots=1.0)
    world.launch()
    assert world.alive_after(7200.0) == 1
    assert world.alive_after(31.0) == 0


def test_a_call_of_the_machine_waits_for_the_provider() -> None:
    world = World(SelfEnd.OWN_CALL)
    world.launch()
    world.clock.advance(900.0)
    world.account.go_away(600.0)
    assert world.alive_after(500.0) == 1
    assert world.alive_after(140.0) == 0


def test_a_machine_without_ssh_has_no_contact_but_a_timer() -> None:
    world = World(silent_boots=1.0)
    machine = world.launch()
    world.clock.advance(100.0)
    assert not world.account.note_contact(machine.id)
    assert world.alive_after(850.0) == 0


def test_the_bill_has_each_second_of_everything() -> None:
    world = World()
    machine = world.launch()
    world.clock.advance(1800.0 - 900.0)
    world.account.note_egress(machine.id, 2**30)
    world.account.note_contact(machine.id)
    world.clock.advance(900.0)
    world.cloud.terminate(machine)
    world.clock.advance(3600.0)
    costs = {item.kind: item.cost_micros for item in world.account.bill("grid")}
    assert costs == {"machine": MICROS // 2, "egress": 90_000, "volume": 5_500, "address": 2_500}
    assert world.account.cost_micros() == sum(costs.values())
    assert world.account.bill("other") == ()


def test_a_short_machine_costs_a_minute_and_an_orphaned_volume_goes_on() -> None:
    world = World(orphaned_volumes=1.0)
    world.cloud.terminate(world.launch())
    world.clock.advance(3600.0)
    costs = {item.kind: item.cost_micros for item in world.account.bill()}
    assert costs == {"machine": -(-MICROS // 60), "volume": 11_000}
    assert {one.kind for one in world.account.resources_alive()} == {"volume", "key", "security-group"}


def test_late_lists_miss_new_machines_and_show_ended_ones() -> None:
    world = World(lag_seconds=120.0)
    machine = world.launch()
    world.clock.advance(20.0)
    seen = {len(world.cloud.machines()) for _ in range(50)}
    assert seen == {0, 1}
    world.clock.advance(120.0)
    assert {len(world.cloud.machines()) for _ in range(50)} == {1}
    world.cloud.terminate(machine)
    world.clock.advance(20.0)
    states = {one.state for _ in range(50) for one in world.cloud.machines()}
    assert states == {MachineState.RUNNING, MachineState.STOPPING, MachineState.ENDED}
    world.clock.advance(120.0)
    assert [one.state for one in world.cloud.machines()] == [MachineState.ENDED]


def test_a_region_that_does_not_answer_makes_no_list_shorter() -> None:
    world = World()
    machine = world.launch()
    world.account.go_away(60.0, "north-1")
    for call in (world.cloud.machines, lambda: world.cloud.terminate(machine)):
        with pytest.raises(UnavailableError):
            call()
    world.clock.advance(61.0)
    assert [one.id for one in world.cloud.machines()] == [machine.id]


def test_a_hidden_region_offers_nothing_and_keeps_its_machines() -> None:
    world = World()
    machine = world.launch()
    world.account.hidden_regions.add("north-1")
    assert {offer.region for offer in world.cloud.offers()} == {"south-1"}
    world.cloud.terminate(machine)
    assert world.alive_after(0.0) == 0


def test_a_spot_machine_has_a_notice_before_its_end() -> None:
    world = World()
    machine = world.launch(spot=True)
    world.clock.advance(300.0)
    world.account.interrupt_machine(machine.id)
    assert world.account.notice_at(machine.id) == world.clock.monotonic()
    assert world.alive_after(119.0) == 1
    assert world.alive_after(2.0) == 0
    assert "interrupted" in world.cloud.machines()[0].reason


def test_machines_end_by_hand_and_by_defects() -> None:
    world = World()
    by_hand, defect = world.launch("t1"), world.launch("t2")
    world.clock.advance(60.0)
    world.account.end_by_hand(by_hand.id)
    world.account.kill_machine(defect.id)
    assert world.alive_after(0.1) == 0
    assert {one.reason for one in world.cloud.machines()} == {"user initiated", "hardware fault"}


def test_a_terminated_machine_may_ignore_the_call() -> None:
    world = World(ignored_terminates=1.0)
    machine = world.launch()
    world.cloud.terminate(machine)
    assert world.alive_after(10.0) == 1
    world.account.use_faults(ProviderFaults())
    world.cloud.terminate(machine)
    assert world.alive_after(0.0) == 0


def test_groups_and_volumes_are_in_use_for_a_while() -> None:
    world = World(detach_seconds=60.0, orphaned_volumes=1.0)
    machine = world.launch()
    world.cloud.terminate(machine)
    for leftover in world.cloud.leftovers():
        if leftover.kind == "key":
            world.cloud.delete(leftover)
        elif leftover.kind != "address":
            with pytest.raises(ConflictError):
                world.cloud.delete(leftover)
    world.clock.advance(66.0)
    for leftover in world.cloud.leftovers():
        world.cloud.delete(leftover)
    assert world.account.resources_alive() == ()


def test_the_same_token_in_another_zone_is_another_machine() -> None:
    world = World()
    ids = {world.launch(zone=zone).id for zone in ("north-1a", "north-1b", "north-1a")}
    assert len(ids) == 2


def test_calls_beyond_the_rate_are_refused() -> None:
    bucket = TokenBucket(0.5, 2)
    assert [bucket.take(0.0) for _ in range(3)] == [True, True, False]
    assert [bucket.take(2.0), bucket.take(2.0), bucket.take(1e6)] == [True, False, True]
    assert TokenBucket(inf, 1).take(0.0)

    world = World(calls_per_second=1.0, call_burst=1)
    world.cloud.machines()
    with pytest.raises(UnavailableError, match="429"):
        world.cloud.machines()


def test_a_client_without_network_reaches_nothing_and_another_one_does() -> None:
    world = World()
    world.cloud.is_cut = True
    with pytest.raises(UnavailableError):
        world.launch()
    assert SimulatedProvider(world.account, name="other").machines() == ()
    assert world.alive_after(0.0) == 0


def test_calls_are_recorded_with_their_client() -> None:
    world = World()
    machine = world.launch()
    SimulatedProvider(world.account, name="other").terminate(machine)
    effects = [(call.client, call.method, call.owner) for call in world.account.calls if call.effect]
    assert effects == [("client", "launch", "grid"), ("other", "terminate", "grid")]


def test_the_next_event_is_never_missed() -> None:
    world = World()
    world.launch()
    times = []
    while (at := world.account.next_event()) is not None:
        world.clock.advance(at - world.clock.monotonic())
        times.append(at)
    assert times == [40.0, 28.0 + 900.0, 28.0 + 900.0 + 10.0]
    assert world.account.machines_alive() == ()
