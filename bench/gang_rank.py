"""One rank of the benchmark of gangs: an ordinary PyTorch script. Rank 0 tells when its first collective was
done and what a training step takes; `python gang_rank.py FILE STEPS`."""

import ctypes
import json
import os
import platform
import struct
import sys
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_SYSCALLS = {"x86_64": 298, "aarch64": 241}
_HARDWARE, _INSTRUCTIONS, _SIZE = 0, 1, 112
_INHERIT, _NO_KERNEL, _NO_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
WARM = 50
"""Steps that do not count: buckets are made, buffers grow."""


class Instructions:
    """Those that this process works off outside the kernel, in this thread and those that begin later
    (perf_event_open, see its manual page)."""

    def __init__(self) -> None:
        flags = _INHERIT | _NO_KERNEL | _NO_HYPERVISOR
        attributes = struct.pack("IIQQQQQ", _HARDWARE, _SIZE, _INSTRUCTIONS, 0, 0, 0, flags)
        call = ctypes.CDLL(None, use_errno=True).syscall
        number = _SYSCALLS.get(platform.machine(), -1)
        self._descriptor: int = call(number, ctypes.create_string_buffer(attributes, _SIZE), 0, -1, -1, 0)

    def read(self) -> int | None:
        """So many since it was made; None where the machine does not count them."""
        return int.from_bytes(os.read(self._descriptor, 8), "little") if self._descriptor >= 0 else None


def main(file: Path, steps: int) -> None:
    counter, found = Instructions(), torch.get_num_threads()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    told = {"met": time.time(), "threads": found}
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(256, 256)

    def step() -> float:
        began = time.perf_counter()
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        return time.perf_counter() - began

    for _ in range(WARM):
        step()
    dist.barrier()
    worked, counted = time.process_time(), counter.read()
    told["step_seconds"] = median([step() for _ in range(steps)])
    told["step_cpu_seconds"] = (time.process_time() - worked) / steps
    if counted is not None:
        told["step_instructions"] = ((counter.read() or counted) - counted) / steps
    if dist.get_rank() == 0:
        file.with_suffix(".partial").write_text(json.dumps(told))
        file.with_suffix(".partial").replace(file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
