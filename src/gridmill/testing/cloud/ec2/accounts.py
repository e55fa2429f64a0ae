"""The bill of the simulated EC2.

Sources: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-lifecycle.html (an instance is
charged from `running` until `shutting-down` or `stopping`, for at least a minute after each start),
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/billing-for-interrupted-spot-instances.html (a spot
instance that EC2 interrupts in its first hour is free), https://aws.amazon.com/ebs/pricing/ and
https://aws.amazon.com/vpc/pricing/
"""

from collections.abc import Iterable, Iterator

from gridmill.testing.cloud import bill
from gridmill.testing.cloud.bill import Bill, Charge, Item
from gridmill.testing.cloud.ec2 import catalogue
from gridmill.testing.cloud.ec2.records import Address, Instance, State
from gridmill.testing.cloud.ec2.world import Region, World

_FREE_IF_INTERRUPTED_SECONDS = 3600.0


def bill_of(world: World, now: float) -> Bill:
    """Returns the bill of the account until `now`, a Unix time in seconds."""
    items: list[Item] = []
    for region in world.regions.values():
        for instance in region.instances.all():
            items.extend(_of_instance(world, instance, now))
        items.extend(_of_volumes(world, region, now))
        items.extend(_of_snapshots(world, region, now))
        items.extend(_of_addresses(region.addresses.all(), None, now))
    for address, released_at in world.released_addresses:
        items.extend(_of_addresses([address], released_at, now))
    return Bill(items=tuple(items))


def _of_instance(world: World, instance: Instance, now: float) -> Iterator[Item]:
    spans = [(since, now if until is None else until) for since, until in instance.runs]
    if not spans:
        return
    seconds = bill.charged_seconds(spans)
    is_running = instance.runs[-1][1] is None
    amount = 0 if _is_free(instance) else bill.by_the_hour(seconds, instance.hourly_micros)
    market = "spot" if instance.is_spot else "on-demand"
    detail = f"{market} {instance.type} in {instance.zone}"
    yield bill.item(Charge.MACHINE, instance.id, detail, seconds, amount, is_running)
    if instance.has_public_address:
        amount = bill.by_the_hour(seconds, catalogue.ADDRESS_MICROS_PER_HOUR)
        yield bill.item(Charge.ADDRESS, instance.id, "public IPv4 address", seconds, amount, is_running)
    if sent := world.host.egress_bytes(instance.id):
        amount = bill.by_volume(sent, catalogue.EGRESS_MICROS_PER_GB)
        yield bill.item(Charge.EGRESS, instance.id, f"{sent} bytes", 0, amount, is_running)


def _is_free(instance: Instance) -> bool:
    since, until = instance.runs[-1]
    is_interrupted = instance.reason_code == "Server.SpotInstanceTermination"
    return is_interrupted and until is not None and until - since < _FREE_IF_INTERRUPTED_SECONDS


def _of_volumes(world: World, region: Region, now: float) -> Iterator[Item]:
    living = {one.id for one in region.volumes.all()}
    for volume in region.volumes.last_versions():
        until = now if volume.id in living else world.deleted_volumes[volume.id]
        seconds = bill.charged_seconds([(volume.created_at, until)])
        amount = bill.by_the_month(seconds, volume.size_gb, catalogue.DISK_MICROS_PER_GB_MONTH)
        detail = f"{volume.size_gb} GB {volume.kind} in {volume.zone}"
        yield bill.item(Charge.DISK, volume.id, detail, seconds, amount, volume.id in living)


def _of_snapshots(world: World, region: Region, now: float) -> Iterator[Item]:
    """AWS charges the blocks that are stored. The simulation charges the whole size of the disk."""
    living = {one.id for one in region.snapshots.all()}
    for snapshot in region.snapshots.last_versions():
        until = now if snapshot.id in living else world.deleted_snapshots[snapshot.id]
        seconds = bill.charged_seconds([(snapshot.created_at, until)])
        amount = bill.by_the_month(seconds, snapshot.size_gb, catalogue.SNAPSHOT_MICROS_PER_GB_MONTH)
        detail = f"snapshot of {snapshot.size_gb} GB"
        yield bill.item(Charge.SNAPSHOT, snapshot.id, detail, seconds, amount, snapshot.id in living)


def _of_addresses(addresses: Iterable[Address], until: float | None, now: float) -> Iterator[Item]:
    for one in addresses:
        seconds = bill.charged_seconds([(one.allocated_at, now if until is None else until)])
        amount = bill.by_the_hour(seconds, catalogue.ADDRESS_MICROS_PER_HOUR)
        detail = f"Elastic IP address {one.address}"
        yield bill.item(Charge.ADDRESS, one.allocation_id, detail, seconds, amount, until is None)


def leftovers(world: World) -> list[str]:
    """Returns the ids of all resources that still exist, but for the defaults of the account."""
    found = [one.id for one in world.instances() if one.state != State.TERMINATED]
    found += [one.arn for one in world.profiles.values()] + [one.arn for one in world.roles.values()]
    for region in world.regions.values():
        found += [one.id for one in region.volumes.all()]
        found += [one.id for one in region.images.all()]
        found += [one.id for one in region.snapshots.all()]
        found += [one.id for one in region.groups.all() if one.name != "default"]
        found += [one.id for one in region.keys.all()]
        found += [one.allocation_id for one in region.addresses.all()]
    return found
