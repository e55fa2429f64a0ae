"""Reads the body of a request that creates a job.

Sources: https://cloud.google.com/batch/docs/reference/rest/v1/projects.locations.jobs and, for the limits,
https://cloud.google.com/batch/quotas
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gridmill.testing.cloud.gcp_batch import catalogue
from gridmill.testing.cloud.gcp_batch.records import Pairs, Policy, Runnable, Spec
from gridmill.testing.cloud.gcp_batch.refusal import invalid, not_simulated

_MOST_TASKS, _MOST_PARALLEL, _DEFAULT_PARALLEL = 100_000, 5_000, 1_000
_MOST_RETRIES, _MOST_POLICIES, _MOST_LABELS = 10, 10, 64
_DEFAULT_CPU_MILLI, _DEFAULT_MEMORY_MIB = 2000, 2000
_DURATION = re.compile(r"(\d+(?:\.\d{1,9})?)s")
_SHARED_MEMORY = re.compile(r"(--shm-size=\d+[kmg])?")
_LABEL = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_JOB = ("name", "priority", "taskGroups", "allocationPolicy", "labels", "logsPolicy")
_GROUP = ("taskCount", "parallelism", "taskSpec", "taskCountPerNode")
_TASK = (
    "runnables", "computeResource", "maxRetryCount", "maxRunDuration", "lifecyclePolicies", "environment",
    "volumes",
)  # fmt: skip
_ALLOCATION = ("instances", "location", "labels", "serviceAccount", "network")
_POLICY = ("machineType", "provisioningModel", "accelerators", "bootDisk")


def check_known(given: Mapping[str, Any], names: Sequence[str], place: str) -> None:
    """Raises GoogleRefusalError if an object has a field that the simulation does not implement."""
    for name, value in given.items():
        if name not in names and value not in (None, [], {}, "", False):
            raise not_simulated(f"the field {place}{name}")


def read_spec(job: Mapping[str, Any], location: str) -> Spec:
    """Returns the description of the tasks of a job. Raises GoogleRefusalError."""
    check_known(job, _JOB, "")
    groups = job.get("taskGroups") or []
    if len(groups) != 1:
        raise invalid("Job must have exactly one task group")
    group = groups[0]
    check_known(group, _GROUP, "taskGroups[0].")
    task = group.get("taskSpec") or {}
    check_known(task, _TASK, "taskSpec.")
    _check_volumes(task)
    if number(group.get("taskCountPerNode"), 1, "taskCountPerNode") != 1:
        raise not_simulated("more than one task on a VM")
    count = number(group.get("taskCount"), 1, "taskCount", most=_MOST_TASKS)
    parallel = number(
        group.get("parallelism"), min(count, _DEFAULT_PARALLEL), "parallelism", most=_MOST_PARALLEL
    )
    needs = task.get("computeResource") or {}
    check_known(needs, ("cpuMilli", "memoryMib", "bootDiskMib"), "computeResource.")
    return Spec(
        runnables=_runnables(task),
        environment=_environment(task.get("environment"), "taskSpec."),
        task_count=count,
        parallelism=min(parallel, count),
        max_retries=number(task.get("maxRetryCount"), 0, "maxRetryCount", least=0, most=_MOST_RETRIES),
        policies=_policies(task),
        max_run_seconds=duration(task.get("maxRunDuration")),
        cpu_milli=number(needs.get("cpuMilli"), _DEFAULT_CPU_MILLI, "cpuMilli"),
        memory_mib=number(needs.get("memoryMib"), _DEFAULT_MEMORY_MIB, "memoryMib"),
        priority=number(job.get("priority"), 0, "priority", least=0, most=99),
        **_machines(job.get("allocationPolicy") or {}, location),
    )


def number(given: Any, default: int, name: str, *, least: int = 1, most: int = 2**62) -> int:  # noqa: ANN401
    """Returns an integer, which JSON has as a number or, for 64 bits, as a text. 0 means the default."""
    try:
        value = int(given or 0) or default
    except (TypeError, ValueError) as error:
        raise invalid(f"Invalid value at '{name}': {given!r}") from error
    if not least <= value <= most:
        raise invalid(f"{name} is {value}, not between {least} and {most}")
    return value


def duration(given: Any) -> float | None:  # noqa: ANN401
    """Returns a duration such as `3600s` in seconds, or None."""
    if given is None:
        return None
    match = _DURATION.fullmatch(str(given))
    if match is None:
        raise invalid(f"Invalid duration: {given!r}")
    return float(match[1])


def _runnables(task: Mapping[str, Any]) -> tuple[Runnable, ...]:
    given = task.get("runnables") or []
    if not given:
        raise invalid("Task must have at least one runnable")
    return tuple(_runnable(one) for one in given)


def _runnable(given: Mapping[str, Any]) -> Runnable:
    check_known(given, ("container", "script", "environment", "displayName"), "runnables.")
    environment = _environment(given.get("environment"), "runnables.")
    container, script = given.get("container"), given.get("script")
    if container is None and script is not None:
        check_known(script, ("text",), "script.")
        return Runnable(command=(script.get("text", ""),), environment=environment)
    if container is None or script is not None:
        raise invalid("Runnable must have either a container or a script")
    check_known(container, ("imageUri", "commands", "entrypoint", "options"), "container.")
    if not _SHARED_MEMORY.fullmatch(container.get("options", "")):
        raise not_simulated(f"the options {container['options']}")
    if not container.get("imageUri"):
        raise invalid("Container must have an imageUri")
    return Runnable(
        image=container["imageUri"],
        entry_point=container.get("entrypoint", ""),
        command=tuple(container.get("commands", ())),
        environment=environment,
    )


def _check_volumes(task: Mapping[str, Any]) -> None:
    """Checks the volumes of a task. The file systems of this machine stand for NFS servers, so the path of
    each volume must exist here already."""
    for one in task.get("volumes") or []:
        check_known(one, ("nfs", "mountPath"), "volumes.")
        nfs = one.get("nfs") or {}
        check_known(nfs, ("server", "remotePath"), "volumes.nfs.")
        if not nfs.get("server") or not nfs.get("remotePath") or not one.get("mountPath", "").startswith("/"):
            raise invalid("A volume must have a source and an absolute mountPath")
        if not Path(one["mountPath"]).is_dir():
            raise not_simulated(f"a mount at {one['mountPath']}, which is no folder of this machine")


def _environment(given: Mapping[str, Any] | None, place: str) -> Pairs:
    check_known(given or {}, ("variables",), f"{place}environment.")
    return tuple((given or {}).get("variables", {}).items())


def _policies(task: Mapping[str, Any]) -> tuple[Policy, ...]:
    given = task.get("lifecyclePolicies") or []
    if len(given) > _MOST_POLICIES:
        raise invalid(f"At most {_MOST_POLICIES} lifecycle policies are allowed")
    found = []
    for one in given:
        check_known(one, ("action", "actionCondition"), "lifecyclePolicies.")
        codes = (one.get("actionCondition") or {}).get("exitCodes") or []
        if one.get("action") not in ("RETRY_TASK", "FAIL_TASK") or not codes:
            raise invalid("A lifecycle policy must have an action and exit codes")
        found.append(Policy(retries=one["action"] == "RETRY_TASK", exit_codes=tuple(map(int, codes))))
    return tuple(found)


def _machines(given: Mapping[str, Any], location: str) -> dict[str, Any]:
    check_known(given, _ALLOCATION, "allocationPolicy.")
    instances = given.get("instances") or [{}]
    if len(instances) != 1:
        raise invalid("Only instances[0] is supported now")
    check_known(instances[0], ("policy", "installGpuDrivers"), "instances[0].")
    policy = instances[0].get("policy") or {}
    check_known(policy, _POLICY, "policy.")
    model = policy.get("provisioningModel") or "STANDARD"
    if model not in ("STANDARD", "SPOT", "PREEMPTIBLE"):
        raise invalid(f"Invalid value at 'provisioningModel': {model!r}")
    accelerators = policy.get("accelerators") or [{}]
    if len(accelerators) != 1:
        raise invalid("Only one type of accelerators is supported")
    has_one = bool(accelerators[0].get("type"))
    return {
        "machine_type": policy.get("machineType") or catalogue.DEFAULT_TYPE,
        "is_spot": model != "STANDARD",
        "accelerator": accelerators[0].get("type", ""),
        "accelerators": number(accelerators[0].get("count"), 1, "count") if has_one else 0,
        "zones": _zones(given.get("location") or {}, location),
    }


def _zones(given: Mapping[str, Any], location: str) -> tuple[str, ...]:
    check_known(given, ("allowedLocations",), "location.")
    found: list[str] = []
    for place in given.get("allowedLocations") or [f"regions/{location}"]:
        kind, _, name = place.partition("/")
        zones = catalogue.LOCATIONS[location]
        if kind == "regions" and name == location:
            found += zones
        elif kind == "zones" and name in zones:
            found.append(name)
        else:
            raise invalid(f"allowed location {place} is not in the location of the job, {location}")
    return tuple(dict.fromkeys(found))


def read_labels(given: Mapping[str, str] | None) -> Pairs:
    """Returns labels. Raises GoogleRefusalError.

    Source: https://cloud.google.com/compute/docs/labeling-resources#restrictions
    """
    labels = tuple((given or {}).items())
    if len(labels) > _MOST_LABELS:
        raise invalid(f"At most {_MOST_LABELS} labels are allowed")
    for name, value in labels:
        if not _LABEL.fullmatch(name) or not _LABEL_VALUE.fullmatch(value):
            raise invalid(f"Invalid label {name!r}: {value!r}")
        if name.startswith(("goog-", "google-")):
            raise invalid(f"Label {name} is reserved")
    return labels
