"""The networks of `lstm` and `mlp` in PyTorch, to learn; their graphs are made in `drawing`."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from gridmill.model.training import TrainingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`width` inputs; `outputs` numbers, which are classes' scores or labels. `relative` are the inputs that
    are taken as differences from their last value; `weights` say how much a label's error counts (mean 1).
    `weighted`: the last column of a target is how much its row counts."""

    width: int
    outputs: int
    classes: bool = False
    relative: Sequence[int] = ()
    weights: Sequence[float] = ()
    weighted: bool = False


class Network(nn.Module):
    """What both have in common: the loss."""

    weights: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        weights = torch.tensor(list(shape.weights) or [1.0] * shape.outputs, dtype=torch.float32)
        self.register_buffer("weights", weights, persistent=False)

    def loss(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Weighted mean squared error of [batch, labels], or cross-entropy of class numbers [batch]."""
        answer = self(inputs).float()
        if self.shape.weighted:
            return (self._losses(answer, target[:, :-1]) * target[:, -1]).mean()
        if self.shape.classes:
            return nn.functional.cross_entropy(answer, target)
        if self.shape.outputs == 1:
            return nn.functional.mse_loss(answer, target)
        error: Tensor = (answer - target) ** 2 * self.weights
        return error.mean()

    def _losses(self, answer: Tensor, target: Tensor) -> Tensor:
        """The loss of each row of the batch; class numbers are [batch, 1] here."""
        if self.shape.classes:
            return nn.functional.cross_entropy(answer, target[:, 0].long(), reduction="none")
        error: Tensor = (answer - target) ** 2 * self.weights
        return error.mean(dim=1)


class Recurrent(Network):
    """LSTM layers, and a linear layer on the state after the last row."""

    relative: Tensor

    def __init__(self, shape: Shape, spec: TrainingSpec) -> None:
        super().__init__(shape)
        between = spec.dropout if spec.layers > 1 else 0.0
        self.lstm = nn.LSTM(shape.width, spec.units, spec.layers, batch_first=True, dropout=between)
        self.dropout = nn.Dropout(spec.dropout)
        self.head = nn.Linear(spec.units, shape.outputs)
        relative = torch.zeros(shape.width)
        relative[list(shape.relative)] = 1.0
        self.register_buffer("relative", relative, persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """[batch, length, width] to [batch, outputs]."""
        if self.shape.relative:
            inputs = inputs - inputs[:, -1:] * self.relative
        states, _ = self.lstm(inputs)
        answer: Tensor = self.head(self.dropout(states[:, -1]))
        return answer


class Perceptron(Network):
    """Hidden layers of rectified linear units, and a linear layer."""

    def __init__(self, shape: Shape, spec: TrainingSpec) -> None:
        super().__init__(shape)
        widths = [shape.width, *([spec.units] * spec.layers)]
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(widths))
        self.dropout = nn.Dropout(spec.dropout)
        self.head = nn.Linear(widths[-1], shape.outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """[batch, width] to [batch, outputs]."""
        for layer in self.layers:
            inputs = self.dropout(torch.relu(layer(inputs)))
        answer: Tensor = self.head(inputs)
        return answer
