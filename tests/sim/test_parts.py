"""Jobs in parts: on several nodes at once, each part once, put together once, whatever goes away."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from tests.sim.test_races import command, finish, service

from gridmill.control.usecases.advice import advice_on, advice_with
from gridmill.control.usecases.run_views import RunViews
from gridmill.control.usecases.runs import RunUseCases
from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.artifact import Artifact
from gridmill.domain.dataset import Basis, DatasetSpec
from gridmill.domain.job import Job, JobKind
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.resource import Resource
from gridmill.domain.run import JobRun
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.domain.states import AttemptState, Cause, JobState, RunState
from gridmill.stores.memory import make as make_memory
from gridmill.testing.fake_advising import parallel_attempt
from gridmill.testing.faults import FaultScript, FaultyStore
from gridmill.testing.simulated_site import Behaviour, Execution
from gridmill.testing.simulation import Simulation

NODES = tuple(Node(name=name, capacity=Amounts(cpus=2, memory_bytes=8 * GIB)) for name in ("a", "b", "c"))


def simulation(behave: Callable[[AttemptOrder], Behaviour]) -> Simulation:
    made = Simulation(store=FaultyStore(make_memory(), FaultScript()), behave=behave, nodes=NODES)
    made.declare_site()
    return made


def swarm(workers: int = 6) -> Pipeline:
    spec = PredictionSpec(dataset="rows", models=("model",), workers=workers)
    return Pipeline(name="p", jobs=(command("rows"), command("model"), Job(name="swarm", prediction=spec)))


def parts_of(grid: Simulation) -> list[Execution]:
    return [one for one in grid.world.executions if one.order.part is not None]


def gatherers(grid: Simulation) -> list[Execution]:
    return [one for one in grid.world.executions if one.order.parts]


def node_of(grid: Simulation, one: Execution) -> str:
    return grid.world.pods[one.pod_id].order.node


def view_of(grid: Simulation, run_id: str):
    return RunViews(grid.node).view(run_id)


def test_a_swarm_is_on_all_nodes_at_once_and_put_together_once():
    grid = simulation(lambda order: Behaviour(seconds=20.0 if order.part else 1.0))
    run = finish(grid, grid.submit(swarm()))
    assert run.state == RunState.SUCCEEDED
    parts = parts_of(grid)
    assert sorted(node_of(grid, one) for one in parts) == ["a", "b", "c"]
    assert max(one.began for one in parts) < min(one.ended for one in parts), "side by side"
    assert [(one.order.part.number, one.order.part.count) for one in parts] == [(0, 3), (1, 3), (2, 3)]
    [gathered] = gatherers(grid)
    assert gathered.began >= max(one.ended for one in parts)
    assert gathered.order.parts == tuple(one.order.output_uri for one in parts)
    assert grid.store.get(Artifact, "p/swarm@1").noun.output.uri == gathered.order.output_uri
    assert grid.store.get(Artifact, "p/swarm@2") is None
    [job] = [one for one in view_of(grid, run.id).jobs if one.job.job.name == "swarm"]
    assert sorted((part.node, part.job.state) for part in job.parts) == [(n, "succeeded") for n in "abc"]
    assert {uri for uri in grid.storage.removed if "swarm" in uri} >= set(gathered.order.parts)


def test_a_dataset_is_cut_by_its_buckets_where_it_has_an_entity():
    for entity, buckets, count in ((("user",), 8, 3), (("user",), 2, 2), (("user",), None, 0), ((), None, 0)):
        grid = simulation(lambda order: Behaviour(seconds=5.0))
        basis = Basis(table="rows", time="t", entity=entity)
        job = Job(name="features", dataset=DatasetSpec(basis=basis, buckets=buckets))
        run = finish(grid, grid.submit(Pipeline(name="p", jobs=(command("rows"), job))))
        assert run.state == RunState.SUCCEEDED
        assert len({one.pod_id for one in parts_of(grid)}) == len(parts_of(grid)) == count


def test_what_its_parts_took_is_one_measurement_of_a_dataset_and_makes_advice():
    grid = simulation(lambda order: Behaviour(seconds=20.0 if order.part else 1.0))
    basis = Basis(table="rows", time="t", entity=("user",))
    job = Job(name="features", dataset=DatasetSpec(basis=basis, buckets=8))
    finish(grid, grid.submit(Pipeline(name="p", jobs=(command("rows"), job))))
    [known] = grid.node.control.ledger.snapshot.history.of_job("p/features", "dataset/features")
    assert known.parallel is not None
    assert (known.parallel.workers, known.parallel.shards, known.parallel.pods) == (3, 3, 3)
    found = advice_on(grid.node.control.ledger, job, "p")
    assert found is not None
    assert [one.workers for one in found.measured] == [3]


def test_what_a_swarm_in_parts_tells_of_its_workers_makes_advice():
    told = parallel_attempt(1, workers=6, work_seconds=120.0).parallel
    grid = simulation(
        lambda order: (
            Behaviour(seconds=20.0) if order.part else Behaviour(parallel=told if order.parts else None)
        )
    )
    finish(grid, grid.submit(swarm()))
    [known] = grid.node.control.ledger.snapshot.history.of_job("p/swarm", "prediction")
    assert known.parallel == replace(told, pods=3)
    assert known.use.wall_seconds > 20.0, "the parts, and the attempt that put them together"
    found = advice_on(grid.node.control.ledger, swarm().job("swarm"), "p")
    assert found is not None
    assert [one.workers for one in found.measured] == [6]


def test_advice_is_on_the_resource_to_which_a_job_goes():
    told = parallel_attempt(1, workers=6, work_seconds=120.0).parallel
    grid = simulation(lambda order: Behaviour(parallel=told if order.parts else None))
    finish(grid, grid.submit(swarm()))
    control = grid.node.control
    far = Site(name="far", kind=SiteKind.SIMULATED, nodes=(replace(NODES[0], capacity=Amounts(cpus=1)),))
    first = Resource(name="first", type=JobKind.PREDICTION, site="far", workers=1, cpus=1.0)
    second = Resource(name="second", type=JobKind.PREDICTION, workers=3, cpus=2.0)
    transaction = control.begin()
    transaction.put(far, first, second)
    control.ledger.commit(transaction)
    control.site_states.unreachable.add("far")
    *others, predicts = swarm().jobs
    job = replace(predicts, resources=("first", "second"))
    on_first, on_second = (advice_with(control.ledger, job, "p", one) for one in (first, second))
    assert on_first is not None
    assert on_second is not None
    assert on_first.summary != on_second.summary
    pipeline = replace(swarm(), jobs=(*others, job))
    assert RunUseCases(grid.node).plan_run(pipeline).jobs[-1].advice == on_second.summary
    assert advice_on(control.ledger, job, "p", "second") == on_second
    run, cases = finish(grid, grid.submit(pipeline)), service(grid)
    [told_by_run] = cases.advice_on_run(cases.run(run.id))
    assert told_by_run == cases.advise("p/swarm") == advice_with(control.ledger, job, "p", second)


def test_a_plan_knows_a_resource_that_nobody_but_its_file_declares():
    grid = simulation(lambda order: Behaviour())
    two = Resource(name="two", type=JobKind.PREDICTION, workers=2, cpus=1.0)
    *others, predicts = swarm().jobs
    pipeline = replace(swarm(), jobs=(*others, replace(predicts, resource="two")), resources=(two,))
    planned = RunUseCases(grid.node).plan_run(pipeline).jobs[-1]
    assert (planned.resource, planned.problem) == ("two", "")
    assert planned.sizing.why[-1] == "in 2 parts, each on a pod of its own with 3 workers"


def test_as_few_parts_as_the_workers_need():
    for workers, count in ((1, 0), (2, 0), (3, 2), (4, 2), (60, 3)):
        grid = simulation(lambda order: Behaviour())
        finish(grid, grid.submit(swarm(workers)))
        assert len(parts_of(grid)) == count


def test_a_node_that_dies_costs_its_part_alone():
    grid = simulation(lambda order: Behaviour(seconds=20.0 if order.part else 1.0))
    run = grid.submit(swarm())
    assert grid.run_until(lambda: len(parts_of(grid)) == 3)
    grid.world.kill_pod(parts_of(grid)[1].pod_id)
    assert grid.run_until(lambda: not grid.node.control.ledger.snapshot.runs)
    assert grid.store.get(type(run), run.id).noun.state == RunState.SUCCEEDED
    assert Counter(one.order.part.number for one in parts_of(grid)) == {0: 1, 1: 2, 2: 1}
    [gathered] = gatherers(grid)
    done = {one.order.output_uri for one in parts_of(grid) if one.state == AttemptState.SUCCEEDED}
    assert set(gathered.order.parts) == done


def test_a_part_that_fails_fails_the_job_and_ends_the_others():
    def behave(order) -> Behaviour:
        if order.part is not None and order.part.number == 1:
            return Behaviour(seconds=2.0, outcome=AttemptState.FAILED, cause=Cause.INPUT)
        return Behaviour(seconds=100.0 if order.part else 1.0)

    grid = simulation(behave)
    run = finish(grid, grid.submit(swarm()))
    job = grid.store.get(JobRun, f"{run.id}/swarm").noun
    assert (run.state, job.state) == (RunState.FAILED, JobState.FAILED)
    assert job.message == "part 2 of 3: simulated input"
    assert run.message == "1 failed (swarm), 2 succeeded"
    assert not gatherers(grid)
    assert max(one.ended for one in parts_of(grid)) < 60.0, "nobody waits for what is of no use"


def test_a_resumed_run_does_its_parts_again():
    fails = [True]

    def behave(order) -> Behaviour:
        if order.part is not None and order.part.number == 1 and fails[0]:
            return Behaviour(outcome=AttemptState.FAILED, cause=Cause.INPUT)
        return Behaviour()

    grid = simulation(behave)
    run = finish(grid, grid.submit(swarm()))
    fails[0] = False
    grid.resume(run.id)
    assert grid.run_until(lambda: not grid.node.control.ledger.snapshot.runs)
    assert grid.store.get(type(run), run.id).noun.state == RunState.SUCCEEDED
    assert len({one.order.attempt_id for one in grid.world.executions}) == len(grid.world.executions)
    assert len(gatherers(grid)) == 1


def test_stopping_a_run_stops_its_parts():
    grid = simulation(lambda order: Behaviour(seconds=1000.0 if order.part else 1.0))
    run = grid.submit(swarm())
    assert grid.run_until(lambda: len(parts_of(grid)) == 3)
    grid.stop(run.id)
    assert grid.run_until(lambda: not grid.node.control.ledger.snapshot.runs)
    assert grid.store.get(type(run), run.id).noun.state == RunState.STOPPED
    assert {one.state for one in parts_of(grid)} == {AttemptState.STOPPED}


def test_a_control_node_that_dies_loses_no_part():
    grid = simulation(lambda order: Behaviour(seconds=20.0 if order.part else 1.0))
    run = grid.submit(swarm())
    assert grid.run_until(lambda: len(parts_of(grid)) == 3)
    grid.control_dies()
    assert grid.run_until(
        lambda: not grid.node.control.ledger.snapshot.runs and not grid.node.control.ledger.doubtful
    )
    assert grid.store.get(type(run), run.id).noun.state == RunState.SUCCEEDED
    assert (len(parts_of(grid)), len(gatherers(grid))) == (3, 1)


def test_two_runs_do_not_cut_the_same_job_at_once():
    grid = simulation(lambda order: Behaviour(seconds=5.0))
    runs = [grid.submit(swarm()) for _ in range(2)]
    assert grid.run_until(lambda: not grid.node.control.ledger.snapshot.runs)
    first, second = (
        [one for one in grid.world.executions if one.order.job.name == "swarm" and one.order.run_id == run.id]
        for run in runs
    )
    assert len(first) == len(second) == 4
    assert max(one.ended for one in first) <= min(one.began for one in second)
