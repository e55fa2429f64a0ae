"""Leases: their state changes and their costs."""

import pytest

from gridmill.domain.frozen import replace
from gridmill.domain.lease import (
    LEASE_MOVES,
    LaunchTry,
    Lease,
    LeaseState,
    RentalTerms,
    TryState,
    check_lease_move,
    cost_micros,
    lease_cost_micros,
)
from gridmill.errors import ConflictError

TRY = LaunchTry(
    number=1,
    token="lease-1-1",
    region="us-east-1",
    zone="us-east-1a",
    instance_type="g5.xlarge",
    price_micros=1_006_000,
    state=TryState.CONFIRMED,
    confirmed=1000.0,
)


def make(*tries: LaunchTry, state: LeaseState = LeaseState.BOOTING) -> Lease:
    """A lease with these tries."""
    return Lease(
        id="lease-1",
        provider="aws",
        owner="home-1",
        resource="burst",
        deployment_id="burst-1",
        pod_id="burst-1.0",
        state=state,
        terms=RentalTerms(),
        tries=tries,
    )


def test_a_lease_is_closed_only_after_its_release_or_before_its_first_request() -> None:
    closing = {state for state, moves in LEASE_MOVES.items() if LeaseState.CLOSED in moves}
    assert closing == {LeaseState.PLANNED, LeaseState.RELEASING}
    with pytest.raises(ConflictError, match="lease-1 is booting and cannot become closed"):
        check_lease_move(make(TRY), LeaseState.CLOSED)


def test_every_open_state_can_become_releasing() -> None:
    unable = {state for state, moves in LEASE_MOVES.items() if LeaseState.RELEASING not in moves}
    assert unable == {LeaseState.RELEASING, LeaseState.CLOSED}


def test_a_lease_whose_tries_are_over_has_no_machine_although_it_is_open() -> None:
    over = [replace(TRY, state=state) for state in (TryState.REFUSED, TryState.ABSENT, TryState.ENDED)]
    lease = make(*over, state=LeaseState.RELEASING)
    assert lease.is_open
    assert not lease.may_have_machine
    assert replace(lease, leftovers=("vol-1",)).may_have_machine
    for state in (TryState.WRITTEN, TryState.CONFIRMED):
        assert make(*over, replace(TRY, state=state)).may_have_machine


def test_the_cost_is_rounded_up_and_at_least_one_minute_is_billed() -> None:
    assert cost_micros(TRY, 4600.0) == 1_006_000
    assert cost_micros(TRY, 1001.0) == cost_micros(TRY, 1060.0) == 16_767
    assert cost_micros(replace(TRY, ended=1120.0), 9999.0) == 33_534


def test_a_request_without_a_machine_costs_nothing_and_an_unknown_price_has_no_cost() -> None:
    assert cost_micros(replace(TRY, confirmed=None), 9999.0) == 0
    unknown = replace(TRY, price_micros=None)
    assert cost_micros(unknown, 9999.0) is None
    assert lease_cost_micros(make(replace(TRY, ended=4600.0), TRY), 4600.0) == 2 * 1_006_000
    assert lease_cost_micros(make(TRY, unknown), 4600.0) is None
