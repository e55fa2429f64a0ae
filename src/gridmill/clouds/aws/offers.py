"""The types of EC2 machines with their prices.

Sources: DescribeInstanceTypes, DescribeInstanceTypeOfferings and DescribeSpotPriceHistory in the EC2 API
Reference; GetProducts in the AWS Price List API Reference, whose servers are in a few regions only.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Any

from gridmill.clouds.aws.launch import PROVIDER
from gridmill.clouds.aws.requests import AwsRequests
from gridmill.clouds.offer_cache import CachedOffers, OfferCache
from gridmill.domain.amounts import MIB
from gridmill.domain.frozen import replace
from gridmill.domain.lease import MICROS
from gridmill.domain.machine import Offer
from gridmill.errors import UnavailableError

_PRICES = {"cn": "cn-northwest-1"}
"""The region of the server with the prices, by the first part of a region's name. For all other regions it
is us-east-1."""
_GIGABYTE = 10**9
CACHE_SECONDS = 86_400.0
"""The time for which offers are used again."""
SPOT_SECONDS = 300.0
"""The time for which spot prices are used again. The control node reads the offers as often before it rents a
machine. AWS changes the prices at any time, so that an older price may be far below the price to pay."""


class Offers:
    """The offers of an account, cached in memory and in a folder for a day, and their spot prices for five
    minutes. Prices that could not be read are not cached."""

    def __init__(self, requests: AwsRequests, folder: str, now: Callable[[], float] = time.time) -> None:
        self._requests, self._now = requests, now
        self._cache = OfferCache(PROVIDER, folder, CACHE_SECONDS)

    def in_region(self, region: str, instance_type: str = "") -> tuple[Offer, ...]:
        """Return the offers of a region, all or those of one type."""
        cached = self._cache.get(region, self._now())
        if cached is None:
            cached, is_whole = self._read(region)
            if is_whole:
                self._cache.keep(region, cached)
        elif not 0 <= self._now() - cached.spot_read < SPOT_SECONDS:
            cached = self._with_spot_prices(region, cached)
        return tuple(one for one in cached.offers if instance_type in ("", one.instance_type))

    def _with_spot_prices(self, region: str, cached: CachedOffers) -> CachedOffers:
        """Return the offers with the present spot prices. If these cannot be read, they are unknown."""
        now, prices = self._now(), self._spot_prices(region)
        offers = tuple(
            replace(one, spot_price_micros=(prices or {}).get(one.instance_type)) for one in cached.offers
        )
        fresh = CachedOffers(read=cached.read, offers=offers, spot_read=now)
        if prices is not None:
            self._cache.keep(region, fresh)
        return fresh

    def _read(self, region: str) -> tuple[CachedOffers, bool]:
        """Ask the provider. Return the offers, and whether prices could be read."""
        with ThreadPoolExecutor(4) as threads:
            types = threads.submit(self._types, region)
            zones = threads.submit(self._zones, region)
            spot = threads.submit(self._spot_prices, region)
            prices = threads.submit(self._prices, region)
            known, spot_known = prices.result(), spot.result()
            offers = offers_of(region, types.result(), zones.result(), known or {}, spot_known or {})
        now = self._now()
        offers = tuple(replace(one, read=now) for one in offers)
        is_whole = known is not None and spot_known is not None
        return CachedOffers(read=now, offers=offers, spot_read=now), is_whole

    def _types(self, region: str) -> list[Mapping[str, Any]]:
        return list(
            self._requests.pages("ec2", region, "DescribeInstanceTypes", "InstanceTypes", MaxResults=100)
        )

    def _zones(self, region: str) -> dict[str, tuple[str, ...]]:
        zones: dict[str, set[str]] = {}
        for one in self._requests.pages(
            "ec2",
            region,
            "DescribeInstanceTypeOfferings",
            "InstanceTypeOfferings",
            LocationType="availability-zone",
        ):
            zones.setdefault(one["InstanceType"], set()).add(one["Location"])
        return {name: tuple(sorted(names)) for name, names in zones.items()}

    def _spot_prices(self, region: str) -> dict[str, int] | None:
        try:
            return spot_prices(
                self._requests.pages(
                    "ec2",
                    region,
                    "DescribeSpotPriceHistory",
                    "SpotPriceHistory",
                    StartTime=datetime.now(UTC),
                    ProductDescriptions=["Linux/UNIX"],
                )
            )
        except UnavailableError:
            return None

    def _prices(self, region: str) -> dict[str, int] | None:
        """Return the prices on demand by type, or None if the prices cannot be read."""
        fixed = {
            "regionCode": region,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
        }
        filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in fixed.items()]
        try:
            return on_demand_prices(
                self._requests.pages(
                    "pricing",
                    _PRICES.get(region.partition("-")[0], "us-east-1"),
                    "GetProducts",
                    "PriceList",
                    ServiceCode="AmazonEC2",
                    Filters=filters,
                    MaxResults=100,
                )
            )
        except UnavailableError:
            return None


def micros_of(text: str) -> int | None:
    """Return a price in micro-units, rounded up, or None if the text is not a price above zero."""
    try:
        price = Decimal(text) * MICROS
    except InvalidOperation:
        return None
    return int(price.to_integral_value(ROUND_CEILING)) if price.is_finite() and price > 0 else None


def spot_prices(history: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the price of spot machines by type: the highest of the present prices of the region's zones, so
    that a limit holds in every zone."""
    newest: dict[tuple[str, str], tuple[Any, int]] = {}
    for one in history:
        price, key = micros_of(one["SpotPrice"]), (one["InstanceType"], one["AvailabilityZone"])
        if price is not None and (key not in newest or newest[key][0] < one["Timestamp"]):
            newest[key] = one["Timestamp"], price
    prices: dict[str, int] = {}
    for (instance_type, _), (_, price) in newest.items():
        prices[instance_type] = max(price, prices.get(instance_type, 0))
    return prices


