"""Rented machines end whatever fails: control node, provider, network, disk and clock."""

from dataclasses import replace
from itertools import islice
from math import inf

import pytest

from gridmill.domain.machine import SelfEnd
from gridmill.stores.memory import MemoryStore
from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.account import SimulatedAccount
from gridmill.testing.cloud.kill_test import (
    DEAD_MAN_SECONDS,
    KILLS,
    LATE_SECONDS,
    LONG_JOB_SECONDS,
    Disaster,
    Outcome,
    Schedule,
    every_step,
    random_schedules,
    tell,
)
from gridmill.testing.cloud.rental_oracle import judge
from gridmill.testing.cloud.rental_simulation import RentalSimulation

RESTARTS = (0.0, 60.0, inf)
FAULTS = len(Disaster) - 1
MODES = (SelfEnd.SHUTDOWN, SelfEnd.PROVIDER_TIMER, SelfEnd.OWN_CALL, SelfEnd.NONE)


def story(schedule: Schedule) -> Outcome:
    return tell(schedule, MemoryStore())


def check(*schedules: Schedule) -> None:
    for schedule in schedules:
        outcome = story(schedule)
        assert outcome.problems() == (), f"{schedule}: {outcome.verdict}"


def quiet(mode: SelfEnd) -> Outcome:
    return story(Schedule(mode=mode, disaster=Disaster.NONE, at=0))


@pytest.mark.parametrize("mode", MODES)
def test_an_undisturbed_rental_leaves_nothing(mode: SelfEnd) -> None:
    outcome = quiet(mode)
    assert outcome.problems() == ()
    assert outcome.verdict.machines == 1
    assert outcome.verdict.beyond_seconds < 5.0


@pytest.mark.parametrize("disaster", KILLS)
def test_a_control_node_that_is_killed_at_some_steps_leaves_nothing(disaster: Disaster) -> None:
    check(
        *(
            Schedule(
                mode=SelfEnd.SHUTDOWN, disaster=disaster, at=at, restart_after=after, lag=at > 8, seed=at
            )
            for at, after in ((4, 0.0), (7, 60.0), (9, 0.0), (12, inf), (15, 0.0))
        )
    )


def test_each_kind_of_fault_leaves_nothing() -> None:
    check(*random_schedules(SelfEnd.SHUTDOWN, 1, FAULTS, seconds=200.0, steps=18))


def test_a_machine_that_hangs_is_given_up_and_its_job_runs_again() -> None:
    hang = Schedule(mode=SelfEnd.PROVIDER_TIMER, disaster=Disaster.DEFECT, at=96.6, seed=2)
    outcome = story(hang)
    assert outcome.problems() == ()
    assert outcome.verdict.machines == 2


def test_the_time_of_a_machine_that_hung_while_it_booted_is_not_taken_from_the_job() -> None:
    hang = Schedule(
        mode=SelfEnd.PROVIDER_TIMER, disaster=Disaster.DEFECT, at=10.0, seed=2, job_seconds=LONG_JOB_SECONDS
    )
    outcome = story(hang)
    assert outcome.problems() == ()
    assert outcome.verdict.machines == 2


@pytest.mark.long
@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(
            mode=SelfEnd.PROVIDER_TIMER,
            disaster=Disaster.NETWORK,
            at=33.05022464543078,
            lag=True,
            seed=1884237172,
            also=Disaster.DEFECT,
            also_at=76.00364320710133,
            job_seconds=LONG_JOB_SECONDS,
        ),
        Schedule(
            mode=SelfEnd.NONE,
            disaster=Disaster.DEFECT,
            at=105.7206896341845,
            seed=700228234,
            also=Disaster.SPOT,
            also_at=74.64638343708327,
            job_seconds=LONG_JOB_SECONDS,
        ),
    ],
    ids=["network", "spot"],
)
def test_two_faults_while_a_machine_boots_take_no_time_from_a_long_job(schedule: Schedule) -> None:
    assert story(schedule).problems() == ()


def test_a_machine_that_ended_itself_before_it_was_ready_is_replaced_after_a_late_restart() -> None:
    late = Schedule(
        mode=SelfEnd.SHUTDOWN, disaster=Disaster.INTERRUPT, at=10.0, restart_after=LATE_SECONDS, seed=1
    )
    outcome = story(late)
    assert outcome.problems() == ()
    assert outcome.verdict.machines == 2


def test_a_spot_machine_that_is_interrupted_is_replaced() -> None:
    outcome = story(Schedule(mode=SelfEnd.SHUTDOWN, disaster=Disaster.SPOT, at=80.0))
    assert outcome.problems() == ()
    assert outcome.verdict.machines == 2


@pytest.mark.parametrize("after", RESTARTS)
def test_ctrl_c_at_the_control_node_leaves_nothing(after: float) -> None:
    outcome = story(
        Schedule(mode=SelfEnd.SHUTDOWN, disaster=Disaster.INTERRUPT, at=80.0, restart_after=after)
    )
    assert outcome.problems() == ()
    assert outcome.is_over is (after < inf)
    assert outcome.verdict.machines == 1


