"""Prices of Compute Engine from the Cloud Billing catalog, as pure functions.

The catalog has no prices of machine types. It has prices of vCPUs, of memory, of GPUs and of local SSDs, each
for a family of machines and a list of regions. Sources: services.skus.list in the Cloud Billing API
reference; "VM instance pricing" of Compute Engine, which states the parts of vCPUs for which shared-core
machines pay.
"""

import re
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any

from gridmill.clouds.gcp.gpus import gpu_of_sku
from gridmill.domain.frozen import dataclass
from gridmill.domain.lease import MICROS

SERVICE = "6F81-5844-456A"
"""The id of Compute Engine in the catalog."""
LOCAL_SSD_GIB = 375
"""The size of a local SSD."""
_HOURS_OF_MONTH = 730
_PART = re.compile(
    r"(?P<family>[A-Z]\d+[A-Za-z]*)(?: AMD| Arm)?(?: Predefined)? Instance (?P<part>Core|Ram) running in "
)
_C2 = re.compile(r"Compute optimized (?:Instance )?(?P<part>Core|Ram) running in ")
_SSD = re.compile(r"SSD backed Local Storage(?: attached to Spot Preemptible VMs)?(?: in .*)?$")
_SPOT = "Spot Preemptible "
_FAMILIES: Mapping[str, str] = {"a3-megagpu": "a3plus", "a3-ultragpu": "a3ultra"}
"""The families in the catalog for types whose family is not the first part of their name."""
_SHARED_CPUS: Mapping[str, Decimal] = {
    "e2-micro": Decimal("0.25"),
    "e2-small": Decimal("0.5"),
    "e2-medium": Decimal(1),
}
_OWN_RATES = ("f1-", "g1-", "m1-", "m2-", "n1-megamem", "n1-ultramem")
"""Types that have prices of their own, which are not read."""
_OWN_SSDS = ("c4", "h4d", "a4", "z3", "a3-ultragpu")
"""Types whose local SSDs have another price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The parts of a machine that are paid for."""

    name: str
    cpus: int
    memory_gib: Decimal
    gpus: int = 0
    accelerator: str = ""
    local_ssds: int = 0


class Prices:
    """The prices of parts, in USD per hour, by region, kind of rental and part."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bool, str], Decimal] = {}

    def add(self, skus: Iterable[Mapping[str, Any]]) -> None:
        """Add the prices of SKUs. If a part has several prices, the highest counts."""
        for sku in skus:
            spot = usage_of(sku)
            part, price = part_of(str(sku.get("description", ""))), price_of(sku)
            if spot is None or not part or price is None:
                continue
            for region in sku.get("serviceRegions") or ():
                key = region, spot, part
                self._known[key] = max(price, self._known.get(key, price))

    def micros(self, region: str, size: Size, *, spot: bool) -> int | None:
        """Return the price of a machine per hour in micro-units of USD, rounded up, or None if the price of a
        part is unknown."""
        if size.name.startswith(_OWN_RATES) or (size.local_ssds and size.name.startswith(_OWN_SSDS)):
            return None
        cpus = _SHARED_CPUS.get(size.name, Decimal(size.cpus))
        family = _family(size.name)
        amounts = {
            f"core {family}": cpus,
            f"ram {family}": size.memory_gib,
            f"gpu {size.accelerator}": Decimal(size.gpus),
            "ssd": Decimal(size.local_ssds * LOCAL_SSD_GIB),
        }
        total = Decimal(0)
        for part, amount in amounts.items():
            price = self._known.get((region, spot, part)) if amount else Decimal(0)
            if price is None:
                return None
            total += price * amount
        return int((total * MICROS).to_integral_value(ROUND_CEILING))


def _family(name: str) -> str:
    special = next((family for start, family in _FAMILIES.items() if name.startswith(start)), "")
    return special or name.partition("-")[0]


def usage_of(sku: Mapping[str, Any]) -> bool | None:
    """Return whether a SKU has a price of spot machines (True) or of machines on demand (False), or None if
    it has neither."""
    usage = (sku.get("category") or {}).get("usageType")
    return {"OnDemand": False, "Preemptible": True}.get(str(usage))


def part_of(description: str) -> str:
    """Return the part whose price a SKU with this description states, for example `core n1` or
    `gpu nvidia-l4`. The result is empty for anything else, such as custom machines, sole tenancy, committed
    use and licences."""
    text = description.removeprefix(_SPOT)
    if found := _PART.match(text):
        return f"{found['part'].lower()} {found['family'].lower()}"
    if found := _C2.match(text):
        return f"{found['part'].lower()} c2"
    if _SSD.match(text):
        return "ssd"
    gpu = gpu_of_sku(text)
    return f"gpu {gpu}" if gpu else ""


def price_of(sku: Mapping[str, Any]) -> Decimal | None:
    """Return the price of a SKU in USD per hour, or None if it states no such price above zero."""
    pricing = sku.get("pricingInfo") or ()
    expression = (pricing[-1].get("pricingExpression") if pricing else None) or {}
    rates = expression.get("tieredRates") or ()
    if not rates:
        return None
    unit_price = rates[-1].get("unitPrice") or {}
    price = Decimal(str(unit_price.get("units") or 0)) + Decimal(int(unit_price.get("nanos") or 0)).scaleb(-9)
    if unit_price.get("currencyCode", "USD") != "USD" or price <= 0:
        return None
    unit = expression.get("usageUnit", "")
    if unit in ("h", "GiBy.h"):
        return price
    return price / _HOURS_OF_MONTH if unit == "GiBy.mo" else None
