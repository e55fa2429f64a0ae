"""A deployment of a tenant on this farm, from its request to its deletion, and the results of its attempts.

Pure functions with the parameter `now` select the deployments and results that are ended without a request
of the tenant: deployments of tenants that do not answer, and results that are not downloaded.
`AttemptRecord` stores which data was placed on the farm for an attempt, and where the attempt writes. The
record is kept until the tenant confirms that all results have arrived.
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
    """The states of a deployment on a farm. WAITING: the farm has no free capacity for the deployment yet.
    STARTING: the deployment has capacity, and its pods are starting. UP: the pods are running. GONE: the
    pods have ended, but their results are still on the farm. ENDED: only the id of the deployment is stored,
    so that a repeated request does not start the deployment again."""

    WAITING = "waiting"
    STARTING = "starting"
    UP = "up"
    GONE = "gone"
    ENDED = "ended"


HAS_ROOM = frozenset({TenantDeploymentState.STARTING, TenantDeploymentState.UP})


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlacement:
    """The placement of a pod: its node, and the numbers of the GPUs that only this pod uses."""

    pod_id: str
    node: str
    gpus: tuple[int, ...] = ()
    shares: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantDeployment:
    """A deployment of a tenant on the farm. `number` counts all deployments of the farm in the order of
    their requests. `since` is the Unix time at which the deployment entered its present state. `message` is
    the reason why the deployment has ended. `started` is the Unix time at which the deployment got capacity,
    or 0 if the deployment never got capacity. `stayed_seconds` is the time for which the deployment had
    capacity. `stayed_seconds` is set when the capacity is released."""

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
        """Returns the ids of the deployment's pods."""
        return tuple(order.pod_id for order in self.request.orders)

    def to(self, state: TenantDeploymentState, now: float, message: str = "") -> "TenantDeployment":
        """Returns a copy of the deployment that is in this state since `now`. If the new state needs no
        capacity, the copy has no placement."""
        changed = replace(self, state=state, since=now, message=message)
        if state in HAS_ROOM:
            return replace(changed, started=now if self.state not in HAS_ROOM else self.started)
        left = self.state in HAS_ROOM and self.started > 0.0
        stayed = max(0.0, now - self.started) if left else self.stayed_seconds
        return replace(changed, placements=(), stayed_seconds=stayed)

    def ended(self, now: float, message: str = "") -> "TenantDeployment":
        """Returns the record that is kept after the end of the deployment. The record has the ids of the
        pods, and the reason if results were lost. The record contains no secret."""
        orders = tuple(replace(order, secret="") for order in self.request.orders)
        return replace(
            self.to(TenantDeploymentState.ENDED, now, message), request=replace(self.request, orders=orders)
        )

    def without(self, pods: Collection[str]) -> "TenantDeployment":
        """Returns a copy of a waiting deployment without these pods."""
        orders = tuple(order for order in self.request.orders if order.pod_id not in pods)
        return replace(self, request=replace(self.request, orders=orders))


def check_id(name: str) -> str:
    """Checks the id of a deployment, a pod or an attempt, and returns it. Raises InputError if the id cannot
    be the name of a folder."""
    if not _ID.fullmatch(name) or ".." in name:
        raise InputError(f"{name[:60]!r} is no id", place="id")
    return name


def check_deploy(deployment: TenantDeployment, others: Iterable[TenantDeployment]) -> None:
    """Raises InputError for ids that cannot be names of folders, and ConflictError if a pod belongs to
    another deployment of the same tenant."""
    if not deployment.request.orders:
        raise InputError("a deployment needs at least one pod", place="orders")
    if not 0 < deployment.request.lease_seconds < float("inf"):
        raise InputError(
            f"{deployment.request.lease_seconds:g} is not a positive number of seconds", place="lease_seconds"
        )
    for name in (deployment.id, *deployment.pods):
        check_id(name)
    if any(order.deployment_id != deployment.id for order in deployment.request.orders):
        raise InputError(f"an order belongs to another deployment than {deployment.id}", place="orders")
    if len(set(deployment.pods)) < len(deployment.pods):
        raise InputError("two orders are for the same pod", place="orders")
    _check_amounts(deployment.request)
    pod_ids = {pod_id for other in others for pod_id in other.pods}
    for pod_id in deployment.pods:
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
"""A tenant that sent no request for this number of seconds is disconnected. A connected tenant sends a
request every few seconds."""
REMEMBERED_SECONDS = 86400.0
"""The number of seconds for which the record of an ended deployment is kept. With the record, a late
repeated request is recognised, and the last messages of the pods are available."""


