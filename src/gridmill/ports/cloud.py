"""The interface to a cloud provider, which rents machines by the hour, and the interface that a cloud site
offers to the control node.

Every call to a provider can be repeated. A provider knows nothing about jobs and pods. The records that the
planner also uses (machines, offers, quotas) are defined in `gridmill.domain.machine`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Protocol, runtime_checkable

from gridmill.domain.frozen import dataclass
from gridmill.domain.lease import LaunchTry, Lease
from gridmill.domain.machine import (
    Leftover,
    Machine,
    MachineState,
    Offer,
    ProviderTraits,
    Quota,
    SelfEnd,
)
from gridmill.domain.machine_image import ImageState, MachineImage

__all__ = (
    "AccountCheck",
    "BuildingSite",
    "CloudPort",
    "EndCommands",
    "ImageProvider",
    "ImageRequest",
    "ImageState",
    "LaunchRequest",
    "Leftover",
    "Machine",
    "MachineImage",
    "MachineReport",
    "MachineState",
    "Offer",
    "ProviderTraits",
    "Quota",
    "RentingSite",
    "SelfEnd",
)
"""The records and protocols with which a provider is implemented, in one place for its author."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountCheck:
    """The result of a check of an account: the name of the account, the rights that are missing, the quotas,
    and what the machines themselves may do beyond their own end (`notes`)."""

    account: str
    missing_rights: tuple[str, ...] = ()
    quotas: tuple[Quota, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """A request for one machine. `token` is the idempotency key of the request. `tags` are stored together
    with the machine and everything that is created for it. `user_data` is what the machine runs at its first
    boot. `max_seconds` is the time after which the machine must end in any case. `allowed_addresses` are the
    networks (CIDR) from which SSH must be reachable."""

    token: str
    lease: str
    owner: str
    region: str
    zone: str
    instance_type: str
    image: str
    spot: bool
    disk_bytes: int
    ssh_public_key: str
    user_data: str
    max_seconds: float
    allowed_addresses: tuple[str, ...] = ("0.0.0.0/0",)
    tags: Mapping[str, str] = field(default_factory=dict)


class CloudPort(Protocol):
    """The interface to one account at a cloud provider. All methods may block for some seconds, and several
    threads may call them at the same time.

    Every method raises CredentialsError if the provider refuses the credentials, and UnavailableError if the
    provider does not answer, answers with a server error, or limits the rate of calls. After an
    UnavailableError of `launch`, a machine may exist.
    """

    traits: ProviderTraits

    def account_name(self) -> str:
        """Return the name of the account to which the present credentials belong. The provider is asked only
        after the credentials have changed."""

    def check_account(self, region: str) -> AccountCheck:
        """Check the credentials, the rights that Gridmill needs, and the quotas in the regions whose names
        begin with `region`."""

    def offers(self, region: str = "", instance_type: str = "") -> tuple[Offer, ...]:
        """Return the types of machines that can be rented in the regions whose names begin with `region`,
        with their prices."""

    def launch(self, request: LaunchRequest) -> Machine:
        """Rent one machine. A repeated call with the same request returns the same machine. Raises
        NoMachineError, QuotaError, RefusedError: then no machine exists for the token. Raises ConflictError
        if the token was used with other parameters: then the machine of the first request may exist."""

    def machines(self, owner: str = "") -> tuple[Machine, ...]:
        """Return all machines with the tags of Gridmill in all regions of the account that Gridmill may use,
        also machines that ended recently. `owner` limits the result to the machines of one grid. The result
        is complete: if a region does not answer, the method raises UnavailableError, because the control node
        concludes from the list that a machine does not exist."""

    def terminate(self, machine: Machine) -> None:
        """End a machine. The method ignores machines that have ended or do not exist."""

    def leftovers(self, owner: str = "") -> tuple[Leftover, ...]:
        """Return everything other than machines that has the tags of Gridmill."""

    def delete(self, leftover: Leftover) -> None:
        """Delete a leftover. The method ignores leftovers that do not exist. Raises ConflictError if the
        leftover is still in use."""

    def close(self) -> None:
        """Close the connections to the provider. Machines are not ended."""


@runtime_checkable
class EndCommands(Protocol):
    """A provider at which a shutdown does not end the rental, so that its machines end themselves with
    another command. The machines of a provider without this method end themselves by a shutdown."""

    def end_command(self, token: str) -> str:
        """Return the shell command with which the machine of a try ends itself. It is executed as root, and
        again every few seconds until the machine has ended. Empty: a shutdown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """A request for an image of the machine of a build. The image and everything that belongs to it get tags
    with the `name`, the `owner`, the `version` of Gridmill, and the `lease`, which is the idempotency key."""

    name: str
    lease: str
    owner: str
    version: str


@runtime_checkable
class ImageProvider(Protocol):
    """A provider that makes images of machines. A provider without these methods makes no images. The methods
    raise what the methods of `CloudPort` raise.

    Until `keep_image`, an image is a leftover of its lease: `CloudPort.leftovers` returns it and its
    snapshots, so that a failed build leaves nothing. A kept image is no leftover.
    """

    def images(self, owner: str = "") -> tuple[MachineImage, ...]:
        """Return all images with the tags of Gridmill, kept or not, in all regions of the account that
        Gridmill may use. `owner` limits the result to the images of one grid."""

    def create_image(self, machine: Machine, request: ImageRequest) -> MachineImage:
        """Start to make an image of a machine. A repeated call with the same lease returns the same image,
        also if it is kept.
        Raises ConflictError if another image in the region has the name, and RefusedError."""

    def keep_image(self, image: MachineImage) -> None:
        """Record at the provider that an image is finished and kept."""

    def delete_image(self, image: MachineImage) -> None:
        """Delete an image with its snapshots. The method ignores images that do not exist. Machines that run
        continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReport:
    """The result of a prepared machine: its address, and what the check of the machine has found."""

    address: str
    cpus: float
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    driver: str = ""
    installed: str = ""
    """How Gridmill was installed: `image` (it was there), `cache` (by an earlier installation), `wheel` (with
    packages of a package index) or `home` (with packages of the control node)."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """The seconds of each phase: ssh, check, install, start."""


@runtime_checkable
class RentingSite(Protocol):
    """A site whose machines are rented. The control node decides when a machine is rented and returned, and
    the site carries it out. Only `heartbeat`, `use_leases` and `progress` return at once."""

    owner: str
    """The value of the tag that identifies the machines of this grid."""

    def cloud(self) -> CloudPort:
        """The account of the site."""

    def launch(self, lease: Lease, launch_try: LaunchTry) -> Machine:
        """Rent the machine of a try, with the keys of the lease and the script that arms the timer of the
        machine. The method may be repeated with the same try. Raises what `CloudPort.launch` raises."""

    def prepare_machine(self, lease: Lease, machine: Machine) -> MachineReport:
        """Wait for the SSH server of a machine, check the machine, install Gridmill and start its server.
        The method may be repeated; steps that are done are not repeated. Raises UnavailableError if a step
        can be repeated, MachineFaultError if the machine must be replaced, and UnfitMachineError if another
        machine would not be better."""

    def heartbeat(self) -> None:
        """Tell the site that the control node works and has stored its decisions. Without a heartbeat for
        half of the dead-man time of a lease, the site makes no more contact to the machine of the lease, so
        that the machine ends itself although the process of the control node still exists."""

    def use_leases(self, leases: Sequence[Lease]) -> None:
        """Tell the site all open leases. Pods whose lease is READY start on its machine. Pods whose lease is
        RELEASING, or is no longer in the list, count as ended. Before the first call, the site knows nothing
        about pods."""

    def forget_lease(self, lease: Lease) -> None:
        """Close the connections to the machine of a lease that is being released, and delete the keys of the
        lease from this machine once it is closed."""

    def progress(self, lease: str) -> str:
        """What the site does for this lease now, in a few words; empty if nothing."""


@runtime_checkable
class TimedSite(Protocol):
    """A site whose rented machines measure how long they run, with a clock that does not jump."""

    def used_seconds(self, lease: str) -> float | None:
        """Return the seconds for which the machine of a lease has run, or None if the machine has not
        answered since the start of the control node. The method returns at once."""


@runtime_checkable
class BuildingSite(Protocol):
    """A site that builds images on its rented machines."""

    def build_image(self, lease: Lease, machine: Machine) -> MachineImage:
        """Install Gridmill on the prepared machine of a build, delete everything that belongs to this one
        machine, and make an image of it. Return the finished image. The method may be repeated. Raises
        UnavailableError if the build goes on and the method must be repeated, and ConflictError,
        MachineFaultError or RefusedError if the build has failed."""
