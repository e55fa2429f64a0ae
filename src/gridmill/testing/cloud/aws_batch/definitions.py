"""The job definitions of the simulated AWS Batch.

Sources: https://docs.aws.amazon.com/batch/latest/APIReference/API_RegisterJobDefinition.html and
https://docs.aws.amazon.com/batch/latest/userguide/job_definition_parameters.html
"""

import re
from collections.abc import Mapping
from typing import Any

from gridmill.domain.frozen import replace
from gridmill.testing.cloud.aws_batch.answers import client_error
from gridmill.testing.cloud.aws_batch.call import Call, check_known, page
from gridmill.testing.cloud.aws_batch.records import Container, Definition, Pairs, Retry, Rule
from gridmill.testing.cloud.aws_batch.shapes import definition_shape
from gridmill.testing.cloud.ec2.refusal import not_simulated

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_MOST_ATTEMPTS, _MOST_RULES, _MOST_TAGS = 10, 5, 50
_LEAST_TIMEOUT_SECONDS = 60
_LEAST_MEMORY_MIB = 4
_MOST_NODES, _MOST_GROUPS = 1000, 5
_FARGATE_GIB = {
    0.25: (0.5, 1, 2),
    0.5: (1, 2, 3, 4),
    1.0: tuple(range(2, 9)),
    2.0: tuple(range(4, 17)),
    4.0: tuple(range(8, 31)),
    8.0: tuple(range(16, 61, 4)),
    16.0: tuple(range(32, 121, 8)),
}
"""The memory that a job on Fargate can have for each number of processors.

Source: https://docs.aws.amazon.com/batch/latest/APIReference/API_ResourceRequirement.html
"""
_CONTAINER = (
    "image", "command", "environment", "resourceRequirements", "vcpus", "memory", "jobRoleArn",
    "executionRoleArn", "networkConfiguration", "fargatePlatformConfiguration", "logConfiguration",
    "linuxParameters",
)  # fmt: skip


def register(call: Call) -> dict[str, Any]:
    """Adds a revision of a job definition."""
    call.allow_only(
        "jobDefinitionName", "type", "containerProperties", "nodeProperties", "retryStrategy", "timeout",
        "parameters", "platformCapabilities", "tags", "propagateTags",
    )  # fmt: skip
    name, kind = call.get("jobDefinitionName"), call.get("type")
    if not NAME.fullmatch(name):
        raise client_error(f"jobDefinitionName should match valid pattern: {name[:200]}")
    if kind not in ("container", "multinode"):
        raise client_error(f"Job definition type {kind[:40]} is not valid")
    platforms = tuple(call.get("platformCapabilities") or ("EC2",))
    nodes, main_node = _nodes(call, kind, platforms)
    revisions = call.world.definitions.setdefault((call.region, name), [])
    made = Definition(
        name=name,
        region=call.region,
        revision=len(revisions) + 1,
        kind=kind,
        nodes=nodes,
        main_node=main_node,
        retry=read_retry(call.get("retryStrategy")),
        timeout_seconds=read_timeout(call.get("timeout")),
        parameters=pairs(call.get("parameters")),
        platforms=platforms,
        tags=read_tags(call.get("tags")),
        propagates_tags=bool(call.get("propagateTags")),
    )
    revisions.append(made)
    arn = call.arn("job-definition", f"{name}:{made.revision}")
    return {"jobDefinitionName": name, "jobDefinitionArn": arn, "revision": made.revision}


def _nodes(call: Call, kind: str, platforms: tuple[str, ...]) -> tuple[tuple[Container, ...], int]:
    if kind == "container":
        given = call.get("containerProperties")
        if given is None or call.get("nodeProperties"):
            raise client_error("A container job needs containerProperties, and only these.")
        return (read_container(given, platforms),), 0
    given = call.get("nodeProperties")
    if given is None or call.get("containerProperties"):
        raise client_error("A multinode job needs nodeProperties, and only these.")
    if "FARGATE" in platforms:
        raise client_error("Multi-node parallel jobs are not supported on Fargate.")
    count, main = given["numNodes"], given["mainNode"]
    if not 1 <= count <= _MOST_NODES or not 0 <= main < count:
        raise client_error("The number of nodes or the index of the main node is not valid.")
    nodes: dict[int, Container] = {}
    groups = given["nodeRangeProperties"]
    if len(groups) > _MOST_GROUPS:
        raise client_error(f"A job can have at most {_MOST_GROUPS} node groups.")
    for group in groups:
        check_known(group, ("targetNodes", "container"), "nodeRangeProperties")
        container = read_container(group["container"], platforms)
        nodes |= dict.fromkeys(node_range(group["targetNodes"], count), container)
    if set(nodes) != set(range(count)):
        raise client_error("The node groups do not have all nodes.")
    return tuple(nodes[index] for index in range(count)), main


