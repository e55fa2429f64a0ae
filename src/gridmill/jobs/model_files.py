"""Stores a model in files that cannot execute code (`model.json` and `model.onnx`), and loads predictors
from these files.

If a model predicts classes, its output is checked, and only valid probabilities are accepted.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from gridmill.codec import from_builtins, to_builtins
from gridmill.domain.frozen import dataclass
from gridmill.domain.signature import Signature
from gridmill.domain.training import ModelKind, Objective
from gridmill.errors import DataError, InputError, StorageError
from gridmill.jobs.classes import TEXT, Classes
from gridmill.jobs.features import Encoding, Floats, Integers, windows

SUM_TOLERANCE = 1e-3
"""The largest allowed difference between 1 and the sum of the probabilities of a row."""
ROUNDING = 1e-6
"""A probability may be below 0 by at most this amount, because rounding errors can cause it (1 - p in 32-bit
floats)."""
SHOWN = 6


def check_probabilities(values: Floats, rows: Integers) -> None:
    """Raise DataError if a row of the array [rows, classes] does not contain valid probabilities. `rows`
    contains the row numbers that the error message shows.

    If a row contains only NaN, it has no prediction. The caller of this function counts the rows that have
    no prediction.
    """
    with np.errstate(invalid="ignore"):
        total = values.sum(axis=1)
    right = (values.min(axis=1, initial=0.0) >= -ROUNDING) & (np.abs(total - 1) <= SUM_TOLERANCE)
    if right.all():
        return
    wrong = np.flatnonzero(~right & ~np.isnan(values).all(axis=1))
    if len(wrong):
        raise DataError(
            f"the model's probabilities for row {rows[wrong[0]]} are {_shown(values[wrong[0]])}: "
            f"{_problem(values[wrong[0]])} ({len(wrong)} of the {len(rows)} rows in this call have such a "
            "problem)",
            hint="Return a probability of at least 0 for each class; the probabilities of a row must add "
            "up to 1 (± 0.001). A softmax converts scores to probabilities (a sigmoid for two "
            "classes).",
        )


def _shown(row: npt.NDArray[np.float64]) -> str:
    more = ", ..." if len(row) > SHOWN else ""
    return ", ".join(f"{value:.6g}" for value in row[:SHOWN]) + more


def _problem(row: npt.NDArray[np.float64]) -> str:
    if np.isnan(row).any():
        return f"{np.isnan(row).sum()} of {len(row)} are NaN"
    if row.min() < -ROUNDING:
        return f"{row.min():.6g} is negative"
    return f"their sum is {row.sum():.6g}, not 1"


CARD, GRAPH, WEIGHTS = "model.json", "model.onnx", "weights.safetensors"
FORMAT = 3
"""The newest format of a model card that this release of Gridmill can read. Before format 3, all classes
were text and were sorted as text."""
CHUNK_NUMBERS = 200_000
"""The number of input values in each call of the model. The input values of a call take 1.6 MB, so they stay
in the CPU caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRowKeys:
    """A description of the hashes by which the training rows of a model can be recognised. A hash is
    computed from the values of a row in `columns`.

    `train` and `validation` are the numbers of hashes that the folder of the model stores for each split.
    """

    columns: tuple[str, ...]
    train: int
    validation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """All facts about a model except its weights: its inputs, its outputs, and its origin.

    The inputs of the model are doubles in the shape [rows, inputs] (if `sequence` is None) or [rows,
    sequence, inputs], with NaN for missing values, in the order of `encodings`. The model itself scales the
    inputs and replaces missing values. The model returns the label [rows], several labels [rows, labels], or
    probabilities [rows, classes] in the order of `classes`. The classes are stored as text, and `class_type`
    is the Arrow type of their values (see `Classes`). The names in `metrics` have the form `SPLIT_NAME`.

    The fields `label_columns`, `presents`, `constant`, `usual` and `spread` have a value for each label.
    `label_columns` is the column whose later value is the label. `presents` is the input with the present
    value of the column that `label_columns` names. `constant` is the prediction of the naive model if it
    cannot repeat a value. For classes, `constant` contains their fractions. `usual` is the mean of the label
    over the training rows. `spread` is the standard deviation of the label over the training rows.

    If the model has no graph, `predict` names the code (`code/FILE:FUNCTION`) or the pickled file in the
    folder of the model that predicts, `environment` is the text of the requirements of that code, and
    `locked` are the exact versions (`name==version`) of all packages that were installed for it. With
    `threshold`, the second of two classes is predicted if its probability is at least the threshold. For
    each quantile in `quantiles`, `offsets` contains the values that are added to the prediction of each
    label.

    `output` is the name of the output of the graph that contains the prediction; if it is empty, `answer_of`
    chooses the output. `weights` are the weights of the members of an ensemble. If `vote` is true, the
    prediction of an ensemble is the class that most of its members predict. `content` is the fingerprint of
    the dataset version, which is equal for versions with the same rows. `learned` describes how the training
    rows can be recognised in any other version of the dataset (None if this is unknown). `signature`
    describes the prediction in more detail than the name of the label does. If `folds` is set, the model
    stores predictions of its training rows by models that were not trained on these rows (`held_out`).
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
    locked: tuple[str, ...] = ()
    output: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def label(self) -> str:
        """Return a text that names the label, or the number of labels."""
        return f"{len(self.labels)} labels" if self.many else self.labels[0]

    @property
    def many(self) -> bool:
        """Return whether the model predicts several labels together."""
        return len(self.labels) > 1

    @property
    def classified(self) -> Classes:
        """Return the classes with their type."""
        return Classes(names=self.classes, type=self.class_type)

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the columns that identify a row, which are the entity and the time."""
        return (*self.entity, *([self.time] if self.time else []))

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of the inputs, in order."""
        return tuple(name for encoding in self.encodings for name in encoding.inputs)


class Predictor(Protocol):
    """A loaded model that can predict."""

    @property
    def card(self) -> ModelCard:
        """The model's card."""

    def predict(self, inputs: Floats) -> Floats:
        """Return predictions in the shape [rows], [rows, labels] or [rows, classes] for inputs in the shape
        [rows, inputs] or [rows, sequence, inputs]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NaivePredictor:
    """A naive model that predicts the value of an input, or the same value for every row."""

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
    """A model that ONNX Runtime computes from an ONNX graph.

    The ONNX session is created when it is first used, so that this object can exist before a fork.
    """

    card: ModelCard
    graph: bytes
    threads: int = 1

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        # threads that wait actively would take CPU time from other processes
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return onnxruntime.InferenceSession(self.graph, options, providers=["CPUExecutionProvider"])

    def predict(self, inputs: Floats) -> Floats:
        """See Predictor."""
        try:
            found = self._session.run([self._output], self._given(inputs))[0]
            values: Floats = np.asarray(found, np.float64)
        except (InvalidArgument, TypeError, ValueError) as error:
            raise DataError(
                f"{GRAPH} does not map {len(self.card.inputs)} inputs to numbers: {error}",
                hint="Its input must be floats or doubles of shape [rows, inputs], its output numbers of "
                "shape [rows] or [rows, classes].",
            ) from error
        return shaped(values, self.card)

    def _given(self, inputs: Floats) -> dict[str, npt.NDArray[np.generic]]:
        """Return the inputs of the graph by name. If the graph has several inputs, each takes the next
        columns of `inputs`."""
        taken = self._session.get_inputs()
        if len(taken) == 1:
            return {taken[0].name: converted(inputs, taken[0].type)}
        given: dict[str, npt.NDArray[np.generic]] = {}
        at = 0
        for one in taken:
            width = width_of(one.shape)
            part = converted(inputs[:, at : at + width], one.type)
            given[one.name] = part[:, 0] if len(one.shape) == 1 else part
            at += width
        return given

    @cached_property
    def _output(self) -> str:
        return self.card.output or str(answer_of(self._session).name)


def width_of(shape: Sequence[object]) -> int:
    """Return the number of columns of an input of a graph: 1 for the shape [rows], n for [rows, n]."""
    return shape[-1] if len(shape) > 1 and isinstance(shape[-1], int) else 1


NUMBER_TYPES: Mapping[str, type[np.generic]] = {
    "tensor(double)": np.float64,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int16)": np.int16,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}
"""The types of inputs of a graph that can be computed from numbers."""


def converted(inputs: Floats, kind: str) -> npt.NDArray[np.generic]:
    """Return the inputs as the type `kind` of an input of a graph. Raises InputError for a number that the
    type cannot represent, such as a missing value for a type of whole numbers."""
    if kind == "tensor(double)":
        return inputs
    if kind == "tensor(float)":
        return _single(inputs)
    wanted: Any = NUMBER_TYPES.get(kind, np.float64)
    if np.issubdtype(wanted, np.floating):
        return inputs.astype(wanted)
    lowest, highest = (0, 1) if wanted is np.bool_ else (np.iinfo(wanted).min, np.iinfo(wanted).max)
    fits = (inputs >= lowest) & (inputs < float(highest) + 1) & (inputs == np.floor(inputs))
    if not fits.all():
        raise InputError(
            f"an input is {inputs[~fits][0]:.9g}, but the model takes whole numbers from {lowest} to "
            f"{highest} ({kind.removeprefix('tensor(').removesuffix(')')})",
            hint="Send a whole number for each feature, without missing values.",
        )
    return inputs.astype(wanted)


def _single(inputs: Floats) -> npt.NDArray[np.float32]:
    """Return the inputs as 32-bit floats. A number that is too large for a 32-bit float becomes the largest
    float, not infinity."""
    with np.errstate(over="ignore"):
        result = inputs.astype(np.float32)
    beyond = np.isinf(result) & np.isfinite(inputs)
    if beyond.any():
        result[beyond] = np.copysign(np.finfo(np.float32).max, result[beyond])
    return result


def answer_of(session: onnxruntime.InferenceSession) -> onnxruntime.NodeArg:
    """Return the output of the graph.

    If the graph has several outputs (as converters write them), return the output with the probabilities. If
    no output has probabilities, return the first output.
    """
    outputs: list[onnxruntime.NodeArg] = session.get_outputs()
    return next((output for output in outputs if "probabilit" in output.name), outputs[0])


def shaped(values: Floats, card: ModelCard) -> Floats:
    """Return the output of a model in the shape of Predictor.predict. Raises DataError if the output has an
    impossible shape."""
    rows = len(values)
    if len(card.classes) == 2 and values.size == rows:
        ones = values.reshape(-1)
        return np.stack([1 - ones, ones], axis=1)
    if not card.classes and not card.many and values.size == rows:
        return values.reshape(-1)
    if values.ndim != 2 or values.shape[1] != len(card.classes or card.labels):
        raise DataError(
            f"the model returned an array of shape {values.shape} for {rows} rows",
            hint="It must return one number per row and label, or one probability per row and class.",
        )
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsemblePredictor:
    """A model that combines the predictions of several member models. Each member model gets only its own
    inputs."""

    card: ModelCard
    members: tuple[Predictor, ...]

    def predict(self, inputs: Floats) -> Floats:
        """See Predictor."""
        # replaced here, because the graphs of older members do not replace infinity
        inputs = np.where(np.isinf(inputs), np.nan, inputs)
        votes = _vote if self.card.vote else np.asarray
        answers = [votes(self.answer(member, inputs)) for member in self.members]
        values: Floats = np.tensordot(np.array(self.card.weights), np.stack(answers), axes=1)
        return values

    def answer(self, member: Predictor, inputs: Floats) -> Floats:
        """Return the prediction of a member, computed from the inputs of the ensemble."""
        some = inputs[..., input_places(member.card.encodings, self.card.encodings)]
        if inputs.ndim == 3:
            some = some[:, -1] if member.card.sequence is None else some[:, -member.card.sequence :]
        return member.predict(some)


def input_places(mine: Sequence[Encoding], every: Sequence[Encoding]) -> list[int]:
    """Return the positions of the inputs of a member among the inputs of the ensemble."""
    place = [encoding for encoding in every for _ in encoding.inputs]
    return [number for one in mine for number, at in enumerate(place) if at == one]


def _vote(answer: Floats) -> Floats:
    """Return 1 for the most likely class of each row and 0 for all other classes. A row without a prediction
    has no vote."""
    votes: Floats = np.eye(answer.shape[1])[answer.argmax(axis=1)]
    votes[np.isnan(answer).any(axis=1)] = np.nan
    return votes


def member_folder(folder: Path, number: int) -> Path:
    """Return the folder in which an ensemble stores a member."""
    return folder / f"member-{number}"


def make_predictor(card: ModelCard, graph: bytes | None, threads: int = 1) -> Predictor:
    """Return the predictor for a model card and its graph. The graph of a naive model is None."""
    if graph is None:
        return NaivePredictor(card=card)
    return GraphPredictor(card=card, graph=graph, threads=threads)


def predict_rows(
    predictor: Predictor, inputs: Floats, starts: Integers, rows: Integers, before: int = 0
) -> Floats:
    """Return predictions for some rows of `inputs` [all rows, inputs]. `rows` contains the numbers of these
    rows.

    `starts` contains for each row the number of the first row of its entity. Raises DataError if the model
    returns invalid probabilities. The error names the row by its number in the dataset, where `before` is
    the number of rows that come before `inputs`.
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
    """Write the files of a model. The folder must belong to the attempt that calls this function."""
    save_card(folder, card)
    for name, content in {GRAPH: graph, WEIGHTS: weights}.items():
        if content is not None:
            (folder / name).write_bytes(content)


