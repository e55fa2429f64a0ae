"""Images that the account makes of its instances, and their snapshots, at the simulated EC2.

Sources: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateImage.html,
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DeregisterImage.html,
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSnapshots.html and
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DeleteSnapshot.html
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gridmill.testing.cloud.ec2 import catalogue
from gridmill.testing.cloud.ec2.call import Call
from gridmill.testing.cloud.ec2.catalogue import Image
from gridmill.testing.cloud.ec2.filters import page, select, tag_set, tags_for
from gridmill.testing.cloud.ec2.records import Instance, OwnImage, Snapshot, State, Tags
from gridmill.testing.cloud.ec2.refusal import RefusalError
from gridmill.testing.cloud.ec2.wire import moment

_NAME = re.compile(r"[A-Za-z0-9()\[\] ./\-'@_]{3,128}")
_ID = re.compile(r"ami-(?:[0-9a-f]{8}|[0-9a-f]{17})")
_TAGGED = ("image", "snapshot")


def image_id(region: str, image: Image) -> str:
    """Returns the id of an image in a region."""
    return f"ami-{hashlib.sha256(f'{region}/{image.name}'.encode()).hexdigest()[:17]}"


def image_named(region: str, wanted: str) -> Image:
    """Returns the image with an id. Raises RefusalError."""
    if not _ID.fullmatch(wanted):
        raise RefusalError("InvalidAMIID.Malformed", f'Invalid id: "{wanted[:60]}" (expecting "ami-...")')
    for image in catalogue.IMAGES:
        if image_id(region, image) == wanted:
            return image
    raise RefusalError("InvalidAMIID.NotFound", f"The image id '[{wanted}]' does not exist")


def create_image(call: Call) -> dict[str, Any]:
    """Makes an image of an instance that runs or is stopped, and a snapshot of each of its disks. The image
    is `pending` until its snapshots are complete. The instance is not rebooted."""
    call.allow_only("InstanceId", "Name", "Description", "NoReboot", "TagSpecifications")
    [instance] = call.instances_named([call.get("InstanceId", "")], call.now)
    name = str(call.get("Name", ""))
    if not _NAME.fullmatch(name):
        raise RefusalError(
            "InvalidAMIName.Malformed",
            "AMI names must be between 3 and 128 characters long, and may contain letters, numbers, '(', "
            "')', '.', '-', '/' and '_'",
        )
    if instance.state not in (State.RUNNING, State.STOPPED):
        raise RefusalError(
            "IncorrectInstanceState",
            f"Instance '{instance.id}' is not in a state from which it can be imaged.",
        )
    for one in call.region.images.all():
        if one.shape.name == name:
            raise RefusalError(
                "InvalidAMIName.Duplicate", f"AMI name {name} is already in use by AMI {one.id}"
            )
    image = _made(call, instance, name)
    call.region.images.put(image.id, image, call.now)
    call.world.host.save(instance.id, image.id)
    return {"ImageId": image.id}


def _made(call: Call, instance: Instance, name: str) -> OwnImage:
    faults, given = call.world.faults, call.get("TagSpecifications", ())
    snapshot_tags, image_tags = tags_for("snapshot", given, _TAGGED), tags_for("image", given, _TAGGED)
    base = shape_of(call, instance.image_id)
    is_failing = faults.failing_images > 0
    faults.failing_images = max(0, faults.failing_images - 1)
    image_id, visible_from = call.world.new_id("ami"), call.now + faults.invisible()
    disks = tuple(
        _disk(call, instance, image_id, visible_from, snapshot_tags, *one) for one in instance.volumes
    )
    return OwnImage(
        id=image_id,
        shape=Image(
            name=name,
            description=str(call.get("Description", "")),
            owner=catalogue.ACCOUNT,
            architecture=instance.architecture,
            root_gb=next(size for device, _, size, _, _ in disks if device == base.root_device),
            created=f"{moment(call.now):%Y-%m-%dT%H:%M:%S.000Z}",
            root_device=base.root_device,
        ),
        instance_id=instance.id,
        created_at=call.now,
        available_at=call.now + faults.image_seconds,
        visible_from=visible_from,
        disks=disks,
        is_failing=is_failing,
        tags=image_tags,
    )


def _disk(
    call: Call,
    instance: Instance,
    image_id: str,
    visible_from: float,
    tags: Tags,
    device: str,
    volume_id: str,
    is_deleted: bool,
) -> tuple[str, str, int, str, bool]:
    volume = call.region.volumes.get(volume_id)
    size_gb, kind = (volume.size_gb, volume.kind) if volume is not None else (1, "gp2")
    snapshot = Snapshot(
        id=call.world.new_id("snap"),
        volume_id=volume_id,
        size_gb=size_gb,
        created_at=call.now,
        completed_at=call.now + call.world.faults.image_seconds,
        visible_from=visible_from,
        image_id=image_id,
        description=f"Created by CreateImage({instance.id}) for {image_id}",
        tags=tags,
    )
    call.region.snapshots.put(snapshot.id, snapshot, call.now)
    return device, snapshot.id, size_gb, kind, is_deleted


def own_image(call: Call, image_id: str) -> OwnImage | None:
    """Returns the image of the account with an id, or None."""
    image = call.region.images.get(image_id)
    return image if image is not None and call.visible(image) else None


def shape_of(call: Call, image_id: str) -> Image:
    """Returns the properties of an image, of the account or of others. Raises RefusalError."""
    own = own_image(call, image_id)
    return own.shape if own is not None else image_named(call.region.name, image_id)


def launchable(call: Call, image_id: str) -> Image:
    """Returns the properties of an image from which an instance can be launched. Raises RefusalError."""
    own = own_image(call, image_id)
    if own is not None and state_of(own, call.now) != "available":
        raise RefusalError(
            "InvalidAMIID.Unavailable",
            f"The image ID '{image_id}' is not available: {state_of(own, call.now)}",
        )
    return shape_of(call, image_id)


def state_of(image: OwnImage, at: float) -> str:
    """Returns the state of an image at a time.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_Image.html (imageState)
    """
    if at < image.available_at:
        return "pending"
    return "failed" if image.is_failing else "available"


def deregister_image(call: Call) -> dict[str, Any]:
    """Deletes an image. Its snapshots stay, unless their deletion is requested."""
    call.allow_only("ImageId", "DeleteAssociatedSnapshots")
    image_id = str(call.get("ImageId", ""))
    if not _ID.fullmatch(image_id):
        raise RefusalError("InvalidAMIID.Malformed", f'Invalid id: "{image_id[:60]}" (expecting "ami-...")')
    image = own_image(call, image_id)
    if image is None:
        if call.region.images.get(image_id, call.now) is None and _was(call, image_id):
            raise RefusalError(
                "InvalidAMIID.Unavailable", f"The image ID '{image_id}' is no longer available"
            )
        raise RefusalError("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")
    call.region.images.put(image_id, None, call.now)
    results = []
    if call.get("DeleteAssociatedSnapshots"):
        for _, snapshot_id, *_ in image.disks:
            if call.region.snapshots.get(snapshot_id) is not None:
                _delete(call, snapshot_id)
                results.append({"SnapshotId": snapshot_id, "ReturnCode": "success"})
    return {"Return": True, "DeleteSnapshotResults": results}


def _was(call: Call, image_id: str) -> bool:
    return any(one.id == image_id for one in call.region.images.last_versions())


def describe_snapshots(call: Call) -> dict[str, Any]:
    """Lists the snapshots of the account, by id or filter."""
    call.allow_only("SnapshotIds", "OwnerIds", "Filters", "MaxResults", "NextToken")
    ids = call.get("SnapshotIds", ())
    snapshots = [one for one in call.region.snapshots.all(call.as_of) if call.visible(one)]
    named = {one.id: one for one in snapshots}
    for one in ids:
        if one not in named:
            raise _no_snapshot(one)
    if set(call.get("OwnerIds", ("self",))).isdisjoint({"self", catalogue.ACCOUNT}):
        snapshots = []
    chosen = [named[one] for one in ids] or snapshots

    def attributes(one: Snapshot) -> Mapping[str, Sequence[str]]:
        return {
            "description": [one.description],
            "owner-id": [catalogue.ACCOUNT],
            "snapshot-id": [one.id],
            "status": [_status(one, call.now)],
            "volume-id": [one.volume_id],
            "volume-size": [str(one.size_gb)],
        }

    found = select(chosen, call.get("Filters", ()), attributes, lambda one: one.tags)
    listed, token = page(found, call.parameters, fewest=5, most=1000, ids=ids)
    return {"Snapshots": [_shape(one, call.now) for one in listed], "NextToken": token}


def _status(snapshot: Snapshot, at: float) -> str:
    """Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_Snapshot.html (status)"""
    return "pending" if at < snapshot.completed_at else "completed"


def _shape(snapshot: Snapshot, at: float) -> dict[str, Any]:
    return {
        "SnapshotId": snapshot.id,
        "VolumeId": snapshot.volume_id,
        "VolumeSize": snapshot.size_gb,
        "Description": snapshot.description,
        "State": _status(snapshot, at),
        "StartTime": moment(snapshot.created_at),
        "OwnerId": catalogue.ACCOUNT,
        "Encrypted": False,
        "Progress": "100%" if at >= snapshot.completed_at else "50%",
        "Tags": tag_set(snapshot.tags),
    }


def delete_snapshot(call: Call) -> dict[str, Any]:
    """Deletes a snapshot that no image uses."""
    call.allow_only("SnapshotId")
    snapshot_id = str(call.get("SnapshotId", ""))
    snapshot = call.region.snapshots.get(snapshot_id)
    if snapshot is None or not call.visible(snapshot):
        raise _no_snapshot(snapshot_id)
    if call.region.images.get(snapshot.image_id) is not None:
        raise RefusalError(
            "InvalidSnapshot.InUse", f"The snapshot {snapshot_id} is currently in use by {snapshot.image_id}"
        )
    _delete(call, snapshot_id)
    return {}


def _delete(call: Call, snapshot_id: str) -> None:
    call.region.snapshots.put(snapshot_id, None, call.now)
    call.world.deleted_snapshots[snapshot_id] = call.now


def _no_snapshot(snapshot_id: str) -> RefusalError:
    return RefusalError("InvalidSnapshot.NotFound", f"The snapshot '{snapshot_id[:60]}' does not exist.")
