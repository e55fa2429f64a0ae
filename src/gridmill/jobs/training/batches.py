"""Batches for neural networks: a single tensor contains all rows on the computing device. A batch selects
rows by their numbers."""

import torch
from torch import Tensor

from gridmill.domain.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFeed:
    """Scaled inputs in the shape [rows, width] and targets in the shape [rows, labels], or [rows] for
    classes. All tensors are contiguous and on a single device.

    The window of a row contains the last `length` rows of its entity up to this row. If `length` is None,
    the window contains only the row itself. A batch is an index into the tensors, so rows are never
    processed one by one, and nothing is copied between devices.
    """

    inputs: Tensor
    target: Tensor
    starts: Tensor
    length: int | None = None

    @property
    def device(self) -> torch.device:
        """Return the device of the tensors."""
        return self.inputs.device

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs of these rows, in the shape [batch, length, width] or [batch, width], and their
        targets."""
        if self.length is None:
            return self.inputs[rows], self.target[rows]
        reach = rows[:, None] + torch.arange(1 - self.length, 1, device=self.device)
        return self.inputs[torch.maximum(reach, self.starts[rows, None])], self.target[rows]
