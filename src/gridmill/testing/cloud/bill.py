"""The bill of a simulated account: an item for each machine, disk and address, and for traffic."""

import math
from collections.abc import Iterable
from enum import StrEnum

from gridmill.domain.frozen import dataclass

MINIMUM_SECONDS = 60
"""Linux machines, disks and addresses are charged by the second, for at least a minute.

Source: https://aws.amazon.com/ec2/pricing/on-demand/ and https://aws.amazon.com/ebs/pricing/
"""
_HOUR_SECONDS = 3600
_MONTH_SECONDS = 30 * 24 * _HOUR_SECONDS
_GB_BYTES = 2**30


class Charge(StrEnum):
    """What an item of a bill is for."""

    MACHINE = "machine"
    DISK = "disk"
    ADDRESS = "public address"
    EGRESS = "egress"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An item of a bill: the cost of one thing in micro-USD. `seconds` is the time that was charged, and
    `is_running` is true if the cost still grows."""

    charge: Charge
    subject: str
    detail: str
    seconds: int
    amount_micros: int
    is_running: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The items of an account. The currency is USD."""

    items: tuple[Item, ...]

    @property
    def total_micros(self) -> int:
        """Returns the sum of all items in micro-USD."""
        return sum(item.amount_micros for item in self.items)

    def of(self, *subjects: str) -> "Bill":
        """Returns the items of the given machines, disks and addresses."""
        return Bill(items=tuple(item for item in self.items if item.subject in subjects))

    def total_seconds(self, charge: Charge = Charge.MACHINE) -> int:
        """Returns the charged seconds of one kind of items."""
        return sum(item.seconds for item in self.items if item.charge == charge)


def item(charge: Charge, subject: str, detail: str, seconds: int, amount: int, is_running: bool) -> Item:
    """Returns an item of a bill. `amount` is its cost in micro-USD."""
    return Item(
        charge=charge,
        subject=subject,
        detail=detail,
        seconds=seconds,
        amount_micros=amount,
        is_running=is_running,
    )


def charged_seconds(spans: Iterable[tuple[float, float]]) -> int:
    """Returns the charged seconds of the given times of use, each with a minimum of a minute."""
    return sum(max(MINIMUM_SECONDS, math.ceil(until - since)) for since, until in spans)


def by_the_hour(seconds: int, price_micros: int) -> int:
    """Returns the cost of `seconds` at a price per hour, rounded to the nearest micro-USD."""
    return (seconds * price_micros + _HOUR_SECONDS // 2) // _HOUR_SECONDS


def by_the_month(seconds: int, size_gb: int, price_micros: int) -> int:
    """Returns the cost of a disk at a price per GB and month of 30 days."""
    return (seconds * size_gb * price_micros + _MONTH_SECONDS // 2) // _MONTH_SECONDS


def by_volume(size_bytes: int, price_micros: int) -> int:
    """Returns the cost of traffic at a price per GB of 2**30 bytes."""
    return (size_bytes * price_micros + _GB_BYTES // 2) // _GB_BYTES
