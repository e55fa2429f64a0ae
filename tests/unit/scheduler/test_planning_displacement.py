"""An urgent job gets room that jobs of other resources of its site hold."""

from dataclasses import replace

from tests.unit.scheduler.test_planning_interrupting import asked, running
from tests.unit.scheduler.test_planning_plan import NOW, a_deployment, a_job, a_run, a_site, command, started

from gridmill.domain.amounts import GIB
from gridmill.domain.run import Preemption
from gridmill.domain.states import AttemptState, DeploymentState
from gridmill.scheduler.plan import plan
from gridmill.scheduler.snapshot import Snapshot

SOON = NOW + 20.0
WHY = Preemption(job_run="p-2/urgent", left_seconds=1.0)


def urgent(memory=3 * GIB, **fields):
    """It has just come, to a resource that has no pod."""
    return a_job("urgent", memory=memory, run=2, resource="b", **{"priority": 5, "ready": SOON, **fields})


def site(*nouns, memory=4 * GIB, held=4 * GIB, **fields):
    """All of its one node belongs to a deployment of the resource a."""
    place = a_deployment(memory=held, idle_since=None, **fields)
    return Snapshot(
        (a_site(memory=memory, count=1), command(), command("b"), a_run(), a_run(2), place, *nouns)
    )


def test_an_urgent_job_interrupts_one_of_another_resource():
    wanted = plan(site(*running("one", memory=GIB), urgent()), SOON)
    assert asked(wanted) == ["p-1.one.1"]
    assert wanted.interrupts[0].interruption.job_run == "p-2/urgent"


def test_not_one_of_its_priority_nor_one_that_cannot_resume_nor_a_fresh_one():
    assert not asked(plan(site(*running("one", memory=GIB, priority=5), urgent()), SOON))
    job, attempt = running("one", memory=GIB)
    assert not asked(plan(site(job, replace(attempt, resumable=False), urgent()), SOON))
    assert not asked(plan(site(*running("one", memory=GIB, began=SOON - 5.0), urgent()), SOON))


def test_nobody_is_interrupted_where_the_node_would_still_be_too_small():
    two = running("two", memory=GIB)
    fixed = (two[0], replace(two[1], resumable=False))
    assert not asked(plan(site(*running("one", memory=GIB), *fixed, urgent()), SOON))


def test_nothing_of_lower_priority_starts_where_an_urgent_job_lacks_room():
    """Half of the pod is free, of no use to the urgent one: the pod takes no more jobs until it can go."""
    job, attempt = running("one", memory=GIB)
    fixed = (job, replace(attempt, resumable=False))
    low = a_job("low", memory=GIB, ready=SOON)
    assert started(plan(site(*fixed, low), SOON)) == ["p-1/low"]
    wanted = plan(site(*fixed, low, urgent()), SOON)
    assert (started(wanted), asked(wanted), wanted.releases) == ([], [], ())
    assert started(plan(site(*fixed, low, urgent(priority=0)), SOON)) == ["p-1/low"]


def test_while_room_is_made_the_pod_takes_no_job_and_then_it_goes():
    job, attempt = running("one", memory=GIB)
    low = a_job("low", memory=GIB, ready=SOON)
    snapshot = site(job, replace(attempt, interrupted=WHY), low, urgent())
    wanted = plan(snapshot, SOON)
    assert (started(wanted), asked(wanted)) == ([], [])
    snapshot.put(replace(attempt, state=AttemptState.STOPPED))
    snapshot.put(replace(a_job("one", memory=GIB), ready=SOON))
    snapshot.put(replace(snapshot.deployments["a-1"], idle_since=SOON))
    wanted = plan(snapshot, SOON)
    assert ([one.deployment_id for one in wanted.releases], started(wanted)) == (["a-1"], [])
    snapshot.put(replace(snapshot.deployments["a-1"], state=DeploymentState.GONE))
    wanted = plan(snapshot, SOON)
    assert wanted.bring_ups[0].resource.name == "b"


def test_idle_pods_of_other_resources_go_first():
    """The node has two deployments: one that is idle is enough."""
    idle = a_deployment("c-1", "a", memory=4 * GIB, idle_since=NOW)
    snapshot = site(*running("one", memory=GIB), idle, urgent(), memory=8 * GIB, held=4 * GIB)
    wanted = plan(snapshot, SOON)
    assert not asked(wanted)
    assert [one.deployment_id for one in wanted.releases] == ["c-1"]
