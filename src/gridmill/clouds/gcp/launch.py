"""Requests for machines of Compute Engine, and machines as Compute Engine describes them, as pure functions.

Sources: instances.insert and Scheduling in the Compute Engine API reference; "Limit the run time of a VM",
"Create and use Spot VMs", "Organize resources using labels", "Add SSH keys to VMs" and "Predefined metadata
keys" in the Compute Engine documentation.
"""

import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gridmill.clouds.gcp.requests import last_part
from gridmill.clouds.gcp.settings import GcpSettings
from gridmill.domain.amounts import GIB
from gridmill.domain.frozen import dataclass
from gridmill.domain.machine import Machine, MachineState
from gridmill.errors import InputError
from gridmill.ports.cloud import LaunchRequest

PROVIDER = "gcp"
LEASE, OWNER, TOKEN = "gridmill-lease", "gridmill-owner", "gridmill-token"
"""The names of the labels by which machines and everything that belongs to them are found."""

STATES: Mapping[str, MachineState] = {
    "PROVISIONING": MachineState.PENDING,
    "STAGING": MachineState.PENDING,
    "PENDING": MachineState.PENDING,
    "RUNNING": MachineState.RUNNING,
    "REPAIRING": MachineState.RUNNING,
    "PENDING_STOP": MachineState.STOPPING,
    "STOPPING": MachineState.STOPPING,
    "SUSPENDING": MachineState.STOPPING,
    "DEPROVISIONING": MachineState.STOPPING,
    "SUSPENDED": MachineState.STOPPED,
    "STOPPED": MachineState.STOPPED,
    "TERMINATED": MachineState.STOPPED,
}
"""The states of `Instance.status`. TERMINATED means that a machine is off; its disk still costs money. A
deleted machine is in no list. Any other state is UNKNOWN."""

LEAST_SECONDS, MOST_SECONDS = 30, 120 * 86_400
"""The limits of `maxRunDuration`."""
_LABEL = re.compile(r"[a-z0-9_-]{0,63}")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_TYPE = re.compile(r"([a-z0-9-]+)(?:\+(\d+)x([a-z0-9-]+))?")
_HYPERDISK = ("a4-", "a4x-", "c4-", "c4a-", "c4d-", "g4-", "h4d-", "m4-", "n4-", "n4a-", "n4d-", "x4-")
"""The families whose machines have no persistent disks but hyperdisks."""
_LEAST_DISK_GIB = 10
_NAMESPACE = uuid.UUID("7c1f5d0e-9f0b-4f43-8a05-6c1ad4f6a8f2")
_COMPUTE_SCOPE = "https://www.googleapis.com/auth/compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image: its path in the API, the size of its disk in bytes, which is the smallest possible size of a
    machine's disk, and its architecture (`x86_64`, `arm64`, or empty if the provider does not state it)."""

    path: str
    disk_bytes: int
    architecture: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineType:
    """A type of machines: the name of the machine type, and the GPUs that are attached to it."""

    name: str
    attached: int = 0
    accelerator: str = ""

    def __str__(self) -> str:
        return f"{self.name}+{self.attached}x{self.accelerator}" if self.attached else self.name


def machine_type(text: str) -> MachineType:
    """Return the parsed form of a type, such as `g2-standard-8` or `n1-standard-8+1xnvidia-tesla-t4`. Raises
    InputError."""
    found = _TYPE.fullmatch(text)
    if found is None:
        raise InputError(
            f"{text!r} is not a type of machines",
            hint="Write for example g2-standard-8 or n1-standard-8+1xnvidia-tesla-t4.",
        )
    return MachineType(name=found[1], attached=int(found[2] or 0), accelerator=found[3] or "")


def request_id(token: str) -> str:
    """Return the idempotency key for the token of a try. Compute Engine accepts only UUIDs."""
    return str(uuid.uuid5(_NAMESPACE, token))


def instance_name(request: LaunchRequest) -> str:
    """Return the name of the machine of a request. Apart from a readable part, the name depends only on the
    token, so that the machine of a try is found by its name. A zone has each name once. The longest name has
    63 characters."""
    readable = _NOT_IN_NAMES.sub("-", request.lease.lower()).strip("-")[:32].strip("-")
    return "-".join(one for one in ("gridmill", readable, _digest(request.token)[:16]) if one)


