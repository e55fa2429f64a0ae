"""The action RunInstances of the simulated EC2.

Sources: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html, and for client tokens
https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gridmill.domain.frozen import dataclass, replace
from gridmill.testing.cloud.ec2 import catalogue
from gridmill.testing.cloud.ec2.call import Call
from gridmill.testing.cloud.ec2.catalogue import Image, InstanceType
from gridmill.testing.cloud.ec2.filters import tags_for
from gridmill.testing.cloud.ec2.iam import launched_profile
from gridmill.testing.cloud.ec2.network import Subnet, new_addresses, subnet_named, subnet_of
from gridmill.testing.cloud.ec2.own_images import launchable
from gridmill.testing.cloud.ec2.records import Instance, Tags, Volume
from gridmill.testing.cloud.ec2.refusal import RefusalError, invalid, not_simulated
from gridmill.testing.cloud.ec2.shapes import reservation

_LARGEST_USER_DATA_BYTES = 16 * 1024
_LONGEST_TOKEN = 64
_LOWEST_PRICE = 0.001
_TAGGED = ("instance", "volume", "network-interface", "spot-instances-request")
_PARAMETERS = (
    "ImageId",
    "InstanceType",
    "MinCount",
    "MaxCount",
    "KeyName",
    "SecurityGroupIds",
    "SecurityGroups",
    "SubnetId",
    "UserData",
    "ClientToken",
    "Placement",
    "InstanceMarketOptions",
    "InstanceInitiatedShutdownBehavior",
    "BlockDeviceMappings",
    "NetworkInterfaces",
    "TagSpecifications",
    "MetadataOptions",
    "IamInstanceProfile",
    "EbsOptimized",
    "Monitoring",
    "DisableApiTermination",
    "CapacityReservationSpecification",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A launch that can be carried out if there is capacity. `zone` is empty if EC2 chooses it."""

    kind: InstanceType
    image: Image
    image_id: str
    fewest: int
    most: int
    zone: str
    subnet: Subnet | None
    groups: tuple[str, ...]
    is_public: bool
    profile: str
    spot: bool
    volumes: tuple[tuple[str, int, str, bool], ...]
    """Device name, GB, type, and whether the volume is deleted with the instance."""


def run_instances(call: Call) -> dict[str, Any]:
    """Launches instances, or returns those that the same request with the same client token has launched."""
    call.allow_only(*_PARAMETERS)
    token, zone = _token(call), _requested_zone(call)
    known = call.region.tokens.get((token, zone)) if token else None
    if known is not None:
        return _repeated(call, *known)
    plan = _plan(call, zone)
    zone = plan.zone or _zone_with_capacity(call, plan)
    count = _count(call, plan, zone)
    instances = _launch(call, plan, zone, count, token)
    if token:
        ids = tuple(one.id for one in instances)
        call.region.tokens[(token, _requested_zone(call))] = (_fingerprint(call), ids)
    return reservation(instances, call)


def _token(call: Call) -> str:
    token = str(call.get("ClientToken", ""))
    if len(token) > _LONGEST_TOKEN or not token.isascii():
        raise invalid(token[:_LONGEST_TOKEN], "ClientToken")
    return token


def _requested_zone(call: Call) -> str:
    subnet_id = call.get("SubnetId") or _interface(call).get("SubnetId")
    zone = str(call.get("Placement", {}).get("AvailabilityZone", ""))
    subnet_zone = subnet_named(call, subnet_id).zone if subnet_id else ""
    if zone and zone not in catalogue.zones(call.region.name):
        raise RefusalError("InvalidParameterValue", f"Invalid availability zone: [{zone}]")
    if zone and subnet_zone and zone != subnet_zone:
        raise RefusalError(
            "InvalidParameterValue", f"The availability zone {zone} and the subnet {subnet_id} do not match."
        )
    return zone or subnet_zone


def _fingerprint(call: Call) -> str:
    """Returns all parameters but the token as text."""
    return json.dumps({k: v for k, v in call.parameters.items() if k != "ClientToken"}, sort_keys=True)


def _repeated(call: Call, fingerprint: str, ids: Sequence[str]) -> dict[str, Any]:
    if fingerprint != _fingerprint(call):
        raise RefusalError(
            "IdempotentParameterMismatch",
            "Arguments on this idempotent request are inconsistent with arguments used in previous "
            "request(s).",
        )
    return reservation([call.world.find(one) for one in ids], call)


