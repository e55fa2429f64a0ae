"""Disks and static addresses.

Sources: https://cloud.google.com/compute/docs/reference/rest/v1/disks and
https://cloud.google.com/compute/docs/reference/rest/v1/addresses
"""

from typing import Any

from gridmill.domain.frozen import replace
from gridmill.testing.cloud.gce.call import Call, fingerprint, moment
from gridmill.testing.cloud.gce.lists import aggregated, listing
from gridmill.testing.cloud.gce.quotas import limit_of, usage
from gridmill.testing.cloud.gce.records import Address, Disk
from gridmill.testing.cloud.gce.refusal import exists, in_use, not_found, over_project_quota


def list_disks(call: Call) -> dict[str, Any]:
    """Lists the disks of one zone."""
    zone = call.zone
    call.require("compute.disks.list", "")
    return listing("disk", _disk_shapes(call, zone), call.query)


def list_all_disks(call: Call) -> dict[str, Any]:
    """Lists the disks of all zones."""
    call.require("compute.disks.list", "")
    scopes = {f"zones/{zone}": _disk_shapes(call, zone) for zone in call.zones()}
    return aggregated("disk", "disks", scopes, call.query, call.unreachable(list(scopes)))


def _disk_shapes(call: Call, zone: str) -> list[dict[str, Any]]:
    disks = call.world.disks.all(call.as_of)
    return [_disk_shape(one, call) for one in disks if one.zone == zone and one.visible_from <= call.now]


def get_disk(call: Call) -> dict[str, Any]:
    """Returns one disk."""
    return _disk_shape(_disk(call, "compute.disks.get"), call)


def _disk(call: Call, permission: str) -> Disk:
    zone, name = call.zone, call.place["name"]
    target = f"zones/{zone}/disks/{name}"
    call.require(permission, target)
    for one in call.world.disks.all(call.as_of):
        if one.key == f"{zone}/{name}" and one.visible_from <= call.now:
            return one
    raise not_found(f"projects/{call.world.project}/{target}")


def delete_disk(call: Call) -> dict[str, Any]:
    """Deletes a disk that no instance uses."""
    disk = _disk(call, "compute.disks.delete")
    target = f"zones/{disk.zone}/disks/{disk.name}"
    if disk.user:
        user = f"projects/{call.world.project}/zones/{disk.zone}/instances/{disk.user}"
        raise in_use(f"disk 'projects/{call.world.project}/{target}'", user)
    call.world.delete_disk(disk, call.now)
    return call.begin("delete", f"zones/{disk.zone}", target, disk.id)


def _disk_shape(disk: Disk, call: Call) -> dict[str, Any]:
    zone = f"zones/{disk.zone}"
    shape: dict[str, Any] = {
        "kind": "compute#disk",
        "id": disk.id,
        "creationTimestamp": moment(disk.created_at),
        "name": disk.name,
        "sizeGb": str(disk.size_gb),
        "zone": call.link(zone),
        "status": "READY",
        "selfLink": call.link(f"{zone}/disks/{disk.name}"),
        "type": call.link(f"{zone}/diskTypes/{disk.kind}"),
        "labelFingerprint": fingerprint(dict(disk.labels)),
    }
    if disk.image:
        shape["sourceImage"] = f"https://www.googleapis.com/compute/v1/{disk.image}"
    if disk.labels:
        shape["labels"] = dict(disk.labels)
    if disk.user:
        shape["users"] = [call.link(f"{zone}/instances/{disk.user}")]
    return shape


def list_addresses(call: Call) -> dict[str, Any]:
    """Lists the static addresses of one region."""
    region = call.region
    call.require("compute.addresses.list", "")
    return listing("address", _address_shapes(call, region), call.query)


def list_all_addresses(call: Call) -> dict[str, Any]:
    """Lists the static addresses of all regions."""
    call.require("compute.addresses.list", "")
    scopes = {f"regions/{region}": _address_shapes(call, region) for region in call.regions()}
    return aggregated("address", "addresses", scopes, call.query, call.unreachable(list(scopes)))


def _address_shapes(call: Call, region: str) -> list[dict[str, Any]]:
    return [_address_shape(one, call) for one in call.world.addresses.all(call.as_of) if one.region == region]


def insert_address(call: Call) -> dict[str, Any]:
    """Reserves a static external address."""
    call.allow_only("name", "labels", "description")
    region, name = call.region, call.new_name()
    target = f"regions/{region}/addresses/{name}"
    call.require("compute.addresses.create", target)
    if any(one.key == f"{region}/{name}" for one in call.world.addresses.all()):
        raise exists(f"projects/{call.world.project}/{target}")
    limit = limit_of(call.world, "STATIC_ADDRESSES", region)
    if usage(call.world, region)["STATIC_ADDRESSES"] >= limit:
        raise over_project_quota("STATIC_ADDRESSES", limit)
    made = Address(
        id=call.world.new_number(),
        name=name,
        region=region,
        address=call.world.new_public_address(),
        created_at=call.now,
        labels=call.labels(call.body.get("labels")),
    )
    call.world.addresses.put(made.id, made, call.now)
    return call.begin("insert", f"regions/{region}", target, made.id)


def get_address(call: Call) -> dict[str, Any]:
    """Returns one static address."""
    return _address_shape(_address(call, "compute.addresses.get"), call)


def delete_address(call: Call) -> dict[str, Any]:
    """Releases a static address."""
    address = _address(call, "compute.addresses.delete")
    call.world.addresses.put(address.id, replace(address, deleted_at=call.now), call.now)
    call.world.addresses.put(address.id, None, call.now)
    target = f"regions/{address.region}/addresses/{address.name}"
    return call.begin("delete", f"regions/{address.region}", target, address.id)


def _address(call: Call, permission: str) -> Address:
    region, name = call.region, call.place["name"]
    target = f"regions/{region}/addresses/{name}"
    call.require(permission, target)
    for one in call.world.addresses.all(call.as_of):
        if one.key == f"{region}/{name}":
            return one
    raise not_found(f"projects/{call.world.project}/{target}")


def _address_shape(address: Address, call: Call) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "kind": "compute#address",
        "id": address.id,
        "creationTimestamp": moment(address.created_at),
        "name": address.name,
        "address": address.address,
        "addressType": "EXTERNAL",
        "status": "RESERVED",
        "region": call.link(f"regions/{address.region}"),
        "selfLink": call.link(f"regions/{address.region}/addresses/{address.name}"),
    }
    return shape | ({"labels": dict(address.labels)} if address.labels else {})
