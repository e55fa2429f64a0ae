"""Decides where a job runs, or why it waits.

Sources: https://docs.aws.amazon.com/batch/latest/userguide/job_stuck_in_runnable.html and, for the memory
that a job can use, https://docs.aws.amazon.com/batch/latest/userguide/memory-management.html
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gridmill.domain.frozen import dataclass, replace
from gridmill.testing.cloud.aws_batch.records import Container, Environment, Instance, Job, Kind
from gridmill.testing.cloud.ec2 import catalogue
from gridmill.testing.cloud.ec2.catalogue import InstanceType

AGENT_MIB = 32
"""The memory that the agent on an instance reserves."""
PLATFORM_SHARE = 0.03
"""The share of the memory of an instance that its kernel and firmware use. AWS documents no number."""
_OPTIMAL = ("m5", "c5", "r5")
INVALID = "ACTION_REQUIRED - CE(s) associated with the job queue are invalid."
TOO_FEW_VCPUS = (
    "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE - All compute environments have a maxVcpu setting "
    "that is smaller than the job requirements."
)
NO_INSTANCE = (
    "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - All compute environments have no connected instances that "
    "meet the job requirements."
)
UNKNOWN = "UNDETERMINED - Batch job is blocked, root cause is undetermined."
NO_CAPACITY = (
    "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill the capacity requested for instance "
    "type [{kind}]"
)

Room = Callable[[InstanceType, str, bool], bool]
"""Whether an instance of a type can be launched in a zone: (type, zone, is_spot)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place for a container: an environment, and an instance or, for a new instance, its type and zone. On
    Fargate all of them are empty."""

    environment: Environment
    instance_id: str = ""
    kind: str = ""
    zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The instances that run, by id; the jobs that have a place, by id; and the places for new instances."""

    instances: Mapping[str, Instance]
    jobs: Mapping[str, Job]
    has_quota: Room
    has_capacity: Room


def decide_place(
    job: Container, environments: Sequence[Environment], fleet: Fleet, *, alone: bool = False
) -> Place | str:
    """Returns a place for a container, or the reason why the container waits. The reason is empty if the
    container waits for earlier jobs or for a quota, because AWS Batch shows no reason in these cases. `alone`
    asks for a new instance."""
    usable = [one for one in environments if one.is_enabled and one.is_valid]
    if not usable:
        return INVALID
    reasons = []
    for environment in usable:
        place = _place_in(environment, job, fleet, alone)
        if isinstance(place, Place):
            return place
        reasons.append(place)
    same = len(set(reasons)) == 1
    return reasons[0] if same else ""


def _place_in(environment: Environment, job: Container, fleet: Fleet, alone: bool) -> Place | str:
    if job.vcpus > environment.max_vcpus:
        return TOO_FEW_VCPUS
    if environment.kind.is_fargate:
        has_room = _used_vcpus(environment, fleet) + job.vcpus <= environment.max_vcpus
        return Place(environment=environment) if has_room else ""
    types = [one for one in instance_types(environment) if _fits(job, one, ())]
    if not types:
        return NO_INSTANCE
    for instance in () if alone else fleet.instances.values():
        if instance.environment == environment.name and instance.region == environment.region:
            others = [fleet.jobs[one].container for one in instance.jobs]
            is_shared = not instance.is_dead and not any(fleet.jobs[one].is_node for one in instance.jobs)
            if is_shared and _fits(job, catalogue.INSTANCE_TYPES[instance.type], others):
                return Place(environment=environment, instance_id=instance.id)
    return _new_instance(environment, types, fleet)


def _new_instance(environment: Environment, types: Sequence[InstanceType], fleet: Fleet) -> Place | str:
    spot = environment.kind == Kind.SPOT
    room = environment.max_vcpus - _used_vcpus(environment, fleet)
    within = [one for one in types if one.vcpus <= room]
    for kind, zone in _offers(within, environment.region):
        if fleet.has_quota(kind, zone, spot) and fleet.has_capacity(kind, zone, spot):
            return Place(environment=environment, kind=kind.name, zone=zone)
    has_quota = any(fleet.has_quota(kind, zone, spot) for kind, zone in _offers(within, environment.region))
    return NO_CAPACITY.format(kind=within[0].name) if has_quota else ""


def _offers(types: Iterable[InstanceType], region: str) -> Iterator[tuple[InstanceType, str]]:
    for kind in types:
        for zone in catalogue.offered(kind, region):
            yield kind, zone


def _used_vcpus(environment: Environment, fleet: Fleet) -> float:
    if environment.kind.is_fargate:
        jobs = [one for one in fleet.jobs.values() if one.environment == environment.name]
        return sum(one.container.vcpus for one in jobs if one.region == environment.region)
    return sum(
        catalogue.INSTANCE_TYPES[one.type].vcpus
        for one in fleet.instances.values()
        if (one.environment, one.region) == (environment.name, environment.region)
    )


def instance_types(environment: Environment) -> list[InstanceType]:
    """Returns the instance types of an environment, the cheapest first."""
    found = {}
    for wanted in environment.instance_types:
        families = _OPTIMAL if wanted == "optimal" else (wanted,)
        for kind in catalogue.INSTANCE_TYPES.values():
            if kind.name == wanted or kind.name.split(".")[0] in families:
                found[kind.name] = kind
    return sorted(found.values(), key=lambda kind: (kind.price_micros, kind.name))


def usable_mib(kind: InstanceType) -> int:
    """Returns the memory that jobs can use on an instance, which is less than the memory of its type."""
    return int(kind.memory_mib * (1 - PLATFORM_SHARE)) - AGENT_MIB


def _fits(job: Container, kind: InstanceType, others: Iterable[Container]) -> bool:
    all_of_them = [job, *others]
    return (
        sum(one.vcpus for one in all_of_them) <= kind.vcpus
        and sum(one.memory_mib for one in all_of_them) <= usable_mib(kind)
        and sum(one.gpus for one in all_of_them) <= kind.gpus
    )


def with_job(instance: Instance, job_id: str) -> Instance:
    """Returns an instance with a further job."""
    return replace(instance, jobs=(*instance.jobs, job_id), idle_since=None)
