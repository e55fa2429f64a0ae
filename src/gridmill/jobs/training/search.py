"""Searching settings: trials in processes side by side, decided by Optuna, kept in a journal that survives a
crash.

This process only decides, forks and waits; it loads no library that a forked child could not do with. A child
reads the dataset once and does one trial after the other.
"""

import json
import os
import selectors
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import Trial, TrialState

from gridmill.errors import InputError, JobError
from gridmill.jobs.children import Child, raise_error, start_child
from gridmill.jobs.context import CODE, JobContext, PrunedError
from gridmill.jobs.metrics import NAMES
from gridmill.model.metric import HIGHER_IS_BETTER
from gridmill.model.search import EarlyStop, Range, Search, Value
from gridmill.model.training import ModelKind, Objective, TrainingSpec

STEPWISE = (ModelKind.LSTM, ModelKind.MLP, ModelKind.CUSTOM)
"""Kinds that tell losses while they learn; trees tell theirs at the end, when nothing can be saved."""
DONE = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
JOURNAL, STUDY = "search.journal", "search"

TryOut = Callable[[TrainingSpec, JobContext], float]
"""Learns once and gives the metric; `context` tells what happens meanwhile and may end it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best settings, and all trials for the report: [{number, state, value, parameters, seconds,
    steps}]."""

    spec: TrainingSpec
    metric: str
    trials: list[dict[str, Any]]
    best: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialContext(JobContext):
    """A context that asks after each epoch whether to go on. Trials that run side by side share no folder."""

    ask: Callable[[float, float], bool] = field(default=lambda step, value: False)

    def metric(self, name: str, value: float, step: float | None = None) -> None:
        """Passes the validation loss on. Raises PrunedError."""
        if name == "validation_loss" and step is not None and self.ask(step, value):
            raise PrunedError

    def progress(self, done: float, total: float | None = None, unit: str = "", note: str = "") -> None:
        """Says nothing: the search does."""

    @property
    def checkpoints(self) -> Path | None:
        """None: what a killed trial had learned is learned again."""
        return None

    @property
    def output(self) -> Path:
        """What it leaves is measured, and is no part of the model."""
        path = self.work / "output"
        path.mkdir(parents=True, exist_ok=True)
        return path


def with_parameters(spec: TrainingSpec, values: Mapping[str, Value]) -> TrainingSpec:
    """The training with these settings, and without a search."""
    if spec.model == ModelKind.CUSTOM:
        return replace(spec, search=None, options={**spec.options, **values})
    return replace(spec, search=None, **values)  # type: ignore[arg-type]


