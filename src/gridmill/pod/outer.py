"""The cgroup that somebody else holds the pod in, a batch system say: whether it killed for memory."""

from pathlib import Path

from gridmill.pod.cgroups import read_hierarchies


def outer_oom_kills() -> int:
    """How many processes of the cgroup that this process is in were killed for their memory; 0 where it
    cannot be told."""
    try:
        own = read_hierarchies(
            Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
        )
        folder = own.v1.get("memory")
        if folder is not None:
            return _oom_kills(folder / "memory.oom_control")
        return _oom_kills(own.unified / "memory.events") if own.unified is not None else 0
    except (OSError, ValueError):
        return 0


def _oom_kills(file: Path) -> int:
    words = [line.split() for line in file.read_text().splitlines()]
    return sum(int(word[1]) for word in words if len(word) == 2 and word[0] == "oom_kill")
