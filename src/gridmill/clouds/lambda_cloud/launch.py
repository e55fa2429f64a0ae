"""Requests for machines of Lambda Cloud, and machines as Lambda Cloud describes them, as pure functions.

Sources: the schemas InstanceLaunchRequest, Instance, RequestedTagEntry and AddSSHKeyRequest of the OpenAPI
description (https://cloud.lambda.ai/api/v1/openapi.json, version 1.10).
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.domain.machine import Machine, MachineState
from gridmill.errors import InputError
from gridmill.ports.cloud import LaunchRequest

PROVIDER = "lambda"
LEASE, OWNER, TOKEN = "gridmill-lease", "gridmill-owner", "gridmill-token"
LAUNCHED, REQUEST = "gridmill-launched", "gridmill-request"
"""The names of tags. `LAUNCHED` has the Unix time of the request, because Lambda Cloud does not report when a
machine was launched, and `REQUEST` a hash of the request."""

STATES: Mapping[str, MachineState] = {
    "booting": MachineState.PENDING,
    "active": MachineState.RUNNING,
    "unhealthy": MachineState.UNKNOWN,
    "terminating": MachineState.STOPPING,
    "terminated": MachineState.ENDED,
    # the machine does not run any more; it is ended like a stopped machine, because it may cost money
    "preempted": MachineState.STOPPED,
}
"""The states of InstanceStatus. Any other state is UNKNOWN."""
_NAME_LENGTH, _TAG_LENGTH = 64, 128
_PREFIX = "gridmill"
_WORD = re.compile(r"[A-Za-z0-9_-]+")
_TAG_KEY = re.compile(r"[a-z][a-z0-9:-]{1,54}")
_IMAGE_ID = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NameParts:
    """The parts of the name of a machine or an SSH key: the grid, the lease, and a hash of the token."""

    owner: str
    lease: str
    digest: str


def name_of(request: LaunchRequest) -> str:
    """Return the name of the machine and of the SSH key of a request. Lambda Cloud has no idempotency keys,
    so that a machine is found by this name. Raises InputError."""
    digest = hashlib.sha256(request.token.encode()).hexdigest()[:12]
    name = f"{_PREFIX}.{request.owner}.{request.lease}.{digest}"
    words = (request.owner, request.lease)
    if len(name) > _NAME_LENGTH or not all(_WORD.fullmatch(word) for word in words):
        raise InputError(
            f"{name!r} is not a valid name of a machine at Lambda Cloud, or has more than 64 characters"
        )
    return name


def read_name(name: str) -> NameParts | None:
    """Return the parts of a name, or None if Gridmill has not made the name."""
    parts = name.split(".")
    if len(parts) != 4 or parts[0] != _PREFIX:
        return None
    return NameParts(owner=parts[1], lease=parts[2], digest=parts[3])


def fingerprint(request: LaunchRequest) -> str:
    """Return a hash of the properties of a request that a repeated request must have too. The user data are
    not among them, because they contain an API key that may have been replaced."""
    parts = (
        request.lease,
        request.owner,
        request.region,
        request.instance_type,
        request.image,
        str(request.disk_bytes),
        str(request.max_seconds),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def launch_body(request: LaunchRequest, now: float) -> dict[str, Any]:
    """Return the body of the request that launches the machine, at the Unix time `now`."""
    return {
        "region_name": request.region,
        "instance_type_name": request.instance_type,
        "ssh_key_names": [name_of(request)],
        "name": name_of(request),
        "user_data": request.user_data,
        "tags": _tags(request, now),
        **({"image": _image(request.image)} if request.image else {}),
    }


def _tags(request: LaunchRequest, now: float) -> list[dict[str, str]]:
    tags = {
        **{key: value for key, value in request.tags.items() if _TAG_KEY.fullmatch(key)},
        LEASE: request.lease,
        OWNER: request.owner,
        TOKEN: request.token,
        LAUNCHED: f"{now:.0f}",
        REQUEST: fingerprint(request),
    }
    return [{"key": key, "value": value[:_TAG_LENGTH]} for key, value in sorted(tags.items())]


def _image(image: str) -> dict[str, str]:
    return {"id" if _IMAGE_ID.fullmatch(image) else "family": image}


def tags_in(instance: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of a machine as Lambda Cloud describes it."""
    return {str(tag["key"]): str(tag["value"]) for tag in instance.get("tags") or ()}


def machine_of(instance: Mapping[str, Any]) -> Machine:
    """Return the machine that Lambda Cloud describes. If somebody has removed the tags, the grid and the
    lease come from the name."""
    tags, parts = tags_in(instance), read_name(str(instance.get("name") or ""))
    region, native = str(instance["region"]["name"]), str(instance["status"])
    return Machine(
        id=str(instance["id"]),
        provider=PROVIDER,
        region=region,
        zone=region,
        instance_type=str(instance["instance_type"]["name"]),
        state=STATES.get(native, MachineState.UNKNOWN),
        native_state=native,
        lease=tags.get(LEASE) or (parts.lease if parts else ""),
        owner=tags.get(OWNER) or (parts.owner if parts else ""),
        token=tags.get(TOKEN, ""),
        address=str(instance.get("ip") or ""),
        launched=_launched(tags),
        reason=native if native in ("unhealthy", "preempted") else "",
    )


def _launched(tags: Mapping[str, str]) -> float | None:
    text = tags.get(LAUNCHED, "")
    return float(text) if text.isascii() and text.isdigit() else None


def is_ours(instance: Mapping[str, Any]) -> bool:
    """Return whether Gridmill has launched a machine, of any grid."""
    return OWNER in tags_in(instance) or read_name(str(instance.get("name") or "")) is not None


def new_machine(request: LaunchRequest, machine_id: str, state: MachineState, now: float) -> Machine:
    """Return the machine of a request whose description is not known yet, or not any more."""
    return Machine(
        id=machine_id,
        provider=PROVIDER,
        region=request.region,
        zone=request.region,
        instance_type=request.instance_type,
        state=state,
        native_state="booting" if state is MachineState.PENDING else "terminated",
        lease=request.lease,
        owner=request.owner,
        token=request.token,
        launched=now,
    )
