"""The project, regions, zones, machine types, accelerator types and images.

Sources: https://cloud.google.com/compute/docs/reference/rest/v1/projects/get, .../regions, .../zones,
.../machineTypes, .../acceleratorTypes and .../images
"""

from typing import Any

from gridmill.testing.cloud.gce import catalogue, own_images
from gridmill.testing.cloud.gce.call import Call, moment
from gridmill.testing.cloud.gce.catalogue import AcceleratorType, Image, MachineType
from gridmill.testing.cloud.gce.launch_disks import image_at
from gridmill.testing.cloud.gce.lists import aggregated, listing
from gridmill.testing.cloud.gce.quotas import limit_of, usage
from gridmill.testing.cloud.gce.refusal import not_found

_IMAGE_TIME = 1_768_000_000.0


def get_project(call: Call) -> dict[str, Any]:
    """Returns the project, with its quotas."""
    call.require("compute.projects.get", "")
    return {
        "kind": "compute#project",
        "id": "1234567890123456789",
        "name": call.world.project,
        "creationTimestamp": moment(0.0),
        "quotas": _quotas(call, "global"),
        "defaultServiceAccount": next(iter(call.world.accounts.principals)),
        "defaultNetworkTier": "PREMIUM",
        "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
        "selfLink": call.link("").rstrip("/"),
    }


def _quotas(call: Call, region: str) -> list[dict[str, Any]]:
    return [
        {"metric": metric, "limit": float(limit_of(call.world, metric, region)), "usage": float(used)}
        for metric, used in usage(call.world, region).items()
    ]


def list_regions(call: Call) -> dict[str, Any]:
    """Lists the regions, with their quotas and zones."""
    call.require("compute.regions.list", "")
    return listing("region", [_region_shape(one, call) for one in call.regions()], call.query)


def get_region(call: Call) -> dict[str, Any]:
    """Returns one region."""
    call.require("compute.regions.get", f"regions/{call.region}")
    return _region_shape(call.region, call)


def _region_shape(region: str, call: Call) -> dict[str, Any]:
    return {
        "kind": "compute#region",
        "id": str(1000 + list(catalogue.REGIONS).index(region)),
        "name": region,
        "description": region,
        "status": "UP",
        "zones": [call.link(f"zones/{zone}") for zone in catalogue.REGIONS[region]],
        "quotas": _quotas(call, region),
        "selfLink": call.link(f"regions/{region}"),
    }


def list_zones(call: Call) -> dict[str, Any]:
    """Lists the zones."""
    call.require("compute.zones.list", "")
    return listing("zone", [_zone_shape(one, call) for one in call.zones()], call.query)


def get_zone(call: Call) -> dict[str, Any]:
    """Returns one zone."""
    call.require("compute.zones.get", f"zones/{call.zone}")
    return _zone_shape(call.zone, call)


def _zone_shape(zone: str, call: Call) -> dict[str, Any]:
    is_down = bool(call.unreachable([f"zones/{zone}"]))
    return {
        "kind": "compute#zone",
        "id": str(2000 + catalogue.ZONES.index(zone)),
        "name": zone,
        "description": zone,
        "status": "DOWN" if is_down else "UP",
        "region": call.link(f"regions/{catalogue.region_of(zone)}"),
        "selfLink": call.link(f"zones/{zone}"),
    }


def list_types(call: Call) -> dict[str, Any]:
    """Lists the machine types of one zone."""
    zone = call.zone
    call.require("compute.machineTypes.list", "")
    return listing("machineType", _types(call, zone), call.query)


def list_all_types(call: Call) -> dict[str, Any]:
    """Lists the machine types of all zones."""
    call.require("compute.machineTypes.list", "")
    scopes = {f"zones/{zone}": _types(call, zone) for zone in call.zones()}
    return aggregated("machineType", "machineTypes", scopes, call.query, call.unreachable(list(scopes)))


def get_type(call: Call) -> dict[str, Any]:
    """Returns one machine type."""
    zone, name = call.zone, call.place["name"]
    call.require("compute.machineTypes.get", f"zones/{zone}/machineTypes/{name}")
    kind = catalogue.MACHINE_TYPES.get(name)
    if kind is None or zone not in kind.family.zones:
        raise not_found(f"projects/{call.world.project}/zones/{zone}/machineTypes/{name}")
    return _type_shape(kind, zone, call)


