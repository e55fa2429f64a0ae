"""One test per rule of the planner."""

from dataclasses import replace

from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.job import CommandSpec, Job, JobKind
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.domain.states import AttemptState, DeploymentState, JobState, PodState, RunState
from gridmill.scheduler.draft import RESERVE_AFTER_SECONDS
from gridmill.scheduler.explain import why_waiting
from gridmill.scheduler.plan import plan
from gridmill.scheduler.snapshot import Snapshot

NOW = 1000.0


def a_site(cpus=2.0, memory=16 * GIB, gpus=0, count=1, share=8.0):
    capacity = Amounts(cpus=cpus, memory_bytes=memory, gpus=gpus)
    nodes = tuple(Node(name=f"n{k}", capacity=capacity) for k in range(count))
    return Site(name="local", kind=SiteKind.SIMULATED, nodes=nodes, cpu_share=share)


def a_run(number=1, state=RunState.ACTIVE):
    return Run(id=f"p-{number}", pipeline="p", order=number, state=state, created=0.0)


def a_job(
    name, memory=GIB, *, run=1, order=0, resource="a", state=JobState.WAITING, cpus=None, gpus=0, **fields
):
    return JobRun(
        id=f"p-{run}/{name}",
        run_id=f"p-{run}",
        pipeline="p",
        job=Job(name=name, command=CommandSpec(run="true"), cpus=cpus),
        order=order,
        state=state,
        resource=resource,
        sizing=Sizing(amounts=Amounts(cpus=1.0, memory_bytes=memory, gpus=gpus)),
        **{"ready": NOW, **fields},
    )


def a_deployment(
    name="a-1", resource="a", memory=4 * GIB, cpus=2.0, gpus=0, pods=1, state=DeploymentState.UP, **fields
):
    capacity = Amounts(cpus=cpus, memory_bytes=memory, gpus=gpus)
    pod_state = PodState.STARTING if state is DeploymentState.STARTING else PodState.UP
    return Deployment(
        id=name,
        resource=resource,
        type=JobKind.COMMAND,
        site="local",
        state=state,
        sizing=Sizing(amounts=capacity, workers=pods),
        pods=tuple(Pod(id=f"{name}.{k}", node="n0", capacity=capacity, state=pod_state) for k in range(pods)),
        **{"keep_seconds": 300.0, "created": 0.0, "idle_since": NOW, **fields},
    )


def an_attempt(job, pod="a-1.0", memory=GIB, gpus=0):
    return Attempt(
        id=f"{job.run_id}.{job.job.name}.1",
        run_id=job.run_id,
        job_run_id=job.id,
        token="",
        deployment_id=pod.rpartition(".")[0],
        pod_id=pod,
        state=AttemptState.RUNNING,
        given=Amounts(cpus=1.0, memory_bytes=memory, gpus=gpus),
        placed=NOW,
    )


def command(name="a", **fields):
    return Resource(name=name, type=JobKind.COMMAND, **fields)


def test_a_node_at_which_pods_did_not_come_up_is_tried_last():
    wanted = [a_run(), a_job("x"), command(), command("b"), a_site(count=3)]
    for unwilling, nodes in (
        ({}, ("n0",)),
        ({"a": {"n0"}}, ("n1",)),
        ({"a": {"n0", "n1"}}, ("n2",)),
        ({"a": {"n0", "n1", "n2"}}, ("n0",)),
        ({"b": {"n0"}}, ("n0",)),
    ):
        [wish] = plan(Snapshot(wanted), NOW, unwilling=unwilling).bring_ups
        assert wish.nodes == nodes


def a_ray_site(count):
    return replace(a_site(count=count), kind=SiteKind.RAY)


def broken(*busy):
    """Two workers on n0 and n1 and a third that was lost; these jobs still run there, on the first."""
    whole = a_deployment(memory=12 * GIB, pods=3, idle_since=None)
    pods = tuple(replace(pod, node=f"n{number}") for number, pod in enumerate(whole.pods))
    return [
        replace(whole, pods=(*pods[:2], replace(pods[2], state=PodState.GONE))),
        *busy,
        *(an_attempt(job, "a-1.0") for job in busy),
    ]


