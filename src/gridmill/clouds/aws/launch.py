"""Requests for EC2 machines, and machines as EC2 describes them, as pure functions.

Sources: RunInstances and DescribeInstances in the EC2 API Reference; "Ensuring idempotency" in the EC2
developer guide; "Instance metadata options" and "Tag your resources" in the EC2 user guide.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from gridmill.domain.amounts import GIB
from gridmill.domain.frozen import dataclass
from gridmill.domain.machine import Machine, MachineState
from gridmill.ports.cloud import LaunchRequest

PROVIDER = "aws"
LEASE, OWNER, TOKEN = "gridmill-lease", "gridmill-owner", "gridmill-token"
"""The names of the tags by which machines and everything that belongs to them are found."""

STATES: Mapping[str, MachineState] = {
    "pending": MachineState.PENDING,
    "running": MachineState.RUNNING,
    "shutting-down": MachineState.STOPPING,
    "terminated": MachineState.ENDED,
    "stopping": MachineState.STOPPING,
    "stopped": MachineState.STOPPED,
}
"""The states of InstanceState. Any other state is UNKNOWN."""
_TAGGED = ("instance", "volume", "network-interface")
_CLIENT_TOKEN = re.compile(r"[!-~]{1,64}")
_TRANSITION_TIME = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) GMT\)")
_LEAST_DISK_GIB = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network of a machine: its subnet (empty: the default subnet of the zone), and the id of its
    security group, or in the default network the name of the group. `is_public` means that the machine gets a
    public address in the subnet."""

    security_group: str
    subnet: str = ""
    is_public: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image: its id, the device name of its root disk, and the size of this disk in bytes, which is the
    smallest possible size of a machine's disk. `needs_dns` means that its driver gets its licence through the
    name server of AWS."""

    id: str
    root_device: str
    disk_bytes: int
    name: str = ""
    architecture: str = "x86_64"
    needs_dns: bool = False


def client_token(token: str) -> str:
    """Return the client token for the token of a try. EC2 permits 64 ASCII characters, so that the hash of a
    longer token is used. EC2 compares client tokens within one zone, so that a try must never be repeated in
    another zone with the same token."""
    if _CLIENT_TOKEN.fullmatch(token):
        return token
    return hashlib.sha256(token.encode()).hexdigest()


def tags_of(request: LaunchRequest, *, is_shared: bool = False) -> list[dict[str, str]]:
    """Return the tags of something that is created for a request. `is_shared` means that all requests of a
    lease share it, so that it has no token."""
    tags = {
        **request.tags,
        "Name": f"gridmill {request.lease}",
        LEASE: request.lease,
        OWNER: request.owner,
        **({} if is_shared else {TOKEN: request.token}),
    }
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


def run_arguments(request: LaunchRequest, image: Image, network: Network) -> dict[str, Any]:
    """Return the arguments of RunInstances. A repeated call must have the same arguments, so that they
    depend only on the request, the image and the network."""
    tagged = (*_TAGGED, "spot-instances-request") if request.spot else _TAGGED
    return {
        "ClientToken": client_token(request.token),
        "MinCount": 1,
        "MaxCount": 1,
        "ImageId": image.id,
        "InstanceType": request.instance_type,
        "UserData": request.user_data,
        # a shutdown from within the machine ends the rental
        "InstanceInitiatedShutdownBehavior": "terminate",
        "BlockDeviceMappings": [_disk(request, image)],
        # with one hop, the answers, which include the user data, do not reach containers with a network of
        # their own
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 1,
        },
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags_of(request)} for kind in tagged],
        **({"Placement": {"AvailabilityZone": request.zone}} if request.zone else {}),
        **_network(network),
        **(_SPOT if request.spot else {}),
    }


_SPOT: Mapping[str, Any] = {
    # without MaxPrice: AWS advises against it, because it makes interruptions more frequent
    "InstanceMarketOptions": {
        "MarketType": "spot",
        "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
    }
}


def _disk(request: LaunchRequest, image: Image) -> dict[str, Any]:
    least = max(request.disk_bytes, image.disk_bytes, _LEAST_DISK_GIB * GIB)
    size = -(-least // GIB)
    ebs: dict[str, object] = {"VolumeSize": size, "VolumeType": "gp3", "DeleteOnTermination": True}
    return {"DeviceName": image.root_device, "Ebs": ebs}


def _network(network: Network) -> dict[str, Any]:
    if not network.subnet:
        is_id = network.security_group.startswith("sg-")
        return {"SecurityGroupIds" if is_id else "SecurityGroups": [network.security_group]}
    interface = {
        "DeviceIndex": 0,
        "SubnetId": network.subnet,
        "Groups": [network.security_group],
        "AssociatePublicIpAddress": network.is_public,
        "DeleteOnTermination": True,
    }
    return {"NetworkInterfaces": [interface]}


def ssh_permission(networks: Iterable[str]) -> list[dict[str, Any]]:
    """Return the rules of a security group that permit SSH from these networks (CIDR)."""
    ranges: dict[str, list[dict[str, str]]] = {"IpRanges": [], "Ipv6Ranges": []}
    for network in networks:
        if ":" in network:
            ranges["Ipv6Ranges"].append({"CidrIpv6": network})
        else:
            ranges["IpRanges"].append({"CidrIp": network})
    used = {name: values for name, values in ranges.items() if values}
    return [{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, **used}]


def tags_in(described: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of something as EC2 describes it."""
    return {tag["Key"]: tag.get("Value", "") for tag in described.get("Tags") or ()}


def machine_of(instance: Mapping[str, Any], region: str, *, is_private: bool = False) -> Machine:
    """Return the machine that EC2 describes."""
    tags, native = tags_in(instance), instance.get("State", {}).get("Name", "")
    launched = instance.get("LaunchTime")
    return Machine(
        id=instance["InstanceId"],
        provider=PROVIDER,
        region=region,
        zone=instance.get("Placement", {}).get("AvailabilityZone", ""),
        instance_type=instance.get("InstanceType", ""),
        state=STATES.get(native, MachineState.UNKNOWN),
        native_state=native,
        lease=tags.get(LEASE, ""),
        owner=tags.get(OWNER, ""),
        token=tags.get(TOKEN, ""),
        address=instance.get("PrivateIpAddress" if is_private else "PublicIpAddress") or "",
        spot=instance.get("InstanceLifecycle") == "spot",
        launched=None if launched is None else launched.timestamp(),
        ended=_end_of(instance) if native == "terminated" else None,
        reason=_reason(instance),
    )


def _end_of(instance: Mapping[str, Any]) -> float | None:
    """Return the time at which an instance began to shut down, when its bill ends."""
    found = _TRANSITION_TIME.search(instance.get("StateTransitionReason") or "")
    return None if found is None else datetime.fromisoformat(f"{found[1]}+00:00").timestamp()


def _reason(instance: Mapping[str, Any]) -> str:
    state = instance.get("StateReason") or {}
    return str(state.get("Message") or state.get("Code") or instance.get("StateTransitionReason") or "")
