"""A deployment of a tenant on this farm, from its request to its removal, and what its attempts wrote.

It decides what ends by itself (pure over `now`): deployments of tenants that send nothing any more, and what
they left. `AttemptRecord` records what was placed here for an attempt and where it writes, until its home
confirms that it has everything.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from gridmill.domain.farm_protocol import DeployRequest
from gridmill.domain.frozen import dataclass
from gridmill.errors import ConflictError, InputError

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,199}")


class TenantDeploymentState(StrEnum):
    """WAITING for room; STARTING: has it, is being brought up; UP; GONE: its pods are, what they left is
    here; ENDED: forgotten but for its id, which is not brought up again."""

    WAITING = "waiting"
    STARTING = "starting"
    UP = "up"
    GONE = "gone"
    ENDED = "ended"


HAS_ROOM = frozenset({TenantDeploymentState.STARTING, TenantDeploymentState.UP})


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlacement:
    """Where a pod is: its node, and the numbers of the GPUs there that are its alone."""

    pod_id: str
    node: str
    gpus: tuple[int, ...] = ()
    shares: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantDeployment:
    """A deployment of a tenant. `number` counts all deployments of the farm, in the order of their requests.
    `since` is when it came into its state (Unix time); `message` says why it is gone. `started` is when it
    got room (0: never), `stayed_seconds` how long it had it, once it has it no more."""

    id: str
    tenant: str
    number: int
    request: DeployRequest
    since: float
    state: TenantDeploymentState = TenantDeploymentState.WAITING
    placements: tuple[PodPlacement, ...] = ()
    message: str = ""
    started: float = 0.0
    stayed_seconds: float | None = None

    @property
    def pods(self) -> tuple[str, ...]:
        """Their ids."""
        return tuple(order.pod_id for order in self.request.orders)

    def to(self, state: TenantDeploymentState, now: float, message: str = "") -> "TenantDeployment":
        """In that state from now on; without room nothing is taken."""
        changed = replace(self, state=state, since=now, message=message)
        if state in HAS_ROOM:
            return replace(changed, started=now if self.state not in HAS_ROOM else self.started)
        left = self.state in HAS_ROOM and self.started > 0.0
        stayed = max(0.0, now - self.started) if left else self.stayed_seconds
        return replace(changed, placements=(), stayed_seconds=stayed)

    def ended(self, now: float, message: str = "") -> "TenantDeployment":
        """What is remembered of it: which pods it had, why what they left is lost, and nothing secret."""
        orders = tuple(replace(order, secret="") for order in self.request.orders)
        return replace(
            self.to(TenantDeploymentState.ENDED, now, message), request=replace(self.request, orders=orders)
        )

    def without(self, pods: Collection[str]) -> "TenantDeployment":
        """Of those that wait: with the other pods only."""
        orders = tuple(order for order in self.request.orders if order.pod_id not in pods)
        return replace(self, request=replace(self.request, orders=orders))


def check_id(name: str) -> str:
    """The id of a deployment, pod or attempt. Raises InputError for what could not be a folder's name."""
    if not _ID.fullmatch(name) or ".." in name:
        raise InputError(f"{name[:60]!r} is no id", place="id")
    return name


def check_deploy(lodging: TenantDeployment, others: Iterable[TenantDeployment]) -> None:
    """Raises InputError for ids that could not be folders, ConflictError for pods of another
    deployment of the same tenant."""
    if not lodging.request.orders:
        raise InputError("a deployment needs at least one pod", place="orders")
    if not 0 < lodging.request.lease_seconds < float("inf"):
        raise InputError(
            f"{lodging.request.lease_seconds:g} is not a positive number of seconds", place="lease_seconds"
        )
    for name in (lodging.id, *lodging.pods):
        check_id(name)
    if any(order.deployment_id != lodging.id for order in lodging.request.orders):
        raise InputError(f"an order belongs to another deployment than {lodging.id}", place="orders")
    if len(set(lodging.pods)) < len(lodging.pods):
        raise InputError("two orders are for the same pod", place="orders")
    _check_amounts(lodging.request)
    pod_ids = {pod_id for other in others for pod_id in other.pods}
    for pod_id in lodging.pods:
        if pod_id in pod_ids:
            raise ConflictError(f"pod {pod_id} belongs to another deployment")


