"""This module has the messages between a tenant (the Gridmill that sends jobs) and a farm (a light Gridmill
that runs them)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

from gridmill.domain.amounts import pick
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import PodEvent, PodOrder
from gridmill.domain.site import GpuSlot, Node, NodeUtilization
from gridmill.errors import InputError

FARM_PROTOCOL = 2
SERVICE_SOCKET = "service.socket"
"""The name of the socket of a service at a farm, in the output folder of the attempt that runs the
service."""
_Minor: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A request to join a farm, which is sent once with the one-time secret of the join line. `request` is a
    certificate signing request of the tenant (PEM). The farm signs the certificate, and later identifies the
    tenant by this certificate.
    """

    tenant: str
    secret: str
    request: str
    version: str
    protocol: int = FARM_PROTOCOL


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResponse:
    """The answer to a JoinRequest. `certificate` (PEM) and `token` belong to the tenant; only this answer
    contains the token."""

    certificate: str
    token: str
    version: str
    protocol: int = FARM_PROTOCOL


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedDeployment:
    """A deployment of the tenant that waits for machines of the farm. `position` is the number of
    deployments of all tenants before this deployment. `seconds` is the expected remaining wait of the
    deployment, if the farm can estimate it."""

    deployment: str
    position: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FutureCapacity:
    """The farm expects that one more deployment with that many GPUs can start after `seconds` seconds,
    behind all deployments that wait now."""

    seconds: float
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePosition:
    """The position that an additional deployment would have in the queue of a farm. `position` is the number
    of deployments before the additional deployment in the queue. `seconds` is the expected wait of the
    additional deployment, if the farm can estimate it."""

    position: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FarmStatus:
    """The status of a farm, as the farm reports it to one tenant. `root` is the storage root at the farm for
    the tenant's jobs. `waiting` is the number of deployments of all tenants that wait for machines, and
    `queue` has the waiting deployments of this tenant. `staged_bytes` is the size of the files that were
    transferred to the farm, which is at most `quota_bytes`. `disk_free_bytes` is the free space of the disk
    of the farm. The files of the tenant use `disk_use_bytes` of the disk, which is at most
    `disk_limit_bytes`. `future_capacity` has the times at which the farm expects more free machines,
    earliest first. Times that the farm cannot estimate are left out. `serves` is whether services can run at
    the farm, and `logs` is whether the home can take their request logs."""

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
    serves: bool = False
    logs: bool = False


def line_at(farm_status: FarmStatus, gpus: int) -> QueuePosition | None:
    """Return the queue position of another deployment with that many GPUs. The result is None if the
    deployment can start immediately."""
    seats = [one.seats for one in farm_status.utilization.values() if one.seats]
    has_room = any(_holds(some, gpus) for some in seats) or not seats
    if has_room and not farm_status.waiting:
        return None
    seconds = next((one.seconds for one in farm_status.future_capacity if one.gpus >= gpus), None)
    return QueuePosition(position=farm_status.waiting, seconds=seconds)


