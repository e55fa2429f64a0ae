"""The types of machines of Compute Engine with their prices.

Sources: zones.list, machineTypes.list and acceleratorTypes.list in the Compute Engine API reference;
services.skus.list in the Cloud Billing API reference.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from gridmill.clouds.gcp.gpus import GPUS, memory_bytes, with_attached
from gridmill.clouds.gcp.launch import PROVIDER
from gridmill.clouds.gcp.prices import LOCAL_SSD_GIB, SERVICE, Prices, Size
from gridmill.clouds.gcp.requests import GcpRequests, last_part
from gridmill.clouds.offer_cache import CachedOffers, OfferCache
from gridmill.domain.amounts import GIB, MIB
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.machine import Offer
from gridmill.errors import CredentialsError, RefusedError, UnavailableError

CACHE_SECONDS = 86_400.0
"""The time for which offers are used again. Google changes the prices of spot machines at most once a day."""
_SKUS_OF_PAGE = 5000
_ARM = ("a4x-", "c4a-", "n4a-", "t2a-")
"""The families with Arm processors, for types whose architecture the API does not state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneTypes:
    """What a zone offers: machine types as the API describes them, and the names of its accelerator types."""

    zone: str
    types: tuple[Mapping[str, Any], ...]
    accelerators: frozenset[str] = frozenset()


class Offers:
    """The offers of a project, cached in memory and in a folder for a day. If the prices cannot be read, the
    offers are not cached."""

    def __init__(self, requests: GcpRequests, folder: str, now: Callable[[], float] = time.time) -> None:
        self._requests, self._now = requests, now
        self._cache = OfferCache(PROVIDER, folder, CACHE_SECONDS)
        self._prices: tuple[float, Prices] | None = None
        self._reading = threading.Lock()

    def in_regions(self, zones: Mapping[str, tuple[str, ...]], instance_type: str = "") -> tuple[Offer, ...]:
        """Return the offers of regions, all or those of one type. `zones` has the zones of each region."""
        cached = {region: self._cache.get(region, self._now()) for region in zones}
        missing = [region for region, known in cached.items() if known is None]
        if missing:
            cached |= self._read({region: zones[region] for region in missing})
        offers = (offer for known in cached.values() if known is not None for offer in known.offers)
        return tuple(one for one in offers if instance_type in ("", one.instance_type))

    def _read(self, zones: Mapping[str, tuple[str, ...]]) -> dict[str, CachedOffers]:
        places = [zone for names in zones.values() for zone in names]
        found = {one.zone: one for one in self._requests.in_parallel(places, self._types)}
        prices, now = self._present_prices(), self._now()
        read: dict[str, CachedOffers] = {}
        for region, names in zones.items():
            offers = offers_of(region, [found[name] for name in names if name in found], prices or Prices())
            cached = CachedOffers(read=now, offers=tuple(replace(one, read=now) for one in offers))
            read[region] = cached
            if prices is not None:
                self._cache.keep(region, cached)
        return read

    def _types(self, zone: str) -> Iterator[ZoneTypes]:
        types = self._requests.pages("machineTypes.list", f"/zones/{zone}/machineTypes")
        accelerators = self._requests.pages("acceleratorTypes.list", f"/zones/{zone}/acceleratorTypes")
        yield ZoneTypes(
            zone=zone,
            types=tuple(one for one in types if "deprecated" not in one),
            accelerators=frozenset(one["name"] for one in accelerators if "deprecated" not in one),
        )

    def _present_prices(self) -> Prices | None:
        """Return the prices of the catalog, which is the same for all regions, or None if it cannot be
        read."""
        with self._reading:
            if self._prices is None or not 0 <= self._now() - self._prices[0] < CACHE_SECONDS:
                try:
                    self._prices = self._now(), self._read_prices()
                except (UnavailableError, CredentialsError, RefusedError):
                    return None
            return self._prices[1]

    def _read_prices(self) -> Prices:
        prices, token = Prices(), ""
        while True:
            query = {"pageSize": _SKUS_OF_PAGE, **({"pageToken": token} if token else {})}
            page = self._requests.call("billing", "skus.list", f"/v1/services/{SERVICE}/skus", query=query)
            prices.add(page.get("skus") or ())
            token = str(page.get("nextPageToken") or "")
            if not token:
                return prices


def offers_of(region: str, zones: Iterable[ZoneTypes], prices: Prices) -> tuple[Offer, ...]:
    """Return the offers of a region, by type. Types with GPUs of an unknown model are left out."""
    found: dict[str, tuple[Size, Mapping[str, Any], list[str]]] = {}
    for one in zones:
        for name, size, described in _sizes(one):
            found.setdefault(name, (size, described, []))[2].append(one.zone)
    return tuple(
        _offer(region, name, size, described, tuple(sorted(places)), prices)
        for name, (size, described, places) in sorted(found.items())
    )


def _sizes(zone: ZoneTypes) -> Iterator[tuple[str, Size, Mapping[str, Any]]]:
    named = {one["name"]: one for one in zone.types}
    for name, one in named.items():
        gpus = one.get("accelerators") or ()
        if all(gpu.get("guestAcceleratorType") in GPUS for gpu in gpus):
            yield name, _size(one), one
    for accelerator in sorted(zone.accelerators):
        for made in with_attached(accelerator):
            if made.name in named:
                size = replace(_size(named[made.name]), gpus=made.attached, accelerator=accelerator)
                yield str(made), size, named[made.name]


def _size(described: Mapping[str, Any]) -> Size:
    gpus = described.get("accelerators") or ()
    ssds = described.get("bundledLocalSsds") or {}
    return Size(
        name=described["name"],
        cpus=int(described["guestCpus"]),
        memory_gib=Decimal(int(described["memoryMb"])) / 1024,
        gpus=sum(int(gpu.get("guestAcceleratorCount", 0)) for gpu in gpus),
        accelerator=last_part(gpus[0]["guestAcceleratorType"]) if gpus else "",
        local_ssds=int(ssds.get("partitionCount") or 0),
    )


def _offer(
    region: str,
    name: str,
    size: Size,
    described: Mapping[str, Any],
    zones: tuple[str, ...],
    prices: Prices,
) -> Offer:
    return Offer(
        provider=PROVIDER,
        region=region,
        zones=zones,
        instance_type=name,
        cpus=size.cpus,
        memory_bytes=int(described["memoryMb"]) * MIB,
        gpus=size.gpus,
        gpu_model=GPUS[size.accelerator].model if size.gpus else "",
        gpu_memory_bytes=memory_bytes(size.accelerator) if size.gpus else 0,
        architecture=_architecture(described),
        disk_bytes=size.local_ssds * LOCAL_SSD_GIB * GIB,
        price_micros=prices.micros(region, size, spot=False),
        spot_price_micros=prices.micros(region, size, spot=True),
    )


def _architecture(described: Mapping[str, Any]) -> str:
    stated = str(described.get("architecture", "")).lower()
    if stated in ("x86_64", "arm64"):
        return stated
    return "arm64" if described["name"].startswith(_ARM) else "x86_64"