def test_a_deployment_on_ray_that_lost_a_pod_is_replaced_by_a_second_one_where_there_is_room():
    """The pods of it that are idle will run nothing again: they count no more as the resource's workers."""
    busy = a_job("x", state=JobState.RUNNING)
    trainers = command(workers=3, memory_bytes=12 * GIB)
    wanted = [a_run(), busy, a_job("y"), trainers, a_ray_site(5), *broken(busy)]
    made = plan(Snapshot(wanted), NOW)
    assert not started(made)
    [wish] = made.bring_ups
    assert sorted(wish.nodes) == ["n2", "n3"], "one of three workers still runs something"


def test_a_deployment_on_ray_that_lost_a_pod_says_so_to_who_waits_and_goes_when_it_is_idle():
    busy = a_job("x", state=JobState.RUNNING)
    trainers = command(workers=3, memory_bytes=12 * GIB)
    wanted = [a_run(), a_job("y"), trainers, a_ray_site(2)]
    snapshot = Snapshot([*wanted, busy, *broken(busy)])
    assert not plan(snapshot, NOW).bring_ups
    told = "a-1 lost a pod, takes no more jobs and is released when 1 job on it has ended"
    assert told in why_waiting(snapshot, "p-1/y", NOW)
    released = plan(Snapshot([*wanted, *broken()]), NOW).releases
    assert [one.deployment_id for one in released] == ["a-1"]


def test_a_node_that_lacks_what_it_promised_is_left_aside_while_others_will_do():
    full = a_deployment("b-1", "b", memory=16 * GIB, cpus=16.0, idle_since=None)
    wanted = [a_run(), a_job("x"), command(), command("b"), a_site(count=2), full]  # n0 has no room now
    for unfit, nodes in (({}, ["n1"]), ({"a": {"n1"}}, []), ({"a": {"n0", "n1"}}, ["n1"])):
        assert [up.nodes[0] for up in plan(Snapshot(wanted), NOW, unfit=unfit).bring_ups] == nodes
    gang = replace(a_job("x"), job=Job(name="x", command=CommandSpec(run="true", workers=9)))
    for workers, brought_up in ((2, False), (9, True)):  # n0 alone has not so many places
        gang = replace(gang, job=replace(gang.job, command=CommandSpec(run="true", workers=workers)))
        snapshot = Snapshot([*wanted, gang])
        assert bool(plan(snapshot, NOW, unfit={"a": {"n1"}}).bring_ups) is brought_up, workers


def started(made):
    return [start.job_run_id for start in made.starts]


def plan_of(*nouns, now=NOW, limit=None):
    return plan(Snapshot((a_site(), command(), a_run(), *nouns)), now, limit=limit)


# --- starts


def test_jobs_go_by_priority_then_run_then_place():
    jobs = [
        a_job("late", run=2, order=0),
        a_job("second", order=1),
        a_job("first", order=0),
        a_job("urgent", run=2, order=5, priority=1),
    ]
    made = plan_of(a_run(2), a_deployment(memory=2 * GIB), *jobs)
    assert started(made) == ["p-2/urgent", "p-1/first"]


def test_a_start_gets_its_memory_and_a_fair_share_of_the_cpus():
    made = plan_of(a_deployment(cpus=2.0), a_job("x", 512 * MIB))
    assert made.starts[0].given == Amounts(cpus=2.0, memory_bytes=512 * MIB)
    made = plan_of(a_deployment(cpus=8.0), a_job("x", 512 * MIB), a_job("y", GIB))
    assert [start.given.cpus for start in made.starts] == [4.0, 4.0]
    made = plan_of(a_site(cpus=8.0), a_deployment(cpus=8.0), a_job("x", cpus=3.0))
    assert made.starts[0].given.cpus == 3.0


def test_cpus_are_shared_with_what_runs_already():
    running = a_job("running", state=JobState.RUNNING)
    made = plan_of(a_deployment(cpus=8.0), running, an_attempt(running), a_job("x"))
    assert made.starts[0].given.cpus == 4.0


def test_a_pod_runs_two_jobs_per_cpu_and_never_fewer_than_two():
    jobs = [a_job(f"j{k}", MIB, order=k) for k in range(9)]
    assert len(plan_of(a_deployment(cpus=2.0), *jobs).starts) == 4
    assert len(plan_of(a_deployment(cpus=0.5), *jobs).starts) == 2


