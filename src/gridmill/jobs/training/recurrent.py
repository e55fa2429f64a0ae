"""The network of the `lstm` model, in PyTorch to learn and in ONNX to be used."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from gridmill.jobs.features import Floats
from gridmill.jobs.training.graph import Graph
from gridmill.jobs.training.residual import Base
from gridmill.jobs.training.scaling import Scaler
from gridmill.model.training import TrainingSpec

GATES = [0, 3, 1, 2]  # PyTorch keeps input, forget, cell, output; ONNX input, output, forget, cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Regression: the label is base + mean + deviation * the network's number."""

    base: Base = field(default_factory=Base)
    mean: float = 0.0
    deviation: float = 1.0


class Network(nn.Module):
    """LSTM layers, and a linear layer on the state after the last row."""

    def __init__(self, width: int, spec: TrainingSpec, outputs: int) -> None:
        super().__init__()
        between = spec.dropout if spec.layers > 1 else 0.0
        self.lstm = nn.LSTM(width, spec.hidden, spec.layers, batch_first=True, dropout=between)
        self.dropout = nn.Dropout(spec.dropout)
        self.head = nn.Linear(spec.hidden, outputs)
        self.outputs = outputs

    def forward(self, inputs: Tensor) -> Tensor:
        """[batch, length, width] to [batch, outputs]."""
        states, _ = self.lstm(inputs)
        answer: Tensor = self.head(self.dropout(states[:, -1]))
        return answer

    def loss(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Mean squared error, or cross-entropy when there are classes."""
        answer = self(inputs)
        if self.outputs == 1:
            return nn.functional.mse_loss(answer[:, 0], target)
        return nn.functional.cross_entropy(answer, target)


def network_graph(network: Network, scaler: Scaler, sequence: int, answer: Answer, classes: int) -> bytes:
    """The network with its scaling and its answer as one graph over raw inputs [rows, sequence, inputs]."""
    graph = Graph()
    scaled = graph.floats(graph.scaled("inputs", scaler))
    value = graph.add("Transpose", scaled, perm=[1, 0, 2])
    last = ""
    for layer in range(network.lstm.num_layers):
        states, last, _ = _layer(graph, network.lstm, layer, value)
        value = graph.add("Squeeze", states, graph.constant([1], np.int64))
    final = graph.add("Squeeze", last, graph.constant([0], np.int64))
    weight, bias = _array(network.head.weight), _array(network.head.bias)
    product = graph.add("MatMul", final, graph.constant(weight.T, np.float32))
    scores = graph.doubles(graph.add("Add", product, graph.constant(bias, np.float32)))
    output = graph.add("Softmax", scores, axis=1) if classes else _regressed(graph, scores, answer)
    return graph.finish(output, len(scaler.mean), sequence=sequence, classes=classes)


def _regressed(graph: Graph, scores: str, answer: Answer) -> str:
    spread = graph.add("Mul", graph.flat(scores), graph.constant(answer.deviation))
    moved = graph.add("Add", spread, graph.constant(answer.mean))
    newest = graph.add("Gather", "inputs", graph.constant(-1, np.int64), axis=1)
    return answer.base.add_to(graph, moved, newest)


def _layer(graph: Graph, lstm: nn.LSTM, layer: int, value: str) -> tuple[str, ...]:
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
    array: Floats = value.detach().to(torch.float64).numpy()
    return array