def label(value: str) -> str:
    """Return the value of a label: the value itself, if it has at most 63 characters of the set that labels
    permit, otherwise its hash. The description has the value itself."""
    return value if _LABEL.fullmatch(value) else f"h-{_digest(value)[:40]}"


def labels_of(request: LaunchRequest) -> dict[str, str]:
    """Return the labels of something that is created for a request."""
    more = {
        name: label(value)
        for name, value in request.tags.items()
        if re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", name)
    }
    return {**more, LEASE: label(request.lease), OWNER: label(request.owner), TOKEN: label(request.token)}


def description_of(request: LaunchRequest, *, is_shared: bool = False) -> str:
    """Return the description of something that is created for a request: a JSON object with the values that
    labels cannot have. `is_shared` means that all requests of a lease share it. `request` is the hash of the
    request, because a name or a request id does not show whether a request has other parameters."""
    own = {} if is_shared else {"token": request.token, "request": fingerprint(request)}
    return json.dumps({"lease": request.lease, "owner": request.owner, **own}, sort_keys=True)


def described(text: str) -> dict[str, str]:
    """Return the fields of a description, or nothing if it is not a description of Gridmill."""
    try:
        fields = json.loads(text or "{}")
    except ValueError:
        return {}
    return {str(k): str(v) for k, v in fields.items()} if isinstance(fields, dict) else {}


def fingerprint(request: LaunchRequest) -> str:
    """Return the hash of everything in a request that decides about the machine."""
    parts = (
        request.lease,
        request.owner,
        request.zone,
        request.instance_type,
        request.image,
        str(request.spot),
        str(request.disk_bytes),
        request.ssh_public_key,
        request.user_data,
        str(request.max_seconds),
    )
    return _digest(json.dumps(parts))[:32]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def insert_body(
    request: LaunchRequest,
    image: Image,
    settings: GcpSettings,
    tags: tuple[str, ...],
    project: str,
    service_account: str = "",
) -> dict[str, Any]:
    """Return the body of instances.insert. `tags` are the network tags, and `service_account` is the account
    with which the machine deletes itself (empty: it has no credentials)."""
    wanted = machine_type(request.instance_type)
    zone = f"zones/{request.zone}"
    return {
        "name": instance_name(request),
        "description": description_of(request),
        "machineType": f"{zone}/machineTypes/{wanted.name}",
        "labels": labels_of(request),
        "tags": {"items": list(tags)},
        "disks": [_disk(request, image, wanted)],
        "networkInterfaces": [_interface(request.region, settings, project)],
        "scheduling": _scheduling(request),
        "metadata": {"items": _metadata(request, wanted)},
        "serviceAccounts": _service_accounts(service_account),
        "guestAccelerators": _accelerators(wanted, zone),
    }


