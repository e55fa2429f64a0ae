"""Which leases are opened, which machines are requested and ended, and when a lease is closed."""

from itertools import pairwise

from tests.kit.renting_world import LAG, RentingWorld, a_deployment, an_offer

from gridmill.domain.frozen import replace
from gridmill.domain.lease import (
    LeaseState,
    RentalTerms,
    TryProblem,
    TryState,
    with_try,
)
from gridmill.domain.machine import Machine, MachineState, ProviderTraits, Quota, SelfEnd
from gridmill.scheduler.rental_calls import Call
from gridmill.scheduler.rental_choice import Candidate, Market
from gridmill.scheduler.rental_results import launched, with_new_try
from gridmill.scheduler.renting import decide


def a_world(**fields) -> RentingWorld:
    """A world with one starting deployment."""
    return RentingWorld(deployments={"burst-1": a_deployment()}, **fields)


def calls(world: RentingWorld, call: Call) -> list:
    """The executed actions of one kind."""
    return [one for one in world.executed if one.call is call]


def test_the_whole_life_of_a_lease():
    world = a_world()
    plan = world.step()
    assert plan.opened == ()  # the provider's list comes first
    assert [one.call for one in plan.actions] == [Call.LIST]
    lease = world.until(LeaseState.READY)
    assert [one.state for one in lease.tries] == [TryState.CONFIRMED]
    assert lease.tries[0].zone == "us-east-1a"
    assert len(world.alive()) == 1
    world.release()
    lease = world.until(LeaseState.CLOSED)
    assert [one.state for one in lease.tries] == [TryState.ENDED]
    assert lease.reason == "its deployment is released: idle"
    assert world.alive() == []
    assert world.leftovers == {}


def test_a_try_is_committed_before_its_machine_is_requested():
    world = a_world()
    world.step()
    world.step()
    assert world.lease().state is LeaseState.PLANNED
    plan = world.step()
    assert [one.candidate.zone for one in plan.tries] == ["us-east-1a"]
    assert Call.LAUNCH not in [one.call for one in plan.actions]
    assert world.lease().state is LeaseState.LAUNCHING
    assert [one.call for one in world.step().actions if one.call is Call.LAUNCH] == [Call.LAUNCH]


def test_a_lost_answer_is_repeated_with_the_same_request():
    world = a_world()
    lost = iter(["lost", "lost"])
    world.fails = lambda action: next(lost, "") if action.call is Call.LAUNCH else ""
    lease = world.until(LeaseState.READY)
    assert len(lease.tries) == 1
    assert len(world.real) == 1
    assert len({one.key for one in calls(world, Call.LAUNCH)}) == 1


def test_a_machine_whose_answer_was_lost_is_found_by_the_list_after_a_crash():
    world = a_world()
    world.fails = lambda action: "lost" if action.call is Call.LAUNCH else ""
    world.until(LeaseState.LAUNCHING)
    world.step()
    world.crash()
    world.fails = lambda action: "unavailable" if action.call is Call.LAUNCH else ""
    lease = world.until(LeaseState.READY)
    assert lease.tries[0].machine_id == "i-1"
    assert len(world.real) == 1


def test_a_request_without_a_machine_counts_as_absent_only_after_repeats_and_the_lag():
    world = a_world()
    world.fails = lambda action: (
        "unavailable" if action.call is Call.LAUNCH and action.launch_try.number == 1 else ""
    )
    lease = world.until(LeaseState.READY)
    assert [one.state for one in lease.tries] == [TryState.ABSENT, TryState.CONFIRMED]
    first = [one for one in calls(world, Call.LAUNCH) if one.launch_try.number == 1]
    assert len(first) >= 3
    assert lease.tries[1].at >= lease.tries[0].at + LAG


def test_after_a_refusal_the_next_zone_then_the_next_region_then_the_next_type():
    offers = (
        an_offer(),
        an_offer(region="us-west-2", zones=("us-west-2a",)),
        an_offer(instance_type="g6.xlarge", price_micros=1_100_000),
    )
    world = a_world(market=Market(offers=offers, capacities={}))
    refusals = {
        ("us-east-1a", "g5.xlarge"): TryProblem.NO_MACHINE,
        ("us-east-1b", "g5.xlarge"): TryProblem.NO_MACHINE,
        ("us-west-2a", "g5.xlarge"): TryProblem.QUOTA,
    }
    world.fails = lambda action: (
        refusals.get((action.launch_try.zone, action.launch_try.instance_type), "")
        if action.call is Call.LAUNCH
        else ""
    )
    lease = world.until(LeaseState.READY)
    assert [(one.zone, one.instance_type, one.problem) for one in lease.tries] == [
        ("us-east-1a", "g5.xlarge", TryProblem.NO_MACHINE),
        ("us-east-1b", "g5.xlarge", TryProblem.NO_MACHINE),
        ("us-west-2a", "g5.xlarge", TryProblem.QUOTA),
        ("us-east-1a", "g6.xlarge", None),
    ]


