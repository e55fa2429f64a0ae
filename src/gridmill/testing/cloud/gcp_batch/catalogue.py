"""The locations, machine types and prices of the simulated Google Cloud Batch.

Sources: https://cloud.google.com/compute/docs/general-purpose-machines and
https://cloud.google.com/compute/docs/gpus. The prices were those of us-central1 at some time, and are only
examples.
"""

from gridmill.domain.frozen import dataclass

PROJECT = "simulated-project"
LOCATIONS = {
    "us-central1": ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"),
    "us-east1": ("us-east1-b", "us-east1-c", "us-east1-d"),
    "europe-west4": ("europe-west4-a", "europe-west4-b", "europe-west4-c"),
}
"""The zones of each location."""
DEFAULT_TYPE = "e2-standard-4"
"""The machine type of a job that names none. Batch chooses one, in a way that is not documented."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineType:
    """A machine type. `accelerator` is the GPU that it always has. The price is in micro-USD per hour."""

    name: str
    vcpus: int
    memory_mib: int
    price_micros: int
    spot_micros: int
    accelerator: str = ""
    accelerators: int = 0
    takes_accelerators: bool = False


def _of(name: str, vcpus: int, gib: float, price: float, spot: float, *gpus: str) -> MachineType:
    return MachineType(
        name=name,
        vcpus=vcpus,
        memory_mib=int(gib * 1024),
        price_micros=round(price * 1_000_000),
        spot_micros=round(spot * 1_000_000),
        accelerator=gpus[0] if gpus else "",
        accelerators=len(gpus),
        takes_accelerators=name.startswith("n1-"),
    )


MACHINE_TYPES = {
    one.name: one
    for one in (
        _of("e2-standard-2", 2, 8, 0.067, 0.02),
        _of("e2-standard-4", 4, 16, 0.134, 0.04),
        _of("e2-standard-8", 8, 32, 0.268, 0.08),
        _of("n1-standard-4", 4, 15, 0.19, 0.04),
        _of("n1-standard-8", 8, 30, 0.38, 0.08),
        _of("n2-standard-4", 4, 16, 0.1942, 0.047),
        _of("n2-standard-16", 16, 64, 0.7769, 0.188),
        _of("g2-standard-4", 4, 16, 0.7068, 0.28, "nvidia-l4"),
        _of("g2-standard-24", 24, 96, 2.0, 0.8, "nvidia-l4", "nvidia-l4"),
        _of("a2-highgpu-1g", 12, 85, 3.673, 1.8, "nvidia-tesla-a100"),
    )
}
ACCELERATOR_MICROS = {
    "nvidia-tesla-t4": (350_000, 140_000),
    "nvidia-tesla-v100": (2_480_000, 740_000),
}
"""The price of a GPU that an n1 machine can have, per hour: on demand and Spot."""
QUOTAS = {"CPUS": 2400, "GPUS": 64}
"""The number of processors and of GPUs of each region, on demand and Spot apart. The names of the quotas of
Spot machines begin with `PREEMPTIBLE_`."""


def hourly_micros(kind: str, accelerator: str, accelerators: int, *, spot: bool) -> int:
    """Returns the price of a machine in micro-USD per hour."""
    made = MACHINE_TYPES[kind]
    base = made.spot_micros if spot else made.price_micros
    extra = 0 if made.accelerators else accelerators
    return base + extra * ACCELERATOR_MICROS.get(accelerator, (0, 0))[spot]
