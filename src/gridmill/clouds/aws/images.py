"""Images of EC2: the deep-learning image of AWS for a type of machine, or a given image.

Sources: "Finding the ID of a DLAMI" in the developer guide of the AWS Deep Learning AMIs, which finds the
newest image of AWS by its name; "Finding images" in the documentation of Ubuntu on AWS, which has the number
of Canonical's account and the names of its images.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, cast

from gridmill.clouds.aws.drivers import (
    FITS,
    OTHER_GPUS,
    DriverFamily,
    check_driver,
    family_of,
    needs_providers_dns,
)
from gridmill.clouds.aws.launch import Image, tags_in
from gridmill.clouds.aws.requests import AwsRequests
from gridmill.domain.amounts import GIB
from gridmill.domain.frozen import dataclass, replace
from gridmill.errors import RefusedError

DRIVER_TAG = "gridmill-driver"
"""The tag with which the owner of an image states its driver, such as `GRID 17`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSearch:
    """Where the image for a type of machine is found: its owner, its architecture, and the patterns of its
    name. The first pattern with an image counts, and of its images the newest one."""

    owner: str
    names: tuple[str, ...]
    architecture: str = "x86_64"


_OPEN = (
    "Deep Learning {arm}Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) *",
    "Deep Learning {arm}Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) *",
)
_PROPRIETARY = ("Deep Learning Base Proprietary Nvidia Driver GPU AMI (Ubuntu *",)
"""The images for old GPUs, of which AWS publishes no new ones."""
_UBUNTU = (
    "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-{processor}-server-*",
    "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-{processor}-server-*",
)
_CANONICAL, _AMAZON = "099720109477", "amazon"
_PROCESSORS = {"x86_64": "amd64", "arm64": "arm64"}


def search_for(instance_type: str) -> ImageSearch:
    """Return where the image for a type is found. Raises RefusedError if AWS has no image with a driver for
    the type."""
    family = family_of(instance_type)
    fit = FITS.get(family)
    if family in OTHER_GPUS or (fit is not None and DriverFamily.TESLA not in fit.drivers):
        why = f"has {OTHER_GPUS[family]} GPUs" if family in OTHER_GPUS else "needs a GRID driver"
        raise RefusedError(
            f"{instance_type} {why}, and the deep-learning images of AWS have no driver for it",
            hint="Set the id of an image with a fitting driver: --image ami-...",
        )
    if fit is None:
        architecture = _architecture(family)
        processor = _PROCESSORS[architecture]
        names = tuple(name.format(processor=processor) for name in _UBUNTU)
        return ImageSearch(owner=_CANONICAL, names=names, architecture=architecture)
    if fit.needs_proprietary:
        return ImageSearch(owner=_AMAZON, names=_PROPRIETARY)
    arm = "ARM64 " if fit.architecture == "arm64" else ""
    names = tuple(name.format(arm=arm) for name in _OPEN)
    return ImageSearch(owner=_AMAZON, names=names, architecture=fit.architecture)


def _architecture(family: str) -> str:
    """Return the architecture of a family without NVIDIA GPUs. The letter `g` after the number means an Arm
    processor of AWS ("Instance type naming conventions" in the EC2 user guide)."""
    letters = family.lstrip("abcdefghijklmnopqrstuvwxyz-").lstrip("0123456789")
    return "arm64" if family == "a1" or letters.startswith("g") else "x86_64"


def read_image(requests: AwsRequests, region: str, given: str, instance_type: str) -> Image:
    """Return the given image, or the image of AWS for the type. Raises RefusedError if the image does not
    exist, or if its driver does not work on machines of the type."""
    described = _given(requests, region, given) if given else _found(requests, region, instance_type)
    if described.get("State", "available") != "available":
        raise RefusedError(f"the image {described['ImageId']} is {described['State']}", place=f"aws {region}")
    image = _image(described)
    tag = tags_in(described).get(DRIVER_TAG, "")
    driver = check_driver(image.name, tag, instance_type, image.architecture)
    needs_dns = driver is not None and needs_providers_dns(driver, instance_type)
    return replace(image, needs_dns=needs_dns)


def _given(requests: AwsRequests, region: str, id: str) -> Mapping[str, Any]:
    answer = requests.call_for_launch(region, "DescribeImages", ImageIds=[id])
    for described in answer.get("Images") or ():
        return cast("Mapping[str, Any]", described)
    raise RefusedError(
        f"the image {id} does not exist in {region}, or the account may not use it",
        hint="The ids of images differ between regions.",
        place=f"aws {region}",
    )


def _found(requests: AwsRequests, region: str, instance_type: str) -> Mapping[str, Any]:
    search = search_for(instance_type)
    filters = [
        {"Name": "name", "Values": list(search.names)},
        {"Name": "architecture", "Values": [search.architecture]},
        {"Name": "state", "Values": ["available"]},
    ]
    answer = requests.call_for_launch(region, "DescribeImages", Owners=[search.owner], Filters=filters)
    newest = newest_image(search.names, answer.get("Images") or ())
    if newest is None:
        raise RefusedError(
            f"{region} has no image {search.names[0]!r} for {instance_type}",
            hint="Set the id of an image with a fitting driver: --image ami-...",
            place=f"aws {region}",
        )
    return newest


def newest_image(
    names: tuple[str, ...], images: tuple[Mapping[str, Any], ...] | list[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """Return the newest image whose name has the first pattern that any image has, or None if no image has
    any of the patterns."""
    for name in names:
        fitting = [one for one in images if fnmatchcase(one.get("Name", ""), name)]
        if fitting:
            return max(fitting, key=lambda one: str(one.get("CreationDate", "")))
    return None


def _image(described: Mapping[str, Any]) -> Image:
    root = described.get("RootDeviceName") or "/dev/sda1"
    disks = {
        one.get("DeviceName"): one.get("Ebs") or {} for one in described.get("BlockDeviceMappings") or ()
    }
    return Image(
        id=described["ImageId"],
        root_device=root,
        disk_bytes=int(disks.get(root, {}).get("VolumeSize") or 0) * GIB,
        name=described.get("Name", ""),
        architecture=described.get("Architecture", "x86_64"),
    )