def test_memory_of_live_attempts_is_not_given_again():
    running = a_job("running", state=JobState.RUNNING)
    nouns = (a_deployment(memory=2 * GIB), running, an_attempt(running), a_job("x", 2 * GIB))
    made = plan_of(*nouns)
    assert made.starts == ()


def test_gpus_are_not_given_twice():
    gpu = command(gpus=1)
    site = a_site(gpus=1)
    jobs = [a_job(f"j{k}", MIB, order=k, gpus=1) for k in range(2)]
    made = plan_of(site, gpu, a_deployment(gpus=1), *jobs)
    assert started(made) == ["p-1/j0"]
    assert made.starts[0].given.gpus == 1


def test_nothing_starts_on_a_pod_that_is_not_up():
    for state in (DeploymentState.STARTING, DeploymentState.RELEASING):
        assert plan_of(a_deployment(state=state), a_job("x")).starts == ()


def test_the_least_loaded_pod_comes_first():
    running = a_job("running", state=JobState.RUNNING)
    nouns = (a_deployment(pods=2, memory=4 * GIB), running, an_attempt(running, "a-1.0"), a_job("x"))
    assert plan_of(*nouns).starts[0].pod_id == "a-1.1"


def test_among_equals_the_tightest_pod_comes_first():
    nouns = (a_deployment("a-1", memory=8 * GIB), a_deployment("a-2", memory=2 * GIB), a_job("x"))
    assert plan_of(*nouns).starts[0].deployment_id == "a-2"


def test_jobs_of_runs_that_are_not_active_do_not_start():
    made = plan_of(a_run(1, RunState.STOPPING), a_deployment(), a_job("x"))
    assert made.starts == ()


def test_a_job_held_back_starts_at_its_time():
    nouns = (a_deployment(), a_job("x", not_before=NOW + 4))
    made = plan_of(*nouns)
    assert made.starts == ()
    assert made.again_at == NOW + 4
    assert started(plan_of(*nouns, now=NOW + 4)) == ["p-1/x"]


def test_small_jobs_pass_a_large_one_until_it_has_waited_too_long():
    running = a_job("running", state=JobState.RUNNING)
    nouns = (a_deployment(memory=4 * GIB), running, an_attempt(running))
    large, small = a_job("large", 4 * GIB, order=0), a_job("small", GIB, order=1)
    assert started(plan_of(*nouns, large, small)) == ["p-1/small"]
    later = NOW + RESERVE_AFTER_SECONDS + 1
    assert started(plan_of(*nouns, large, replace(small, ready=later), now=later)) == []


def test_a_plan_is_bounded_and_says_so():
    jobs = [a_job(f"j{k}", MIB, order=k) for k in range(4)]
    made = plan_of(a_deployment(), *jobs, limit=3)
    assert started(made) == ["p-1/j0", "p-1/j1", "p-1/j2"]
    assert not made.complete
    assert plan_of(a_deployment(), *jobs).complete


# --- bringing up


def test_a_deployment_is_brought_up_for_what_will_run_side_by_side():
    jobs = [a_job(f"j{k}", GIB, order=k) for k in range(3)] + [a_job("next", 2 * GIB, state=JobState.BLOCKED)]
    made = plan_of(*jobs)
    (wanted,) = made.bring_ups
    assert wanted.nodes == ("n0",)
    assert wanted.sizing.amounts == Amounts(cpus=2.0, memory_bytes=5 * GIB)


def test_explicit_amounts_go_before():
    (wanted,) = plan_of(command(cpus=1.0, memory_bytes=3 * GIB), a_job("x")).bring_ups
    assert wanted.sizing.amounts == Amounts(cpus=1.0, memory_bytes=3 * GIB)


def test_all_workers_of_a_resource_come_up_together_where_there_is_room():
    (wanted,) = plan_of(command(workers=3, memory_bytes=4 * GIB), a_job("x")).bring_ups
    assert wanted.nodes == ("n0", "n0", "n0")
    (wanted,) = plan_of(command(workers=9, memory_bytes=4 * GIB), a_job("x")).bring_ups
    assert len(wanted.nodes) == 4  # 16 GiB


def test_no_more_workers_than_allowed():
    running = [a_job(f"r{k}", 2 * GIB, state=JobState.RUNNING) for k in range(2)]
    full = (a_deployment(), *running, *(an_attempt(job, memory=2 * GIB) for job in running))
    assert plan_of(command(workers=1), *full, a_job("x")).bring_ups == ()
    (wanted,) = plan_of(command(workers=2), *full, a_job("x")).bring_ups
    assert len(wanted.nodes) == 1


