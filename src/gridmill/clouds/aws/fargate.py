"""The sizes that a job on AWS Fargate can have.

Source: ResourceRequirement in the API reference of AWS Batch.
"""

from collections.abc import Mapping

from gridmill.domain.amounts import show_cpus
from gridmill.errors import InputError

_SIZES: Mapping[int, range] = {
    1: range(2, 9),
    2: range(4, 17),
    4: range(8, 31),
    8: range(16, 61, 4),
    16: range(32, 121, 8),
}
"""The memory in GiB that is possible for each number of CPUs."""
_MIB = 1024


def fargate_size(cpus: int, memory_mib: int) -> tuple[int, int]:
    """Return the smallest size of Fargate, in CPUs and MiB, that has these CPUs and this memory. Raises
    InputError if no size is large enough."""
    needed_gib = -(-memory_mib // _MIB)
    for size, memories in _SIZES.items():
        memory_gib = next((one for one in memories if one >= needed_gib), None)
        if size >= cpus and memory_gib is not None:
            return size, memory_gib * _MIB
    raise InputError(
        f"Fargate has no size with {show_cpus(cpus)} and {needed_gib} GiB of memory; the largest has 16 CPUs "
        "and 120 GiB",
        hint="Use a queue with machines of EC2, and set platform=EC2.",
    )
