"""Observes this machine: its load, the share of the load that Gridmill causes, its memory and its GPUs."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from gridmill.domain.frozen import dataclass
from gridmill.domain.site import Gpu, NodeUtilization
from gridmill.sites.process_table import (
    Table,
    grid_processes,
    owner_processes,
    read_one,
    read_table,
    used_ticks,
)

_PROC = Path("/proc")
_SECONDS = 0.25
_CHECKS = 3
"""A process is assumed to need a CPU if it is ready to run at each of four moments in time."""
_GPU_SECONDS = 10.0
_MIB = 2**20
_GPU_FIELDS = "name,memory.total,memory.used,utilization.gpu"


def look_at_machine(
    seconds: float = _SECONDS, *, with_gpus: bool = True, rays: bool = True
) -> NodeUtilization:
    """Observes the machine for this number of seconds.

    The CPU time is the time that the kernel counts (proc(5)). The CPU time of a process includes its ended
    child processes for which it waited. The module `process_table` defines which processes belong to the
    machine's owner, also for the parameter `rays`. With `with_gpus`, the GPU driver is asked, which may take
    seconds.
    """
    first = _look(rays=rays)
    waiting = {pid for pid in first.owners if first.table[pid].runs}
    for _ in range(_CHECKS):
        time.sleep(seconds / _CHECKS)
        waiting = {pid for pid in waiting if (now := read_one(pid)) is not None and now.runs}
    second = _look(rays=rays)
    passed = [os.sysconf("SC_CLK_TCK") * (then - now) for now, then in zip(first.at, second.at, strict=True)]
    ticks = used_ticks(first.table, second.table, second.owners)
    return NodeUtilization(
        busy_cpus=max(0.0, (second.busy_ticks - first.busy_ticks) / passed[0]),
        owner_cpus=max(ticks / passed[1], float(len(waiting))),
        used_bytes=used_bytes(),
        gpus=gpus() if with_gpus else (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _MachineSample:
    """One measurement of the machine's load. `at` contains two monotonic times: when `busy_ticks` was read,
    and when `table` was read. On a busy machine, reading all processes takes longer than the time between
    the measurements."""

    at: tuple[float, float]
    busy_ticks: int
    table: Table
    owners: frozenset[int]


def _look(*, rays: bool) -> _MachineSample:
    begun, busy = time.monotonic(), _busy_ticks()
    at, table = time.monotonic(), read_table()
    owners = owner_processes(table, grid_processes(table, rays=rays))
    return _MachineSample(at=(begun, at), busy_ticks=busy, table=table, owners=owners)


def _busy_ticks() -> int:
    """Returns the CPU time that was not idle: the fields user, nice, system, irq, softirq and steal of the
    line `cpu` in /proc/stat."""
    words = (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq, steal = map(int, words[:8])
    return user + nice + system + irq + softirq + steal


def used_bytes() -> int:
    """Returns the memory in bytes that a new process cannot get without swapping: all memory except
    MemAvailable of proc(5)."""
    total, available = _memory()
    return total - available


def free_bytes() -> int:
    """Returns the memory in bytes that new processes can get without swapping, but at most the limit of this
    process's cgroup."""
    return min(_memory()[1], memory_of_machine())


def _memory() -> tuple[int, int]:
    """Returns MemTotal and MemAvailable of proc(5), in bytes."""
    lines = (line.split() for line in (_PROC / "meminfo").read_text().splitlines())
    kibibytes = {words[0].rstrip(":"): int(words[1]) for words in lines}
    return kibibytes["MemTotal"] * 1024, kibibytes["MemAvailable"] * 1024


def gpus() -> tuple[Gpu, ...]:
    """Returns the GPUs that nvidia-smi (NVML) lists, or an empty tuple if nvidia-smi does not exist."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    words = [program, f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        stdout = subprocess.run(
            words, capture_output=True, text=True, timeout=_GPU_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(read_gpus(stdout))


def count_gpus(devices: Path = Path("/dev")) -> int | None:
    """Returns the number of GPUs on this machine for jobs, or None if the machine has GPUs of a vendor whose
    driver Gridmill cannot ask."""
    count = len(gpus()) or len(list(devices.glob("nvidia[0-9]*")))
    others = ("kfd", "dxg", "dri/renderD*", "accel/accel*")
    return None if not count and any(any(devices.glob(other)) for other in others) else count


def read_gpus(output: str) -> Iterator[Gpu]:
    """Parses lines `NAME, MIB, MIB, PERCENT` of nvidia-smi. A value that the driver does not report
    (`[N/A]`) becomes 0."""
    for line in output.splitlines():
        fields = [field.strip() for field in line.rsplit(",", 3)]
        if len(fields) == 4:
            total, used, busy = (
                float(field) if field.replace(".", "", 1).isdigit() else 0.0 for field in fields[1:]
            )
            yield Gpu(
                model=fields[0], memory_bytes=int(total * _MIB), used_bytes=int(used * _MIB), busy=busy / 100
            )


def memory_of_machine() -> int:
    """Returns the memory of the machine in bytes, or the limit of this process's cgroup if the limit is
    lower."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_cgroup_limits()])


def _cgroup_limits() -> list[int]:
    """Returns the memory limits of this process's cgroup and of the cgroups above it (cgroup v2 and v1)."""
    limits = []
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            limits += _limits_up_from(controllers, path)
    return limits


def _limits_up_from(controllers: str, path: str) -> list[int]:
    mount, name = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
    base = Path("/sys/fs/cgroup") / mount
    below = Path(path.lstrip("/"))
    texts = [_read(base / folder / name).strip() for folder in (below, *below.parents)]
    return [int(text) for text in texts if text.isdigit()]


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