def find_best(
    spec: TrainingSpec, search: Search, context: JobContext, make: Callable[[], tuple[Objective, TryOut]]
) -> Found:
    """Search. `make` reads the dataset (in a child) and gives its objective and how to try. Raises what it
    raises; JobError when every trial failed."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    crew = _Crew(spec, search, context, make)
    try:
        crew.work()
    finally:
        crew.dismiss()
    return crew.found()


class _Crew:
    """The children and the trial that each has in hand."""

    def __init__(
        self,
        spec: TrainingSpec,
        search: Search,
        context: JobContext,
        make: Callable[[], tuple[Objective, TryOut]],
    ) -> None:
        self._spec, self._search, self._context, self._make = spec, search, context, make
        self._children: dict[int, Child] = {}
        self._hands: dict[int, Trial | None] = {}
        self._began: dict[int, float] = {}
        self._selector = selectors.DefaultSelector()
        self._study: optuna.Study | None = None
        self._metric = search.metric or ""

    def work(self) -> None:
        """Until all trials have ended."""
        self._start()
        while self._children:
            for key, _ in self._selector.select():
                self._hear(key.data)

    def _start(self) -> None:
        child = start_child(self._talk, tuple(self._children.values()))
        self._children[child.pid], self._hands[child.pid] = child, None
        self._selector.register(child.reports, selectors.EVENT_READ, child)

    def _hear(self, child: Child) -> None:
        reports = child.hear()
        if reports is None:
            self._lose(child)
            return
        for report in reports:
            raise_error(report)
            if "objective" in report:
                self._ready(child, Objective(report["objective"]))
            elif "step" in report:
                self._intermediate(child, report)
            else:
                self._ended(child, report)

    def _ready(self, child: Child, objective: Objective) -> None:
        if self._study is None:
            self._metric = check_metric(self._search.metric, objective)
            self._study = self._open()
            wanted = min(self._search.parallel or self._context.order.workers, self._left())
            for _ in range(1, wanted):
                self._start()
        self._hand(child)

    def _open(self) -> optuna.Study:
        folder = self._context.checkpoints or self._context.work
        folder.mkdir(parents=True, exist_ok=True)
        storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
        pruners: dict[EarlyStop, Callable[[], optuna.pruners.BasePruner]] = {
            EarlyStop.MEDIAN: lambda: optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1),
            EarlyStop.HYPERBAND: optuna.pruners.HyperbandPruner,
            EarlyStop.NONE: optuna.pruners.NopPruner,
        }
        study = optuna.create_study(
            storage=storage,
            study_name=STUDY,
            load_if_exists=True,
            direction="maximize" if self._metric in HIGHER_IS_BETTER else "minimize",
            sampler=optuna.samplers.TPESampler(seed=self._spec.seed, constant_liar=True),
            pruner=pruners[self._search.early_stop](),
        )
        again = [trial for trial in study.trials if trial.state == TrialState.RUNNING]
        for trial in again:  # of a killed attempt: the same settings once more
            study.tell(trial.number, state=TrialState.FAIL)
            study.enqueue_trial(trial.params, user_attrs={"instead_of": trial.number})
        if study.trials:
            print(f"going on with a search of {len(study.trials) - len(again)} trials", flush=True)
        return study

    def _left(self) -> int:
        """How many are to be begun; those of a killed attempt are not counted, those done instead are."""
        if self._study is None:
            return self._search.trials
        trials = self._study.trials
        replaced = sum("instead_of" in trial.user_attrs for trial in trials)
        waiting = sum(trial.state == TrialState.WAITING for trial in trials)
        return self._search.trials - (len(trials) - replaced) + waiting

    def _hand(self, child: Child) -> None:
        if self._study is None or self._left() <= 0:
            self._remove(child)
            return
        trial = self._study.ask()
        values = {
            name: suggest(trial, name, one, self._spec) for name, one in self._search.parameters.items()
        }
        self._hands[child.pid], self._began[trial.number] = trial, time.monotonic()
        child.tell(json.dumps(values))

    def _intermediate(self, child: Child, report: Mapping[str, Any]) -> None:
        trial = self._hands[child.pid]
        assert trial is not None
        sign = -1 if self._metric in HIGHER_IS_BETTER else 1
        trial.report(sign * report["value"], int(report["step"]))
        child.tell("stop" if trial.should_prune() else "go on")

    def _ended(self, child: Child, report: Mapping[str, Any]) -> None:
        trial, study = self._hands[child.pid], self._study
        assert trial is not None
        assert study is not None
        trial.set_user_attr("seconds", round(time.monotonic() - self._began[trial.number], 3))
        states = {"value": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
        state = next(found for name, found in states.items() if name in report)
        if state == TrialState.FAIL:
            trial.set_user_attr("message", report["failed"])
            print(f"trial {trial.number} failed: {report['failed']}", flush=True)
        study.tell(trial, report.get("value"), state=state, skip_if_finished=True)
        if state == TrialState.COMPLETE:
            self._context.metric(f"trial_{self._metric}", report["value"], step=trial.number)
        self._tell(study)
        self._hand(child)

    def _tell(self, study: optuna.Study) -> None:
        done = sum(trial.state in DONE and "instead_of" not in trial.user_attrs for trial in study.trials)
        complete = [t for t in study.trials if t.state == TrialState.COMPLETE]
        note = f"best {self._metric} {study.best_value:.4g}" if complete else ""
        self._context.progress(min(done, self._search.trials), self._search.trials, "trials", note=note)

    def _lose(self, child: Child) -> None:
        trial, how = self._hands[child.pid], self._remove(child)
        if trial is None:
            raise JobError(f"a process of the search ended ({how})", hint="The job's log has more.")
        print(f"trial {trial.number} ended its process ({how})", flush=True)
        assert self._study is not None
        trial.set_user_attr("message", how)
        self._study.tell(trial, state=TrialState.FAIL)
        if self._left() > 0:
            self._start()

    def _remove(self, child: Child) -> str:
        self._selector.unregister(child.reports)
        del self._children[child.pid]
        return child.end()

    def dismiss(self) -> None:
        """End all children."""
        for child in tuple(self._children.values()):
            self._remove(child)
        self._selector.close()

    def found(self) -> Found:
        """What was found. Raises JobError when every trial failed."""
        trials = self._study.trials if self._study else []
        if self._study is None or not any(trial.state == TrialState.COMPLETE for trial in trials):
            why = next(
                (t.user_attrs["message"] for t in trials if "message" in t.user_attrs), "no reason known"
            )
            raise JobError(f"every trial of the search failed, the first one: {why}")
        best = self._study.best_trial
        return Found(
            spec=with_parameters(self._spec, best.params),
            metric=self._metric,
            trials=[_row(trial) for trial in trials],
            best=best.number,
        )

    def _talk(self, next_order: Callable[[], str], report: Callable[[dict[str, Any]], None]) -> None:
        objective, attempt = self._make()
        report({"objective": objective.value})

        def ask(step: float, value: float) -> bool:
            report({"step": step, "value": value})
            return next_order() == "stop"

        def go_on(step: float, value: float) -> bool:
            return False

        own = {one.name: getattr(self._context, one.name) for one in fields(JobContext)}
        own["work"] = _own_folder(self._context.work)
        context = TrialContext(**own, ask=ask if self._spec.model in STEPWISE else go_on)
        while order := next_order():
            try:
                report({"value": attempt(with_parameters(self._spec, json.loads(order)), context)})
            except PrunedError:
                report({"pruned": True})
            except (InputError, JobError) as error:  # these settings cannot be learned with: others may
                report({"failed": str(error)})
            shutil.rmtree(context.output)
        sys.stdout.flush()


def _own_folder(work: Path) -> Path:
    """Of this process, with a copy of the code, if there is any."""
    folder = work / "trials" / str(os.getpid())
    folder.mkdir(parents=True)
    if (work / CODE).is_dir():
        shutil.copytree(work / CODE, folder / CODE, symlinks=True)
    return folder


def check_metric(metric: str | None, objective: Objective) -> str:
    """The metric to search by. Raises InputError for one that the objective does not have."""
    names = NAMES[objective]
    if metric is not None and metric not in names:
        raise InputError(
            f"there is no metric {metric!r} of {objective}",
            hint=f"There are: {', '.join(names)}.",
            place="training.search.metric",
        )
    return metric or names[0]


def suggest(trial: Trial, name: str, one: Range, spec: TrainingSpec) -> Value:
    """A value from the range; whole where the option is a whole number, or both bounds of a custom one
    are written as such."""
    if one.among:
        chosen = trial.suggest_categorical(name, list(one.among))
        assert chosen is not None
        return chosen
    low, high = one.bounds
    if is_whole(spec, name, one):
        return trial.suggest_int(name, int(low), int(high), log=bool(one.log))
    return trial.suggest_float(name, low, high, log=bool(one.log))


def is_whole(spec: TrainingSpec, name: str, one: Range) -> bool:
    """Whether only whole numbers make sense."""
    if spec.model == ModelKind.CUSTOM:
        return all(isinstance(bound, int) for bound in one.bounds)
    kind = next(field.type for field in fields(TrainingSpec) if field.name == name)
    return kind in (int, int | None)


def _row(trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": trial.state.name.lower(),
        "value": trial.value,
        "parameters": dict(trial.params),
        "seconds": trial.user_attrs.get("seconds"),
        "steps": len(trial.intermediate_values),
        "message": trial.user_attrs.get("message", ""),
    }
