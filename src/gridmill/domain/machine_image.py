"""This module has machine images: copies of the disk of a machine, from which further machines boot. Gridmill
makes images that contain this version of Gridmill, so that rented machines need no installation.
"""

import re
from enum import StrEnum

from gridmill.domain.frozen import dataclass
from gridmill.domain.machine import Leftover
from gridmill.errors import InputError

BUILD_CPUS, BUILD_MEMORY_BYTES = 2.0, 3 << 30
"""The least machine on which an image is built, if no type of machine is given. The installation of the
packages needs the memory."""
BUILD_HOURS = "2"
"""The longest time, in hours, for which the machine of a build is rented by default."""
EVERYWHERE = "global"
"""The region of an image from which machines of all regions boot."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


class ImageState(StrEnum):
    """The states that an image can have."""

    PENDING = "pending"
    """The provider still copies the disk."""
    AVAILABLE = "available"
    FAILED = "failed"
    """The provider could not make the image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineImage:
    """An image of the grid, as the provider reports it.

    `name`, `owner` and `version` come from its tags: the name that the user has given, the grid that has
    made it, and the version of Gridmill in it. `build` is the lease of the machine from which the image was
    made. `lease` is the same as long as the build has not finished, and empty for an image that is kept.
    `snapshots` are the ids of the copies of its disks, which cost money, and `disk_bytes` is their size.
    `region` is `EVERYWHERE` if the image is not limited to a region. `created` is a Unix time, or None if the
    provider does not report it.
    """

    id: str
    name: str
    provider: str
    region: str
    state: ImageState
    owner: str = ""
    version: str = ""
    lease: str = ""
    build: str = ""
    architecture: str = ""
    snapshots: tuple[str, ...] = ()
    disk_bytes: int = 0
    created: float | None = None

    def is_in(self, region: str) -> bool:
        """Return whether machines of a region whose name begins with `region` can boot from the image."""
        return self.region == EVERYWHERE or self.region.startswith(region)

    def leftover(self) -> Leftover | None:
        """Return the image as a leftover of its build, or None if it is kept."""
        if not self.lease:
            return None
        return Leftover(
            kind="image",
            id=self.id,
            region=self.region,
            lease=self.lease,
            owner=self.owner,
            created=self.created,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageView:
    """An image of a cloud site. `setting` is the setting of a site or a resource that uses the image, and
    `is_current` states whether the image contains this version of Gridmill."""

    site: str
    name: str
    id: str
    region: str
    state: ImageState
    version: str
    is_current: bool
    disk_bytes: int
    created: float | None
    setting: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOrder:
    """An order to build the image `name` at a cloud site. `base` is the image from which the machine of the
    build boots (empty: the provider's image for the type of machine). Other empty values come from the
    settings of the site. `max_hours` and `max_price` are written as in the settings of a resource."""

    name: str
    site: str
    region: str = ""
    instance_type: str = ""
    base: str = ""
    max_hours: str = BUILD_HOURS
    max_price: str = ""


def check_image_name(name: str) -> None:
    """Raise InputError if the name of an image is not valid."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} is not a name of an image",
            hint="Use letters, digits, dots, hyphens and underscores, at most 80 characters.",
            place="name",
        )
