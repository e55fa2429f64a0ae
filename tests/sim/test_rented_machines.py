"""The control node rents machines for jobs and returns them, whatever fails on the way."""

from itertools import pairwise

import pytest
from tests.kit.rented_site import AWS, RentedGrid, with_terms

from gridmill.control.background import ImmediateRunner
from gridmill.control.usecases.sites import SiteUseCases
from gridmill.domain.frozen import replace
from gridmill.domain.lease import LeaseState, TryProblem, TryState
from gridmill.domain.lease_cost import IDLE, CostBy, costs
from gridmill.domain.machine import SelfEnd
from gridmill.domain.run import JobRun
from gridmill.domain.states import AttemptState, Cause, JobState
from gridmill.errors import ConflictError, UnavailableError
from gridmill.ports.cloud import LaunchRequest
from gridmill.stores.memory import MemoryStore
from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.account import SimulatedAccount
from gridmill.testing.cloud.catalog import TRAITS
from gridmill.testing.cloud.provider_faults import ProviderFaults
from gridmill.testing.faults import Fault, FaultyStore
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Killed, Simulation


class Switched:
    """A disk that is full or not; see FaultSchedule."""

    is_full = False

    def next(self) -> Fault:
        return Fault.FAIL_BEFORE if self.is_full else Fault.NONE


def job(grid: RentedGrid, run: str = "p-1", name: str = "train") -> JobRun:
    """A job of a run, also after its end."""
    return grid.store.get(JobRun, f"{run}/{name}").noun


def is_ready(grid: RentedGrid):
    """Whether a machine is ready."""
    return lambda: any(one.state is LeaseState.READY for one in grid.leases())


def test_a_machine_is_rented_for_a_job_and_returned_after_it():
    grid = RentedGrid()
    grid.start()
    seconds = grid.until(grid.is_over)
    (lease,) = grid.leases()
    assert job(grid).state is JobState.SUCCEEDED
    assert [one.state for one in lease.tries] == [TryState.ENDED]
    assert lease.tries[0].instance_type == "gpu.one"
    assert (grid.alive(), grid.account.resources_alive()) == (0, ())
    assert grid.world.forgotten[-1] == ("lease-1", LeaseState.CLOSED)
    assert seconds < 240
    assert not [text for text in grid.node.control.problems.lasting.values() if "lease" in text]


def test_the_lease_is_told_in_the_events_of_its_run():
    grid = RentedGrid()
    grid.start()
    grid.until(grid.is_over)
    events = [one for one in grid.store.events(run_id="p-1") if one.type == "lease"]
    told = [one.body["message"] for one in events]
    assert told[0] == "a machine for burst will be rented at aws"
    assert told[1] == "requests gpu.one in north-1a for 1.00 USD per hour"
    assert told[2].startswith("machine ")
    assert told[3].startswith("the machine is ready after ")


def test_the_cost_is_divided_between_the_job_and_the_rest():
    grid = RentedGrid()
    grid.start()
    grid.until(grid.is_over)
    by_job = {row.name: row for row in costs(grid.leases(), CostBy.JOB, 0.0)}
    assert set(by_job) == {"p-1/train", IDLE}
    assert 55 <= by_job["p-1/train"].seconds <= 65
    billed = sum(item.cost_micros for item in grid.account.bill() if item.kind == "machine")
    assert abs(sum(row.micros for row in by_job.values()) - billed) <= billed * 0.1


CALLS = ("launch", "machines", "terminate", "delete")


MOMENTS = [f"{call}:{when}" for call in CALLS for when in ("before", "after")]


@pytest.mark.parametrize(
    "moment",
    [one if one == "launch:after" else pytest.param(one, marks=pytest.mark.long) for one in MOMENTS],
)
def test_a_control_node_that_is_killed_at_a_call_leaves_no_machine(moment):
    grid = RentedGrid()
    killed = []

    def at_call(now: str) -> None:
        if now == moment and not killed:
            killed.append(now)
            raise Killed

    grid.world.provider.at_call = at_call
    grid.start()
    grid.until(grid.is_over)
    assert killed
    assert (grid.alive(), grid.account.resources_alive()) == (0, ())
    assert job(grid).state is JobState.SUCCEEDED
    assert len(grid.account.every) == 1
    assert len(grid.leases()) == 1


@pytest.mark.long
@pytest.mark.parametrize("method", CALLS)
def test_lost_answers_and_errors_leave_no_machine(method):
    grid = RentedGrid()
    grid.account.give_faults(method, "after", "before", "after", "before")
    grid.start()
    grid.until(grid.is_over)
    assert (grid.alive(), grid.account.resources_alive()) == (0, ())
    assert job(grid).state is JobState.SUCCEEDED
    assert len(grid.account.every) == 1