def _plan(call: Call, zone: str) -> _Plan:
    kind = _kind(call)
    image_id = call.get("ImageId")
    if not image_id:
        raise RefusalError("MissingParameter", "The request must contain the parameter ImageId")
    image = launchable(call, image_id)
    _check_architecture(kind, image)
    _check_user_data(call)
    _check_others(call)
    interface = _interface(call)
    subnet = subnet_of(call, zone) if zone else None
    fewest, most = call.get("MinCount"), call.get("MaxCount")
    if not 1 <= fewest <= most:
        raise invalid(f"{fewest}-{most}", "MinCount and MaxCount")
    return _Plan(
        kind=kind,
        image=image,
        image_id=image_id,
        fewest=fewest,
        most=most,
        zone=zone,
        subnet=subnet,
        groups=_groups(call, interface),
        is_public=bool(interface.get("AssociatePublicIpAddress", True)),
        profile=launched_profile(call),
        spot=_is_spot(call),
        volumes=_volumes(call, image),
    )


def _kind(call: Call) -> InstanceType:
    # The default of the API is m1.small, which the simulation does not have.
    name = call.get("InstanceType", "m1.small")
    if name not in catalogue.INSTANCE_TYPES:
        raise invalid(name, "InstanceType")
    return catalogue.INSTANCE_TYPES[name]


def _check_architecture(kind: InstanceType, image: Image) -> None:
    if kind.architecture != image.architecture:
        raise RefusalError(
            "InvalidParameterValue",
            f"The architecture '{kind.architecture}' of the specified instance type does not match the "
            f"architecture '{image.architecture}' of the specified AMI. Specify an instance type and an AMI "
            "that have matching architectures, and try again.",
        )


def _check_user_data(call: Call) -> None:
    try:
        data = base64.b64decode(call.get("UserData", ""), validate=True)
    except binascii.Error as error:
        raise RefusalError("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data.") from error
    if len(data) > _LARGEST_USER_DATA_BYTES:
        raise RefusalError(
            "InvalidParameterValue", f"User data is limited to {_LARGEST_USER_DATA_BYTES} bytes"
        )


def _check_others(call: Call) -> None:
    key = call.get("KeyName")
    if key and call.region.keys.get(key) is None:
        raise RefusalError("InvalidKeyPair.NotFound", f"The key pair '{key}' does not exist")
    behavior = call.get("InstanceInitiatedShutdownBehavior", "stop")
    if behavior not in ("stop", "terminate"):
        raise invalid(behavior, "InstanceInitiatedShutdownBehavior")
    placement = call.get("Placement", {})
    if unknown := set(placement) - {"AvailabilityZone", "Tenancy"}:
        raise not_simulated(f"Placement.{min(unknown)}")
    if placement.get("Tenancy", "default") != "default":
        raise not_simulated("dedicated tenancy")
    options = call.get("MetadataOptions", {})
    if unknown := set(options) - {
        "HttpTokens",
        "HttpEndpoint",
        "HttpPutResponseHopLimit",
        "InstanceMetadataTags",
    }:
        raise not_simulated(f"MetadataOptions.{min(unknown)}")
    if options.get("HttpEndpoint", "enabled") != "enabled":
        raise not_simulated("instances without a metadata service")
    if call.get("Monitoring", {}).get("Enabled"):
        raise not_simulated("detailed monitoring")
    # Without own reservations, the preferences `open` and `none` have the same effect.
    reservation = call.get("CapacityReservationSpecification", {})
    if (
        reservation.get("CapacityReservationPreference", "open") not in ("open", "none")
        or len(reservation) > 1
    ):
        raise not_simulated("capacity reservations")
    tags_for("instance", call.get("TagSpecifications", ()), _TAGGED)


def _interface(call: Call) -> Mapping[str, Any]:
    interfaces = call.get("NetworkInterfaces", ())
    if not interfaces:
        return {}
    if call.get("SubnetId") or call.get("SecurityGroupIds") or call.get("SecurityGroups"):
        raise RefusalError(
            "InvalidParameterCombination",
            "Network interfaces and an instance-level subnet ID or security groups may not be specified on "
            "the "
            "same request",
        )
    [interface, *others] = interfaces
    allowed = {"DeviceIndex", "SubnetId", "Groups", "AssociatePublicIpAddress", "DeleteOnTermination"}
    interface = {k: v for k, v in interface.items() if (k, v) != ("InterfaceType", "interface")}
    if others or set(interface) - allowed:
        raise not_simulated(
            f"network interfaces with {', '.join(sorted(set(interface) - allowed)) or 'others'}"
        )
    return interface