def test_what_is_coming_is_counted_on():
    assert plan_of(a_deployment(state=DeploymentState.STARTING), a_job("x")).bring_ups == ()


def test_a_busy_node_gets_no_second_pod_but_another_node_does():
    running = [a_job(f"r{k}", MIB, state=JobState.RUNNING) for k in range(4)]
    nouns = (a_deployment(), *running, *(an_attempt(job, memory=MIB) for job in running), a_job("x"))
    assert plan_of(*nouns).bring_ups == ()
    (wanted,) = plan_of(a_site(count=2), *nouns).bring_ups
    assert wanted.nodes == ("n1",)


GANG = replace(a_job("g", 3 * GIB, ready=0.0), job=Job(name="g", command=CommandSpec(run="x", workers=2)))
PAIR = command(workers=2, cpus=2.0, memory_bytes=4 * GIB)


def test_a_gang_whose_node_is_away_holds_and_takes_nothing_however_long_it_waits():
    """Neither a pod for half of it nor, again and again, another one instead of the one that is up."""
    for up in ((), (a_deployment(),)):
        made = plan_of(a_site(share=1.0), PAIR, *up, GANG)
        assert (made.bring_ups, made.releases) == ((), ())
    snapshot = Snapshot([a_run(), a_site(share=1.0), PAIR, a_deployment(), GANG])
    assert "needs room for 2 workers at once" in why_waiting(snapshot, GANG.id, NOW)
    snapshot = Snapshot([a_run(), a_site(share=1.0), PAIR, GANG])
    assert why_waiting(snapshot, GANG.id, NOW).endswith("workers at once; site local has room for 1")
    snapshot = Snapshot([a_run(), a_site(share=1.0, count=2), PAIR, GANG])
    assert why_waiting(snapshot, GANG.id, NOW) == "`a` is about to start"
    (wanted,) = plan_of(a_site(share=1.0), PAIR, GANG, command("b"), a_job("x", resource="b")).bring_ups
    assert wanted.resource.name == "b"


def test_a_gang_brings_up_what_it_lacks_once_the_node_is_back():
    (wanted,) = plan_of(a_site(count=2, share=1.0), PAIR, a_deployment(), GANG).bring_ups
    assert (wanted.resource.name, wanted.nodes) == ("a", ("n1",))


def test_a_gang_waits_for_the_node_that_others_keep_busy_and_keeps_its_own_pod():
    other = a_deployment("b-1", "b")
    busy = replace(other, pods=tuple(replace(pod, node="n1") for pod in other.pods))
    work = a_job("w", resource="b", state=JobState.RUNNING)
    there = (a_site(count=2, share=1.0), PAIR, command("b"), a_deployment(), busy, work)
    made = plan_of(*there, an_attempt(work, "b-1.0"), GANG)
    assert (made.bring_ups, made.releases) == ((), ())


def test_a_job_too_large_for_what_is_up_gets_a_deployment_of_its_own():
    (wanted,) = plan_of(a_deployment(memory=2 * GIB), a_job("x", 6 * GIB)).bring_ups
    assert wanted.sizing.amounts.memory_bytes >= 6 * GIB


def test_a_deployment_gets_what_is_free_where_that_is_less_than_wished():
    jobs = [a_job(f"j{k}", 6 * GIB, order=k) for k in range(4)]
    (wanted,) = plan_of(*jobs).bring_ups
    assert wanted.sizing.amounts.memory_bytes == 16 * GIB


def test_cpus_of_a_node_may_be_claimed_as_often_as_its_share_says():
    nouns = (command("b"), a_deployment("b-1", "b", memory=GIB, cpus=2.0), a_job("x"))
    assert len(plan_of(a_site(share=2.0), *nouns).bring_ups) == 1
    made = plan_of(a_site(share=1.0), *nouns)
    assert made.bring_ups == ()
    assert [release.deployment_id for release in made.releases] == ["b-1"]