def test_the_next_zone_is_used_when_a_zone_has_no_machine():
    grid = RentedGrid()
    grid.account.use_faults(ProviderFaults(no_machine=frozenset({("north-1a", "*"), ("north-1b", "*")})))
    grid.start()
    grid.until(grid.is_over)
    (lease,) = grid.leases()
    assert [(one.zone, one.problem) for one in lease.tries] == [
        ("north-1a", TryProblem.NO_MACHINE),
        ("north-1b", TryProblem.NO_MACHINE),
        ("south-1a", None),
    ]


@pytest.mark.long
def test_no_free_machine_is_shown_and_ends_when_one_is_free():
    grid = with_terms(region="north", instance_type="gpu.one")
    grid.account.use_faults(ProviderFaults(no_machine=frozenset({("north-1a", "*"), ("north-1b", "*")})))
    grid.start()
    grid.until(lambda: any("no machine" in one.problem for one in grid.leases()))
    shown = [text for text in grid.node.control.problems.lasting.values() if "lease-1" in text]
    assert shown == ["lease lease-1 at aws: no machine: no free gpu.one in north-1a, north-1b"]
    grid.account.use_faults(ProviderFaults())
    grid.until(grid.is_over)
    assert job(grid).state is JobState.SUCCEEDED


def test_terms_that_no_offer_meets_fail_the_job_with_the_reason():
    grid = with_terms(max_price="0.5", instance_type="gpu.one")
    grid.start()
    grid.until(grid.is_over)
    assert grid.account.every == {}
    assert job(grid).state is JobState.FAILED
    assert "a price above 0.5000 USD per hour" in job(grid).message


def test_a_defective_machine_costs_the_job_no_attempt():
    grid = RentedGrid()
    grid.start()
    grid.until(lambda: bool(grid.account.every))
    (first,) = grid.account.every
    grid.world.faulty.add(first)
    grid.until(grid.is_over)
    (lease,) = grid.leases()
    assert [one.problem for one in lease.tries] == [TryProblem.FAULT, None]
    assert (job(grid).attempts, job(grid).losses) == (1, 0)
    assert grid.alive() == 0


def test_a_machine_that_is_ended_by_hand_closes_its_lease_within_a_minute():
    grid = RentedGrid(behave=lambda order: Behaviour(seconds=300.0))
    grid.start()
    grid.until(lambda: grid.clock.monotonic() > 200.0)
    grid.account.end_by_hand(next(iter(grid.account.every)))
    grid.until(lambda: not grid.leases()[0].is_open, seconds=60.0)
    assert "ended at the provider" in grid.leases()[0].reason
    grid.until(grid.is_over)
    assert job(grid).state is JobState.SUCCEEDED
    assert len(grid.leases()) == 2


@pytest.mark.long
@pytest.mark.parametrize("phase", [LeaseState.PLANNED, LeaseState.LAUNCHING, LeaseState.BOOTING, "running"])
def test_a_stopped_run_returns_its_machine_in_every_phase(phase):
    grid = RentedGrid()
    grid.start()
    if phase == "running":
        grid.until(lambda: job(grid).state is JobState.RUNNING)
    else:
        grid.until(lambda: any(one.state is phase for one in grid.leases()))
    grid.stop("p-1")
    assert grid.until(lambda: not grid.alive()) <= 10
    # the lease is closed after the lag of the provider's lists
    assert grid.until(grid.is_over) <= 150
    assert (grid.alive(), grid.account.resources_alive()) == (0, ())


def test_the_longest_rental_time_ends_the_machine_and_fails_its_job():
    grid = RentedGrid(settings={"max_hours": "2m"}, behave=lambda order: Behaviour(seconds=3600.0))
    grid.start()
    grid.until(grid.is_over)
    assert job(grid).state is JobState.FAILED
    assert "max_hours" in job(grid).message
    assert len(grid.leases()) == 1
    assert grid.account.cost_micros() < 1_000_000 // 10


@pytest.mark.long
def test_credentials_that_are_revoked_are_shown_until_they_are_renewed():
    grid = RentedGrid()
    grid.start()
    grid.until(is_ready(grid))
    grid.account.credentials_end = grid.clock.monotonic()
    grid.until(lambda: job(grid).state is JobState.SUCCEEDED)
    began = grid.clock.monotonic()
    grid.until(lambda: grid.clock.monotonic() > began + 600)
    shown = " ".join(grid.node.control.problems.lasting.values())
    assert "refuses the credentials" in shown
    assert "costs 1.00 USD per hour; `gridmill stop lease lease-1` ends it" in shown
    assert grid.leases()[0].state is LeaseState.RELEASING
    grid.account.credentials_end = float("inf")
    assert grid.until(grid.is_over) <= 120
    assert grid.alive() == 0


