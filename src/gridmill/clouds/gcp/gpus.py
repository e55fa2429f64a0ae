"""The GPUs of Compute Engine: their memory, quotas and prices, and the machine types to which they can be
attached. The API states only the names of the GPUs and their number in a machine type.

Sources: "GPU machine types" and "Allocation quotas" in the Compute Engine documentation; the descriptions of
the SKUs of Compute Engine in the Cloud Billing catalog.
"""

import re
from collections.abc import Iterator, Mapping

from gridmill.clouds.gcp.launch import MachineType
from gridmill.domain.amounts import GIB
from gridmill.domain.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A model of GPUs: its usual name, its memory, the name of its quota without prefix, and the beginnings
    of the names of the machine types that contain it. `most_cpus` has the largest number of vCPUs of an N1
    machine for each number of attached GPUs; it is empty if the GPU cannot be attached."""

    model: str
    memory_gib: int
    quota: str
    types: tuple[str, ...] = ()
    most_cpus: Mapping[int, int] | None = None


GPUS: Mapping[str, Gpu] = {
    "nvidia-l4": Gpu(model="L4", memory_gib=24, quota="NVIDIA_L4_GPUS", types=("g2-",)),
    "nvidia-tesla-a100": Gpu(
        model="A100", memory_gib=40, quota="NVIDIA_A100_GPUS", types=("a2-highgpu-", "a2-megagpu-")
    ),
    "nvidia-a100-80gb": Gpu(
        model="A100 80GB", memory_gib=80, quota="NVIDIA_A100_80GB_GPUS", types=("a2-ultragpu-",)
    ),
    "nvidia-h100-80gb": Gpu(
        model="H100", memory_gib=80, quota="NVIDIA_H100_GPUS", types=("a3-highgpu-", "a3-edgegpu-")
    ),
    "nvidia-h100-mega-80gb": Gpu(
        model="H100 Mega", memory_gib=80, quota="NVIDIA_H100_MEGA_GPUS", types=("a3-megagpu-",)
    ),
    "nvidia-h200-141gb": Gpu(model="H200", memory_gib=141, quota="NVIDIA_H200_GPUS", types=("a3-ultragpu-",)),
    "nvidia-b200": Gpu(model="B200", memory_gib=180, quota="NVIDIA_B200_GPUS", types=("a4-highgpu-",)),
    "nvidia-rtx-pro-6000": Gpu(
        model="RTX PRO 6000", memory_gib=96, quota="NVIDIA_RTX_PRO_6000_GPUS", types=("g4-standard-",)
    ),
    "nvidia-tesla-t4": Gpu(
        model="T4", memory_gib=16, quota="NVIDIA_T4_GPUS", most_cpus={1: 48, 2: 48, 4: 96}
    ),
    "nvidia-tesla-v100": Gpu(
        model="V100", memory_gib=16, quota="NVIDIA_V100_GPUS", most_cpus={1: 12, 2: 24, 4: 48, 8: 96}
    ),
    "nvidia-tesla-p100": Gpu(
        model="P100", memory_gib=16, quota="NVIDIA_P100_GPUS", most_cpus={1: 16, 2: 32, 4: 64}
    ),
    "nvidia-tesla-p4": Gpu(model="P4", memory_gib=8, quota="NVIDIA_P4_GPUS", most_cpus={1: 24, 2: 48, 4: 96}),
}
"""The GPUs by the names of their accelerator types. Machines with other GPUs are not offered, because the
memory of these GPUs is unknown."""

N1 = tuple(
    f"n1-{kind}-{cpus}"
    for kind, sizes in (
        ("standard", (1, 2, 4, 8, 16, 32, 64, 96)),
        ("highmem", (2, 4, 8, 16, 32, 64, 96)),
        ("highcpu", (2, 4, 8, 16, 32, 64, 96)),
    )
    for cpus in sizes
)
"""The predefined machine types of the only family to which GPUs can be attached."""

_IN_SKU = re.compile(
    r"(?:nvidia )?(?:tesla )?(.+?) gpu (?:attached to (?:spot preemptible )?vms )?running in ", re.IGNORECASE
)
_SKU_NAMES: Mapping[str, str] = {
    "l4": "nvidia-l4",
    "a100": "nvidia-tesla-a100",
    "a100 80gb": "nvidia-a100-80gb",
    "h100 80gb": "nvidia-h100-80gb",
    "h100 80gb mega": "nvidia-h100-mega-80gb",
    "h100 80gb plus": "nvidia-h100-mega-80gb",
    "h200 141gb": "nvidia-h200-141gb",
    "t4": "nvidia-tesla-t4",
    "v100": "nvidia-tesla-v100",
    "p100": "nvidia-tesla-p100",
    "p4": "nvidia-tesla-p4",
}


def memory_bytes(accelerator: str) -> int:
    """Return the memory of each GPU, or 0 if it is unknown."""
    gpu = GPUS.get(accelerator)
    return gpu.memory_gib * GIB if gpu else 0


def gpu_of_sku(description: str) -> str:
    """Return the accelerator type whose price a SKU with this description states; empty if it states none."""
    found = _IN_SKU.match(description)
    return _SKU_NAMES.get(found[1].lower(), "") if found else ""


def with_attached(accelerator: str) -> Iterator[MachineType]:
    """Yield the types that consist of an N1 machine and GPUs of this model."""
    gpu = GPUS.get(accelerator)
    for count, most in (gpu.most_cpus or {}).items() if gpu else ():
        for name in N1:
            if int(name.rpartition("-")[2]) <= most:
                yield MachineType(name=name, attached=count, accelerator=accelerator)


def types_with(accelerator: str) -> tuple[str, ...]:
    """Return the types with GPUs of this model, or the beginnings of their names."""
    return GPUS[accelerator].types + tuple(str(one) for one in with_attached(accelerator))
