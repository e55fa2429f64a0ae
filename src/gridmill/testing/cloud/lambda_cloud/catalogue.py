"""The regions, instance types and images of the simulated Lambda Cloud.

Sources: the regions are those of https://docs.lambda.ai/public-cloud/on-demand/#regions, and the names and
shapes those of https://docs-api.lambda.ai/api/cloud#listInstanceTypes. The sizes and prices were those of
https://lambda.ai/pricing at some time, and are only examples.
"""

from gridmill.domain.frozen import dataclass

REGIONS = {
    "us-east-1": "Virginia, USA",
    "us-west-1": "California, USA",
    "us-west-2": "Arizona, USA",
    "us-south-1": "Texas, USA",
    "us-midwest-1": "Illinois, USA",
    "europe-central-1": "Germany",
    "asia-northeast-1": "Osaka, Japan",
}
"""For each region: the location that it has in answers."""
WITHOUT_FIREWALL = {"us-south-1"}
"""Regions whose instances the firewall rules do not apply to.

Source: https://docs-api.lambda.ai/api/cloud#firewallRulesList
"""
DEFAULT_INSTANCES = 20
"""How many instances a new account of the simulation can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """An instance type. `regions` are those that offer it."""

    name: str
    description: str
    gpu_description: str
    cents_per_hour: int
    vcpus: int
    memory_gib: int
    storage_gib: int
    gpus: int
    regions: tuple[str, ...]
    architecture: str = "x86_64"


def _type(
    name: str,
    gpu: str,
    numbers: tuple[int, int, int, int, int],
    regions: tuple[str, ...],
    architecture: str = "x86_64",
) -> InstanceType:
    gpus, vcpus, memory, storage, cents = numbers
    return InstanceType(
        name=name,
        description=f"{gpus}x {gpu}" if gpus else f"{vcpus}x vCPU (General purpose)",
        gpu_description=gpu,
        cents_per_hour=cents,
        vcpus=vcpus,
        memory_gib=memory,
        storage_gib=storage,
        gpus=gpus,
        regions=regions,
        architecture=architecture,
    )


_ALL = tuple(REGIONS)
TYPES = {
    one.name: one
    for one in (
        _type("cpu_4x_general", "N/A", (0, 4, 16, 512, 8), ("us-east-1", "us-west-1")),
        _type("gpu_1x_a10", "A10 (24 GB PCIe)", (1, 30, 200, 1400, 75), _ALL),
        _type("gpu_1x_a6000", "A6000 (48 GB)", (1, 14, 100, 512, 80), ("us-south-1",)),
        _type("gpu_1x_a100_sxm4", "A100 (40 GB SXM4)", (1, 30, 220, 512, 129), ("us-east-1", "us-west-2")),
        _type("gpu_8x_a100", "A100 (40 GB SXM4)", (8, 124, 1800, 6144, 1032), ("us-east-1", "us-west-1")),
        _type("gpu_1x_h100_pcie", "H100 (80 GB PCIe)", (1, 26, 225, 1024, 249), ("us-west-1", "us-west-2")),
        _type("gpu_8x_h100_sxm5", "H100 (80 GB SXM5)", (8, 208, 1800, 22528, 2392), ("us-south-1",)),
        _type("gpu_1x_gh200", "GH200 (96 GB)", (1, 64, 432, 4096, 149), ("us-east-1", "us-west-1"), "arm64"),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image in one region."""

    id: str
    name: str
    description: str
    family: str
    version: str
    architecture: str
    region: str


_IMAGES = (
    ("lambda-stack-22-04", "22.04.5", "Lambda Stack 22.04", "x86_64"),
    ("lambda-stack-22-04", "22.04.5", "Lambda Stack 22.04", "arm64"),
    ("gpu-base-22-04", "22.04.3", "GPU Base 22.04", "x86_64"),
    ("ubuntu-lts", "24.04.1", "Ubuntu LTS", "x86_64"),
)
DEFAULT_FAMILY = "lambda-stack-22-04"
IMAGES = tuple(
    Image(
        id=f"{number:08x}-0000-4000-8000-{place:012x}",
        name=f"{family}-{version}",
        description=description,
        family=family,
        version=version,
        architecture=architecture,
        region=region,
    )
    for place, region in enumerate(REGIONS)
    for number, (family, version, description, architecture) in enumerate(_IMAGES)
)
