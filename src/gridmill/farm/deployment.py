"""A deployment of a tenant on this farm, from its request to its removal, and what its attempts wrote.

It decides what ends by itself (pure over `now`): deployments of tenants that send nothing any more, and what
they left. `Work` records what was placed here for an attempt and where it writes, until its home confirms
that it has everything.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from gridmill.domain.farm_protocol import Deploy
from gridmill.domain.frozen import dataclass
from gridmill.errors import ConflictError, InputError

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,199}")


class LodgingState(StrEnum):
    """WAITING for room; STARTING: has it, is being brought up; UP; GONE: its pods are, what they left is
    here; ENDED: forgotten but for its id, which is not brought up again."""

    WAITING = "waiting"
    STARTING = "starting"
    UP = "up"
    GONE = "gone"
    ENDED = "ended"


HAS_ROOM = frozenset({LodgingState.STARTING, LodgingState.UP})


@dataclass(frozen=True, slots=True, kw_only=True)
class Berth:
    """Where a pod is: its node, and the numbers of the GPUs there that are its alone."""

    pod_id: str
    node: str
    gpus: tuple[int, ...] = ()
    shares: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lodging:
    """`number` counts all lodgings of the farm, in the order in which they were asked for. `since` is when it
    came into its state (Unix time); `message` says why it is gone. `began` is when it got room (0: never),
    `stayed_seconds` how long it had it, once it has it no more."""

    id: str
    source: str
    number: int
    deploy: Deploy
    since: float
    state: LodgingState = LodgingState.WAITING
    berths: tuple[Berth, ...] = ()
    message: str = ""
    began: float = 0.0
    stayed_seconds: float | None = None

    @property
    def pods(self) -> tuple[str, ...]:
        """Their ids."""
        return tuple(order.pod_id for order in self.deploy.orders)

    def to(self, state: LodgingState, now: float, message: str = "") -> "Lodging":
        """In that state from now on; without room nothing is taken."""
        known = replace(self, state=state, since=now, message=message)
        if state in HAS_ROOM:
            return replace(known, began=now if self.state not in HAS_ROOM else self.began)
        left = self.state in HAS_ROOM and self.began > 0.0
        stayed = max(0.0, now - self.began) if left else self.stayed_seconds
        return replace(known, berths=(), stayed_seconds=stayed)

    def ended(self, now: float, message: str = "") -> "Lodging":
        """What is remembered of it: which pods it had, why what they left is lost, and nothing secret."""
        orders = tuple(replace(order, secret="") for order in self.deploy.orders)
        return replace(self.to(LodgingState.ENDED, now, message), deploy=replace(self.deploy, orders=orders))

    def without(self, pods: Collection[str]) -> "Lodging":
        """Of those that wait: with the other pods only."""
        orders = tuple(order for order in self.deploy.orders if order.pod_id not in pods)
        return replace(self, deploy=replace(self.deploy, orders=orders))


def check_id(name: str) -> str:
    """The id of a deployment, pod or attempt. Raises InputError for what could not be a folder's name."""
    if not _ID.fullmatch(name) or ".." in name:
        raise InputError(f"{name[:60]!r} is no id", place="id")
    return name


def check_deploy(lodging: Lodging, others: Iterable[Lodging]) -> None:
    """Raises InputError for ids that could not be folders, ConflictError for pods of another
    deployment of the same source."""
    if not lodging.deploy.orders:
        raise InputError("a deployment has at least one pod", place="orders")
    if not 0 < lodging.deploy.lease_seconds < float("inf"):
        raise InputError("a lease is a positive number of seconds", place="lease_seconds")
    for name in (lodging.id, *lodging.pods):
        check_id(name)
    if any(order.deployment_id != lodging.id for order in lodging.deploy.orders):
        raise InputError("the orders are of another deployment", place="orders")
    if len(set(lodging.pods)) < len(lodging.pods):
        raise InputError("two orders are of the same pod", place="orders")
    _check_amounts(lodging.deploy)
    known = {pod_id for other in others for pod_id in other.pods}
    for pod_id in lodging.pods:
        if pod_id in known:
            raise ConflictError(f"pod {pod_id} is of another deployment")


def _check_amounts(deploy: Deploy) -> None:
    for order in deploy.orders:
        amounts = order.capacity
        if not (0 <= amounts.cpus < float("inf")) or amounts.memory_bytes < 0 or amounts.gpus < 0:
            raise InputError("a pod's capacity is no less than nothing", place="orders.capacity")


SILENT_SECONDS = 20.0
"""A tenant without any request for this long is disconnected; connected ones send one every few seconds."""
REMEMBERED_SECONDS = 86400.0
"""How long an ended deployment is remembered, so that a late, repeated request for it is recognised and the
last messages of its pods are available."""


def expired(lodgings: Iterable[Lodging], heard: Mapping[str, float], now: float) -> tuple[Lodging, ...]:
    """Those whose source has not been heard of for their lease. `heard`: when each was heard of last; when
    the controller comes up all are, for until then they could not be."""
    live = (one for one in lodgings if one.state in HAS_ROOM or one.state == LodgingState.WAITING)
    return tuple(one for one in live if heard.get(one.source, now) + one.deploy.lease_seconds <= now)


def silent(heard: Mapping[str, float], now: float) -> tuple[str, ...]:
    """Sources that have said nothing for so long that they may be cut off. Their pods are to count their
    leases themselves from now on: who passes their words on may be gone before these end. Others may add to
    `heard` meanwhile."""
    return tuple(source for source, time in tuple(heard.items()) if time + SILENT_SECONDS <= now)


def spoiled(lodgings: Iterable[Lodging], retain_seconds: float, now: float) -> tuple[Lodging, ...]:
    """Those whose results nobody has taken home in time."""
    gone = (one for one in lodgings if one.state == LodgingState.GONE)
    return tuple(one for one in gone if one.since + retain_seconds <= now)


def forgotten(lodgings: Iterable[Lodging], now: float) -> tuple[Lodging, ...]:
    """Those whose id need not be remembered any longer."""
    ended = (one for one in lodgings if one.state == LodgingState.ENDED)
    return tuple(one for one in ended if one.since + REMEMBERED_SECONDS <= now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """`uri` and `checkpoints` are the folders below the source's root that the attempt writes (empty before
    it starts), `pod_id` where it runs. `time`: when it was heard of last (Unix)."""

    attempt_id: str
    source: str
    time: float
    pod_id: str = ""
    uri: str = ""
    checkpoints: str = ""


def left_by(works: Iterable[Work], lodging: Lodging) -> tuple[Work, ...]:
    """What its pods ran, and nobody has said that it is home."""
    pods = frozenset(lodging.pods)
    return tuple(one for one in works if one.source == lodging.source and one.pod_id in pods)


def left_behind(
    works: Iterable[Work], lodgings: Iterable[Lodging], retain_seconds: float, now: float
) -> tuple[Work, ...]:
    """Those whose pod does not live any more, and that nobody has asked for in all the time that results are
    kept. What is carried here before it starts may take longer than that: it stays while its source has a
    deployment here."""
    since = {(one.source, pod): one.since for one in lodgings for pod in one.pods}
    live = {(one.source, pod) for one in lodgings if one.state in HAS_ROOM for pod in one.pods}
    at_work = {one.source for one in lodgings if one.state in HAS_ROOM or one.state == LodgingState.WAITING}
    return tuple(
        work
        for work in works
        if (work.pod_id or work.source not in at_work)
        and (work.source, work.pod_id) not in live
        and max(work.time, since.get((work.source, work.pod_id), 0.0)) + retain_seconds <= now
    )
