"""Executes the requests of a tenant for its deployments: starting them, reporting their state, and ending
them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gridmill.domain.amounts import roughly, show_count
from gridmill.domain.farm_protocol import FARM_PROTOCOL, DeployRequest, FarmStatus
from gridmill.domain.pod_protocol import PodEvent
from gridmill.domain.site import Node
from gridmill.errors import GridmillError
from gridmill.farm.admission import QueueForecast, check_size, forecast, gpu_slots, queue, queued
from gridmill.farm.deployment import HAS_ROOM, TenantDeployment, TenantDeploymentState, check_deploy, check_id
from gridmill.farm.state import Farm
from gridmill.farm.store import LostResults
from gridmill.farm.tenant import Tenant
from gridmill.farm.tenant_sandbox import TenantSandbox
from gridmill.farm.unix_users import PATIENCE_SECONDS, end_processes
from gridmill.ports.site import PodReport, PodReports, PodStatus


def look(farm: Farm, tenant: Tenant) -> FarmStatus:
    """Returns the state of the farm, as far as this tenant is allowed to see it. The call can take a
    second."""
    quarters = farm.sandbox_of(tenant)
    lost = [one for one in farm.records.all(LostResults) if one.tenant == tenant.name]
    everybody, nodes = farm.records.all(TenantDeployment), quarters.site.nodes()
    shares = farm.settings.gpu_shares
    given = gpu_slots(everybody, nodes, tenant.name, shares) if farm.shares_nodes else {}
    expected = _expected(farm, everybody, nodes)
    in_use = quarters.site.utilization()
    return FarmStatus(
        version=farm.version,
        protocol=FARM_PROTOCOL,
        root=str(quarters.root),
        nodes=nodes,
        utilization={name: replace(one, seats=given.get(name, ())) for name, one in in_use.items()},
        waiting=len(queue(everybody)),
        queue=queued(everybody, tenant.name, expected.starts),
        future_capacity=expected.openings,
        staged_bytes=quarters.files.store.size_bytes,
        quota_bytes=farm.quota_bytes,
        disk_free_bytes=farm.disk.room.space().free_bytes,
        disk_use_bytes=farm.disk.use_of(tenant.name).size_bytes,
        disk_limit_bytes=farm.disk.limits.size_bytes or 0,
        warnings=(*(one.message for one in lost), *filter(None, [farm.disk.why_waits(tenant.name)])),
        # pods on other nodes of a cluster do not share a socket with this server
        serves=farm.shares_nodes,
        logs=farm.shares_nodes,
    )


def deploy(farm: Farm, tenant: Tenant, deployment_id: str, wanted: DeployRequest) -> None:
    """Starts the pods as soon as the farm has free capacity for them. The call can be repeated, also after
    the pods have ended: no pod starts twice. Raises InputError, ConflictError, CapacityError."""
    nodes = farm.sandbox_of(tenant).site.nodes() if farm.shares_nodes else ()
    with farm.records.change():
        farm.check(tenant)
        everybody = farm.records.all(TenantDeployment)
        number = max((one.number for one in everybody), default=0) + 1
        deployment = TenantDeployment(
            id=deployment_id, tenant=tenant.name, number=number, request=wanted, since=farm.now()
        )
        mine = [one for one in everybody if one.tenant == tenant.name]
        check_deploy(deployment, [one for one in mine if one.id != deployment_id])
        if any(one.id == deployment_id for one in mine):
            return
        if farm.shares_nodes:
            check_size(deployment, nodes, farm.settings.gpu_shares)
        farm.records.put(deployment)
    farm.wake()


def observe(farm: Farm, tenant: Tenant, pods: Sequence[str]) -> PodReports:
    """Returns the states of pods. For pods that have ended, the result also contains their last messages.
    Raises InputError."""
    for pod in pods:
        check_id(pod)
    quarters, everybody = farm.sandbox_of(tenant), farm.records.all(TenantDeployment)
    deployment_by_pod = {pod: one for one in everybody if one.tenant == tenant.name for pod in one.pods}
    waits = _waits(farm, everybody)
    reports = dict(_before(deployment_by_pod, waits, pods, farm.disk.why_waits(tenant.name)))
    reports |= _seen(quarters, deployment_by_pod, [pod for pod in pods if pod not in reports])
    gone = [pod for pod, report in reports.items() if report.status == PodStatus.GONE]
    return PodReports(reports=reports, undelivered=_words(quarters, gone))


def _expected(farm: Farm, everybody: Sequence[TenantDeployment], nodes: Sequence[Node]) -> QueueForecast:
    """Returns the forecast of waiting times. The forecast is empty if the farm is a cluster, because the
    queue of the cluster determines the order."""
    if not farm.shares_nodes:
        return QueueForecast(starts={}, openings=())
    return farm.forecasts.read(
        everybody, nodes, farm.now(), lambda now: forecast(everybody, nodes, now, farm.settings.gpu_shares)
    )


def _waits(farm: Farm, everybody: Sequence[TenantDeployment]) -> Mapping[int, str]:
    """Returns a message for each waiting deployment, by its number. The tenant shows this message and stores
    each change of it."""
    line = queue(everybody)
    starts = _expected(farm, everybody, farm.nodes()).starts if line else {}
    return {one.number: _place(place, starts.get(one.number)) for place, one in enumerate(line)}


def _place(ahead: int, seconds: float | None) -> str:
    message = f"{show_count(ahead, 'deployment')} ahead in the queue" if ahead else "next in the queue"
    return message if seconds is None else f"{message}, {roughly(seconds)}"


def _before(
    deployment_by_pod: Mapping[str, TenantDeployment],
    waits: Mapping[int, str],
    pods: Iterable[str],
    short: str,
) -> Iterable[tuple[str, PodReport]]:
    """Yields the states of pods that wait for capacity, and of pods that the farm never started."""
    for pod in pods:
        deployment = deployment_by_pod.get(pod)
        if deployment is None:
            yield pod, PodReport(status=PodStatus.GONE, message="the pod was never started")
        elif deployment.state == TenantDeploymentState.WAITING:
            position_text = short or waits.get(deployment.number, "next in the queue")
            yield (
                pod,
                PodReport(status=PodStatus.QUEUED, message=f"waits for room on the farm; {position_text}"),
            )
        elif deployment.state == TenantDeploymentState.STARTING:
            why = deployment.message or short
            message = f"the pod is starting; {why}" if why else "the pod is starting"
            yield pod, PodReport(status=PodStatus.QUEUED, message=message)


def _seen(
    quarters: TenantSandbox, deployment_by_pod: Mapping[str, TenantDeployment], pods: Sequence[str]
) -> Mapping[str, PodReport]:
    """Returns the states of pods as the site reports them, corrected for pods that the farm has ended."""
    seen = dict(quarters.observe(pods)) if pods else {}
    for pod in pods:
        why = deployment_by_pod[pod].message
        if why and seen[pod].status == PodStatus.GONE:
            seen[pod] = PodReport(status=PodStatus.GONE, message=why, use=seen[pod].use)
    return seen


def _words(quarters: TenantSandbox, pods: Iterable[str]) -> Mapping[str, tuple[PodEvent, ...]]:
    events_of_pods = ((pod, quarters.last_words(pod)) for pod in pods)
    return {pod: words for pod, words in events_of_pods if words}


def end(farm: Farm, tenant: Tenant, pods: Sequence[str]) -> None:
    """Ends the pods of a tenant. When this function returns, the pods have ended and do not start later. The
    call can be repeated. Pods of other tenants are ignored."""
    wanted = {check_id(pod) for pod in pods}
    _withdraw(farm, tenant, wanted)
    brought = [
        one
        for one in farm.deployments_of(tenant)
        if one.state not in (TenantDeploymentState.WAITING, TenantDeploymentState.ENDED)
        and wanted & set(one.pods)
    ]
    quarters = farm.sandbox_of(tenant)
    end_pods(farm, tenant, sorted(wanted))
    left = [one for one in brought if not _is_gone(quarters, one)]
    if left and _are_its_last(farm, tenant, wanted):
        # jobs of the tenant can keep the lock of an ended pod open, so that the pod would look alive
        end_processes(tenant.user)
    for deployment in brought:
        if deployment not in left or _is_gone(quarters, deployment):
            settle(farm, deployment, deployment.ended(farm.now()))
    farm.wake()


def end_pods(
    farm: Farm, tenant: Tenant, pods: Sequence[str], patience_seconds: float = PATIENCE_SECONDS
) -> None:
    """Ends these pods. If jobs have damaged the files that describe the pods, all processes of the tenant
    are ended as soon as no other deployment of the tenant has capacity. Raises UnavailableError, OSError."""
    try:
        farm.sandbox_of(tenant).tear_down(pods)
    except (GridmillError, OSError):
        if tenant.user is None or not _are_its_last(farm, tenant, set(pods)):
            raise
        end_processes(tenant.user, patience_seconds)


def _is_gone(quarters: TenantSandbox, deployment: TenantDeployment) -> bool:
    return all(one.status == PodStatus.GONE for one in quarters.observe(deployment.pods).values())


def _are_its_last(farm: Farm, tenant: Tenant, pods: set[str]) -> bool:
    return all(pods >= set(one.pods) for one in farm.deployments_of(tenant) if one.state in HAS_ROOM)


def _withdraw(farm: Farm, tenant: Tenant, wanted: set[str]) -> None:
    """Removes waiting deployments from the queue."""
    with farm.records.change():
        for deployment in farm.deployments_of(tenant):
            if deployment.state == TenantDeploymentState.WAITING and wanted & set(deployment.pods):
                left = deployment.without(wanted)
                farm.records.put(left if left.pods else deployment.ended(farm.now()))


def settle(farm: Farm, before: TenantDeployment, after: TenantDeployment) -> bool:
    """Stores `after` in place of `before`, unless the state of the deployment has changed in the
    meantime."""
    with farm.records.change():
        current = next(
            (
                deployment
                for deployment in farm.records.all(TenantDeployment)
                if deployment.number == before.number
            ),
            None,
        )
        if current is None or current.state != before.state:
            return False
        farm.records.put(after)
        return True
