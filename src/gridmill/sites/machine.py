"""Observes this machine: its load, which part of it is Gridmill's, its memory and its GPUs."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gridmill.domain.frozen import dataclass
from gridmill.domain.site import Gpu, NodeUtilization

_PROC = Path("/proc")
_SECONDS = 0.25
_MODULES = (b"gridmill.", b"ray.scripts")  # as after -m
_PROGRAMS = (b"/gridmill", b"/raylet", b"/gcs_server")
_ADOPT = ("systemd", "init")
_FEW_WORDS = 4
_GPU_SECONDS = 10.0
_MIB = 2**20
_GPU_FIELDS = "name,memory.total,memory.used,utilization.gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """`ticks`: CPU time; `runs`: it wants a CPU just now."""

    parent: int
    ticks: int
    runs: bool


def look_at_machine(seconds: float = _SECONDS) -> NodeUtilization:
    """Watch for that time. CPU time is the kernel's count (proc(5)), ended children that were waited for
    included, but not those of what adopts orphans: these may have been Gridmill's. Gridmill's are pods, Ray's
    nodes and what descends from them (pods adopt orphans)."""
    first = _look()
    time.sleep(seconds)
    second = _look()
    passed = [os.sysconf("SC_CLK_TCK") * (then - now) for now, then in zip(first.at, second.at, strict=True)]
    return NodeUtilization(
        busy_cpus=max(0.0, (second.busy_ticks - first.busy_ticks) / passed[0]),
        owner_cpus=_demand(first.owners, second.owners, passed[1]),
        used_bytes=used_bytes(),
        gpus=gpus(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _MachineSample:
    """`at`: when it looked at the first and at the second. On a busy machine looking through all processes
    takes longer than what lies between two looks."""

    at: tuple[float, float]
    busy_ticks: int
    owners: tuple[int, int]


def _look() -> _MachineSample:
    begun, busy = time.monotonic(), _busy_ticks()
    return _MachineSample(at=(begun, time.monotonic()), busy_ticks=busy, owners=_owners())


def _busy_ticks() -> int:
    """CPU time that was not idle: user, nice, system, irq, softirq and steal of the line `cpu`."""
    words = (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq, steal = map(int, words[:8])
    return user + nice + system + irq + softirq + steal


def owners_processes() -> frozenset[int]:
    """Those that are not Gridmill's, nor this one."""
    return frozenset(_owners_of(dict(_processes())))


def _owners_of(processes: Mapping[int, Process]) -> Iterator[int]:
    owned = {pid: True for pid in processes if pid == os.getpid() or _is_ours(pid)}
    return (pid for pid in processes if not _descends(pid, processes, owned))


def _owners() -> tuple[int, int]:
    """The CPU time that the owner's processes have had, and how many of them want a CPU just now."""
    processes = dict(_processes())
    owners = [processes[pid] for pid in _owners_of(processes)]
    return sum(owner.ticks for owner in owners), sum(owner.runs for owner in owners)


def ray_processes(pid: int) -> tuple[int, ...]:
    """A Ray node's processes: what descends from its first one, without pods and their jobs."""
    processes = dict(_processes())
    pods = {one: True for one in processes if _words(one)[2:4] == [b"-m", b"gridmill.pod"]}
    below = [one for one in processes if _descends(one, processes, {pid: True})]
    return tuple(one for one in below if not _descends(one, processes, dict(pods)))


def _demand(before: tuple[int, int], after: tuple[int, int], ticks: float) -> float:
    """What the owner got; on a machine that is too busy to give it, what was wanted at both looks."""
    return max(0.0, (after[0] - before[0]) / ticks, float(min(before[1], after[1])))


def _descends(pid: int, processes: Mapping[int, Process], owned: dict[int, bool]) -> bool:
    if pid not in owned:
        parent = processes[pid].parent
        owned[pid] = parent in processes and _descends(parent, processes, owned)
    return owned[pid]


def _processes() -> Iterator[tuple[int, Process]]:
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                yield (
                    int(entry.name),
                    read_process(int(entry.name), (_PROC / entry.name / "stat").read_text()),
                )


def read_process(pid: int, stat: str) -> Process:
    """Of a line of /proc/PID/stat."""
    name, _, rest = stat.rpartition(")")
    words = rest.split()
    adopts = pid == 1 or name.partition("(")[2] in _ADOPT
    return Process(
        parent=int(words[1]), ticks=sum(map(int, words[11 : 13 if adopts else 15])), runs=words[0] == "R"
    )


def _is_ours(pid: int) -> bool:
    """A pod or command of Gridmill, or a Ray node's own process."""
    return any(
        word == b"gridmill" or word.startswith(_MODULES) or word.endswith(_PROGRAMS) for word in _words(pid)
    )


def _words(pid: int) -> list[bytes]:
    """The first of its command line."""
    with suppress(OSError):
        return (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")[:_FEW_WORDS]
    return []


def used_bytes() -> int:
    """Memory that a new process cannot have without swapping (all but MemAvailable of proc(5))."""
    lines = (line.split() for line in (_PROC / "meminfo").read_text().splitlines())
    kibibytes = {words[0].rstrip(":"): int(words[1]) for words in lines}
    return (kibibytes["MemTotal"] - kibibytes["MemAvailable"]) * 1024


def gpus() -> tuple[Gpu, ...]:
    """Those that nvidia-smi (NVML) tells of; none without it."""
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
    """How many GPUs a job here can have; None where only the driver of another maker knows."""
    count = len(gpus()) or len(list(devices.glob("nvidia[0-9]*")))
    others = ("kfd", "dxg", "dri/renderD*", "accel/accel*")
    return None if not count and any(any(devices.glob(other)) for other in others) else count


def read_gpus(output: str) -> Iterator[Gpu]:
    """Of lines `NAME, MIB, MIB, PERCENT`; what a driver does not tell (`[N/A]`) is 0."""
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
    """The machine's memory, or our cgroup's limit where that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_cgroup_limits()])


def _cgroup_limits() -> list[int]:
    """Memory limits of this process's cgroups and those above (v2 and v1)."""
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
