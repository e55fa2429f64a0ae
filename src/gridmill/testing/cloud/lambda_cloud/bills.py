"""The bill of the simulated Lambda Cloud.

Source: https://docs.lambda.ai/public-cloud/on-demand/billing/ (an instance is charged in increments of one
minute, from the time at which it has booted until it is terminated) and
https://docs-api.lambda.ai/api/cloud#listInstanceTypes (prices in cents). The disk of an instance, its
address and its traffic cost nothing.
"""

import math

from gridmill.testing.cloud import bill
from gridmill.testing.cloud.bill import Bill, Charge, Item
from gridmill.testing.cloud.lambda_cloud.catalogue import TYPES
from gridmill.testing.cloud.lambda_cloud.records import Instance
from gridmill.testing.cloud.lambda_cloud.world import LambdaWorld

_MICROS_PER_CENT = 10_000


def bill_of(world: LambdaWorld, now: float) -> Bill:
    """Returns the bill of the account until `now`, a Unix time in seconds."""
    return Bill(items=tuple(_item(one, now) for one in world.instances.all() if one.active_at is not None))


def _item(instance: Instance, now: float) -> Item:
    until = now if instance.ended_at is None else instance.ended_at
    since = until if instance.active_at is None else instance.active_at
    seconds = 60 * math.ceil((until - since) / 60)
    price = TYPES[instance.type].cents_per_hour * _MICROS_PER_CENT
    return Item(
        charge=Charge.MACHINE,
        subject=instance.id,
        detail=f"{instance.type} in {instance.region}",
        seconds=seconds,
        amount_micros=bill.by_the_hour(seconds, price),
        is_running=instance.ended_at is None,
    )


def leftovers(world: LambdaWorld) -> list[str]:
    """Returns the ids of all instances, SSH keys and firewall rulesets that still exist."""
    found = [one.id for one in world.instances.all() if one.status != "terminated"]
    found += [one.id for one in world.keys.all()]
    found += [one.id for one in world.rulesets.all()]
    return found