def test_when_nothing_is_free_the_reason_is_shown_and_the_request_is_repeated_later():
    world = a_world()
    world.fails = lambda action: TryProblem.NO_MACHINE if action.call is Call.LAUNCH else ""
    for _ in range(20):
        world.step()
    assert world.lease().problem == "no machine: no free g5.xlarge in us-east-1a, us-east-1b"
    assert len(world.lease().tries) == 2
    world.fails = None
    start = world.now
    world.until(LeaseState.READY)
    assert world.now - start >= 30
    assert len(world.lease().tries) == 3


def test_a_refusal_of_one_lease_spares_the_other_leases_the_same_request():
    world = a_world()
    world.deployments["burst-2"] = a_deployment("burst-2")
    world.fails = lambda action: (
        TryProblem.NO_MACHINE if action.call is Call.LAUNCH and action.launch_try.zone == "us-east-1a" else ""
    )
    while len([one for one in world.leases.values() if one.state is LeaseState.READY]) < 2:
        world.step()
    zones = [[one.zone for one in lease.tries] for lease in world.leases.values()]
    assert sum(each.count("us-east-1a") for each in zones) <= 2
    assert [each[-1] for each in zones] == ["us-east-1b", "us-east-1b"]


def test_zones_without_quota_are_skipped_without_a_request():
    quota = Quota(region="us-east-1", name="G", limit=0, unit="vCPUs", types=("g5", "g6"))
    offers = (an_offer(), an_offer(region="us-west-2", zones=("us-west-2a",), price_micros=2_000_000))
    world = a_world(market=Market(offers=offers, quotas=(quota,), capacities={}))
    lease = world.until(LeaseState.READY)
    assert [one.zone for one in lease.tries] == ["us-west-2a"]
    world = a_world(market=Market(offers=offers[:1], quotas=(quota,), capacities={}))
    for _ in range(5):
        world.step()
    assert world.lease().problem == "no machine: the quota of 0 vCPUs is too small in us-east-1"
    assert calls(world, Call.LAUNCH) == []


def test_a_defective_machine_is_ended_before_another_one_is_requested():
    world = a_world()
    world.fails = lambda action: "fault" if action.call is Call.PREPARE and action.machine.id == "i-1" else ""
    lease = world.until(LeaseState.READY)
    assert [(one.state, one.problem) for one in lease.tries] == [
        (TryState.ENDED, TryProblem.FAULT),
        (TryState.CONFIRMED, None),
    ]
    assert lease.tries[1].zone == "us-east-1b"
    assert lease.tries[1].at >= lease.tries[0].ended
    assert len(world.alive()) == 1


def test_a_lease_knows_whether_a_job_in_a_container_waits():
    world = a_world(in_containers=frozenset({"burst"}))
    assert world.until(LeaseState.READY).needs_container
    assert not a_world().until(LeaseState.READY).needs_container


def test_an_unfit_machine_ends_the_lease_without_a_second_one():
    world = a_world()
    world.fails = lambda action: "unfit" if action.call is Call.PREPARE else ""
    lease = world.until(LeaseState.CLOSED)
    assert lease.hopeless
    assert lease.reason == "another Python"
    assert [one.problem for one in lease.tries] == [TryProblem.UNFIT]
    assert world.alive() == []


def test_three_defective_machines_end_the_lease():
    world = a_world()
    world.fails = lambda action: "fault" if action.call is Call.PREPARE else ""
    lease = world.until(LeaseState.CLOSED)
    assert lease.hopeless
    assert lease.reason == "3 machines could not be used; the last one: no GPU"
    assert world.alive() == []


def test_a_machine_that_never_becomes_ready_is_replaced():
    world = a_world()
    world.fails = lambda action: (
        "unavailable" if action.call is Call.PREPARE and action.machine.id == "i-1" else ""
    )
    lease = world.until(LeaseState.READY, seconds=4000.0)
    assert lease.tries[0].problem is TryProblem.FAULT
    assert "30 minutes" in lease.tries[0].message


def test_a_machine_that_is_ended_at_the_provider_closes_its_lease_within_a_minute():
    world = a_world()
    world.until(LeaseState.READY)
    world.real[0].ends_at = world.now
    start = world.now
    lease = world.until(LeaseState.CLOSED)
    assert world.now - start <= 60
    assert lease.reason == "the machine was ended at the provider, not by Gridmill"


def test_a_machine_that_vanishes_from_the_list_closes_its_lease_after_its_end_was_accepted():
    world = a_world()
    world.until(LeaseState.READY)
    world.real.clear()
    lease = world.until(LeaseState.CLOSED)
    assert "ended at the provider" in lease.reason
    assert [one.key for one in calls(world, Call.TERMINATE)] == ["i-1"]


