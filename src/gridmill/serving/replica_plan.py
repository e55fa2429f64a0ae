"""Decides which replicas of a service start and end. All functions of this module are pure."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from gridmill.domain.frozen import dataclass
from gridmill.domain.serving import ReplicaState, ServiceOrder

END_SECONDS = 5.0
"""The number of seconds after the time limit of its drain until a replica is killed."""
FAR_ABOVE = 1.25
"""A replica with more than this many times its memory limit is killed. Below this, its successor starts
first."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningReplica:
    """A process of a replica as the parent process observes it. `order` is the order with which the process
    was started. `since` is the time at which `state` began. `silent_seconds` is the time since its last
    sign of life, and `busy_seconds` the time since the start of its current batch."""

    number: int
    order: ServiceOrder
    state: ReplicaState
    since: float
    silent_seconds: float = 0.0
    busy_seconds: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start a replica with this number."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Let a replica answer its running requests and end. With a `reason`, the replica has failed."""

    number: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """End a replica at once, because it does not work."""

    number: int
    reason: str


Action = Start | Drain | Kill
HasViews = Callable[[ServiceOrder], bool]


def same_replica(one: ServiceOrder, other: ServiceOrder) -> bool:
    """Return whether replicas of both orders are equal, so that none must be replaced. A router reads a
    changed upstream itself."""
    return _of_replica(one) == _of_replica(other)


def _of_replica(order: ServiceOrder) -> ServiceOrder:
    """Return the order without what can change while a replica runs. Replicas read the API keys again when
    their file changes, but cannot turn them on or off. Another limit of the GPU memory is for replicas that
    start: those that run are within the limit by their own measurement."""
    return replace(
        order,
        generation=0,
        replicas=0,
        scaling=None,
        upstream=None,
        further_upstreams=(),
        most_open=0,
        counts_drift=False,
        gpu_memory_bytes=None,
        api_keys=None if order.api_keys is None else (),
    )


def pause_seconds(failures: int) -> float:
    """Return the time to wait before the next start after this many failures in succession. The first
    restart is immediate."""
    return (
        0.0 if failures <= 1 else min(_FIRST_PAUSE_SECONDS * 2 ** min(failures, 20), _LONGEST_PAUSE_SECONDS)
    )


def decide_order(target: ServiceOrder, working: ServiceOrder | None, has_views: HasViews) -> ServiceOrder:
    """Return the order that the replicas get now. While a view of the order `target` is not complete, this is
    the last order that worked, so that a replica that ends meanwhile is replaced."""
    if working is None or has_views(target) or not has_views(working):
        return target
    return working


def decide_replicas(
    order: ServiceOrder, running: Sequence[RunningReplica], *, now: float, start_at: float
) -> tuple[Action, ...]:
    """Return the actions that bring the replicas closer to the order.

    A replica that does not work is killed. If no replica is ready, all missing replicas start together.
    Otherwise they start one after the other, and an outdated replica is drained only when enough others are
    ready. No replica starts before the time `start_at`.
    """
    kills = [Kill(number=one.number, reason=why) for one in running if (why := broken(order, one, now))]
    killed = {one.number for one in kills}
    left = [one for one in running if one.number not in killed]
    # a killed process exists until it is reaped, so its number is not free yet
    taken = {one.number for one in running}
    starts = _starts(order, left, taken) if now >= start_at else ()
    return (*kills, *starts, *_drains(order, left))


def broken(order: ServiceOrder, one: RunningReplica, now: float) -> str:
    """Return why a replica does not work, or an empty text if it works."""
    age, own = now - one.since, one.order
    if one.state == ReplicaState.STARTING and age > own.start_seconds:
        return f"the replica was not ready after {own.start_seconds:g} s"
    if one.state == ReplicaState.DRAINING and age > own.drain_seconds + END_SECONDS:
        return f"the replica did not end within {own.drain_seconds:g} s"
    if one.state == ReplicaState.READY and one.silent_seconds > own.hang_seconds:
        return f"the replica gave no sign of life for {one.silent_seconds:.0f} s"
    if one.state == ReplicaState.READY and one.busy_seconds > own.hang_seconds:
        return f"the model has computed one batch for {one.busy_seconds:.0f} s"
    if own.memory_bytes is not None and one.memory_bytes > FAR_ABOVE * own.memory_bytes:
        return _memory_reason(one)
    return ""


def _memory_reason(one: RunningReplica) -> str:
    return f"the replica used {one.memory_bytes} bytes of memory; its limit is {one.order.memory_bytes}"


def is_above_memory(one: RunningReplica) -> bool:
    """Return whether a replica that is ready has more memory than its limit. The memory of a replica that
    starts is not judged before it is ready, so that a limit that is too low does not stop the service."""
    limit = one.order.memory_bytes
    return one.state == ReplicaState.READY and limit is not None and one.memory_bytes > limit


def is_current(order: ServiceOrder, one: RunningReplica) -> bool:
    """Return whether a replica can stay: it has the settings of the order, and is within its memory limit."""
    wanted = one.state != ReplicaState.DRAINING and same_replica(order, one.order)
    return wanted and not is_above_memory(one)


def _starts(
    order: ServiceOrder, running: Sequence[RunningReplica], taken: Collection[int]
) -> tuple[Start, ...]:
    current = [one for one in running if is_current(order, one)]
    missing = order.replicas - len(current)
    if any(one.state == ReplicaState.READY for one in running):
        starting = sum(one.state == ReplicaState.STARTING for one in running)
        missing = min(missing, 1 - starting)
    if order.gpu_memory_bytes is not None:
        # its part of the GPU has room for one more replica, and a replica that drains still has its memory
        most = order.replicas if order.scaling is None else max(order.replicas, order.scaling.most)
        missing = min(missing, most + 1 - len(taken))
    free = (number for number in range(len(taken) + max(0, missing)) if number not in taken)
    return tuple(Start(number=number) for number, _ in zip(free, range(max(0, missing)), strict=False))


def _drains(order: ServiceOrder, running: Sequence[RunningReplica]) -> tuple[Drain, ...]:
    """Return the drains of replicas that are no longer needed: first those of an outdated order, then those
    above their memory limit, then those with the highest numbers. Outdated replicas that still start are
    drained at once."""
    ready = [one for one in running if one.state == ReplicaState.READY]
    useless = [one for one in running if one.state == ReplicaState.STARTING and not is_current(order, one)]
    ready.sort(key=lambda one: (same_replica(order, one.order), is_current(order, one), -one.number))
    extra = ready[: max(0, len(ready) - order.replicas)]
    return tuple(
        Drain(number=one.number, reason=_memory_reason(one) if is_above_memory(one) else "")
        for one in (*useless, *extra)
    )
