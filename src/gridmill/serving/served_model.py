"""A loaded version of a model: its inputs, its outputs, and the names that a prediction job gives to them."""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gridmill.codec import encode
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.serving import ServedStage, ServedVersion, Verification
from gridmill.domain.training import Objective
from gridmill.errors import DataError, GridmillError
from gridmill.jobs.classes import probability_columns
from gridmill.jobs.features import Floats, is_number
from gridmill.jobs.features import encode as encode_columns
from gridmill.jobs.golden_rows import GoldenRows, check_golden, load_golden
from gridmill.jobs.intervals import quantile_columns, quantiles_of
from gridmill.jobs.metrics import decide
from gridmill.jobs.model_files import ModelCard, Predictor, check_probabilities, load_card, load_model
from gridmill.jobs.packages import COMPUTING, package_differences, recorded_packages
from gridmill.jobs.subprocess_model import check_trust
from gridmill.serving.chain_check import check_chain
from gridmill.serving.code_model import CodeModel, python_of
from gridmill.serving.fields import RowReader
from gridmill.serving.gpu_memory import GpuShare

if TYPE_CHECKING:
    from gridmill.online.features import OnlineFeatures
    from gridmill.online.plan import OnlinePlan

AHEAD_SECONDS = 60.0
"""How far in the future the as-of time of a request may be, because clocks differ."""


