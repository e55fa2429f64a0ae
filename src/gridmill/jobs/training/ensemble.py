"""Ensembles combine several models in a single graph, by their mean, a weighted mean, or a vote.

The weights depend on the validation losses of the members. The graphs of the members are parts of the graph
of the ensemble. The inputs of the ensemble are the inputs of all members.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from gridmill.domain.training import Combine, ModelKind, Objective, TrainingSpec
from gridmill.errors import InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.dataset_reader import open_partitions
from gridmill.jobs.features import Encoding, Floats
from gridmill.jobs.model_files import (
    EnsemblePredictor,
    GraphPredictor,
    ModelCard,
    Predictor,
    input_places,
    load_card,
    load_model,
    member_folder,
)
from gridmill.jobs.signatures import check_same, dataset_signature, model_signature
from gridmill.jobs.training.data import SortedFrame, row_order
from gridmill.jobs.training.evaluate import evaluate
from gridmill.jobs.training.naive import naive_graph
from gridmill.jobs.training.onnx_graph import OPSET, TREE_OPSET, GraphBuilder
from gridmill.jobs.training.result import FittedModel, TrainedModel
from gridmill.jobs.training_rows import LEAST_SHARE, seen_rows

OPSETS = {"": OPSET, "ai.onnx.ml": TREE_OPSET}
END = np.iinfo(np.int64).max


def join_graphs(
    cards: Sequence[ModelCard],
    graphs: Sequence[bytes | None],
    encodings: Sequence[Encoding],
    weights: Sequence[float],
    vote: bool,
) -> bytes | None:
    """Return the graph of the ensemble.

    Return None if Gridmill did not build the graph of a member itself (for example, if the graph was
    imported), because such a graph cannot become a part of another graph.
    """
    models = [_model(card, graph) for card, graph in zip(cards, graphs, strict=True)]
    graph, sequence = GraphBuilder(), max((card.sequence for card in cards if card.sequence), default=None)
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


def _model(card: ModelCard, graph: bytes | None) -> onnx.ModelProto | None:
    if card.kind == ModelKind.CUSTOM:
        return None
    if card.kind == ModelKind.NAIVE:
        graph = naive_graph(card.presents, card.constant, len(card.inputs))
    if graph is None:
        return None
    model = onnx.load_from_string(graph)
    return model if {one.domain: one.version for one in model.opset_import} == OPSETS else None


def _inputs(graph: GraphBuilder, card: ModelCard, encodings: Sequence[Encoding], sequence: int | None) -> str:
    """Add nodes that select the inputs of the member from the inputs of all members: its own columns, and
    the last rows of its sequence."""
    places = graph.constant(input_places(card.encodings, encodings), np.int64)
    value = graph.add("Gather", graph.finite_inputs(), places, axis=-1)
    if sequence is None or card.sequence == sequence:
        return value
    if card.sequence is None:
        return graph.add("Gather", value, graph.constant(-1, np.int64), axis=1)
    bounds = ([-card.sequence], [END], [1])
    return graph.add("Slice", value, *(graph.constant(bound, np.int64) for bound in bounds))


def _inline(graph: GraphBuilder, model: onnx.ModelProto, value: str, prefix: str) -> str:
    """Add the nodes of another graph with the input `value`, and return the name of its output."""
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


def _vote(graph: GraphBuilder, answer: str, classes: int) -> str:
    """Add nodes that return 1 for the most likely class (the first class if several are equally likely), and
    0 for all other classes."""
    likeliest = graph.add("ArgMax", answer, axis=1, keepdims=1)
    chosen = graph.add("Equal", likeliest, graph.constant([range(classes)], np.int64))
    return graph.add("Cast", chosen, to=TensorProto.DOUBLE)


TOLERANCE = 1e-6
"""The allowed difference between the predictions of the stored ensemble and the combined predictions of its
members, in standard deviations of the label, or in probability."""
CLOSE = 1e-6
"""If the probabilities of two classes differ by at most this number, a member may vote for either class."""


def read_members(context: JobContext, spec: TrainingSpec) -> tuple[ModelCard, ...]:
    """Return the model cards of the members. Raises InputError if the members are models that cannot be
    combined."""
    cards: list[ModelCard] = []
    for name in spec.models:
        card = load_card(_folder(context, name))
        if card.predict or card.weights:
            what = "its own code" if card.predict else "other models"
            raise InputError(
                f"model {name!r} predicts with {what}: it cannot be in an ensemble", place="training.models"
            )
        cards.append(card)
        names = (f"model {spec.models[0]!r}", f"model {name!r}")
        check_same(model_signature(cards[0]), model_signature(card), names, "training.models")
    return tuple(cards)


def _folder(context: JobContext, name: str) -> Path:
    return context.below_root(context.input(name).output.uri)


def measurable(frame: SortedFrame, spec: TrainingSpec, context: JobContext) -> SortedFrame:
    """Return the frame with only the validation and test rows on which no member was trained.

    Test rows are also removed if they were used to choose a member. Raises InputError if too few validation
    rows remain.
    """
    artifact = context.input(spec.dataset)
    parts = open_partitions(context.below_root(artifact.output.uri))
    number = row_order(parts.read([*_keys(frame), "split"]), frame.subject)
    train, validation, is_known = (np.zeros(parts.rows, bool) for _ in range(3))
    is_known[:] = True
    for name, card in zip(spec.models, read_members(context, spec), strict=True):
        seen = seen_rows(_folder(context, name), card, artifact, parts, np.arange(parts.rows))
        train |= seen.train
        validation |= seen.validation
        is_known &= seen.known if seen.known.any() else True
    train, validation = (train | ~is_known)[number], validation[number]
    rows = frame.rows
    fit = {
        "validation": rows["validation"][~train[rows["validation"]]],
        "test": rows["test"][~(train | validation)[rows["test"]]],
    }
    if len(fit["validation"]) < LEAST_SHARE * len(rows["validation"]):
        raise InputError(
            f"the members were trained on {len(rows['validation']) - len(fit['validation'])} of the "
            f"{len(rows['validation'])} validation rows of {artifact.id}: the ensemble cannot be evaluated",
            hint="Train the members on this version of the dataset.",
            place="training.models",
        )
    return replace(frame, rows={**rows, **fit})


def _keys(frame: SortedFrame) -> list[str]:
    return [*frame.subject.entity, *([frame.subject.time] if frame.subject.time else [])]


def encodings_of(cards: tuple[ModelCard, ...]) -> tuple[Encoding, ...]:
    """Return the inputs of all members, each input once."""
    return tuple(dict.fromkeys(encoding for card in cards for encoding in card.encodings))


def fit(frame: SortedFrame, spec: TrainingSpec, context: JobContext) -> FittedModel:
    """Copy the members, so that the ensemble does not depend on the original models, and compute the weights
    of the members."""
    cards = read_members(context, spec)
    _check_dataset(cards, frame, spec, context)
    if spec.combine == Combine.VOTE and frame.objective != Objective.CLASSIFICATION:
        raise InputError(
            "a vote needs a label with classes, but the label has numbers",
            hint="Use `combine: mean` or `combine: weighted`.",
            place="training.combine",
        )
    for number, name in enumerate(spec.models):
        shutil.copytree(_folder(context, name), member_folder(context.output, number), dirs_exist_ok=True)
    weights = _weights(cards, frame, spec, context)
    lengths = [card.sequence for card in cards if card.sequence is not None]
    for name, weight in zip(spec.models, weights, strict=True):
        print(f"{name}: weight {weight:.3f}", flush=True)
    vote = spec.combine == Combine.VOTE
    members = tuple(load_model(_folder(context, name), context.threads) for name in spec.models)
    graphs = [member.graph if isinstance(member, GraphPredictor) else None for member in members]
    return FittedModel(
        graph=join_graphs(cards, graphs, frame.encodings, weights, vote),
        trained=_trained(members, frame, weights, vote),
        weights_of_members=weights,
        vote=vote,
        sequence=max(lengths, default=None),
        importance=dict(zip(spec.models, weights, strict=True)),
        options={"combine": spec.combine.value, "models": ", ".join(spec.models)},
    )


def _trained(
    members: tuple[Predictor, ...], frame: SortedFrame, weights: tuple[float, ...], vote: bool
) -> TrainedModel:
    """Return an ensemble that loads its members from their original folders, because the members are not
    copied yet."""
    card = replace(members[0].card, encodings=frame.encodings, weights=weights, vote=vote)
    ensemble = EnsemblePredictor(card=card, members=members)
    target = frame.target[frame.rows["train"]]
    deviation = np.ones(1) if frame.classes else np.atleast_1d(target.std(axis=0))

    def tolerance(inputs: Floats) -> Floats:
        if not vote:
            return TOLERANCE * deviation
        best = [np.sort(ensemble.answer(member, inputs), axis=1)[:, -2:] for member in members]
        close = np.stack([two[:, 1] - two[:, 0] <= CLOSE for two in best]).any(axis=0)
        return np.where(close, 1.0, 0.0)[:, None]

    return TrainedModel(predict=ensemble.predict, tolerance=tolerance)


def _check_dataset(
    cards: tuple[ModelCard, ...], frame: SortedFrame, spec: TrainingSpec, context: JobContext
) -> None:
    artifact = context.input(spec.dataset)
    parts = open_partitions(context.below_root(artifact.output.uri))
    dataset_of_member = dataset_signature(artifact.output.details, parts.schema)
    assert dataset_of_member is not None
    for name, card in zip(spec.models, cards, strict=True):
        mine = model_signature(card)
        classes = model_signature(replace(card, classes=frame.classes, class_type=frame.class_type)).classes
        own = replace(dataset_of_member, objective=frame.objective.value, classes=classes)
        names = (f"model {name!r}", f"dataset {artifact.id}")
        check_same(mine, own, names, "training.models")
        if mine.classes != classes:  # the order must be the same, because probabilities are added by position
            raise InputError(
                f"the classes of model {name!r} are in another order: {', '.join(card.classes[:5])}; "
                f"those of dataset {artifact.id} are {', '.join(frame.classes[:5])}",
                hint="Train the members again on this dataset.",
                place="training.models",
            )


def _weights(
    cards: tuple[ModelCard, ...], frame: SortedFrame, spec: TrainingSpec, context: JobContext
) -> tuple[float, ...]:
    """Return the weights of the members: equal weights, or weights of 1 / mse (for classes: 1 / log_loss),
    measured on the same validation rows."""
    if spec.combine != Combine.WEIGHTED:
        return (1 / len(cards),) * len(cards)
    name = "validation_mse" if frame.objective == Objective.REGRESSION else "validation_log_loss"
    fit = measurable(frame, spec, context)
    if len(fit.rows["validation"]) == 0:
        raise InputError(
            "the weights of the members come from the validation split, but the dataset has none",
            hint="Use `combine: mean`, or declare a validation split.",
            place="training.combine",
        )
    errors = [_measure(number, card, fit, context)[name] for number, card in enumerate(cards)]
    worth = np.array([1 / max(error, 1e-12) for error in errors])
    return tuple(float(one) for one in worth / worth.sum())


def _measure(number: int, card: ModelCard, frame: SortedFrame, context: JobContext) -> dict[str, float]:
    """Return the metrics of a single member, which predicts from the inputs of the ensemble."""
    member = load_model(member_folder(context.output, number), context.threads)
    alone = replace(card, encodings=frame.encodings, weights=(1.0,))
    return evaluate(EnsemblePredictor(card=alone, members=(member,)), frame, ("validation",))
