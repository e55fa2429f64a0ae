"""The GPU memory of a model's code: what nvidia-smi measures, the share of one replica, and the GPU that a
replica uses."""

import math
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

from gridmill.domain.amounts import MIB
from gridmill.domain.frozen import dataclass
from gridmill.domain.serving import ServiceOrder

SHARE_VARIABLE = "GRIDMILL_GPU_SHARE"
"""The environment variable with the share of each GPU that an attempt has (0 to 1), if GPUs are shared."""
LOOK_SECONDS = 5.0
"""The age in seconds from which a measurement is repeated."""
_SMI_SECONDS = 20.0
_NUMBERS = "--format=csv,noheader,nounits"


class GpuMemory:
    """Measures the GPU memory of processes. A measurement runs in a thread, so that no request waits for
    it."""

    def __init__(self, look_seconds: float = LOOK_SECONDS) -> None:
        self._look_seconds = look_seconds
        self._looking = threading.Lock()
        self._looked = -math.inf
        self._used: Mapping[int, int] = {}

    def of_group(self, group: int, *, wait: bool = False) -> int:
        """Return the GPU memory in bytes of the processes of a process group, by the last measurement. With
        `wait`, it is measured now. It is 0 if nothing was measured."""
        if wait:
            self._look()
        elif time.monotonic() - self._looked > self._look_seconds and not self._looking.locked():
            threading.Thread(target=self._look, daemon=True).start()
        return sum(used for pid, used in self._used.items() if _group_of(pid) == group)

    def _look(self) -> None:
        with self._looking:
            self._used = dict(read_processes(_smi("--query-compute-apps=pid,used_memory")))
            self._looked = time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShare:
    """The GPU memory in bytes that the code of one replica may use, and the measurement of its use. The
    largest batch of the replica has `max_batch` rows."""

    share_bytes: int
    max_batch: int
    memory: GpuMemory


def read_processes(output: str) -> Iterator[tuple[int, int]]:
    """Parse lines `PID, MIB` of nvidia-smi: yield each process with its GPU memory in bytes on all GPUs. A
    line without a number (`[N/A]`) is left out."""
    used: dict[int, int] = {}
    for line in output.splitlines():
        pid, _, size = (part.strip() for part in line.partition(","))
        if pid.isdigit() and size.isdigit():
            used[int(pid)] = used.get(int(pid), 0) + int(size) * MIB
    yield from used.items()


def share_bytes(visible: str, share: str, replicas: int) -> int | None:
    """Return the GPU memory in bytes that the code of one replica may use: the share of a GPU that the
    service has, divided by the replicas on this GPU. A single replica has the shares of all GPUs. `visible`
    and `share` are the values of CUDA_VISIBLE_DEVICES and GRIDMILL_GPU_SHARE. The result is None without a
    GPU, and if its size is not known."""
    gpus = _names(visible)
    if not gpus:
        return None
    words = _smi("--query-gpu=memory.total", f"--id={','.join(gpus)}").split()
    sizes = [int(word) * MIB for word in words if word.isdigit()]
    if not sizes:
        return None
    whole = sum(sizes) if replicas < 2 else min(sizes) / math.ceil(replicas / len(gpus))
    return int(float(share or 1) * whole)


def gpus_of_replica(visible: str, number: int, replicas: int) -> str:
    """Return the GPUs of the replica with this number, in the form of CUDA_VISIBLE_DEVICES. A single replica
    gets all GPUs of its service. Several replicas get one GPU each, so that each GPU has few copies of the
    model."""
    gpus = _names(visible)
    return visible if replicas < 2 or not gpus else gpus[number % len(gpus)]


def take_share(order: ServiceOrder, number: int) -> GpuShare | None:
    """Choose the GPU of this process, which is the replica `number` of the order, and return its share of
    it. The result is None without a GPU, and if the size of the GPU is not known."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    replicas = max(order.replicas, order.scaling.most if order.scaling is not None else 0)
    limit = share_bytes(visible, os.environ.get(SHARE_VARIABLE, ""), replicas)
    if visible:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus_of_replica(visible, number, replicas)
    if limit is None:
        return None
    return GpuShare(share_bytes=limit, max_batch=order.max_batch, memory=GpuMemory())


def _names(visible: str) -> list[str]:
    return [name for name in visible.split(",") if name]


def _smi(*words: str) -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [program, *words, _NUMBERS], capture_output=True, text=True, timeout=_SMI_SECONDS, check=False
        )
        return done.stdout
    return ""


def _group_of(pid: int) -> int:
    with suppress(ProcessLookupError):
        return os.getpgid(pid)
    return 0
