"""A network trained by several processes, as PyTorch's tutorial on distributed data parallel has it.

Nothing in it is Gridmill's: `torchrun --nproc-per-node 2 train.py` runs it too.
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, SAVE_EVERY = 40, 10
CHECKPOINT = Path(os.environ.get("GRIDMILL_CHECKPOINTS", ".")) / "state.pt"


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Each rank's own part of the step's rows."""
    inputs = torch.randn(64, 10, generator=torch.Generator().manual_seed(1000 * step + rank))
    return inputs, inputs.sum(dim=1, keepdim=True)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    first = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
        print(f"goes on at step {first}", flush=True)
    for step in range(first, STEPS):
        inputs, target = batch(step, rank)
        loss = nn.functional.mse_loss(model(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % SAVE_EVERY == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, CHECKPOINT.with_suffix(".partial"))
            CHECKPOINT.with_suffix(".partial").replace(CHECKPOINT)
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    if rank == 0 and "GRIDMILL_OUTPUT" in os.environ:
        torch.save(model.module.state_dict(), Path(os.environ["GRIDMILL_OUTPUT"]) / "model.pt")
    # PyTorch aborts a process that ends while gloo's thread still holds its last gradients (pytorch#190489)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
