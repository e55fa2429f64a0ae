"""The simulated cloud site prepares machines, starts pods on them, and ends the pods with their machines."""

from dataclasses import replace
from random import Random

import pytest
from tests.unit.testing.cloud.test_simulated_provider import TIMERS

from gridmill.domain.amounts import Amounts
from gridmill.domain.job import JobKind
from gridmill.domain.lease import LaunchTry, Lease, LeaseState, RentalTerms, TryState
from gridmill.domain.machine import Machine
from gridmill.domain.pod_protocol import PodOrder
from gridmill.errors import MachineFaultError, UnavailableError
from gridmill.ports.site import PodStatus
from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.account import SimulatedAccount
from gridmill.testing.cloud.provider import SimulatedProvider
from gridmill.testing.cloud.rented_world import PREPARE_SECONDS, RentedWorld
from gridmill.testing.cloud.wire_runner import WireRunner
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Killed, kill

TRY = LaunchTry(
    number=1, token="t1", region="north-1", zone="north-1a", instance_type="gpu.one", state=TryState.WRITTEN
)
LEASE = Lease(
    id="lease-1",
    provider="cloud",
    owner="grid-a",
    resource="burst",
    deployment_id="burst-1",
    pod_id="burst-1.0",
    state=LeaseState.LAUNCHING,
    terms=RentalTerms(),
    tries=(TRY,),
)
ORDER = PodOrder(
    pod_id="burst-1.0",
    deployment_id="burst-1",
    type=JobKind.COMMAND,
    capacity=Amounts(cpus=1, memory_bytes=2**30),
    keep_seconds=0.0,
    node="gpu.one#1",
    link="simulated:",
    secret="",
    home="",
)


class Rented:
    """A world with one lease, whose machine is launched."""

    def __init__(self, *, bad_machines: int = 0) -> None:
        self.clock = FakeClock()
        self.account = SimulatedAccount(self.clock)
        self.world = RentedWorld(
            self.clock,
            lambda order: Behaviour(),
            SimulatedProvider(self.account),
            bad_machines=bad_machines,
        )
        self.machine = self.world.launch(LEASE, TRY)

    def prepare(self) -> str:
        return self.world.prepare_machine(LEASE, self.machine).address

    def ready(self) -> None:
        """Makes the lease ready, and requests its pod."""
        self.clock.advance(120.0)
        with pytest.raises(UnavailableError, match="installed"):
            self.prepare()
        self.clock.advance(PREPARE_SECONDS)
        address = self.prepare()
        self.world.use_leases((ready(self.machine, address),))
        self.world.bring_up((ORDER,))
        self.world.step()

    def status(self) -> PodStatus:
        return self.world.observe(("burst-1.0",))["burst-1.0"].status


def ready(machine: Machine, address: str) -> Lease:
    confirmed = replace(TRY, state=TryState.CONFIRMED, machine_id=machine.id)
    return replace(LEASE, state=LeaseState.READY, tries=(confirmed,), address=address)


def test_a_machine_is_prepared_after_its_boot() -> None:
    rented = Rented()
    with pytest.raises(UnavailableError, match="SSH"):
        rented.prepare()
    rented.ready()
    assert rented.prepare() == rented.account.every[rented.machine.id].address
    assert rented.status() is PodStatus.RUNNING
    assert list(rented.world.pods) == ["burst-1.0"]


def test_the_first_machines_can_be_defective() -> None:
    rented = Rented(bad_machines=1)
    rented.clock.advance(120.0)
    for _ in range(2):
        with pytest.raises(MachineFaultError):
            rented.prepare()
    rented.machine = rented.world.launch(LEASE, replace(TRY, token="t2"))
    rented.ready()


def test_pods_wait_for_their_machine_and_end_with_it() -> None:
    rented = Rented()
    rented.world.bring_up((ORDER,))
    assert rented.status() is PodStatus.QUEUED
    rented.ready()
    rented.account.end_by_hand(rented.machine.id)
    rented.world.step()
    assert not rented.world.pods
    assert rented.status() is PodStatus.UNKNOWN
    rented.world.use_leases(())
    assert rented.status() is PodStatus.GONE
    assert rented.world.undelivered_events("burst-1.0") == ()


def test_contact_holds_the_timer_of_a_machine_and_silence_does_not() -> None:
    rented = Rented()
    rented.ready()
    for _ in range(40):
        rented.clock.advance(60.0)
        rented.world.heartbeat()
        rented.world.step()
    assert rented.status() is PodStatus.RUNNING
    rented.world.is_node_alive = False
    for _ in range(int(TIMERS.dead_man_seconds or 0) // 60 + 1):
        rented.clock.advance(60.0)
        rented.world.step()
    assert rented.account.machines_alive() == ()


def test_a_cut_network_hides_the_machine() -> None:
    rented = Rented()
    rented.ready()
    rented.world.provider.is_cut = True
    rented.world.step()
    assert rented.status() is PodStatus.UNKNOWN
    assert not rented.world.has_mail()
    rented.world.provider.is_cut = False
    assert rented.status() is PodStatus.RUNNING


def test_another_control_node_does_not_know_the_leases_yet() -> None:
    rented = Rented()
    rented.ready()
    rented.world.control_died()
    assert rented.status() is PodStatus.UNKNOWN
    rented.world.use_leases((ready(rented.machine, "10.0.0.1"),))
    assert rented.status() is PodStatus.RUNNING


def test_actions_happen_later_and_their_results_wait_for_a_tick() -> None:
    clock, happened, results = FakeClock(), [], []
    runner = WireRunner(clock, Random(1))
    for _ in range(2):
        runner.submit("a", lambda: happened.append("a"), lambda done: results.append(done.result()))
    runner.step()
    assert (happened, runner.is_running("a"), runner.has_more()) == ([], True, False)
    clock.advance(runner.next_event() - clock.monotonic())
    runner.step()
    assert (happened, results, runner.has_more()) == (["a"], [], True)
    assert runner.apply_results()
    assert (results, runner.is_running("a")) == ([None], False)


def test_a_request_may_leave_the_machine_although_the_control_node_dies() -> None:
    counts = set()
    for seed in range(20):
        happened: list[str] = []
        runner = WireRunner(FakeClock(), Random(seed))
        runner.submit("a", lambda happened=happened: happened.append("a"), print)  # type: ignore[misc]
        runner.submit("b", kill, print)
        runner.die(Killed)
        assert not runner.has_more()
        assert not runner.is_running("a")
        counts.add(len(happened))
    assert counts == {0, 1}


def test_without_heartbeats_of_the_control_node_there_is_no_contact() -> None:
    rented = Rented()
    rented.ready()
    rented.world.heartbeat()
    dead_man = LEASE.terms.dead_man_seconds
    began = rented.clock.monotonic()
    last = began
    for _ in range(10):
        rented.clock.advance(dead_man / 10)
        rented.world.step()
        last = rented.account.every[rented.machine.id].last_contact
    assert began < last < began + dead_man / 2
