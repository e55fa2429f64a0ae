"""Images of EC2 that Gridmill makes of its machines. The image and its snapshots have tags. While the tag of
the lease is set, they are leftovers of the lease; without it, they are kept.

Sources: CreateImage, DescribeImages, DeregisterImage and DeleteTags in the EC2 API Reference.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from gridmill.clouds.aws.drivers import driver_of
from gridmill.clouds.aws.images import DRIVER_TAG
from gridmill.clouds.aws.launch import LEASE, OWNER, PROVIDER, tags_in
from gridmill.clouds.aws.requests import AwsRequests
from gridmill.domain.amounts import GIB
from gridmill.domain.machine import Leftover, Machine
from gridmill.domain.machine_image import ImageState, MachineImage
from gridmill.errors import ConflictError, UnavailableError
from gridmill.ports.cloud import ImageRequest

NAME, VERSION, BUILD = "gridmill-image", "gridmill-version", "gridmill-build"
"""The tags with the name of an image, with the version of Gridmill in it, and with the lease of its build,
which stays when the image is kept."""
STATES: Mapping[str, ImageState] = {
    "pending": ImageState.PENDING,
    "transient": ImageState.PENDING,
    "available": ImageState.AVAILABLE,
    "disabled": ImageState.AVAILABLE,
}
"""The states of Image. Any other state is FAILED."""


class OwnImages:
    """The images of an account. `regions` returns the regions in which Gridmill may have images."""

    def __init__(self, requests: AwsRequests, regions: Callable[[], tuple[str, ...]]) -> None:
        self._requests, self._regions = requests, regions

    def images(self, filters: list[dict[str, Any]]) -> tuple[MachineImage, ...]:
        """Return the images with the tags of Gridmill that match the filters."""
        return self._requests.in_parallel(
            self._regions(), lambda region: tuple(self._in_region(region, filters))
        )

    def leftovers(self, region: str, filters: list[dict[str, Any]]) -> Iterator[Leftover]:
        """Yield the images and snapshots of a region that are not kept."""
        for image in self._in_region(region, filters):
            if leftover := image.leftover():
                yield leftover
        for snapshot in self._requests.pages(
            "ec2", region, "DescribeSnapshots", "Snapshots", OwnerIds=["self"], Filters=filters
        ):
            tags = tags_in(snapshot)
            if tags.get(LEASE):
                yield Leftover(
                    kind="snapshot",
                    id=snapshot["SnapshotId"],
                    region=region,
                    lease=tags[LEASE],
                    owner=tags.get(OWNER, ""),
                    created=snapshot["StartTime"].timestamp() if "StartTime" in snapshot else None,
                )

    def create(self, machine: Machine, request: ImageRequest) -> MachineImage:
        """Start to make an image. A repeated call finds the image by its tags, or by its name."""
        found = self._of_build(machine, request)
        if found is not None:
            return found
        tags = [
            {"Key": key, "Value": value}
            for key, value in sorted({**_tags(request), **self._driver(machine)}.items())
        ]
        name = f"gridmill-{request.name}"
        try:
            # EC2 reboots the machine, so that its file systems are complete in the snapshots
            answer = self._requests.call_for_launch(
                machine.region,
                "CreateImage",
                InstanceId=machine.id,
                Name=name,
                Description=f"Gridmill {request.version}",
                TagSpecifications=[{"ResourceType": kind, "Tags": tags} for kind in ("image", "snapshot")],
            )
        except ConflictError as error:
            return self._conflicting(machine, request, name, error)
        return MachineImage(
            id=answer["ImageId"],
            name=request.name,
            provider=PROVIDER,
            region=machine.region,
            state=ImageState.PENDING,
            owner=request.owner,
            version=request.version,
            lease=request.lease,
            build=request.lease,
        )

    def keep(self, image: MachineImage) -> None:
        """Remove the tag of the lease from an image and its snapshots. May be repeated."""
        self._requests.call(
            "ec2",
            image.region,
            "DeleteTags",
            Resources=[image.id, *image.snapshots],
            Tags=[{"Key": LEASE}],
        )

    def delete(self, region: str, image_id: str) -> None:
        """Delete an image and its snapshots. Does nothing if the image does not exist."""
        filters = [{"Name": "image-id", "Values": [image_id]}]
        answer = self._requests.call("ec2", region, "DescribeImages", Owners=["self"], Filters=filters)
        if answer.get("Images"):
            self._requests.call(
                "ec2", region, "DeregisterImage", ImageId=image_id, DeleteAssociatedSnapshots=True
            )

    def _in_region(self, region: str, filters: list[dict[str, Any]]) -> Iterator[MachineImage]:
        pages = self._requests.pages(
            "ec2", region, "DescribeImages", "Images", Owners=["self"], Filters=filters, MaxResults=1000
        )
        for described in pages:
            yield image_of(described, region)

    def _of_build(self, machine: Machine, request: ImageRequest) -> MachineImage | None:
        filters = [
            {"Name": f"tag:{OWNER}", "Values": [request.owner]},
            {"Name": f"tag:{BUILD}", "Values": [request.lease]},
        ]
        return next(self._in_region(machine.region, filters), None)

    def _conflicting(
        self, machine: Machine, request: ImageRequest, name: str, error: ConflictError
    ) -> MachineImage:
        """Return the image of an earlier request whose answer was lost. Raises ConflictError if another image
        has the name, and UnavailableError if the image is not in the lists yet."""
        filters = [{"Name": "name", "Values": [name]}]
        found = next(iter(self._in_region(machine.region, filters)), None)
        if found is None:
            raise UnavailableError(error.message, place=error.place) from error
        if found.build != request.lease or found.owner != request.owner:
            raise ConflictError(
                f"the name {name} is in use by the image {found.id}",
                hint="Choose another name, or delete the image.",
                place=error.place,
            ) from error
        return found

    def _driver(self, machine: Machine) -> dict[str, str]:
        """Return the tag with the GPU driver of the image from which the machine has booted, because the name
        of the new image does not state it."""
        instances = self._requests.call("ec2", machine.region, "DescribeInstances", InstanceIds=[machine.id])[
            "Reservations"
        ]
        ids = [one["ImageId"] for each in instances for one in each["Instances"]]
        filters = [{"Name": "image-id", "Values": ids}]
        answer = self._requests.call("ec2", machine.region, "DescribeImages", Filters=filters)
        for base in answer.get("Images") or ():
            text = tags_in(base).get(DRIVER_TAG, "") or str(base.get("Name", ""))
            if driver_of(text) is not None:
                return {DRIVER_TAG: text}
        return {}


def _tags(request: ImageRequest) -> dict[str, str]:
    return {
        "Name": f"gridmill {request.name}",
        BUILD: request.lease,
        LEASE: request.lease,
        NAME: request.name,
        OWNER: request.owner,
        VERSION: request.version,
    }


def image_of(described: Mapping[str, Any], region: str) -> MachineImage:
    """Return the image that EC2 describes."""
    tags = tags_in(described)
    disks = [one["Ebs"] for one in described.get("BlockDeviceMappings") or () if one.get("Ebs")]
    return MachineImage(
        id=described["ImageId"],
        name=tags.get(NAME, ""),
        provider=PROVIDER,
        region=region,
        state=STATES.get(described.get("State", ""), ImageState.FAILED),
        owner=tags.get(OWNER, ""),
        version=tags.get(VERSION, ""),
        lease=tags.get(LEASE, ""),
        build=tags.get(BUILD, ""),
        architecture=described.get("Architecture", ""),
        snapshots=tuple(one["SnapshotId"] for one in disks if one.get("SnapshotId")),
        disk_bytes=sum(int(one.get("VolumeSize") or 0) for one in disks) * GIB,
        created=_time(described.get("CreationDate", "")),
    )


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
