"""A training told to an MLflow server while it is learned, and never at the training's expense."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridmill.jobs.context import JobContext
from gridmill.jobs.models import Card
from gridmill.jobs.training.mlflow_server import METRICS_A_BATCH, TROUBLES, Metric, Server, plain
from gridmill.model.training import ModelKind, TrainingSpec
from gridmill.settings import fill_in_environment

if TYPE_CHECKING:
    from gridmill.jobs.training.search import Found  # Optuna is for those who search

EVERY_SECONDS, AGAIN_SECONDS, REST = 5.0, 60.0, 20
"""How often metrics are sent, and how soon a server that failed is tried again; in any case after so many
times as long as the server took."""
MOST_WAITING = 100_000
"""Metrics that a server that is away is told later; of more the oldest are left out."""
KEPT = "mlflow-run"
"""In the folder of checkpoints: the run that the attempt after a killed one goes on with."""
_STATES = {"COMPLETE": "FINISHED", "PRUNED": "KILLED"}

Tell = Callable[[str, float, float | None], None]
Trial = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedContext(JobContext):
    """A context whose metrics are told twice."""

    tell: Tell = field(default=lambda name, value, step: None)

    def metric(self, name: str, value: float, step: float | None = None) -> None:
        """As JobContext's; silent where that is."""
        JobContext.metric(self, name, value, step)
        if self.events_fd is not None and isfinite(value):
            self.tell(name, value, step)


@contextmanager
def tracking(spec: TrainingSpec, context: JobContext) -> Iterator["Tracker"]:
    """Tell the server in `spec.track` of the training that is done within. One that fails costs lines in the
    log. Raises InputError for an environment variable that is not set."""
    tracker = Tracker(spec, context)
    try:
        tracker.begin()
        yield tracker
    except BaseException as error:
        tracker.end("FAILED" if isinstance(error, Exception) else "KILLED")
        raise
    finally:
        tracker.close()


