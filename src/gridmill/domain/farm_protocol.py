"""Messages between a tenant (the Gridmill that sends jobs) and a farm (a light Gridmill that runs them)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

from gridmill.domain.amounts import pick
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import PodOrder
from gridmill.domain.site import GpuSlot, Node, NodeUtilization
from gridmill.errors import InputError

FARM_PROTOCOL = 2
_Minor: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A request to join a farm, sent once with the one-time secret of the join line. `request` is a
    certificate signing request (PEM). The farm signs the certificate, and later identifies the tenant by it.
    """

    tenant: str
    secret: str
    request: str
    version: str
    protocol: int = FARM_PROTOCOL


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResponse:
    """The answer to a JoinRequest. `certificate` (PEM) and `token` are the tenant's; the token is sent only
    in this answer."""

    certificate: str
    token: str
    version: str
    protocol: int = FARM_PROTOCOL


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedDeployment:
    """A waiting deployment of the tenant. `position` counts the deployments of all tenants before it;
    `seconds` is the expected remaining wait, if the farm can estimate it."""

    deployment: str
    position: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FutureCapacity:
    """An expectation of the farm: in `seconds` it has room for one more deployment with that many GPUs, after
    all waiting deployments."""

    seconds: float
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePosition:
    """The place that another deployment would have in the queue of a farm. `position` counts the deployments
    before it. `seconds` is its expected wait, if the farm can estimate it."""

    position: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FarmStatus:
    """A farm as one tenant sees it. `root` is the storage root at the farm for the tenant's jobs. `waiting`
    is the number of deployments of all tenants that wait for room, and `queue` has those of this tenant.
    `staged_bytes` is the size of the files that were transferred to the farm, at most `quota_bytes`.
    `disk_free_bytes` is the free space of the farm's disk. The tenant's files use `disk_use_bytes` of the
    disk, at most `disk_limit_bytes`. `future_capacity` is when more room is expected, in order of time, as
    far as the farm can estimate it."""

    version: str
    protocol: int
    root: str
    nodes: tuple[Node, ...]
    utilization: Mapping[str, NodeUtilization] = field(default_factory=dict)
    waiting: int = 0
    queue: tuple[QueuedDeployment, ...] = ()
    future_capacity: tuple[FutureCapacity, ...] = ()
    staged_bytes: int = 0
    quota_bytes: int = 0
    disk_free_bytes: int = 0
    disk_use_bytes: int = 0
    disk_limit_bytes: int = 0
    warnings: tuple[str, ...] = ()


def line_at(look: FarmStatus, gpus: int) -> QueuePosition | None:
    """The place in the queue that another deployment with that many GPUs would have; None if it gets room at
    once."""
    seats = [one.seats for one in look.utilization.values() if one.seats]
    has_room = any(_holds(some, gpus) for some in seats) or not seats
    if has_room and not look.waiting:
        return None
    seconds = next((one.seconds for one in look.future_capacity if one.gpus >= gpus), None)
    return QueuePosition(position=look.waiting, seconds=seconds)


def _holds(seats: Sequence[GpuSlot], gpus: int) -> bool:
    """Whether that many GPUs of a node are free, or that many shares of one GPU."""
    shares = max(Counter(seat.gpu for seat in seats).values())
    return pick((number for number, seat in enumerate(seats) if not seat.taken), gpus, shares) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployRequest:
    """A request to start all pods of one deployment, or none of them. The farm ends the pods by itself when
    the tenant sends nothing for `lease_seconds`. The farm sets `home` and `link` of the orders."""

    orders: tuple[PodOrder, ...]
    lease_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNames:
    """The names of the pods to query or to end."""

    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file: its path in the tree (with `/`), and the BLAKE3 hashes (hex) of the chunks of its content, in
    order."""

    path: str
    size_bytes: int
    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of a folder or of a single file. `chunk_bytes` is the size of every chunk except the last
    chunk of a file."""

    files: tuple[FileEntry, ...]
    chunk_bytes: int

    @property
    def size_bytes(self) -> int:
        """The total size of all files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceTree:
    """A request to make a tree of files from stored chunks, at `uri` below the tenant's root, for an attempt.
    If chunks are missing, the answer lists them and nothing is made. Files that already exist with the same
    content are used. `writable` means that the files are separate copies, not links to shared files."""

    uri: str
    manifest: Manifest
    attempt_id: str
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingChunks:
    """The hashes of missing chunks; empty if the request was completed."""

    chunks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkHashes:
    """The hashes of requested chunks."""

    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSlice:
    """The place of a chunk in an object of a bucket: `size_bytes` bytes, starting at byte `begin`."""

    chunk: str
    begin: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketObject:
    """An object of a bucket that both sides can access, and the chunks in it. `url` is signed: for a short
    time it allows either to read or to write this object alone. It is a secret, and is never stored."""

    url: str
    slices: tuple[ChunkSlice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketObjects:
    """The objects to download from a bucket."""

    parcels: tuple[BucketObject, ...]


def check_versions(*, tenant: str, farm: str, protocol: int = FARM_PROTOCOL) -> None:
    """Raise InputError unless the farm has the tenant's minor version or the minor version before."""
    ours, theirs = _minor(farm), _minor(tenant)
    fits = ours and theirs and theirs[0] == ours[0] and theirs[1] in (ours[1], ours[1] + 1)
    if protocol != FARM_PROTOCOL or not fits:
        raise InputError(
            f"Gridmill {tenant[:40]} at home cannot use a farm of version {farm[:40]}",
            hint=_what_to_do(ours, theirs, farm[:40], tenant[:40]),
            place="version",
        )


def _what_to_do(ours: _Minor | None, theirs: _Minor | None, farm: str, tenant: str) -> str:
    """The hint for the user. `ours` is the farm's version, and `theirs` is the version of Gridmill at
    home."""
    if ours and theirs and ours < theirs:
        return f"Install {tenant} at the farm: it may be one minor version older than home, not more."
    if ours and theirs and ours > theirs:
        return f"Install {farm} at home: homes are upgraded first, then farms."
    return "Install the same version on both sides."


def _minor(version: str) -> _Minor | None:
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    plain = all(part.isascii() and part.isdigit() and len(part) < 6 for part in (major, minor))
    return (int(major), int(minor)) if plain else None
