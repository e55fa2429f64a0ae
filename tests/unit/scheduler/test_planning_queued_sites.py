"""Sites with a queue, or that cost money: asked for what jobs need when they need it, never for more than
they can hold."""

from dataclasses import replace
from random import Random

import pytest
from tests.kit.planner_world import Work, World

from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.job import CommandSpec, Job, JobKind, JobSize
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.run import JobRun, Run
from gridmill.domain.site import ConfiguredNodes, Node, Site, SiteKind
from gridmill.domain.states import DeploymentState, JobState, PodState, RunState
from gridmill.scheduler.dry_run import TransferInput, dry_run
from gridmill.scheduler.feasibility import asked_of, problem_of, problem_of_resource, why_unchecked
from gridmill.scheduler.plan import asked_when_alone, plan
from gridmill.scheduler.queue import Demand
from gridmill.scheduler.sizing import MeasurementHistory, size_resource
from gridmill.scheduler.snapshot import Snapshot

NOW = 1000.0
NODE = Amounts(cpus=4.0, memory_bytes=14 * GIB, gpus=0)


def nodes(count: int, capacity: Amounts = NODE) -> tuple[Node, ...]:
    return tuple(Node(name=f"n{number}", capacity=capacity) for number in range(count))


def lab(kind: SiteKind = SiteKind.SLURM, count: int = 3, **fields: object) -> Site:
    return Site(name="lab", kind=kind, nodes=nodes(count), **fields)  # type: ignore[arg-type]


def resource(**fields: object) -> Resource:
    return Resource(name="a", site="lab", **{"type": JobKind.COMMAND, **fields})  # type: ignore[arg-type]


def demand(memory: int = GIB, *, cpus: float = 0.0, ranks: int = 1) -> Demand:
    return Demand(memory, 0, cpus, 0, JobKind.COMMAND, workers=ranks)


def a_job(name: str, state: JobState = JobState.WAITING, **fields: object) -> JobRun:
    job = Job(name=name, command=CommandSpec(run="true"), **fields)  # type: ignore[arg-type]
    sizing = Sizing(amounts=Amounts(cpus=1.0, memory_bytes=GIB))
    return JobRun(
        id=f"p-1/{name}",
        run_id="p-1",
        pipeline="p",
        job=job,
        order=0,
        state=state,
        resource="a",
        sizing=sizing,
        ready=NOW,
    )


RUN = Run(id="p-1", pipeline="p", order=1, state=RunState.ACTIVE, created=0.0)


@pytest.mark.parametrize(
    ("asked", "jobs"),
    [
        ((1.0, GIB), [a_job("x")]),
        ((3.0, GIB), [a_job("x", cpus=3.0)]),
        ((3.0, 3 * GIB), [a_job("x"), a_job("y"), a_job("z")]),
        ((4.0, 4 * GIB), [a_job(f"x{number}") for number in range(9)]),
        ((1.0, GIB), [a_job("x"), a_job("later", JobState.BLOCKED)]),
    ],
)
def test_a_queue_is_asked_for_what_the_ready_jobs_need(asked: tuple[float, int], jobs: list[JobRun]) -> None:
    """Not for all CPUs of a node, and not for jobs that are still to come."""
    wish = plan(Snapshot([RUN, lab(), resource(), *jobs]), NOW).bring_ups[0]
    assert (wish.sizing.amounts.cpus, wish.sizing.amounts.memory_bytes) == asked
    assert any("as the jobs need" in why for why in wish.sizing.why)


def test_elsewhere_a_deployment_takes_what_the_node_has() -> None:
    wish = plan(Snapshot([RUN, lab(SiteKind.RAY), resource(), a_job("x")]), NOW).bring_ups[0]
    assert wish.sizing.amounts.cpus == 4.0


@pytest.mark.parametrize(
    ("of", "pods", "cpus", "memory"),
    [
        (demand(ranks=5), 2, 3.0, 3 * GIB),
        (demand(ranks=2, cpus=4.0), 2, 4.0, GIB),
        (demand(256 * MIB, ranks=12), 3, 4.0, GIB),
        (demand(8 * GIB, ranks=3), 3, 1.0, 8 * GIB),
        (demand(cpus=2.0), 1, 2.0, GIB),
    ],
)
def test_what_one_job_alone_asks_of_a_queue(of: Demand, pods: int, cpus: float, memory: int) -> None:
    asked = asked_when_alone(lab(), resource(), of)
    assert asked is not None
    assert (asked.workers, asked.amounts.cpus, asked.amounts.memory_bytes) == (pods, cpus, memory)


def test_a_resource_that_declares_a_size_is_asked_for_with_its_memory() -> None:
    """More than the job that is ready needs, as it was declared."""
    declared = resource(type=JobKind.TRAINING, size=JobSize(rows=10**8, columns=10))
    node = lab().nodes[0].capacity
    sized = size_resource(declared, MeasurementHistory(), node)
    wish = asked_when_alone(lab(), declared, demand()._replace(kind=JobKind.TRAINING))
    assert wish is not None
    assert sized.amounts.memory_bytes > GIB
    assert 0 <= wish.amounts.memory_bytes - sized.amounts.memory_bytes < 256 * MIB
    less = asked_of(Snapshot([lab()]), resource(), node)
    said = size_resource(resource(), MeasurementHistory(), less, node_cpus=node.cpus).why
    assert "1 CPU: for one job; more if several jobs are ready" in said