def _groups(call: Call, interface: Mapping[str, Any]) -> tuple[str, ...]:
    ids = [*call.get("SecurityGroupIds", ()), *interface.get("Groups", ())]
    by_name = {group.name: group.id for group in call.region.groups.all() if call.visible(group)}
    for name in call.get("SecurityGroups", ()):
        if name not in by_name:
            raise RefusalError("InvalidGroup.NotFound", f"The security group '{name}' does not exist")
        ids.append(by_name[name])
    for one in ids:
        if one not in by_name.values():
            raise RefusalError("InvalidGroup.NotFound", f"The security group '{one}' does not exist")
    return tuple(ids) or (call.region.default_group,)


def _is_spot(call: Call) -> bool:
    """Returns whether the market is spot. Raises RefusalError for options that are not simulated.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_SpotMarketOptions.html
    """
    market = call.get("InstanceMarketOptions", {})
    if not market:
        return False
    if market.get("MarketType") != "spot":
        raise not_simulated(f"MarketType {market.get('MarketType')}")
    options = market.get("SpotOptions", {})
    if options.get("SpotInstanceType", "one-time") != "one-time":
        raise not_simulated("persistent spot requests")
    if options.get("InstanceInterruptionBehavior", "terminate") != "terminate":
        raise RefusalError(
            "InvalidParameterCombination",
            "The interruption behavior of a one-time request can only be terminate.",
        )
    _check_price(call, options.get("MaxPrice"))
    return True


def _check_price(call: Call, most: str | None) -> None:
    if most is None:
        return
    if not re.fullmatch(r"\d+(\.\d+)?", most) or float(most) <= _LOWEST_PRICE:
        raise invalid(most, "MaxPrice")
    price = catalogue.hourly_micros(_kind(call), call.region.name, spot=True)
    if float(most) * 1_000_000 < price:
        raise RefusalError(
            "SpotMaxPriceTooLow",
            f"Your Spot request price of {most} is lower than the minimum required Spot request fulfillment "
            f"price of {price / 1_000_000}.",
        )


def _volumes(call: Call, image: Image) -> tuple[tuple[str, int, str, bool], ...]:
    found = {image.root_device: (image.root_gb, "gp2", True)}
    for mapping in call.get("BlockDeviceMappings", ()):
        device, disk = mapping.get("DeviceName", ""), mapping.get("Ebs")
        if not device or disk is None:
            raise not_simulated("block devices other than EBS volumes with a device name")
        size = disk.get("VolumeSize", image.root_gb if device == image.root_device else 0)
        smallest = image.root_gb if device == image.root_device else 1
        if size < smallest:
            raise RefusalError(
                "InvalidBlockDeviceMapping",
                f"Volume of size {size}GB is smaller than snapshot, expect size >= {smallest}GB",
            )
        is_deleted = disk.get("DeleteOnTermination", device == image.root_device)
        found[device] = (size, disk.get("VolumeType", "gp2"), is_deleted)
    return tuple((device, *rest) for device, rest in found.items())


def _zone_with_capacity(call: Call, plan: _Plan) -> str:
    zones = catalogue.offered(plan.kind, call.region.name)
    if not zones:
        raise RefusalError(
            "Unsupported", f"The instance type {plan.kind.name} is not supported in {call.region.name}."
        )
    free = [
        zone
        for zone in zones
        if (_room(call, plan, zone) or 0) >= plan.fewest or _room(call, plan, zone) is None
    ]
    return free[0] if free else zones[0]


def _room(call: Call, plan: _Plan, zone: str) -> int | None:
    """Returns how many instances can still be launched in a zone, or None for any number."""
    capacity = call.world.faults.capacity_of(plan.kind.name, zone, spot=plan.spot)
    if capacity is None:
        return None
    same = [
        one
        for one in call.region.instances.all()
        if (one.type, one.zone) == (plan.kind.name, zone) and one.state.uses_quota
    ]
    return max(0, capacity - len(same))


def _count(call: Call, plan: _Plan, zone: str) -> int:
    """Returns how many instances are launched: as many as possible between MinCount and MaxCount."""
    zones = catalogue.offered(plan.kind, call.region.name)
    if zone not in zones:
        raise RefusalError(
            "Unsupported",
            f"Your requested instance type ({plan.kind.name}) is not supported in your requested "
            "Availability "
            f"Zone ({zone}). Please retry your request by not specifying an Availability Zone or choosing "
            f"{', '.join(zones)}.",
        )
    room = _room(call, plan, zone)
    quota = _quota_room(call, plan) // plan.kind.vcpus
    if quota < plan.fewest:
        raise _over_quota(plan, call)
    if room is not None and room < plan.fewest:
        raise _no_capacity(plan, zone, zones)
    return min(plan.most, quota, plan.most if room is None else room)


