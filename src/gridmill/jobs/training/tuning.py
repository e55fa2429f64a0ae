"""Hyperparameter search runs trials in parallel processes. Optuna chooses the settings of the trials, and
its journal survives a crash.

The process of the search only makes decisions, forks child processes and waits for them. The process of the
search imports no library that makes a fork unsafe. A child process reads the dataset once and runs one trial
after another.
"""

import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import Trial, TrialState

from gridmill.domain.amounts import show_number
from gridmill.domain.frozen import dataclass
from gridmill.domain.metrics import HIGHER_IS_BETTER
from gridmill.domain.training import ModelKind, Objective, TrainingSpec
from gridmill.domain.tuning import Search, Value
from gridmill.errors import InputError, JobError
from gridmill.jobs.child_processes import Crew, WorkerProcess, raise_error
from gridmill.jobs.context import CODE, JobContext, PrunedError
from gridmill.jobs.metrics import SEARCH_METRIC, check_metric
from gridmill.jobs.training.study import INSTEAD_OF, UndefinedMetricError, ask, open_study, trial_rows

STEPWISE = (ModelKind.LSTM, ModelKind.MLP, ModelKind.CUSTOM)
"""The kinds of models that report losses while they train. Trees report losses only at the end, when it is
too late to stop a trial early."""
DONE = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
TryOut = Callable[[TrainingSpec, JobContext], float]
"""A function that trains a model once and returns the value of the metric. The `context` of such a training
reports its progress and can stop it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult:
    """The best settings of a search, and all trials for the report: [{number, state, value, parameters,
    seconds, steps}]."""

    spec: TrainingSpec
    metric: str
    trials: list[dict[str, Any]]
    best: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialContext(JobContext):
    """The context of a trial. After each epoch, the context checks whether the trial is to continue.

    Parallel trials have separate folders and divide the threads. `side_by_side` is the number of parallel
    trials.
    """

    side_by_side: int = 1
    ask: Callable[[float, float], bool] = field(default=lambda step, value: False)

    def metric(self, name: str, value: float, step: float | None = None) -> None:
        """Report the validation loss of the trial. Raises PrunedError."""
        if name == "validation_loss" and step is not None and self.ask(step, value):
            raise PrunedError

    def progress(self, done: float, total: float | None = None, unit: str = "", note: str = "") -> None:
        """Do nothing, because the search itself reports the progress."""

    @property
    def threads(self) -> int:
        """Return the number of threads for this trial."""
        return max(1, super(TrialContext, self).threads // self.side_by_side)  # noqa: UP008  slots make the class anew

    @property
    def checkpoints(self) -> Path | None:
        """Return None, because a trial that is killed starts from the beginning."""
        return None

    @property
    def output(self) -> Path:
        """Return the folder for the output of a trial. The output of a trial is measured but is not part of
        the model."""
        path = self.work / "output"
        path.mkdir(parents=True, exist_ok=True)
        return path


def with_parameters(spec: TrainingSpec, values: Mapping[str, Value]) -> TrainingSpec:
    """Return the declaration of the training with these settings, and without a search."""
    if spec.model == ModelKind.CUSTOM:
        return replace(spec, search=None, options={**spec.options, **values})
    return replace(spec, search=None, **values)  # type: ignore[arg-type]


def find_best(
    spec: TrainingSpec, search: Search, context: JobContext, make: Callable[[], tuple[Objective, TryOut]]
) -> TuningResult:
    """Run the search, and return the best settings.

    The function `make` reads the dataset (in a child process). `make` returns the objective of the training
    and the function that tries settings. Raises the errors of `make`. Raises JobError if every trial failed.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    crew = _TrialPool(spec, search, context, make)
    try:
        crew.work()
    finally:
        crew.dismiss()
    return crew.result()


