"""A model as files that cannot run code: `model.json` and `model.onnx`; and predictors that use them.

A model's answer for each class is checked: only probabilities are accepted.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from gridmill.codec import from_builtins, to_builtins
from gridmill.domain.frozen import dataclass
from gridmill.domain.signature import Signature
from gridmill.domain.training import ModelKind, Objective
from gridmill.errors import DataError, StorageError
from gridmill.jobs.classes import TEXT, Classes
from gridmill.jobs.features import Encoding, Floats, Integers, windows

SUM_TOLERANCE = 1e-3
"""How far the sum of a row's probabilities may be from 1."""
ROUNDING = 1e-6
"""How far a probability may be below 0, by rounding: 1 - p of a single float p."""
SHOWN = 6


def check_probabilities(values: Floats, rows: Integers) -> None:
    """Raise DataError for a row of [rows, classes] that holds no probabilities; `rows` are their numbers.

    A row that is NaN throughout has no answer, which is for the caller to count.
    """
    with np.errstate(invalid="ignore"):
        total = values.sum(axis=1)
    right = (values.min(axis=1, initial=0.0) >= -ROUNDING) & (np.abs(total - 1) <= SUM_TOLERANCE)
    if right.all():
        return
    wrong = np.flatnonzero(~right & ~np.isnan(values).all(axis=1))
    if len(wrong):
        raise DataError(
            f"the model's probabilities of row {rows[wrong[0]]} are {_shown(values[wrong[0]])}:"
            f" {_problem(values[wrong[0]])} ({len(wrong)} of {len(rows)} rows that were asked for together)",
            hint="Each class needs a probability of at least 0, and those of a row add up to 1 (± 0.001)."
            " Scores become probabilities by a softmax (of two classes: a sigmoid).",
        )


def _shown(row: npt.NDArray[np.float64]) -> str:
    more = ", ..." if len(row) > SHOWN else ""
    return ", ".join(f"{value:.6g}" for value in row[:SHOWN]) + more


def _problem(row: npt.NDArray[np.float64]) -> str:
    if np.isnan(row).any():
        return f"{np.isnan(row).sum()} of {len(row)} are no number"
    if row.min() < -ROUNDING:
        return f"{row.min():.6g} is negative"
    return f"their sum is {row.sum():.6g}, not 1"


