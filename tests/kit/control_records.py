"""Records of a small grid, for tests of decisions: a deployment with pods, a job of a run, and attempts."""

from typing import Any

from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.command import CommandSpec
from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.job import Job, JobKind
from gridmill.domain.resource import Sizing
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.states import AttemptState, DeploymentState, JobState, PodState, RunState

AMOUNTS = Amounts(cpus=1.0, memory_bytes=GIB)


def a_pod(number: int = 0, **changes: Any) -> Pod:
    """A pod of the deployment `r-1`, which is up on its own node."""
    known = {"id": f"r-1.{number}", "node": f"node{number}", "capacity": AMOUNTS, "state": PodState.UP}
    return Pod(**{**known, **changes})


def a_deployment(*pods: Pod, **changes: Any) -> Deployment:
    """The deployment `r-1` of the resource `r`, which is up."""
    known = {
        "id": "r-1",
        "resource": "r",
        "type": JobKind.COMMAND,
        "site": "local",
        "state": DeploymentState.UP,
        "sizing": Sizing(amounts=AMOUNTS),
        "pods": pods or (a_pod(),),
        "keep_seconds": 60.0,
        "created": 0.0,
    }
    return Deployment(**{**known, **changes})


def a_run(**changes: Any) -> Run:
    """The active run `p-1`."""
    return Run(
        **{"id": "p-1", "pipeline": "p", "order": 1, "state": RunState.ACTIVE, "created": 0.0, **changes}
    )


def a_job_run(name: str = "j", **changes: Any) -> JobRun:
    """A waiting command of the run `p-1`."""
    known = {
        "id": f"p-1/{name}",
        "run_id": "p-1",
        "pipeline": "p",
        "job": Job(name=name, command=CommandSpec(run="true")),
        "order": 0,
        "state": JobState.WAITING,
        "resource": "r",
    }
    return JobRun(**{**known, **changes})


def an_attempt(name: str = "p-1.j.1", **changes: Any) -> Attempt:
    """An attempt that runs on the pod `r-1.0`."""
    known = {
        "id": name,
        "run_id": "p-1",
        "job_run_id": "p-1/j",
        "token": f"token of {name}",
        "deployment_id": "r-1",
        "pod_id": "r-1.0",
        "state": AttemptState.RUNNING,
        "given": AMOUNTS,
        "placed": 0.0,
        "project": "",
    }
    return Attempt(**{**known, **changes})
