"""GPUs whose owner shares them: each counts as so many, numbered through (0 to 3 are the first one's)."""

from collections.abc import Iterable, Sequence

GPU_SHARES = "gpu_shares"
"""A setting of the local site: as how many GPUs each of its counts."""
POD_GPUS, POD_GPU_SHARES = "GRIDMILL_GPUS", "GRIDMILL_POD_GPU_SHARES"
"""To a pod, by its environment: which of a machine's GPUs it has where its site gave it some, as in
CUDA_VISIBLE_DEVICES; as how many GPUs each of them counts."""


def pick(free: Iterable[int], count: int, shares: int = 1) -> tuple[int, ...] | None:
    """`count` of those that are free: of one GPU where that is less than a whole one (of the one with the
    least left, so that others stay whole), else whole ones. None where there are not so many."""
    if not count:
        return ()
    left: dict[int, list[int]] = {}
    for number in sorted(free):
        left.setdefault(number // shares, []).append(number)
    if count < shares:
        roomy = [numbers for numbers in left.values() if len(numbers) >= count]
        return tuple(min(roomy, key=len)[:count]) if roomy else None
    whole = [number for numbers in left.values() if len(numbers) == shares for number in numbers]
    wanted = -(-count // shares) * shares
    return tuple(whole[:wanted]) if len(whole) >= wanted else None


def devices_of(numbers: Sequence[int], shares: int = 1) -> tuple[int, ...]:
    """The GPUs themselves, each once."""
    return tuple(dict.fromkeys(number // shares for number in numbers))


def share_of(numbers: Sequence[int], shares: int = 1) -> float:
    """How much of each of its GPUs is its own: 1 where they are whole."""
    return min(1.0, len(numbers) / shares) if numbers else 1.0