@pytest.mark.parametrize(("kind", "cpus"), [(JobKind.COMMAND, 1.0), (JobKind.TRAINING, 4.0)])
def test_kinds_of_jobs_that_use_threads_are_given_some(kind: JobKind, cpus: float) -> None:
    large = Amounts(cpus=64.0, memory_bytes=GIB)
    snapshot = Snapshot([lab()])
    assert asked_of(snapshot, resource(type=kind), large).cpus == cpus
    assert asked_of(snapshot, resource(type=kind, cpus=32.0), large).cpus == 64.0
    assert asked_of(Snapshot([lab(SiteKind.RAY)]), resource(type=kind), large).cpus == 64.0


@pytest.mark.parametrize("seed", range(3))
def test_all_jobs_of_a_queue_end(seed: int) -> None:
    """Whatever they need, and however their resources are set: nothing waits for what is never asked for."""
    random = Random(seed)
    world = World(
        lab(), (resource(), replace(resource(cpus=2.0), name="b"), replace(resource(workers=2), name="c"))
    )
    for _ in range(8):
        works: list[Work] = []
        for number in range(random.randint(1, 12)):
            needs = (random.choice(works).name,) if works and random.random() < 0.5 else ()
            memory, cpus = random.choice((64, 1024, 6000, 13000)) * MIB, random.choice((None, 1.0, 2.0))
            works.append(
                Work(
                    name=f"w{number}",
                    memory_bytes=memory,
                    seconds=random.choice((1.0, 100.0)),
                    resource=random.choice("abc"),
                    needs=needs,
                    cpus=cpus,
                )
            )
        world.submit(tuple(works))
    world.run()
    assert {one.state for one in world.finished.values()} == {JobState.SUCCEEDED}


# --- when


def test_nothing_is_allocated_ahead_where_it_would_be_held_idle() -> None:
    """Where its owner keeps deployments up, and where nobody waits for them, it is."""
    later = a_job("later", JobState.BLOCKED)
    for site, wants, ahead in (
        (lab(), resource(), 0),
        (lab(SiteKind.CLOUD), resource(keep_seconds=600.0), 0),
        (lab(SiteKind.RAY), resource(keep_seconds=0.0), 0),
        (lab(), resource(keep_seconds=600.0), 1),
        (lab(SiteKind.RAY), resource(), 1),
    ):
        assert len(plan(Snapshot([RUN, site, wants, later]), NOW).bring_ups) == ahead, (site.kind, wants)


def test_what_is_idle_in_a_queue_waits_only_a_moment_for_a_job_to_come() -> None:
    """A job whose needs have just ended is ready within seconds; one that runs for hours elsewhere is not."""
    pod = Pod(id="a-1.0", node="n0", capacity=NODE, state=PodState.UP)
    idle = Deployment(
        id="a-1",
        resource="a",
        type=JobKind.COMMAND,
        site="lab",
        state=DeploymentState.UP,
        sizing=Sizing(amounts=NODE),
        pods=(pod,),
        keep_seconds=0.0,
        created=0.0,
        idle_since=NOW,
    )
    snapshot = Snapshot([RUN, lab(), resource(), idle, a_job("later", JobState.BLOCKED)])
    at_once = plan(snapshot, NOW + 1.0)
    assert (at_once.releases, at_once.again_at) == ((), NOW + 10.0)
    assert [one.deployment_id for one in plan(snapshot, NOW + 10.1).releases] == ["a-1"]


# --- what can never be


def refusal(site: Site, of: Demand, wants: Resource | None = None) -> str:
    problem = problem_of(Snapshot([site]), wants or resource(), of)
    return "" if problem is None else problem.message


@pytest.mark.parametrize("kind", [SiteKind.SLURM, SiteKind.CLUSTER, SiteKind.LOCAL])
def test_a_gang_larger_than_its_site_is_refused_with_what_the_site_has(kind: SiteKind) -> None:
    three = resource(memory_bytes=5 * GIB, cpus=4.0)
    assert refusal(lab(kind), demand(ranks=15), three) == ""
    told = refusal(lab(kind), demand(ranks=40), three)
    assert told.endswith("at site lab has room for 15 of 40 ranks")


