"""The prices of the simulated Compute Engine, and their SKUs in the Cloud Billing catalog.

A machine costs the sum of its virtual processors, its memory and its GPUs. Sources:
https://cloud.google.com/billing/docs/reference/rest/v1/services.skus/list (format),
https://cloud.google.com/compute/vm-instance-pricing and https://cloud.google.com/compute/gpus-pricing (what
is charged). The descriptions have the form of the catalog, the numbers and the ids are examples.
"""

import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.testing.cloud.cloud_faults import CloudFaults
from gridmill.testing.cloud.gce.catalogue import MachineType
from gridmill.testing.cloud.gce.records import Accelerators
from gridmill.testing.cloud.gce.refusal import not_found

SERVICE = "6F81-5844-456A"
"""The id of Compute Engine in the Cloud Billing catalog."""
_PLACES: Mapping[str, tuple[tuple[str, ...], int]] = {
    "Americas": (("us-central1", "us-east1", "us-west1"), 100),
    "Netherlands": (("europe-west4",), 110),
}
"""For each place in descriptions: its regions, and its prices in percent."""
_CORES: Mapping[str, tuple[str, int, int]] = {
    "n1": ("N1 Predefined Instance", 31_611_000, 4_237_000),
    "e2": ("E2 Instance", 21_811_590, 2_923_530),
    "g2": ("G2 Instance", 24_988_000, 2_927_000),
    "a2": ("A2 Instance", 31_611_000, 4_237_000),
    "a3": ("A3 Instance", 29_000_000, 2_520_000),
    "t2a": ("T2A Arm Instance", 25_300_000, 3_400_000),
}
"""For each series: its name, and the prices of a virtual processor and of a GiB of memory, in nano-USD per
hour."""
_GPUS: Mapping[str, tuple[str, int]] = {
    "nvidia-tesla-t4": ("Nvidia Tesla T4 GPU", 350_000_000),
    "nvidia-tesla-v100": ("Nvidia Tesla V100 GPU", 2_480_000_000),
    "nvidia-l4": ("Nvidia L4 GPU", 560_040_000),
    "nvidia-tesla-a100": ("Nvidia Tesla A100 GPU", 2_933_908_000),
    "nvidia-a100-80gb": ("Nvidia Tesla A100 80GB GPU", 3_927_410_000),
    "nvidia-h100-80gb": ("Nvidia H100 80GB GPU", 9_796_550_000),
}
_SPOT_PERCENT = 40
_DISKS = {
    "pd-standard": ("Storage PD Capacity", 40_000_000),
    "pd-balanced": ("Balanced PD Capacity", 100_000_000),
    "pd-ssd": ("SSD backed PD Capacity", 170_000_000),
}
ADDRESS_MICROS_PER_HOUR = 5_000
"""The price of an external address of a standard instance, or of a static address.

Source: https://cloud.google.com/vpc/network-pricing#ipaddress
"""
SPOT_ADDRESS_MICROS_PER_HOUR = 2_500
"""The price of an external address of a Spot instance."""
IMAGE_MICROS_PER_GB_MONTH = 50_000
"""The price of the storage of an image. Source: https://cloud.google.com/compute/disks-image-pricing"""
EGRESS_MICROS_PER_GB = 120_000
"""The price of traffic to the internet. Source: https://cloud.google.com/vpc/network-pricing"""
_LARGEST_PAGE = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sku:
    """A price of the catalog. `subject` is the series or the GPU that it belongs to, if any."""

    description: str
    family: str
    group: str
    usage: str
    unit: str
    nanos: int
    regions: tuple[str, ...]
    subject: str = ""

    @property
    def id(self) -> str:
        """Returns an id of the form of the catalog."""
        digest = sha256(self.description.encode()).hexdigest().upper()
        return f"{digest[:4]}-{digest[4:8]}-{digest[8:12]}"


def _place(region: str) -> str:
    return next(name for name, (regions, _) in _PLACES.items() if region in regions)


def _nanos(base: int, place: str, *, spot: bool) -> int:
    nanos = base * _PLACES[place][1] // 100
    return nanos * _SPOT_PERCENT // 100 if spot else nanos


def hourly_micros(
    kind: MachineType, accelerators: tuple[Accelerators, ...], region: str, *, spot: bool
) -> int:
    """Returns the price of a machine per hour, without its disks and its address, in micro-USD."""
    _, core, ram = _CORES[kind.family.name]
    place = _place(region)
    nanos = kind.cpus * _nanos(core, place, spot=spot)
    nanos += kind.memory_mb * _nanos(ram, place, spot=spot) // 1024
    nanos += sum(one.count * _nanos(_GPUS[one.type][1], place, spot=spot) for one in accelerators)
    return (nanos + 500) // 1000