def on_demand_prices(products: Iterable[Any]) -> dict[str, int]:
    """Return the prices per hour by type, in micro-units of USD. A product is a JSON text."""
    prices: dict[str, int] = {}
    for text in products:
        product = json.loads(text) if isinstance(text, str) else text
        name = product["product"]["attributes"].get("instanceType", "")
        price = _hourly(product)
        if name and price is not None:
            prices[name] = max(price, prices.get(name, 0))
    return prices


def _hourly(product: Mapping[str, Any]) -> int | None:
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            if dimension.get("unit") == "Hrs":
                return micros_of(dimension.get("pricePerUnit", {}).get("USD", ""))
    return None


def offers_of(
    region: str,
    types: Iterable[Mapping[str, Any]],
    zones: Mapping[str, tuple[str, ...]],
    prices: Mapping[str, int],
    spot: Mapping[str, int],
) -> tuple[Offer, ...]:
    """Return the offers of a region, by type. A type that no zone offers is left out. A type with GPUs that
    are no NVIDIA GPUs, and a type without x86_64 or arm64 processors, is left out too."""
    offers = [
        _offer(region, one, zones[one["InstanceType"]], prices, spot)
        for one in types
        if zones.get(one["InstanceType"]) and _is_usable(one)
    ]
    return tuple(sorted(offers, key=lambda offer: offer.instance_type))


def _is_usable(described: Mapping[str, Any]) -> bool:
    gpus = described.get("GpuInfo", {}).get("Gpus") or ()
    return _architecture(described) != "" and all(gpu.get("Manufacturer") == "NVIDIA" for gpu in gpus)


def _architecture(described: Mapping[str, Any]) -> str:
    supported = described.get("ProcessorInfo", {}).get("SupportedArchitectures") or ()
    return next((one for one in ("x86_64", "arm64") if one in supported), "")


def _offer(
    region: str,
    described: Mapping[str, Any],
    zones: tuple[str, ...],
    prices: Mapping[str, int],
    spot: Mapping[str, int],
) -> Offer:
    name = described["InstanceType"]
    gpus = described.get("GpuInfo", {}).get("Gpus") or ()
    on_demand = "on-demand" in described.get("SupportedUsageClasses", ("on-demand",))
    return Offer(
        provider=PROVIDER,
        region=region,
        zones=zones,
        instance_type=name,
        cpus=described["VCpuInfo"]["DefaultVCpus"],
        memory_bytes=described["MemoryInfo"]["SizeInMiB"] * MIB,
        gpus=sum(_gpu_count(gpu) for gpu in gpus),
        gpu_model=gpus[0].get("Name", "") if gpus else "",
        gpu_memory_bytes=min((gpu["MemoryInfo"]["SizeInMiB"] * MIB for gpu in gpus), default=0),
        architecture=_architecture(described),
        disk_bytes=described.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0) * _GIGABYTE,
        price_micros=prices.get(name) if on_demand else None,
        spot_price_micros=spot.get(name),
    )


def _gpu_count(gpu: Mapping[str, Any]) -> int:
    # a fraction of a GPU, as on g6f, has the count 0 or no count
    return max(1, int(gpu.get("Count") or 0))