def test_ctrl_c_in_the_client_of_a_run_ends_its_machine() -> None:
    outcome = story(Schedule(mode=SelfEnd.SHUTDOWN, disaster=Disaster.CLIENT, at=70.0))
    assert outcome.problems() == ()
    assert outcome.cost_micros < quiet(SelfEnd.SHUTDOWN).cost_micros, "the job did not run to its end"


def test_two_faults_at_the_same_time_leave_nothing() -> None:
    check(
        Schedule(
            mode=SelfEnd.OWN_CALL,
            disaster=Disaster.KILL_AFTER_CALL,
            at=9,
            restart_after=60.0,
            also=Disaster.LOST_ANSWERS,
            also_at=20.0,
            seed=4,
        ),
        Schedule(mode=SelfEnd.SHUTDOWN, disaster=Disaster.SPOT, at=80.0, also=Disaster.NETWORK, also_at=70.0),
    )


def left_alone(*, exports: bool, after: float = inf) -> Outcome:
    """The control node ends while a job runs that takes longer than the dead-man time."""
    return story(
        Schedule(
            mode=SelfEnd.SHUTDOWN,
            disaster=Disaster.INTERRUPT,
            at=200.0,
            restart_after=after,
            job_seconds=LONG_JOB_SECONDS,
            exports=exports,
        )
    )


@pytest.mark.parametrize("exports", [False, True])
def test_a_running_job_holds_off_the_timer_only_if_a_bucket_takes_its_result(exports: bool) -> None:
    outcome = left_alone(exports=exports)
    assert outcome.problems() == ()
    most = DEAD_MAN_SECONDS + 60.0
    assert (outcome.verdict.alone_seconds > most) is exports
    assert outcome.verdict.alone_seconds < LONG_JOB_SECONDS + most


@pytest.mark.parametrize(("exports", "machines"), [(False, 2), (True, 1)])
def test_a_late_control_node_takes_an_exported_result_or_repeats_the_job(
    exports: bool, machines: int
) -> None:
    outcome = left_alone(exports=exports, after=LATE_SECONDS)
    assert outcome.problems() == ()
    assert outcome.verdict.machines == machines


def test_the_judge_notices_a_machine_that_waits_too_long_for_its_control_node() -> None:
    outcome = left_alone(exports=True)
    wrong = replace(outcome, schedule=replace(outcome.schedule, exports=False))
    assert [one for one in wrong.problems() if "without contact" in one]


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("disaster", KILLS)
def test_a_control_node_that_is_killed_at_each_step_leaves_nothing(mode: SelfEnd, disaster: Disaster) -> None:
    steps = every_step(mode, RESTARTS, quiet=quiet(mode))
    check(*islice((one for one in steps if one.disaster is disaster), 0, None, 4))


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_many_seeded_faults_leave_nothing(mode: SelfEnd) -> None:
    check(*random_schedules(mode, 1, 4 * FAULTS, seconds=220.0, steps=25, seed=1))


@pytest.mark.long
def test_many_machines_at_once_leave_nothing() -> None:
    check(*random_schedules(SelfEnd.SHUTDOWN, 12, FAULTS, seconds=220.0, steps=80))


def test_two_control_nodes_on_one_account_never_touch_each_other() -> None:
    clock = FakeClock()
    account = SimulatedAccount(clock)
    both = [
        RentalSimulation(account=account, clock=clock, store=MemoryStore(), owner=owner, seed=seed)
        for seed, owner in enumerate(("grid-a", "grid-b"))
    ]
    for one in both:
        one.declare()
        one.submit(1)
    for _ in range(5_000):
        if all(one.is_over() for one in both):
            break
        for one in both:
            one.advance(until=clock.monotonic() + 1.0)
    for one in both:
        assert judge(one.story()).problems() == ()
    assert {one.request.owner for one in account.every.values()} == {"grid-a", "grid-b"}


def test_a_store_that_was_restored_from_an_old_copy_ends_no_machine() -> None:
    clock = FakeClock()
    account = SimulatedAccount(clock)
    lost = RentalSimulation(account=account, clock=clock, store=MemoryStore(), job_seconds=600.0)
    lost.declare()
    lost.submit(1)
    assert lost.run_until(lambda: bool(lost.world.executions), 600.0)
    lost.restart_after = inf
    lost.die()
    (machine,) = account.machines_alive()

    old = RentalSimulation(account=account, clock=clock, store=MemoryStore(), seed=1)
    old.declare()
    old.run_until(lambda: False, 300.0)
    assert account.machines_alive() == (machine,)
    shown = [text for text in old.grid.node.control.problems.lasting.values() if machine.id in text]
    assert len(shown) == 1
    assert "gridmill reap" in shown[0]
    assert "per hour" in shown[0]
    old.run_until(lambda: False, 2000.0)
    assert account.machines_alive() == ()  # its own timer has ended it
    assert replace(lost.story(), died=inf).account is account
