"""Quotas and free machines.

Sources: https://cloud.google.com/compute/resource-usage (quotas, and preemptible quotas),
https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-resource-availability (no free machine)
and https://github.com/CCExtractor/sample-platform/issues/901 (the operation of a launch without a free
machine)
"""

from collections.abc import Iterator, Sequence
from typing import Any

from gridmill.testing.cloud.gce import catalogue
from gridmill.testing.cloud.gce.call import Call
from gridmill.testing.cloud.gce.catalogue import MachineType
from gridmill.testing.cloud.gce.launch_disks import DiskPlan
from gridmill.testing.cloud.gce.records import Instance
from gridmill.testing.cloud.gce.refusal import over_project_quota
from gridmill.testing.cloud.gce.world import GceWorld

Failure = tuple[str, str, int]
_SSD_KINDS = ("pd-balanced", "pd-ssd")


def limit_of(world: GceWorld, metric: str, region: str) -> int:
    """Returns the limit of a quota. The region of a quota of the whole project is `global`."""
    defaults = catalogue.PROJECT_QUOTAS if region == "global" else catalogue.REGION_QUOTAS
    return world.faults.quota(metric, region, defaults[metric])


def usage(world: GceWorld, region: str) -> dict[str, int]:
    """Returns how much of each quota of a region, or of the project (`global`), is used."""
    names = catalogue.PROJECT_QUOTAS if region == "global" else catalogue.REGION_QUOTAS
    used = dict.fromkeys(names, 0)
    for one in world.instances.all():
        if region in ("global", catalogue.region_of(one.zone)) and one.lives:
            kind = catalogue.MACHINE_TYPES[one.machine_type]
            for metric, count in _needs(world, one, kind, catalogue.region_of(one.zone)):
                used[metric] = used.get(metric, 0) + count
    for disk in world.disks.all():
        if catalogue.region_of(disk.zone) == region:
            used["SSD_TOTAL_GB" if disk.kind in _SSD_KINDS else "DISKS_TOTAL_GB"] += disk.size_gb
    if region == "global":
        used["FIREWALLS"] = len(list(world.firewalls.all()))
        used["NETWORKS"] = 1
    else:
        used["STATIC_ADDRESSES"] = len([one for one in world.addresses.all() if one.region == region])
    return {name: used[name] for name in names}


def _needs(world: GceWorld, instance: Instance, kind: MachineType, region: str) -> Iterator[tuple[str, int]]:
    """Yields the quotas of the region and of the project that an instance uses. A Spot instance uses the
    preemptible quota, if the project has one, and otherwise the standard quota."""
    yield "INSTANCES", 1
    if instance.has_public_address:
        yield "IN_USE_ADDRESSES", 1
    counts = [(kind.family.cpu_quota, kind.cpus)] if kind.family.cpu_quota else []
    counts += [(catalogue.ACCELERATORS[one.type].quota, one.count) for one in instance.accelerators]
    for metric, count in counts:
        spare = f"PREEMPTIBLE_{metric}"
        has_spare = spare in catalogue.REGION_QUOTAS and limit_of(world, spare, region) > 0
        yield (spare if instance.is_spot and has_spare else metric), count
    yield "CPUS_ALL_REGIONS", kind.cpus
    gpus = sum(one.count for one in instance.accelerators)
    if gpus:
        yield "GPUS_ALL_REGIONS", gpus


def check_quotas(
    call: Call, instance: Instance, kind: MachineType, disks: Sequence[DiskPlan]
) -> Failure | None:
    """Returns the error of the operation if a quota of the region is exceeded. Raises GoogleRefusalError if a
    quota of the whole project is exceeded: this error has no operation."""
    world, region = call.world, catalogue.region_of(instance.zone)
    needs = list(_needs(world, instance, kind, region))
    used = usage(world, "global")
    for metric, count in needs:
        if metric in catalogue.PROJECT_QUOTAS:
            limit = limit_of(world, metric, "global")
            if used[metric] + count > limit:
                raise over_project_quota(metric, limit)
    used = usage(world, region)
    needs += [("SSD_TOTAL_GB" if one.kind in _SSD_KINDS else "DISKS_TOTAL_GB", one.size_gb) for one in disks]
    for metric, count in needs:
        if metric in catalogue.REGION_QUOTAS:
            limit = limit_of(world, metric, region)
            if used[metric] + count > limit:
                text = f"Quota '{metric}' exceeded.  Limit: {float(limit)} in region {region}."
                return ("QUOTA_EXCEEDED", text, 403)
    return None


def no_capacity(call: Call, instance: Instance) -> tuple[Failure | None, tuple[dict[str, Any], ...]]:
    """Returns the error of the operation, and its details, if the zone has no free machine."""
    world, zone = call.world, instance.zone
    limit = world.faults.capacity_of(instance.machine_type, zone, spot=instance.is_spot)
    same = [
        one
        for one in world.instances.all()
        if (one.machine_type, one.zone) == (instance.machine_type, zone) and one.lives
    ]
    if limit is None or len(same) < limit:
        return None, ()
    text = (
        f"The zone 'projects/{world.project}/zones/{zone}' does not have enough resources available to "
        "fulfill the request.  Try a different zone, or try again later."
    )
    attachment = ",".join(f"{one.type}:{one.count}" for one in instance.accelerators)
    info = {
        "reason": "resource_availability",
        "domain": "compute.googleapis.com",
        "metadatas": {
            "vmType": instance.machine_type,
            "zone": zone,
            "attachment": attachment,
            "zonesAvailable": "",
        },
    }
    return ("ZONE_RESOURCE_POOL_EXHAUSTED", text, 503), ({"errorInfo": info},)
