from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from gridmill.control.renting_state import Rentals, SiteRental
from gridmill.control.steps.rental_calls import DELETE_AGAIN_SECONDS, finish_call
from gridmill.domain.lease import LaunchTry, Lease, LeaseState, RentalTerms
from gridmill.domain.machine import Leftover, Machine, MachineState
from gridmill.errors import RefusedError
from gridmill.scheduler.rental_calls import Action, Call


def test_a_leftover_that_the_last_list_still_names_is_not_deleted_again_at_once():
    left = Leftover(kind="security-group", id="sg-1", region="us-east-1", lease="lease-1", owner="grid-a")
    action = Action(call=Call.DELETE, key="sg-1", leftover=left)
    rental = SiteRental(started=0.0, running={action.id})
    done: Future[None] = Future()
    done.set_result(None)
    finish_call(SimpleNamespace(now=lambda: 100.0), "aws", rental, action, done)
    assert rental.calls().not_before[action.id] == 100.0 + DELETE_AGAIN_SECONDS
    assert action.id not in rental.calls().running


def test_a_machine_of_no_open_lease_that_cannot_be_ended_is_a_problem_until_it_is_ended():
    machine = Machine(
        id="i-9",
        provider="aws",
        region="us-east-1",
        zone="us-east-1a",
        instance_type="g5.xlarge",
        state=MachineState.RUNNING,
    )
    action = Action(call=Call.TERMINATE, key="i-9", machine=machine)
    rental = SiteRental(started=0.0, failures={action.id: 2})
    renting = SimpleNamespace(now=lambda: 100.0, ledger=SimpleNamespace(snapshot=SimpleNamespace(leases={})))
    refused: Future[None] = Future()
    refused.set_exception(RefusedError("the machine is protected"))
    finish_call(renting, "aws", rental, action, refused)
    assert rental.problems == {
        "terminate i-9": "i-9: the machine cannot be ended now: the machine is protected"
    }
    done: Future[None] = Future()
    done.set_result(None)
    finish_call(renting, "aws", rental, action, done)
    assert rental.problems == {}


def test_a_closed_lease_is_known_at_all_sites_because_two_sites_may_use_one_account():
    rentals = Rentals()
    rentals.at("aws", 0.0)
    other = rentals.at("aws-2", 0.0)
    one = LaunchTry(number=1, token="t-1", region="r", zone="z", instance_type="g5.xlarge")
    lease = Lease(
        id="lease-1",
        provider="aws",
        owner="grid",
        resource="burst",
        deployment_id="burst-1",
        pod_id="burst-1.0",
        state=LeaseState.CLOSED,
        terms=RentalTerms(),
        tries=(one,),
    )
    rentals.note_closed(lease)
    assert (other.closed["lease-1"].provider, other.closed["lease-1"].tokens) == ("aws", {"t-1"})


def test_a_launch_that_fails_in_an_unexpected_way_counts_as_sent():
    action = Action(call=Call.LAUNCH, key="token-1")
    rental = SiteRental(started=0.0, running={action.id})
    done: Future[None] = Future()
    done.set_exception(ValueError("an answer that nobody expects"))
    with pytest.raises(ValueError, match="nobody expects"):
        finish_call(SimpleNamespace(now=lambda: 100.0), "aws", rental, action, done)
    assert rental.sightings().sent_at("token-1") == 100.0
    assert rental.sightings().repeats == {"token-1": 1}
