"""A deployment of a tenant on this farm, from its request to its removal, and the results of its attempts.

Pure functions over `now` decide what ends without a request: deployments of tenants that are silent, and
results that are not downloaded. `AttemptRecord` stores what was placed on the farm for an attempt and where
the attempt writes, until the tenant confirms that it has everything.
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
    """The states of a deployment. WAITING: it has no room yet. STARTING: it has room and its pods are
    starting. UP: its pods run. GONE: its pods have ended, their results are still on the farm. ENDED: only
    its id is kept, so that a repeated request does not start it again."""

    WAITING = "waiting"
    STARTING = "starting"
    UP = "up"
    GONE = "gone"
    ENDED = "ended"


HAS_ROOM = frozenset({TenantDeploymentState.STARTING, TenantDeploymentState.UP})


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlacement:
    """The placement of a pod: its node, and the numbers of the GPUs that belong to it."""

    pod_id: str
    node: str
    gpus: tuple[int, ...] = ()
    shares: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantDeployment:
    """A deployment of a tenant. `number` counts all deployments of the farm, in the order of their requests.
    `since` is when it entered its state (Unix time). `message` says why it has ended. `started` is when it
    got room (0: never). `stayed_seconds` is how long it had room; set when it no longer has it."""

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
        """The ids of its pods."""
        return tuple(order.pod_id for order in self.request.orders)

    def to(self, state: TenantDeploymentState, now: float, message: str = "") -> "TenantDeployment":
        """The deployment in this state, from now on. In a state without room it has no placement."""
        changed = replace(self, state=state, since=now, message=message)
        if state in HAS_ROOM:
            return replace(changed, started=now if self.state not in HAS_ROOM else self.started)
        left = self.state in HAS_ROOM and self.started > 0.0
        stayed = max(0.0, now - self.started) if left else self.stayed_seconds
        return replace(changed, placements=(), stayed_seconds=stayed)

    def ended(self, now: float, message: str = "") -> "TenantDeployment":
        """The record that is kept after the end: the ids of the pods and why results were lost. It contains
        no secret."""
        orders = tuple(replace(order, secret="") for order in self.request.orders)
        return replace(
            self.to(TenantDeploymentState.ENDED, now, message), request=replace(self.request, orders=orders)
        )

    def without(self, pods: Collection[str]) -> "TenantDeployment":
        """A waiting deployment without these pods."""
        orders = tuple(order for order in self.request.orders if order.pod_id not in pods)
        return replace(self, request=replace(self.request, orders=orders))


def check_id(name: str) -> str:
    """The id of a deployment, pod or attempt. Raises InputError if it cannot be the name of a folder."""
    if not _ID.fullmatch(name) or ".." in name:
        raise InputError(f"{name[:60]!r} is no id", place="id")
    return name


def check_deploy(lodging: TenantDeployment, others: Iterable[TenantDeployment]) -> None:
    """Raises InputError for ids that cannot be names of folders, ConflictError for pods that belong to
    another deployment of the same tenant."""
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
"""How long the record of an ended deployment is kept, so that a late, repeated request for it is recognised
and the last messages of its pods are available."""


def expired(
    lodgings: Iterable[TenantDeployment], last_contacts: Mapping[str, float], now: float
) -> tuple[TenantDeployment, ...]:
    """The deployments whose tenant sent no request for the time of their lease. `last_contacts`: the time of
    the last request of each tenant. When the farm starts, all tenants count as heard, because until then they
    could not send requests."""
    live = (one for one in lodgings if one.state in HAS_ROOM or one.state == TenantDeploymentState.WAITING)
    return tuple(one for one in live if last_contacts.get(one.tenant, now) + one.request.lease_seconds <= now)


def silent(last_contacts: Mapping[str, float], now: float) -> tuple[str, ...]:
    """The tenants that have sent nothing for so long that they can be disconnected. From then on, their pods
    count their leases themselves, because the relay may not exist when the leases end. Other threads can add
    to `last_contacts` meanwhile."""
    return tuple(tenant for tenant, time in tuple(last_contacts.items()) if time + SILENT_SECONDS <= now)


def expired_results(
    lodgings: Iterable[TenantDeployment], retain_seconds: float, now: float
) -> tuple[TenantDeployment, ...]:
    """The deployments whose results were not downloaded in time."""
    gone = (one for one in lodgings if one.state == TenantDeploymentState.GONE)
    return tuple(one for one in gone if one.since + retain_seconds <= now)


def forgotten(lodgings: Iterable[TenantDeployment], now: float) -> tuple[TenantDeployment, ...]:
    """The ended deployments whose ids can be deleted."""
    ended = (one for one in lodgings if one.state == TenantDeploymentState.ENDED)
    return tuple(one for one in ended if one.since + REMEMBERED_SECONDS <= now)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """An attempt on the farm. `uri` and `checkpoints` are the folders below the root of the tenant that the
    attempt writes (empty before it starts). `pod_id` is its pod. `time` is the last request that named it
    (Unix time)."""

    attempt_id: str
    tenant: str
    time: float
    pod_id: str = ""
    uri: str = ""
    checkpoints: str = ""


def left_by(works: Iterable[AttemptRecord], lodging: TenantDeployment) -> tuple[AttemptRecord, ...]:
    """The attempts of its pods whose results the tenant has not confirmed."""
    pods = frozenset(lodging.pods)
    return tuple(work for work in works if work.tenant == lodging.tenant and work.pod_id in pods)


def left_behind(
    works: Iterable[AttemptRecord], lodgings: Iterable[TenantDeployment], retain_seconds: float, now: float
) -> tuple[AttemptRecord, ...]:
    """The attempts whose pod has ended and that no request has named for the time that results are kept. Data
    that was transferred before an attempt starts is kept as long as the tenant has a deployment, because
    waiting can take longer than that time."""
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