CARD, GRAPH, WEIGHTS = "model.json", "model.onnx", "weights.safetensors"
FORMAT = 3
"""The newest format of a card that can be read. Before 3 all classes were text, in the order of the text."""
CHUNK_NUMBERS = 200_000
"""Input numbers per call of the model: 1.6 MB, so that they stay in the caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRowKeys:
    """How the rows that a model has learned from are known again: by `columns`. `train` and `validation` are
    the numbers of hashes that the model's folder keeps of them."""

    columns: tuple[str, ...]
    train: int
    validation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """Everything about a model but its weights: what it takes, what it gives, what it was made from.

    It takes doubles [rows, inputs] (`sequence` is None) or [rows, sequence, inputs], NaN where missing, in
    the order of `encodings`; scaling and missing values are its own affair. It gives the label [rows],
    several labels [rows, labels], or probabilities [rows, classes] in the order of `classes`, which are text
    for values of the Arrow type `class_type` (see `Classes`). `metrics` are `SPLIT_NAME` numbers.
    Per label, `label_columns` is the column whose later value it is, `presents` the input that its present
    value is, `constant` the naive model's answer where nothing can be repeated (for classes: their shares),
    `usual` the training rows' mean and `spread` their standard deviation. `predict` names the code
    (`code/FILE:FUNCTION`) or pickled file in the model's folder that predicts where no graph does,
    `environment` is the text of its requirements. `threshold` is the probability from which on the second of
    two classes is predicted; `offsets` are, for each of `quantiles`, what is added to the prediction of each
    label.
    `weights` are those of an ensemble's members, which vote if `vote`. `content` is the fingerprint of the
    dataset's version, by which the same rows are known again; `learned` (None: unknown) says how those of any
    other version are. `signature` says what it predicts, beyond the label's name. With `folds` it has
    predictions of the rows it learned from, by models that did not (`held_out`).
    """

    kind: ModelKind
    objective: Objective
    labels: tuple[str, ...]
    encodings: tuple[Encoding, ...]
    label_columns: tuple[str | None, ...] = ()
    classes: tuple[str, ...] = ()
    class_type: str = TEXT
    sequence: int | None = None
    presents: tuple[int | None, ...] = ()
    constant: tuple[float, ...] = ()
    usual: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    threshold: float | None = None
    quantiles: tuple[float, ...] = ()
    offsets: tuple[tuple[float, ...], ...] = ()
    options: Mapping[str, float | int | bool | str | None] = field(default_factory=dict)
    seed: int = 0
    dataset: str = ""
    content: str = ""
    learned: TrainingRowKeys | None = None
    signature: Signature | None = None
    folds: int = 0
    entity: tuple[str, ...] = ()
    time: str | None = None
    rows: int = 0
    weights: tuple[float, ...] = ()
    vote: bool = False
    predict: str = ""
    environment: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def label(self) -> str:
        """The label in words: its name, or how many there are."""
        return f"{len(self.labels)} labels" if self.many else self.labels[0]

    @property
    def many(self) -> bool:
        """Whether it predicts several labels at once."""
        return len(self.labels) > 1

    @property
    def classified(self) -> Classes:
        """The classes with their type."""
        return Classes(names=self.classes, type=self.class_type)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that say which row it is: entity and time."""
        return (*self.entity, *([self.time] if self.time else []))

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in order."""
        return tuple(name for encoding in self.encodings for name in encoding.inputs)