TIMEOUT_SECONDS = 10.0
"""The default time of the code of a version for a batch."""


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A version of a model that a replica has loaded. `version` is the text that names the version in paths
    of the Open Inference Protocol. `features` computes the contextual features of requests by key; it is None
    if requests send all features. `differences` are texts about packages that compute its predictions in
    another version than the one with which it was made. The `stages` predict features of this version.
    """

    label: str
    version: str
    weight: float
    folder: Path
    predictor: Predictor
    golden: GoldenRows | None = None
    features: "OnlineFeatures | None" = None
    differences: tuple[str, ...] = ()
    stages: "tuple[ModelStage, ...]" = ()

    @property
    def verification(self) -> Verification:
        """Whether the version reproduced golden rows. A version that does not reproduce them is not
        loaded."""
        return Verification.NOT_VERIFIED if self.golden is None else Verification.VERIFIED

    def golden_row(self) -> Any:  # noqa: ANN401  an object, or a list of objects
        """Return the first golden row in the form of a request, or None if the version has none."""
        return _request_row(self.card, self.golden.groups()[0]) if self.golden else None

    @property
    def is_code(self) -> bool:
        """Whether the model predicts with its own code, in a process beside the replica."""
        return isinstance(self.predictor, CodeModel)

    def busy_seconds(self, seconds: float, now: float) -> float:
        """Return for how long the model has computed a batch that began `seconds` before the monotonic time
        `now`. While a process loads the code of the model, the model does not compute."""
        if not isinstance(self.predictor, CodeModel):
            return seconds
        return max(0.0, min(seconds, now - self.predictor.loaded_at))

    @property
    def gpu_bytes(self) -> int:
        """The GPU memory of the code of the model in bytes at its last batch."""
        return self.predictor.gpu_bytes if isinstance(self.predictor, CodeModel) else 0

    @property
    def gpu_needed_bytes(self) -> int:
        """The GPU memory of the code of the model in bytes after its largest batch; 0 if it was not
        measured."""
        return self.predictor.gpu_needed_bytes if isinstance(self.predictor, CodeModel) else 0

    def close(self) -> None:
        """End the processes of the code of the model and of its stages."""
        if isinstance(self.predictor, CodeModel):
            self.predictor.close()
        for stage in self.stages:
            stage.model.close()

    def all_models(self) -> "tuple[ServedModel, ...]":
        """Return this model and those of all its stages."""
        return (self, *(part for one in self.stages for part in one.model.all_models()))

    @cached_property
    def plan(self) -> "OnlinePlan":
        """The columns that requests send, and those that are computed by key, for this model and all its
        stages. Only for a model with contextual features."""
        assert self.features is not None
        plan = self.features.plan
        predicted = {name for stage in self.stages for name in stage.columns}
        request = {name: kind for name, kind in plan.request.items() if name not in predicted}
        feeds, types = plan.feeds, plan.types
        for stage in self.stages:
            before = stage.model.plan
            request, feeds = {**before.request, **request}, (*before.feeds, *feeds)
            types = {**before.types, **types}
        return replace(plan, request=request, feeds=feeds, types=types)

    @cached_property
    def example(self) -> dict[str, Any]:
        """A row of the basis tables in the form of a request; empty if there is none."""
        assert self.features is not None
        rows = [self.features.example, *(stage.model.example for stage in self.stages)]
        every = {name: value for row in reversed(rows) for name, value in row.items()}
        return every if every.keys() >= self.plan.request.keys() else {}

    @property
    def card(self) -> ModelCard:
        """The card of the model."""
        return self.predictor.card

    @cached_property
    def reader(self) -> RowReader:
        """The reader of rows with the fields of this model."""
        return RowReader(self.card.encodings, self.card.sequence)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of the inputs of one row."""
        width = len(self.card.inputs)
        return (width,) if self.card.sequence is None else (self.card.sequence, width)

    @cached_property
    def is_plain(self) -> bool:
        """Whether `prediction` is the only column of a prediction, and contains the output itself."""
        return self.card.objective == Objective.REGRESSION and not self.card.quantiles

    @cached_property
    def class_values(self) -> tuple[Any, ...]:
        """The classes as values of the type of the label."""
        return tuple(self.card.classified.values().to_pylist())

    @property
    def no_rows(self) -> Floats:
        """The output for a request without rows."""
        width = len(self.card.classes) or (len(self.card.labels) if self.card.many else 0)
        return np.zeros((0, width) if width else 0)

    def predict(self, inputs: Floats) -> Floats:
        """Return the output of the model for inputs [rows, ...]. Raises GridmillError."""
        predicted = self.predictor.predict(inputs)
        if self.card.classes:
            check_probabilities(predicted, np.arange(len(predicted)))
        return predicted

    def columns(self, predicted: Floats) -> dict[str, Any]:
        """Return the columns that a prediction job writes: `prediction`, and quantiles or
        `probability_CLASS`. A column is an array, or a tuple of class values with None for a row without a
        prediction."""
        card = self.card
        if card.objective == Objective.CLASSIFICATION:
            return {"prediction": self._decided(predicted)} | {
                name: predicted[:, number] for number, name in enumerate(probability_columns(card.classes))
            }
        names = quantile_columns(card.quantiles)
        quantiles = zip(names, quantiles_of(predicted, card.offsets), strict=True)
        return {"prediction": predicted, **dict(quantiles)}

    def _decided(self, predicted: Floats) -> tuple[Any, ...]:
        missing = np.asarray(np.isnan(predicted).any(axis=1)).tolist()
        likeliest = decide(predicted, self.card.threshold)
        return tuple(
            None if lacks else self.class_values[number]
            for lacks, number in zip(missing, likeliest.tolist(), strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStage:
    """A model whose predictions are features of another model. `columns` are the columns of its predictions,
    by the names of the features."""

    model: ServedModel
    columns: Mapping[str, str]


SharedStages = dict[bytes, ServedModel]
"""The stages that a process has loaded. Several versions and stages can read the predictions of one stage,
which is loaded once."""


def load_version(
    version: ServedVersion,
    name: str,
    threads: int,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    shared: SharedStages | None = None,
    gpu: GpuShare | None = None,
) -> ServedModel:
    """Load a version with its stages, and compute its golden rows and the rows of its chain. Code of the
    version has `timeout_seconds` for a batch. A stage that is among the `shared` stages is not loaded again,
    and the others are added to them. Code of the version may use the share `gpu` of a GPU.

    Raises StorageError, DataError for files that are not a model or compute other outputs, InputError for
    code that is not trusted, JobError for code that fails. The error of a stage names it, and the shared
    stages cannot be used after it.
    """
    stages: list[ModelStage] = []
    shared = {} if shared is None else shared
    try:
        for one in version.stages:
            stages.append(_load_stage(one, threads, timeout_seconds, shared, gpu))
        model = replace(_load_alone(version, name, threads, timeout_seconds, gpu), stages=tuple(stages))
    except GridmillError:
        for stage in stages:
            stage.model.close()
        raise
    try:
        if model.stages:
            check_chain(model, Path(version.features))
    except GridmillError:
        model.close()
        raise
    return model


def _load_stage(
    stage: ServedStage, threads: int, timeout_seconds: float, shared: SharedStages, gpu: GpuShare | None
) -> ModelStage:
    label, key = stage.version.label, encode(stage.version)
    if key in shared:
        return ModelStage(model=shared[key], columns=stage.columns)
    try:
        model = shared[key] = load_version(
            stage.version, label, threads, timeout_seconds=timeout_seconds, shared=shared, gpu=gpu
        )
    except GridmillError as error:
        if not error.message.startswith("stage "):
            error.message = f"stage {label}: {error.message}"
        raise
    return ModelStage(model=model, columns=stage.columns)


def _load_alone(
    version: ServedVersion, name: str, threads: int, timeout_seconds: float, gpu: GpuShare | None
) -> ServedModel:
    folder = Path(version.folder)
    card = load_card(folder)
    check_trust(card, version.label, version.trust, "trust", how="start the service with `--trust`")
    model = ServedModel(
        label=version.label,
        folder=folder,
        version=name,
        weight=version.weight,
        predictor=_load_code(folder, card, threads, timeout_seconds, gpu)
        if card.predict
        else load_model(folder, threads),
        golden=load_golden(folder),
        features=_open_features(version),
    )
    try:
        _verify(model)
        _admit(model, gpu)
        return replace(model, differences=_differences(model.predictor))
    except GridmillError:
        model.close()
        raise


def _differences(predictor: Predictor) -> tuple[str, ...]:
    recorded = predictor.card.versions
    if not isinstance(predictor, CodeModel):
        return package_differences(recorded, recorded_packages(), COMPUTING)
    found = predictor.packages()
    # Gridmill does not compute in the process of the code
    names = [name for name in recorded if name != "gridmill"]
    return package_differences(recorded, {**found.installed, **found.loaded}, names)


def _load_code(
    folder: Path, card: ModelCard, threads: int, timeout_seconds: float, gpu: GpuShare | None
) -> CodeModel:
    python = python_of(folder, card)
    return CodeModel(card, folder, python=python, threads=threads, timeout_seconds=timeout_seconds, gpu=gpu)


def _admit(model: ServedModel, gpu: GpuShare | None) -> None:
    """Let the code of a model compute its largest batch. Raises JobError if it uses more than its share of a
    GPU. A model without golden rows computes zeros."""
    if gpu is None or not isinstance(model.predictor, CodeModel):
        return
    row = np.zeros(model.input_shape)
    if model.golden:
        row = encode_columns(model.golden.groups()[0], model.card.encodings).reshape(model.input_shape)
    model.predictor.admit(np.repeat(row[np.newaxis], gpu.max_batch, axis=0))


def _open_features(version: ServedVersion) -> "OnlineFeatures | None":
    if not version.features:
        return None
    # most services compute no features, and need neither the SQL engine nor its memory
    from gridmill.online.definition import open_features

    view = Path(version.view) if version.view else None
    return open_features(Path(version.features), ahead_seconds=AHEAD_SECONDS, view=view)


def _verify(model: ServedModel) -> None:
    """Raise DataError if the model predicts its golden rows differently, or if a request with these rows has
    other inputs than the dataset had."""
    if not model.golden:
        return
    check_golden(model.predictor, model.golden)
    card = model.card
    rows = [_request_row(card, group) for group in model.golden.groups()]
    inputs = model.reader.read(encode(rows)).reshape(len(rows), -1, model.reader.width)[:, -1]
    expected = np.stack([encode_columns(group, card.encodings)[-1] for group in model.golden.groups()])
    if not np.array_equal(inputs, expected, equal_nan=True):
        raise DataError(
            f"the golden rows of {model.label} have other inputs as a request than in the dataset"
        )


def _request_row(card: ModelCard, group: pa.Table) -> Any:  # noqa: ANN401  an object, or a list of objects
    """Return a golden row with its history as JSON values in the form of a request."""
    columns = {encoding.column: group[encoding.column] for encoding in card.encodings}
    table = pa.table(
        {
            name: column if is_number(column.type) else column.cast(pa.string())
            for name, column in columns.items()
        }
    )
    rows = [{name: _json_value(value) for name, value in one.items()} for one in table.to_pylist()]
    return rows[-1] if card.sequence is None else rows


def _json_value(value: object) -> object:
    if isinstance(value, Decimal):
        value = float(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def version_names(versions: Sequence[ServedVersion]) -> list[str]:
    """Return the name of each version in paths: the text after `@` in its label, or the whole label if two
    versions would have the same name."""
    names = [version.label.rpartition("@")[2] for version in versions]
    return names if len(set(names)) == len(names) else [version.label for version in versions]