def test_a_spot_interruption_is_named():
    world = a_world(terms=RentalTerms(spot=True))
    lease = world.until(LeaseState.READY)
    assert (lease.tries[0].spot, lease.tries[0].price_micros) == (True, 300_000)
    one = world.real[0]
    one.machine, one.ends_at = replace(one.machine, reason="Server.SpotInstanceTermination"), world.now
    lease = world.until(LeaseState.CLOSED)
    assert lease.tries[0].problem is TryProblem.INTERRUPTED
    assert lease.reason.startswith("the spot machine was interrupted by the provider")


def test_a_spot_machine_that_is_interrupted_while_it_boots_is_replaced():
    world = a_world(terms=RentalTerms(spot=True))
    world.fails = lambda action: "unavailable" if action.call is Call.PREPARE else ""
    world.until(LeaseState.BOOTING)
    one = world.real[0]
    one.machine, one.ends_at = replace(one.machine, reason="spot capacity"), world.now
    world.fails = None
    lease = world.until(LeaseState.READY)
    assert [each.state for each in lease.tries] == [TryState.ENDED, TryState.CONFIRMED]


def test_a_used_budget_stops_new_rentals_but_no_machine():
    world = a_world()
    world.until(LeaseState.READY)
    world.halted["burst"] = "the budget of 10.00 USD is used"
    world.deployments["burst-2"] = a_deployment("burst-2")
    for _ in range(50):
        world.step()
    assert [one.state for one in world.leases.values()] == [LeaseState.READY]


def test_after_a_failure_the_machine_is_kept_for_the_given_time():
    world = a_world(terms=RentalTerms(keep_on_failure_seconds=300.0))
    lease = world.until(LeaseState.READY)
    world.put(replace(lease, failed=world.now))
    world.release()
    start = world.now
    world.until(LeaseState.RELEASING)
    assert 299 <= world.now - start <= 302


def test_a_lease_without_a_request_is_closed_at_once():
    world = a_world()
    world.step()
    world.step()
    world.release()
    world.step()
    assert world.lease().state is LeaseState.CLOSED
    assert world.executed == calls(world, Call.LIST) + calls(world, Call.FORGET)


def test_a_lease_whose_answer_was_lost_is_closed_only_after_the_lag():
    world = a_world()
    world.fails = lambda action: "lost" if action.call is Call.LAUNCH else ""
    world.until(LeaseState.LAUNCHING)
    world.step()
    sent = world.now - 1
    world.release()
    lease = world.until(LeaseState.CLOSED)
    assert lease.closed >= sent + LAG
    assert world.alive() == []


def test_a_lease_is_not_closed_while_a_leftover_cannot_be_deleted():
    world = a_world()
    world.until(LeaseState.READY)
    world.fails = lambda action: "unavailable" if action.call is Call.DELETE else ""
    world.release()
    for _ in range(100):
        world.step()
    assert world.lease().state is LeaseState.RELEASING
    assert world.lease().leftovers == ("key-i-1",)
    world.fails = None
    world.until(LeaseState.CLOSED)


def test_a_failed_list_is_not_requested_again_without_a_pause():
    world = a_world()
    world.until(LeaseState.READY)
    world.fails = lambda action: "unavailable"
    world.now += 100
    world.step(0.0)
    assert world.commit().again_at > world.now


def test_a_machine_that_does_not_answer_is_ended_after_the_dead_man_time():
    world = a_world(terms=RentalTerms(dead_man_seconds=600.0))
    lease = world.until(LeaseState.READY)
    silent = replace(world.situation(), silent_seconds={lease.pod_id: 599.0})
    assert decide(silent, world.now).changed == ()
    (ended,) = decide(replace(silent, silent_seconds={lease.pod_id: 600.0}), world.now).changed
    assert (ended.state, ended.reason) == (
        LeaseState.RELEASING,
        "the machine has not answered for 10 m 00 s",
    )


def test_release_never_gives_up():
    world = a_world()
    world.until(LeaseState.READY)
    world.fails = lambda action: "unavailable"
    world.release()
    for _ in range(2000):
        world.step(10.0)
    assert world.lease().state is LeaseState.RELEASING
    world.fails = None
    world.until(LeaseState.CLOSED)
    assert world.alive() == []


def test_the_calls_that_delete_resources_name_their_lease():
    world = a_world()
    world.until(LeaseState.READY)
    world.release()
    world.until(LeaseState.CLOSED)
    assert {one.lease.id for one in calls(world, Call.DELETE)} == {"lease-1"}


