"""The implementation of the cloud port for EC2.

A machine is found by its tags, which RunInstances sets together with the machine. The user data of a request
contain the keys of the machine, so that no key pairs exist at the provider.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from gridmill.clouds.aws.account import check_account
from gridmill.clouds.aws.images import read_image
from gridmill.clouds.aws.launch import (
    LEASE,
    OWNER,
    Image,
    Network,
    client_token,
    machine_of,
    run_arguments,
    tags_in,
)
from gridmill.clouds.aws.offers import Offers
from gridmill.clouds.aws.own_images import OwnImages
from gridmill.clouds.aws.requests import AwsRequests
from gridmill.clouds.aws.security_groups import SecurityGroups
from gridmill.clouds.aws.settings import AwsSettings, read_settings
from gridmill.domain.machine import Leftover, Machine, MachineState, Offer, ProviderTraits, SelfEnd
from gridmill.domain.machine_image import MachineImage
from gridmill.domain.rental_estimate import Charges
from gridmill.errors import (
    GridmillError,
    InputError,
    NoMachineError,
    NotFoundError,
    QuotaError,
    RefusedError,
    UnavailableError,
)
from gridmill.ports.cloud import AccountCheck, ImageRequest, LaunchRequest

TRAITS = ProviderTraits(
    self_end=SelfEnd.SHUTDOWN,
    # "Eventual consistency" in the EC2 developer guide: repeat describe calls for up to five minutes
    list_lag_seconds=300.0,
    # "Request throttling" in the EC2 developer guide: RunInstances is refilled with 2 requests per second
    launch_gap_seconds=0.5,
    spot_notice_seconds=120.0,
    least_billed_seconds=60.0,
    bills_stopped=True,
    # list prices of us-east-1: data to the internet, gp3 disks, public IPv4 addresses
    charges=Charges(egress_micros=90_000, disk_micros=80_000, address_micros=5_000),
)
_RIGHTS_SECONDS = 600.0
"""The time for which the rights are not checked again, because quotas are read every few minutes."""
_REGIONS_SECONDS = 600.0
"""The time for which the list of the account's regions is used again."""


def make(settings: Mapping[str, str], resolve: Callable[[str], str]) -> "AwsCloud":
    """Open the account. `resolve` returns the value of a secret with a given name. No request is sent.
    Raises InputError."""
    read = partial(read_settings, settings, resolve)
    return AwsCloud(read(), read)


