"""Which leases are opened, which machines are requested and ended, and when a lease is closed."""

from itertools import pairwise

import pytest
from tests.kit.renting_world import LAG, RentingWorld, a_deployment, an_offer

from gridmill.domain.frozen import replace
from gridmill.domain.lease import (
    LeaseState,
    RentalTerms,
    TryProblem,
    TryState,
    lease_cost_micros,
    with_try,
)
from gridmill.domain.machine import Machine, MachineState, ProviderTraits, Quota, SelfEnd
from gridmill.scheduler.rental_calls import Call
from gridmill.scheduler.rental_choice import Candidate, Market
from gridmill.scheduler.rental_results import launched, with_new_try
from gridmill.scheduler.renting import LIMIT_OF_MONEY, LIMIT_OF_TIME, MACHINE_ANSWER_SECONDS, decide


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


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        (RentalTerms(max_seconds=120.0), "the longest rental time (max_hours) is reached"),
        (RentalTerms(max_cost_micros=100_000), "the highest cost (max_cost) is reached"),
    ],
)
def test_the_limits_end_the_machine(terms, reason):
    world = a_world(terms=terms)
    world.until(LeaseState.READY)
    lease = world.until(LeaseState.CLOSED, seconds=1000.0)
    assert lease.reason == reason
    seconds = lease.tries[0].ended - lease.tries[0].confirmed
    assert seconds <= min(terms.max_seconds + 10, 360)
    assert seconds >= 115


def hang_first_machine(**fields) -> RentingWorld:
    """The first machine never becomes ready, and is replaced after 30 minutes."""
    world = a_world(**fields)
    world.fails = lambda action: (
        "unavailable" if action.call is Call.PREPARE and action.machine.id == "i-1" else ""
    )
    return world


def test_the_hours_of_a_replaced_machine_do_not_count_for_the_next_one():
    world = hang_first_machine(terms=RentalTerms(max_seconds=3600.0))
    world.until(LeaseState.READY, seconds=2000.0)
    lease = world.until(LeaseState.RELEASING, seconds=4000.0)
    assert lease.reason == LIMIT_OF_TIME
    first, second = lease.tries
    assert (first.problem, second.problem) == (TryProblem.FAULT, None)
    assert lease.release_asked - second.confirmed == pytest.approx(3600.0, abs=10.0)


def test_the_cost_of_a_replaced_machine_counts_for_the_limit_of_the_rental():
    world = hang_first_machine(terms=RentalTerms(max_seconds=7200.0, max_cost_micros=1_000_000))
    world.until(LeaseState.READY, seconds=2000.0)
    lease = world.until(LeaseState.CLOSED, seconds=4000.0)
    assert lease.reason == LIMIT_OF_MONEY
    assert 950_000 < lease_cost_micros(lease, world.now) <= 1_000_000


def test_the_time_of_a_machine_that_was_interrupted_before_it_was_ready_does_not_count():
    world = a_world(terms=RentalTerms(spot=True, max_seconds=120.0))
    world.fails = lambda action: "unavailable" if action.call is Call.PREPARE else ""
    world.until(LeaseState.BOOTING)
    one = world.real[0]
    one.machine, one.ends_at = replace(one.machine, reason="spot capacity"), world.now
    world.fails = lambda action: TryProblem.NO_MACHINE if action.call is Call.LAUNCH else ""
    for _ in range(300):
        world.step()
    assert world.now - world.lease().tries[0].confirmed > 120.0
    assert world.lease().reason == ""
    world.fails = None
    assert len(world.until(LeaseState.READY, seconds=1000.0).tries) > 1


def test_a_lease_starts_at_most_three_spot_machines_that_are_interrupted_before_they_are_ready():
    world = a_world(terms=RentalTerms(spot=True))
    world.fails = lambda action: "unavailable" if action.call is Call.PREPARE else ""
    world.until(LeaseState.PLANNED)
    for _ in range(600):
        world.step()
        for one in world.alive():
            one.machine, one.ends_at = replace(one.machine, reason="spot capacity"), world.now
        if world.lease().state is LeaseState.CLOSED:
            break
    lease = world.lease()
    assert [one.problem for one in lease.tries] == [TryProblem.INTERRUPTED] * 3
    assert lease.reason.startswith("the spot machine was interrupted by the provider")
    assert not lease.hopeless


def after_a_weekend(ends: float | None, stated: float | None = None, **fields) -> RentingWorld:
    """A machine ends `ends` seconds after its start (None: the list lacks it), while the control node does
    not run for 60 hours. The provider states that the machine ended after `stated` seconds."""
    world = a_world(**fields)
    begins = world.until(LeaseState.READY).tries[0].confirmed
    [real] = world.real
    if ends is None:
        world.real.clear()
    else:
        real.ends_at = begins + ends
        real.machine = replace(real.machine, ended=None if stated is None else begins + stated)
    world.now += 60 * 3600
    world.crash()
    return world


@pytest.mark.parametrize("terms", [RentalTerms(), RentalTerms(max_cost_micros=2_500_000)])
def test_a_machine_that_ended_itself_while_the_control_node_was_off_has_reached_no_limit(terms):
    world = after_a_weekend(2 * 3600.0, 2 * 3600.0, terms=terms)
    lease = world.until(LeaseState.CLOSED)
    assert lease.reason == "the machine was ended at the provider, not by Gridmill"
    assert lease.tries[0].ended == lease.tries[0].confirmed + 2 * 3600
    assert lease_cost_micros(lease, world.now) == 2_000_000


