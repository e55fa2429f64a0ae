"""The wall clock is set back, or ahead and back, while runs go on and between control nodes: nothing is lost,
repeated, or put in another order."""

from random import Random

import pytest

from gridmill.domain.amounts import Amounts
from gridmill.domain.artifact import Artifact, Latest
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.site import Node
from gridmill.domain.states import AttemptState, JobState, RunState
from gridmill.stores.memory import make
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation

HOUR, YEAR = 3600.0, 365 * 86_400.0
JUMPS = (-1.0, -HOUR, -30 * 24 * HOUR, -YEAR, YEAR, 2 * HOUR)


def pipeline(number: int) -> Pipeline:
    def job(name: str, **settings) -> Job:
        command = CommandSpec(run=f"true {number if name == 'a' else ''}")
        return Job(name=name, command=command, memory_bytes=2**30, retries=3, **settings)

    return Pipeline(name="p", jobs=(job("a"), job("b", needs=("a",)), job("c", needs=("a",))))


def check(seed: int) -> None:
    random = Random(seed)

    def behave(order: AttemptOrder) -> Behaviour:
        fails = random.random() < 0.3 and order.attempt_id.endswith(".1")
        return Behaviour(seconds=random.choice((1.0, 30.0, 200.0)), outcome=_ended(fails))

    node = Node(name="sim", capacity=Amounts(cpus=8, memory_bytes=32 * 2**30))
    simulation = Simulation(store=make(), behave=behave, nodes=(node,), seed=seed, strict=False)
    simulation.declare_site()
    began, runs = simulation.clock.monotonic(), []
    for number in range(4):
        runs.append(simulation.submit(pipeline(number), force=False).id)
        for _ in range(random.randrange(12)):
            simulation.advance()
            if random.random() < 0.3:
                simulation.clock.jump(random.choice(JUMPS))
            if random.random() < 0.15:
                simulation.control_dies()
    simulation.control_dies()
    assert simulation.run_until(lambda: _over(simulation), at_most_steps=30_000)
    assert simulation.node.failure is None
    assert simulation.clock.monotonic() - began < 2 * HOUR, "no wait is as long as a jump"
    assert runs == [f"p-{number}" for number in range(1, 5)]
    store = simulation.store
    assert {record.noun.state for record in store.list(Run)} == {RunState.SUCCEEDED}
    done = {JobState.SUCCEEDED, JobState.UNCHANGED}
    assert {record.noun.state for record in store.list(JobRun)} <= done
    ids = [record.noun.id for record in store.list(Attempt)]
    assert len(ids) == len(set(ids))
    for name in ("p/a", "p/b", "p/c"):
        versions = [record.noun for record in store.list(Artifact, parent=name)]
        assert [version.number for version in versions] == [*range(1, len(versions) + 1)]
        orders = [int(version.run_id.rpartition("-")[2]) for version in versions]
        assert orders == sorted(orders), "versions are in the order of their runs"
        latest = store.get(Latest, name)
        assert latest is not None
        assert latest.noun.run == "p-4"


def _ended(fails: bool) -> AttemptState:
    return AttemptState.FAILED if fails else AttemptState.SUCCEEDED


def _over(simulation: Simulation) -> bool:
    ledger = simulation.node.control.ledger
    return not ledger.doubtful and not ledger.snapshot.runs


def test_the_clock_is_set_back_at_random_moments():
    for seed in range(3):
        check(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(3, 103, 25))
def test_the_clock_is_set_back_at_many_moments(first: int):
    for seed in range(first, first + 25):
        check(seed)
