"""The resources of the simulated Google Cloud Batch as its answers show them."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from gridmill.testing.cloud.gcp_batch.records import Event, Job, JobState, Operation, Task
from gridmill.testing.cloud.gcp_batch.world import World


def timestamp(seconds: float) -> str:
    """Returns Unix time in seconds as answers show it."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


def job_shape(world: World, job: Job) -> dict[str, Any]:
    """Returns a job: the fields of its request, and those that Batch sets."""
    group = dict(job.request["taskGroups"][0]) | {
        "name": job.group,
        "taskCount": str(job.spec.task_count),
        "parallelism": str(job.spec.parallelism),
    }
    counts = Counter(task.state for task in world.latest(job))
    instance = {
        "machineType": job.spec.machine_type,
        "provisioningModel": "SPOT" if job.spec.is_spot else "STANDARD",
        "taskPack": "1",
    }
    status = {
        "state": job.state,
        "statusEvents": [_event(one) for one in job.events],
        "taskGroups": {
            "group0": {
                "counts": {state: str(count) for state, count in counts.items()},
                "instances": [instance],
            }
        },
        "runDuration": f"{_ran_seconds(world, job):.9f}".rstrip("0").rstrip(".") + "s",
    }
    return dict(job.request) | {
        "name": job.name,
        "uid": job.uid,
        "priority": str(job.spec.priority),
        "taskGroups": [group],
        "labels": dict(job.labels),
        "status": status,
        "createTime": timestamp(job.created_at),
        "updateTime": timestamp(job.updated_at),
    }


def _ran_seconds(world: World, job: Job) -> float:
    if job.state == JobState.RUNNING and job.running_since is not None:
        return world.now() - job.running_since
    return job.ran_seconds


def _event(one: Event) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "type": one.type,
        "description": one.description,
        "eventTime": timestamp(one.time),
    }
    if one.task_state:
        shape["taskState"] = one.task_state
    if one.exit_code:  # a field whose value is 0 is left out
        shape["taskExecution"] = {"exitCode": one.exit_code}
    return shape


def task_shape(task: Task) -> dict[str, Any]:
    """Returns a task."""
    events = [_event(one) for one in task.events]
    return {"name": task.name, "status": {"state": task.state, "statusEvents": events}}


def operation_shape(one: Operation) -> dict[str, Any]:
    """Returns a long-running operation."""
    metadata = {
        "@type": "type.googleapis.com/google.cloud.batch.v1.OperationMetadata",
        "createTime": timestamp(one.created_at),
        "target": one.target,
        "verb": one.verb,
        "requestedCancellation": False,
        "apiVersion": "v1",
    }
    if one.ended_at is None:
        return {"name": one.name, "metadata": metadata, "done": False}
    return {
        "name": one.name,
        "metadata": metadata | {"endTime": timestamp(one.ended_at)},
        "done": True,
        "response": {"@type": "type.googleapis.com/google.protobuf.Empty"},
    }