def test_a_machine_that_is_not_listed_after_the_control_node_was_off_has_reached_no_limit():
    lease = after_a_weekend(None).until(LeaseState.CLOSED)
    assert lease.reason.startswith("the machine was ended at the provider, not by Gridmill")


def test_a_machine_that_ended_itself_at_its_longest_time_has_reached_the_limit():
    lease = after_a_weekend(24 * 3600.0 + 20, 24 * 3600.0 + 20).until(LeaseState.CLOSED)
    assert lease.reason == "the longest rental time (max_hours) is reached"
    assert lease.tries[0].ended == lease.tries[0].confirmed + 24 * 3600 + 20


@pytest.mark.parametrize("ends", [900.0, None])
def test_a_machine_without_a_stated_end_costs_at_most_its_longest_time(ends):
    world = after_a_weekend(ends)
    lease = world.until(LeaseState.CLOSED)
    assert lease.tries[0].ended == lease.tries[0].confirmed + 24 * 3600
    assert lease_cost_micros(lease, world.now) == 24_000_000


def test_a_machine_that_was_seen_after_its_longest_time_costs_until_then():
    world = a_world(terms=RentalTerms(max_seconds=120.0))
    world.until(LeaseState.READY)
    world.fails = lambda action: "unavailable" if action.call is Call.TERMINATE else ""
    for _ in range(600):
        world.step()
    world.fails = None
    lease = world.until(LeaseState.CLOSED)
    assert 600 <= lease.tries[0].ended - lease.tries[0].confirmed <= 700


def test_a_machine_that_cannot_end_itself_costs_until_its_end_is_seen():
    traits = ProviderTraits(self_end=SelfEnd.NONE, list_lag_seconds=LAG)
    world = after_a_weekend(30 * 3600.0, traits=traits, terms=RentalTerms(accept_no_self_end=True))
    lease = world.until(LeaseState.CLOSED)
    assert lease.tries[0].ended - lease.tries[0].confirmed > 60 * 3600


def test_a_limit_waits_for_a_list_but_not_for_ever():
    world = after_a_weekend(float("inf"))
    world.fails = lambda action: "unavailable" if action.call is Call.LIST else ""
    world.step()
    assert world.lease().state is LeaseState.READY
    world.until(LeaseState.RELEASING, seconds=30.0)
    assert world.lease().reason == "the longest rental time (max_hours) is reached"


def test_a_limit_of_no_money_rents_nothing():
    world = a_world(terms=RentalTerms(max_cost_micros=0))
    lease = world.until(LeaseState.CLOSED)
    assert lease.hopeless
    assert world.real == []


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


@pytest.mark.parametrize("limit", ["max_price_micros", "max_cost_micros", "budget_micros"])
def test_a_limit_of_money_permits_only_offers_in_its_currency(limit):
    lease = a_world(terms=RentalTerms(currency="EUR", **{limit: 10_000_000})).until(LeaseState.CLOSED)
    assert lease.reason.endswith("the offers have prices in USD")


def limit_after(world: RentingWorld, jump: float, used: float | None) -> str:
    """The reason of the release after the clock of the control node was set by `jump` seconds while it did
    not run. `used` is the time that the machine states."""
    lease = world.until(LeaseState.READY)
    while world.latest is None or lease.tries[0].machine_id not in world.latest.by_id:
        world.step()
    jumped = replace(lease, tries=tuple(replace(one, confirmed=world.now - jump) for one in lease.tries))
    world.put(jumped)
    world.used = {} if used is None else {lease.id: used}
    return next((one.reason for one in decide(world.situation(), world.now).changed), "")


@pytest.mark.parametrize(("jump", "used"), [(36_000.0, 10.0), (36_000.0, 5_000.0), (-36_000.0, 7_000.0)])
def test_a_wrong_clock_of_the_control_node_ends_no_machine_before_its_limit(jump: float, used: float):
    terms = RentalTerms(max_seconds=7200.0, max_cost_micros=2_500_000)
    assert limit_after(a_world(terms=terms), jump, used) == ""


@pytest.mark.parametrize(("jump", "used"), [(36_000.0, 7200.0), (-36_000.0, 7200.0), (7200.0, None)])
def test_a_limit_is_reached_by_the_time_of_the_machine_whatever_the_clock_shows(
    jump: float, used: float | None
):
    assert limit_after(a_world(terms=RentalTerms(max_seconds=7200.0)), jump, used) == LIMIT_OF_TIME


def test_a_limit_waits_for_the_answer_of_the_machine_after_a_restart():
    world = a_world(terms=RentalTerms(max_seconds=7200.0), awaits_used=True)
    assert limit_after(world, 36_000.0, None) == ""
    again = decide(world.situation(), world.now).again_at
    assert world.now < again <= world.sightings.started + MACHINE_ANSWER_SECONDS
    late = replace(world.sightings, started=world.now - MACHINE_ANSWER_SECONDS)
    world.sightings = late
    (lease,) = decide(world.situation(), world.now).changed
    assert lease.reason == LIMIT_OF_TIME
