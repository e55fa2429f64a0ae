"""A lodging: a source's deployment on this farm, from when it is asked for to when it is forgotten."""

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from enum import StrEnum

from gridmill.errors import ConflictError, InputError
from gridmill.model.farm import Deploy
from gridmill.model.noun import dataclass

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
