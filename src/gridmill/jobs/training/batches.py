"""Batches for networks: one tensor of all rows on the computing device. A batch selects rows by their
numbers."""

import torch
from torch import Tensor

from gridmill.domain.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFeed:
    """Scaled inputs [rows, width] and targets [rows, labels] (for classes: [rows]), contiguous, on one
    device.

    A row's window is the last `length` rows of its entity up to this row; if `length` is None, it is only the
    row. A batch is an index into the tensors: rows are never processed one by one, and nothing is copied
    between devices.
    """

    inputs: Tensor
    target: Tensor
    starts: Tensor
    length: int | None = None

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.inputs.device

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs, [batch, length, width] or [batch, width], and the targets of these rows."""
        if self.length is None:
            return self.inputs[rows], self.target[rows]
        reach = rows[:, None] + torch.arange(1 - self.length, 1, device=self.device)
        return self.inputs[torch.maximum(reach, self.starts[rows, None])], self.target[rows]
