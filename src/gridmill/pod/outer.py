"""Kills for memory that others count: the cgroup that a batch system holds the pod in, and the machine."""

from functools import cache
from pathlib import Path

from gridmill.pod.cgroups import own_hierarchies

_VMSTAT = Path("/proc/vmstat")


def outer_oom_kills() -> int:
    """How many processes of the cgroup that this process is in were killed for their memory; 0 where it
    cannot be told."""
    file = _counter()
    return _oom_kills(file) if file is not None else 0


def machine_oom_kills() -> int:
    """How many processes of the machine were killed for memory since it booted; 0 where it cannot be told."""
    return _oom_kills(_VMSTAT)


@cache
def _counter() -> Path | None:
    own = own_hierarchies()
    folder = own.v1.get("memory")
    if folder is not None:
        return folder / "memory.oom_control"
    return own.unified / "memory.events" if own.unified is not None else None


def _oom_kills(file: Path) -> int:
    try:
        words = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return 0
    return sum(int(word[1]) for word in words if len(word) == 2 and word[0] == "oom_kill")
