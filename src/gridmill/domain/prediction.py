"""This module declares a batch prediction, which a swarm of workers computes."""

from gridmill.domain.frozen import dataclass
from gridmill.domain.promotion import PromotionSpec
from gridmill.errors import InputError

OWN_COLUMNS = ("row", "prediction", "truth", "fold")
"""The columns that every prediction may have; a prediction of classes also has `probability_CLASS`."""
KEYS_HINT = "In the job that makes the table, give the entity or time column another name."


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionSpec:
    """The declaration of a prediction: a swarm of workers predicts the rows of `split` in `dataset` with the
    best of `models`. If `split` is None, all rows are predicted.

    `best_by` is the validation metric by which the best model is chosen. The metrics are `rmse` (default for
    regression), `mse`, `mae`, `r2`, `skill`, `log_loss` (default for classification), `accuracy`, `auc`,
    `brier`, `average_precision`, `f1`, `precision` and `recall`; the name of the metric determines whether
    higher is better. The shards are distributed to workers that are started for this job only. The
    prediction of each row is written exactly once. With `workers: auto`, Gridmill first chooses the number
    of workers from rows and CPUs, and later from the measurements of earlier attempts.

    With `promote`, the prediction has one model, and compares it with the version that an alias names. The
    alias moves to the model if the condition is met.
    """

    dataset: str
    models: tuple[str, ...]
    split: str | None = "test"
    best_by: str | None = None
    shards: int | None = None
    workers: int | None = None
    promote: PromotionSpec | None = None
    trust: bool = False
    """Allow models that predict by their own code or that are pickled files, although such models can
    execute any code on the machine that runs the job."""

    def references(self) -> tuple[str, ...]:
        """The names of the dataset, of the candidate models, and of the alias that may move."""
        return (self.dataset, *self.models, *self.optional_references)

    @property
    def optional_references(self) -> tuple[str, ...]:
        """The names that need not have a version: an alias that may move is set if it names no version."""
        return (self.promote.alias,) if self.promote is not None else ()

    def check(self) -> None:
        """Raise InputError if the prediction has no models, or if a count is below one."""
        if not self.models:
            raise InputError("no models are named", place="prediction.models")
        if self.promote is not None and (len(self.models) > 1 or "@" in self.models[0]):
            raise InputError(
                "a prediction with `promote` has one model, which is named without a version",
                hint="Name the job of the training. The version of the alias is read without being named.",
                place="prediction.models",
            )
        for name in ("shards", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1", place=f"prediction.{name}")
