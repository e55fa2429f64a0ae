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
    """Said once, with the one-time secret of the join line. `request` is a certificate signing request (PEM):
    the farm signs the certificate by which it knows this tenant from then on."""

    tenant: str
    secret: str
    request: str
    version: str
    protocol: int = FARM_PROTOCOL


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResponse:
    """`certificate` (PEM) and `token` are the tenant's; the token is told this once."""

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
    """In `seconds`, the farm is expected to have room for one more deployment with that many GPUs, behind
    all that wait."""

    seconds: float
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePosition:
    """The place that a further deployment would have in the queue of a farm: `position` counts the
    deployments before it; `seconds` is its expected wait, if the farm can estimate it."""

    position: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FarmStatus:
    """A farm as one tenant sees it. `root` is the storage root there for its jobs; `waiting` are deployments,
    of all tenants, that wait for room, `queue` those of the tenant among them; `staged_bytes` of
    `quota_bytes` are what was carried there, `disk_free_bytes` what its disk has left. Of it the tenant's
    files use `disk_use_bytes`, and may use `disk_limit_bytes`.
    `future_capacity`, in order, are when more room is expected, as far as it can be told."""

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
    """The line in which a further deployment with so many GPUs would stand; None: it gets room at once."""
    seats = [one.seats for one in look.utilization.values() if one.seats]
    has_room = any(_holds(some, gpus) for some in seats) or not seats
    if has_room and not look.waiting:
        return None
    seconds = next((one.seconds for one in look.future_capacity if one.gpus >= gpus), None)
    return QueuePosition(position=look.waiting, seconds=seconds)


def _holds(seats: Sequence[GpuSlot], gpus: int) -> bool:
    """Whether that many GPUs of a node are free, or that many shares of one."""
    shares = max(Counter(seat.gpu for seat in seats).values())
    return pick((number for number, seat in enumerate(seats) if not seat.taken), gpus, shares) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployRequest:
    """Pods of one deployment, all or none. The farm ends them by itself when nothing has been heard of the
    tenant for `lease_seconds`. `home` and `link` of the orders are the farm's to say."""

    orders: tuple[PodOrder, ...]
    lease_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNames:
    """Which pods are asked about, or ended."""

    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file: its path in the tree (with `/`), and its content's chunks, in order, by their BLAKE3 hashes
    (hex)."""

    path: str
    size_bytes: int
    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A folder's (or a single file's) content; `chunk_bytes` is the size of all chunks but a file's last."""

    files: tuple[FileEntry, ...]
    chunk_bytes: int

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceTree:
    """Make a tree of chunks that are there, at `uri` below the tenant's root, for an attempt; what it lacks
    is answered and nothing is made then. What is there already with the same content is used. `writable`: the
    files are copies of their own, not links to what others use too."""

    uri: str
    manifest: Manifest
    attempt_id: str
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingChunks:
    """Chunks, by hash, that are not there; none: it is done."""

    chunks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkHashes:
    """Chunks that are asked for."""

    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSlice:
    """Where a chunk lies in an object of a bucket: `size_bytes` from byte `begin` on."""

    chunk: str
    begin: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketObject:
    """An object of a bucket that both sides reach, and chunks in it. `url` is signed: it opens that object
    alone, either to read or to write it, for a short while. It is a secret, and never written down."""

    url: str
    slices: tuple[ChunkSlice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketObjects:
    """What is to be taken from a bucket."""

    parcels: tuple[BucketObject, ...]


def check_versions(*, tenant: str, farm: str, protocol: int = FARM_PROTOCOL) -> None:
    """Raises InputError unless the farm is of the tenant's minor version or the one before."""
    ours, theirs = _minor(farm), _minor(tenant)
    fits = ours and theirs and theirs[0] == ours[0] and theirs[1] in (ours[1], ours[1] + 1)
    if protocol != FARM_PROTOCOL or not fits:
        raise InputError(
            f"Gridmill {tenant[:40]} at home cannot use a farm of version {farm[:40]}",
            hint=_what_to_do(ours, theirs, farm[:40], tenant[:40]),
            place="version",
        )


def _what_to_do(ours: _Minor | None, theirs: _Minor | None, farm: str, tenant: str) -> str:
    """`ours` is the farm's, `theirs` that of the Gridmill at home."""
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