class Predictor(Protocol):
    """A model ready to predict."""

    @property
    def card(self) -> ModelCard:
        """What it is."""

    def predict(self, inputs: Floats) -> Floats:
        """[rows], [rows, labels] or [rows, classes] from [rows, inputs] or [rows, sequence, inputs]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NaivePredictor:
    """Repeats an input, or says the same for every row."""

    card: ModelCard

    def predict(self, inputs: Floats) -> Floats:
        """See Predictor."""
        if self.card.objective == Objective.CLASSIFICATION:
            return np.tile(np.asarray(self.card.constant), (len(inputs), 1))
        values = [
            np.full(len(inputs), usual) if present is None else _or_else(inputs[:, present], usual)
            for present, usual in zip(self.card.presents, self.card.constant, strict=True)
        ]
        return values[0] if len(values) == 1 else np.stack(values, axis=1)


def _or_else(values: Floats, usual: float) -> Floats:
    return np.where(np.isfinite(values), values, usual)


@dataclass(frozen=True, kw_only=True)
class GraphPredictor:
    """An ONNX graph in ONNX Runtime, made at its first use (so that it may be made before a fork)."""

    card: ModelCard
    graph: bytes
    threads: int = 1

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # others use these cores too
        return onnxruntime.InferenceSession(self.graph, options, providers=["CPUExecutionProvider"])

    def predict(self, inputs: Floats) -> Floats:
        """See Predictor."""
        taken = self._session.get_inputs()[0]
        given = _single(inputs) if taken.type == "tensor(float)" else inputs
        try:
            values: Floats = np.asarray(self._session.run([self._output], {taken.name: given})[0], np.float64)
        except (InvalidArgument, TypeError, ValueError) as error:
            raise DataError(
                f"{GRAPH} does not take {len(self.card.inputs)} inputs and give numbers: {error}",
                hint="It takes floats or doubles [rows, inputs], and gives [rows] or [rows, classes].",
            ) from error
        return shaped(values, self.card)

    @cached_property
    def _output(self) -> str:
        return str(_answer_of(self._session).name)


def _single(inputs: Floats) -> npt.NDArray[np.float32]:
    """As single floats; what is beyond their range becomes their largest value, not infinite."""
    with np.errstate(over="ignore"):
        result = inputs.astype(np.float32)
    beyond = np.isinf(result) & np.isfinite(inputs)
    if beyond.any():
        result[beyond] = np.copysign(np.finfo(np.float32).max, result[beyond])
    return result


def _answer_of(session: onnxruntime.InferenceSession) -> onnxruntime.NodeArg:
    """The probabilities where there are several outputs (as converters give them), else the first."""
    outputs: list[onnxruntime.NodeArg] = session.get_outputs()
    return next((output for output in outputs if "probabilit" in output.name), outputs[0])


def shaped(values: Floats, card: ModelCard) -> Floats:
    """A model's answer as Predictor gives it. Raises DataError for a shape that cannot be meant."""
    rows = len(values)
    if len(card.classes) == 2 and values.size == rows:
        ones = values.reshape(-1)
        return np.stack([1 - ones, ones], axis=1)
    if not card.classes and not card.many and values.size == rows:
        return values.reshape(-1)
    if values.ndim != 2 or values.shape[1] != len(card.classes or card.labels):
        raise DataError(
            f"the model gave an array of shape {values.shape} for {rows} rows",
            hint="One number per row and label is wanted, or one probability per row and class.",
        )
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsemblePredictor:
    """Asks its members, each with its own inputs, and joins their answers."""

    card: ModelCard
    members: tuple[Predictor, ...]

    def predict(self, inputs: Floats) -> Floats:
        """See Predictor."""
        inputs = np.where(np.isinf(inputs), np.nan, inputs)  # of members stored before their graphs did so
        votes = _vote if self.card.vote else np.asarray
        answers = [votes(self.answer(member, inputs)) for member in self.members]
        values: Floats = np.tensordot(np.array(self.card.weights), np.stack(answers), axes=1)
        return values

    def answer(self, member: Predictor, inputs: Floats) -> Floats:
        """What a member says of the ensemble's inputs."""
        some = inputs[..., input_places(member.card.encodings, self.card.encodings)]
        if inputs.ndim == 3:
            some = some[:, -1] if member.card.sequence is None else some[:, -member.card.sequence :]
        return member.predict(some)


def input_places(mine: Sequence[Encoding], every: Sequence[Encoding]) -> list[int]:
    """The numbers of an ensemble member's inputs among those of the ensemble."""
    place = [encoding for encoding in every for _ in encoding.inputs]
    return [number for one in mine for number, at in enumerate(place) if at == one]


def _vote(answer: Floats) -> Floats:
    """1 for the likeliest class of each row, 0 for the others; a row without an answer has no vote."""
    votes: Floats = np.eye(answer.shape[1])[answer.argmax(axis=1)]
    votes[np.isnan(answer).any(axis=1)] = np.nan
    return votes


def member_folder(folder: Path, number: int) -> Path:
    """Where an ensemble keeps a member."""
    return folder / f"member-{number}"


def make_predictor(card: ModelCard, graph: bytes | None, threads: int = 1) -> Predictor:
    """A predictor of a card and its graph (None: naive)."""
    if graph is None:
        return NaivePredictor(card=card)
    return GraphPredictor(card=card, graph=graph, threads=threads)


