"""The resources of the simulated AWS Batch as its answers show them."""

import hashlib
from collections import Counter
from typing import Any

from gridmill.testing.cloud.aws_batch.answers import milliseconds
from gridmill.testing.cloud.aws_batch.call import Call
from gridmill.testing.cloud.aws_batch.records import (
    Attempt,
    Container,
    Definition,
    Environment,
    Job,
    Pairs,
    Queue,
    Retry,
    Status,
)
from gridmill.testing.cloud.ec2.catalogue import ACCOUNT


def _named(given: Pairs) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in given]


def _number(value: float) -> str:
    return f"{value:g}"


def container_shape(one: Container) -> dict[str, Any]:
    """Returns the properties of a container."""
    needs = [
        {"type": "VCPU", "value": _number(one.vcpus)},
        {"type": "MEMORY", "value": str(one.memory_mib)},
        {"type": "GPU", "value": str(one.gpus)},
    ]
    return {
        "image": one.image,
        "command": list(one.command),
        "environment": _named(one.environment),
        "resourceRequirements": needs if one.gpus else needs[:2],
        "jobRoleArn": one.job_role or None,
        "executionRoleArn": one.execution_role or None,
        "volumes": [],
        "mountPoints": [],
        "ulimits": [],
        "secrets": [],
    }


def retry_shape(retry: Retry) -> dict[str, Any]:
    """Returns a retry strategy."""
    rules = [
        {
            "action": rule.action,
            "onStatusReason": rule.on_status_reason or None,
            "onReason": rule.on_reason or None,
            "onExitCode": rule.on_exit_code or None,
        }
        for rule in retry.rules
    ]
    return {"attempts": retry.attempts, "evaluateOnExit": rules}


def definition_shape(call: Call, one: Definition) -> dict[str, Any]:
    """Returns a job definition."""
    shape = {
        "jobDefinitionName": one.name,
        "jobDefinitionArn": call.arn("job-definition", f"{one.name}:{one.revision}"),
        "revision": one.revision,
        "status": "ACTIVE" if one.is_active else "INACTIVE",
        "type": one.kind,
        "parameters": dict(one.parameters),
        "retryStrategy": retry_shape(one.retry),
        "timeout": _timeout(one.timeout_seconds),
        "tags": dict(one.tags),
        "propagateTags": one.propagates_tags,
        "platformCapabilities": list(one.platforms),
        "containerOrchestrationType": "ECS",
    }
    if one.is_multi_node:
        return shape | {"nodeProperties": _nodes_shape(one.nodes, one.main_node)}
    return shape | {"containerProperties": container_shape(one.nodes[0])}


def _nodes_shape(nodes: tuple[Container, ...], main_node: int) -> dict[str, Any]:
    return {
        "numNodes": len(nodes),
        "mainNode": main_node,
        "nodeRangeProperties": [
            {"targetNodes": str(index), "container": container_shape(one)} for index, one in enumerate(nodes)
        ],
    }


def _timeout(seconds: int | None) -> dict[str, int] | None:
    return None if seconds is None else {"attemptDurationSeconds": seconds}


def job_summary(call: Call, job: Job) -> dict[str, Any]:
    """Returns a job as ListJobs shows it."""
    shape: dict[str, Any] = {
        "jobArn": call.arn("job", job.id),
        "jobId": job.id,
        "jobName": job.name,
        "createdAt": milliseconds(job.created_at),
        "status": job.status,
        "statusReason": job.status_reason or None,
        "startedAt": milliseconds(job.started_at),
        "stoppedAt": milliseconds(job.stopped_at),
        "jobDefinition": _definition_arn(call, job),
        "isCancelled": job.is_cancelled or None,
        "isTerminated": job.is_terminated or None,
    }
    if job.is_array:
        shape["arrayProperties"] = {"size": job.size}
    elif job.is_gang:
        shape["nodeProperties"] = {"numNodes": len(job.nodes)}
    elif job.is_node:
        main = call.world.find(job.parent).main_node
        shape["nodeProperties"] = {"isMainNode": job.index == main, "nodeIndex": job.index}
    elif job.parent:
        shape["arrayProperties"] = {"index": job.index}
    if job.exit_code is not None or job.reason:
        shape["container"] = {"exitCode": job.exit_code, "reason": job.reason or None}
    return shape


def _definition_arn(call: Call, job: Job) -> str:
    return call.arn("job-definition", f"{job.definition.name}:{job.definition.revision}")