def graph_facts(card: ModelCard) -> dict[str, str]:
    """Return the information that a program needs to use the graph without Gridmill, as JSON texts by their
    keys in the metadata of the graph.

    `inputs` are the names of the inputs, in order. `columns` are the columns from which the inputs are made,
    with the categories of text columns. All other keys of the metadata are fields of ModelCard.
    """
    columns = [to_builtins(encoding) for encoding in card.encodings]
    names = ("labels", "inputs", "classes", "objective", "sequence", "entity", "time", "threshold")
    facts: dict[str, object] = {name: to_builtins(getattr(card, name)) for name in (*names, "quantiles")}
    facts |= {"columns": columns, "offsets": to_builtins(card.offsets)}
    if card.classes:
        facts["class_type"] = card.class_type
    return {
        f"gridmill.{name}": json.dumps(value) for name, value in facts.items() if value not in (None, [], ())
    }


def save_card(folder: Path, card: ModelCard) -> None:
    """Write the model card without the other files of the model."""
    (folder / CARD).write_bytes(json.dumps(to_builtins(card), indent=1).encode())


def load_card(folder: Path) -> ModelCard:
    """Read the card of a model. Raises StorageError if the file does not exist, DataError if the file is not
    a model card."""
    try:
        content = json.loads((folder / CARD).read_bytes())
    except FileNotFoundError as error:
        raise StorageError(f"the model's files do not exist any more: {folder}") from error
    except ValueError as error:
        raise DataError(f"{folder / CARD} is not a model card: {error}") from error
    if isinstance(content, dict) and content.get("format", 0) > FORMAT:
        raise DataError(
            f"{folder / CARD} has format {content['format']}, but this version of Gridmill reads formats "
            f"up to {FORMAT}",
            hint="A newer version of Gridmill made this model: update Gridmill.",
        )
    return from_builtins(content, ModelCard)


