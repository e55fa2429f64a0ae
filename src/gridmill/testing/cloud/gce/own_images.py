"""Images that the project makes of its disks.

Sources: https://cloud.google.com/compute/docs/reference/rest/v1/images (status: PENDING, READY, FAILED),
https://cloud.google.com/compute/docs/reference/rest/v1/images/insert (`sourceDisk`, `forceCreate`, and the
permissions), https://cloud.google.com/compute/docs/reference/rest/v1/images/setLabels,
https://cloud.google.com/compute/docs/reference/rest/v1/images/delete,
https://cloud.google.com/sdk/gcloud/reference/compute/images/create (`--force`: without it, an image is not
made of the disk of a running instance) and https://cloud.google.com/compute/docs/images/create-custom
(images are resources of the whole project)
"""

from typing import Any

from gridmill.domain.frozen import replace
from gridmill.testing.cloud.gce import catalogue
from gridmill.testing.cloud.gce.call import Call, fingerprint, moment
from gridmill.testing.cloud.gce.records import Disk, Instance, OwnImage, Status
from gridmill.testing.cloud.gce.refusal import (
    GoogleRefusalError,
    bad_request,
    exists,
    in_use,
    invalid,
    not_found,
)

_FIELDS = ("name", "description", "labels", "family", "sourceDisk")


def insert_image(call: Call) -> dict[str, Any]:
    """Begins to make an image of a disk. The image has the content that the disk has now. The operation ends
    when the image is READY or FAILED."""
    call.allow_only(*_FIELDS)
    name = call.new_name()
    target = f"global/images/{name}"
    call.require("compute.images.create", target)
    if call.body.get("labels"):
        call.require("compute.images.setLabels", target)
    disk = _source(call)
    instance = _user(call, disk)
    if instance is not None and instance.status == Status.RUNNING and not _is_forced(call):
        user = f"projects/{call.world.project}/zones/{disk.zone}/instances/{disk.user}"
        raise in_use(f"disk 'projects/{call.world.project}/zones/{disk.zone}/disks/{disk.name}'", user)
    if call.world.images.get(name) is not None:
        raise exists(f"projects/{call.world.project}/{target}")
    image = _made(call, name, disk, instance)
    call.world.images.put(name, image, call.now)
    if instance is not None:
        call.world.host.save(instance.id, image.id)
    error = ("INTERNAL_ERROR", "The image could not be made.", 500) if image.is_failing else None
    return call.begin(
        "insert", "global", target, image.id, seconds=call.world.faults.image_seconds, error=error
    )


def _is_forced(call: Call) -> bool:
    text = call.query.get("forceCreate", "false").lower()
    if text not in ("true", "false"):
        raise invalid("forceCreate", text, "Use true or false.")
    return text == "true"


def _source(call: Call) -> Disk:
    url = str(call.body.get("sourceDisk") or "")
    if not url:
        raise bad_request("At least one source is required, such as sourceDisk.")
    found = f"/{url}".rpartition("/zones/")[2].split("/")
    if len(found) != 3 or found[1] != "disks":
        raise invalid("resource.sourceDisk", url, "The URL is malformed.")
    zone, _, name = found
    target = f"zones/{zone}/disks/{name}"
    call.require("compute.disks.useReadOnly", target)
    for one in call.world.disks.all():
        if one.key == f"{zone}/{name}" and one.visible_from <= call.now:
            return one
    raise not_found(f"projects/{call.world.project}/{target}")


def _user(call: Call, disk: Disk) -> Instance | None:
    for one in call.world.instances.all():
        if disk.user and one.key == f"{disk.zone}/{disk.user}":
            return one
    return None