def disk_micros_per_gb_month(kind: str, region: str) -> int:
    """Returns the price of a disk per GB and month, in micro-USD."""
    return _nanos(_DISKS[kind][1], _place(region), spot=False) // 1000


def _skus() -> Iterator[Sku]:
    for place, (regions, _) in _PLACES.items():
        for spot in (False, True):
            usage = "Preemptible" if spot else "OnDemand"
            prefix = "Spot Preemptible " if spot else ""
            for subject, (name, core, ram) in _CORES.items():
                for group, word, base, unit in (("CPU", "Core", core, "h"), ("RAM", "Ram", ram, "GiBy.h")):
                    yield Sku(
                        description=f"{prefix}{name} {word} running in {place}",
                        family="Compute",
                        group="N1Standard" if subject == "n1" else group,
                        usage=usage,
                        unit=unit,
                        nanos=_nanos(base, place, spot=spot),
                        regions=regions,
                        subject=subject,
                    )
            for subject, (name, base) in _GPUS.items():
                attached = " attached to Spot Preemptible VMs" if spot else ""
                yield Sku(
                    description=f"{name}{attached} running in {place}",
                    family="Compute",
                    group="GPU",
                    usage=usage,
                    unit="h",
                    nanos=_nanos(base, place, spot=spot),
                    regions=regions,
                    subject=subject,
                )
        yield from _disk_skus(place, regions)
    yield from _network_skus()


def _disk_skus(place: str, regions: tuple[str, ...]) -> Iterator[Sku]:
    groups = {"pd-standard": "PDStandard", "pd-balanced": "SSD", "pd-ssd": "SSD"}
    for kind, (name, base) in _DISKS.items():
        yield Sku(
            description=name if place == "Americas" else f"{name} in {place}",
            family="Storage",
            group=groups[kind],
            usage="OnDemand",
            unit="GiBy.mo",
            nanos=_nanos(base, place, spot=False),
            regions=regions,
        )


def _network_skus() -> Iterator[Sku]:
    everywhere = tuple(region for regions, _ in _PLACES.values() for region in regions)
    rows = (
        ("External IP Charge on a Standard VM", "IpAddress", "OnDemand", "h", ADDRESS_MICROS_PER_HOUR),
        (
            "External IP Charge on a Spot Preemptible VM",
            "IpAddress",
            "Preemptible",
            "h",
            SPOT_ADDRESS_MICROS_PER_HOUR,
        ),
        ("Static Ip Charge", "IpAddress", "OnDemand", "h", ADDRESS_MICROS_PER_HOUR),
        (
            "Network Internet Data Transfer Out from Americas to Americas",
            "PremiumInternetEgress",
            "OnDemand",
            "GiBy",
            EGRESS_MICROS_PER_GB,
        ),
    )
    for description, group, usage, unit, micros in rows:
        yield Sku(
            description=description,
            family="Network",
            group=group,
            usage=usage,
            unit=unit,
            nanos=1000 * micros,
            regions=everywhere,
        )


def list_skus(
    service: str, faults: CloudFaults, page_size: str, token: str, effective_time: str
) -> dict[str, Any]:
    """Returns a page of the prices of a service. A price is missing if a pattern of `unpriced_types` matches
    its series, such as `g2`, or its GPU, such as `nvidia-l4`."""
    if service != SERVICE:
        raise not_found(f"services/{service}")
    size = int(page_size) if re.fullmatch(r"[1-9]\d*", page_size) else _LARGEST_PAGE
    start = int(token) if token.isdecimal() else 0
    known = [one for one in _skus() if not one.subject or faults.has_price(one.subject)]
    end = start + min(size, _LARGEST_PAGE)
    return {
        "skus": [_shape(one, effective_time) for one in known[start:end]],
        "nextPageToken": str(end) if end < len(known) else "",
    }


def _shape(sku: Sku, effective_time: str) -> dict[str, Any]:
    price = {"currencyCode": "USD", "units": str(sku.nanos // 10**9), "nanos": sku.nanos % 10**9}
    return {
        "name": f"services/{SERVICE}/skus/{sku.id}",
        "skuId": sku.id,
        "description": sku.description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": sku.family,
            "resourceGroup": sku.group,
            "usageType": sku.usage,
        },
        "serviceRegions": list(sku.regions),
        "pricingInfo": [
            {
                "summary": "",
                "pricingExpression": {
                    "usageUnit": sku.unit,
                    "displayQuantity": 1,
                    "tieredRates": [{"startUsageAmount": 0, "unitPrice": price}],
                },
                "currencyConversionRate": 1,
                "effectiveTime": effective_time,
            }
        ],
        "serviceProviderName": "Google",
        "geoTaxonomy": {"type": "REGIONAL", "regions": list(sku.regions)},
    }
