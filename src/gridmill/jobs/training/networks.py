"""The networks of `lstm` and `mlp` in PyTorch for training, and their ONNX graphs, which include the scaling
and the units.

The ONNX graphs take raw inputs and return predictions in the units of the label.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from gridmill.domain.frozen import dataclass
from gridmill.domain.training import TrainingSpec
from gridmill.jobs.features import Floats
from gridmill.jobs.training.label_scale import LabelScale
from gridmill.jobs.training.onnx_graph import GraphBuilder
from gridmill.jobs.training.scaling import Scaler


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkShape:
    """The shape of a network. The network takes `width` inputs. The network returns `outputs` numbers, which
    are the scores of the classes or the values of the labels.

    The inputs that `relative` lists are used as differences from their last value in the window. `weights`
    are the weights of the errors of the labels (with a mean of 1). If `weighted` is true, the last column of
    a target is the weight of its row.
    """

    width: int
    outputs: int
    classes: bool = False
    relative: Sequence[int] = ()
    weights: Sequence[float] = ()
    weighted: bool = False


class Network(nn.Module):
    """The common base class of both networks, which computes the loss."""

    weights: Tensor

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        weights = torch.tensor(list(shape.weights) or [1.0] * shape.outputs, dtype=torch.float32)
        self.register_buffer("weights", weights, persistent=False)

    def loss(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Return the weighted mean squared error of labels [batch, labels], or the cross-entropy of class
        numbers [batch]."""
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
        """Return the loss of each row of the batch. Class numbers in `target` have the shape [batch, 1]."""
        if self.shape.classes:
            return nn.functional.cross_entropy(answer, target[:, 0].long(), reduction="none")
        error: Tensor = (answer - target) ** 2 * self.weights
        return error.mean(dim=1)


class Recurrent(Network):
    """A network of LSTM layers, followed by a linear layer on the state after the last row."""

    relative: Tensor

    def __init__(self, shape: NetworkShape, spec: TrainingSpec) -> None:
        super().__init__(shape)
        between = spec.dropout if spec.layers > 1 else 0.0
        self.lstm = nn.LSTM(shape.width, spec.units, spec.layers, batch_first=True, dropout=between)
        self.dropout = nn.Dropout(spec.dropout)
        self.head = nn.Linear(spec.units, shape.outputs)
        relative = torch.zeros(shape.width)
        relative[list(shape.relative)] = 1.0
        self.register_buffer("relative", relative, persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Convert inputs [batch, length, width] to outputs [batch, outputs]."""
        if self.shape.relative:
            inputs = inputs - inputs[:, -1:] * self.relative
        states, _ = self.lstm(inputs)
        answer: Tensor = self.head(self.dropout(states[:, -1]))
        return answer


class Perceptron(Network):
    """A network of hidden layers of rectified linear units, followed by a linear layer."""

    def __init__(self, shape: NetworkShape, spec: TrainingSpec) -> None:
        super().__init__(shape)
        widths = [shape.width, *([spec.units] * spec.layers)]
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(widths))
        self.dropout = nn.Dropout(spec.dropout)
        self.head = nn.Linear(widths[-1], shape.outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Convert inputs [batch, width] to outputs [batch, outputs]."""
        for layer in self.layers:
            inputs = self.dropout(torch.relu(layer(inputs)))
        answer: Tensor = self.head(inputs)
        return answer


# the order of gates: PyTorch has input, forget, cell, output; ONNX has input, output, forget, cell
GATES = [0, 3, 1, 2]


def recurrent_graph(network: Recurrent, scaler: Scaler, sequence: int, units: LabelScale) -> bytes:
    """Return the ONNX graph of a recurrent network over inputs [rows, sequence, inputs]."""
    graph = GraphBuilder()
    scaled = graph.floats(_relative(graph, graph.scaled(graph.finite_inputs(), scaler), network))
    value = graph.add("Transpose", scaled, perm=[1, 0, 2])
    last = ""
    for layer in range(network.lstm.num_layers):
        states, last, _ = _layer(graph, network.lstm, layer, value)
        value = graph.add("Squeeze", states, graph.constant([1], np.int64))
    final = graph.add("Squeeze", last, graph.constant([0], np.int64))
    scores = graph.doubles(_linear(graph, final, network.head))
    newest = graph.add("Gather", graph.finite_inputs(), graph.constant(-1, np.int64), axis=1)
    return _finish(graph, scores, newest, network, scaler, units, sequence)


def _relative(graph: GraphBuilder, scaled: str, network: Recurrent) -> str:
    if not network.shape.relative:
        return scaled
    last = graph.add("Gather", scaled, graph.constant([-1], np.int64), axis=1)
    return graph.add("Sub", scaled, graph.add("Mul", last, graph.constant(_array(network.relative))))


def perceptron_graph(network: Perceptron, scaler: Scaler, units: LabelScale) -> bytes:
    """Return the ONNX graph of a perceptron over inputs [rows, inputs]."""
    graph = GraphBuilder()
    value = graph.floats(graph.scaled(graph.finite_inputs(), scaler))
    for layer in network.layers:
        assert isinstance(layer, nn.Linear)
        value = graph.add("Relu", _linear(graph, value, layer))
    scores = graph.doubles(_linear(graph, value, network.head))
    return _finish(graph, scores, graph.finite_inputs(), network, scaler, units, None)


def _finish(
    graph: GraphBuilder,
    scores: str,
    newest: str,
    network: Network,
    scaler: Scaler,
    units: LabelScale,
    sequence: int | None,
) -> bytes:
    width, outputs = scaler.inputs, network.shape.outputs
    if network.shape.classes:
        return graph.finish(graph.add("Softmax", scores, axis=1), width, sequence=sequence, outputs=outputs)
    output = units.add_to(graph, scores, newest)
    return graph.finish(output, width, sequence=sequence, outputs=outputs if outputs > 1 else 0)


def _linear(graph: GraphBuilder, value: str, layer: nn.Linear) -> str:
    product = graph.add("MatMul", value, graph.constant(_array(layer.weight).T, np.float32))
    return graph.add("Add", product, graph.constant(_array(layer.bias), np.float32))


def _layer(graph: GraphBuilder, lstm: nn.LSTM, layer: int, value: str) -> tuple[str, ...]:
    names = (f"weight_ih_l{layer}", f"weight_hh_l{layer}", f"bias_ih_l{layer}", f"bias_hh_l{layer}")
    weight, recurrence, bias, second_bias = (_gates(_array(getattr(lstm, name))) for name in names)
    return graph.add_many(
        "LSTM",
        value,
        graph.constant(weight[None], np.float32),
        graph.constant(recurrence[None], np.float32),
        graph.constant(np.concatenate([bias, second_bias])[None], np.float32),
        outputs=3,
        hidden_size=lstm.hidden_size,
    )


def _gates(values: Floats) -> Floats:
    return np.concatenate([np.split(values, 4)[gate] for gate in GATES])


def _array(value: Tensor) -> Floats:
    array: Floats = value.detach().cpu().to(torch.float64).numpy()
    return array