def node_range(text: str, count: int) -> range:
    """Returns the indexes of a range of nodes such as `0:3`, `2:`, `:4` or `1`.

    Source: https://docs.aws.amazon.com/batch/latest/APIReference/API_NodeRangeProperty.html
    """
    first, colon, last = text.partition(":")
    if not all(part.isdecimal() or not part for part in (first, last)) or text in ("", ":"):
        raise client_error(f"targetNodes {text[:40]} is not a range of nodes.")
    start = int(first or 0)
    end = int(last or count - 1) if colon else start
    if not start <= end < count:
        raise client_error(f"targetNodes {text[:40]} is not within 0:{count - 1}.")
    return range(start, end + 1)


def read_container(given: Mapping[str, Any], platforms: tuple[str, ...]) -> Container:
    """Returns the container of a job definition."""
    check_known(given, _CONTAINER, "containerProperties")
    if not given.get("image"):
        raise client_error("containerProperties needs an image.")
    shared = given.get("linuxParameters", {})
    check_known(shared, ("sharedMemorySize",), "linuxParameters")
    if shared and "FARGATE" in platforms:
        raise client_error("sharedMemorySize is not supported on Fargate.")
    container = Container(
        image=given["image"],
        command=tuple(given.get("command", ())),
        environment=read_environment(given.get("environment", ())),
        vcpus=float(given.get("vcpus", 0)),
        memory_mib=given.get("memory", 0),
        job_role=given.get("jobRoleArn", ""),
        execution_role=given.get("executionRoleArn", ""),
    )
    return checked(with_resources(container, given.get("resourceRequirements", ())), platforms)


def with_resources(container: Container, given: Any) -> Container:  # noqa: ANN401  a list of the request
    """Returns a container with the given resource requirements. A later value replaces an earlier one."""
    for one in given:
        try:
            value = float(one["value"])
        except ValueError as error:
            raise client_error(f"Resource requirement {one['type']} is not a number.") from error
        match one["type"]:
            case "VCPU":
                container = replace(container, vcpus=value)
            case "MEMORY":
                container = replace(container, memory_mib=int(value))
            case "GPU":
                container = replace(container, gpus=int(value))
            case _:
                raise client_error(f"Resource requirement {one['type'][:40]} is not known.")
    return container


def checked(container: Container, platforms: tuple[str, ...]) -> Container:
    """Returns the container. Raises RefusalError if its resources are not possible."""
    if container.memory_mib < _LEAST_MEMORY_MIB or container.vcpus <= 0:
        raise client_error("The resource requirements must have VCPU and MEMORY (at least 4 MiB).")
    if "FARGATE" in platforms:
        if container.gpus:
            raise client_error("GPU is not supported on Fargate.")
        if not container.execution_role:
            raise client_error("Fargate requires an executionRoleArn.")
        if container.memory_mib / 1024 not in _FARGATE_GIB.get(container.vcpus, ()):
            raise client_error("The values of VCPU and MEMORY are not supported together on Fargate.")
    elif container.vcpus != int(container.vcpus):
        raise client_error("VCPU must be a whole number on EC2.")
    return container


def read_environment(given: Any) -> Pairs:  # noqa: ANN401  a list of the request
    """Returns environment variables. Names that start with `AWS_BATCH` are reserved.

    Source: https://docs.aws.amazon.com/batch/latest/APIReference/API_ContainerOverrides.html
    """
    for one in given:
        if one.get("name", "").startswith("AWS_BATCH"):
            raise client_error("Environment variables cannot start with 'AWS_BATCH'.")
    return tuple((one["name"], one.get("value", "")) for one in given if one.get("name"))