class AwsCloud:
    """The machines and images of an AWS account. Implements `CloudPort` and `ImageProvider`."""

    traits = TRAITS

    def __init__(self, settings: AwsSettings, read_again: Callable[[], AwsSettings] | None = None) -> None:
        """`read_again` returns the settings with the present credentials."""
        self._settings = settings
        self._requests = AwsRequests(settings, read_again)
        self._offers = Offers(self._requests, settings.cache_folder)
        self._groups = SecurityGroups(self._requests, settings.ssh_from)
        self._own_images = OwnImages(self._requests, lambda: self._in(""))
        self._images: dict[tuple[str, str, str], Image] = {}
        self._regions: tuple[float, tuple[str, ...]] = (0.0, ())
        self._rights_known: float | None = None
        """The time on the monotonic clock at which all rights were found; None if one was missing."""
        self._lock = threading.Lock()

    def account_name(self) -> str:
        """See `CloudPort`."""
        return self._requests.account()

    def check_account(self, region: str) -> AccountCheck:
        """See `CloudPort`."""
        now = time.monotonic()
        is_due = self._rights_known is None or now - self._rights_known > _RIGHTS_SECONDS
        check = check_account(self._requests, self._settings, self._in(region), has_probes=is_due)
        if is_due:
            self._rights_known = None if check.missing_rights else now
        return check

    def offers(self, region: str = "", instance_type: str = "") -> tuple[Offer, ...]:
        """See `CloudPort`."""
        ask = self._offers.in_region
        return self._requests.in_parallel(self._in(region), lambda one: ask(one, instance_type))

    def launch(self, request: LaunchRequest) -> Machine:
        """See `CloudPort`."""
        try:
            return self._launched(request)
        except (RefusedError, NoMachineError, QuotaError, InputError):
            # the request may repeat one that succeeded, after which the rights, the image, the quota or the
            # free machines have changed
            found = self._with_token(request)
            if found is None:
                raise
            return found

    def machines(self, owner: str = "") -> tuple[Machine, ...]:
        """See `CloudPort`."""
        filters = _by_owner(owner)

        def ask(region: str) -> tuple[Machine, ...]:
            return tuple(self._described(region, filters))

        return self._requests.in_parallel(self._in(""), ask)

    def terminate(self, machine: Machine) -> None:
        """See `CloudPort`."""
        self._ignoring_missing(machine.region, "TerminateInstances", InstanceIds=[machine.id])

    def leftovers(self, owner: str = "") -> tuple[Leftover, ...]:
        """See `CloudPort`."""
        filters = _by_owner(owner)

        def ask(region: str) -> tuple[Leftover, ...]:
            others = (
                Leftover(
                    kind=kind,
                    id=one[key],
                    region=region,
                    lease=tags_in(one).get(LEASE, ""),
                    owner=tags_in(one).get(OWNER, ""),
                    created=one["CreateTime"].timestamp() if "CreateTime" in one else None,
                )
                for kind, (items, key, described) in _LEFTOVERS.items()
                for one in described(self._requests, region, items, filters)
            )
            return (*others, *self._own_images.leftovers(region, filters))

        return self._requests.in_parallel(self._in(""), ask)

    def delete(self, leftover: Leftover) -> None:
        """See `CloudPort`."""
        match leftover.kind:
            case "volume":
                self._ignoring_missing(leftover.region, "DeleteVolume", VolumeId=leftover.id)
            case "address":
                self._ignoring_missing(leftover.region, "ReleaseAddress", AllocationId=leftover.id)
            case "security-group":
                self._ignoring_missing(leftover.region, "DeleteSecurityGroup", GroupId=leftover.id)
            case "key":
                self._ignoring_missing(leftover.region, "DeleteKeyPair", KeyPairId=leftover.id)
            case "image":
                self._own_images.delete(leftover.region, leftover.id)
            case "snapshot":
                self._ignoring_missing(leftover.region, "DeleteSnapshot", SnapshotId=leftover.id)
            case _:
                raise NotFoundError(f"EC2 has no {leftover.kind!r}", place=f"leftover {leftover.id}")

    def images(self, owner: str = "") -> tuple[MachineImage, ...]:
        """See `ImageProvider`."""
        return self._own_images.images(_by_owner(owner))

    def create_image(self, machine: Machine, request: ImageRequest) -> MachineImage:
        """See `ImageProvider`."""
        return self._own_images.create(machine, request)

    def keep_image(self, image: MachineImage) -> None:
        """See `ImageProvider`."""
        self._own_images.keep(image)

    def delete_image(self, image: MachineImage) -> None:
        """See `ImageProvider`."""
        self._own_images.delete(image.region, image.id)

    def close(self) -> None:
        """See `CloudPort`."""
        self._requests.close()

    def _ignoring_missing(self, region: str, action: str, **arguments: object) -> None:
        try:
            self._requests.call("ec2", region, action, **arguments)
        except NotFoundError:
            return

    def _in(self, prefix: str) -> tuple[str, ...]:
        """Return the regions of the account whose names begin with `prefix`, and that may be used."""
        return tuple(region for region in self._all_regions() if region.startswith(prefix))

    def _all_regions(self) -> tuple[str, ...]:
        if self._settings.are_exact:
            return self._settings.regions
        with self._lock:
            read, regions = self._regions
        if not regions or time.monotonic() - read > _REGIONS_SECONDS:
            answer = self._requests.call("ec2", self._settings.home_region, "DescribeRegions")
            named = sorted(one["RegionName"] for one in answer["Regions"])
            regions = tuple(name for name in named if self._settings.permits(name))
            with self._lock:
                self._regions = time.monotonic(), regions
        return regions

    def _check_region(self, region: str) -> None:
        if not self._settings.permits(region):
            raise RefusedError(
                f"the region {region!r} is not among the regions of the cloud provider",
                hint="Add it to the setting `regions`, or choose another region.",
            )

    def _described(self, region: str, filters: list[dict[str, Any]]) -> Iterator[Machine]:
        pages = self._requests.pages(
            "ec2", region, "DescribeInstances", "Reservations", Filters=filters, MaxResults=1000
        )
        for reservation in pages:
            for instance in reservation.get("Instances") or ():
                yield self._machine(instance, region)

    def _machine(self, instance: Mapping[str, Any], region: str) -> Machine:
        return machine_of(instance, region, is_private=self._settings.is_private)

    def _with_token(self, request: LaunchRequest) -> Machine | None:
        filters = [{"Name": "client-token", "Values": [client_token(request.token)]}]
        for machine in self._described(request.region, filters):
            if machine.zone == request.zone and machine.state is not MachineState.ENDED:
                return machine
        return None

    def _image(self, request: LaunchRequest) -> Image:
        key = (request.region, request.image, request.instance_type)
        with self._lock:
            image = self._images.get(key)
        if image is None:
            image = read_image(self._requests, *key)
            with self._lock:
                self._images[key] = image
        return image

    def _network(self, request: LaunchRequest, image: Image) -> Network:
        """Return the network of the machine. Creates the security group of the lease, unless the settings
        name a group."""
        subnet, vpc = self._subnet(request)
        if image.needs_dns:
            self._check_dns(request.region, vpc)
        group = self._settings.security_group or self._groups.group(request, vpc)
        return Network(security_group=group, subnet=subnet, is_public=not self._settings.is_private)

    def _launched(self, request: LaunchRequest) -> Machine:
        self._check_region(request.region)
        image = self._image(request)
        arguments = run_arguments(request, image, self._network(request, image))
        try:
            answer = self._requests.call_for_launch(request.region, "RunInstances", **arguments)
        except NotFoundError as error:
            raise self._missing_group(request, error) from error
        return self._machine(answer["Instances"][0], request.region)

    def _check_dns(self, region: str, vpc: str) -> None:
        """Raise RefusedError if the network (empty: the default network of the region) does not use the name
        server of AWS, through which the driver of the image gets its licence."""
        if not vpc:
            filters = [{"Name": "is-default", "Values": ["true"]}]
            defaults = self._requests.call_for_launch(region, "DescribeVpcs", Filters=filters)["Vpcs"]
            vpc = defaults[0]["VpcId"] if defaults else ""
        answer = self._requests.call_for_launch(
            region, "DescribeVpcAttribute", VpcId=vpc, Attribute="enableDnsSupport"
        )
        if not answer["EnableDnsSupport"]["Value"]:
            raise RefusedError(
                f"the GRID driver of the image needs the name server of AWS, which the network {vpc} does "
                "not use",
                hint=f"aws ec2 modify-vpc-attribute --vpc-id {vpc} --enable-dns-support",
                place=f"aws {region}",
            )

    def _missing_group(self, request: LaunchRequest, error: NotFoundError) -> GridmillError:
        """Return the error for a launch without its security group. A new group may not be visible yet."""
        if self._settings.security_group:
            return RefusedError(error.message, hint="Change the setting `security_group`.", place=error.place)
        self._groups.forget(request)
        return UnavailableError(error.message, place=error.place)

    def _subnet(self, request: LaunchRequest) -> tuple[str, str]:
        """Return the subnet in the zone of the request, and its network. Both are empty if the default
        network is used."""
        if not self._settings.subnets:
            return "", ""
        filters = [{"Name": "subnet-id", "Values": list(self._settings.subnets)}]
        for subnet in self._requests.pages(
            "ec2", request.region, "DescribeSubnets", "Subnets", Filters=filters
        ):
            if subnet["AvailabilityZone"] == request.zone:
                return subnet["SubnetId"], subnet["VpcId"]
        raise RefusedError(
            f"none of the subnets of the cloud provider is in the zone {request.zone}",
            hint="Add a subnet of this zone to the setting `subnet`, or choose another region.",
        )


def _by_owner(owner: str) -> list[dict[str, Any]]:
    if owner:
        return [{"Name": f"tag:{OWNER}", "Values": [owner]}]
    return [{"Name": "tag-key", "Values": [OWNER]}]


def _paged(action: str) -> "_Describe":
    def described(
        requests: AwsRequests, region: str, items: str, filters: list[dict[str, Any]]
    ) -> Iterator[Mapping[str, Any]]:
        return requests.pages("ec2", region, action, items, Filters=filters)

    return described


_Describe = Callable[[AwsRequests, str, str, list[dict[str, Any]]], Iterator[Mapping[str, Any]]]
_LEFTOVERS: Mapping[str, tuple[str, str, _Describe]] = {
    "volume": ("Volumes", "VolumeId", _paged("DescribeVolumes")),
    "address": ("Addresses", "AllocationId", _paged("DescribeAddresses")),
    "security-group": ("SecurityGroups", "GroupId", _paged("DescribeSecurityGroups")),
    "key": ("KeyPairs", "KeyPairId", _paged("DescribeKeyPairs")),
}
"""For each kind of leftover: the name of its list in an answer, the name of its id, and the request."""