def test_a_pod_with_some_of_the_gpus_gets_as_many_of_the_cpus():
    site = a_site(cpus=32.0, gpus=4, share=1.0)
    pair = [command(name=name, gpus=gpus) for name, gpus in (("one", 1), ("three", 3))]
    jobs = [a_job(f"j{k}", MIB, resource=one.name, gpus=one.gpus) for k, one in enumerate(pair)]
    wanted = plan_of(site, *pair, *jobs).bring_ups
    assert {one.resource.name: one.sizing.amounts.cpus for one in wanted} == {"one": 8.0, "three": 24.0}
    (alone,) = plan_of(site, command(gpus=1, cpus=20.0), a_job("x", MIB, gpus=1)).bring_ups
    assert alone.sizing.amounts.cpus == 20.0


def test_default_resources_never_have_gpus():
    default = Resource(name="default-command", type=JobKind.COMMAND, default=True, gpus=4)
    (wanted,) = plan_of(a_site(gpus=4), default, a_job("x", resource="default-command")).bring_ups
    assert wanted.sizing.amounts.gpus == 0


def test_a_default_resource_need_not_be_known():
    (wanted,) = plan_of(a_job("x", resource="default-command")).bring_ups
    assert wanted.resource.default


def test_nodes_with_gpus_are_left_to_those_who_need_them():
    site = a_site()
    gpu_node = Node(name="a-gpu", capacity=Amounts(cpus=2.0, memory_bytes=16 * GIB, gpus=1))
    site = replace(site, nodes=(gpu_node, *site.nodes))
    assert plan_of(site, a_job("x")).bring_ups[0].nodes == ("n0",)
    assert plan_of(site, command(gpus=1), a_job("x", gpus=1)).bring_ups[0].nodes == ("a-gpu",)


def test_what_comes_next_is_brought_up_early_where_there_is_room():
    nouns = (command("b"), a_deployment(), a_job("x", state=JobState.RUNNING))
    following = a_job("y", resource="b", state=JobState.BLOCKED, needs=("p-1/x",))
    (wanted,) = plan_of(*nouns, following).bring_ups
    assert wanted.resource.name == "b"
    filled = a_deployment("c-1", "c", memory=12 * GIB)
    assert plan_of(command("c"), filled, *nouns, following).bring_ups == ()
    assert plan_of(command("c"), filled, *nouns, following).releases == ()


# --- releasing


def test_what_is_idle_for_its_keep_is_released():
    idle = a_deployment(keep_seconds=10.0, idle_since=NOW - 10)
    assert [release.deployment_id for release in plan_of(idle).releases] == ["a-1"]
    made = plan_of(replace(idle, idle_since=NOW - 9))
    assert made.releases == ()
    assert made.again_at == NOW + 1


def test_what_comes_up_for_nobody_any_more_is_called_off():
    here = a_deployment(state=DeploymentState.STARTING, idle_since=None)
    assert plan_of(here, command("a")).releases == ()  # it is up in a moment
    starting = replace(here, site="farm")
    [release] = plan_of(starting, command("a")).releases
    assert (release.deployment_id, release.reason) == ("a-1", "no job waits for it")
    held = a_job("x", not_before=NOW + 60)
    blocked = a_job("y", state=JobState.BLOCKED, needs=("p-1/x",))
    for needed in ((a_job("x"),), (held,), (a_job("x", resource="b"), blocked)):
        assert plan_of(starting, command("a"), command("b"), a_run(), *needed).releases == ()


def lost_one_of_two(kind, **fields):
    whole = a_deployment(pods=2, **fields)
    [first, second] = whole.pods
    nodes = tuple(Node(name=f"n{k}", capacity=whole.sizing.amounts) for k in range(2))
    site = Site(name="local", kind=kind, nodes=nodes, cpu_share=1.0)
    return replace(whole, pods=(first, replace(second, state=PodState.GONE))), site


def test_where_a_site_holds_the_place_of_a_lost_pod_nothing_more_goes_there():
    resource = command(workers=2)
    deployment, site = lost_one_of_two(SiteKind.RAY)
    made = plan_of(resource, site, a_run(), a_job("x"), deployment)
    assert [release.deployment_id for release in made.releases] == ["a-1"]
    assert made.starts == ()
    deployment, site = lost_one_of_two(SiteKind.SIMULATED)
    made = plan_of(resource, site, a_run(), a_job("x"), deployment)
    assert (made.releases, [start.pod_id for start in made.starts]) == ((), ["a-1.0"])