def job_detail(call: Call, job: Job) -> dict[str, Any]:
    """Returns a job as DescribeJobs shows it."""
    shape: dict[str, Any] = {
        "jobArn": call.arn("job", job.id),
        "jobName": job.name,
        "jobId": job.id,
        "jobQueue": call.arn("job-queue", job.queue),
        "status": job.status,
        "attempts": [_attempt(call, one) for one in job.attempts],
        "statusReason": job.status_reason or None,
        "createdAt": milliseconds(job.created_at),
        "retryStrategy": retry_shape(job.retry),
        "startedAt": milliseconds(job.started_at),
        "stoppedAt": milliseconds(job.stopped_at),
        "dependsOn": [],
        "jobDefinition": _definition_arn(call, job),
        "parameters": dict(job.parameters),
        "timeout": _timeout(job.timeout_seconds),
        "tags": dict(job.tags),
        "propagateTags": job.propagates_tags,
        "platformCapabilities": list(job.definition.platforms),
        "isCancelled": job.is_cancelled,
        "isTerminated": job.is_terminated,
    }
    if job.is_gang:
        return shape | {"nodeProperties": _nodes_shape(job.nodes, job.main_node)}
    shape["container"] = _job_container(call, job)
    if job.is_array:
        shape["arrayProperties"] = {"size": job.size, "statusSummary": _summary(call, job)}
    elif job.is_node:
        main = call.world.find(job.parent).main_node
        shape["nodeDetails"] = {"nodeIndex": job.index, "isMainNode": job.index == main}
    elif job.parent:
        shape["arrayProperties"] = {"index": job.index}
    return shape


def _summary(call: Call, job: Job) -> dict[str, int]:
    counts = Counter(one.status for one in call.world.latest(job))
    return {status: counts[status] for status in Status}


def _job_container(call: Call, job: Job) -> dict[str, Any]:
    return container_shape(job.container) | {
        "exitCode": job.exit_code,
        "reason": job.reason or None,
        "logStreamName": job.log_stream or None,
        "containerInstanceArn": _instance_arn(call, job.instance_id),
        "taskArn": _task_arn(call, job.task),
        "networkInterfaces": [],
    }


def _attempt(call: Call, one: Attempt) -> dict[str, Any]:
    return {
        "container": {
            "exitCode": one.exit_code,
            "reason": one.reason or None,
            "logStreamName": one.log_stream,
            "containerInstanceArn": _instance_arn(call, one.instance_id),
            "taskArn": _task_arn(call, one.task),
            "networkInterfaces": [],
        },
        "startedAt": milliseconds(one.started_at),
        "stoppedAt": milliseconds(one.stopped_at),
        "statusReason": one.status_reason,
    }


def _instance_arn(call: Call, instance_id: str) -> str | None:
    if not instance_id:
        return None
    # the id of an instance in its cluster, which is not its id in EC2
    number = hashlib.sha256(instance_id.encode()).hexdigest()[:32]
    return f"arn:aws:ecs:{call.region}:{ACCOUNT}:container-instance/AWSBatch/{number}"


def _task_arn(call: Call, task: str) -> str | None:
    return f"arn:aws:ecs:{call.region}:{ACCOUNT}:task/AWSBatch/{task}" if task else None


def queue_shape(call: Call, one: Queue) -> dict[str, Any]:
    """Returns a job queue."""
    order = [
        {"order": index, "computeEnvironment": call.arn("compute-environment", name)}
        for index, name in enumerate(one.environments, 1)
    ]
    return {
        "jobQueueName": one.name,
        "jobQueueArn": call.arn("job-queue", one.name),
        "state": "ENABLED" if one.is_enabled else "DISABLED",
        "status": "VALID",
        "statusReason": "JobQueue Healthy",
        "priority": one.priority,
        "computeEnvironmentOrder": order,
        "jobStateTimeLimitActions": [],
        "tags": {},
    }


def environment_shape(call: Call, one: Environment) -> dict[str, Any]:
    """Returns a compute environment."""
    resources: dict[str, Any] = {"type": one.kind, "maxvCpus": one.max_vcpus, "subnets": ["subnet-0a1b2c3d"]}
    if not one.kind.is_fargate:
        resources |= {"minvCpus": 0, "instanceTypes": list(one.instance_types)}
    return {
        "computeEnvironmentName": one.name,
        "computeEnvironmentArn": call.arn("compute-environment", one.name),
        "type": "MANAGED",
        "state": "ENABLED" if one.is_enabled else "DISABLED",
        "status": "VALID" if one.is_valid else "INVALID",
        "statusReason": one.status_reason,
        "computeResources": resources,
        "serviceRole": f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/batch.amazonaws.com/"
        "AWSServiceRoleForBatch",
        "containerOrchestrationType": "ECS",
        "tags": {},
    }
