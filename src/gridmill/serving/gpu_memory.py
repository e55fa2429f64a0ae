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

from gridmill.domain.amounts import MIB, POD_GPU_SHARES
from gridmill.domain.frozen import dataclass
from gridmill.domain.gpu_sharing import gpu_limit
from gridmill.domain.serving import ServiceOrder

SHARE_VARIABLE = "GRIDMILL_GPU_SHARE"
"""The environment variable with the share of each GPU that an attempt has (0 to 1), if GPUs are shared."""
LOOK_SECONDS = 5.0
"""The age in seconds from which a measurement is repeated."""
_ON_DEMAND = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
"""The variables with which JAX and TensorFlow allocate GPU memory when they need it. Otherwise, the measured
memory would be what they reserve at their start."""
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
    largest batch of the replica has `max_batch` rows. `gpu_bytes` is the memory of the GPU. On a GPU that
    `is_shared`, the code may use only a little more than it used for its largest batch, because other
    services get the rest."""

    share_bytes: int
    max_batch: int
    memory: GpuMemory
    gpu_bytes: int = 0
    is_shared: bool = False

    def limit_after(self, measured_bytes: int) -> int:
        """Return the limit of code that used this GPU memory for its largest batch."""
        return min(self.share_bytes, gpu_limit(measured_bytes)) if self.is_shared else self.share_bytes


def read_processes(output: str) -> Iterator[tuple[int, int]]:
    """Parse lines `PID, MIB` of nvidia-smi: yield each process with its GPU memory in bytes on all GPUs. A
    line without a number is left out: the driver prints `[N/A]` or `[Insufficient Permissions]` instead of
    the memory on vGPUs, under Windows and for some MIG devices."""
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
    sizes = gpu_sizes(visible)
    if not sizes:
        return None
    whole = sum(sizes) if replicas < 2 else min(sizes) / math.ceil(replicas / len(sizes))
    return int(float(share or 1) * whole)


def gpu_sizes(visible: str) -> list[int]:
    """Return the memory in bytes of each GPU in `visible`, in the form of CUDA_VISIBLE_DEVICES. The result is
    empty if the memory of a GPU is not known, or if a GPU is in MIG mode. Then a process has only a part of
    the GPU, and nvidia-smi prints the memory of the whole GPU."""
    gpus = _names(visible)
    if not gpus or any(name.startswith("MIG-") for name in gpus):
        return []
    ids = f"--id={','.join(gpus)}"
    words = [line.strip() for line in _smi("--query-gpu=memory.total", ids).splitlines()]
    sizes = [int(word) * MIB for word in words if word.isdigit()]
    # a separate query, because old drivers refuse a query with an unknown field
    if len(sizes) != len(gpus) or "Enabled" in _smi("--query-gpu=mig.mode.current", ids):
        return []
    return sizes


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
    sizes, limit = gpu_sizes(visible), share_bytes(visible, os.environ.get(SHARE_VARIABLE, ""), replicas)
    if visible:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus_of_replica(visible, number, replicas)
    if limit is None:
        return None
    is_shared = len(sizes) == 1 and int(os.environ.get(POD_GPU_SHARES, "1")) > 1
    for name, value in _ON_DEMAND.items() if is_shared else ():
        os.environ.setdefault(name, value)
    return GpuShare(
        share_bytes=limit if order.gpu_memory_bytes is None else order.gpu_memory_bytes,
        max_batch=order.max_batch,
        memory=GpuMemory(),
        gpu_bytes=min(sizes, default=0),
        is_shared=is_shared,
    )


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
