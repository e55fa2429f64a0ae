"""The planner in a simulated world: what it must never do, and what it must always bring to an end."""

import random
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kit.planner_world import Work, World

from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.job import JobKind
from gridmill.domain.plan import Plan
from gridmill.domain.resource import Resource
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.domain.states import Cause, JobState
from gridmill.scheduler.plan import plan

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
COMMAND = JobKind.COMMAND

nodes = st.builds(
    lambda cpus, memory, gpus: Amounts(cpus=cpus, memory_bytes=memory * GIB, gpus=gpus),
    st.sampled_from([0.5, 1.0, 2.0, 8.0]),
    st.integers(1, 16),
    st.sampled_from([0, 0, 1, 4]),
)
sites = st.builds(
    lambda capacities, share: Site(
        name="local",
        kind=SiteKind.SIMULATED,
        nodes=tuple(Node(name=f"n{k}", capacity=capacity) for k, capacity in enumerate(capacities)),
        cpu_share=share,
    ),
    st.lists(nodes, min_size=1, max_size=4),
    st.sampled_from([1.0, 4.0]),
)
resources = st.builds(
    lambda name, cpus, memory, gpus, workers, keep: Resource(
        name=name,
        type=COMMAND,
        cpus=cpus,
        memory_bytes=memory,
        gpus=gpus,
        workers=workers,
        keep_seconds=keep,
    ),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from([None, None, 1.0, 3.0]),
    st.sampled_from([None, None, GIB, 4 * GIB]),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from([None, None, 1, 3]),
    st.sampled_from([0.0, 5.0, 300.0]),
)
causes = st.lists(
    st.sampled_from([None, None, Cause.EXIT, Cause.MEMORY, Cause.LOST, Cause.INPUT]), max_size=3
).map(tuple)


@st.composite
def runs(draw: st.DrawFn) -> tuple[Work, ...]:
    """A small DAG: each job may need some of those before it."""
    works: list[Work] = []
    for k in range(draw(st.integers(1, 7))):
        before = [work.name for work in works]
        works.append(
            Work(
                name=f"j{k}",
                memory_bytes=draw(st.sampled_from([0, 100, 256, 512, 1024, 3000, 8000])) * MIB,
                seconds=draw(st.sampled_from([0.0, 1.0, 10.0, 100.0])),
                resource=draw(st.sampled_from(["default-command", "a", "b", "c", "nowhere"])),
                needs=tuple(
                    draw(st.lists(st.sampled_from(before), unique=True, max_size=2)) if before else ()
                ),
                priority=draw(st.sampled_from([0, 0, 0, 1, -1])),
                cpus=draw(st.sampled_from([None, None, 1.0, 2.0])),
                retries=draw(st.integers(0, 2)),
                endings=draw(causes),
            )
        )
    return tuple(works)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Site, tuple[Resource, ...], list[tuple[Work, ...]], int | None]:
    return (
        draw(sites),
        tuple(draw(st.lists(resources, max_size=3, unique_by=lambda resource: resource.name))),
        draw(st.lists(runs(), min_size=1, max_size=5)),
        draw(st.sampled_from([None, None, 1, 3])),
    )


@QUICK
@given(worlds(), st.booleans())
def test_every_workload_drains_and_nothing_is_ever_over_its_capacity(given_world, one_pipeline):
    site, known, submitted, limit = given_world
    world = World(
        site, known, limit=limit, one_pipeline=one_pipeline
    )  # checks room, states and times at each decision
    for works in submitted:
        world.submit(works)
    world.run()
    assert len(world.finished) == sum(map(len, submitted))


@QUICK
@given(worlds(), st.booleans(), st.randoms(use_true_random=False))
def test_a_plan_depends_on_what_there_is_and_not_on_how_it_came(given_world, one_pipeline, shuffler):
    site, known, submitted, limit = given_world

    def same_from_scratch(world: World, made: Plan) -> None:
        again = plan(world.snapshot, world.now, limit=limit)
        assert again == made
        scratch = world.scratch(lambda nouns: shuffler.sample(nouns, len(nouns)))
        assert plan(scratch, world.now, limit=limit) == made

    world = World(site, known, limit=limit, one_pipeline=one_pipeline, on_plan=same_from_scratch)
    for works in submitted:
        world.submit(works)
    world.run()


@QUICK
@given(worlds())
def test_no_job_is_started_twice_and_none_without_room_in_one_plan(given_world):
    site, known, submitted, _ = given_world

    def once(world: World, made: Plan) -> None:
        started = [start.job_run_id for start in made.starts]
        assert len(started) == len(set(started))
        assert not {refusal.job_run_id for refusal in made.refusals} & set(started)
        released = {release.deployment_id for release in made.releases}
        assert len(released) == len(made.releases)
        assert not released & {start.deployment_id for start in made.starts}

    world = World(site, known, on_plan=once)
    for works in submitted:
        world.submit(works)
    world.run()


