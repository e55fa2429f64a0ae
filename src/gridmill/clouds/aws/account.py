"""The check of an AWS account: the credentials, the rights and the quotas.

Sources: "DryRun" in the EC2 API Reference; ListServiceQuotas in the Service Quotas API Reference; "Amazon EC2
instance type quotas" in the EC2 user guide, which counts quotas in vCPUs, per group of families, apart for
on-demand and spot machines.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from gridmill.clouds.aws.errors import RIGHTS
from gridmill.clouds.aws.policy import PROBES
from gridmill.clouds.aws.requests import AwsRequests
from gridmill.clouds.aws.settings import AwsSettings
from gridmill.domain.frozen import dataclass
from gridmill.domain.machine import Quota
from gridmill.errors import CredentialsError, RefusedError
from gridmill.ports.cloud import AccountCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class _QuotaRow:
    """A quota of EC2, with the beginnings of the names of its types."""

    name: str
    types: tuple[str, ...]
    spot: bool = False


# the families A, C, D, H, I, M, R, T and Z, but not others with the same first letter, such as Inf and Trn
_STANDARD: tuple[str, ...] = (
    "a1",
    "c",
    "d2",
    "d3",
    "h1",
    "i2",
    "i3",
    "i4",
    "i7",
    "i8",
    "im",
    "is",
    "m",
    "r",
    "t1",
    "t2",
    "t3",
    "t4",
    "z1",
)
QUOTAS: Mapping[str, _QuotaRow] = {
    "L-DB2E81BA": _QuotaRow(name="G and VT, on demand", types=("g", "vt")),
    "L-417A185B": _QuotaRow(name="P, on demand", types=("p",)),
    "L-1216C47A": _QuotaRow(name="standard, on demand", types=_STANDARD),
    "L-3819A6DF": _QuotaRow(name="G and VT, spot", types=("g", "vt"), spot=True),
    "L-7212CCBC": _QuotaRow(name="P4, P3 and P2, spot", types=("p4", "p3", "p2"), spot=True),
    "L-C4BD4855": _QuotaRow(name="P5, spot", types=("p5",), spot=True),
    "L-34B43A08": _QuotaRow(name="standard, spot", types=_STANDARD, spot=True),
}
"""The quotas of EC2 that limit machines, by their codes. The unit of each is vCPUs."""


def check_account(
    requests: AwsRequests, settings: AwsSettings, regions: tuple[str, ...], *, has_probes: bool = True
) -> AccountCheck:
    """Check the credentials, the rights in one region, and the quotas in all of these regions. Without
    `has_probes`, the rights are not checked."""
    home = regions[0] if regions else settings.home_region
    identity = requests.call("sts", home, "GetCallerIdentity")
    missing = missing_rights(requests, home) if has_probes else ()
    quotas: tuple[Quota, ...] = ()
    if "servicequotas:ListServiceQuotas" not in missing:
        quotas = requests.in_parallel(regions, lambda region: _quotas(requests, region))
    return AccountCheck(account=str(identity["Account"]), missing_rights=missing, quotas=quotas)


def missing_rights(requests: AwsRequests, region: str) -> tuple[str, ...]:
    """Return the actions that the credentials do not permit. Nothing is changed: requests that would change
    something are dry runs. AWS checks the right before anything else, so that each other answer than a
    missing right means that the right exists."""
    missing = []
    for probe in PROBES:
        arguments = dict(probe.arguments)
        code = requests.code(probe.service, probe.region or region, probe.action, **arguments)
        if code in RIGHTS:
            missing.append(probe.right)
        elif code in ("AuthFailure", "InvalidClientTokenId", "ExpiredToken"):
            raise CredentialsError(f"AWS answered {code}", place=f"aws {region} {probe.action}")
    return tuple(missing)


def _quotas(requests: AwsRequests, region: str) -> tuple[Quota, ...]:
    try:
        listed = list(
            requests.pages(
                "service-quotas", region, "ListServiceQuotas", "Quotas", ServiceCode="ec2", MaxResults=100
            )
        )
    except RefusedError:
        return ()  # the region has no server for quotas
    states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    reservations = requests.pages("ec2", region, "DescribeInstances", "Reservations", Filters=states)
    instances = [one for reservation in reservations for one in reservation.get("Instances") or ()]
    return quotas_of(region, listed, instances)


def quotas_of(
    region: str, listed: Iterable[Mapping[str, Any]], instances: Iterable[Mapping[str, Any]]
) -> tuple[Quota, ...]:
    """Return the quotas that limit machines, with the vCPUs that the given running machines use."""
    running = list(instances)
    limits = {one["QuotaCode"]: float(one["Value"]) for one in listed if one["QuotaCode"] in QUOTAS}
    return tuple(
        Quota(
            region=region,
            name=row.name,
            limit=limits[code],
            unit="vCPUs",
            types=row.types,
            spot=row.spot,
            used=float(sum(_vcpus(one) for one in running if _counts(one, row))),
        )
        for code, row in QUOTAS.items()
        if code in limits
    )


def _counts(instance: Mapping[str, Any], row: _QuotaRow) -> bool:
    is_spot = instance.get("InstanceLifecycle") == "spot"
    return is_spot == row.spot and str(instance.get("InstanceType", "")).startswith(row.types)


def _vcpus(instance: Mapping[str, Any]) -> int:
    options = instance.get("CpuOptions") or {}
    return int(options.get("CoreCount", 0)) * int(options.get("ThreadsPerCore", 1))
