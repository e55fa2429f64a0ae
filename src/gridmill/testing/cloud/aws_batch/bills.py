"""The bill of a simulated account of AWS Batch. AWS Batch is free; its machines are charged.

Sources: https://aws.amazon.com/batch/pricing/, https://aws.amazon.com/ec2/pricing/on-demand/ and, for
Fargate, https://aws.amazon.com/fargate/pricing/
"""

from collections.abc import Iterator

from gridmill.testing.cloud.aws_batch.records import Instance, Job
from gridmill.testing.cloud.aws_batch.world import World
from gridmill.testing.cloud.bill import Bill, Charge, Item, by_the_hour, charged_seconds
from gridmill.testing.cloud.ec2 import catalogue

_VCPU_MICROS, _GIB_MICROS = 40_480, 4_445
"""The prices of Fargate for Linux on x86 in N. Virginia at some time, per hour, as examples."""
_SPOT_PERCENT = 30


def bill_of(world: World, now: float) -> Bill:
    """Returns the bill until now."""
    instances = [*world.ended_instances, *world.instances.values()]
    items = [_instance_item(one, now) for one in instances]
    for job in world.jobs.last_versions():
        items += _fargate_items(world, job, now)
    return Bill(items=tuple(items))


def _instance_item(instance: Instance, now: float) -> Item:
    kind = catalogue.INSTANCE_TYPES[instance.type]
    until = now if instance.ended_at is None else instance.ended_at
    seconds = charged_seconds([(instance.launched_at, until)])
    price = catalogue.hourly_micros(kind, instance.region, spot=instance.is_spot)
    return Item(
        charge=Charge.MACHINE,
        subject=instance.id,
        detail=f"{instance.type} {'spot' if instance.is_spot else 'on-demand'} {instance.zone}",
        seconds=seconds,
        amount_micros=by_the_hour(seconds, price),
        is_running=instance.ended_at is None,
    )


def _fargate_items(world: World, job: Job, now: float) -> Iterator[Item]:
    if "FARGATE" not in job.definition.platforms or job.is_array:
        return
    spans = [(one.started_at, one.stopped_at) for one in job.attempts]
    if job.started_at is not None and not job.status.is_over:
        spans.append((job.started_at, now))
    environment = world.environments.get((job.region, job.environment))
    percent = _SPOT_PERCENT if environment is not None and environment.kind.name.endswith("SPOT") else 100
    needs = job.container
    price = round((needs.vcpus * _VCPU_MICROS + needs.memory_mib / 1024 * _GIB_MICROS) * percent / 100)
    for since, until in spans:
        if since is not None:
            seconds = charged_seconds([(since, until)])
            yield Item(
                charge=Charge.MACHINE,
                subject=job.id,
                detail=f"Fargate {needs.vcpus:g} vCPU {needs.memory_mib} MiB",
                seconds=seconds,
                amount_micros=by_the_hour(seconds, price),
                is_running=until == now and not job.status.is_over,
            )