def expired(
    deployments: Iterable[TenantDeployment], last_contacts: Mapping[str, float], now: float
) -> tuple[TenantDeployment, ...]:
    """Returns the deployments whose tenant sent no request for the time of their lease. `last_contacts`
    contains the time of the last request of each tenant. When the farm starts, it treats all tenants as
    connected, because they could not send requests before."""
    live = (one for one in deployments if one.state in HAS_ROOM or one.state == TenantDeploymentState.WAITING)
    return tuple(one for one in live if last_contacts.get(one.tenant, now) + one.request.lease_seconds <= now)


def silent(last_contacts: Mapping[str, float], now: float) -> tuple[str, ...]:
    """Returns the tenants that have sent no request for so long that the farm treats them as disconnected.
    When a tenant is disconnected, its pods measure their leases themselves, because the relay may not exist
    when the leases expire. Other threads may add entries to `last_contacts` during the call."""
    return tuple(tenant for tenant, time in tuple(last_contacts.items()) if time + SILENT_SECONDS <= now)


def expired_results(
    deployments: Iterable[TenantDeployment], retain_seconds: float, now: float
) -> tuple[TenantDeployment, ...]:
    """Returns the deployments whose results were not downloaded in time."""
    gone = (one for one in deployments if one.state == TenantDeploymentState.GONE)
    return tuple(one for one in gone if one.since + retain_seconds <= now)


def forgotten(deployments: Iterable[TenantDeployment], now: float) -> tuple[TenantDeployment, ...]:
    """Returns the ended deployments whose ids can be deleted."""
    ended = (one for one in deployments if one.state == TenantDeploymentState.ENDED)
    return tuple(one for one in ended if one.since + REMEMBERED_SECONDS <= now)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """The record of an attempt on the farm. `uri` and `checkpoints` are the folders below the tenant's
    storage root to which the attempt writes. Both paths are empty before the attempt starts. `pod_id` is the
    id of the attempt's pod. `time` is the Unix time of the last request about the attempt."""

    attempt_id: str
    tenant: str
    time: float
    pod_id: str = ""
    uri: str = ""
    checkpoints: str = ""


def left_by(works: Iterable[AttemptRecord], deployment: TenantDeployment) -> tuple[AttemptRecord, ...]:
    """Returns the attempts of the deployment's pods whose results the tenant has not confirmed."""
    pods = frozenset(deployment.pods)
    return tuple(work for work in works if work.tenant == deployment.tenant and work.pod_id in pods)


def left_behind(
    works: Iterable[AttemptRecord], deployments: Iterable[TenantDeployment], retain_seconds: float, now: float
) -> tuple[AttemptRecord, ...]:
    """Returns the attempts whose pod has ended and about which the tenant has sent no request for
    `retain_seconds`. Data that was transferred before its attempt starts is kept as long as the tenant has a
    deployment, because the deployment can wait longer than `retain_seconds`."""
    since = {
        (deployment.tenant, pod): deployment.since for deployment in deployments for pod in deployment.pods
    }
    live = {
        (deployment.tenant, pod)
        for deployment in deployments
        if deployment.state in HAS_ROOM
        for pod in deployment.pods
    }
    at_work = {
        deployment.tenant
        for deployment in deployments
        if deployment.state in HAS_ROOM or deployment.state == TenantDeploymentState.WAITING
    }
    return tuple(
        work
        for work in works
        if (work.pod_id or work.tenant not in at_work)
        and (work.tenant, work.pod_id) not in live
        and max(work.time, since.get((work.tenant, work.pod_id), 0.0)) + retain_seconds <= now
    )
