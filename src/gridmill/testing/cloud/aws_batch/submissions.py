"""How a request to AWS Batch becomes a job.

Sources: https://docs.aws.amazon.com/batch/latest/APIReference/API_SubmitJob.html,
https://docs.aws.amazon.com/batch/latest/userguide/array_jobs.html, and for the largest request
https://docs.aws.amazon.com/batch/latest/userguide/service_limits.html
"""

import json
from collections.abc import Mapping
from typing import Any

from gridmill.domain.frozen import replace
from gridmill.testing.cloud.aws_batch.answers import client_error
from gridmill.testing.cloud.aws_batch.call import Call, check_known, name_of
from gridmill.testing.cloud.aws_batch.definitions import (
    NAME,
    checked,
    find,
    node_range,
    pairs,
    read_environment,
    read_retry,
    read_tags,
    read_timeout,
    with_resources,
)
from gridmill.testing.cloud.aws_batch.records import Container, Definition, Job, Kind, Queue, Status

_FEWEST_CHILDREN, _MOST_CHILDREN = 2, 10_000
_LARGEST_REQUEST_BYTES = 30 * 1024
_OVERRIDES = ("command", "environment", "resourceRequirements", "vcpus", "memory")


def submit_job(call: Call) -> dict[str, Any]:
    """Submits a job. AWS Batch has no token for repeated requests: each request makes a job of its own."""
    call.allow_only(
        "jobName", "jobQueue", "jobDefinition", "arrayProperties", "containerOverrides", "nodeOverrides",
        "retryStrategy", "timeout", "parameters", "tags", "propagateTags",
    )  # fmt: skip
    if len(json.dumps(call.parameters)) > _LARGEST_REQUEST_BYTES:
        raise client_error("The request is larger than 30 KiB.")
    name = call.get("jobName")
    if not NAME.fullmatch(name):
        raise client_error(f"Job name should match valid pattern: {name[:200]}")
    queue, definition = _queue(call), find(call, call.get("jobDefinition"))
    job = _checked_kind(call, _job(call, queue, definition), queue)
    jobs = [job, *_parts(call, job)]
    call.world.submit(jobs, call.now)
    return {"jobArn": call.arn("job", job.id), "jobName": name, "jobId": job.id}


def _queue(call: Call) -> Queue:
    name = name_of(call.get("jobQueue"))
    queue = call.world.queues.get((call.region, name))
    if queue is None:
        raise client_error(f"JobQueue {name[:200]} not found.")
    if not queue.is_enabled:
        raise client_error(f"JobQueue {name} is in state DISABLED.")
    return queue


def _job(call: Call, queue: Queue, definition: Definition) -> Job:
    timeout = read_timeout(call.get("timeout"))
    retry = call.get("retryStrategy")
    visible_from = call.now + call.world.faults.invisible()
    return Job(
        id=call.world.new_uuid(),
        name=call.get("jobName"),
        region=call.region,
        queue=queue.name,
        definition=definition,
        container=_overridden(definition.nodes[0], call.get("containerOverrides"), definition),
        status=Status.SUBMITTED,
        created_at=call.now,
        visible_from=visible_from,
        retry=read_retry(retry) if retry else definition.retry,
        timeout_seconds=definition.timeout_seconds if timeout is None else timeout,
        parameters=pairs(dict(definition.parameters) | call.get("parameters", {})),
        tags=read_tags(call.get("tags")),
        propagates_tags=bool(call.get("propagateTags", definition.propagates_tags)),
        size=_size(call, definition),
        nodes=_nodes(call, definition),
        main_node=definition.main_node,
    )


def _size(call: Call, definition: Definition) -> int:
    size = (call.get("arrayProperties") or {}).get("size")
    if size is None:
        return 0
    if definition.is_multi_node:
        raise client_error("A multi-node parallel job cannot be an array job.")
    if not _FEWEST_CHILDREN <= size <= _MOST_CHILDREN:
        raise client_error(f"Array size must be between {_FEWEST_CHILDREN} and {_MOST_CHILDREN}.")
    return int(size)


def _overridden(container: Container, given: Mapping[str, Any] | None, definition: Definition) -> Container:
    if not given:
        return container
    check_known(given, _OVERRIDES, "containerOverrides")
    if given.get("vcpus") or given.get("memory"):
        raise client_error("vcpus and memory are deprecated: use resourceRequirements.")
    added = read_environment(given.get("environment", ()))
    container = replace(
        container,
        command=tuple(given.get("command", container.command)),
        environment=tuple((dict(container.environment) | dict(added)).items()),
    )
    container = with_resources(container, given.get("resourceRequirements", ()))
    return checked(container, definition.platforms)


def _nodes(call: Call, definition: Definition) -> tuple[Container, ...]:
    given = call.get("nodeOverrides") or {}
    if not definition.is_multi_node:
        if given:
            raise client_error("nodeOverrides needs a multi-node parallel job definition.")
        return ()
    if call.get("containerOverrides"):
        raise client_error("A multi-node parallel job needs nodeOverrides instead of containerOverrides.")
    check_known(given, ("numNodes", "nodePropertyOverrides"), "nodeOverrides")
    # The nodes that a larger number adds are like the last node, whose group has an open range.
    count = given.get("numNodes") or len(definition.nodes)
    if not definition.main_node < count <= 1000:
        raise client_error("numNodes is not valid.")
    nodes = list(definition.nodes[:count])
    nodes += [definition.nodes[-1]] * (count - len(nodes))
    for override in given.get("nodePropertyOverrides", ()):
        check_known(override, ("targetNodes", "containerOverrides"), "nodePropertyOverrides")
        for index in node_range(override["targetNodes"], count):
            nodes[index] = _overridden(nodes[index], override.get("containerOverrides"), definition)
    return tuple(nodes)


def _checked_kind(call: Call, job: Job, queue: Queue) -> Job:
    kinds = {one.kind for one in call.world.environments_of(queue)}
    wants_fargate = "FARGATE" in job.definition.platforms
    if job.is_gang and kinds != {Kind.EC2}:
        raise client_error("Multi-node parallel jobs are not supported on Spot Instances or Fargate.")
    if any(kind.is_fargate != wants_fargate for kind in kinds):
        raise client_error("The job definition has no platform capability that the job queue needs.")
    return job


def _parts(call: Call, job: Job) -> list[Job]:
    """Returns the children of an array job, or the nodes of a multi-node parallel job."""
    if job.is_gang:
        return [
            replace(job, id=f"{job.id}#{index}", container=node, nodes=(), parent=job.id, index=index)
            for index, node in enumerate(job.nodes)
        ]
    return [
        replace(job, id=f"{job.id}:{index}", size=0, parent=job.id, index=index) for index in range(job.size)
    ]