def _quota_room(call: Call, plan: _Plan) -> int:
    quota = catalogue.quota_of(plan.kind.family, spot=plan.spot)
    limit = call.world.faults.quota(quota.code, call.region.name, quota.default)
    used = sum(
        catalogue.INSTANCE_TYPES[one.type].vcpus
        for one in call.region.instances.all()
        if one.state.uses_quota
        and one.is_spot == plan.spot
        and catalogue.INSTANCE_TYPES[one.type].family in quota.families
    )
    return max(0, limit - used)


def _over_quota(plan: _Plan, call: Call) -> RefusalError:
    """Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html"""
    if plan.spot:
        return RefusalError("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
    quota = catalogue.quota_of(plan.kind.family, spot=False)
    limit = call.world.faults.quota(quota.code, call.region.name, quota.default)
    return RefusalError(
        "VcpuLimitExceeded",
        f"You have requested more vCPU capacity than your current vCPU limit of {limit} allows for the "
        "instance "
        "bucket that the specified instance type belongs to. Please visit "
        "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.",
    )


def _no_capacity(plan: _Plan, zone: str, zones: Sequence[str]) -> RefusalError:
    others = ", ".join(one for one in zones if one != zone)
    return RefusalError(
        "InsufficientInstanceCapacity",
        f"We currently do not have sufficient {plan.kind.name} capacity in the Availability Zone you "
        "requested "
        f"({zone}). Our system will be working on provisioning additional capacity. You can currently get "
        f"{plan.kind.name} capacity by not specifying an Availability Zone in your request or choosing "
        f"{others}.",
        500,
    )


def _launch(call: Call, plan: _Plan, zone: str, count: int, token: str) -> list[Instance]:
    reservation_id = call.world.new_id("r")
    subnet = plan.subnet or subnet_of(call, zone)
    return [_one(call, plan, subnet, reservation_id, token, index) for index in range(count)]


def _one(call: Call, plan: _Plan, subnet: Subnet, reservation_id: str, token: str, index: int) -> Instance:
    world, now = call.world, call.now
    address, public = new_addresses(call, subnet)
    visible_from = now + world.faults.invisible()
    specifications = call.get("TagSpecifications", ())
    instance = Instance(
        id=world.new_id("i"),
        reservation_id=reservation_id,
        launch_index=index,
        region=call.region.name,
        zone=subnet.zone,
        type=plan.kind.name,
        image_id=plan.image_id,
        architecture=plan.kind.architecture,
        launched_at=now,
        visible_from=visible_from,
        vpc_id=call.region.vpc_id,
        subnet_id=subnet.id,
        address=address,
        interface_id=world.new_id("eni"),
        public_address=public if plan.is_public else "",
        has_public_address=plan.is_public,
        tags=tags_for("instance", specifications, _TAGGED),
        client_token=token,
        key_name=call.get("KeyName", ""),
        groups=plan.groups,
        user_data=call.get("UserData", ""),
        profile=plan.profile,
        is_spot=plan.spot,
        spot_request_id=f"sir-{world.random.getrandbits(32):08x}" if plan.spot else "",
        hourly_micros=catalogue.hourly_micros(plan.kind, call.region.name, spot=plan.spot),
        shutdown_behavior=call.get("InstanceInitiatedShutdownBehavior", "stop"),
        is_protected=bool(call.get("DisableApiTermination", False)),
        tokens_required=call.get("MetadataOptions", {}).get("HttpTokens", "required") == "required",
        shows_tags=call.get("MetadataOptions", {}).get("InstanceMetadataTags") == "enabled",
    )
    tags = tags_for("volume", specifications, _TAGGED)
    volumes = tuple(_volume(call, instance, tags, *each) for each in plan.volumes)
    instance = replace(instance, volumes=volumes)
    world.add(instance, now)
    return instance


def _volume(
    call: Call, instance: Instance, tags: Tags, device: str, size_gb: int, kind: str, is_deleted: bool
) -> tuple[str, str, bool]:
    volume = Volume(
        id=call.world.new_id("vol"),
        region=instance.region,
        zone=instance.zone,
        size_gb=size_gb,
        kind=kind,
        created_at=call.now,
        visible_from=instance.visible_from,
        instance_id=instance.id,
        device=device,
        tags=tags,
    )
    call.region.volumes.put(volume.id, volume, call.now)
    return (device, volume.id, is_deleted)
