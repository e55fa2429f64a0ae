"""This module decides how the services of a resource share a GPU: the part of the GPU that a service gets by
the measured GPU memory of its version, and whether this part is free.

A GPU has `gpu_shares` equal shares (a setting of the site). A service on a resource with at most one
GPU for each worker gets a number of shares, and the memory that belongs to these shares.
"""

from collections.abc import Iterable, Mapping, Sequence

from gridmill.domain.amounts import show_bytes, show_count
from gridmill.domain.frozen import dataclass
from gridmill.errors import CapacityError


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMeasurement:
    """The GPU memory of the code of a version. `replica_bytes` is the memory of one replica that has computed
    a batch of `max_batch` rows. `gpu_bytes` is the memory of the GPU on which it was measured."""

    replica_bytes: int
    gpu_bytes: int
    max_batch: int

    @property
    def limit_bytes(self) -> int:
        """The GPU memory that one replica may use."""
        return gpu_limit(self.replica_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuClaim:
    """The `shares` of a GPU that a service has, of the `gpu_shares` shares of the whole GPU. `gpu` is the
    number of the GPU on its machine, or None while the service has not started."""

    shares: int
    gpu_shares: int
    gpu: int | None = None

    def memory_bytes(self, gpu_bytes: int) -> int:
        """Return the memory that belongs to the shares of a GPU of this size."""
        return gpu_bytes * self.shares // self.gpu_shares


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNeed:
    """What a service needs of a GPU: each of `replicas` replicas loads the `versions` that predict with their
    own code, with batches of `max_batch` rows, and each of these versions may use the same GPU memory.
    `measured` is the largest measurement of the versions; None if one of them was not measured with a batch
    of this size. Then `at_least` is the largest of the measurements with smaller batches, if there is
    one."""

    versions: tuple[str, ...]
    replicas: int
    max_batch: int
    measured: GpuMeasurement | None = None
    at_least: GpuMeasurement | None = None

    @property
    def known(self) -> GpuMeasurement | None:
        """The measurement below which the need is not; None if nothing was measured."""
        return self.measured or self.at_least

    def limit(self, claim: GpuClaim, gpu_bytes: int) -> int:
        """Return the GPU memory in bytes that all versions of one replica may use together: by the
        measurement, but together at most the memory of the shares. Without a measurement, it is an equal part
        of the shares, with one more replica for an update."""
        if not self.versions:
            return 0
        whole = claim.memory_bytes(gpu_bytes)
        if self.measured is None:
            return whole // (self.replicas + 1)
        return min(len(self.versions) * self.measured.limit_bytes, whole // self.replicas)

    def version_limit(self, claim: GpuClaim, gpu_bytes: int) -> int:
        """Return the GPU memory in bytes that each version of one replica may use."""
        return self.limit(claim, gpu_bytes) // max(1, len(self.versions))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldShares:
    """The shares of another service, which runs in the pod `pod_id` and on the GPU `gpu`. They are None if
    the service has not started. `on_resource` is true for a service on the same resource."""

    service: str
    shares: int
    pod_id: str | None = None
    gpu: int | None = None
    on_resource: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRoom:
    """The shares that services leave free. `gpu_shares` is the number of shares of a whole GPU. A worker of
    the resource `resource` has `worker_shares` shares. `workers` and `gpus` are the free shares of each
    worker of the resource and of each GPU of the machine. `held` are the shares of the services."""

    resource: str
    gpu_shares: int
    worker_shares: int
    workers: tuple[int, ...]
    gpus: tuple[int, ...]
    held: tuple[HeldShares, ...] = ()

    @property
    def free(self) -> int:
        """The largest number of shares that a service can get now. They all belong to one GPU."""
        return min(max(self.workers, default=0), max(self.gpus, default=0))


def gpu_limit(measured_bytes: int) -> int:
    """Return the GPU memory that a replica may use: a quarter more than was measured."""
    return measured_bytes * 5 // 4


def gpu_room(
    resource: str, gpu_shares: int, worker_shares: int, *, workers: int, gpus: int, held: Sequence[HeldShares]
) -> GpuRoom:
    """Return the free shares of a resource with this number of workers, on a machine with this number of
    GPUs. A service that has not started counts on the worker and the GPU with the fewest free shares that
    are enough for it, because GPUs are assigned by this rule."""
    pods = tuple(dict.fromkeys(one.pod_id for one in held if one.on_resource and one.pod_id))
    free_workers = [worker_shares] * max(workers, len(pods))
    free_gpus = [gpu_shares] * gpus
    for one in sorted(held, key=lambda one: one.gpu is None):
        if one.on_resource:
            _take(free_workers, one.shares, pods.index(one.pod_id) if one.pod_id else None)
        _take(free_gpus, one.shares, one.gpu)
    return GpuRoom(
        resource=resource,
        gpu_shares=gpu_shares,
        worker_shares=worker_shares,
        workers=tuple(free_workers),
        gpus=tuple(free_gpus),
        held=tuple(held),
    )


def _take(free: list[int], shares: int, place: int | None) -> None:
    if place is None:
        roomy = [number for number, left in enumerate(free) if left >= shares]
        place = min(roomy, key=lambda number: free[number], default=None)
    if place is not None and place < len(free):
        free[place] = max(0, free[place] - shares)


def shares_needed(measured: GpuMeasurement, replicas: int, gpu_shares: int) -> int:
    """Return the smallest number of shares whose memory is enough for the replicas and for one more, which an
    update needs. Each replica may use its limit."""
    return _shares((replicas + 1) * measured.limit_bytes, measured.gpu_bytes, gpu_shares)


def _shares(memory_bytes: int, gpu_bytes: int, gpu_shares: int) -> int:
    return max(1, -(-memory_bytes * gpu_shares // gpu_bytes))


def claim_for(service: str, need: GpuNeed, room: GpuRoom) -> GpuClaim:
    """Return the shares with which a service starts that loads one version; without a name, those of a
    measurement.

    A version that was not measured gets all free shares, and keeps those that it needs after it was measured.
    A service that needs more than a worker has for one more replica, but not for its replicas, gets the whole
    worker. Raises CapacityError if its shares are not free.
    """
    known, version = need.known, need.versions[0]
    if known is not None:
        shares = shares_needed(known, need.replicas, room.gpu_shares)
        if shares > room.worker_shares:
            own = _shares(need.replicas * known.limit_bytes, known.gpu_bytes, room.gpu_shares)
            shares = room.worker_shares if own <= room.worker_shares else shares
        if shares > room.free:
            raise _no_room(service, need, known, room)
        return GpuClaim(shares=shares if need.measured else room.free, gpu_shares=room.gpu_shares)
    if room.free < 1:
        what = f"service {service!r}" if service else "a measurement"
        raise CapacityError(
            f"{what} cannot start on resource {room.resource!r}: {version} was not measured on a GPU, "
            f"and no share of a GPU is free. {_held(room, None)}",
            hint="A service keeps only what it needs as soon as its GPU memory was measured. Try again "
            f"then, or stop another service. {_RAISE}",
            place="resource",
        )
    return GpuClaim(shares=room.free, gpu_shares=room.gpu_shares)


def claim_after(claim: GpuClaim, measured: GpuMeasurement, replicas: int) -> GpuClaim:
    """Return the shares that a service keeps after its version was measured. They never become more, because
    other services may have the rest."""
    needed = min(claim.shares, shares_needed(measured, replicas, claim.gpu_shares))
    return GpuClaim(shares=needed, gpu_shares=claim.gpu_shares, gpu=claim.gpu)


def check_change(service: str, claim: GpuClaim, before: GpuNeed, after: GpuNeed) -> None:
    """Raise CapacityError if a running service has too little GPU memory for a change of what it needs. One
    replica more than wanted runs during the change, and old replicas run beside new ones."""
    gpu_bytes = min((one.known.gpu_bytes for one in (before, after) if one.known), default=0)
    if not gpu_bytes or not after.versions:
        return
    has, known = claim.memory_bytes(gpu_bytes), after.known
    if known is not None and (after.replicas + 1) * len(after.versions) * known.limit_bytes > has:
        raise _no_room_to_change(service, has, _need_text(after, known), before, after)
    together, text = _beside(claim, gpu_bytes, before, after, min(before.replicas, after.replicas))
    if together > has:
        raise _no_room_to_change(service, has, text, before, after)


def check_return(service: str, claim: GpuClaim, before: GpuNeed, after: GpuNeed) -> None:
    """Raise CapacityError if a service has too little GPU memory to return from a change that is not in
    effect. With the same number of replicas it always has enough, because the change was admitted."""
    gpu_bytes = min((one.known.gpu_bytes for one in (before, after) if one.known), default=0)
    if before.replicas == after.replicas or not gpu_bytes or not after.versions:
        return
    has = claim.memory_bytes(gpu_bytes)
    for staying in (1, min(before.replicas, after.replicas)):
        together, text = _beside(claim, gpu_bytes, before, after, staying)
        if together > has:
            raise _no_room_to_change(service, has, text, before, after)


def _beside(
    claim: GpuClaim, gpu_bytes: int, before: GpuNeed, after: GpuNeed, staying: int
) -> tuple[int, str]:
    """Return the GPU memory in bytes of this number of old replicas beside new ones, and this need as a
    text."""
    coming = after.replicas + 1 - staying
    old, new = before.limit(claim, gpu_bytes), after.limit(claim, gpu_bytes)
    text = (
        f"{show_count(staying, 'replica')} of {_named(before)} ({show_bytes(old)} each) beside "
        f"{show_count(coming, 'replica')} of {_named(after)} ({show_bytes(new)} each) need "
        f"{show_bytes(staying * old + coming * new)} during the change"
    )
    return staying * old + coming * new, text


def _no_room_to_change(service: str, has: int, need: str, before: GpuNeed, after: GpuNeed) -> CapacityError:
    version, is_canary = after.versions[-1], len(after.versions) > 1
    batch = f" --max-batch {after.max_batch}" if after.max_batch != before.max_batch else ""
    again = (
        f"Start it again: gridmill stop service {service}; gridmill start service {service} --model "
        f"{version} --replicas {after.replicas}{batch}"
    )
    alone = f"Try the version as a service of its own: gridmill start service NAME --model {version}"
    is_batch = batch and (before.versions, before.replicas) == (after.versions, after.replicas)
    return CapacityError(
        f"service {service!r} has {show_bytes(has)} of GPU memory, and {need}",
        hint=alone if is_canary else again,
        place="canary" if is_canary else "max_batch" if is_batch else "replicas",
    )


def _named(need: GpuNeed) -> str:
    return " with ".join(need.versions) or "a version without own code"


_RAISE = "If a GPU has room in theory, more --gpu-shares of `gridmill up` make its shares smaller."


def _no_room(service: str, need: GpuNeed, known: GpuMeasurement, room: GpuRoom) -> CapacityError:
    free = show_bytes(known.gpu_bytes * room.free // room.gpu_shares)
    return CapacityError(
        f"service {service!r} does not fit on a GPU of resource {room.resource!r}: "
        f"{_need_text(need, known)}, and {free} of {show_bytes(known.gpu_bytes)} are free. "
        f"{_held(room, known.gpu_bytes)}",
        hint=f"Start fewer replicas or a smaller --max-batch, stop another service, or use another resource. "
        f"GPU memory is given in steps of {show_bytes(known.gpu_bytes / room.gpu_shares)}. {_RAISE}",
        place="resource",
    )


def _need_text(need: GpuNeed, known: GpuMeasurement) -> str:
    several = len(need.versions)
    whole = show_bytes((need.replicas + 1) * several * known.limit_bytes)
    each = f"{show_bytes(several * known.limit_bytes)} each"
    each += f", {show_bytes(known.limit_bytes)} for each version" if several > 1 else ""
    least = "at least " if need.at_least is known else ""
    return (
        f"{show_count(need.replicas, 'replica')} of {_named(need)} and one more for updates need "
        f"{least}{whole} ({each}; {show_bytes(known.replica_bytes)} measured)"
    )


def _held(room: GpuRoom, gpu_bytes: int | None) -> str:
    def size(shares: int) -> str:
        part = f"{shares} of {room.gpu_shares} shares"
        return part if gpu_bytes is None else show_bytes(gpu_bytes * shares // room.gpu_shares)

    if not room.held:
        return "No other service has a part of a GPU."
    return f"In use: {', '.join(f'{one.service} {size(one.shares)}' for one in room.held)}."


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingService:
    """A service on a resource as `gpu_lines` shows it: its shares, and the measurement of its version if
    there is one."""

    name: str
    claim: GpuClaim
    measured: GpuMeasurement | None
    replicas: int


def measurement_for(
    measured: Iterable[Mapping[str, GpuMeasurement]], version: str, max_batch: int
) -> GpuMeasurement | None:
    """Return the measurement of a version with a batch of this size or, if there is none, with the next
    larger batch, because a larger batch needs no less memory. Among several services, it is the largest
    one."""
    known = [one[version] for one in measured if version in one and one[version].max_batch >= max_batch]
    return max(known, key=lambda one: (-one.max_batch, one.replica_bytes), default=None)


def least_for(
    measured: Iterable[Mapping[str, GpuMeasurement]], version: str, max_batch: int
) -> GpuMeasurement | None:
    """Return the largest measurement of a version with smaller batches, if there is one."""
    known = [one[version] for one in measured if version in one and one[version].max_batch < max_batch]
    return max(known, key=lambda one: one.replica_bytes, default=None)


def claim_text(one: SharingService) -> str:
    """Format the part of a GPU that a service has, with its reason."""
    claim, measured = one.claim, one.measured
    if measured is None:
        return f"{claim.shares} of {claim.gpu_shares} shares of a GPU; its GPU memory was not measured yet"
    has, whole = claim.memory_bytes(measured.gpu_bytes), measured.gpu_bytes
    need = (one.replicas + 1) * measured.limit_bytes
    short = "" if need <= has else f"; an update needs {show_bytes(need)}, so stop the service before it"
    return (
        f"{show_bytes(has)} of {show_bytes(whole)}: {show_count(one.replicas, 'replica')} and one more for "
        f"updates, {show_bytes(measured.limit_bytes)} each ({show_bytes(measured.replica_bytes)} measured)"
        f"{short}"
    )


def gpu_lines(services: Sequence[SharingService]) -> tuple[str, ...]:
    """Return a line for each service with the part of a GPU that it has, and a line with the number of GPUs
    that the services save together. Without sharing, each service has a GPU of its own."""
    if not services:
        return ()
    lines = [f"GPU memory of {one.name}: {claim_text(one)}" for one in services]
    started = {one.claim.gpu for one in services if one.claim.gpu is not None}
    gpus = len(started) + sum(one.claim.gpu is None for one in services)
    saved = len(services) - gpus
    if saved:
        together = f"{show_count(len(services), 'service')} share {show_count(gpus, 'GPU')}"
        lines.append(f"{together}: saves {show_count(saved, 'GPU')} compared with one GPU for each service")
    return tuple(lines)