def _made(call: Call, name: str, disk: Disk, instance: Instance | None) -> OwnImage:
    faults = call.world.faults
    is_failing = faults.failing_images > 0
    faults.failing_images = max(0, faults.failing_images - 1)
    return OwnImage(
        id=call.world.new_number(),
        name=name,
        size_gb=disk.size_gb,
        architecture=_architecture(call, disk, instance),
        created_at=call.now,
        ready_at=call.now + faults.image_seconds,
        visible_from=call.now + faults.invisible(),
        source_disk=f"zones/{disk.zone}/disks/{disk.name}",
        source_disk_id=disk.id,
        family=str(call.body.get("family", "")),
        description=str(call.body.get("description", "")),
        labels=call.labels(call.body.get("labels")),
        is_failing=is_failing,
    )


def _architecture(call: Call, disk: Disk, instance: Instance | None) -> str:
    base = call.world.images.get(disk.image.rpartition("/")[2])
    if base is not None:
        return base.architecture
    for one in catalogue.IMAGES:
        if disk.image == f"projects/{one.project}/global/images/{one.name}":
            return one.architecture
    if instance is None:
        return "X86_64"
    return catalogue.MACHINE_TYPES[instance.machine_type].family.architecture


def find_image(call: Call, name: str) -> OwnImage | None:
    """Returns the image of the project with a name, or None."""
    image = call.world.images.get(name, call.as_of)
    return image if image is not None and image.visible_from <= call.now else None


def launchable(call: Call, name: str) -> OwnImage:
    """Returns the image of the project from which an instance is launched. Raises GoogleRefusalError if it
    does not exist or is not READY."""
    target = f"global/images/{name}"
    call.require("compute.images.useReadOnly", target)
    image = find_image(call, name)
    if image is None:
        raise not_found(f"projects/{call.world.project}/{target}")
    if image.status(call.now) != "READY":
        text = f"The resource 'projects/{call.world.project}/{target}' is not ready"
        raise GoogleRefusalError("resourceNotReady", text, 400)
    return image


def named(call: Call, permission: str) -> OwnImage:
    """Returns the image of the project that a request names. Raises GoogleRefusalError."""
    target = f"global/images/{call.place['name']}"
    call.require(permission, target)
    image = find_image(call, call.place["name"])
    if image is None:
        raise not_found(f"projects/{call.world.project}/{target}")
    return image


def delete_image(call: Call) -> dict[str, Any]:
    """Deletes an image. Instances that were launched from it continue."""
    image = named(call, "compute.images.delete")
    call.world.images.put(image.name, replace(image, deleted_at=call.now), call.now)
    call.world.images.put(image.name, None, call.now)
    return call.begin("delete", "global", f"global/images/{image.name}", image.id)


def set_labels(call: Call) -> dict[str, Any]:
    """Replaces the labels of an image."""
    call.allow_only("labels", "labelFingerprint")
    image = named(call, "compute.images.setLabels")
    if call.body.get("labelFingerprint") != fingerprint(dict(image.labels)):
        raise GoogleRefusalError(
            "conditionNotMet", "Labels fingerprint either invalid or resource labels have changed", 412
        )
    changed = replace(image, labels=call.labels(call.body.get("labels")))
    call.world.images.put(image.name, changed, call.now)
    return call.begin("setLabels", "global", f"global/images/{image.name}", image.id)


def shape_of(image: OwnImage, call: Call) -> dict[str, Any]:
    """Returns an image as the API shows it."""
    status = image.status(call.now)
    shape: dict[str, Any] = {
        "kind": "compute#image",
        "id": image.id,
        "creationTimestamp": moment(image.created_at),
        "name": image.name,
        "description": image.description,
        "sourceType": "RAW",
        "status": status,
        "diskSizeGb": str(image.size_gb),
        "architecture": image.architecture,
        "sourceDisk": call.link(image.source_disk),
        "sourceDiskId": image.source_disk_id,
        "labelFingerprint": fingerprint(dict(image.labels)),
        "selfLink": call.link(f"global/images/{image.name}"),
    }
    if status == "READY":
        shape["archiveSizeBytes"] = str(image.archive_bytes)
    if image.family:
        shape["family"] = image.family
    return shape | ({"labels": dict(image.labels)} if image.labels else {})
