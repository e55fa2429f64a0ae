"""This module has the declaration of a training job."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields
from enum import StrEnum
from math import inf
from typing import Any, get_args
from urllib.parse import urlsplit

from gridmill.domain.command import check_inputs
from gridmill.domain.container import check_container
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.gang import check_gang
from gridmill.domain.source import HTTP, check_no_secret
from gridmill.domain.tuning import Range, Search
from gridmill.errors import InputError


class ModelKind(StrEnum):
    """The kinds of models that Gridmill can train."""

    LSTM = "lstm"
    MLP = "mlp"
    GBDT = "gbdt"
    LINEAR = "linear"
    NAIVE = "naive"
    CUSTOM = "custom"
    ENSEMBLE = "ensemble"


HIDDEN: Mapping[ModelKind, int] = {ModelKind.LSTM: 32, ModelKind.MLP: 100}
"""The default number of units in a layer of a network."""
LARGEST_BATCH = 256
"""The largest number of rows in a batch, if the batch size is not declared."""
CHECKPOINTED = frozenset({ModelKind.LSTM, ModelKind.MLP})
"""The kinds of models that write checkpoints during training, and resume from these checkpoints."""


class Objective(StrEnum):
    """The objective of a training, which depends on the kind of the label."""

    REGRESSION = "regression"
    CLASSIFICATION = "classification"


class Combine(StrEnum):
    """The way in which an ensemble combines the predictions of its models."""

    MEAN = "mean"
    WEIGHTED = "weighted"
    """The prediction of each model is weighted by the inverse of the validation error of the model."""
    VOTE = "vote"
    """For classes only: each model votes for the class that it predicts."""


class FoldsBy(StrEnum):
    """The rule that assigns each training row to a fold."""

    TIME = "time"
    """The folds are in the order of time, and each fold is predicted by a model of earlier rows only."""
    RANDOM = "random"
    ENTITY = "entity"
    """All rows of an entity are in the same fold."""


class ClassWeight(StrEnum):
    """The weight of the rows of each class in training."""

    BALANCED = "balanced"
    """The weights give all classes the same sum of weights."""


class ThresholdBy(StrEnum):
    """The metric by which the threshold between two classes is chosen."""

    F1 = "f1"
    """The threshold gives the largest F1 of the second class on the validation split."""


class Normalization(StrEnum):
    """The form in which a recurrent network reads and predicts the columns that it forecasts."""

    LAST = "last"
    """The network reads and predicts differences from the last value."""
    NONE = "none"
    """The network reads and predicts the values themselves."""


_NETWORK = frozenset(
    {
        "hidden", "layers", "dropout", "epochs", "patience", "batch_size", "learning_rate", "weight_decay",
        "mixed_precision", "checkpoint_seconds",
    }
)  # fmt: skip

OPTIONS: Mapping[ModelKind, frozenset[str]] = {
    ModelKind.LSTM: _NETWORK | {"sequence", "normalize"},
    ModelKind.MLP: _NETWORK | {"residual"},
    ModelKind.GBDT: frozenset({"trees", "max_leaves", "learning_rate", "patience", "residual"}),
    ModelKind.LINEAR: frozenset({"regularization"}),
    ModelKind.NAIVE: frozenset({"repeat"}),
    ModelKind.ENSEMBLE: frozenset({"models", "combine"}),
    ModelKind.CUSTOM: frozenset(
        {
            *("script", "file", "signature", "samples", "predict", "environment", "options", "trust"),
            *("inputs", "container", "registry_login"),
        }
    ),
}
"""The fields of TrainingSpec that each kind of model uses, in addition to the common fields."""

_NO_FOLDS = (ModelKind.CUSTOM, ModelKind.ENSEMBLE)
GANGS = (ModelKind.LSTM, ModelKind.MLP, ModelKind.CUSTOM)
"""The kinds of models that several workers can train together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """The declaration of a training: a model learns `label` of `dataset` from its features, with early
    stopping on the validation split.

    `features` selects some of the features of the dataset (default: all features). If `objective` is not
    set, it follows from the type of the label: regression for numbers, classification for strings and
    booleans. Fields that the kind of model does not use are rejected. The metrics of the model are computed
    on the validation and test splits.
    """

    dataset: str = ""
    """The dataset from which the model learns. Only a model from an ONNX `file` may have none: it becomes a
    version without being measured."""
    model: ModelKind
    objective: Objective | None = None
    features: tuple[str, ...] = ()
    seed: int = 0
    track: str | None = None
    """The address of an MLflow server (`http://host:5000`) that receives the metrics during the training. If
    the MLflow server does not answer, the training continues. `${env:NAME}` in the address is read from the
    environment in which the job runs."""
    search: Search | None = None
    """Try several settings first, and then train with the best settings."""
    folds: int | None = None
    """Also predict the training rows, where each row is predicted by a model that was not trained on this
    row. Other trainings can then use these predictions as inputs. A prediction of the same dataset uses
    these out-of-fold predictions for the training rows."""
    folds_by: FoldsBy = FoldsBy.TIME
    """With `time`, each fold is predicted by a model of the rows whose label was known before the fold
    began; the first fold has no predictions. With `random` or `entity`, each fold is predicted by a model of
    all other folds.
    """
    weight: str | None = None
    """The column of the dataset with the weight of each row in training. The column with the weight is not a
    feature."""
    class_weight: ClassWeight | None = None
    """With `balanced`, all classes have the same total weight, whatever their numbers of rows are."""
    class_weights: Mapping[str, float] = field(default_factory=dict)
    """The weight of the rows of each class, such as `{yes: 10}`. Classes that are not named have the weight
    1."""
    threshold: float | None = None
    """Of two classes, the second class is predicted if its probability is at least this threshold. By
    default, the class with the higher probability is predicted."""
    threshold_by: ThresholdBy | None = None
    """With `f1`, the threshold is the one with the best F1 of the second class on the validation split."""
    quantiles: tuple[float, ...] = ()
    """If the label is a number, predictions also have these quantiles (`[0.1, 0.9]`), computed from the
    errors on the validation split."""
    workers: int | None = None
    """The number of ranks that train the model together (a gang). All ranks of the gang start together, or
    none of them starts. Each rank receives the environment variables of torchrun, TensorFlow and JAX. Only
    lstm, mlp and custom models can have several ranks."""
    roles: Mapping[str, int] = field(default_factory=dict)
    """The number of ranks for each role (`chief`, `worker`, `ps`, `evaluator`), for frameworks that
    distinguish ranks."""
    # --- lstm
    sequence: int = 48
    """The number of rows of the entity that the model reads, including the basis row."""
    normalize: Normalization = Normalization.LAST
    """With `last`, the network reads and predicts the columns to be forecast as differences from their last
    value."""
    # --- lstm and mlp
    hidden: int | None = None
    """The number of units in a layer of the network. The default number of units is 32 for lstm and 100 for
    mlp."""
    layers: int = 1
    dropout: float = 0.0
    epochs: int | None = None
    """The default number of epochs is enough for 1,000 (lstm) or 2,000 (mlp) steps of the optimizer, but
    from 20 to 500."""
    batch_size: int | None = None
    """The number of rows in one step of the training. The default batch size is a sixteenth of the training
    rows, rounded down to a power of two, from 16 to 256 rows."""
    weight_decay: float = 0.0
    mixed_precision: bool | None = None
    """Use half-precision arithmetic for the operations in which it is safe (by default only on a GPU)."""
    checkpoint_seconds: float = 30.0
    """The interval at which the state of the training is written, so that the next attempt can continue from
    this state."""
    # --- mlp and gbdt
    residual: bool = True
    """For regression, learn the change from the present value of the label's column, if this value is a
    feature."""
    # --- lstm, mlp and gbdt
    learning_rate: float | None = None
    """The default learning rate is 0.001 for lstm and mlp, and 0.1 for gbdt."""
    patience: int | None = None
    """The training ends after this many epochs or trees without a lower loss. The default patience is a
    fifth of the epochs, but at least 4, for lstm and mlp, and 20 trees for gbdt."""
    # --- gbdt
    trees: int = 300
    max_leaves: int = 31
    # --- linear
    regularization: float = 1.0
    repeat: str | None = None
    """For naive, the feature that is repeated as the prediction. The default feature is the present value of
    the label column."""
    # --- ensemble
    models: tuple[str, ...] = ()
    """The names of the trainings whose models the ensemble combines."""
    combine: Combine = Combine.MEAN
    # --- custom
    script: str | None = None
    """The script of a custom training, which is either executed (`train.py`) or has a function that is
    called with the data (`train.py:fit`)."""
    file: str | None = None
    """An existing model that replaces the script: an ONNX file, or (with `trust`) a pickled model."""
    signature: str | None = None
    """For a `file` without a dataset, the file of the project that describes the features and the predictions
    of the model (YAML or JSON). Without it, they follow from the inputs and outputs of the file."""
    samples: str | None = None
    """For a `file` without a dataset, a file of the project with rows (CSV or JSON). The version stores up to
    20 of these rows with their predictions (golden rows)."""
    predict: str | None = None
    """The function that predicts if the script writes no `model.onnx`, such as `train.py:predict`."""
    environment: str | None = None
    """The path of a requirements file of the project. Gridmill builds the Python environment once for each
    content of the requirements file."""
    container: str | None = None
    """The image of the container in which the script runs. Gridmill itself runs outside of the container."""
    registry_login: str | None = None
    """A reference to the secret with the login (`USER:PASSWORD`) at the registry of the image."""
    inputs: tuple[str, ...] = ()
    """The files of the project that the script reads (or folders, or patterns such as `src/**/*.py`): the
    model is trained again when one of these files changes. Without `inputs`, all files of the code bundle
    are inputs, except pipeline files and files that sinks of the pipeline load. `script`, `file`, the file
    of `predict` and `environment` are always included in the inputs."""
    options: Mapping[str, float | int | bool | str] = field(default_factory=dict)
    """Settings for the script, which the script receives as `options`."""
    trust: bool = False
    """Allow Gridmill to load a pickled model, although such a model can execute any code on the machine that
    runs the job."""

    @property
    def units(self) -> int:
        """The number of units in a layer of the network."""
        return self.hidden or HIDDEN[self.model]

    def references(self) -> tuple[str, ...]:
        """The names of the dataset, and of the trainings whose models an ensemble combines."""
        return (self.dataset, *self.models) if self.dataset else self.models

    def check(self) -> None:
        """Raise InputError if a field is set that the kind of model does not use, or if a value is out of
        its range."""
        own = OPTIONS[self.model]
        every = frozenset().union(*OPTIONS.values())
        for one in fields(self):
            if one.name in every - own and getattr(self, one.name) != _default(one):
                users = ", ".join(kind for kind in ModelKind if one.name in OPTIONS[kind])
                raise InputError(
                    f"a {self.model} model does not use {one.name!r} (it is for {users})",
                    hint=f"Options of {self.model} are {', '.join(sorted(own))}.",
                    place=f"training.{one.name}",
                )
        self._check_dataset()
        self._check_track()
        self._check_ranges()
        self._check_workers()
        self._check_search(own)
        self._check_folds()
        self._check_decisions()
        self._check_weights()
        check_inputs(self.inputs, "training.inputs")
        check_container(self.container, self.registry_login, "training")
        if self.container is not None and self.script is None:
            raise InputError(
                "only a `script` runs in a container",
                hint="Leave out `container`.",
                place="training.container",
            )
        if self.model == ModelKind.ENSEMBLE and not self.models:
            raise InputError("an ensemble names no models", place="training.models")
        if self.model == ModelKind.CUSTOM and (self.script is None) == (self.file is None):
            raise InputError(
                "a custom model needs either `script` or `file`",
                hint="`script: train.py` trains a model; `file: model.onnx` uses an existing model.",
                place="training.script",
            )

    def _check_dataset(self) -> None:
        is_import = self.file is not None and not self.dataset
        if not self.dataset and self.file is None:
            raise InputError("needs `dataset`", place="training")
        if not is_import and (self.signature or self.samples):
            raise InputError(
                "only a model from a `file` without a `dataset` has a signature and samples",
                hint="With a dataset, the features and the label of the dataset are the signature.",
                place="training.signature" if self.signature else "training.samples",
            )
        names = ("features", "objective", "track", "threshold_by", "quantiles", "workers", "roles")
        given = [name for name in names if getattr(self, name)]
        if is_import and given:
            raise InputError(
                f"a model from a file without a dataset has no {given[0]!r}",
                hint="The file in `signature` describes the features and the predictions.",
                place=f"training.{given[0]}",
            )

    def _check_track(self) -> None:
        if self.track is None or self.track.startswith(("${env:", "${secret:")):
            return
        check_no_secret(self.track, "training.track")
        if not _is_address(self.track):
            raise InputError(
                f"{self.track!r} is not an address of an MLflow server",
                hint="Write http://HOST:PORT, or https://.",
                place="training.track",
            )

    def _check_workers(self) -> None:
        check_gang(self.workers, self.roles, "training")
        if self.model not in GANGS and (self.workers is not None or self.roles):
            raise InputError(
                f"a {self.model} model is trained by one worker",
                hint=f"Models that several workers can train are {', '.join(GANGS)}.",
                place="training.workers",
            )
        if self.search is not None and (self.workers is not None or self.roles):
            raise InputError(
                "a search trains each setting with one worker",
                hint="Search without `workers`, then train with the best settings and `workers`.",
                place="training.workers",
            )

    def _check_weights(self) -> None:
        given = [name for name in ("weight", "class_weight", "class_weights") if getattr(self, name)]
        if given and (self.model == ModelKind.ENSEMBLE or self.file is not None):
            what = "an ensemble" if self.model == ModelKind.ENSEMBLE else "a model from a file"
            raise InputError(
                f"{what} is not trained, so rows cannot have weights", place=f"training.{given[0]}"
            )
        if self.class_weight is not None and self.class_weights:
            raise InputError(
                "has class_weight and class_weights; only one is allowed", place="training.class_weights"
            )
        for name, weight in self.class_weights.items():
            if not 0 <= weight < inf:
                raise InputError(
                    f"the weight of class {name!r} is {weight:g}; it must be at least 0 and finite",
                    place=f"training.class_weights.{name}",
                )

    def _check_decisions(self) -> None:
        if self.threshold is not None and self.threshold_by is not None:
            raise InputError(
                "has threshold and threshold_by; only one is allowed", place="training.threshold"
            )
        if self.threshold is not None and not 0 < self.threshold < 1:
            raise InputError(
                f"threshold is {self.threshold:g}; it must be between 0 and 1", place="training.threshold"
            )
        wrong = [level for level in self.quantiles if not 0 < level < 1]
        if wrong or list(self.quantiles) != sorted(set(self.quantiles)):
            raise InputError(
                f"quantiles are {', '.join(f'{level:g}' for level in self.quantiles)}; they must be between 0"
                " and 1, and ascending",
                place="training.quantiles",
            )

    def _check_folds(self) -> None:
        if self.folds is None and self.folds_by != FoldsBy.TIME:
            raise InputError("`folds_by` needs `folds`", place="training.folds_by")
        if self.folds is not None and self.folds < 2:
            raise InputError(f"folds is {self.folds}; it must be at least 2", place="training.folds")
        if self.folds is not None and self.model in _NO_FOLDS:
            raise InputError(
                f"a training of model {self.model} has no folds",
                hint="Set `folds` in the models whose predictions this model uses.",
                place="training.folds",
            )

    def _check_search(self, own: frozenset[str]) -> None:
        if self.search is None:
            return
        if self.model == ModelKind.ENSEMBLE or self.file is not None:
            what = "an ensemble" if self.model == ModelKind.ENSEMBLE else "a model from a file"
            raise InputError(
                f"{what} is not trained, so there are no settings to search",
                hint="Declare one training for each setting: the report compares their metrics.",
                place="training.search",
            )
        self.search.check()
        for name, one in self.search.parameters.items():
            one.check()
            if name not in own and self.model != ModelKind.CUSTOM:
                raise InputError(
                    f"a {self.model} model has no option {name!r} to search",
                    hint=f"Options of {self.model} are {', '.join(sorted(own))}.",
                    place=f"training.search.parameters.{name}",
                )
            if self.model != ModelKind.CUSTOM:
                self._check_range(name, one)

    def _check_range(self, name: str, one: Range) -> None:
        """Raise InputError if a range contains a value that the training itself would reject."""
        place = f"training.search.parameters.{name}"
        kinds = _kinds(name)
        if one.bounds and not kinds & {int, float}:
            raise InputError(
                f"{name} is not a number; {list(one.bounds)} is a range of numbers",
                hint=f"List the values: `{name}: {{among: [...]}}`.",
                place=place,
            )
        for value in one.among or one.bounds:
            if not _is_of(kinds, value):
                raise InputError(
                    f"{value!r} is not a value of {name}, which must be {_type_names(kinds)}", place=place
                )
            try:
                replace(self, search=None, **{name: value})._check_ranges()  # type: ignore[arg-type]
            except InputError as error:
                raise InputError(
                    f"the range contains an invalid value: {error.message}", place=place
                ) from None

    def _check_ranges(self) -> None:
        for name in ("sequence", "hidden", "layers", "epochs", "batch_size", "trees", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1", place=f"training.{name}")
        ranges = (
            ("max_leaves", self.max_leaves >= 2, "at least 2"),
            ("weight_decay", self.weight_decay >= 0, "at least 0"),
            ("checkpoint_seconds", self.checkpoint_seconds >= 0, "at least 0"),
            ("dropout", 0 <= self.dropout < 1, "at least 0 and below 1"),
            ("learning_rate", self.learning_rate is None or self.learning_rate > 0, "positive"),
            ("regularization", self.regularization > 0, "positive"),
            ("seed", 0 <= self.seed < 2**32, "between 0 and 4294967295"),
        )
        for name, right, rule in ranges:
            if not right:
                value = getattr(self, name)
                raise InputError(f"{name} is {value}; it must be {rule}", place=f"training.{name}")


def _kinds(name: str) -> frozenset[Any]:
    """Return the types that the values of an option can have, without None."""
    (kind,) = (one.type for one in fields(TrainingSpec) if one.name == name)
    return frozenset(get_args(kind) or (kind,)) - {type(None)}


def _is_of(kinds: frozenset[Any], value: object) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float in kinds or (int in kinds and value == int(value))
    return any(value in list(kind) if issubclass(kind, StrEnum) else type(value) is kind for kind in kinds)


def _type_names(kinds: frozenset[Any]) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return " or ".join(names[kind] if kind in names else "one of " + ", ".join(kind) for kind in kinds)


def _is_address(text: str) -> bool:
    try:
        address = urlsplit(text)
        return text.startswith(HTTP) and bool(address.hostname) and address.port != 0
    except ValueError:  # raised if the port is not a number
        return False


def _default(one: Field[Any]) -> object:
    return one.default_factory() if one.default_factory is not MISSING else one.default
