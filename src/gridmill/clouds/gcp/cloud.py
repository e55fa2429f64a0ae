"""The implementation of the cloud port for Compute Engine.

The name of a machine is derived from the token of its try, and a zone has each name once. Therefore a machine
is found by its name if the answer to its launch was lost, and a repeated launch never starts a second
machine. The name is the id of the machine.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from gridmill.clouds.gcp.account import missing_rights, read_quotas
from gridmill.clouds.gcp.firewalls import GLOBAL, KIND, Firewalls
from gridmill.clouds.gcp.images import image_for, read_image
from gridmill.clouds.gcp.launch import (
    OWNER,
    Image,
    described,
    fingerprint,
    identity_of,
    insert_body,
    instance_name,
    label,
    machine_of,
    region_of,
    request_id,
    time_of,
)
from gridmill.clouds.gcp.offers import Offers
from gridmill.clouds.gcp.own_end import MachineAccounts, notes_of
from gridmill.clouds.gcp.own_images import OwnImages
from gridmill.clouds.gcp.requests import GcpRequests, last_part
from gridmill.clouds.gcp.self_end import end_command
from gridmill.clouds.gcp.settings import GcpSettings, read_settings
from gridmill.domain.frozen import replace
from gridmill.domain.machine import Leftover, Machine, Offer, ProviderTraits, SelfEnd
from gridmill.domain.machine_image import MachineImage
from gridmill.domain.rental_estimate import Charges
from gridmill.errors import (
    ConflictError,
    InputError,
    NoMachineError,
    NotFoundError,
    QuotaError,
    RefusedError,
    UnavailableError,
)
from gridmill.ports.cloud import AccountCheck, ImageRequest, LaunchRequest

TRAITS = ProviderTraits(
    # maxRunDuration; with a service account, the machine also calls the API itself
    self_end=SelfEnd.PROVIDER_TIMER,
    # the lists of Compute Engine contain what an operation has made when the operation has ended
    list_lag_seconds=60.0,
    # "API quota" of Compute Engine: 1500 requests per minute and project that change something; a launch
    # sends two of them
    launch_gap_seconds=0.1,
    # "Spot VMs": a preemption gives a machine up to 30 seconds
    spot_notice_seconds=30.0,
    least_billed_seconds=60.0,
    bills_stopped=True,
    # list prices of us-central1: data to the internet, balanced disks, external addresses of machines
    charges=Charges(egress_micros=120_000, disk_micros=100_000, address_micros=5_000),
)
_LAUNCH_SECONDS = 100.0
"""The time for which a launch waits until the provider has decided about it."""
_RIGHTS_SECONDS = 600.0
"""The time for which the rights are not checked again, because quotas are read every few minutes."""
_PLACES_SECONDS = 600.0
"""The time for which the lists of regions, zones and images are used again."""


def make(settings: Mapping[str, str], resolve: Callable[[str], str]) -> "GcpCloud":
    """Open the project. `resolve` returns the value of a secret with a given name. No request is sent.
    Raises InputError."""
    read = partial(read_settings, settings, resolve)
    return GcpCloud(read(), read)


class GcpCloud:
    """The machines of a project at Google Cloud. Implements `CloudPort`, `EndCommands` and
    `ImageProvider`."""

    def __init__(
        self,
        settings: GcpSettings,
        read_again: Callable[[], GcpSettings] | None = None,
        *,
        launch_seconds: float = _LAUNCH_SECONDS,
        transport: Any = None,  # noqa: ANN401  an httpx.BaseTransport; httpx is imported late
    ) -> None:
        """`read_again` returns the settings with the present credentials. A launch waits for
        `launch_seconds` until the provider has decided about it. `transport` sends the requests (default:
        over the network)."""
        self._settings, self._launch_seconds = settings, launch_seconds
        self._requests = GcpRequests(settings, read_again, transport)
        self._offers = Offers(self._requests, settings.cache_folder)
        self._own_images = OwnImages(self._requests, launch_seconds)
        self._firewalls = Firewalls(self._requests, settings, launch_seconds)
        self._images: dict[tuple[str, str], tuple[float, Image]] = {}
        self._zones: tuple[float, Mapping[str, tuple[str, ...]]] = (0.0, {})
        self._rights_known: float | None = None
        """The time on the monotonic clock at which all rights were found; None if one was missing."""
        self._lock = threading.Lock()
        self._accounts = MachineAccounts(self._requests, settings)
        own = SelfEnd.OWN_CALL if settings.service_accounts else SelfEnd.PROVIDER_TIMER
        self.traits = replace(TRAITS, self_end=own)

    def end_command(self, token: str) -> str:
        """See `EndCommands`."""
        settings = self._settings
        return end_command(
            has_service_account=bool(settings.service_accounts), endpoint_url=settings.endpoint_url
        )

    def account_name(self) -> str:
        """See `CloudPort`."""
        return self._requests.project()

    def check_account(self, region: str) -> AccountCheck:
        """See `CloudPort`."""
        now = time.monotonic()
        is_due = self._rights_known is None or now - self._rights_known > _RIGHTS_SECONDS
        missing = missing_rights(self._requests, self._settings) if is_due else ()
        if is_due:
            self._rights_known = None if missing else now
        regions = () if "compute.zones.list" in missing else tuple(self._in(region))
        has_quotas = not {"compute.projects.get", "compute.regions.list"} & set(missing)
        return AccountCheck(
            account=self.account_name(),
            missing_rights=missing,
            quotas=read_quotas(self._requests, regions) if has_quotas else (),
            notes=notes_of(self._settings),
        )

    def offers(self, region: str = "", instance_type: str = "") -> tuple[Offer, ...]:
        """See `CloudPort`."""
        return self._offers.in_regions(self._in(region), instance_type)

    def launch(self, request: LaunchRequest) -> Machine:
        """See `CloudPort`."""
        if not self._settings.permits(request.region):
            raise RefusedError(
                f"the region {request.region!r} is not among the regions of the cloud provider",
                hint="Add it to the setting `regions`, or choose another region.",
            )
        try:
            return self._launched(request)
        except (RefusedError, NoMachineError, QuotaError, InputError):
            # the request may repeat one that succeeded, after which the rights, the image, the quota or the
            # free machines have changed
            found = self._existing(request)
            if found is None:
                raise
            return found

    def machines(self, owner: str = "") -> tuple[Machine, ...]:
        """See `CloudPort`."""
        items = tuple(self._labelled("instances", owner))
        found = [(machine_of(item, is_private=self._settings.is_private), item) for item in items]
        own = [pair for pair in found if owner in ("", pair[0].owner)]
        for machine, item in own if owner else ():  # of this grid, perhaps requested by an earlier process
            self._accounts.permit(item, machine.zone)
        return tuple(machine for machine, _ in own)

    def terminate(self, machine: Machine) -> None:
        """See `CloudPort`."""
        path = f"/zones/{machine.zone}/instances/{machine.id}"
        self._ignoring_missing("instances.delete", path)

    def leftovers(self, owner: str = "") -> tuple[Leftover, ...]:
        """See `CloudPort`."""
        found = [_leftover("disk", item) for item in self._labelled("disks", owner)]
        found += [_leftover("address", item) for item in self._labelled("addresses", owner)]
        own = tuple(one for one in found if owner in ("", one.owner))
        return (*own, *self._firewalls.leftovers(owner), *self._own_images.leftovers(owner))

    def delete(self, leftover: Leftover) -> None:
        """See `CloudPort`."""
        place, _, name = leftover.id.rpartition("/")
        match leftover.kind:
            case "disk":
                self._ignoring_missing("disks.delete", f"/zones/{place}/disks/{name}")
            case "address" if leftover.region == GLOBAL:
                self._ignoring_missing("globalAddresses.delete", f"/global/addresses/{name}")
            case "address":
                self._ignoring_missing("addresses.delete", f"/regions/{leftover.region}/addresses/{name}")
            case "image":
                self._own_images.delete(leftover.id)
            case "firewall-rule":
                self._check_unused(leftover)
                self._ignoring_missing("firewalls.delete", f"/global/firewalls/{name}")
            case _:
                raise NotFoundError(
                    f"Compute Engine has no {leftover.kind!r}", place=f"leftover {leftover.id}"
                )

    def images(self, owner: str = "") -> tuple[MachineImage, ...]:
        """See `ImageProvider`. Images belong to the whole project, so that the setting `regions` does not
        limit them."""
        return tuple(self._own_images.images(owner))

    def create_image(self, machine: Machine, request: ImageRequest) -> MachineImage:
        """See `ImageProvider`."""
        return self._own_images.create(machine, request)

    def keep_image(self, image: MachineImage) -> None:
        """See `ImageProvider`."""
        self._own_images.keep(image)

    def delete_image(self, image: MachineImage) -> None:
        """See `ImageProvider`."""
        self._own_images.delete(image.id)

    def close(self) -> None:
        """See `CloudPort`."""
        self._requests.close()

    def _check_unused(self, rule: Leftover) -> None:
        """Raise ConflictError if a machine needs a firewall rule, which the provider would delete anyway."""
        using = [one.id for one in self.machines(rule.owner) if one.lease == rule.lease]
        if using:
            raise ConflictError(
                f"the firewall rule {rule.id} is in use by the machine {using[0]}", place=f"{KIND} {rule.id}"
            )

    def _ignoring_missing(self, action: str, path: str) -> None:
        try:
            self._requests.compute(action, path)
        except NotFoundError:
            return

    def _labelled(self, kind: str, owner: str) -> Iterator[Mapping[str, Any]]:
        """Yield everything of a kind with the labels of Gridmill in the permitted regions."""
        wanted = f"labels.{OWNER}={label(owner)}" if owner else f"labels.{OWNER}:*"
        for _, item in self._requests.in_all_places(
            f"{kind}.aggregatedList", f"/aggregated/{kind}", kind, self._is_permitted, {"filter": wanted}
        ):
            yield item

    def _is_permitted(self, place: str) -> bool:
        """Return whether a place (`zones/ZONE`, `regions/REGION`, `global`) belongs to a permitted region."""
        kind, _, name = place.partition("/")
        return not name or self._settings.permits(region_of(name) if kind == "zones" else name)

    def _in(self, prefix: str) -> dict[str, tuple[str, ...]]:
        """Return the zones of the regions whose names begin with `prefix`, and that may be used."""
        return {
            region: zones
            for region, zones in self._all_zones().items()
            if region.startswith(prefix) and self._settings.permits(region)
        }

    def _all_zones(self) -> Mapping[str, tuple[str, ...]]:
        with self._lock:
            read, zones = self._zones
        if zones and time.monotonic() - read <= _PLACES_SECONDS:
            return zones
        found: dict[str, list[str]] = {}
        for one in self._requests.pages("zones.list", "/zones"):
            if one.get("status", "UP") == "UP":
                found.setdefault(last_part(one["region"]), []).append(one["name"])
        zones = {region: tuple(sorted(names)) for region, names in sorted(found.items())}
        with self._lock:
            self._zones = time.monotonic(), zones
        return zones

    def _image(self, request: LaunchRequest) -> Image:
        name = image_for(request.image, request.instance_type)
        key = name, request.instance_type
        with self._lock:
            read, image = self._images.get(key, (0.0, None))
        if image is None or time.monotonic() - read > _PLACES_SECONDS:
            image = read_image(self._requests, *key)
            with self._lock:
                self._images[key] = time.monotonic(), image
        return image

    def _launched(self, request: LaunchRequest) -> Machine:
        image, tags = self._image(request), self._firewalls.tags(request)
        email = self._accounts.choose(instance_name(request), lambda: self._labelled("instances", ""))
        body = insert_body(request, image, self._settings, tags, self._requests.project(), email)
        try:
            operation = self._requests.compute(
                "instances.insert",
                f"/zones/{request.zone}/instances",
                body=body,
                is_launch=True,
                query={"requestId": request_id(request.token)},
            )
            done = self._requests.wait(operation, self._launch_seconds)
        except ConflictError:
            return self._of_earlier_request(request)
        found = self._existing(request)
        if found is not None:
            return found
        if done is None:
            raise UnavailableError(
                f"Google Cloud has not yet decided about the machine {body['name']}", place=_place(request)
            )
        raise _ended(request)

    def _of_earlier_request(self, request: LaunchRequest) -> Machine:
        found = self._existing(request)
        if found is None:
            raise _ended(request)
        return found

    def _existing(self, request: LaunchRequest) -> Machine | None:
        """Return the machine of a request, or None if it does not exist. Raises ConflictError if its token
        was used with other parameters."""
        path = f"/zones/{request.zone}/instances/{instance_name(request)}"
        try:
            item = self._requests.compute("instances.get", path)
        except NotFoundError:
            return None
        if described(item.get("description", "")).get("request") != fingerprint(request):
            raise ConflictError(
                f"the machine {item['name']} was rented with other parameters", place=_place(request)
            )
        self._accounts.permit(item, request.zone)
        return machine_of(item, is_private=self._settings.is_private)


def _place(request: LaunchRequest) -> str:
    return f"gcp {request.zone} instances.insert"


def _ended(request: LaunchRequest) -> ConflictError:
    return ConflictError(
        f"the machine {instance_name(request)} of an earlier request has ended", place=_place(request)
    )


def _leftover(kind: str, item: Mapping[str, Any]) -> Leftover:
    """Return a leftover. The id of a disk has its zone before its name."""
    lease, owner, _ = identity_of(item)
    zone, region = last_part(item.get("zone", "")), last_part(item.get("region", ""))
    return Leftover(
        kind=kind,
        id=f"{zone}/{item['name']}" if zone else item["name"],
        region=region_of(zone) or region or GLOBAL,
        lease=lease,
        owner=owner,
        created=time_of(item.get("creationTimestamp", "")),
    )