class Tracker:
    """One run at the server. What the server does not take waits, and is told when it answers again."""

    def __init__(self, spec: TrainingSpec, context: JobContext) -> None:
        url = spec.track or ""
        self._url, self._spec, self._context = url, spec, context
        self._server = Server(fill_in_environment(url, "training.track", in_url=True))
        self._experiment, self._run = "", ""
        self._steps: Mapping[str, int] = {}
        """How far a killed attempt had told each metric: its successor tells its curve from the beginning."""
        self._waiting: deque[Metric] = deque(maxlen=MOST_WAITING)
        self._begun, self._next, self._said = _now(), 0.0, False

    @property
    def context(self) -> JobContext:
        """What to train with, so that the server is told of metrics."""
        own = {one.name: getattr(self._context, one.name) for one in fields(JobContext)}
        return TrackedContext(**own, tell=self._tell)

    def begin(self) -> None:
        """Make the run, so that it is seen to be under way."""
        self._try(self._open, "it is told later")

    def _tell(self, name: str, value: float, step: float | None) -> None:
        self._waiting.append(_metric(name, value, step))
        if time.monotonic() >= self._next:
            self._try(self._send, "it is told later")

    def finish(self, card: Card, search: "Found | None" = None) -> str | None:
        """Tell what it came to, and send the model's files; the run's id. None where the server does not
        answer: a line in the log says so. The trials of a search become runs of their own, below it."""

        def act() -> None:
            self._send()
            parameters = {"model": card.kind.value, "seed": card.seed, **card.options}
            self._server.log_parameters(self._run, parameters)
            if search is not None:
                for trial in search.trials:
                    self._send_trial(trial, search.metric)
            self._server.set_state(self._run, "FINISHED", _now())

        told = self._try(act, "")
        if told:
            self._try(self._send_files, "")
        return self._run if told else None

    def _send_files(self) -> None:
        root = self._server.artifact_root(self._run)
        if root is None:
            print(f"no files are sent to MLflow at {self._url}: it serves no artifacts itself", flush=True)
            return
        output = self._context.output
        for path in sorted(path for path in output.rglob("*") if path.is_file()):
            self._server.put_file(root, f"model/{path.relative_to(output).as_posix()}", path)

    def end(self, state: str) -> None:
        """Tell that nothing came of it, where the server knows of it."""
        if self._run:
            self._try(lambda: self._server.set_state(self._run, state, _now()), "")

    def close(self) -> None:
        """Let the server's connections go."""
        self._server.close()

    def _try(self, act: Callable[[], None], otherwise: str) -> bool:
        """Whether the server took it; the first time that it does not, and the last, a line says so."""
        begun = time.monotonic()
        try:
            act()
        except TROUBLES as error:
            if not (self._said and otherwise):
                why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                print(
                    f"not told to MLflow at {self._url}: {why}" + (f"; {otherwise}" if otherwise else ""),
                    flush=True,
                )
            self._said, took = True, time.monotonic() - begun
            self._next = time.monotonic() + max(AGAIN_SECONDS, REST * took)
            return False
        self._next = time.monotonic() + max(EVERY_SECONDS, REST * (time.monotonic() - begun))
        return True

    def _open(self) -> None:
        """The run that a killed attempt left, else a new one."""
        if self._run:
            return
        self._experiment = self._server.experiment(self._context.order.pipeline)
        kept = self._kept()
        if kept is not None and kept.exists():
            self._take_over(kept.read_text())
        if not self._run:
            order = self._context.order
            name = f"{order.job.name} {order.attempt_id}"
            self._run = self._server.create(self._experiment, name, self._begun, self._tags())
            dataset = self._context.input(self._spec.dataset)
            source = str(self._context.below_root(dataset.output.uri))
            self._server.log_dataset(self._run, dataset.id, dataset.fingerprint, source)
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(self._run)

    def _take_over(self, run_id: str) -> None:
        try:
            self._server.set_state(run_id, "RUNNING")
            self._steps = self._server.steps(run_id)
        except TROUBLES:
            return  # it was deleted, or another server had it
        self._run = run_id

    def _kept(self) -> Path | None:
        """None for a script, whose folder of checkpoints is its own."""
        folder = self._context.checkpoints
        return folder / KEPT if folder is not None and self._spec.model != ModelKind.CUSTOM else None

    def _tags(self) -> Mapping[str, str]:
        order = self._context.order
        tags = {
            "mlflow.source.type": "JOB",
            "mlflow.source.name": f"{order.pipeline}/{order.job.name}",
            "gridmill.run": order.run_id,
            "gridmill.attempt": order.attempt_id,
            "gridmill.dataset": self._context.input(self._spec.dataset).id,
        }
        return tags | ({"gridmill.code": order.bundle} if order.bundle else {})

    def _send(self) -> None:
        self._open()
        while self._waiting:
            some = list(islice(self._waiting, METRICS_A_BATCH))
            if fresh := [one for one in some if self._is_new(one)]:
                self._server.log_metrics(self._run, fresh)
            for _ in some:
                self._waiting.popleft()

    def _is_new(self, one: Metric) -> bool:
        return one["key"] not in self._steps or int(one["step"]) > self._steps[str(one["key"])]

    def _send_trial(self, trial: Trial, metric: str) -> None:
        tags = {"mlflow.parentRunId": self._run, "gridmill.attempt": self._context.order.attempt_id}
        ended = _now()
        begun = ended - int(1000 * (trial["seconds"] or 0.0))
        run_id = self._server.create(self._experiment, f"trial {trial['number']}", begun, tags)
        self._server.log_parameters(run_id, trial["parameters"])
        if trial["value"] is not None:
            self._server.log_metrics(run_id, [_metric(f"validation_{metric}", trial["value"], None)])
        self._server.set_state(run_id, _STATES.get(trial["state"].upper(), "FAILED"), ended)


def _metric(name: str, value: float, step: float | None) -> Metric:
    return {"key": plain(name), "value": value, "timestamp": _now(), "step": int(step or 0)}


def _now() -> int:
    """In milliseconds since 1970."""
    return int(time.time() * 1000)
