"""The disks of a new instance.

Source: https://cloud.google.com/compute/docs/reference/rest/v1/instances/insert (`disks[]`)
"""

import re
from typing import Any

from gridmill.domain.frozen import dataclass, replace
from gridmill.testing.cloud.gce import catalogue
from gridmill.testing.cloud.gce.call import Call, check_fields, checked_name, last_part
from gridmill.testing.cloud.gce.catalogue import Image, MachineType
from gridmill.testing.cloud.gce.own_images import launchable
from gridmill.testing.cloud.gce.records import AttachedDisk, Disk, Instance, Labels
from gridmill.testing.cloud.gce.refusal import bad_request, exists, in_use, invalid, not_found

_FIELDS = ("boot", "autoDelete", "deviceName", "initializeParams", "source", "mode", "type", "interface")
_PARAMETERS = ("diskName", "diskSizeGb", "diskType", "sourceImage", "labels", "description")
_IMAGE = re.compile(r"(?:.*/)?projects/(?P<project>[^/]+)/global/images/(?P<family>family/)?(?P<name>[^/]+)")
_SMALLEST_GB, _LARGEST_GB = 10, 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPlan:
    """A disk that a new instance gets: an existing one, or a new one."""

    name: str
    size_gb: int
    kind: str
    image: str
    labels: Labels
    device: str
    is_boot: bool
    is_deleted: bool
    is_existing: bool


def disk_plans(call: Call, kind: MachineType) -> list[DiskPlan]:
    """Returns the disks of a request. The first one is the boot disk."""
    given = call.body.get("disks") or ()
    if not given or not isinstance(given[0], dict) or not given[0].get("boot"):
        raise invalid("resource.disks", "", "At least one boot disk is required.")
    return [_plan(call, kind, one, index) for index, one in enumerate(given)]


def _plan(call: Call, kind: MachineType, given: dict[str, Any], index: int) -> DiskPlan:
    field = f"resource.disks[{index}]"
    check_fields(given, field, _FIELDS)
    if given.get("type", "PERSISTENT") != "PERSISTENT":
        raise invalid(f"{field}.type", given.get("type"), "Only persistent disks are implemented.")
    default = call.new_name() if index == 0 else f"{call.new_name()}-{index}"
    device = str(given.get("deviceName", f"persistent-disk-{index}"))
    if given.get("source"):
        disk = _existing(call, last_part(given["source"], f"{field}.source"))
        return DiskPlan(
            name=disk.name,
            size_gb=disk.size_gb,
            kind=disk.kind,
            image=disk.image,
            labels=disk.labels,
            device=device,
            is_boot=index == 0,
            is_deleted=bool(given.get("autoDelete", False)),
            is_existing=True,
        )
    plan = _new(call, kind, given.get("initializeParams") or {}, field, default)
    return replace(plan, device=device, is_boot=index == 0, is_deleted=bool(given.get("autoDelete", False)))


def _existing(call: Call, name: str) -> Disk:
    disk = next((one for one in call.world.disks.all() if one.key == f"{call.zone}/{name}"), None)
    path = f"projects/{call.world.project}/zones/{call.zone}/disks/{name}"
    if disk is None:
        raise not_found(path)
    if disk.user:
        raise in_use(f"disk '{path}'", f"zones/{call.zone}/instances/{disk.user}")
    return disk


def _new(call: Call, kind: MachineType, given: dict[str, Any], field: str, default: str) -> DiskPlan:
    check_fields(given, f"{field}.initializeParams", _PARAMETERS)
    name = checked_name(given.get("diskName", default), f"{field}.initializeParams.diskName")
    if any(one.key == f"{call.zone}/{name}" for one in call.world.disks.all()):
        raise exists(f"projects/{call.world.project}/zones/{call.zone}/disks/{name}")
    disk_kind = last_part(given.get("diskType", "pd-standard"), f"{field}.initializeParams.diskType")
    if disk_kind not in catalogue.DISK_KINDS:
        raise not_found(f"projects/{call.world.project}/zones/{call.zone}/diskTypes/{disk_kind}")
    image = _image(call, given["sourceImage"]) if given.get("sourceImage") else None
    if image is not None and image.architecture != kind.family.architecture:
        found, needed = image.architecture, kind.family.architecture
        raise bad_request(f"The image has the architecture {found}, the machine type {needed}.")
    return DiskPlan(
        name=name,
        size_gb=_size(given.get("diskSizeGb"), image, field),
        kind=disk_kind,
        image=f"projects/{image.project}/global/images/{image.name}" if image is not None else "",
        labels=call.labels(given.get("labels")),
        device="",
        is_boot=False,
        is_deleted=False,
        is_existing=False,
    )


def _size(given: object, image: Image | None, field: str) -> int:
    smallest = image.size_gb if image is not None else _SMALLEST_GB
    if given is None:
        return smallest
    if not str(given).isdecimal() or not _SMALLEST_GB <= int(str(given)) <= _LARGEST_GB:
        raise invalid(f"{field}.initializeParams.diskSizeGb", given, "The size is not possible.")
    if int(str(given)) < smallest:
        text = f"Requested disk size cannot be smaller than the image size ({smallest} GB)"
        raise invalid(f"{field}.initializeParams.diskSizeGb", given, text)
    return int(str(given))


def _image(call: Call, url: str) -> Image:
    """Returns the image for a new disk: a public one, or one of the project that is READY."""
    match = _IMAGE.fullmatch(url)
    if match is None or match["project"] != call.world.project or match["family"]:
        return image_at(url)
    own = launchable(call, match["name"])
    return Image(
        project=call.world.project,
        name=own.name,
        family=own.family,
        size_gb=own.size_gb,
        architecture=own.architecture,
    )


def image_at(url: str) -> Image:
    """Returns the image of a full or partial URL of an image or of a family. Raises GoogleRefusalError."""
    match = _IMAGE.fullmatch(url)
    if match is None:
        raise invalid("sourceImage", url, "The URL is malformed.")
    known = [one for one in catalogue.IMAGES if one.project == match["project"]]
    if match["family"]:
        known = [one for one in known if one.family == match["name"] and not one.is_deprecated]
    else:
        known = [one for one in known if one.name == match["name"]]
    if not known:
        raise not_found(f"projects/{match['project']}/global/images/{match['family'] or ''}{match['name']}")
    return known[0]


def attach(call: Call, instance: Instance, plans: list[DiskPlan]) -> tuple[AttachedDisk, ...]:
    """Creates the disks of an instance, and returns them as the instance has them."""
    return tuple(_attached(call, instance, one) for one in plans)


def _attached(call: Call, instance: Instance, plan: DiskPlan) -> AttachedDisk:
    world = call.world
    if plan.is_existing:
        disk = replace(_existing(call, plan.name), user=instance.name)
    else:
        disk = Disk(
            id=world.new_number(),
            name=plan.name,
            zone=instance.zone,
            size_gb=plan.size_gb,
            kind=plan.kind,
            image=plan.image,
            created_at=call.now,
            visible_from=instance.visible_from,
            user=instance.name,
            labels=plan.labels,
        )
    world.disks.put(disk.id, disk, call.now)
    return AttachedDisk(
        disk_id=disk.id,
        name=disk.name,
        size_gb=disk.size_gb,
        device=plan.device,
        is_boot=plan.is_boot,
        is_deleted=plan.is_deleted,
    )