def test_a_rank_that_needs_many_cpus_has_as_few_places() -> None:
    assert "has room for 3 of 5 ranks" in refusal(lab(), demand(cpus=4.0, ranks=5))
    assert refusal(lab(), demand(cpus=4.0, ranks=3)) == ""


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"service": "gcp"}, "service 'gcp' runs no jobs with several ranks"),
        ({"service": "aws", "image": "i", "platform": "FARGATE"}, "not on Fargate"),
        ({"service": "aws", "job_definition": "d"}, "need the setting `image`"),
        ({"service": "aws", "image": "i"}, ""),
    ],
)
def test_a_gang_is_refused_at_a_batch_site_that_runs_no_gangs(settings: dict[str, str], reason: str) -> None:
    site = lab(SiteKind.BATCH, settings=settings)
    assert reason in refusal(site, demand(ranks=2))
    assert bool(reason) == bool(refusal(site, demand(ranks=2)))
    assert refusal(site, demand(ranks=1)) == ""


def test_nodes_that_are_down_or_drained_count_they_come_back() -> None:
    drained = lab().with_nodes(nodes(1), ConfiguredNodes(away=nodes(3)[1:]))
    assert refusal(drained, demand(ranks=12)) == ""
    assert "has room for 12 of 13 ranks" in refusal(drained, demand(ranks=13))
    none_left = drained.with_nodes((), ConfiguredNodes(away=nodes(3)))
    assert "has room for 12 of 13 ranks" in refusal(none_left, demand(ranks=13))
    assert "has 14 GiB" in refusal(none_left, demand(20 * GIB))
    large = resource(memory_bytes=20 * GIB)
    problem = problem_of_resource(Snapshot([none_left]), "a", large)
    assert problem is not None
    assert "has 4 CPUs, 14 GiB" in problem.message


def test_a_node_that_has_left_a_farm_counts_until_it_is_back() -> None:
    farm = lab(SiteKind.CLUSTER).with_nodes(nodes(1))
    assert [node.name for node in farm.away] == ["n1", "n2"]
    assert farm.most_nodes == 3
    assert farm.with_nodes(nodes(3)).away == ()


def test_where_nobody_knows_how_large_a_site_can_be_it_is_said() -> None:
    """Ray may scale, and further machines may join."""
    ray, gang, wants = lab(SiteKind.RAY), demand(7 * GIB, ranks=40), resource()
    assert refusal(ray, gang) == ""
    assert "it has room for 6 of 40" in why_unchecked(Snapshot([ray]), wants, gang)
    assert why_unchecked(Snapshot([ray]), wants, demand(7 * GIB, ranks=6)) == ""
    declared = replace(ray, settings={"max_nodes": "5"})
    assert "has room for 10 of 40 ranks" in refusal(declared, gang)
    assert refusal(declared, demand(7 * GIB, ranks=10)) == ""
    assert why_unchecked(Snapshot([declared]), wants, gang) == ""
    assert "no node of the site was seen" in why_unchecked(Snapshot([lab(count=0)]), wants, demand())


def test_nodes_of_the_partition_count() -> None:
    """That of the resource, else the site's, else the cluster's default one."""
    main, both = (
        replace(one, partitions=names)
        for one, names in zip(nodes(2), (("main",), ("main", "low")), strict=True)
    )
    site = replace(lab(), nodes=(main, both), partitions=("main", "low"))
    gang, low = demand(ranks=9), resource(settings={"partition": "low"})
    assert "has room for 8 of 9 ranks" in refusal(site, gang)
    assert "has room for 4 of 9 ranks" in refusal(site, gang, low)
    assert "has room for 4 of 9 ranks" in refusal(replace(site, settings={"partition": "low"}), gang)
    large = replace(site, nodes=(replace(main, capacity=Amounts(cpus=64.0, memory_bytes=64 * GIB)), both))
    assert refusal(large, demand(32 * GIB)) == ""
    assert "has 14 GiB" in refusal(large, demand(32 * GIB), low)


def test_a_partition_that_a_site_does_not_have_is_refused() -> None:
    site = replace(lab(), nodes=(replace(nodes(1)[0], partitions=("low",)),), partitions=("main", "low"))
    assert problem_of_resource(Snapshot([site]), "a", resource(settings={"partition": "low"})) is None
    empty = problem_of_resource(Snapshot([site]), "a", resource(settings={"partition": "main"}))
    assert empty is not None
    assert empty.message == "partition 'main' of site lab has no nodes"
    problem = problem_of_resource(Snapshot([site]), "a", resource(settings={"partition": "hihg"}))
    assert problem is not None
    assert "is in partition 'hihg', which site lab does not have" in problem.message
    assert problem.hint == "Its partitions are main, low."


def test_a_plan_says_what_is_asked_and_what_was_not_checked() -> None:
    job = Job(name="j", resource="a", command=CommandSpec(run="true"), memory_bytes=GIB)
    pipeline, snapshot = Pipeline(name="p", jobs=(job,)), Snapshot([lab(), resource()])
    [planned] = dry_run(pipeline, snapshot, {}, frozenset()).jobs
    assert planned.asked is not None
    assert (planned.asked.workers, planned.asked.amounts.cpus, planned.most_cpus) == (1, 1.0, 1.0)
    assert planned.unchecked == ""
    [away] = dry_run(pipeline, snapshot, {}, frozenset(), TransferInput(unreachable=("lab",))).jobs
    assert away.unchecked == "whether site lab has room for the job: the site does not answer now"