def test_only_one_of_two_machines_of_a_lease_is_surplus():
    world = a_world()
    world.until(LeaseState.LAUNCHING)
    first = world.lease().tries[0]
    absent = with_try(world.lease(), replace(first, state=TryState.ABSENT, ended=world.now))
    choice = Candidate(
        region="us-east-1",
        zone="us-east-1b",
        instance_type="g5.xlarge",
        spot=False,
        price_micros=1_000_000,
        currency="USD",
    )
    both = with_new_try(absent, choice, "lease-1-2", world.now)
    late = Machine(
        id="i-1",
        provider="aws",
        region="us-east-1",
        zone="us-east-1a",
        instance_type="g5.xlarge",
        state=MachineState.RUNNING,
    )
    lease = launched(both, first.token, late, world.now)
    lease = launched(lease, "lease-1-2", replace(late, id="i-2"), world.now)
    assert [(one.machine_id, one.problem) for one in lease.tries] == [
        ("i-1", TryProblem.SURPLUS),
        ("i-2", None),
    ]


def test_a_machine_that_stops_by_itself_is_ended():
    world = a_world()
    world.until(LeaseState.READY)
    world.step(30.0)
    world.step()
    stopped = replace(world.latest.machines[0], state=MachineState.STOPPED, native_state="stopped")
    world.latest = replace(world.latest, at=world.now, machines=(stopped,))
    world.step()
    assert world.lease().reason == "the machine was ended at the provider, not by Gridmill: stopped"
    world.until(LeaseState.CLOSED)
    assert world.alive() == []


def test_a_provider_that_cannot_end_machines_itself_needs_consent():
    traits = ProviderTraits(self_end=SelfEnd.NONE, list_lag_seconds=LAG)
    market = Market(offers=(an_offer(),), capacities={}, self_end=SelfEnd.NONE)
    world = a_world(traits=traits, market=market)
    lease = world.until(LeaseState.CLOSED)
    assert "accept_no_self_end" in lease.reason
    world = a_world(traits=traits, market=market, terms=RentalTerms(accept_no_self_end=True))
    world.until(LeaseState.READY)


def test_the_decisions_respect_the_rate_limits_of_the_provider():
    traits = ProviderTraits(
        self_end=SelfEnd.SHUTDOWN, list_lag_seconds=LAG, launch_gap_seconds=12.0, call_gap_seconds=1.0
    )
    world = RentingWorld(
        traits=traits,
        deployments={f"burst-{number}": a_deployment(f"burst-{number}") for number in range(1, 201)},
    )
    times, launches = [], []
    while len([one for one in world.leases.values() if one.state is LeaseState.READY]) < 20:
        plan = world.commit()
        for action in plan.actions:
            world.act(action)
            if action.call not in (Call.PREPARE, Call.FORGET):
                times.append(world.now)
            if action.call is Call.LAUNCH:
                launches.append(world.now)
        world.now += 0.25
    assert min(b - a for a, b in pairwise(times)) >= 1.0
    assert min(b - a for a, b in pairwise(launches)) >= 12.0
    assert world.now < 1000 + 20 * 12 + 60


def test_two_hundred_leases_are_ready_and_returned():
    world = RentingWorld(
        deployments={f"burst-{number}": a_deployment(f"burst-{number}") for number in range(1, 201)}
    )
    while len([one for one in world.leases.values() if one.state is LeaseState.READY]) < 200:
        world.step()
        assert world.now < 1200
    for name in world.deployments:
        world.release(name)
    while world.leases:
        world.step()
        assert world.now < 1500
    assert world.alive() == []


def test_many_machines_that_end_slowly_delay_neither_lists_nor_launches():
    """A provider with one call per second, whose machines need minutes to end."""
    traits = ProviderTraits(self_end=SelfEnd.SHUTDOWN, list_lag_seconds=LAG, call_gap_seconds=1.0)
    names = [f"burst-{number}" for number in range(1, 51)]
    world = RentingWorld(traits=traits, deployments={name: a_deployment(name) for name in names})
    while [one.state for one in world.leases.values()] != [LeaseState.READY] * 50:
        world.step()
    world.ending = 300.0
    for name in names:
        world.release(name)
    world.deployments["next"] = a_deployment("next")
    start, before = world.now, len(world.executed)
    while len(world.leases) < 51 or world.lease().state is not LeaseState.READY:
        world.step()
        assert world.now < start + 90  # the first requests to end 50 machines, and the lists among them
    for _ in range(300):
        world.step()
    executed = world.executed[before:]
    assert sum(one.call is Call.LIST for one in executed) >= (world.now - start) / 31
    first_ends = [one.key for one in executed if one.call is Call.TERMINATE][:50]
    assert len(set(first_ends)) == 50  # no machine waits for a second request of another one
    while len(world.leases) > 1:
        world.step()
        assert world.now < start + 600
    assert len(world.alive()) == 1
