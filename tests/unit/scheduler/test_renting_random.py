"""Whatever happens, no machine is lost: random faults and crashes, then a provider that answers."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.renting_world import RentingWorld, a_deployment

from gridmill.domain.lease import LeaseState, RentalTerms, TryProblem
from gridmill.scheduler.rental_calls import Call

_LAUNCH = ("", "", "lost", "unavailable", TryProblem.NO_MACHINE, TryProblem.QUOTA, TryProblem.REFUSED)


def _faults(rng: random.Random, share: float):
    def fails(action):
        if rng.random() >= share:
            return ""
        if action.call is Call.LAUNCH:
            return rng.choice(_LAUNCH)
        if action.call is Call.PREPARE:
            return rng.choice(("", "fault", "unavailable"))
        return rng.choice(("", "unavailable"))

    return fails


def _disturb(world: RentingWorld, rng: random.Random) -> None:
    chance = rng.random()
    if chance < 0.05:
        world.crash()
    elif chance < 0.08 and world.deployments:
        world.release(rng.choice(sorted(world.deployments)))
    elif chance < 0.10 and world.leases and world.lease().is_open:
        world.stop_lease()
    elif chance < 0.12 and world.alive():
        rng.choice(world.alive()).ends_at = world.now
    elif chance < 0.16 and len(world.deployments) < 4:
        number = len(world.leases) + len(world.closed) + len(world.deployments) + 1
        world.deployments[f"burst-{number}"] = a_deployment(f"burst-{number}")


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(min_value=0, max_value=2**32), share=st.floats(min_value=0.0, max_value=0.9))
def test_no_machine_is_lost(seed, share):
    """The world checks at each commit that no second try is open, that no token changes its request, and that
    nothing of a closed lease exists."""
    rng = random.Random(seed)
    terms = rng.choice([RentalTerms(), RentalTerms(spot=True), RentalTerms(max_seconds=90.0)])
    world = RentingWorld(rng=rng, terms=terms, fails=_faults(rng, share))
    for _ in range(rng.randrange(20, 150)):
        _disturb(world, rng)
        if rng.random() < 0.05:
            world.commit()
            world.crash()
        world.step(rng.choice((0.1, 1.0, 1.0, 5.0)))
    world.fails = None
    for name in list(world.deployments):
        world.release(name)
    end = world.now + 300
    while world.leases or world.alive() or world.leftovers:
        world.step()
        assert world.now < end, (world.leases, world.alive(), world.leftovers)
    assert all(one.state is LeaseState.CLOSED for one in world.closed.values())