def load_graph(path: Path) -> bytes:
    """Return an ONNX graph from an untrusted file. Raises DataError if the file is not a valid ONNX
    graph."""
    content = path.read_bytes()
    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise DataError(f"{path.name} is not a model that ONNX Runtime can load: {error}") from error
    if len(session.get_inputs()) != 1:
        names = ", ".join(one.name for one in session.get_inputs())
        raise DataError(
            f"{path.name} has the inputs {names}, but a model must have one input of shape [rows, inputs]"
        )
    answer = answer_of(session)
    if not answer.type.startswith("tensor("):
        raise DataError(
            f"the output {answer.name} of {path.name} is {answer.type}, but a model must return an array "
            "of numbers",
            hint="Convert a scikit-learn classifier with `options={'zipmap': False}`.",
        )
    return content


def takes_single_floats(graph: bytes) -> bool:
    """Return whether a graph takes its inputs as 32-bit floats."""
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    return bool(session.get_inputs()[0].type == "tensor(float)")


def load_model(folder: Path, threads: int = 1) -> Predictor:
    """Load the model in `folder`, which predicts with `threads` threads. Raises StorageError, DataError."""
    card = load_card(folder)
    if card.kind == ModelKind.NAIVE:
        return NaivePredictor(card=card)
    if card.weights:
        members = tuple(load_model(member_folder(folder, n), threads) for n in range(len(card.weights)))
        return EnsemblePredictor(card=card, members=members)
    return load_graph_of(folder, card, threads)


def load_graph_of(folder: Path, card: ModelCard, threads: int = 1) -> GraphPredictor:
    """Load the graph of a model, and return it as a GraphPredictor. Raises StorageError if the file of the
    graph does not exist."""
    try:
        return GraphPredictor(card=card, graph=(folder / GRAPH).read_bytes(), threads=threads)
    except FileNotFoundError as error:
        raise StorageError(f"the model's files do not exist any more: {folder}") from error
