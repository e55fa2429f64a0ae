"""The bill of the simulated Compute Engine.

Sources: https://cloud.google.com/compute/docs/instances/instance-lifecycle (an instance is charged while it
is RUNNING, a stopped one only for its disks and static addresses),
https://cloud.google.com/compute/vm-instance-pricing#billingmodel (by the second, for at least a minute),
https://cloud.google.com/compute/docs/instances/spot (a Spot instance that is preempted in its first minute
is free) and https://cloud.google.com/compute/disks-image-pricing
"""

from collections.abc import Iterator

from gridmill.testing.cloud import bill
from gridmill.testing.cloud.bill import Bill, Charge, Item
from gridmill.testing.cloud.gce import prices
from gridmill.testing.cloud.gce.catalogue import region_of
from gridmill.testing.cloud.gce.records import Address, Disk, Instance, OwnImage
from gridmill.testing.cloud.gce.world import GceWorld

_FREE_IF_PREEMPTED_SECONDS = 60.0


def bill_of(world: GceWorld, now: float) -> Bill:
    """Returns the bill of the project until `now`, a Unix time in seconds."""
    items: list[Item] = []
    for instance in world.instances.last_versions():
        items.extend(_of_instance(world, instance, now))
    items += [_of_disk(one, now) for one in world.disks.last_versions()]
    items += [_of_image(one, now) for one in world.images.last_versions()]
    items += [_of_address(one, now) for one in world.addresses.last_versions()]
    return Bill(items=tuple(items))


def _of_instance(world: GceWorld, instance: Instance, now: float) -> Iterator[Item]:
    spans = [(since, now if until is None else until) for since, until in instance.runs]
    if not spans:
        return
    seconds = bill.charged_seconds(spans)
    is_running = instance.runs[-1][1] is None
    first, last = spans[-1]
    is_free = instance.is_preempted and last - first < _FREE_IF_PREEMPTED_SECONDS
    amount = 0 if is_free else bill.by_the_hour(seconds, instance.hourly_micros)
    market = "spot" if instance.is_spot else "standard"
    detail = f"{market} {instance.machine_type} in {instance.zone}"
    yield bill.item(Charge.MACHINE, instance.name, detail, seconds, amount, is_running)
    if instance.has_public_address:
        amount = bill.by_the_hour(seconds, instance.address_hourly_micros)
        yield bill.item(Charge.ADDRESS, instance.name, "external IPv4 address", seconds, amount, is_running)
    if sent := world.host.egress_bytes(instance.id):
        amount = bill.by_volume(sent, prices.EGRESS_MICROS_PER_GB)
        yield bill.item(Charge.EGRESS, instance.name, f"{sent} bytes", 0, amount, is_running)


def _of_disk(disk: Disk, now: float) -> Item:
    until = now if disk.deleted_at is None else disk.deleted_at
    seconds = bill.charged_seconds([(disk.created_at, until)])
    price = prices.disk_micros_per_gb_month(disk.kind, region_of(disk.zone))
    amount = bill.by_the_month(seconds, disk.size_gb, price)
    detail = f"{disk.size_gb} GB {disk.kind} in {disk.zone}"
    return bill.item(Charge.DISK, disk.name, detail, seconds, amount, disk.deleted_at is None)


def _of_image(image: OwnImage, now: float) -> Item:
    until = now if image.deleted_at is None else image.deleted_at
    seconds = bill.charged_seconds([(image.ready_at, max(image.ready_at, until))])
    size_gb = -(-image.archive_bytes // 2**30)
    amount = bill.by_the_month(seconds, size_gb, prices.IMAGE_MICROS_PER_GB_MONTH)
    detail = f"image of {size_gb} GB"
    return bill.item(Charge.SNAPSHOT, image.name, detail, seconds, amount, image.deleted_at is None)


def _of_address(address: Address, now: float) -> Item:
    until = now if address.deleted_at is None else address.deleted_at
    seconds = bill.charged_seconds([(address.created_at, until)])
    amount = bill.by_the_hour(seconds, prices.ADDRESS_MICROS_PER_HOUR)
    detail = f"static address {address.address}"
    return bill.item(Charge.ADDRESS, address.name, detail, seconds, amount, address.deleted_at is None)


def leftovers(world: GceWorld) -> list[str]:
    """Returns all resources that still exist, but for the defaults of the project, such as
    `instances/worker-1`."""
    found = [f"instances/{one.name}" for one in world.instances.all()]
    found += [f"disks/{one.name}" for one in world.disks.all()]
    found += [f"images/{one.name}" for one in world.images.all()]
    found += [f"addresses/{one.name}" for one in world.addresses.all()]
    found += [f"firewalls/{one.name}" for one in world.firewalls.all() if not one.name.startswith("default-")]
    return found