def _disk(request: LaunchRequest, image: Image, wanted: MachineType) -> dict[str, Any]:
    least = max(request.disk_bytes, image.disk_bytes, _LEAST_DISK_GIB * GIB)
    kind = "hyperdisk-balanced" if wanted.name.startswith(_HYPERDISK) else "pd-balanced"
    return {
        "boot": True,
        # the disk is deleted with the machine, also when the provider deletes the machine
        "autoDelete": True,
        "initializeParams": {
            "sourceImage": image.path,
            "diskSizeGb": str(-(-least // GIB)),
            "diskType": f"zones/{request.zone}/diskTypes/{kind}",
            "labels": labels_of(request),
            "description": description_of(request),
        },
    }


def _interface(region: str, settings: GcpSettings, project: str) -> dict[str, Any]:
    subnetwork = subnetwork_in(region, settings)
    public = {"accessConfigs": [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]}
    return {
        "network": f"projects/{project}/global/networks/{settings.network}",
        **(
            {"subnetwork": f"projects/{project}/regions/{region}/subnetworks/{subnetwork}"}
            if subnetwork
            else {}
        ),
        **({} if settings.is_private else public),
    }


def subnetwork_in(region: str, settings: GcpSettings) -> str:
    """Return the name of the subnetwork for machines in a region (empty: the automatic one)."""
    for one in settings.subnetworks:
        place, _, name = one.rpartition("/")
        if place in ("", region):
            return name
    return ""


def _scheduling(request: LaunchRequest) -> dict[str, Any]:
    seconds = min(max(int(request.max_seconds), LEAST_SECONDS), MOST_SECONDS)
    return {
        "provisioningModel": "SPOT" if request.spot else "STANDARD",
        # the provider deletes the machine with its disk, also when it interrupts a spot machine
        "instanceTerminationAction": "DELETE",
        "maxRunDuration": {"seconds": str(seconds)},
        # after a restart, the time of maxRunDuration would begin again
        "automaticRestart": False,
        # machines with GPUs and spot machines cannot be moved to another host
        "onHostMaintenance": "TERMINATE",
    }


def _metadata(request: LaunchRequest, wanted: MachineType) -> list[dict[str, str]]:
    values = {
        "user-data": request.user_data,
        "ssh-keys": f"root:{request.ssh_public_key}" if request.ssh_public_key else "",
        # keys of the project and users of OS Login must not reach the machine
        "block-project-ssh-keys": "TRUE",
        "enable-oslogin": "FALSE",
        # images for deep learning without a driver install one at the first boot
        "install-nvidia-driver": "True" if has_gpus(wanted) else "",
    }
    return [{"key": key, "value": value} for key, value in values.items() if value]


def has_gpus(wanted: MachineType) -> bool:
    """Return whether machines of a type have GPUs."""
    return bool(wanted.attached) or wanted.name.startswith(("a2-", "a3-", "a4-", "a4x-", "g2-", "g4-"))


def _service_accounts(email: str) -> list[dict[str, Any]]:
    return [{"email": email, "scopes": [_COMPUTE_SCOPE]}] if email else []


def _accelerators(wanted: MachineType, zone: str) -> list[dict[str, Any]]:
    if not wanted.attached:
        return []
    path = f"{zone}/acceleratorTypes/{wanted.accelerator}"
    return [{"acceleratorType": path, "acceleratorCount": wanted.attached}]


def region_of(zone: str) -> str:
    """Return the region of a zone."""
    return zone.rpartition("-")[0]


def identity_of(item: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the lease, the owner and the token of something that was created for a request."""
    labels, fields = item.get("labels") or {}, described(item.get("description", ""))
    pairs = (("lease", LEASE), ("owner", OWNER), ("token", TOKEN))
    lease, owner, token = (_exact(fields.get(name, ""), labels.get(key, "")) for name, key in pairs)
    return lease, owner, token


def _exact(value: str, given: str) -> str:
    """Return the value of a description, if it belongs to the label; otherwise the label."""
    return value if value and label(value) == given else given


def machine_of(instance: Mapping[str, Any], *, is_private: bool = False) -> Machine:
    """Return the machine that Compute Engine describes."""
    lease, owner, token = identity_of(instance)
    zone, native = last_part(instance.get("zone", "")), instance.get("status", "")
    return Machine(
        id=instance["name"],
        provider=PROVIDER,
        region=region_of(zone),
        zone=zone,
        instance_type=_type_of(instance),
        state=STATES.get(native, MachineState.UNKNOWN),
        native_state=native,
        lease=lease,
        owner=owner,
        token=token,
        address=_address(instance, is_private=is_private),
        spot=_is_spot(instance.get("scheduling") or {}),
        launched=time_of(instance.get("creationTimestamp", "")),
        reason=instance.get("statusMessage", ""),
    )


def _is_spot(scheduling: Mapping[str, Any]) -> bool:
    return scheduling.get("provisioningModel") == "SPOT" or bool(scheduling.get("preemptible"))


def _type_of(instance: Mapping[str, Any]) -> str:
    name = last_part(instance.get("machineType", ""))
    # accelerators of other families are a part of the machine type
    attached = (instance.get("guestAccelerators") or ()) if name.startswith("n1-") else ()
    for one in attached:
        return str(
            MachineType(
                name=name,
                attached=int(one.get("acceleratorCount", 0)),
                accelerator=last_part(one.get("acceleratorType", "")),
            )
        )
    return name


def _address(instance: Mapping[str, Any], *, is_private: bool) -> str:
    for interface in instance.get("networkInterfaces") or ():
        if is_private:
            return str(interface.get("networkIP") or "")
        for access in interface.get("accessConfigs") or ():
            return str(access.get("natIP") or "")
    return ""


def time_of(text: str) -> float | None:
    """Return the Unix time of a time in RFC 3339, or None if the text is empty."""
    return datetime.fromisoformat(text).timestamp() if text else None
