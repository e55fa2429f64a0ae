"""Builds of images on rented machines, with the real control node over a simulated provider."""

from collections.abc import Mapping

import pytest
from tests.kit.rented_site import AWS, RentedGrid

from gridmill.control.usecases.service import Identity, Service
from gridmill.domain.frozen import replace
from gridmill.domain.lease import Lease, LeaseState
from gridmill.domain.machine import Machine
from gridmill.domain.machine_image import ImageOrder, ImageState, MachineImage
from gridmill.errors import ConflictError, InputError, NotFoundError, RefusedError
from gridmill.ports.cloud import ImageRequest
from gridmill.testing.cloud.provider import SimulatedProvider

ORDER = ImageOrder(name="base", site=AWS, instance_type="gpu.one", max_hours="1")


class ImagingProvider(SimulatedProvider):
    """A provider whose images are available at once."""

    made: Mapping[str, MachineImage] = {}

    def images(self, owner: str = "") -> tuple[MachineImage, ...]:
        return tuple(self.made.values())

    def create_image(self, machine: Machine, request: ImageRequest) -> MachineImage:
        image = MachineImage(
            id=f"i-{request.lease}",
            name=request.name,
            provider=AWS,
            region=machine.region,
            state=ImageState.AVAILABLE,
            owner=request.owner,
            build=request.lease,
        )
        self.made = {**self.made, image.id: image}
        return image

    def keep_image(self, image: MachineImage) -> None:
        del image

    def delete_image(self, image: MachineImage) -> None:
        self.made = {key: one for key, one in self.made.items() if key != image.id}


def service(grid: RentedGrid) -> Service:
    identity = Identity(version="", home="", address="", embedded=True)
    return Service(grid.node, identity, render=str, end=str)


def a_grid(*, broken: str = "") -> tuple[RentedGrid, Service]:
    """Return a grid whose site builds images, or fails with an error."""
    grid = RentedGrid()
    grid.world.provider = provider = ImagingProvider(grid.account)

    def build_image(lease: Lease, machine: Machine) -> MachineImage:
        if broken:
            raise RefusedError(broken)
        request = ImageRequest(name=lease.image_name, lease=lease.id, owner=lease.owner, version="1")
        return provider.create_image(machine, request)

    grid.world.build_image = build_image
    grid.advance()
    return grid, service(grid)


def ended(grid: RentedGrid) -> Lease:
    grid.until(lambda: all(not one.is_open for one in grid.leases()))
    [lease] = grid.leases()
    assert grid.alive() == 0
    return lease


def test_a_build_rents_a_machine_and_returns_it_when_the_image_is_finished() -> None:
    grid, cases = a_grid()
    view = cases.build_image(ORDER)
    assert (view.lease.state, view.lease.terms.max_seconds) == (LeaseState.PLANNED, 3600.0)
    with pytest.raises(ConflictError, match="is being built by lease-1"):
        cases.build_image(ORDER)
    lease = ended(grid)
    assert lease.image_id == "i-lease-1"
    [image] = cases.images()
    assert (image.id, image.setting, image.is_current) == ("i-lease-1", "image=i-lease-1", False)
    with pytest.raises(ConflictError, match="exists"):
        cases.build_image(ORDER)
    cases.remove_image("base")
    assert cases.images() == ()
    with pytest.raises(NotFoundError, match="there is no image 'base'"):
        cases.remove_image("base")


def test_a_build_that_fails_ends_its_machine_with_the_reason() -> None:
    grid, cases = a_grid(broken="no rights")
    cases.build_image(ORDER)
    lease = ended(grid)
    assert (lease.image_id, "could not be built: no rights" in lease.reason) == ("", True)


def test_a_build_without_a_fitting_machine_ends_with_the_reason() -> None:
    grid, cases = a_grid()
    cases.build_image(replace(ORDER, instance_type="huge"))
    lease = ended(grid)
    assert lease.reason == "the provider offers no machine for an image"


def test_a_restart_goes_on_with_a_build() -> None:
    grid, cases = a_grid()
    cases.build_image(ORDER)
    grid.until(lambda: grid.alive() == 1)
    grid.control_dies()
    assert ended(grid).image_id == "i-lease-1"


def test_a_control_node_that_ends_stops_a_build() -> None:
    grid, cases = a_grid()
    cases.build_image(ORDER)
    grid.until(lambda: grid.alive() == 1)
    grid.node.return_machines(0.0)
    assert ended(grid).reason == "the control node ends"


def test_a_provider_without_images_is_refused() -> None:
    grid = RentedGrid()
    grid.advance()
    cases = service(grid)
    with pytest.raises(InputError, match="makes no images") as caught:
        cases.build_image(ORDER)
    assert caught.value.hint == "Providers that make images: aws, gcp."
    assert cases.images() == ()
    with pytest.raises(InputError, match="is not a name of an image"):
        cases.build_image(replace(ORDER, name="a b"))
