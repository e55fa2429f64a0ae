"""Whether the machine on which Ray has put a pod can keep it: Ray believes what `ray start` was told."""

import socket
from dataclasses import dataclass
from pathlib import Path

from gridmill.model.amounts import show_bytes, show_count
from gridmill.model.message import PodOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What it has, and what pods that are there have been promised of its memory. `gpus` None: only the
    driver of another maker knows."""

    memory_bytes: int
    claimed_bytes: int = 0
    gpus: int | None = None


def why_unseen(root_mark: Path) -> str:
    """Why the storage root is not there; empty when it is. `root_mark` lies in its `.sites`."""
    if root_mark.exists():
        return ""
    host, root = socket.gethostname(), root_mark.parent.parent
    return f"the storage root {root} is not seen on host {host}; mount it there under the same path"


def why_unfit(order: PodOrder, machine: Machine, gpus: str = "") -> str:
    """What it lacks of what it promised; empty when it has it. `gpus` are those that Ray gave, as in
    CUDA_VISIBLE_DEVICES."""
    host = socket.gethostname()
    return _without_memory(host, order.capacity.memory_bytes, machine) or _without_gpu(host, gpus, machine)


def _without_memory(host: str, wanted: int, machine: Machine) -> str:
    if machine.claimed_bytes + wanted <= machine.memory_bytes:
        return ""
    others = f", {show_bytes(machine.claimed_bytes)} of it for other pods," if machine.claimed_bytes else ""
    return (
        f"host {host} has {show_bytes(machine.memory_bytes)} of memory{others} and not the "
        f"{show_bytes(wanted)} that it promised for a pod; start Ray there with the right --memory"
    )


def _without_gpu(host: str, given: str, machine: Machine) -> str:
    """Names that are no numbers are parts of a GPU."""
    has = machine.gpus
    missing = [one for one in given.split(",") if one.isdigit() and has is not None and int(one) >= has]
    if not missing:
        return ""
    return (
        f"host {host} has {show_count(has or 0, 'GPU')} and not the one with number {missing[0]} that it "
        "promised for a pod; start Ray there with the right --num-gpus"
    )
