"""An ensemble's graph: its members' graphs as parts of one, over the inputs of all of them."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto

from gridmill.jobs.features import Encoding
from gridmill.jobs.models import Card, input_places
from gridmill.jobs.training.graph import OPSET, TREE_OPSET, Graph
from gridmill.jobs.training.naive import naive_graph
from gridmill.model.training import ModelKind

OPSETS = {"": OPSET, "ai.onnx.ml": TREE_OPSET}
END = np.iinfo(np.int64).max


def join_graphs(
    cards: Sequence[Card],
    graphs: Sequence[bytes | None],
    encodings: Sequence[Encoding],
    weights: Sequence[float],
    vote: bool,
) -> bytes | None:
    """The graph of the ensemble; None if a member's graph was not made by this version's rules (an imported
    one, for example), and so cannot be a part of another."""
    models = [_model(card, graph) for card, graph in zip(cards, graphs, strict=True)]
    graph, sequence = Graph(), max((card.sequence for card in cards if card.sequence), default=None)
    parts: list[str] = []
    for number, (card, model, weight) in enumerate(zip(cards, models, weights, strict=True)):
        if model is None:
            return None
        answer = _inline(graph, model, _inputs(graph, card, encodings, sequence), f"member{number}.")
        answer = _vote(graph, answer, len(card.classes)) if vote else answer
        parts.append(graph.add("Mul", answer, graph.constant(weight)))
    output = parts[0]
    for part in parts[1:]:
        output = graph.add("Add", output, part)
    many = len(cards[0].classes) or (len(cards[0].labels) if cards[0].many else 0)
    width = sum(len(encoding.inputs) for encoding in encodings)
    return graph.finish(output, width, sequence=sequence, outputs=many)


def _model(card: Card, graph: bytes | None) -> onnx.ModelProto | None:
    if card.kind == ModelKind.CUSTOM:
        return None
    if card.kind == ModelKind.NAIVE:
        graph = naive_graph(card.presents, card.constant, len(card.inputs))
    if graph is None:
        return None
    model = onnx.load_from_string(graph)
    return model if {one.domain: one.version for one in model.opset_import} == OPSETS else None


def _inputs(graph: Graph, card: Card, encodings: Sequence[Encoding], sequence: int | None) -> str:
    """What the member takes, of the inputs of all: its own columns, and its last rows."""
    places = graph.constant(input_places(card.encodings, encodings), np.int64)
    value = graph.add("Gather", graph.known(), places, axis=-1)
    if sequence is None or card.sequence == sequence:
        return value
    if card.sequence is None:
        return graph.add("Gather", value, graph.constant(-1, np.int64), axis=1)
    bounds = ([-card.sequence], [END], [1])
    return graph.add("Slice", value, *(graph.constant(bound, np.int64) for bound in bounds))


def _inline(graph: Graph, model: onnx.ModelProto, value: str, prefix: str) -> str:
    """Add the nodes of a graph that takes `value`; returns the name of its output."""
    names = {model.graph.input[0].name: value, "": ""}
    for tensor in model.graph.initializer:
        kept = graph.constants
        kept.append(onnx.TensorProto())
        kept[-1].CopyFrom(tensor)
        kept[-1].name = prefix + tensor.name
    for node in model.graph.node:
        own = onnx.NodeProto()
        own.CopyFrom(node)
        own.input[:] = [names.get(name, prefix + name) for name in node.input]
        own.output[:] = [names.get(name, prefix + name) for name in node.output]
        graph.nodes.append(own)
    return prefix + str(model.graph.output[0].name)


def _vote(graph: Graph, answer: str, classes: int) -> str:
    """1 for the likeliest class (of equal ones the first), 0 for the others."""
    likeliest = graph.add("ArgMax", answer, axis=1, keepdims=1)
    chosen = graph.add("Equal", likeliest, graph.constant([range(classes)], np.int64))
    return graph.add("Cast", chosen, to=TensorProto.DOUBLE)
