"""The resources of the simulated Compute Engine."""

from enum import StrEnum
from typing import Any

from gridmill.domain.frozen import dataclass

Labels = tuple[tuple[str, str], ...]


class Status(StrEnum):
    """The status of an instance. A stopped instance is TERMINATED; a deleted one does not exist.

    Source: https://cloud.google.com/compute/docs/instances/instance-lifecycle
    """

    PROVISIONING = "PROVISIONING"
    STAGING = "STAGING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    TERMINATED = "TERMINATED"


class Action(StrEnum):
    """What happens to an instance when it is preempted or when its time is over.

    Source: https://cloud.google.com/compute/docs/reference/rest/v1/instances (Scheduling)
    """

    STOP = "STOP"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerators:
    """GPUs of one type."""

    type: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedDisk:
    """A disk of an instance."""

    disk_id: str
    name: str
    size_gb: int
    device: str
    is_boot: bool
    is_deleted: bool
    """Whether the disk is deleted with the instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """An instance. Times are Unix times in seconds. `runs` are its times in the status RUNNING; the last of
    them has no end while the instance runs. `deleted_at` is None while the instance exists."""

    id: str
    name: str
    zone: str
    machine_type: str
    created_at: float
    visible_from: float
    address: str
    status: Status = Status.PROVISIONING
    public_address: str = ""
    has_public_address: bool = False
    labels: Labels = ()
    metadata: tuple[tuple[str, str], ...] = ()
    tags: tuple[str, ...] = ()
    accelerators: tuple[Accelerators, ...] = ()
    disks: tuple[AttachedDisk, ...] = ()
    service_account: str = ""
    scopes: tuple[str, ...] = ()
    token: str = ""
    """The access token that the metadata server gives to the machine."""
    is_spot: bool = False
    is_legacy_preemptible: bool = False
    restarts: bool = True
    on_maintenance: str = "MIGRATE"
    end_action: Action | None = None
    max_seconds: int | None = None
    description: str = ""
    is_protected: bool = False
    hourly_micros: int = 0
    address_hourly_micros: int = 0
    runs: tuple[tuple[float, float | None], ...] = ()
    deleted_at: float | None = None
    is_deleting: bool = False
    is_preempted: bool = False
    is_broken: bool = False
    """Whether the machine is dead. Compute Engine does not notice this."""

    @property
    def key(self) -> str:
        """Returns the zone and the name, which no other existing instance has."""
        return f"{self.zone}/{self.name}"

    @property
    def exists(self) -> bool:
        """Returns whether the instance was not deleted yet."""
        return self.deleted_at is None

    @property
    def lives(self) -> bool:
        """Returns whether the instance exists, and neither stops nor is stopped."""
        return self.exists and self.status in (Status.PROVISIONING, Status.STAGING, Status.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A disk. `user` is the name of the instance that it is attached to, or empty."""

    id: str
    name: str
    zone: str
    size_gb: int
    kind: str
    image: str
    created_at: float
    visible_from: float
    user: str = ""
    labels: Labels = ()
    deleted_at: float | None = None

    @property
    def key(self) -> str:
        """Returns the zone and the name, which no other existing disk has."""
        return f"{self.zone}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnImage:
    """An image that the project has made of a disk. It is PENDING until `ready_at`."""

    id: str
    name: str
    size_gb: int
    architecture: str
    created_at: float
    ready_at: float
    visible_from: float
    source_disk: str
    source_disk_id: str
    family: str = ""
    description: str = ""
    labels: Labels = ()
    is_failing: bool = False
    deleted_at: float | None = None

    @property
    def archive_bytes(self) -> int:
        """Returns the size for which the image is charged. Here, it is a tenth of the size of the disk."""
        return self.size_gb * 2**30 // 10

    def status(self, at: float) -> str:
        """Returns the status of the image at a time."""
        if at < self.ready_at:
            return "PENDING"
        return "FAILED" if self.is_failing else "READY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A static external address, which is charged until it is released."""

    id: str
    name: str
    region: str
    address: str
    created_at: float
    labels: Labels = ()
    deleted_at: float | None = None

    @property
    def key(self) -> str:
        """Returns the region and the name, which no other existing address has."""
        return f"{self.region}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Firewall:
    """A firewall rule that allows incoming traffic. `allowed` has protocols with their ports; no ports: all
    ports. The rule is for instances with one of `target_tags`, or for all instances if it has none."""

    id: str
    name: str
    created_at: float
    visible_from: float
    allowed: tuple[tuple[str, tuple[str, ...]], ...]
    ranges: tuple[str, ...]
    target_tags: tuple[str, ...] = ()
    description: str = ""
    priority: int = 1000
    is_disabled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A change that takes time. `scope` is `zones/ZONE`, `regions/REGION` or `global`. `ends_at` is its
    end, and `error` the code, the message and the HTTP status of a failure."""

    id: str
    name: str
    scope: str
    kind: str
    target: str
    target_id: str
    user: str
    request_id: str
    created_at: float
    ends_at: float
    error: tuple[str, str, int] | None = None
    details: tuple[dict[str, Any], ...] = ()

    def is_done(self, now: float) -> bool:
        """Returns whether the operation has ended."""
        return now >= self.ends_at
