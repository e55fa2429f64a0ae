"""Learned networks as ONNX graphs with scaling and units: over raw inputs, in the label's units."""

import numpy as np
import torch
from torch import Tensor, nn

from gridmill.jobs.features import Floats
from gridmill.jobs.training.graph import Graph
from gridmill.jobs.training.networks import Network, Perceptron, Recurrent
from gridmill.jobs.training.scaling import Scaler
from gridmill.jobs.training.units import Units

GATES = [0, 3, 1, 2]  # PyTorch keeps input, forget, cell, output; ONNX input, output, forget, cell


def recurrent_graph(network: Recurrent, scaler: Scaler, sequence: int, units: Units) -> bytes:
    """Over [rows, sequence, inputs]."""
    graph = Graph()
    scaled = graph.floats(_relative(graph, graph.scaled(graph.known(), scaler), network))
    value = graph.add("Transpose", scaled, perm=[1, 0, 2])
    last = ""
    for layer in range(network.lstm.num_layers):
        states, last, _ = _layer(graph, network.lstm, layer, value)
        value = graph.add("Squeeze", states, graph.constant([1], np.int64))
    final = graph.add("Squeeze", last, graph.constant([0], np.int64))
    scores = graph.doubles(_linear(graph, final, network.head))
    newest = graph.add("Gather", graph.known(), graph.constant(-1, np.int64), axis=1)
    return _finish(graph, scores, newest, network, scaler, units, sequence)


def _relative(graph: Graph, scaled: str, network: Recurrent) -> str:
    if not network.shape.relative:
        return scaled
    last = graph.add("Gather", scaled, graph.constant([-1], np.int64), axis=1)
    return graph.add("Sub", scaled, graph.add("Mul", last, graph.constant(_array(network.relative))))


def perceptron_graph(network: Perceptron, scaler: Scaler, units: Units) -> bytes:
    """Over [rows, inputs]."""
    graph = Graph()
    value = graph.floats(graph.scaled(graph.known(), scaler))
    for layer in network.layers:
        assert isinstance(layer, nn.Linear)
        value = graph.add("Relu", _linear(graph, value, layer))
    scores = graph.doubles(_linear(graph, value, network.head))
    return _finish(graph, scores, graph.known(), network, scaler, units, None)


def _finish(
    graph: Graph,
    scores: str,
    newest: str,
    network: Network,
    scaler: Scaler,
    units: Units,
    sequence: int | None,
) -> bytes:
    width, outputs = scaler.inputs, network.shape.outputs
    if network.shape.classes:
        return graph.finish(graph.add("Softmax", scores, axis=1), width, sequence=sequence, outputs=outputs)
    output = units.add_to(graph, scores, newest)
    return graph.finish(output, width, sequence=sequence, outputs=outputs if outputs > 1 else 0)


def _linear(graph: Graph, value: str, layer: nn.Linear) -> str:
    product = graph.add("MatMul", value, graph.constant(_array(layer.weight).T, np.float32))
    return graph.add("Add", product, graph.constant(_array(layer.bias), np.float32))


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
    array: Floats = value.detach().cpu().to(torch.float64).numpy()
    return array
