"""The check of a project: the credentials, the rights and the quotas.

Sources: projects.testIamPermissions in the Resource Manager API reference, and its counterpart for service
accounts in the IAM API reference; regions.list and projects.get in the Compute Engine API reference;
"Allocation quotas" in the Compute Engine documentation, section "Quotas for Spot VMs": spot machines use the
quota for preemptible machines if the project has one, otherwise the usual quota.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gridmill.clouds.gcp.gpus import GPUS, types_with
from gridmill.clouds.gcp.policy import ACT_AS, COMPUTE, OWN_POLICY, SERVICE_ACCOUNT
from gridmill.clouds.gcp.requests import GcpRequests
from gridmill.clouds.gcp.settings import GcpSettings
from gridmill.domain.machine import Quota
from gridmill.errors import NotFoundError

CPUS: Mapping[str, tuple[str, ...]] = {
    "CPUS": ("n1-", "e2-"),
    "N2_CPUS": ("n2-",),
    "N2D_CPUS": ("n2d-",),
    "C2_CPUS": ("c2-",),
    "C2D_CPUS": ("c2d-",),
    "C3_CPUS": ("c3-",),
    "T2D_CPUS": ("t2d-",),
    "T2A_CPUS": ("t2a-",),
    "A2_CPUS": ("a2-",),
}
"""The quotas for vCPUs, with the beginnings of the names of the types that use them."""
PREEMPTIBLE = "PREEMPTIBLE_"
ALL_REGIONS = "GPUS_ALL_REGIONS"


def missing_rights(requests: GcpRequests, settings: GcpSettings) -> tuple[str, ...]:
    """Return the permissions that the credentials do not have. Nothing is changed."""
    at_project = COMPUTE + (SERVICE_ACCOUNT if settings.service_accounts else ())
    at_project += OWN_POLICY if settings.machine_role else ()
    path = f"/v1/projects/{requests.project()}:testIamPermissions"
    missing = _missing(requests, "projects", path, at_project)
    for email in settings.service_accounts:
        path = f"/v1/projects/-/serviceAccounts/{email}:testIamPermissions"
        try:
            missing += _missing(requests, "iam", path, (ACT_AS,))
        except NotFoundError:
            missing += (f"{ACT_AS} (the service account {email} does not exist)",)
    return missing


def _missing(requests: GcpRequests, service: str, path: str, permissions: tuple[str, ...]) -> tuple[str, ...]:
    answer = requests.call(
        service, "projects.testIamPermissions", path, body={"permissions": list(permissions)}
    )
    granted = set(answer.get("permissions") or ())
    return tuple(one for one in permissions if one not in granted)


def read_quotas(requests: GcpRequests, regions: tuple[str, ...]) -> tuple[Quota, ...]:
    """Return the quotas in these regions."""
    if not regions:
        return ()
    project = requests.compute("projects.get", "")
    of_project = _by_metric(project.get("quotas") or ())
    listed = requests.pages("regions.list", "/regions")
    return tuple(
        quota
        for region in listed
        if region["name"] in regions
        for quota in quotas_of(region["name"], _by_metric(region.get("quotas") or ()), of_project)
    )


def _by_metric(quotas: Iterable[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    return {one["metric"]: (float(one.get("limit", 0)), float(one.get("usage", 0))) for one in quotas}


def quotas_of(
    region: str,
    of_region: Mapping[str, tuple[float, float]],
    of_project: Mapping[str, tuple[float, float]],
) -> Iterator[Quota]:
    """Yield the quotas that limit machines in a region. Each argument has the limit and the use of each
    metric."""
    for accelerator, gpu in GPUS.items():
        yield from _pair(region, of_region, gpu.quota, f"{gpu.model} GPUs", "GPUs", types_with(accelerator))
    for metric, types in CPUS.items():
        yield from _pair(region, of_region, metric, metric.replace("_", " "), "vCPUs", types)
    if ALL_REGIONS in of_project:
        limit, used = of_project[ALL_REGIONS]
        types = tuple(one for accelerator in GPUS for one in types_with(accelerator))
        name = "all GPUs in all regions, on demand"
        yield Quota(region=region, name=name, limit=limit, unit="GPUs", types=types, used=used)


def _pair(
    region: str,
    quotas: Mapping[str, tuple[float, float]],
    metric: str,
    name: str,
    unit: str,
    types: tuple[str, ...],
) -> Iterator[Quota]:
    usual = quotas.get(metric)
    # the quota for vCPUs of preemptible machines is one for all families
    preemptible = quotas.get(f"{PREEMPTIBLE}{metric}") or (
        quotas.get(f"{PREEMPTIBLE}CPUS") if unit == "vCPUs" else None
    )
    for spot, found in ((False, usual), (True, preemptible if preemptible and preemptible[0] > 0 else usual)):
        if found is not None:
            kind = "spot" if spot else "on demand"
            yield Quota(
                region=region,
                name=f"{name}, {kind}",
                limit=found[0],
                unit=unit,
                types=types,
                spot=spot,
                used=found[1],
            )
