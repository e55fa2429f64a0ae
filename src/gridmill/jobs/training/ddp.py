"""Data-parallel training by several processes, with the environment variables of torchrun and with DDP of
PyTorch.

DDP (DistributedDataParallel) averages the gradients of the processes.
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
    """The ranks (processes) that train a model together. Each rank of the gang has an object of this class.
    Rank 0 makes the decisions and writes the files.

    If `size` is 1, the only rank of the gang sends no data. All ranks must call the methods of RankGroup in
    the same order.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def leads(self) -> bool:
        """Return whether this rank is rank 0, which writes the files."""
        return self.rank == 0

    def loss_of(self, network: Network) -> LossOf:
        """Return a function that computes the loss of the network. The gradients of the loss are the mean
        over all ranks. All ranks begin with the weights of rank 0."""
        if self.size == 1:
            return network.loss
        index = [self.device.index] if self.device.type == "cuda" else None
        wrapped: LossOf = DistributedDataParallel(
            _LossModule(network), device_ids=index, broadcast_buffers=False, gradient_as_bucket_view=True
        )
        return wrapped

    def part(self, rows: Tensor) -> tuple[Tensor, float]:
        """Return the rows of a batch that this rank computes, and the weight of their mean loss.

        With these weights, the mean loss over the ranks equals the mean loss over all rows of the batch,
        however the batch is divided. A rank without rows computes a single row with weight 0.
        """
        if self.size == 1:
            return rows, 1.0
        mine = rows[self.rank :: self.size]
        return (mine, len(mine) * self.size / len(rows)) if len(mine) else (rows[:1], 0.0)

    def share(self, rows: Tensor) -> Tensor:
        """Return the rows that this rank computes when a model is only measured and not trained. The result
        is empty if no row is assigned to this rank."""
        return rows[self.rank :: self.size]

    def total(self, *values: float) -> list[float]:
        """Return the sum of each value over all ranks.

        Only rank 0 computes the sums, so that all ranks get the same sums and make the same decisions.
        """
        if self.size == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.reduce(numbers, dst=0)
        distributed.broadcast(numbers, src=0)
        return [float(number) for number in numbers]

    def broadcast(self, value: Told) -> Told:
        """Return the value of rank 0 on every rank."""
        if self.size == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0, device=self.device)
        return box[0]


class _LossModule(nn.Module):
    """A PyTorch module for DDP, because DDP wraps the method `forward` of a module. In a loss module,
    `forward` computes the loss."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor, target: Tensor) -> Tensor:
        return self.network.loss(inputs, target)


def present_ranks(device: torch.device) -> RankGroup:
    """Return the gang that this process has joined. The computing device of this process is `device`.

    If the process has joined no gang, return a gang of a single process.
    """
    if not distributed.is_initialized():
        return RankGroup(device=device)
    return RankGroup(rank=distributed.get_rank(), size=distributed.get_world_size(), device=device)


@contextmanager
def joined(context: JobContext) -> Iterator[None]:
    """Return a context in which this process is a member of the gang that RANK, WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT describe.

    The processes of the gang use NCCL on GPUs, otherwise gloo. The context starts when all ranks have joined
    the gang. Raises JobError if another rank is lost.
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
    """Return the GPU of this rank among the GPUs that are visible to it, by LOCAL_RANK. Return the CPU if
    there is no GPU.

    On a shared GPU, the memory of this process is limited to the fraction that the attempt was given.
    """
    if not gpu:
        return CPU
    device = torch.device("cuda", int(environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    share = float(environ.get("GRIDMILL_GPU_SHARE", "1"))
    if share < 1:
        torch.cuda.set_per_process_memory_fraction(share, device)
    return device
