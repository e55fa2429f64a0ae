"""The zones, machine types, accelerators, images and quotas of the simulated Compute Engine.

Sources: https://cloud.google.com/compute/docs/machine-resource (sizes),
https://cloud.google.com/compute/docs/gpus (GPUs by machine type),
https://cloud.google.com/compute/docs/gpus/gpu-regions-zones, https://cloud.google.com/compute/resource-usage
(quotas) and https://cloud.google.com/compute/docs/images/os-details (images). The sets of zones are examples.
"""

from collections.abc import Mapping

from gridmill.domain.frozen import dataclass
from gridmill.testing.cloud.gce.records import Accelerators

REGIONS: Mapping[str, tuple[str, ...]] = {
    "us-central1": ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"),
    "us-east1": ("us-east1-b", "us-east1-c", "us-east1-d"),
    "us-west1": ("us-west1-a", "us-west1-b"),
    "europe-west4": ("europe-west4-a", "europe-west4-b", "europe-west4-c"),
}
ZONES = tuple(zone for zones in REGIONS.values() for zone in zones)


def region_of(zone: str) -> str:
    """Returns the region of a zone, which is the name of the zone without its letter."""
    return zone.rpartition("-")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A machine series. `cpu_quota` is the quota of its virtual processors, or empty if the quota is not in
    the list of quotas of a region."""

    name: str
    cpu_quota: str
    zones: tuple[str, ...]
    architecture: str = "X86_64"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineType:
    """A machine type. `accelerators` are the GPUs that it always has."""

    name: str
    family: Family
    cpus: int
    memory_mb: int
    accelerators: Accelerators | None = None
    is_shared: bool = False


_G2_ZONES = ("us-central1-a", "us-central1-b", "us-central1-c", "us-east1-b", "us-east1-d", "europe-west4-a")
FAMILIES = {
    one.name: one
    for one in (
        Family(name="n1", cpu_quota="CPUS", zones=ZONES),
        Family(name="e2", cpu_quota="CPUS", zones=ZONES),
        Family(name="g2", cpu_quota="", zones=_G2_ZONES),
        Family(name="a2", cpu_quota="A2_CPUS", zones=("us-central1-a", "us-central1-f", "europe-west4-a")),
        Family(name="a3", cpu_quota="", zones=("us-central1-a", "us-central1-c", "us-east1-d")),
        Family(
            name="t2a",
            cpu_quota="T2A_CPUS",
            zones=("us-central1-a", "us-central1-f", "europe-west4-a"),
            architecture="ARM64",
        ),
    )
}
_TYPES: tuple[tuple[str, int, float, str, int], ...] = (
    ("e2-micro", 2, 1, "", 0),
    ("e2-standard-2", 2, 8, "", 0),
    ("e2-standard-4", 4, 16, "", 0),
    ("n1-standard-1", 1, 3.75, "", 0),
    ("n1-standard-4", 4, 15, "", 0),
    ("n1-standard-8", 8, 30, "", 0),
    ("n1-highmem-8", 8, 52, "", 0),
    ("g2-standard-4", 4, 16, "nvidia-l4", 1),
    ("g2-standard-8", 8, 32, "nvidia-l4", 1),
    ("g2-standard-24", 24, 96, "nvidia-l4", 2),
    ("a2-highgpu-1g", 12, 85, "nvidia-tesla-a100", 1),
    ("a2-highgpu-2g", 24, 170, "nvidia-tesla-a100", 2),
    ("a2-ultragpu-1g", 12, 170, "nvidia-a100-80gb", 1),
    ("a3-highgpu-1g", 26, 234, "nvidia-h100-80gb", 1),
    ("a3-highgpu-8g", 208, 1872, "nvidia-h100-80gb", 8),
    ("t2a-standard-4", 4, 16, "", 0),
)
MACHINE_TYPES = {
    name: MachineType(
        name=name,
        family=FAMILIES[name.partition("-")[0]],
        cpus=cpus,
        memory_mb=int(memory_gb * 1024),
        accelerators=Accelerators(type=gpu, count=count) if count else None,
        is_shared=name == "e2-micro",
    )
    for name, cpus, memory_gb, gpu, count in _TYPES
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorType:
    """A type of GPU. `quota` is its quota, and `memory_gb` the memory of one GPU."""

    name: str
    description: str
    quota: str
    most_cards: int
    zones: tuple[str, ...]
    is_attachable: bool
    """Whether the GPU can be attached to machine types of the series N1. Others come with a machine type."""


ACCELERATORS = {
    one.name: one
    for one in (
        AcceleratorType(
            name="nvidia-tesla-t4",
            description="NVIDIA T4",
            quota="NVIDIA_T4_GPUS",
            most_cards=4,
            zones=("us-central1-a", "us-central1-b", "us-east1-c", "us-west1-a", "europe-west4-b"),
            is_attachable=True,
        ),
        AcceleratorType(
            name="nvidia-tesla-v100",
            description="NVIDIA V100",
            quota="NVIDIA_V100_GPUS",
            most_cards=8,
            zones=("us-central1-a", "us-west1-a", "us-west1-b"),
            is_attachable=True,
        ),
        AcceleratorType(
            name="nvidia-l4",
            description="NVIDIA L4",
            quota="NVIDIA_L4_GPUS",
            most_cards=8,
            zones=FAMILIES["g2"].zones,
            is_attachable=False,
        ),
        AcceleratorType(
            name="nvidia-tesla-a100",
            description="NVIDIA A100 40GB",
            quota="NVIDIA_A100_GPUS",
            most_cards=16,
            zones=FAMILIES["a2"].zones,
            is_attachable=False,
        ),
        AcceleratorType(
            name="nvidia-a100-80gb",
            description="NVIDIA A100 80GB",
            quota="NVIDIA_A100_80GB_GPUS",
            most_cards=8,
            zones=FAMILIES["a2"].zones,
            is_attachable=False,
        ),
        AcceleratorType(
            name="nvidia-h100-80gb",
            description="NVIDIA H100 80GB",
            quota="NVIDIA_H100_GPUS",
            most_cards=8,
            zones=FAMILIES["a3"].zones,
            is_attachable=False,
        ),
    )
}

_GPU_QUOTAS = tuple(one.quota for one in ACCELERATORS.values())
REGION_QUOTAS = {
    "CPUS": 200,
    "PREEMPTIBLE_CPUS": 0,
    "A2_CPUS": 96,
    "T2A_CPUS": 24,
    "INSTANCES": 720,
    "IN_USE_ADDRESSES": 69,
    "STATIC_ADDRESSES": 21,
    "DISKS_TOTAL_GB": 40_960,
    "SSD_TOTAL_GB": 20_480,
    **dict.fromkeys(_GPU_QUOTAS, 8),
    **{f"PREEMPTIBLE_{quota}": 8 for quota in _GPU_QUOTAS},
}
"""The quotas of a region, and their limits in a new project of the simulation."""
PROJECT_QUOTAS = {"CPUS_ALL_REGIONS": 400, "GPUS_ALL_REGIONS": 16, "FIREWALLS": 100, "NETWORKS": 5}
"""The quotas of the whole project."""

DISK_KINDS = ("pd-standard", "pd-balanced", "pd-ssd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A public image."""

    project: str
    name: str
    family: str
    size_gb: int
    architecture: str
    is_deprecated: bool = False