def _types(call: Call, zone: str) -> list[dict[str, Any]]:
    kinds = [one for one in catalogue.MACHINE_TYPES.values() if zone in one.family.zones]
    return [_type_shape(one, zone, call) for one in kinds]


def _type_shape(kind: MachineType, zone: str, call: Call) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "kind": "compute#machineType",
        "id": str(3000 + list(catalogue.MACHINE_TYPES).index(kind.name)),
        "creationTimestamp": moment(0.0),
        "name": kind.name,
        "description": f"{kind.cpus} vCPUs, {kind.memory_mb / 1024:g} GB RAM",
        "guestCpus": kind.cpus,
        "memoryMb": kind.memory_mb,
        "maximumPersistentDisks": 128,
        "maximumPersistentDisksSizeGb": "263168",
        "zone": zone,
        "selfLink": call.link(f"zones/{zone}/machineTypes/{kind.name}"),
        "isSharedCpu": kind.is_shared,
        "architecture": kind.family.architecture,
    }
    if kind.accelerators is not None:
        shape["accelerators"] = [
            {
                "guestAcceleratorType": kind.accelerators.type,
                "guestAcceleratorCount": kind.accelerators.count,
            }
        ]
    return shape


def list_accelerators(call: Call) -> dict[str, Any]:
    """Lists the accelerator types of one zone."""
    zone = call.zone
    call.require("compute.acceleratorTypes.list", "")
    return listing("acceleratorType", _accelerators(call, zone), call.query)


def list_all_accelerators(call: Call) -> dict[str, Any]:
    """Lists the accelerator types of all zones."""
    call.require("compute.acceleratorTypes.list", "")
    scopes = {f"zones/{zone}": _accelerators(call, zone) for zone in call.zones()}
    unreachable = call.unreachable(list(scopes))
    return aggregated("acceleratorType", "acceleratorTypes", scopes, call.query, unreachable)


def _accelerators(call: Call, zone: str) -> list[dict[str, Any]]:
    kinds = [one for one in catalogue.ACCELERATORS.values() if zone in one.zones]
    return [_accelerator_shape(one, zone, call) for one in kinds]


def _accelerator_shape(kind: AcceleratorType, zone: str, call: Call) -> dict[str, Any]:
    return {
        "kind": "compute#acceleratorType",
        "id": str(4000 + list(catalogue.ACCELERATORS).index(kind.name)),
        "name": kind.name,
        "description": kind.description,
        "maximumCardsPerInstance": kind.most_cards,
        "zone": call.link(f"zones/{zone}"),
        "selfLink": call.link(f"zones/{zone}/acceleratorTypes/{kind.name}"),
    }


def get_image(call: Call) -> dict[str, Any]:
    """Returns a public image, which everybody may read, or an image of the project."""
    if call.place["project"] == call.world.project:
        return own_images.shape_of(own_images.named(call, "compute.images.get"), call)
    return _image_shape(image_at(f"projects/{call.place['project']}/global/images/{call.place['name']}"))


def get_family(call: Call) -> dict[str, Any]:
    """Returns the newest image of a family that is not deprecated."""
    name = call.place["name"]
    return _image_shape(image_at(f"projects/{call.place['project']}/global/images/family/{name}"))


def list_images(call: Call) -> dict[str, Any]:
    """Lists the public images of a project, or the images that this project has made."""
    if call.place["project"] == call.world.project:
        call.require("compute.images.list", "")
        own = [one for one in call.world.images.all(call.as_of) if one.visible_from <= call.now]
        return listing("image", [own_images.shape_of(one, call) for one in own], call.query)
    images = [one for one in catalogue.IMAGES if one.project == call.place["project"]]
    return listing("image", [_image_shape(one) for one in images], call.query)


def _image_shape(image: Image) -> dict[str, Any]:
    link = f"https://www.googleapis.com/compute/v1/projects/{image.project}/global/images/{image.name}"
    shape: dict[str, Any] = {
        "kind": "compute#image",
        "id": str(5000 + catalogue.IMAGES.index(image)),
        "creationTimestamp": moment(_IMAGE_TIME),
        "name": image.name,
        "family": image.family,
        "status": "READY",
        "diskSizeGb": str(image.size_gb),
        "architecture": image.architecture,
        "selfLink": link,
    }
    return shape | ({"deprecated": {"state": "DEPRECATED"}} if image.is_deprecated else {})
