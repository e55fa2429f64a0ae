"""Thousands of seeded fault schedules: nothing is lost, nothing runs twice at the same time."""

from random import Random

import pytest

from gridmill.model.job import CommandSpec, Job
from gridmill.model.message import Order
from gridmill.model.pipeline import Pipeline
from gridmill.model.run import Attempt, JobRun, Run
from gridmill.model.state import FINISHED_RUNS, AttemptState, JobState, RunState
from gridmill.stores.memory import make as make_memory
from gridmill.testing.faults import FaultySchedule, FaultyStore
from gridmill.testing.simulated import Behaviour, pick
from gridmill.testing.simulation import Simulation, random_pipeline

SCHEDULES = 2000
GROUP = 100


def command(name: str, **settings) -> Job:
    return Job(name=name, command=CommandSpec(run="true"), memory_bytes=2**30, **settings)


def simulate(seed: int) -> Simulation:
    random = Random(seed)
    store = FaultyStore(make_memory(), FaultySchedule(seed, fail_before=0.02, fail_after=0.02))
    outcomes: dict[str, Behaviour] = {}

    def behave(order: Order) -> Behaviour:
        if order.attempt_id not in outcomes:
            outcomes[order.attempt_id] = pick(random, order, failing=0.05, killed=0.03)
        return outcomes[order.attempt_id]

    simulation = Simulation(store=store, behave=behave, seed=seed)
    retrying(simulation, simulation.declare_site)
    for index in range(random.randint(1, 3)):
        pipeline = random_pipeline(
            random, f"p{index}", lambda name: command(name, retries=random.randint(0, 2))
        )
        retrying(simulation, lambda pipeline=pipeline: simulation.submit(pipeline))
    for _ in range(random.randint(0, 40)):
        misfortune(simulation, random)
        for _ in range(random.randint(1, 15)):
            simulation.advance()
    store.schedule = FaultySchedule(seed, fail_before=0.0, fail_after=0.0)
    assert simulation.run_until(lambda: over(simulation), at_most_steps=20_000), f"seed {seed} never ends"
    return simulation


def retrying(simulation: Simulation, act) -> None:
    from gridmill.errors import GridmillError

    for _ in range(50):
        try:
            act()
            return
        except GridmillError:
            simulation.node.control.ledger.doubtful = True
    raise AssertionError("the store failed 50 times in a row")


def misfortune(simulation: Simulation, random: Random) -> None:
    pods = sorted(simulation.world.pods)
    match random.randrange(6):
        case 0:
            simulation.control_dies()
        case 1 if pods:
            simulation.world.kill_pod(random.choice(pods))
        case 2 if pods:
            simulation.world.cut_link(random.choice(pods), random.uniform(0.1, 90.0))
        case 3:
            simulation.clock.jump(random.uniform(-86_400, 86_400))
        case 4:
            simulation.control_dies()
            simulation.clock.jump(random.uniform(-86_400, 86_400))
        case _:
            pass


def over(simulation: Simulation) -> bool:
    snapshot = simulation.node.control.ledger.snapshot
    return not simulation.node.control.ledger.doubtful and not snapshot.runs and not simulation.world.pods


def nouns(simulation: Simulation, kind):
    return [record.noun for record in simulation.store.list(kind)]


def check(simulation: Simulation) -> None:
    jobs = {job.id: job for job in nouns(simulation, JobRun)}
    attempts = nouns(simulation, Attempt)
    assert all(run.state in FINISHED_RUNS for run in nouns(simulation, Run))
    never_two_at_once(simulation)
    for job in jobs.values():
        mine = [a for a in attempts if a.job_run_id == job.id]
        succeeded = [a for a in mine if a.state == AttemptState.SUCCEEDED]
        assert len(succeeded) == (job.state == JobState.SUCCEEDED)
        failed = [a for a in mine if a.state == AttemptState.FAILED]
        assert len(failed) <= job.job.retries + 2  # the larger attempt after a memory kill on top
        assert {a.id for a in mine} == {f"{job.run_id}.{job.job.name}.{n + 1}" for n in range(len(mine))}
    no_log_gap(simulation, attempts)
    needs_first(simulation, jobs)


def never_two_at_once(simulation: Simulation) -> None:
    by_job: dict[tuple[str, str], list] = {}
    ids = [e.order.attempt_id for e in simulation.world.executions]
    assert len(ids) == len(set(ids)), "an attempt was started twice"
    for execution in simulation.world.executions:
        by_job.setdefault((execution.order.run_id, execution.order.job.name), []).append(execution)
    for executions in by_job.values():
        executions.sort(key=lambda e: e.began)
        for earlier, later in zip(executions, executions[1:], strict=False):
            assert earlier.ended is not None
            assert earlier.ended <= later.began, f"{earlier.order.attempt_id} overlaps the next"


def no_log_gap(simulation: Simulation, attempts: list[Attempt]) -> None:
    behaviours = {e.order.attempt_id: e.behaviour for e in simulation.world.executions}
    for attempt in attempts:
        if attempt.state == AttemptState.SUCCEEDED:
            events = simulation.store.events(run_id=attempt.run_id, limit=100_000)
            lines = [e.body["text"] for e in events if e.attempt_id == attempt.id and e.type == "log"]
            assert lines == [f"line {n}\n" for n in range(behaviours[attempt.id].lines)]


def needs_first(simulation: Simulation, jobs: dict[str, JobRun]) -> None:
    ended = {
        f"{e.order.run_id}/{e.order.job.name}": e.ended
        for e in simulation.world.executions
        if e.state == AttemptState.SUCCEEDED
    }
    for execution in simulation.world.executions:
        job = jobs[f"{execution.order.run_id}/{execution.order.job.name}"]
        assert all(ended[need] <= execution.began for need in job.needs)


@pytest.mark.parametrize("first", range(0, SCHEDULES, GROUP))
def test_every_seeded_schedule_of_faults_ends_right(first: int):
    for seed in range(first, first + GROUP):
        check(simulate(seed))


def test_a_quiet_grid_runs_everything_once_and_gives_everything_back():
    simulation = Simulation(store=make_memory(), behave=lambda order: Behaviour(seconds=1.0))
    simulation.declare_site()
    jobs = tuple(command(f"j{i}", needs=(f"j{i - 1}",) if i else ()) for i in range(5))
    run = simulation.submit(Pipeline(name="line", jobs=jobs))
    assert simulation.run_until(lambda: over(simulation))
    record = simulation.store.get(Run, run.id)
    assert record.noun.state == RunState.SUCCEEDED
    assert [e.order.job.name for e in simulation.world.executions] == [f"j{i}" for i in range(5)]
    check(simulation)


def test_stopping_a_run_stops_its_jobs_and_it_can_go_on():
    simulation = Simulation(store=make_memory(), behave=lambda order: Behaviour(seconds=30.0))
    simulation.declare_site()
    run = simulation.submit(Pipeline(name="line", jobs=(command("a"), command("b", needs=("a",)))))
    assert simulation.run_until(lambda: bool(simulation.world.executions))
    simulation.stop(run.id)
    assert simulation.run_until(lambda: over(simulation))
    states = {job.job.name: job.state for job in nouns(simulation, JobRun)}
    assert states == {"a": JobState.STOPPED, "b": JobState.STOPPED}
    assert simulation.store.get(Run, run.id).noun.state == RunState.STOPPED