@pytest.mark.long
def test_machines_of_an_unknown_lease_are_shown_and_their_numbers_are_not_used():
    grid = RentedGrid()
    request = LaunchRequest(
        token="old-token",
        lease="lease-7",
        owner="grid",
        region="north-1",
        zone="north-1a",
        instance_type="gpu.one",
        image="",
        spot=False,
        disk_bytes=2**30,
        ssh_public_key="",
        user_data="",
        max_seconds=10**6,
    )
    grid.account.launch(request)
    grid.start()
    grid.until(lambda: job(grid).state is JobState.SUCCEEDED)
    grid.until(lambda: bool(grid.leases()) and not grid.leases()[-1].is_open)
    shown = " ".join(grid.node.control.problems.lasting.values())
    assert "lease-7, which is not in the store: it costs 1.00 USD per hour. `gridmill reap" in shown
    assert [one.id for one in grid.leases()] == ["lease-8"]
    assert grid.alive() == 1


def test_offers_that_cannot_be_read_are_shown_while_a_lease_waits_for_them():
    grid = RentedGrid()

    def broken(region: str = "", instance_type: str = ""):
        raise UnavailableError("the price list does not answer")

    grid.world.provider.offers = broken
    grid.start()
    grid.until(lambda: bool(grid.node.control.rentals.at(AWS, 0.0).problems))
    grid.advance()
    assert [one.state for one in grid.leases()] == [LeaseState.PLANNED]
    shown = " ".join(grid.node.control.problems.lasting.values())
    assert "site aws: the provider's offers cannot be read: the price list does not answer" in shown


def test_a_list_that_cannot_be_read_is_shown_without_a_lease():
    grid = RentedGrid()

    def broken(owner: str = ""):
        raise UnavailableError("the list does not answer")

    grid.world.provider.machines = broken
    grid.start()
    grid.until(lambda: bool(grid.node.control.rentals.at(AWS, 0.0).problems))
    grid.advance()
    assert grid.leases() == []
    shown = " ".join(grid.node.control.problems.lasting.values())
    assert "site aws: the provider's machines cannot be listed: the list does not answer" in shown


def test_a_site_with_an_open_lease_cannot_be_removed():
    grid = RentedGrid()
    grid.start()
    grid.until(is_ready(grid))
    grid.node.control.ledger.snapshot.resources.clear()
    grid.node.control.ledger.snapshot.job_runs.clear()
    with pytest.raises(ConflictError, match="lease lease-1 is open"):
        SiteUseCases(grid.node).remove_site(AWS)


@pytest.mark.long
def test_the_rate_limits_of_the_provider_are_respected_for_many_leases():
    clock = FakeClock()
    traits = replace(TRAITS[SelfEnd.SHUTDOWN], launch_gap_seconds=12.0, call_gap_seconds=1.0)
    grid = RentedGrid(clock=clock, account=SimulatedAccount(clock, traits=traits), workers=4)
    grid.start("a", "b", "c", "d")
    grid.until(grid.is_over, seconds=7200.0)
    launches = [one.at for one in grid.account.calls if one.method == "launch"]
    assert all(b - a >= 12.0 for a, b in pairwise(launches))
    assert (len(grid.leases()), grid.alive()) == (4, 0)


def test_a_control_node_that_opens_its_sites_shows_no_problem_of_their_leases():
    grid = RentedGrid()
    grid.start()
    grid.until(is_ready(grid))
    grid.node = Simulation.new_node(grid, {})
    shown = grid.node.control.problems.lasting
    grid.until(lambda: grid.node.control.rentals.sites)
    assert not [text for text in shown.values() if "not open" in text]
    seconds = grid.until(lambda: any("not open" in text for text in shown.values()))
    assert seconds >= 25


def test_a_used_budget_stops_further_rentals_and_is_shown():
    grid = with_terms(budget="0.01")
    grid.start()
    grid.until(grid.is_over)
    grid.start(pipeline="q")
    shown = grid.node.control.problems.lasting
    grid.until(lambda: "budget of resource burst" in shown)
    told = shown["budget of resource burst"]
    assert told.startswith("the budget of resource burst for 2023-11, 0.0100 USD, is used up; ")
    assert grid.warnings.count(told) == 1  # although the cost grows
    assert len(grid.leases()) == 1


def test_a_machine_that_hangs_is_replaced_after_the_dead_man_time():
    grid = RentedGrid(behave=lambda order: Behaviour(seconds=120.0), settings={"dead_man": "5m"})
    grid.start()
    grid.until(lambda: job(grid).state is JobState.RUNNING)
    (pod,) = grid.world.pods
    grid.account.hang_machine(next(iter(grid.account.every)))
    grid.world.cut_link(pod, 10_000.0)
    grid.world.freeze(pod, 10_000.0)
    grid.until(lambda: not grid.leases()[0].is_open, seconds=480.0)
    assert grid.leases()[0].reason.startswith("the machine has not answered for 5 m")
    grid.until(grid.is_over)
    assert (job(grid).state, job(grid).losses, grid.alive()) == (JobState.SUCCEEDED, 0, 0)


