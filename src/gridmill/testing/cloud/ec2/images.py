"""Machine images of the simulated EC2.

Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeImages.html
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gridmill.testing.cloud.ec2 import catalogue
from gridmill.testing.cloud.ec2.call import Call
from gridmill.testing.cloud.ec2.catalogue import Image
from gridmill.testing.cloud.ec2.filters import page, select
from gridmill.testing.cloud.ec2.refusal import RefusalError

_ID = re.compile(r"ami-(?:[0-9a-f]{8}|[0-9a-f]{17})")


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


def describe_images(call: Call) -> dict[str, Any]:
    """Lists images, by id, owner or filter."""
    call.allow_only(
        "ImageIds", "Owners", "Filters", "MaxResults", "NextToken", "ExecutableUsers", "IncludeDeprecated"
    )
    ids = call.get("ImageIds", ())
    images = [image_named(call.region.name, one) for one in ids] or list(catalogue.IMAGES)
    owners = call.get("Owners", ())
    owned = [one for one in images if not owners or {one.owner, one.owner_alias} & set(owners)]

    def attributes(image: Image) -> Mapping[str, Sequence[str]]:
        return _attributes(call.region.name, image)

    found = select(owned, call.get("Filters", ()), attributes, lambda _: ())
    listed, token = page(found, call.parameters, fewest=1, most=1000, ids=ids)
    return {"Images": [_shape(call.region.name, one) for one in listed], "NextToken": token}


def _attributes(region: str, image: Image) -> Mapping[str, Sequence[str]]:
    return {
        "architecture": [image.architecture],
        "description": [image.description],
        "image-id": [image_id(region, image)],
        "image-type": ["machine"],
        "is-public": ["true"],
        "name": [image.name],
        "owner-alias": [image.owner_alias],
        "owner-id": [image.owner],
        "root-device-type": ["ebs"],
        "state": ["available"],
        "virtualization-type": ["hvm"],
        "ena-support": ["true"],
        "block-device-mapping.volume-type": ["gp2"],
    }


def _shape(region: str, image: Image) -> dict[str, Any]:
    return {
        "ImageId": image_id(region, image),
        "Name": image.name,
        "Description": image.description,
        "OwnerId": image.owner,
        "ImageOwnerAlias": image.owner_alias or None,
        "Architecture": image.architecture,
        "CreationDate": image.created,
        "State": "available",
        "Public": True,
        "ImageType": "machine",
        "RootDeviceName": image.root_device,
        "RootDeviceType": "ebs",
        "VirtualizationType": "hvm",
        "EnaSupport": True,
        "Hypervisor": "xen",
        "ImageLocation": f"{image.owner_alias or image.owner}/{image.name}",
        "PlatformDetails": "Linux/UNIX",
        "UsageOperation": "RunInstances",
        "BlockDeviceMappings": [
            {
                "DeviceName": image.root_device,
                "Ebs": {
                    "VolumeSize": image.root_gb,
                    "VolumeType": "gp2",
                    "DeleteOnTermination": True,
                    "Encrypted": False,
                },
            }
        ],
    }
