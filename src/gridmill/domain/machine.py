"""This module has the machines of a cloud provider: the types that can be rented, the machines that exist,
what else exists for them, and the properties and quotas of the provider.

`Machine.lease` and `Machine.token` come from tags that the provider stores together with the machine, so that
a machine is found without the records of the control node.
"""

from enum import StrEnum

from gridmill.domain.amounts import Amounts
from gridmill.domain.frozen import dataclass
from gridmill.domain.rental_estimate import Charges


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
    shortest time between two calls. `bills_stopped` means that a stopped machine still costs money. `charges`
    are the prices of everything but the machine, or None if they are unknown. `runs_user_data` means that
    the machines run the user data of the request with cloud-init."""

    self_end: SelfEnd
    list_lag_seconds: float
    launch_gap_seconds: float = 0.0
    call_gap_seconds: float = 0.0
    spot_notice_seconds: float = 0.0
    least_billed_seconds: float = 60.0
    bills_stopped: bool = True
    charges: Charges | None = None
    runs_user_data: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A type of machine that can be rented in a region. The prices are per hour, in micro-units of
    `currency`, and None if they are unknown. `zones` are the zones that offer the type. `gpu_memory_bytes` is
    the memory of each GPU. `architecture` is `x86_64` or `arm64`. `read` is the Unix time at which the
    provider stated the prices, or None if that is unknown. `charges` are the prices of everything but the
    machine in the region; if they are None, the prices of the provider's traits apply."""

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
    read: float | None = None
    charges: Charges | None = None


MEMORY_SHARE = 0.85
"""The fraction of a machine's nominal memory that pods may use. A machine has a little less memory than its
type promises, and the system and the light server need a part of it."""


def capacity_of(offer: Offer) -> Amounts:
    """Return the amounts that pods can use on a machine of an offer."""
    return Amounts(
        cpus=float(offer.cpus), memory_bytes=int(offer.memory_bytes * MEMORY_SHARE), gpus=offer.gpus
    )


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
class Machine:
    """A machine as the provider reports it. `lease`, `owner` and `token` come from its tags and are empty if
    the tags are missing. `native_state` is the provider's word. `reason` is the provider's reason for the
    state. `launched` and `ended` are Unix times. `ended` is the time after which the provider does not bill
    the machine, or None if the provider does not state it."""

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
    ended: float | None = None
    reason: str = ""


IMAGE_KINDS = frozenset({"image", "snapshot"})
"""The kinds of leftovers that are parts of an unfinished image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A resource of the provider, other than a machine, that belongs to a lease: a volume, an address, a
    security group, a key, an image or an object. `lease` and `owner` come from its tags or its name.
    `created` is the Unix time of its creation, or None if the provider does not report it."""

    kind: str
    id: str
    region: str
    lease: str
    owner: str
    created: float | None = None
