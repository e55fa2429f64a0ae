"""The types, regions and quotas of a simulated provider."""

from collections.abc import Mapping
from dataclasses import field

from gridmill.domain.frozen import dataclass
from gridmill.domain.lease import MICROS
from gridmill.domain.rental_estimate import Charges
from gridmill.ports.cloud import ProviderTraits, Quota, SelfEnd

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedType:
    """A type of machine. `family` is the group of types that share a quota. The prices are per hour, in
    micro-units of USD, and None if they are unknown."""

    name: str
    family: str
    cpus: int
    memory_bytes: int
    gpus: int = 0
    gpu_model: str = ""
    gpu_memory_bytes: int = 0
    price_micros: int | None
    spot_price_micros: int | None = None
    architecture: str = "x86_64"


TYPES = (
    SimulatedType(
        name="sim.small",
        family="sim",
        cpus=2,
        memory_bytes=8 * GIB,
        price_micros=MICROS // 10,
        spot_price_micros=MICROS // 25,
    ),
    SimulatedType(
        name="sim.large",
        family="sim",
        cpus=8,
        memory_bytes=32 * GIB,
        price_micros=4 * MICROS // 10,
        spot_price_micros=MICROS // 8,
    ),
    SimulatedType(
        name="gpu.one",
        family="gpu",
        cpus=4,
        memory_bytes=16 * GIB,
        gpus=1,
        gpu_model="A10G",
        gpu_memory_bytes=24 * GIB,
        price_micros=MICROS,
        spot_price_micros=MICROS // 3,
    ),
    SimulatedType(
        name="gpu.eight",
        family="gpu",
        cpus=96,
        memory_bytes=384 * GIB,
        gpus=8,
        gpu_model="A100",
        gpu_memory_bytes=40 * GIB,
        price_micros=12 * MICROS,
        spot_price_micros=5 * MICROS,
    ),
    SimulatedType(
        name="odd.unpriced",
        family="odd",
        cpus=4,
        memory_bytes=16 * GIB,
        gpus=1,
        gpu_model="T4",
        gpu_memory_bytes=16 * GIB,
        price_micros=None,
    ),
)
"""The types that a simulated provider offers, unless a test gives others."""

REGIONS: Mapping[str, tuple[str, ...]] = {
    "north-1": ("north-1a", "north-1b"),
    "south-1": ("south-1a", "south-1b"),
}
"""The zones of each region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """The types and regions that a provider offers. `quotas` has the number of CPUs that machines of a family
    may have together in a region, by region, family and whether the machines are spot machines. A quota
    that is missing is without limit. `images` are the known images; without images, every image is
    known. The prices of disks, addresses and transferred data are micro-units of USD per GiB and hour, per
    hour, and per GiB."""

    types: tuple[SimulatedType, ...] = TYPES
    regions: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: REGIONS)
    quotas: Mapping[tuple[str, str, bool], float] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    disk_price_micros: int = 110
    address_price_micros: int = 5_000
    egress_price_micros: int = 90_000

    def type_named(self, name: str) -> SimulatedType | None:
        """Returns the type with this name, or None."""
        return next((kind for kind in self.types if kind.name == name), None)

    def quota_list(self, region: str, used: Mapping[tuple[str, str, bool], float]) -> tuple[Quota, ...]:
        """Returns the quotas in the regions whose names begin with `region`."""
        return tuple(
            Quota(
                region=where,
                name=f"{family} {'spot' if spot else 'on demand'}",
                limit=limit,
                unit="vCPUs",
                types=tuple(kind.name for kind in self.types if kind.family == family),
                spot=spot,
                used=used.get((where, family, spot), 0.0),
            )
            for (where, family, spot), limit in sorted(self.quotas.items())
            if where.startswith(region)
        )


CHARGES = Charges(egress_micros=90_000, disk_micros=110 * 730, address_micros=5_000)
"""The default prices of a catalog in the units in which providers state them."""

TRAITS: Mapping[SelfEnd, ProviderTraits] = {
    SelfEnd.SHUTDOWN: ProviderTraits(
        self_end=SelfEnd.SHUTDOWN, list_lag_seconds=120.0, charges=CHARGES, spot_notice_seconds=120.0
    ),
    SelfEnd.PROVIDER_TIMER: ProviderTraits(
        self_end=SelfEnd.PROVIDER_TIMER, list_lag_seconds=120.0, charges=CHARGES, spot_notice_seconds=30.0
    ),
    SelfEnd.OWN_CALL: ProviderTraits(
        self_end=SelfEnd.OWN_CALL,
        list_lag_seconds=120.0,
        charges=CHARGES,
        launch_gap_seconds=12.0,
        call_gap_seconds=1.0,
    ),
    SelfEnd.NONE: ProviderTraits(
        self_end=SelfEnd.NONE,
        list_lag_seconds=120.0,
        charges=CHARGES,
        launch_gap_seconds=12.0,
        call_gap_seconds=1.0,
    ),
}
"""The properties of a simulated provider for each way in which a machine can end itself. They resemble EC2,
Google Compute Engine, and Lambda Cloud with and without a credential on the machine."""
