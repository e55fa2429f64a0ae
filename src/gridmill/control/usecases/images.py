"""This module has the use cases of machine images, which are built on rented machines."""

from collections.abc import Iterator
from contextlib import contextmanager

from gridmill.control.usecases.cloud_accounts import CloudAccountUseCases, account_of
from gridmill.control.usecases.leases import LeaseUseCases
from gridmill.domain.job import JobKind
from gridmill.domain.lease import Lease, LeaseState, RentalTerms
from gridmill.domain.lease_cost import LeaseView
from gridmill.domain.machine_image import (
    BUILD_CPUS,
    BUILD_MEMORY_BYTES,
    ImageOrder,
    ImageView,
    MachineImage,
    check_image_name,
)
from gridmill.domain.rental_terms import rental_terms
from gridmill.domain.resource import Resource
from gridmill.domain.site import Site
from gridmill.errors import ConflictError, InputError, NotFoundError, UnavailableError
from gridmill.plugins import IMAGE_CLOUDS
from gridmill.ports.cloud import ImageProvider, RentingSite
from gridmill.version import __version__

_OPEN_SECONDS = 30.0
"""The time for which `build_image` waits until the machines of the site are listed for the first time."""


class ImageUseCases(LeaseUseCases, CloudAccountUseCases):
    """The use cases of images (ports.rentals.MachineImages). The providers are asked without the node's
    lock."""

    def images(self, *, site: str = "") -> tuple[ImageView, ...]:
        """See MachineImages."""
        found = {
            (image.region, image.id): _view(one, image)
            for one in self._cloud_sites(site)
            for image in self._images_at(one, is_needed=bool(site))
        }
        return tuple(sorted(found.values(), key=lambda one: (one.name, one.site, one.region)))

    def build_image(self, order: ImageOrder) -> LeaseView:
        """See MachineImages."""
        check_image_name(order.name)
        [site] = self._cloud_sites(order.site)
        terms = _terms(order, site)
        for image in self._images_at(site, is_needed=True):
            if image.name == order.name and image.is_in(terms.region):
                raise ConflictError(
                    f"the image {order.name!r} exists in {image.region}: {image.id}",
                    hint=f"Choose another name, or delete it: gridmill remove image {image.id}",
                )
        port = self._open_site(site.name, is_listed=True)
        with self._node.changing() as transaction:
            self._check_builds(order)
            lease = _new_lease(
                f"lease-{self._control.counters.next('lease')}", order, terms, port.owner, transaction.now
            )
            transaction.put(lease)
        return self.lease(lease.id)

    def remove_image(self, name: str) -> None:
        """See MachineImages."""
        found = {
            image.id: (site, image)
            for site in self._cloud_sites("")
            for image in self._images_at(site, is_needed=False)
            if name in (image.name, image.id) and not image.lease
        }
        if not found:
            raise NotFoundError(f"there is no image {name!r}", hint="`gridmill list images` shows them.")
        if len(found) > 1:
            raise ConflictError(
                f"several images have the name {name!r}: {', '.join(sorted(found))}",
                hint="Write the id of the image.",
            )
        [(site, image)] = found.values()
        with self._image_provider(site) as provider:
            provider.delete_image(image)

    def _images_at(self, site: Site, *, is_needed: bool) -> tuple[MachineImage, ...]:
        """Return the images of this grid at a site. A site that makes no images has none, unless
        `is_needed`."""
        with account_of(self._control.sites, self._control.open_cloud, site) as cloud:
            if not isinstance(cloud, ImageProvider):
                if is_needed:
                    raise _no_images(site)
                return ()
            return cloud.images(self._open_site(site.name).owner)

    @contextmanager
    def _image_provider(self, site: Site) -> Iterator[ImageProvider]:
        with account_of(self._control.sites, self._control.open_cloud, site) as cloud:
            if not isinstance(cloud, ImageProvider):
                raise _no_images(site)
            yield cloud

    def _open_site(self, name: str, *, is_listed: bool = False) -> RentingSite:
        """Return the site after it was opened and, with `is_listed`, its machines were listed. No lease is
        opened before, because the ids of leases in an old store may be in use at the provider."""
        until = self._control.clock.monotonic() + _OPEN_SECONDS
        while True:
            port, rental = self._control.sites.get(name), self._control.rentals.sites.get(name)
            has_list = rental is not None and rental.latest is not None
            if isinstance(port, RentingSite) and (has_list or not is_listed):
                return port
            if self._node.ending or self._control.clock.monotonic() >= until:
                raise UnavailableError(
                    f"the machines at {name} were not listed yet", hint="`gridmill status` shows the reason."
                )
            self._node.wait_for_commit(self._node.commits, 0.2)

    def _check_builds(self, order: ImageOrder) -> None:
        """Raise ConflictError if an image with this name is being built."""
        for lease in self._ledger.snapshot.leases.values():
            is_building = lease.state not in (LeaseState.RELEASING, LeaseState.CLOSED)
            if is_building and (lease.provider, lease.image_name) == (order.site, order.name):
                raise ConflictError(
                    f"the image {order.name!r} is being built by {lease.id}",
                    hint=f"Stop it with `gridmill stop lease {lease.id}`, or wait.",
                )


def _terms(order: ImageOrder, site: Site) -> RentalTerms:
    """Return the conditions for the machine of a build. Settings that the order lacks come from the site."""
    settings = {
        "region": order.region,
        "instance_type": order.instance_type,
        "max_hours": order.max_hours,
        "max_price": order.max_price,
    }
    given = {name: text for name, text in settings.items() if text}
    # the image of the site may be an older result of a build
    given |= {"image": order.base, "spot": "false"}
    resource = Resource(name=order.name, type=JobKind.TRAINING, site=site.name, settings=given)
    return rental_terms(resource, site)


def _new_lease(lease_id: str, order: ImageOrder, terms: RentalTerms, owner: str, now: float) -> Lease:
    is_typed = bool(terms.instance_type)
    return Lease(
        id=lease_id,
        provider=order.site,
        owner=owner,
        resource=f"image {order.name}",
        deployment_id="",
        pod_id=f"image.{lease_id}",
        state=LeaseState.PLANNED,
        terms=terms,
        needs_cpus=0.0 if is_typed else BUILD_CPUS,
        needs_memory_bytes=0 if is_typed else BUILD_MEMORY_BYTES,
        opened=now,
        counted=now,
        image_name=order.name,
    )


def _view(site: Site, image: MachineImage) -> ImageView:
    return ImageView(
        site=site.name,
        name=image.name,
        id=image.id,
        region=image.region,
        state=image.state,
        version=image.version,
        is_current=image.version == __version__,
        disk_bytes=image.disk_bytes,
        created=image.created,
        setting=f"image={image.id}",
    )


def _no_images(site: Site) -> InputError:
    return InputError(
        f"the provider of {site.name}, {site.settings.get('provider', '')}, makes no images of machines",
        hint=f"Providers that make images: {', '.join(IMAGE_CLOUDS)}.",
        place=f"site {site.name}: settings.provider",
    )
