"""The limits of time and money of rented machines, and what they count."""

import pytest
from tests.kit.renting_world import LAG, RentingWorld, a_deployment

from gridmill.domain.frozen import replace
from gridmill.domain.lease import LeaseState, RentalTerms, TryProblem, lease_cost_micros
from gridmill.domain.machine import ProviderTraits, SelfEnd
from gridmill.scheduler.rental_calls import Call
from gridmill.scheduler.renting import LIMIT_OF_MONEY, LIMIT_OF_TIME, MACHINE_ANSWER_SECONDS, decide


def a_world(**fields) -> RentingWorld:
    """A world with one starting deployment."""
    return RentingWorld(deployments={"burst-1": a_deployment()}, **fields)


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