def _site(cpus: float = 4.0, memory: int = 8 * GIB, count: int = 1, share: float = 4.0) -> Site:
    capacity = Amounts(cpus=cpus, memory_bytes=memory)
    names = [f"n{k}" for k in range(count)]
    return Site(
        name="local",
        kind=SiteKind.SIMULATED,
        nodes=tuple(Node(name=name, capacity=capacity) for name in names),
        cpu_share=share,
    )


def _stream(world: World, work: Work, every: float, count: int) -> None:
    """Small jobs that keep coming."""
    for k in range(count):
        world.later(k * every, lambda: world.submit((work,)))


def test_a_large_job_gets_its_pod_although_small_ones_never_stop_coming():
    world = World(_site(), (Resource(name="a", type=COMMAND, memory_bytes=4 * GIB, workers=1),))
    _stream(world, Work(name="small", memory_bytes=GIB, seconds=7.0, resource="a"), every=1.0, count=2000)
    large = []
    world.later(
        20.0,
        lambda: large.append(
            world.submit((Work(name="large", memory_bytes=4 * GIB, seconds=5.0, resource="a"),))
        ),
    )
    world.run(until=1000.0 + 400.0)
    assert world.started_at[f"{large[0]}/large"] < 1000.0 + 20.0 + 60.0


def test_a_large_job_gets_a_node_although_another_resource_keeps_it_busy():
    keeps = Resource(name="busy", type=COMMAND, memory_bytes=6 * GIB, workers=1)
    world = World(_site(), (keeps, Resource(name="other", type=COMMAND)))
    _stream(world, Work(name="small", memory_bytes=GIB, seconds=7.0, resource="busy"), every=1.0, count=2000)
    large = []
    world.later(
        20.0,
        lambda: large.append(
            world.submit((Work(name="large", memory_bytes=4 * GIB, seconds=5.0, resource="other"),))
        ),
    )
    world.run(until=1000.0 + 400.0)
    assert world.started_at[f"{large[0]}/large"] < 1000.0 + 20.0 + 80.0


def test_a_job_outgrowing_the_only_worker_gets_a_larger_one():
    world = World(_site(), (Resource(name="a", type=COMMAND, workers=1),))
    world.submit((Work(name="first", memory_bytes=512 * MIB, seconds=100.0, resource="a"),))
    world.run(until=1010.0)
    world.submit((Work(name="large", memory_bytes=5 * GIB, seconds=5.0, resource="a"),))
    _stream(
        world, Work(name="small", memory_bytes=256 * MIB, seconds=3.0, resource="a"), every=1.0, count=600
    )
    world.run(until=1400.0)
    assert world.finished["p-2/large"].state is JobState.SUCCEEDED


def test_a_thousand_jobs_on_many_nodes_use_all_of_them():
    at_once: list[int] = []
    world = World(
        _site(cpus=2.0, memory=4 * GIB, count=10, share=1.0),
        on_plan=lambda world, made: at_once.append(len(world.snapshot.attempts) + len(made.starts)),
    )
    world.submit(tuple(Work(name=f"j{k}", memory_bytes=512 * MIB, seconds=10.0) for k in range(1000)))
    world.run()
    assert max(at_once) == 40  # 4 at once on each of 10 nodes
    assert world.now < 1000.0 + 1000 / 40 * 10.0 + 20.0 + 300.0  # and the keep of what stood idle


@pytest.mark.parametrize("seed", range(15))
def test_larger_worlds_drain_too(seed):
    chance = random.Random(seed)
    world = World(
        _site(
            cpus=chance.choice([1.0, 4.0]),
            memory=chance.choice([4, 16]) * GIB,
            count=chance.randint(1, 5),
        ),
        tuple(
            Resource(name=name, type=COMMAND, keep_seconds=chance.choice([0.0, 60.0]), workers=workers)
            for name, workers in (("a", None), ("b", 2))
        ),
        limit=chance.choice([None, 20]),
    )
    for _ in range(12):
        works = tuple(_random_work(chance, f"j{k}", k) for k in range(chance.randint(1, 12)))
        world.later(chance.uniform(0.0, 300.0), partial(world.submit, works))
    world.run()
    assert all(
        job.state in (JobState.SUCCEEDED, JobState.FAILED, JobState.SKIPPED)
        for job in world.finished.values()
    )


def _random_work(chance: random.Random, name: str, place: int) -> Work:
    work = Work(
        name=name,
        memory_bytes=int(chance.lognormvariate(6.0, 1.0)) * MIB,
        seconds=chance.expovariate(0.1),
        resource=chance.choice(["default-command", "a", "b"]),
        retries=1,
    )
    if place and chance.random() < 0.5:
        work = replace(work, needs=(f"j{chance.randrange(place)}",))
    if chance.random() < 0.1:
        work = replace(work, endings=(chance.choice([Cause.LOST, Cause.MEMORY, Cause.EXIT]),))
    return work
