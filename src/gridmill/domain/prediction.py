"""Declaration of a batch prediction, which a swarm of workers computes."""

from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError

OWN_COLUMNS = ("row", "prediction", "truth", "fold")
"""Columns that every prediction may have; for classes also `probability_CLASS`."""
KEYS_HINT = "Give that column of the dataset's entity or time another name where its table is made."


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionSpec:
    """The declaration of a prediction: a swarm predicts `split` of `dataset` (all rows if None) with the best
    of `models`.

    `best_by` names the validation metric: `rmse` (default for regression), `mse`, `mae`, `r2`, `skill`,
    `log_loss` (default for classification), `accuracy`, `auc`, `brier`, `average_precision`, `f1`,
    `precision`, `recall`; the direction follows from the name. The shards are distributed to workers that are
    started for this job. Each row's prediction is written exactly once. `workers` can be left open (`auto`):
    the number then follows from rows and CPUs at first, and later from the measurements of earlier attempts.
    """

    dataset: str
    models: tuple[str, ...]
    split: str | None = "test"
    best_by: str | None = None
    shards: int | None = None
    workers: int | None = None
    trust: bool = False
    """Use models that predict by their own code or a pickled file. Such a model can execute any code on the
    machine."""

    def references(self) -> tuple[str, ...]:
        """The dataset and the candidate models."""
        return (self.dataset, *self.models)

    def check(self) -> None:
        """Raise InputError if there are no models, or for counts below one."""
        if not self.models:
            raise InputError("no models are named", place="prediction.models")
        for name in ("shards", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1", place=f"prediction.{name}")
