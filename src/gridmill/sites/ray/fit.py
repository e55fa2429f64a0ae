"""Whether the machine on which Ray has put a pod can keep it."""

import socket
from pathlib import Path

from gridmill.model.amounts import show_bytes
from gridmill.model.message import PodOrder


def why_unfit(order: PodOrder, root_mark: Path, memory_bytes: int) -> str:
    """Why not; empty when it can. `root_mark` lies in `.sites` of the storage root, `memory_bytes` is what
    the machine has."""
    host = socket.gethostname()
    if not root_mark.exists():
        root = root_mark.parent.parent
        return f"the storage root {root} is not seen on host {host}; mount it there under the same path"
    wanted = order.capacity.memory_bytes
    if wanted > memory_bytes:
        return (
            f"host {host} has {show_bytes(memory_bytes)} of memory and not the {show_bytes(wanted)} that it "
            "promised for a pod; start Ray there with the right --memory"
        )
    return ""
