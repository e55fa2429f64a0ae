"""The study of a hyperparameter search, which proposes the settings of the next trial. If the process is
killed, the journal of the study is kept."""

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from gridmill.domain.metrics import HIGHER_IS_BETTER
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.domain.tuning import EarlyStop, Range, Search, Value
from gridmill.errors import DataError

JOURNAL, STUDY = "search.journal", "search"
INSTEAD_OF = "instead_of"
"""The attribute of a trial that repeats a trial of a killed process. The value of this attribute is the
number of the killed trial."""
LOCK_FILE_SUFFIX = ".lock"
"""The suffix that Optuna appends to the name of the journal for its lock file."""


class UndefinedMetricError(DataError):
    """The error that is raised if the metric by which trials are compared is undefined on the validation
    split."""


def open_study(folder: Path, search: Search, metric: str) -> optuna.Study:
    """Open the study in the journal of the folder. If the journal does not exist, it is created. If the
    process is killed, a later process can continue the study."""
    folder.mkdir(parents=True, exist_ok=True)
    journal = folder / JOURNAL
    _repair(journal)
    pruners: dict[EarlyStop, Callable[[], optuna.pruners.BasePruner]] = {
        EarlyStop.MEDIAN: lambda: optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1),
        EarlyStop.HYPERBAND: optuna.pruners.HyperbandPruner,
        EarlyStop.NONE: optuna.pruners.NopPruner,
    }
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(journal))),
        study_name=STUDY,
        load_if_exists=True,
        direction="maximize" if metric in HIGHER_IS_BETTER else "minimize",
        pruner=pruners[search.early_stop](),
    )
    _repeat_interrupted(study)
    return study


def ask(study: optuna.Study, spec: TrainingSpec, search: Search) -> tuple[Trial, dict[str, Value]]:
    """Return the next trial and its settings."""
    study.sampler = sampler_of(spec.seed, len(study.trials))
    trial = study.ask()
    return trial, {name: suggest(trial, name, one, spec) for name, one in search.parameters.items()}


def sampler_of(seed: int, trials: int) -> optuna.samplers.BaseSampler:
    """Return the sampler for the trial with this number.

    The random numbers of the sampler depend on the seed and the number of the trial, not on earlier draws of
    this process. An attempt that continues a search after a killed attempt tries new settings and does not
    repeat the first settings.
    """
    drawn = np.random.SeedSequence((seed, trials)).generate_state(1)
    return optuna.samplers.TPESampler(seed=int(drawn[0]), constant_liar=True)


def _repair(journal: Path) -> None:
    """Clean up after a killed attempt: delete an incomplete last line of the journal, and the lock of
    Optuna.

    No process holds the lock, because only one attempt at a time uses the folder.
    """
    journal.with_name(journal.name + LOCK_FILE_SUFFIX).unlink(missing_ok=True)
    if journal.exists():
        whole = journal.read_bytes().rfind(b"\n") + 1
        os.truncate(journal, whole)


def _repeat_interrupted(study: optuna.Study) -> None:
    """Enqueue the settings of the trials that a killed attempt had started.

    Each trial is enqueued exactly once, even if the process is killed in this function.
    """
    trials = study.trials
    repeated = {trial.user_attrs.get(INSTEAD_OF) for trial in trials}
    interrupted = [trial for trial in trials if trial.state == TrialState.RUNNING]
    for trial in interrupted:
        if trial.number not in repeated:
            study.enqueue_trial(trial.params, user_attrs={INSTEAD_OF: trial.number})
        study.tell(trial.number, state=TrialState.FAIL)
    if trials:
        print(f"continuing a search of {len(trials) - len(interrupted)} trials", flush=True)


UNDEFINED: Mapping[str, str] = {
    "r2": "the label has the same value in all rows of the validation split",
    "skill": "repeating the present value is already perfect on the validation split",
    "auc": "all rows of the validation split belong to one class",
    "average_precision": "all rows of the validation split belong to one class",
    **dict.fromkeys(
        ("f1", "precision", "recall"), "no row of the validation split belongs to the second class"
    ),
}
"""For each metric that can be undefined, the reason why a measured model may not have it."""


def value_of(metric: str, measured: Mapping[str, float]) -> float:
    """Return the value of the metric on the validation split. Raises UndefinedMetricError if the metric is
    undefined on the validation split."""
    name = f"validation_{metric}"
    if name in measured:
        return measured[name]
    why = UNDEFINED.get(metric, "it is undefined there") if measured else "the validation split has no rows"
    raise UndefinedMetricError(
        f"the search compares its trials by {metric}, which cannot be computed: {why}",
        hint="Choose another metric, or a validation split with other rows.",
        place="training.search.metric",
    )


def suggest(trial: Trial, name: str, one: Range, spec: TrainingSpec) -> Value:
    """Let the trial suggest a value from the range.

    The value is a whole number if the option requires a whole number, or if both bounds of a custom option
    are written as whole numbers.
    """
    if one.among:
        chosen = trial.suggest_categorical(name, list(one.among))
        assert chosen is not None
        return chosen
    low, high = one.bounds
    if is_whole(spec, name, one):
        return trial.suggest_int(name, int(low), int(high), log=bool(one.log))
    return trial.suggest_float(name, low, high, log=bool(one.log))


def is_whole(spec: TrainingSpec, name: str, one: Range) -> bool:
    """Return whether the option requires a whole number."""
    if spec.model == ModelKind.CUSTOM:
        return all(isinstance(bound, int) for bound in one.bounds)
    kind = next(field.type for field in fields(TrainingSpec) if field.name == name)
    return kind in (int, int | None)


def trial_rows(study: optuna.Study) -> list[dict[str, Any]]:
    """Return the trials for the report.

    Trials of a killed process are left out, because other trials repeat their settings.
    """
    repeated = {trial.user_attrs.get(INSTEAD_OF) for trial in study.trials}
    return [_row(trial) for trial in study.trials if trial.number not in repeated]


def _row(trial: FrozenTrial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": trial.state.name.lower(),
        "value": trial.value,
        "parameters": dict(trial.params),
        "seconds": trial.user_attrs.get("seconds"),
        "steps": len(trial.intermediate_values),
        "message": trial.user_attrs.get("message", ""),
    }
