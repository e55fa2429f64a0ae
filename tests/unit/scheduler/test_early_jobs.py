"""Which waiting job is the next one on a busy machine."""

from typing import Any

import pytest
from tests.kit.control_records import AMOUNTS, a_deployment, a_job_run, a_pod, a_run, an_attempt

from gridmill.control.ticks.early_inputs import decide_transfers
from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.command import CommandSpec
from gridmill.domain.deployment import Deployment
from gridmill.domain.job import Job, JobKind
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.run import JobRun
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.domain.states import DeploymentState, JobState, PodState
from gridmill.ports.site import NextAttempt
from gridmill.scheduler.early_inputs import NextJob, next_jobs
from gridmill.scheduler.snapshot import Snapshot

RESOURCE = Resource(name="r", type=JobKind.COMMAND, site="far")


def waiting(name: str, order: int, **changes: Any) -> JobRun:
    sizing = Sizing(amounts=Amounts(cpus=1.0, memory_bytes=changes.pop("memory_bytes", GIB)))
    return a_job_run(name, order=order, sizing=sizing, **changes)


def running(number: int, placed: float) -> tuple[object, ...]:
    name = f"run{number}"
    job_run = a_job_run(name, state=JobState.RUNNING, sizing=Sizing(amounts=AMOUNTS), attempts=1)
    attempt = an_attempt(f"p-1.{name}.1", job_run_id=job_run.id, pod_id=f"r-1.{number}", placed=placed)
    return job_run, attempt


def machines(count: int, **changes: Any) -> Deployment:
    pods = tuple(a_pod(number) for number in range(count))
    return a_deployment(*pods, **{"site": "far", **changes})


def grid(*nouns: object, kind: SiteKind = SiteKind.CLOUD) -> Snapshot:
    nodes = tuple(Node(name=f"node{number}", capacity=AMOUNTS) for number in range(4))
    return Snapshot((Site(name="far", kind=kind, nodes=nodes), RESOURCE, a_run(), *nouns))


@pytest.mark.parametrize("kind", [SiteKind.CLOUD, SiteKind.CLUSTER])
def test_the_first_waiting_job_is_next_on_a_busy_machine(kind: SiteKind) -> None:
    snapshot = grid(machines(1), *running(0, 5.0), waiting("b", 2), waiting("a", 1), kind=kind)
    assert next_jobs(snapshot, 10.0) == (NextJob(job_run_id="p-1/a", pod_id="r-1.0"),)


@pytest.mark.parametrize("kind", [SiteKind.LOCAL, SiteKind.SLURM, SiteKind.RAY, SiteKind.BATCH])
def test_other_sites_have_no_next_jobs(kind: SiteKind) -> None:
    assert next_jobs(grid(machines(1), *running(0, 5.0), waiting("a", 1), kind=kind), 10.0) == ()


def test_the_job_that_started_first_is_expected_to_end_first() -> None:
    snapshot = grid(
        machines(2), *running(0, 7.0), *running(1, 5.0), waiting("a", 1), waiting("b", 2), waiting("c", 3)
    )
    assert [(one.job_run_id, one.pod_id) for one in next_jobs(snapshot, 10.0)] == [
        ("p-1/a", "r-1.1"),
        ("p-1/b", "r-1.0"),
    ]


def test_an_idle_machine_has_no_next_job() -> None:
    assert next_jobs(grid(machines(1), waiting("a", 1)), 10.0) == ()


def test_a_machine_that_is_released_has_no_next_job() -> None:
    releasing = machines(1, state=DeploymentState.RELEASING)
    assert next_jobs(grid(releasing, *running(0, 5.0), waiting("a", 1)), 10.0) == ()


def test_the_first_jobs_start_on_machines_that_are_coming() -> None:
    coming = a_deployment(
        a_pod(0, id="r-2.0", state=PodState.STARTING),
        id="r-2",
        site="far",
        state=DeploymentState.STARTING,
    )
    snapshot = grid(machines(1), coming, *running(0, 5.0), waiting("a", 1), waiting("b", 2))
    assert [one.job_run_id for one in next_jobs(snapshot, 10.0)] == ["p-1/b"]


def test_jobs_that_cannot_start_next_are_skipped() -> None:
    gang = Job(name="gang", command=CommandSpec(run="true", workers=2))
    snapshot = grid(
        machines(1),
        *running(0, 5.0),
        waiting("held", 1, not_before=99.0),
        a_job_run("gang", job=gang, order=2, sizing=Sizing(amounts=AMOUNTS)),
        waiting("large", 3, memory_bytes=2 * GIB),
        waiting("blocked", 4, state=JobState.BLOCKED),
        waiting("next", 5),
    )
    assert [one.job_run_id for one in next_jobs(snapshot, 10.0)] == ["p-1/next"]


def test_choosing_changes_nothing_that_a_plan_reads() -> None:
    snapshot = grid(machines(1), *running(0, 5.0), waiting("a", 1), waiting("b", 2))
    assert next_jobs(snapshot, 10.0) == next_jobs(snapshot, 10.0)
    assert len(snapshot.lines.waiting["r"]) == 2


def test_a_site_without_a_next_job_ends_its_transfers() -> None:
    order = AttemptOrder(
        attempt_id="p-1.a.1",
        token="",
        run_id="p-1",
        pipeline="p",
        job=Job(name="a", command=CommandSpec(run="true")),
        given=AMOUNTS,
        root="",
        output_uri="",
    )
    attempt = NextAttempt(pod_id="r-1.0", order=order)
    decided = decide_transfers([machines(1)], (attempt,), {"far", "other"})
    assert decided == {"far": (attempt,), "other": ()}