def _holds(seats: Sequence[GpuSlot], gpus: int) -> bool:
    """Return whether that many whole GPUs are free on one node, or, for less than one GPU, that many shares
    of one GPU."""
    shares = max(Counter(seat.gpu for seat in seats).values())
    return pick((number for number, seat in enumerate(seats) if not seat.taken), gpus, shares) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployRequest:
    """A request to start all pods of one deployment. If one of the pods cannot start, none of them starts.
    If the tenant sends nothing for `lease_seconds`, the farm ends the pods. The farm sets the fields `home`
    and `link` of the orders."""

    orders: tuple[PodOrder, ...]
    lease_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNames:
    """The names of the pods that a tenant queries or ends."""

    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file of a tree: its path in the tree (with `/`), and the BLAKE3 hashes (hex) of the chunks of its
    content, in order."""

    path: str
    size_bytes: int
    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of a folder or of a single file, as a list of files. `chunk_bytes` is the size of every
    chunk, except the last chunk of each file."""

    files: tuple[FileEntry, ...]
    chunk_bytes: int

    @property
    def size_bytes(self) -> int:
        """The total size of all files in the manifest."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceTree:
    """A request to write a tree of files from stored chunks, at `uri` below the tenant's root, for an
    attempt. If chunks are missing, the answer lists the missing chunks and the farm writes no files. If
    files already exist with the same content, the farm uses them again. `writable` means that the files are
    separate copies, and not links to shared files."""

    uri: str
    manifest: Manifest
    attempt_id: str
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyTree:
    """A request to keep the chunks of a tree for an attempt that has not started yet, for `seconds`. The
    answer lists the missing chunks. The farm writes no files. The chunks give way to the data of attempts
    that have started."""

    uri: str
    manifest: Manifest
    attempt_id: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingChunks:
    """The hashes of the chunks that the farm does not have; empty if the farm has completed the request."""

    chunks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFileNames:
    """The names of files of a request log that the home has taken, so that the farm deletes them."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkHashes:
    """The hashes of the chunks that the sender requests."""

    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSlice:
    """The position of a chunk in an object of a bucket. The chunk has `size_bytes` bytes, starting at byte
    `begin` of the object."""

    chunk: str
    begin: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketObject:
    """An object of a bucket that both sides can access, and the chunks that the object contains. `url` is a
    signed URL: for a short time it allows its owner either to read or to write this one object. The signed
    URL is a secret, and Gridmill never stores it."""

    url: str
    slices: tuple[ChunkSlice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketObjects:
    """The objects that the receiver must download from a bucket."""

    parcels: tuple[BucketObject, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultExport:
    """The permission to export the result of an attempt. If the home of the attempt sends nothing for
    `after_seconds`, the farm uploads the events of the ended attempt and its output folder `uri` (empty:
    without a folder). If the machine is about to end, the farm uploads the folder `checkpoint_uri` of a
    running attempt (empty: there are no checkpoints). `urls` are signed URLs for the result: each of them
    allows its owner to write one object. The last one is for the index, which is written last.
    `checkpoint_urls` has the same for checkpoints, several times, so that a complete checkpoint is never
    overwritten by a part of the next one. The URLs are secrets, and Gridmill never stores them."""

    pod_id: str
    uri: str
    urls: tuple[str, ...] = field(repr=False)
    after_seconds: float = 120.0
    checkpoint_uri: str = ""
    checkpoint_urls: tuple[tuple[str, ...], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedResult:
    """The index of an exported result: the events of the attempt, the manifest of its output folder (None if
    there is no folder), and the chunks in each object, in the order of the objects."""

    attempt_id: str
    events: tuple[PodEvent, ...]
    manifest: Manifest | None
    parts: tuple[tuple[ChunkSlice, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedCheckpoint:
    """The index of an exported checkpoint: the manifest of its folder, and the chunks in each object.
    `number` is larger than the numbers of all earlier checkpoints of the attempt."""

    attempt_id: str
    number: int
    manifest: Manifest
    parts: tuple[tuple[ChunkSlice, ...], ...]


def check_versions(*, tenant: str, farm: str, protocol: int = FARM_PROTOCOL) -> None:
    """Raise InputError if the farm has neither the minor version of the tenant nor the minor version before
    it."""
    ours, theirs = _minor(farm), _minor(tenant)
    fits = ours and theirs and theirs[0] == ours[0] and theirs[1] in (ours[1], ours[1] + 1)
    if protocol != FARM_PROTOCOL or not fits:
        raise InputError(
            f"Gridmill {tenant[:40]} at home cannot use a farm of version {farm[:40]}",
            hint=_what_to_do(ours, theirs, farm[:40], tenant[:40]),
            place="version",
        )


def _what_to_do(ours: _Minor | None, theirs: _Minor | None, farm: str, tenant: str) -> str:
    """Return the hint for the user about versions that do not match. `ours` is the version of Gridmill at
    the farm, and `theirs` is the version of Gridmill at home."""
    if ours and theirs and ours < theirs:
        return f"Install {tenant} at the farm: it may be one minor version older than home, not more."
    if ours and theirs and ours > theirs:
        return f"Install {farm} at home: homes are upgraded first, then farms."
    return "Install the same version of Gridmill at home and at the farm."


def _minor(version: str) -> _Minor | None:
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    plain = all(part.isascii() and part.isdigit() and len(part) < 6 for part in (major, minor))
    return (int(major), int(minor)) if plain else None