def test_what_still_runs_where_a_pod_is_lost_counts_among_the_workers():
    deployment, site = lost_one_of_two(SiteKind.RAY)
    busy = a_job("busy", state=JobState.RUNNING)
    nouns = (site, a_run(), busy, an_attempt(busy), a_job("x"), a_job("y", order=1), deployment)
    made = plan_of(command(workers=2), *nouns)
    assert (made.releases, made.starts) == ((), ())
    assert [up.nodes for up in made.bring_ups] == [("n1",)]


def test_what_an_active_run_still_needs_is_kept():
    idle = a_deployment(keep_seconds=0.0, idle_since=NOW - 10)
    running = a_job("x", resource="b", state=JobState.RUNNING)
    following = a_job("y", state=JobState.BLOCKED, needs=(running.id,))
    assert plan_of(idle, running, following).releases == ()


def test_idle_deployments_go_early_when_they_stand_in_the_way():
    nouns = (command("b"), a_deployment("b-1", "b", memory=14 * GIB), a_job("x", 4 * GIB))
    made = plan_of(*nouns)
    assert [release.deployment_id for release in made.releases] == ["b-1"]
    assert made.bring_ups == ()


def test_room_that_is_on_its_way_is_waited_for():
    leaving = a_deployment("b-1", "b", memory=8 * GIB, state=DeploymentState.RELEASING)
    idle = a_deployment("c-1", "c", memory=6 * GIB)
    made = plan_of(command("b"), command("c"), leaving, idle, a_job("x", 8 * GIB))
    assert made.releases == ()
    assert made.bring_ups == ()


def test_deployments_with_jobs_are_not_released():
    running = a_job("r", resource="b", state=JobState.RUNNING)
    busy = a_deployment("b-1", "b", memory=14 * GIB, idle_since=None)
    made = plan_of(command("b"), busy, running, an_attempt(running, "b-1.0"), a_job("x", 4 * GIB))
    assert made.releases == ()


# --- refusing


def test_a_job_larger_than_any_node_is_refused():
    (refusal,) = plan_of(a_job("x", 48 * GIB)).refusals
    assert refusal.message == "needs 48 GiB; the largest node of site local has 16 GiB"
    assert "memory" in refusal.hint


def test_a_job_larger_than_its_resource_is_refused():
    (refusal,) = plan_of(command(memory_bytes=2 * GIB), a_job("x", 3 * GIB)).refusals
    assert refusal.message == "needs 3 GiB; resource a has 2 GiB"


def test_a_resource_larger_than_any_node_refuses_its_jobs():
    (refusal,) = plan_of(command(gpus=2), a_job("x", gpus=2)).refusals
    assert "asks for 2 GPUs per worker" in refusal.message


def test_unknown_resources_and_sites_and_other_kinds_are_refused():
    assert plan_of(a_job("x", resource="nope")).refusals[0].message == "there is no resource 'nope'"
    assert "does not exist" in plan_of(command(site="moon"), a_job("x")).refusals[0].message
    sinks = Resource(name="a", type=JobKind.SINK)
    assert plan_of(sinks, a_job("x")).refusals[0].message.startswith("resource 'a' is for sink jobs")


def test_too_many_cpus_are_refused():
    assert "needs 3 CPUs" in plan_of(a_job("x", cpus=3.0)).refusals[0].message


def test_what_fitted_a_node_that_is_away_waits_for_it_and_takes_nothing_from_others():
    small = a_site(memory=4 * GIB, count=2).nodes
    away = a_site(memory=16 * GIB).with_nodes(small)
    large, idle = a_job("x", 8 * GIB, ready=NOW - 2 * RESERVE_AFTER_SECONDS), a_deployment(memory=2 * GIB)
    made = plan_of(away, command(workers=1), large, idle)
    assert (made.refusals, made.bring_ups, made.releases) == ((), (), ())
    snapshot = Snapshot((away, command(), a_run(), large))
    assert why_waiting(snapshot, large.id, NOW).endswith(
        "no node of site local with so much is available now"
    )
    assert plan_of(away, a_job("x", 17 * GIB)).refusals
    needs = command(name="b", memory_bytes=8 * GIB)
    assert not plan_of(away, needs, a_job("x", resource="b")).refusals


