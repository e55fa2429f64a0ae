"""One rank of the benchmark of gangs: an ordinary PyTorch script. Rank 0 tells when its first collective was
done and what a training step takes; `python gang_rank.py FILE STEPS`."""

import json
import sys
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(file: Path, steps: int) -> None:
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    met = time.time()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(256, 256)
    walls: list[float] = []
    worked = time.process_time()
    for _ in range(steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        walls.append(time.perf_counter() - began)
    cpu = (time.process_time() - worked) / max(1, steps)
    if dist.get_rank() == 0:
        told = {"met": met, "step_seconds": median(walls or [0.0]), "step_cpu_seconds": cpu}
        file.with_suffix(".partial").write_text(json.dumps(told))
        file.with_suffix(".partial").replace(file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
