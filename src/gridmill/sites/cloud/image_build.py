"""Makes an image of a prepared machine. Each step can be repeated, because the image of a lease is found by
its tags."""

import time
from collections.abc import Callable

from gridmill.domain.frozen import dataclass
from gridmill.domain.lease import Lease
from gridmill.domain.machine import Machine
from gridmill.domain.machine_image import ImageState, MachineImage
from gridmill.errors import RefusedError, UnavailableError
from gridmill.ports.cloud import ImageProvider, ImageRequest
from gridmill.sites.cloud.machine import RentedMachine
from gridmill.version import __version__

_LOOK_SECONDS = 10.0
"""The time between two requests for the state of an image, which is pending for some minutes."""
_LONGEST_SECONDS = 1800.0
"""The time for which one call waits for the image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageBuild:
    """The machine of a build, and the provider that makes the image. `is_wanted` returns False if the lease
    is being released."""

    lease: Lease
    machine: Machine
    images: ImageProvider
    rented: RentedMachine
    say: Callable[[str], None]
    is_wanted: Callable[[], bool]
    monotonic: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep


def build_image(build: ImageBuild) -> MachineImage:
    """Returns the finished image. Raises UnavailableError if the build must be repeated, and ConflictError,
    MachineFaultError or RefusedError if it has failed."""
    image = _found(build) or _created(build)
    image = _completed(build, image)
    if image.state is ImageState.FAILED:
        raise RefusedError(f"the provider could not make the image {image.id}")
    _check_wanted(build)
    if image.lease:
        build.images.keep_image(image)
    return image


def _found(build: ImageBuild) -> MachineImage | None:
    images = build.images.images(build.lease.owner)
    return next((one for one in images if one.build == build.lease.id), None)


def _created(build: ImageBuild) -> MachineImage:
    lease = build.lease
    build.rented.wait_for_ssh()
    build.say("prepares the disk for the image")
    build.rented.clean()
    _check_wanted(build)
    request = ImageRequest(name=lease.image_name, lease=lease.id, owner=lease.owner, version=__version__)
    return build.images.create_image(build.machine, request)


def _completed(build: ImageBuild, image: MachineImage) -> MachineImage:
    """Waits until the provider has made the image."""
    began = build.monotonic()
    while image.state is ImageState.PENDING:
        waited = build.monotonic() - began
        build.say(f"the provider makes the image {image.id} ({waited:.0f} s)")
        _check_wanted(build)
        if waited >= _LONGEST_SECONDS:
            raise UnavailableError(f"the image {image.id} is not finished yet")
        build.pause(_LOOK_SECONDS)
        # a list may be older than the image
        image = _found(build) or image
    return image


def _check_wanted(build: ImageBuild) -> None:
    if not build.is_wanted():
        raise UnavailableError(f"the build of the image {build.lease.image_name} was stopped")
