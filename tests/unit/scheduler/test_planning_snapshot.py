"""The snapshot keeps what is live, and its indices follow every change."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.job import CommandSpec, Job, JobKind
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.domain.states import AttemptState, DeploymentState, JobState, PodState, RunState
from gridmill.scheduler.capacity import POD_ID, Pods, slot_of
from gridmill.scheduler.lane import Lane, LaneQueue
from gridmill.scheduler.queue import JOB_CLASS, JOB_RUN_ID, Demand, JobQueue
from gridmill.scheduler.snapshot import Snapshot
from gridmill.scheduler.sorted_tuples import SortedTuples

SITE = Site(
    name="local",
    kind=SiteKind.SIMULATED,
    nodes=(Node(name="n0", capacity=Amounts(cpus=4.0, memory_bytes=8 * GIB)),),
)
RUN = Run(id="p-1", pipeline="p", order=1, state=RunState.ACTIVE, created=0.0)
CAPACITY = Amounts(cpus=2.0, memory_bytes=4 * GIB)
DEPLOYMENT = Deployment(
    id="a-1",
    resource="a",
    type=JobKind.COMMAND,
    site="local",
    state=DeploymentState.UP,
    sizing=Sizing(amounts=CAPACITY),
    pods=(Pod(id="a-1.0", node="n0", capacity=CAPACITY, state=PodState.UP),),
    keep_seconds=10.0,
    created=0.0,
    idle_since=100.0,
)


def a_job(name="x", state=JobState.WAITING, order=0, needs=()):
    return JobRun(
        id=f"p-1/{name}",
        run_id="p-1",
        pipeline="p",
        job=Job(name=name, command=CommandSpec(run="true")),
        order=order,
        state=state,
        resource="a",
        needs=needs,
        sizing=Sizing(amounts=Amounts(memory_bytes=GIB)),
    )


def an_attempt(state=AttemptState.RUNNING):
    return Attempt(
        id="p-1.x.1",
        run_id="p-1",
        job_run_id="p-1/x",
        token="",
        deployment_id="a-1",
        pod_id="a-1.0",
        state=state,
        given=Amounts(cpus=1.0, memory_bytes=GIB),
        placed=0.0,
    )


def test_what_is_finished_drops_out():
    snapshot = Snapshot((SITE, RUN, a_job(), DEPLOYMENT, an_attempt()))
    snapshot.put(an_attempt(AttemptState.SUCCEEDED))
    assert not snapshot.attempts
    snapshot.put(replace(RUN, state=RunState.SUCCEEDED))
    assert not snapshot.runs
    assert not snapshot.job_runs
    assert not snapshot.lines.waiting
    snapshot.put(replace(DEPLOYMENT, state=DeploymentState.GONE))
    assert not snapshot.deployments
    assert not snapshot.places.open
    assert snapshot.places.nodes["local"].free("n0") == SITE.nodes[0].capacity


def test_free_amounts_follow_attempts_and_deployments():
    snapshot = Snapshot((SITE, RUN, a_job(state=JobState.RUNNING), an_attempt(), DEPLOYMENT))
    assert snapshot.places.open["a"].slot("a-1.0").free_memory == 3 * GIB
    assert snapshot.places.nodes["local"].free("n0") == Amounts(cpus=2.0, memory_bytes=4 * GIB)
    assert not snapshot.places.idle
    snapshot.remove(Attempt, "p-1.x.1")
    assert snapshot.places.open["a"].slot("a-1.0").free_memory == 4 * GIB
    assert list(snapshot.places.idle["a"]) == [(110.0, "a-1")]
    snapshot.put(replace(DEPLOYMENT, idle_since=200.0))
    assert list(snapshot.places.idle["a"]) == [(210.0, "a-1")]


def test_a_pod_that_is_gone_gives_its_room_back():
    gone = replace(DEPLOYMENT, pods=(replace(DEPLOYMENT.pods[0], state=PodState.GONE),))
    snapshot = Snapshot((SITE, DEPLOYMENT))
    snapshot.put(gone)
    assert not snapshot.places.open
    assert snapshot.places.nodes["local"].free("n0") == SITE.nodes[0].capacity


def test_asking():
    first, second = a_job("first", order=0), a_job("second", JobState.BLOCKED, 1, ("p-1/first",))
    snapshot = Snapshot((second, first, RUN, DEPLOYMENT, an_attempt()))
    assert snapshot.job_runs_of("p-1") == (first, second)
    assert snapshot.dependents_of("p-1/first") == (second,)
    assert snapshot.attempts_on("a-1") == snapshot.attempts_on("a-1.0") == (an_attempt(),)
    assert snapshot.find(Run, "p-1") == RUN
    assert snapshot.find(Run, "p-2") is None
    snapshot.remove(JobRun, "p-1/second")
    assert snapshot.dependents_of("p-1/first") == ()


def test_jobs_line_up_when_their_run_is_known_and_active():
    snapshot = Snapshot((a_job(),))
    assert not snapshot.lines.waiting
    snapshot.put(RUN)
    assert len(snapshot.lines.waiting["a"]) == 1
    snapshot.put(replace(RUN, state=RunState.STOPPING))
    assert not snapshot.lines.waiting


def test_it_knows_which_jobs_of_a_run_are_not_finished():
    snapshot = Snapshot((RUN, a_job("x"), a_job("y", JobState.BLOCKED), a_job("z", JobState.SUCCEEDED)))
    assert {*snapshot.unfinished_of("p-1")} == {"p-1/x", "p-1/y"}
    snapshot.put(a_job("x", JobState.FAILED))
    snapshot.put(a_job("z"))
    assert {*snapshot.unfinished_of("p-1")} == {"p-1/y", "p-1/z"}
    snapshot.remove(JobRun, "p-1/y")
    snapshot.put(replace(RUN, state=RunState.FAILED))
    assert not snapshot.unfinished_of("p-1")


def test_resources_can_be_changed_and_removed():
    snapshot = Snapshot((Resource(name="a", type=JobKind.COMMAND),))
    assert snapshot.resource_of("a", JobKind.COMMAND) is not None
    snapshot.remove(Resource, "a")
    assert snapshot.resource_of("a", JobKind.COMMAND) is None
    default = snapshot.resource_of("default-command", JobKind.COMMAND)
    assert default is not None
    assert default.default


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3000)), max_size=200), st.integers(0, 3000))
def test_a_sorted_collection_is_a_sorted_set(changes, key):
    ordered, model = SortedTuples((number,) for number in range(0, 3000, 2)), set(range(0, 3000, 2))
    for add, number in changes:
        if add and number not in model:
            ordered.add((number,))
            model.add(number)
        elif not add:
            ordered.discard((number,))
            model.discard(number)
    for count in (3, 2000):  # few of all, and many
        more = [(number,) for number in range(3001, 9000) if number not in model][:count]
        ordered.update(more[::-1])
        model.update(number for (number,) in more)
    expected = [(number,) for number in sorted(model)]
    assert list(ordered) == expected
    assert list(reversed(ordered)) == expected[::-1]
    assert len(ordered) == len(expected)
    assert (ordered.first(), ordered.last()) == (expected[0], expected[-1])
    above = [item for item in expected if item >= (key,)]
    assert list(ordered.iter_from((key,))) == above
    assert ordered.first_from((key,)) == (above[0] if above else None)
    assert list(ordered.iter_down_from((key,))) == [item for item in reversed(expected) if item < (key,)]
    assert ordered.count_before((key,)) == len(expected) - len(above)
    twin = ordered.copy()
    twin.discard(expected[0])
    assert list(ordered) == expected
    assert list(twin) == expected[1:]


ASKED = st.tuples(st.integers(0, 3), st.integers(-1, 1), st.integers(0, 2), st.sampled_from([None, 1.0]))


@given(st.lists(ASKED, max_size=30), st.randoms(use_true_random=False))
def test_a_queue_knows_its_classes_their_first_jobs_and_the_largest(asked, chance):
    queue, left = JobQueue("a"), {}
    for number, (memory, priority, order, cpus) in enumerate(asked):
        rank = (-priority, 0.0, order, number, f"p/{number}")
        left[queue.add(rank, Demand(memory, 0, cpus or 0.0, priority, JobKind.COMMAND))] = memory
    for ticket in chance.sample(sorted(left, key=lambda ticket: ticket[JOB_RUN_ID]), len(left) // 2):
        queue.discard(ticket)
        del left[ticket]
    classes = {ticket[JOB_CLASS] for ticket in left}
    assert len(queue) == len(left)
    assert set(queue.classes.values()) == classes
    assert all(list(group.members) == sorted(t for t in left if t[5] is group) for group in classes)
    assert list(queue.in_order()) == sorted(group.members.first() for group in classes)
    assert list(queue.largest_memories(5)) == sorted(left.values(), reverse=True)[:5]
    assert queue.smallest_memory == min(left.values(), default=0)


@given(st.lists(st.tuples(ASKED, st.integers(0, 2), st.booleans()), max_size=40))
def test_a_line_gives_all_jobs_in_order_and_those_behind_one_set_aside_only_from_other_classes(asked):
    snapshot = Snapshot((SITE,))
    queues = {name: JobQueue(name) for name in "abc"}
    aside = {}
    for number, ((memory, priority, order, cpus), which, stays) in enumerate(asked):
        rank = (-priority, 0.0, order, number, f"p/{number}")
        demand = Demand(memory, 0, cpus or 0.0, priority, JobKind.COMMAND)
        aside[queues["abc"[which]].add(rank, demand)] = stays
    lanes = {
        name: Lane(snapshot, name, Resource(name=name, type=JobKind.COMMAND), queue)
        for name, queue in queues.items()
    }
    line, seen = LaneQueue(lanes), []
    for lane in lanes.values():
        line.join(lane)
    for ticket, lane in line.in_order():
        seen.append(ticket)
        if aside[ticket]:
            line.leave_with_class(lane)
        else:
            line.move_on(lane)
    expected, gone = [], set()
    for ticket in sorted(aside):
        if ticket[JOB_CLASS] not in gone:
            expected.append(ticket)
            if aside[ticket]:
                gone.add(ticket[JOB_CLASS])
    assert seen == expected


SIZES = st.tuples(st.sampled_from([1.0, 2.0]), st.integers(1, 9), st.integers(0, 2))
TRIES = st.tuples(st.integers(0, 4), st.integers(0, 1), st.sampled_from(["", "", "", "n0", "n1", "drop"]))


@given(st.lists(SIZES, min_size=1, max_size=12), st.lists(TRIES, max_size=60))
def test_a_pod_that_is_found_is_the_least_loaded_that_has_room_however_many_were_taken_before(sizes, tries):
    pods, free = Pods(), {}
    for number, (cpus, memory, gpus) in enumerate(sizes):
        pod_id, capacity = f"p{number:02}", Amounts(cpus=cpus, memory_bytes=memory, gpus=gpus)
        pods.set(slot_of(pod_id, capacity, (), "d", f"n{number % 2}"))
        free[pod_id] = cpus, memory, gpus, 0
    for memory, gpus, where in tries:
        fitting = [
            (jobs / cpus, left, pod_id)
            for pod_id, (cpus, left, left_gpus, jobs) in free.items()
            if jobs < 2 * cpus
            and left >= memory
            and left_gpus >= gpus
            and where in ("", "drop", f"n{int(pod_id[1:]) % 2}")
        ]
        named = where.startswith("n")
        found = pods.find_on(where, memory, gpus) if named else pods.find(memory, gpus)
        assert (found and found[:3]) == min(fitting, default=None)
        if found is not None and where == "drop":
            pods.drop(found[POD_ID])
            del free[found[POD_ID]]
        elif found is not None:
            pods.take(found, memory, gpus)
            cpus, left, left_gpus, jobs = free[found[POD_ID]]
            free[found[POD_ID]] = cpus, left - memory, left_gpus - gpus, jobs + 1
    assert {pod_id: slot.jobs for pod_id, slot in pods.copy().items()} == {
        key: one[3] for key, one in free.items()
    }