def read_retry(given: Mapping[str, Any] | None) -> Retry:
    """Returns a retry strategy: by default one attempt."""
    if not given:
        return Retry()
    attempts, rules = given.get("attempts"), given.get("evaluateOnExit", ())
    if rules and attempts is None:
        raise client_error("evaluateOnExit requires attempts.")
    attempts = 1 if attempts is None else attempts
    if not 1 <= attempts <= _MOST_ATTEMPTS:
        raise client_error(f"Retry attempts must be between 1 and {_MOST_ATTEMPTS}.")
    if len(rules) > _MOST_RULES:
        raise client_error(f"evaluateOnExit can have at most {_MOST_RULES} entries.")
    return Retry(attempts=attempts, rules=tuple(_rule(one) for one in rules))


def _rule(given: Mapping[str, Any]) -> Rule:
    if given["action"].upper() not in ("RETRY", "EXIT"):
        raise client_error(f"Retry action {given['action'][:40]} is not valid.")
    for name, allowed in (("onStatusReason", r"[\w.:\s]"), ("onReason", r"[\w.:\s]"), ("onExitCode", r"\d")):
        if not re.fullmatch(rf"{allowed}{{0,512}}\*?", given.get(name, ""), re.A):
            raise client_error(f"{name} {given[name][:100]!r} has characters that are not allowed.")
    return Rule(
        action=given["action"],
        on_status_reason=given.get("onStatusReason", ""),
        on_reason=given.get("onReason", ""),
        on_exit_code=given.get("onExitCode", ""),
    )


def read_timeout(given: Mapping[str, Any] | None) -> int | None:
    """Returns the timeout of an attempt in seconds, or None."""
    seconds = (given or {}).get("attemptDurationSeconds")
    if seconds is not None and seconds < _LEAST_TIMEOUT_SECONDS:
        raise client_error("attemptDurationSeconds must be at least 60.")
    return seconds


def read_tags(given: Mapping[str, str] | None) -> Pairs:
    """Returns tags."""
    tags = pairs(given)
    if len(tags) > _MOST_TAGS:
        raise client_error(f"A resource can have at most {_MOST_TAGS} tags.")
    for name, value in tags:
        if not 1 <= len(name) <= 128 or name.lower().startswith("aws:") or len(value) > 256:
            raise client_error(f"The tag {name[:128]!r} is not valid.")
    return tags


def pairs(given: Mapping[str, str] | None) -> Pairs:
    """Returns a map as pairs."""
    return tuple((given or {}).items())


def deregister(call: Call) -> dict[str, Any]:
    """Makes a revision inactive: new jobs cannot use it."""
    found = find(call, call.get("jobDefinition"))
    revisions = call.world.definitions[(call.region, found.name)]
    revisions[found.revision - 1] = replace(found, is_active=False)
    return {}


def find(call: Call, text: str) -> Definition:
    """Returns a job definition, which is given as a name, a name and revision, or an ARN. Without a
    revision it is the newest active one. Raises RefusalError."""
    name, _, revision = text.rpartition("/")[2].partition(":")
    revisions = call.world.definitions.get((call.region, name), [])
    wanted = [one for one in revisions if one.is_active and revision in ("", str(one.revision))]
    if not wanted:
        raise client_error(f"JobDefinition {text[:200]} is not found or is not active.")
    return wanted[-1]


def describe(call: Call) -> dict[str, Any]:
    """Lists job definitions, by names or ARNs, by name, or all of a status."""
    call.allow_only("jobDefinitions", "jobDefinitionName", "status", "maxResults", "nextToken")
    status = call.get("status")
    if status not in (None, "ACTIVE", "INACTIVE"):
        raise not_simulated(f"the status {status}")
    found = [
        one
        for (region, name), revisions in call.world.definitions.items()
        for one in revisions
        if region == call.region
        and call.get("jobDefinitionName") in (None, name)
        and status in (None, "ACTIVE" if one.is_active else "INACTIVE")
        and _is_named(call, one)
    ]
    listed, token = page(found, call.parameters, most=100)
    return {"jobDefinitions": [definition_shape(call, one) for one in listed]} | token


def _is_named(call: Call, one: Definition) -> bool:
    wanted = call.get("jobDefinitions")
    if not wanted:
        return True
    full = f"{one.name}:{one.revision}"
    return any(text.rpartition("/")[2] in (one.name, full) for text in wanted)
