"""The types of machines of Lambda Cloud with their prices, as pure functions.

Source: `GET /api/v1/instance-types` in the OpenAPI description. The answer names, for each type, the regions
that have a free machine now. The memory of a GPU is only in the description of the GPU, such as
`A100 (40 GB SXM4)`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gridmill.clouds.lambda_cloud.launch import PROVIDER
from gridmill.domain.amounts import GIB
from gridmill.domain.machine import Offer

REGIONS = (
    "us-east-1",
    "us-west-1",
    "us-south-1",
    "us-midwest-1",
    "us-west-2",
    "us-east-2",
    "us-east-3",
    "us-midwest-2",
    "us-south-2",
    "us-south-3",
    "us-west-3",
    "europe-central-1",
    "asia-northeast-1",
    "asia-northeast-2",
    "asia-south-1",
    "australia-east-1",
    "me-west-1",
)
"""The regions of PublicRegionCode in the OpenAPI description."""
_GPU_MEMORY = re.compile(r"\((\d+)\s*G(?:i)?B\b")
_ARM = re.compile(r"(?:^|_)g[bh]\d00(?:_|$)")
_CENT_MICROS = 10_000


def offers_of(
    types: Mapping[str, Mapping[str, Any]], permits: Callable[[str], bool], now: float
) -> tuple[Offer, ...]:
    """Return the offers in the permitted regions, by region and type. A type without a free machine in any
    permitted region is offered in the first permitted region, so that a job can wait for it. A type whose
    GPUs have an unknown memory is left out."""
    offers = [
        _offer(described["instance_type"], region, memory, now)
        for described in types.values()
        if (memory := _gpu_memory(described["instance_type"])) is not None
        for region in _regions(described, permits)
    ]
    return tuple(sorted(offers, key=lambda offer: (offer.region, offer.instance_type)))


def free_regions(described: Mapping[str, Any]) -> frozenset[str]:
    """Return the regions that have a free machine of a type."""
    return frozenset(str(one["name"]) for one in described["regions_with_capacity_available"])


def _regions(described: Mapping[str, Any], permits: Callable[[str], bool]) -> Iterable[str]:
    free = [region for region in free_regions(described) if permits(region)]
    return free or [region for region in REGIONS if permits(region)][:1]


def _gpu_memory(one: Mapping[str, Any]) -> int | None:
    """Return the memory of each GPU in bytes, 0 for a type without GPUs, or None if it is unknown."""
    if not one["specs"].get("gpus", 0):
        return 0
    texts = (str(one.get(name) or "") for name in ("gpu_description", "description"))
    found = next((match for text in texts if (match := _GPU_MEMORY.search(text))), None)
    return int(found[1]) * GIB if found else None


def _offer(one: Mapping[str, Any], region: str, gpu_memory_bytes: int, now: float) -> Offer:
    specs = one["specs"]
    cents = int(one.get("price_cents_per_hour") or 0)
    return Offer(
        provider=PROVIDER,
        region=region,
        zones=(region,),
        instance_type=str(one["name"]),
        cpus=int(specs["vcpus"]),
        memory_bytes=int(specs["memory_gib"]) * GIB,
        gpus=int(specs.get("gpus", 0)),
        gpu_model=str(one.get("gpu_description") or "").partition(" (")[0] if gpu_memory_bytes else "",
        gpu_memory_bytes=gpu_memory_bytes,
        architecture=_architecture(one),
        disk_bytes=int(specs.get("storage_gib", 0)) * GIB,
        price_micros=cents * _CENT_MICROS if cents > 0 else None,
        read=now,
    )


def _architecture(one: Mapping[str, Any]) -> str:
    """Return the architecture of the processors. Older versions of the API do not state it: the types with
    Grace processors (GH200, GB200, GB300) have Arm processors."""
    stated = str(one.get("architecture") or "")
    if stated in ("arm64", "aarch64"):
        return "arm64"
    return "arm64" if not stated and _ARM.search(str(one["name"])) else "x86_64"