def _check_amounts(deploy: DeployRequest) -> None:
    for order in deploy.orders:
        amounts = order.capacity
        if not (0 <= amounts.cpus < float("inf")) or amounts.memory_bytes < 0 or amounts.gpus < 0:
            raise InputError(
                f"pod {order.pod_id}: an amount of its capacity is negative or infinite",
                place="orders.capacity",
            )


SILENT_SECONDS = 20.0
"""A tenant without any request for this long is disconnected; connected ones send one every few seconds."""
REMEMBERED_SECONDS = 86400.0
"""How long an ended deployment is remembered, so that a late, repeated request for it is recognised and the
last messages of its pods are available."""


def expired(
    lodgings: Iterable[TenantDeployment], last_contacts: Mapping[str, float], now: float
) -> tuple[TenantDeployment, ...]:
    """The deployments whose tenant sent no request for the time of their lease. `last_contacts`: when each
    was heard of last; when the controller comes up all are, for until then they could not be."""
    live = (one for one in lodgings if one.state in HAS_ROOM or one.state == TenantDeploymentState.WAITING)
    return tuple(one for one in live if last_contacts.get(one.tenant, now) + one.request.lease_seconds <= now)


def silent(last_contacts: Mapping[str, float], now: float) -> tuple[str, ...]:
    """Tenants that have said nothing for so long that they may be cut off. Their pods are to count their
    leases themselves from now on: who passes their words on may be gone before these end. Others may add to
    `last_contacts` meanwhile."""
    return tuple(tenant for tenant, time in tuple(last_contacts.items()) if time + SILENT_SECONDS <= now)


def expired_results(
    lodgings: Iterable[TenantDeployment], retain_seconds: float, now: float
) -> tuple[TenantDeployment, ...]:
    """The deployments whose results were not downloaded in time."""
    gone = (one for one in lodgings if one.state == TenantDeploymentState.GONE)
    return tuple(one for one in gone if one.since + retain_seconds <= now)


def forgotten(lodgings: Iterable[TenantDeployment], now: float) -> tuple[TenantDeployment, ...]:
    """The ended deployments whose ids may be deleted."""
    ended = (one for one in lodgings if one.state == TenantDeploymentState.ENDED)
    return tuple(one for one in ended if one.since + REMEMBERED_SECONDS <= now)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """`uri` and `checkpoints` are the folders below the tenant's root that the attempt writes (empty before
    it starts), `pod_id` where it runs. `time`: when it was heard of last (Unix)."""

    attempt_id: str
    tenant: str
    time: float
    pod_id: str = ""
    uri: str = ""
    checkpoints: str = ""


def left_by(works: Iterable[AttemptRecord], lodging: TenantDeployment) -> tuple[AttemptRecord, ...]:
    """What its pods ran, and nobody has said that it is home."""
    pods = frozenset(lodging.pods)
    return tuple(work for work in works if work.tenant == lodging.tenant and work.pod_id in pods)


def left_behind(
    works: Iterable[AttemptRecord], lodgings: Iterable[TenantDeployment], retain_seconds: float, now: float
) -> tuple[AttemptRecord, ...]:
    """Those whose pod does not live any more, and that nobody has asked for in all the time that results are
    kept. What is carried here before it starts may take longer than that: it stays while its tenant has a
    deployment here."""
    since = {(deployment.tenant, pod): deployment.since for deployment in lodgings for pod in deployment.pods}
    live = {
        (deployment.tenant, pod)
        for deployment in lodgings
        if deployment.state in HAS_ROOM
        for pod in deployment.pods
    }
    at_work = {
        deployment.tenant
        for deployment in lodgings
        if deployment.state in HAS_ROOM or deployment.state == TenantDeploymentState.WAITING
    }
    return tuple(
        work
        for work in works
        if (work.pod_id or work.tenant not in at_work)
        and (work.tenant, work.pod_id) not in live
        and max(work.time, since.get((work.tenant, work.pod_id), 0.0)) + retain_seconds <= now
    )