def test_of_nodes_that_are_away_a_site_remembers_the_largest():
    site = a_site(memory=4 * GIB).with_nodes(())
    assert [size.memory_bytes for size in site.past] == [4 * GIB]
    site = site.with_nodes(a_site(memory=16 * GIB).nodes)
    assert site.past == ()
    site = site.with_nodes(a_site(memory=8 * GIB).nodes).with_nodes(a_site(memory=2 * GIB).nodes)
    assert [size.memory_bytes for size in site.past] == [16 * GIB]


def test_a_site_without_nodes_may_get_some():
    made = plan_of(a_site(count=0), a_job("x"))
    assert made.refusals == ()
    assert made.bring_ups == ()


# --- pods whose time is limited


def a_limited_deployment(began, ends):
    up = a_deployment()
    return replace(up, pods=tuple(replace(pod, began=began, ends=ends) for pod in up.pods))


def lasting(job, expected):
    return replace(job, sizing=replace(job.sizing, expected_seconds=expected))


def test_a_job_gets_no_pod_that_ends_before_it():
    """A fresh one is brought up for it; a shorter job goes there."""
    nouns = (a_site(), command(), a_run(), a_limited_deployment(NOW - 3000, NOW + 600))
    long, short = lasting(a_job("long"), 900.0), lasting(a_job("short", order=1), 300.0)
    made = plan(Snapshot((*nouns, long, short)), NOW)
    assert [start.job_run_id for start in made.starts] == [short.id]
    assert len(made.bring_ups) == 1


def test_a_job_that_no_pod_outlasts_gets_a_fresh_one():
    """Else nothing would ever run it: and a forecast may be wrong."""
    job = lasting(a_job("endless"), 1e6)
    fresh = plan(Snapshot((a_site(), command(), a_run(), a_limited_deployment(NOW, NOW + 3600), job)), NOW)
    assert [start.job_run_id for start in fresh.starts] == [job.id]
    used = plan(
        Snapshot((a_site(), command(), a_run(), a_limited_deployment(NOW - 600, NOW + 3000), job)), NOW
    )
    assert used.starts == ()


def test_a_job_of_which_nothing_is_known_goes_anywhere():
    nouns = (a_site(), command(), a_run(), a_limited_deployment(NOW - 3000, NOW + 1))
    assert len(plan(Snapshot((*nouns, a_job("x"))), NOW).starts) == 1


# --- why


def why(job, *nouns, now=NOW):
    return why_waiting(Snapshot((a_site(), command(), a_run(), job, *nouns)), job.id, now)


def test_why_a_blocked_job_waits():
    features = a_job("features", state=JobState.RUNNING)
    job = a_job("x", state=JobState.BLOCKED, needs=(features.id,))
    assert why(job, features) == "waits for `features` (running)"


def test_why_a_job_has_no_pod():
    full = a_job("r", state=JobState.RUNNING)
    up = (a_deployment(memory=16 * GIB), full)
    assert why(a_job("x", 14 * GIB), *up, an_attempt(full, memory=8 * GIB)) == (
        "needs 14 GiB; the largest free pod of `a` has 8 GiB"
    )
    assert why(a_job("x"), a_deployment(state=DeploymentState.STARTING)) == "`a` is starting"
    others = a_deployment("b-1", "b", memory=12 * GIB)
    assert why(a_job("x", 6 * GIB), command("b"), others) == (
        "needs 6 GiB for `a`; other deployments leave 4 GiB at site local"
    )
    assert why(a_job("x", 48 * GIB)) == "needs 48 GiB; the largest node of site local has 16 GiB"


def test_why_a_job_is_behind_others():
    running = [a_job(f"r{k}", MIB, state=JobState.RUNNING) for k in range(4)]
    nouns = (a_deployment(), *running, *(an_attempt(job, memory=MIB) for job in running))
    before = [a_job(f"j{k}", MIB, order=k) for k in range(3)]
    assert why(a_job("x", MIB, order=9), *nouns, *before) == (
        "`a` runs 4 jobs, the most for its CPUs; 3 jobs before it"
    )


def test_why_a_job_is_held_back():
    assert why(a_job("x", not_before=NOW + 4)) == "retries in 4.0 s after a failure"
    assert why(a_job("x"), a_run(1, RunState.STOPPING)) == "its run is stopping"
    assert why(a_job("x", state=JobState.RUNNING)) == ""
