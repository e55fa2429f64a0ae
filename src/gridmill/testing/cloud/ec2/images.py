"""Machine images of the simulated EC2.

Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeImages.html
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.testing.cloud.ec2 import catalogue
from gridmill.testing.cloud.ec2.call import Call
from gridmill.testing.cloud.ec2.catalogue import Image
from gridmill.testing.cloud.ec2.filters import page, select, tag_set
from gridmill.testing.cloud.ec2.own_images import image_id, image_named, state_of
from gridmill.testing.cloud.ec2.records import OwnImage


def describe_images(call: Call) -> dict[str, Any]:
    """Lists images, by id, owner or filter."""
    call.allow_only(
        "ImageIds", "Owners", "Filters", "MaxResults", "NextToken", "ExecutableUsers", "IncludeDeprecated"
    )
    ids = call.get("ImageIds", ())
    own = [one for one in call.region.images.all(call.as_of) if call.visible(one)]
    known = [_listed(call, image_id(call.region.name, one), one) for one in catalogue.IMAGES]
    known += [_listed(call, one.id, one.shape, one) for one in own]
    by_id = {one.id: one for one in known}
    for one in ids:
        if one not in by_id:
            image_named(call.region.name, one)
    images = [by_id[one] for one in ids] or known
    owners = {catalogue.ACCOUNT if one == "self" else one for one in call.get("Owners", ())}
    owned = [one for one in images if not owners or {one.image.owner, one.image.owner_alias} & owners]
    found = select(owned, call.get("Filters", ()), _attributes, lambda one: one.own.tags if one.own else ())
    listed, token = page(found, call.parameters, fewest=1, most=1000, ids=ids)
    return {"Images": [_shape(one) for one in listed], "NextToken": token}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """An image in an answer. `own` is None if others have published the image."""

    id: str
    image: Image
    state: str
    own: OwnImage | None = None


def _listed(call: Call, image_id: str, image: Image, own: OwnImage | None = None) -> _Listed:
    state = "available" if own is None else state_of(own, call.as_of)
    return _Listed(id=image_id, image=image, state=state, own=own)


def _attributes(listed: _Listed) -> Mapping[str, Sequence[str]]:
    image = listed.image
    return {
        "architecture": [image.architecture],
        "description": [image.description],
        "image-id": [listed.id],
        "image-type": ["machine"],
        "is-public": ["false" if listed.own else "true"],
        "name": [image.name],
        "owner-alias": [image.owner_alias],
        "owner-id": [image.owner],
        "root-device-type": ["ebs"],
        "state": [listed.state],
        "virtualization-type": ["hvm"],
        "ena-support": ["true"],
        "block-device-mapping.volume-type": ["gp2"],
    }


def _shape(listed: _Listed) -> dict[str, Any]:
    image, own = listed.image, listed.own
    return {
        "ImageId": listed.id,
        "Name": image.name,
        "Description": image.description,
        "OwnerId": image.owner,
        "ImageOwnerAlias": image.owner_alias or None,
        "Architecture": image.architecture,
        "CreationDate": image.created,
        "State": listed.state,
        "Public": own is None,
        "ImageType": "machine",
        "RootDeviceName": image.root_device,
        "RootDeviceType": "ebs",
        "VirtualizationType": "hvm",
        "EnaSupport": True,
        "Hypervisor": "xen",
        "ImageLocation": f"{image.owner_alias or image.owner}/{image.name}",
        "PlatformDetails": "Linux/UNIX",
        "UsageOperation": "RunInstances",
        "BlockDeviceMappings": _disks(image) if own is None else [_own_disk(*one) for one in own.disks],
        "Tags": tag_set(own.tags) if own is not None else [],
    }


def _disks(image: Image) -> list[dict[str, Any]]:
    ebs = {
        "VolumeSize": image.root_gb,
        "VolumeType": "gp2",
        "DeleteOnTermination": True,
        "Encrypted": False,
    }
    return [{"DeviceName": image.root_device, "Ebs": ebs}]


def _own_disk(device: str, snapshot: str, size_gb: int, kind: str, is_deleted: bool) -> dict[str, Any]:
    ebs = {
        "SnapshotId": snapshot,
        "VolumeSize": size_gb,
        "VolumeType": kind,
        "DeleteOnTermination": is_deleted,
        "Encrypted": False,
    }
    return {"DeviceName": device, "Ebs": ebs}
