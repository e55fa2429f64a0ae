"""The interface to a cloud provider, which rents machines by the hour, and the interface that a cloud site
offers to the control node.

Every call to a provider can be repeated. A provider knows nothing about jobs and pods. `Machine.lease` and
`Machine.token` come from tags that the provider stores together with the machine, so that a machine is found
without the records of the control node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from gridmill.domain.frozen import dataclass
from gridmill.domain.lease import LaunchTry, Lease


class MachineState(StrEnum):
    """The state of a machine. Each provider maps its own states by a complete table."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    """The machine does not run, but it exists and may cost money."""
    ENDED = "ended"
    UNKNOWN = "unknown"


class SelfEnd(StrEnum):
    """The strongest means by which a machine ends itself, without the control node."""

    SHUTDOWN = "shutdown"
    """A shutdown inside the machine ends the rental (EC2 with the shutdown behaviour `terminate`)."""
    PROVIDER_TIMER = "provider-timer"
    """The provider ends the machine at a given time (GCE with `maxRunDuration`)."""
    OWN_CALL = "own-call"
    """The machine calls the provider's API with credentials of its own."""
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderTraits:
    """The properties of a provider. After `list_lag_seconds`, a machine that the provider has started is in
    its lists. `launch_gap_seconds` is the shortest time between two launches, and `call_gap_seconds` the
    shortest time between two calls. `bills_stopped` means that a stopped machine still costs money."""

    self_end: SelfEnd
    list_lag_seconds: float
    launch_gap_seconds: float = 0.0
    call_gap_seconds: float = 0.0
    spot_notice_seconds: float = 0.0
    least_billed_seconds: float = 60.0
    bills_stopped: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A type of machine that can be rented in a region. The prices are per hour, in micro-units of
    `currency`, and None if they are unknown. `zones` are the zones that offer the type. `gpu_memory_bytes` is
    the memory of each GPU. `architecture` is `x86_64` or `arm64`."""

    provider: str
    region: str
    zones: tuple[str, ...]
    instance_type: str
    cpus: int
    memory_bytes: int
    gpus: int = 0
    gpu_model: str = ""
    gpu_memory_bytes: int = 0
    architecture: str = "x86_64"
    disk_bytes: int = 0
    price_micros: int | None = None
    spot_price_micros: int | None = None
    currency: str = "USD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A quota of the account in a region. `limit` and `used` have the unit `unit` (such as vCPUs or GPUs);
    `used` is None if the provider does not report it. `spot` means that the quota is about spot machines.
    `types` are the instance types, or the beginnings of their names, to which the quota applies."""

    region: str
    name: str
    limit: float
    unit: str
    types: tuple[str, ...]
    spot: bool = False
    used: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountCheck:
    """The result of a check of an account: the name of the account, the rights that are missing, and the
    quotas."""

    account: str
    missing_rights: tuple[str, ...] = ()
    quotas: tuple[Quota, ...] = ()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine as the provider reports it. `lease`, `owner` and `token` come from its tags and are empty if
    the tags are missing. `native_state` is the provider's word. `reason` is the provider's reason for the
    state. `launched` is a Unix
    time."""

    id: str
    provider: str
    region: str
    zone: str
    instance_type: str
    state: MachineState
    native_state: str = ""
    lease: str = ""
    owner: str = ""
    token: str = ""
    address: str = ""
    spot: bool = False
    launched: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A resource of the provider, other than a machine, that belongs to a lease: a volume, an address, a
    security group, a key, an image or an object. `lease` and `owner` come from its tags or its name."""

    kind: str
    id: str
    region: str
    lease: str
    owner: str


class CloudPort(Protocol):
    """The interface to one account at a cloud provider. All methods may block for some seconds, and several
    threads may call them at the same time.

    Every method raises CredentialsError if the provider refuses the credentials, and UnavailableError if the
    provider does not answer, answers with a server error, or limits the rate of calls. After an
    UnavailableError of `launch`, a machine may exist.
    """

    traits: ProviderTraits

    def check_account(self, region: str) -> AccountCheck:
        """Check the credentials, the rights that Gridmill needs, and the quotas in the regions whose names
        begin with `region`."""

    def offers(self, region: str = "", instance_type: str = "") -> tuple[Offer, ...]:
        """Return the types of machines that can be rented in the regions whose names begin with `region`,
        with their prices."""

    def launch(self, request: LaunchRequest) -> Machine:
        """Rent one machine. A repeated call with the same request returns the same machine. Raises
        NoMachineError, QuotaError, RefusedError: then no machine exists for the token."""

    def machines(self, owner: str = "") -> tuple[Machine, ...]:
        """Return all machines with the tags of Gridmill in all regions of the account that Gridmill may use,
        also machines that ended recently. `owner` limits the result to the machines of one grid."""

    def terminate(self, machine: Machine) -> None:
        """End a machine. The method ignores machines that have ended or do not exist."""

    def leftovers(self, owner: str = "") -> tuple[Leftover, ...]:
        """Return everything other than machines that has the tags of Gridmill."""

    def delete(self, leftover: Leftover) -> None:
        """Delete a leftover. The method ignores leftovers that do not exist. Raises ConflictError if the
        leftover is still in use."""

    def close(self) -> None:
        """Close the connections to the provider. Machines are not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReport:
    """The result of a prepared machine: its address, and what the check of the machine has found."""

    address: str
    cpus: float
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    driver: str = ""
    installed: str = ""
    """How Gridmill was installed: `image`, `cache` or `wheel`."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """The seconds of each phase: ssh, check, install, start."""


@runtime_checkable
class RentingSite(Protocol):
    """A site whose machines are rented. The control node decides when a machine is rented and returned, and
    the site carries it out. Only `use_leases` and `progress` return at once."""

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
        can be repeated, and MachineFaultError if the machine must be replaced."""

    def use_leases(self, leases: Sequence[Lease]) -> None:
        """Tell the site all open leases. Pods whose lease is READY start on its machine."""

    def forget_lease(self, lease: Lease) -> None:
        """Close the connections to the machine of a lease that is being released, and delete the keys of the
        lease from this machine once it is closed."""

    def progress(self, lease: str) -> str:
        """What the site does for this lease now, in a few words; empty if nothing."""
