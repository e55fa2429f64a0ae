"""This module has the kinds of costs that a provider bills, and the provider's prices for everything except
the machine itself."""

from enum import StrEnum
from math import ceil

from gridmill.domain.frozen import dataclass

GIGABYTE = 10**9
"""The number of bytes for which providers state their prices."""
_HOUR_SECONDS = 3600.0
MONTH_SECONDS = 730 * _HOUR_SECONDS
"""The seconds of the month for which providers state the prices of disks."""


class CostKind(StrEnum):
    """A kind of cost that a provider bills."""

    MACHINE = "machine"
    DISK = "disk"
    ADDRESS = "public address"
    EGRESS = "data to home"


@dataclass(frozen=True, slots=True, kw_only=True)
class Charges:
    """The prices of a provider for everything except the machine itself, in micro-units of `currency`: for a
    gigabyte that is sent from the machine, for a gigabyte of disk in a month, and for a public address in an
    hour."""

    egress_micros: int
    disk_micros: int
    address_micros: int
    currency: str = "USD"

    def disk_cost_micros(self, disk_bytes: int, seconds: float) -> int:
        """Return the cost of a disk for a time, rounded up."""
        return ceil(self.disk_micros * (disk_bytes / GIGABYTE) * seconds / MONTH_SECONDS)

    def address_cost_micros(self, seconds: float) -> int:
        """Return the cost of a public address for a time, rounded up."""
        return ceil(self.address_micros * seconds / _HOUR_SECONDS)

    def egress_cost_micros(self, sent_bytes: float) -> int:
        """Return the cost of data that leave the provider, rounded up."""
        return ceil(self.egress_micros * sent_bytes / GIGABYTE)