def test_a_control_node_whose_disk_is_full_sends_no_heartbeat():
    grid = RentedGrid(store=FaultyStore(MemoryStore(), Switched()))
    grid.start()
    grid.until(lambda: job(grid).state is JobState.RUNNING)
    began = grid.clock.monotonic()
    grid.store.schedule.is_full = True
    while grid.clock.monotonic() < began + 600:
        grid.advance()
    assert grid.alive() == 1, "the end of the machine cannot be stored"
    assert grid.world.heartbeats[-1] < began + 120
    grid.store.schedule.is_full = False
    grid.until(grid.is_over)
    beats = grid.world.heartbeats
    assert beats[-1] > began + 600


def test_heartbeats_are_frequent_while_nothing_happens():
    grid = RentedGrid(behave=lambda order: Behaviour(seconds=900.0), settings={"dead_man": "1m"})
    grid.start()
    grid.until(grid.is_over)
    assert max(after - before for before, after in pairwise(grid.world.heartbeats)) <= 16


class Recording(ImmediateRunner):
    """Notes the keys of its work."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[str] = []

    def submit(self, key, act, then) -> None:
        self.keys.append(key)
        super().submit(key, act, then)


def test_connections_are_closed_apart_from_the_calls_that_end_machines():
    grid = RentedGrid()
    rentals = grid.node.control.rentals
    rentals.calls, rentals.forgetting = Recording(), Recording()
    grid.start()
    grid.until(grid.is_over)
    assert len(rentals.forgetting.keys) == len(grid.world.forgotten) >= 2
    assert all("forget lease-1" in key for key in rentals.forgetting.keys)
    assert not [key for key in rentals.calls.keys if "forget" in key]


def failing(**terms: str) -> RentedGrid:
    """A grid whose job fails after a minute on a rented machine, with these terms."""
    failure = Behaviour(seconds=60.0, outcome=AttemptState.FAILED, cause=Cause.EXIT)
    return RentedGrid(behave=lambda order: failure, settings=terms)


def test_after_a_failure_the_machine_is_kept_for_keep_on_failure():
    grid = failing(keep_on_failure="30m")
    grid.start()
    grid.until(lambda: job(grid).state is JobState.FAILED)
    grid.until(lambda: not grid.node.control.ledger.snapshot.deployments)
    assert grid.alive() == 1
    (lease,) = grid.leases()
    assert lease.state is LeaseState.READY, "the machine can still be reached with `gridmill ssh`"
    kept = grid.until(lambda: not grid.alive(), 3600.0)
    assert grid.leases()[0].failed is not None
    assert 1700 <= kept <= 1830
    grid.until(grid.is_over)
    assert grid.account.resources_alive() == ()


def test_a_machine_that_is_kept_after_a_failure_ends_at_its_limits():
    for limit, least, most in ({"max_hours": "20m"}, 900, 1260), ({"max_cost": "0.25"}, 600, 960):
        grid = failing(keep_on_failure="15m" if "max_hours" in limit else "30m", **limit)
        grid.start()
        grid.until(lambda grid=grid: grid.alive() == 1)
        lived = grid.until(lambda grid=grid: not grid.alive(), 3600.0)
        assert least <= lived <= most, limit
        assert job(grid).state is JobState.FAILED


def test_without_a_failure_no_machine_is_kept():
    grid = with_terms(keep_on_failure="30m")
    grid.start()
    grid.until(lambda: job(grid).state is JobState.SUCCEEDED)
    assert grid.until(lambda: not grid.alive()) <= 120


def test_no_budget_counts_as_used_before_the_first_list_after_a_restart():
    grid = with_terms(budget="1.50")
    grid.start()
    grid.until(lambda: job(grid).state is JobState.RUNNING)
    grid.clock.advance(3 * 3600.0)  # the control node does not run, and the machine ends itself meanwhile
    grid.account.settle()
    listed = grid.world.provider.machines

    def silent(owner: str = ""):
        raise UnavailableError("the list does not answer")

    grid.world.provider.machines = silent
    grid.control_dies()
    for _ in range(3):
        grid.advance()
    shown = " ".join(grid.node.control.problems.lasting.values())
    assert "the list does not answer" in shown
    assert "budget of burst" not in shown
    grid.world.provider.machines = listed
    grid.until(grid.is_over)
    assert job(grid).state is JobState.SUCCEEDED
