"""Images of Compute Engine that Gridmill makes of its machines. An image has labels. While the label of the
lease is set, the image is a leftover of the lease; without it, the image is kept.

The image is made of the disk of the running machine, after `sync`, as "Create custom images" permits. The
machine is not stopped before: `maxRunDuration` ends only machines that run, so that the disk of a stopped
machine would cost money for ever if the control node died at this moment.

Sources: images.insert, images.get, images.list, images.setLabels and images.delete in the Compute Engine API
reference; "Create custom images" in the Compute Engine documentation.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gridmill.clouds.gcp.launch import LEASE, OWNER, PROVIDER, described, label, time_of
from gridmill.clouds.gcp.requests import GcpRequests
from gridmill.domain.amounts import GIB
from gridmill.domain.machine import Leftover, Machine
from gridmill.domain.machine_image import EVERYWHERE, ImageState, MachineImage
from gridmill.errors import ConflictError, NotFoundError, UnavailableError
from gridmill.ports.cloud import ImageRequest

NAME, VERSION, BUILD = "gridmill-image", "gridmill-version", "gridmill-build"
"""The labels with the name of an image, with the version of Gridmill in it, and with the lease of its build,
which stays when the image is kept. Values that labels do not permit are in the description."""
STATES: Mapping[str, ImageState] = {
    "PENDING": ImageState.PENDING,
    "READY": ImageState.AVAILABLE,
    "DELETING": ImageState.PENDING,
}
"""The values of Image.status. Any other status is FAILED."""
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_REFUSAL_SECONDS = 10.0
"""The time for which `create` waits for a refusal. The image itself takes minutes."""
_PATH = "/global/images"


class OwnImages:
    """The images of a project. A call waits for `wait_seconds` until a change of labels is carried out."""

    def __init__(self, requests: GcpRequests, wait_seconds: float) -> None:
        self._requests, self._wait_seconds = requests, wait_seconds

    def images(self, owner: str) -> Iterator[MachineImage]:
        """Yield the images with the labels of Gridmill (with an owner: those of one grid)."""
        wanted = f"labels.{OWNER}={label(owner)}" if owner else f"labels.{OWNER}:*"
        for one in self._requests.pages("images.list", _PATH, {"filter": wanted}):
            image = image_of(one)
            if owner in ("", image.owner):
                yield image

    def leftovers(self, owner: str) -> Iterator[Leftover]:
        """Yield the images that are not kept."""
        for image in self.images(owner):
            if leftover := image.leftover():
                yield leftover

    def create(self, machine: Machine, request: ImageRequest) -> MachineImage:
        """Start to make an image. A repeated call finds the image by its name."""
        found = self._existing(request)
        if found is not None:
            return found
        body = insert_body(request, self._disk(machine))
        try:
            operation = self._requests.compute(
                "images.insert", _PATH, body=body, query={"forceCreate": "true"}, is_launch=True
            )
            self._requests.wait(operation, min(self._wait_seconds, _REFUSAL_SECONDS))
        except ConflictError as error:
            found = self._existing(request)
            if found is None:
                raise UnavailableError(error.message, place=error.place) from error
            return found
        made = self._existing(request)
        if made is None:
            raise UnavailableError(
                f"the image {body['name']} is not visible yet", place=f"gcp images.get {body['name']}"
            )
        return made

    def keep(self, image: MachineImage) -> None:
        """Remove the label of the lease from an image. May be repeated."""
        item = self._requests.compute("images.get", f"{_PATH}/{image.id}")
        labels = dict(item.get("labels") or {})
        if labels.pop(LEASE, None) is None:
            return
        body = {"labels": labels, "labelFingerprint": item.get("labelFingerprint", "")}
        path = f"{_PATH}/{image.id}/setLabels"
        try:
            operation = self._requests.compute("images.setLabels", path, body=body)
            done = self._requests.wait(operation, self._wait_seconds)
        except ConflictError as error:  # somebody has changed the labels at the same time
            raise UnavailableError(error.message, place=error.place) from error
        if done is None:
            raise UnavailableError(
                f"Google Cloud has not yet changed the labels of the image {image.id}",
                place="gcp images.setLabels",
            )

    def delete(self, image_id: str) -> None:
        """Delete an image. Does nothing if the image does not exist."""
        try:
            self._requests.compute("images.delete", f"{_PATH}/{image_id}")
        except NotFoundError:
            return

    def _existing(self, request: ImageRequest) -> MachineImage | None:
        """Return the image of a request, or None if it does not exist. Raises ConflictError if another build
        has made it."""
        name = image_name(request.owner, request.name)
        try:
            image = image_of(self._requests.compute("images.get", f"{_PATH}/{name}"))
        except NotFoundError:
            return None
        if (image.build, image.owner) != (request.lease, request.owner):
            raise ConflictError(
                f"the name {request.name} is in use by the image {name}",
                hint="Choose another name, or delete the image.",
                place=f"gcp images.get {name}",
            )
        return image

    def _disk(self, machine: Machine) -> str:
        """Return the URL of the boot disk of a machine. Raises ConflictError if the machine has ended."""
        path = f"/zones/{machine.zone}/instances/{machine.id}"
        try:
            instance = self._requests.compute("instances.get", path)
        except NotFoundError as error:
            raise ConflictError(f"the machine {machine.id} has ended", place=error.place) from error
        disks = [str(one["source"]) for one in instance.get("disks") or () if one.get("boot")]
        if not disks:
            raise ConflictError(f"the machine {machine.id} has no boot disk", place=f"gcp {path}")
        return disks[0]


def image_name(owner: str, name: str) -> str:
    """Return the name of the image of a grid at Google: a readable part, and a hash, because two grids of a
    project may use the same name, and names at Google have no capital letters, dots or underscores. The
    longest name has 63 characters."""
    readable = _NOT_IN_NAMES.sub("-", name.lower()).strip("-")[:40].strip("-")
    digest = hashlib.sha256(json.dumps([owner, name]).encode()).hexdigest()[:12]
    return "-".join(one for one in ("gridmill", readable, digest) if one)


def insert_body(request: ImageRequest, disk: str) -> dict[str, Any]:
    """Return the body of images.insert for the image of a disk."""
    exact = {
        "image": request.name,
        "lease": request.lease,
        "owner": request.owner,
        "version": request.version,
    }
    return {
        "name": image_name(request.owner, request.name),
        "description": json.dumps(exact, sort_keys=True),
        "labels": {
            BUILD: label(request.lease),
            LEASE: label(request.lease),
            NAME: label(request.name),
            OWNER: label(request.owner),
            VERSION: label(request.version),
        },
        "sourceDisk": disk,
    }


def image_of(item: Mapping[str, Any]) -> MachineImage:
    """Return the image that Compute Engine describes."""
    labels, fields = item.get("labels") or {}, described(item.get("description", ""))

    def exact(key: str, name: str) -> str:
        value, given = fields.get(name, ""), str(labels.get(key, ""))
        return value if value and label(value) == given else given

    return MachineImage(
        id=item["name"],
        name=exact(NAME, "image"),
        provider=PROVIDER,
        region=EVERYWHERE,
        state=STATES.get(item.get("status", ""), ImageState.FAILED),
        owner=exact(OWNER, "owner"),
        version=exact(VERSION, "version"),
        lease=exact(LEASE, "lease"),
        build=exact(BUILD, "lease"),
        architecture=str(item.get("architecture") or "").lower(),
        disk_bytes=int(item.get("diskSizeGb") or 0) * GIB,
        created=time_of(item.get("creationTimestamp", "")),
    )