class _TrialPool(Crew):
    """The child processes of a search, and the trial of each child."""

    def __init__(
        self,
        spec: TrainingSpec,
        search: Search,
        context: JobContext,
        make: Callable[[], tuple[Objective, TryOut]],
    ) -> None:
        super().__init__()
        self._spec, self._search, self._context, self._make = spec, search, context, make
        self._hands: dict[int, Trial | None] = {}
        self._began: dict[int, float] = {}
        self._study: optuna.Study | None = None
        self._metric = search.metric or ""

    def work(self) -> None:
        """Run trials until all trials have ended."""
        self._start()
        while self.children:
            for child in self.heard():
                self._receive(child)

    def _start(self) -> None:
        self._hands[self.start(self._talk).pid] = None

    def _receive(self, child: WorkerProcess) -> None:
        reports = child.receive()
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

    def _ready(self, child: WorkerProcess, objective: Objective) -> None:
        if self._study is None:
            self._metric = check_metric(self._search.metric, objective, SEARCH_METRIC)
            folder = self._context.checkpoints or self._context.work
            self._study = open_study(folder, self._search, self._metric)
            for _ in range(1, min(self._most, self._left())):
                self._start()
        self._hand(child)

    @property
    def _most(self) -> int:
        """Return the number of trials that run in parallel."""
        return min(self._search.parallel or self._context.order.workers, self._search.trials)

    def _left(self) -> int:
        """Return the number of trials that are still to be started.

        The trials that a killed attempt had started are not counted, but the trials that repeat them are
        counted.
        """
        if self._study is None:
            return self._search.trials
        trials = self._study.trials
        replaced = sum(INSTEAD_OF in trial.user_attrs for trial in trials)
        waiting = sum(trial.state == TrialState.WAITING for trial in trials)
        return self._search.trials - (len(trials) - replaced) + waiting

    def _hand(self, child: WorkerProcess) -> None:
        if self._study is None or self._left() <= 0:
            self.remove(child)
            return
        trial, values = ask(self._study, self._spec, self._search)
        self._hands[child.pid], self._began[trial.number] = trial, time.monotonic()
        child.send(json.dumps(values))

    def _intermediate(self, child: WorkerProcess, report: Mapping[str, Any]) -> None:
        trial = self._hands[child.pid]
        assert trial is not None
        sign = -1 if self._metric in HIGHER_IS_BETTER else 1
        trial.report(sign * report["value"], int(report["step"]))
        child.send("stop" if trial.should_prune() else "go on")

    def _ended(self, child: WorkerProcess, report: Mapping[str, Any]) -> None:
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
        self._report_progress(study)
        self._hand(child)

    def _report_progress(self, study: optuna.Study) -> None:
        done = sum(trial.state in DONE and INSTEAD_OF not in trial.user_attrs for trial in study.trials)
        complete = [t for t in study.trials if t.state == TrialState.COMPLETE]
        note = f"best {self._metric} {show_number(study.best_value)}" if complete else ""
        self._context.progress(min(done, self._search.trials), self._search.trials, "trials", note=note)

    def _lose(self, child: WorkerProcess) -> None:
        trial, how = self._hands[child.pid], self.remove(child)
        if trial is None:
            raise JobError(f"a process of the search ended ({how})", hint="The job's log has the details.")
        print(f"trial {trial.number} crashed its process ({how})", flush=True)
        assert self._study is not None
        trial.set_user_attr("message", how)
        self._study.tell(trial, state=TrialState.FAIL)
        if self._left() > 0:
            self._start()

    def result(self) -> TuningResult:
        """Return the result of the search. Raises JobError if every trial failed."""
        trials = self._study.trials if self._study else []
        if self._study is None or not any(trial.state == TrialState.COMPLETE for trial in trials):
            why = next(
                (t.user_attrs["message"] for t in trials if "message" in t.user_attrs), "no reason known"
            )
            raise JobError(f"every trial of the search failed; the first one: {why}")
        best = self._study.best_trial
        return TuningResult(
            spec=with_parameters(self._spec, best.params),
            metric=self._metric,
            trials=trial_rows(self._study),
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
        listens = self._spec.model in STEPWISE
        context = TrialContext(**own, side_by_side=self._most, ask=ask if listens else go_on)
        while order := next_order():
            try:
                report({"value": attempt(with_parameters(self._spec, json.loads(order)), context)})
            except PrunedError:
                report({"pruned": True})
            # raised again, because the metric is undefined for all other settings too
            except UndefinedMetricError:
                raise
            # the tuning continues, because these settings fail, but other settings may work
            except (InputError, JobError) as error:
                report({"failed": str(error)})
            shutil.rmtree(context.output)
        sys.stdout.flush()


def _own_folder(work: Path) -> Path:
    """Return the work folder for this process. If the project has code, the folder of this process has its
    own copy of the code."""
    folder = work / "trials" / str(os.getpid())
    folder.mkdir(parents=True)
    if (work / CODE).is_dir():
        shutil.copytree(work / CODE, folder / CODE, symlinks=True)
    return folder