def predict_rows(
    predictor: Predictor, inputs: Floats, starts: Integers, rows: Integers, before: int = 0
) -> Floats:
    """Predictions for these rows of `inputs` [all, inputs]; `starts` says where each row's entity begins.

    Raises DataError for probabilities that are none; it names the row by its number after the `before` rows
    of the dataset that come before `inputs`.
    """
    length = predictor.card.sequence
    chunk = max(1, CHUNK_NUMBERS // (max(1, inputs.shape[1]) * (length or 1)))
    parts = []
    for first in range(0, max(1, len(rows)), chunk):
        some = rows[first : first + chunk]
        answer = predictor.predict(inputs[some if length is None else windows(some, starts, length)])
        if predictor.card.classes:
            check_probabilities(answer, some + before)
        parts.append(answer)
    return np.concatenate(parts)


def save_model(folder: Path, card: ModelCard, graph: bytes | None, weights: bytes | None = None) -> None:
    """Write a model's files. The folder must be the attempt's own."""
    save_card(folder, card)
    for name, content in {GRAPH: graph, WEIGHTS: weights}.items():
        if content is not None:
            (folder / name).write_bytes(content)


def graph_facts(card: ModelCard) -> dict[str, str]:
    """What a program needs to use the graph by itself: JSON under keys of the graph's metadata.

    `inputs` are the names of the numbers, in order; `columns` are the columns that they come from, with the
    categories of a text; the other keys are as in Card.
    """
    columns = [to_builtins(encoding) for encoding in card.encodings]
    names = ("labels", "inputs", "classes", "objective", "sequence", "entity", "time", "threshold")
    facts: dict[str, object] = {name: to_builtins(getattr(card, name)) for name in (*names, "quantiles")}
    facts |= {"columns": columns, "offsets": to_builtins(card.offsets)}
    return {
        f"gridmill.{name}": json.dumps(value) for name, value in facts.items() if value not in (None, [], ())
    }


def save_card(folder: Path, card: ModelCard) -> None:
    """Write the card alone."""
    (folder / CARD).write_bytes(json.dumps(to_builtins(card), indent=1).encode())


def load_card(folder: Path) -> ModelCard:
    """A model's card. Raises StorageError when it is gone, DataError when it is not one."""
    try:
        content = json.loads((folder / CARD).read_bytes())
    except FileNotFoundError as error:
        raise StorageError(f"the model's files are not there any more: {folder}") from error
    except ValueError as error:
        raise DataError(f"{folder / CARD} is not a model card: {error}") from error
    if isinstance(content, dict) and content.get("format", 0) > FORMAT:
        raise DataError(
            f"{folder / CARD} has format {content['format']}; this Gridmill reads up to {FORMAT}",
            hint="A newer Gridmill made this model: use that one.",
        )
    return from_builtins(content, ModelCard)


def load_graph(path: Path) -> bytes:
    """An ONNX graph from a file that anybody may have made. Raises DataError when it is none."""
    content = path.read_bytes()
    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise DataError(f"{path.name} is not a model that ONNX Runtime can load: {error}") from error
    if len(session.get_inputs()) != 1:
        names = ", ".join(one.name for one in session.get_inputs())
        raise DataError(f"{path.name} takes {names}; a model takes one input [rows, inputs]")
    answer = _answer_of(session)
    if not answer.type.startswith("tensor("):
        raise DataError(
            f"{path.name} gives {answer.name} as {answer.type}; a model gives an array of numbers",
            hint="Convert a scikit-learn classifier with `options={'zipmap': False}`.",
        )
    return content


def takes_single_floats(graph: bytes) -> bool:
    """Whether a graph's input is single floats."""
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    return bool(session.get_inputs()[0].type == "tensor(float)")


def load_model(folder: Path, threads: int = 1) -> Predictor:
    """The model in `folder`, computing with `threads` threads. Raises StorageError, DataError."""
    card = load_card(folder)
    if card.kind == ModelKind.NAIVE:
        return NaivePredictor(card=card)
    if card.weights:
        members = tuple(load_model(member_folder(folder, n), threads) for n in range(len(card.weights)))
        return EnsemblePredictor(card=card, members=members)
    return load_graph_of(folder, card, threads)


def load_graph_of(folder: Path, card: ModelCard, threads: int = 1) -> GraphPredictor:
    """The model's graph alone. Raises StorageError when it is gone."""
    try:
        return GraphPredictor(card=card, graph=(folder / GRAPH).read_bytes(), threads=threads)
    except FileNotFoundError as error:
        raise StorageError(f"the model's files are not there any more: {folder}") from error
