"""The images of machines.

Sources: images.get and images.getFromFamily in the Compute Engine API reference; "Choose a Deep Learning VM
image" in the documentation of Deep Learning VM, whose images contain a driver for NVIDIA GPUs. Images of
Ubuntu contain cloud-init; images of Debian and of Container-Optimized OS do not run the user data.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gridmill.clouds.gcp.launch import Image, has_gpus, machine_type, time_of
from gridmill.clouds.gcp.requests import GcpRequests
from gridmill.domain.amounts import GIB
from gridmill.errors import InputError, NotFoundError, RefusedError

WITH_DRIVER = "newest image for deep learning"
"""The image for machines with GPUs: the newest image of a family for the newest Ubuntu. Google replaces the
families every few months."""
_PROJECT = "deeplearning-platform-release"
_FAMILIES = 'family eq "common-cu.*-ubuntu-.*-nvidia-.*"'
_FAMILY = re.compile(r"common-cu(\d+)-ubuntu-(\d+)-nvidia-(\d+)")
PLAIN = "ubuntu-os-cloud/family/ubuntu-2404-lts-amd64"
PLAIN_ARM = "ubuntu-os-cloud/family/ubuntu-2404-lts-arm64"
"""The images for machines without GPUs."""
_ARM = ("c4a-", "n4a-", "t2a-")


def image_for(image: str, instance_type: str) -> str:
    """Return the image for a type of machines: the given one, otherwise the one that fits the type."""
    wanted = machine_type(instance_type)
    fitting = WITH_DRIVER if has_gpus(wanted) else PLAIN_ARM if wanted.name.startswith(_ARM) else PLAIN
    return image or fitting


def path_of(image: str, project: str) -> str:
    """Return the path of an image below `/compute/v1`. An image is written as `NAME`, `family/NAME`,
    `PROJECT/NAME`, `PROJECT/family/NAME` or as a URL of the API. Raises InputError."""
    text = image.rpartition("/compute/v1/")[2].removeprefix("projects/").replace("/global/images/", "/")
    parts = text.removeprefix("global/images/").split("/")
    match parts:
        case [name]:
            return f"projects/{project}/global/images/{name}"
        case ["family", name]:
            return f"projects/{project}/global/images/family/{name}"
        case [owner, name]:
            return f"projects/{owner}/global/images/{name}"
        case [owner, "family", name]:
            return f"projects/{owner}/global/images/family/{name}"
    raise InputError(
        f"{image!r} is not an image",
        hint="Write for example ubuntu-os-cloud/family/ubuntu-2404-lts-amd64.",
        place="image",
    )


def read_image(requests: GcpRequests, image: str, instance_type: str) -> Image:
    """Read an image. Raises RefusedError if it does not exist or does not fit the type."""
    answer = _newest(requests) if image == WITH_DRIVER else _given(requests, image)
    stated = str(answer.get("architecture") or "").lower()
    is_arm = machine_type(instance_type).name.startswith((*_ARM, "a4x-"))
    if stated and (stated == "arm64") != is_arm:
        raise RefusedError(
            f"the image {image} is for {stated} processors, which {instance_type} does not have",
            hint="Set another image: gridmill configure resource NAME --image PROJECT/family/NAME",
        )
    return Image(
        path=str(answer["path"]), disk_bytes=int(answer.get("diskSizeGb") or 0) * GIB, architecture=stated
    )


def newest_of(images: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the newest image with a driver for the newest Ubuntu, or None if there is none."""
    found = []
    for one in images:
        family = _FAMILY.fullmatch(str(one.get("family") or ""))
        if family and "deprecated" not in one:
            found.append((int(family[2]), time_of(str(one.get("creationTimestamp") or "")) or 0.0, one))
    return max(found, key=lambda each: each[:2])[2] if found else None


def _newest(requests: GcpRequests) -> dict[str, Any]:
    listed = requests.pages("images.list", "/global/images", {"filter": _FAMILIES}, _PROJECT)
    newest = newest_of(listed)
    if newest is None:
        raise RefusedError(
            "Google has no image of Ubuntu with an NVIDIA driver",
            hint="Set an image: gridmill configure resource NAME --image PROJECT/family/NAME",
            place=f"gcp images.list {_PROJECT}",
        )
    return {**newest, "path": f"projects/{_PROJECT}/global/images/{newest['name']}"}


def _given(requests: GcpRequests, image: str) -> dict[str, Any]:
    path = path_of(image, requests.project())
    try:
        return {**requests.call("compute", "images.get", f"/compute/v1/{path}"), "path": path}
    except NotFoundError as error:
        raise RefusedError(
            f"the image {image} does not exist, or the credentials may not use it",
            hint="gcloud compute images list",
            place=error.place,
        ) from error
