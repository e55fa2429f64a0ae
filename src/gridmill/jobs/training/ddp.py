"""Data-parallel training by several processes, with torchrun's environment variables and PyTorch's DDP.

DDP (DistributedDataParallel) averages the gradients.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from gridmill.domain.frozen import dataclass
from gridmill.errors import JobError
from gridmill.jobs.context import JobContext
from gridmill.jobs.training.networks import Network

Told = TypeVar("Told")
LossOf = Callable[[Tensor, Tensor], Tensor]
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """The ranks (processes) that train one model; this object belongs to one of them. Rank 0 decides and
    writes.

    In a gang of `size` 1 nothing is sent. All ranks must call each method in the same order.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def leads(self) -> bool:
        """Whether this rank is the rank that writes."""
        return self.rank == 0

    def loss_of(self, network: Network) -> LossOf:
        """Return the network's loss. Its gradients are the mean over all ranks. All ranks begin with rank 0's
        weights."""
        if self.size == 1:
            return network.loss
        index = [self.device.index] if self.device.type == "cuda" else None
        wrapped: LossOf = DistributedDataParallel(
            _LossModule(network), device_ids=index, broadcast_buffers=False, gradient_as_bucket_view=True
        )
        return wrapped

    def part(self, rows: Tensor) -> tuple[Tensor, float]:
        """Return this rank's rows of a batch, and the weight of their mean loss.

        With these weights the mean over ranks is the mean over the whole batch, however the batch is divided.
        A rank without rows computes one row with weight 0.
        """
        if self.size == 1:
            return rows, 1.0
        mine = rows[self.rank :: self.size]
        return (mine, len(mine) * self.size / len(rows)) if len(mine) else (rows[:1], 0.0)

    def share(self, rows: Tensor) -> Tensor:
        """Return this rank's share of rows that are only measured. The share can be empty."""
        return rows[self.rank :: self.size]

    def total(self, *values: float) -> list[float]:
        """Return each value summed over all ranks.

        Only rank 0 computes the sums, so that all ranks make the same decisions.
        """
        if self.size == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.reduce(numbers, dst=0)
        distributed.broadcast(numbers, src=0)
        return [float(number) for number in numbers]

    def broadcast(self, value: Told) -> Told:
        """Return rank 0's value on every rank."""
        if self.size == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0, device=self.device)
        return box[0]


class _LossModule(nn.Module):
    """A module for DDP, which wraps the method `forward`. Here `forward` computes the loss."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor, target: Tensor) -> Tensor:
        return self.network.loss(inputs, target)


def present_ranks(device: torch.device) -> RankGroup:
    """Return the gang that this process has joined, computing on this device.

    If the process has joined none, return a gang of one process.
    """
    if not distributed.is_initialized():
        return RankGroup(device=device)
    return RankGroup(rank=distributed.get_rank(), size=distributed.get_world_size(), device=device)


@contextmanager
def joined(context: JobContext) -> Iterator[None]:
    """A context in which this process is a member of the gang that RANK, WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT describe.

    The processes use NCCL on GPUs, else gloo. The context starts when all ranks have joined. Raises JobError
    if another rank is lost.
    """
    device = own_device(gpu=has_gpu(context))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        yield
    except RuntimeError as error:
        if isinstance(error, distributed.DistError) or "gloo" in str(error):
            raise JobError(
                f"another worker of this training was lost: {error}",
                hint="The log of that worker shows why it ended.",
            ) from error
        raise
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def has_gpu(context: JobContext) -> bool:
    """Return whether the attempt was given a GPU that PyTorch can use."""
    return bool(context.order.gpu_indices) and torch.cuda.is_available()


def own_device(gpu: bool, environ: Mapping[str, str] = os.environ) -> torch.device:
    """Return the GPU of this rank among its visible GPUs, by LOCAL_RANK; the CPU if there is no GPU.

    On a shared GPU, memory use is limited to the attempt's share.
    """
    if not gpu:
        return CPU
    device = torch.device("cuda", int(environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    share = float(environ.get("GRIDMILL_GPU_SHARE", "1"))
    if share < 1:
        torch.cuda.set_per_process_memory_fraction(share, device)
    return device