IMAGES = (
    Image(
        project="ubuntu-os-cloud",
        name="ubuntu-2204-jammy-v20260110",
        family="ubuntu-2204-lts",
        size_gb=10,
        architecture="X86_64",
    ),
    Image(
        project="ubuntu-os-cloud",
        name="ubuntu-2204-jammy-v20251101",
        family="ubuntu-2204-lts",
        size_gb=10,
        architecture="X86_64",
        is_deprecated=True,
    ),
    Image(
        project="ubuntu-os-cloud",
        name="ubuntu-2204-jammy-arm64-v20260110",
        family="ubuntu-2204-lts-arm64",
        size_gb=10,
        architecture="ARM64",
    ),
    Image(
        project="debian-cloud",
        name="debian-12-bookworm-v20260110",
        family="debian-12",
        size_gb=10,
        architecture="X86_64",
    ),
    Image(
        project="deeplearning-platform-release",
        name="pytorch-2-7-cu128-ubuntu-2204-nvidia-570-v20260105",
        family="pytorch-2-7-cu128-ubuntu-2204-nvidia-570",
        size_gb=50,
        architecture="X86_64",
    ),
    Image(
        project="deeplearning-platform-release",
        name="common-cu128-ubuntu-2204-nvidia-570-v20260105",
        family="common-cu128-ubuntu-2204-nvidia-570",
        size_gb=50,
        architecture="X86_64",
    ),
)
