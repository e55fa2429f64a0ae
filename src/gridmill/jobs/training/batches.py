"""Batches for networks: one tensor of all rows on the device that computes, cut by row numbers."""

import torch
from torch import Tensor

from gridmill.domain.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFeed:
    """Scaled inputs [rows, width] and targets [rows, labels] (of classes: [rows]), contiguous, on one device.

    `length` rows up to each row are its window, of its own entity only; None: the row alone. A batch is an
    index into the tensors: no row is ever handled by itself, and nothing is copied between devices.
    """

    inputs: Tensor
    target: Tensor
    starts: Tensor
    length: int | None = None

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.inputs.device

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [batch, length, width] or [batch, width], and targets, of these rows."""
        if self.length is None:
            return self.inputs[rows], self.target[rows]
        reach = rows[:, None] + torch.arange(1 - self.length, 1, device=self.device)
        return self.inputs[torch.maximum(reach, self.starts[rows, None])], self.target[rows]
