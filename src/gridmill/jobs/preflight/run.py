"""Runs the preflight: checks all jobs of a pipeline in order, each against the expected results of the
previous jobs.

An error is attributed to the field of the declaration that the message of the error indicates.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import field, fields, is_dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from gridmill.domain.artifact import Artifact, ArtifactKind
from gridmill.domain.dataset import AsOfJoin, Join
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job, JobKind
from gridmill.domain.preflight import PreflightFinding, PreflightRequest, PreflightResult, UncheckedJob
from gridmill.domain.service_log import has_service_log
from gridmill.domain.training import Objective
from gridmill.errors import GridmillError, InputError, NotFoundError, UnavailableError
from gridmill.jobs.dataset.columns import missing_column
from gridmill.jobs.dataset.time_units import INFERRED
from gridmill.jobs.expressions import explain
from gridmill.jobs.preflight.datasets import check_dataset, check_texts
from gridmill.jobs.preflight.models import check_prediction, check_training
from gridmill.jobs.preflight.remote import LONGEST_SECONDS, TimeBudget
from gridmill.jobs.preflight.results import (
    Known,
    NotCheckableError,
    PreflightContext,
    PreflightModel,
    PreflightTable,
    doubtful,
)
from gridmill.jobs.preflight.sinks import check_sink
from gridmill.scheduler.missing_columns import columns_of, missing

_QUOTED = re.compile(r"'([^']+)'|\"([^\"]+)\"")
_MOST_DEPTH = 4


def nearest(job: Job, path: str, message: str) -> str:
    """Return the field below `path` that contains a name which the message quotes.

    For example, the path `dataset.lags` becomes `dataset.lags[0].column`. If no field or several fields
    contain the name, return `path` itself (or the longest beginning of `path` that exists).
    """
    while (value := _at(job.spec, path.split(".")[1:])) is None:
        path = path.rpartition(".")[0]
    quoted = (match[1] or match[2] for match in _QUOTED.finditer(message))
    for name in quoted:
        # a quoted name of a table is no field: the message says that the table lacks a column
        if name in job.spec.references():
            continue
        places = [place for place, text in _texts(value, path, 0) if text == name]
        if len(places) == 1:
            return places[0]
    return path


def _at(value: Any, parts: list[str]) -> Any:  # noqa: ANN401  any part of a declaration
    for part in parts:
        name, _, number = part.partition("[")
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        if number and isinstance(value, tuple):
            value = value[int(number.rstrip("]"))]
    return value


def _texts(value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:  # noqa: ANN401  as above
    """Yield the names below a field of a declaration, each name with the path of its own field."""
    if isinstance(value, str):
        yield path, value
    elif depth > _MOST_DEPTH:
        return
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from _texts(item, f"{path}[{number}]", depth + 1)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield f"{path}.{name}", name
            yield from _texts(item, f"{path}.{name}", depth + 1)
    elif is_dataclass(value):
        for one in fields(value):
            yield from _texts(getattr(value, one.name), f"{path}.{one.name}", depth + 1)


_USUAL = {JobKind.SINK: "sink.source", JobKind.TRAINING: "training.dataset"}
"""The field to which an error belongs if the error itself has no field."""
_TABLES = (ArtifactKind.SINK, ArtifactKind.DATASET, ArtifactKind.PREDICTION)


@dataclass(slots=True)
class _Preflight:
    question: PreflightRequest
    scene: PreflightContext
    patience: TimeBudget
    known: dict[str, Known] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    """The jobs that have a finding, or that read the result of a job with a finding. Preflight does not
    check jobs in this set any further."""
    findings: list[PreflightFinding] = field(default_factory=list)
    unchecked: list[UncheckedJob] = field(default_factory=list)
    inferred: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def check(self) -> PreflightResult:
        """Check all jobs, and return the findings."""
        for name, artifact in self.question.versions.items():
            self._take(name, artifact)
        for job in self.question.jobs:
            if job.name not in self.question.unchanged and job.kind != JobKind.COMMAND:
                self._check(job)
        inferred = {job: lines for job, lines in self.inferred.items() if job not in self.broken}
        return PreflightResult(
            findings=tuple(self.findings), unchecked=tuple(self.unchecked), inferred=inferred
        )

    def _take(self, name: str, artifact: Artifact) -> None:
        try:
            if artifact.kind in _TABLES:
                self.known[name] = self.scene.stored(artifact)
            elif artifact.kind == ArtifactKind.MODEL and artifact.output.details.get("objective"):
                self.known[name] = _model(artifact)
        except (GridmillError, OSError, pa.ArrowException):
            return  # the files of the version are missing or unreadable, which the run reports itself

    def _check(self, job: Job) -> None:
        reads = job.spec.references()
        if self.broken.intersection(reads):
            self.broken.add(job.name)
            return
        tables = {name: one for name in reads if isinstance(one := self.known.get(name), PreflightTable)}
        try:
            made = self._made(job, tables)
        except NotCheckableError as error:
            self.unchecked.append(UncheckedJob(job=job.name, why=str(error)))
        except UnavailableError as error:
            self.unchecked.append(UncheckedJob(job=job.name, why=error.message))
        except duckdb.Error as error:
            self._find(job, explain(error, {}, job.kind.value), tables)
        except (InputError, NotFoundError) as error:
            self._find(job, error, tables)
        except Exception as error:  # noqa: BLE001  a defect of the check must not stand in a run's way
            why = f"the check itself failed: {type(error).__name__}: {error}"
            self.unchecked.append(UncheckedJob(job=job.name, why=why))
        else:
            if made is not None:
                self.known[job.name] = made

    def _made(self, job: Job, tables: Mapping[str, PreflightTable]) -> Known | None:
        match job.kind:
            case JobKind.SINK:
                if job.sink is not None and has_service_log(job.sink.source):
                    raise NotCheckableError(
                        "the control node finds the logged rows of a service at the start"
                    )
                if job.name in self.question.late:
                    command = self.question.late[job.name]
                    raise NotCheckableError(
                        f"job {command} may write the files of the sink before they are loaded"
                    )
                earlier = self.question.earlier.get(job.name)
                return check_sink(self.scene, job, tables, earlier, self.patience)
            case JobKind.DATASET:
                return self._dataset(job, tables)
            case JobKind.TRAINING:
                return self._training(job, tables)
            case JobKind.PREDICTION:
                self._prediction(job, tables)
        return None

    def _dataset(self, job: Job, tables: Mapping[str, PreflightTable]) -> PreflightTable:
        unknown = [name for name in job.spec.references() if name not in tables]
        if not unknown:
            made = check_dataset(self.scene, job, tables, self.question.earlier.get(job.name))
            if lines := tuple(made.artifact.output.details.get(INFERRED) or ()):
                self.inferred[job.name] = lines
            return made
        check_texts(self.scene, job)
        raise NotCheckableError(_of_unknown(unknown))

    def _training(self, job: Job, tables: Mapping[str, PreflightTable]) -> PreflightModel:
        spec = job.training
        assert spec is not None
        if not spec.dataset:
            raise NotCheckableError("the file of the model is read when the job runs")
        if spec.dataset not in tables:
            raise NotCheckableError(_of_unknown([spec.dataset]))
        members = [one for name in spec.models if isinstance(one := self.known.get(name), PreflightModel)]
        declared = next((one.dataset for one in self.question.jobs if one.name == spec.dataset), None)
        return check_training(self.scene, job, tables[spec.dataset], members, declared)

    def _prediction(self, job: Job, tables: Mapping[str, PreflightTable]) -> None:
        spec = job.prediction
        assert spec is not None
        models = {
            name: one for name in spec.models if isinstance(one := self.known.get(name), PreflightModel)
        }
        check_prediction(self.scene, job, tables.get(spec.dataset), models)
        unknown = [name for name in spec.references() if name not in models and name not in tables]
        if unknown:
            raise NotCheckableError(_of_unknown(unknown))

    def _find(self, job: Job, error: GridmillError, tables: Mapping[str, PreflightTable]) -> None:
        if isinstance(error, InputError) and error.problems:
            for place, message, hint in error.problems:
                self._find(job, InputError(message, place=place, hint=hint), tables)
            return
        if job.kind == JobKind.SINK and error.place.startswith("source."):
            error.place = f"sink.{error.place}"
        own = error.place.partition(".")[0] == job.kind.value
        path = error.place if own else _USUAL.get(job.kind, job.kind.value)
        message = error.message if path == error.place or not error.place else str(error)
        path = nearest(job, path, error.message)
        certain = not doubtful(f"{message} {error.hint}" if tables else message, tables)
        if job.kind == JobKind.SINK:
            certain = True  # certain, because a sink's error is in rows that were read
        self.broken.add(job.name)
        self.findings.append(
            PreflightFinding(job=job.name, path=path, message=message, hint=error.hint, certain=certain)
        )
        self.findings += _also_missing(job, path, message, tables)


def _also_missing(
    job: Job, path: str, message: str, tables: Mapping[str, PreflightTable]
) -> Iterator[PreflightFinding]:
    """The other columns that a job names and its tables do not have: an error names only the first."""
    columns = {
        name: tuple(column.name for column in one.artifact.output.columns)
        for name, one in tables.items()
        if not one.open
    }
    made = _made_by(job)
    for other in missing(columns_of(job), columns, ignore_case=True):
        if other.column in made or path.startswith(other.field) or repr(other.column) in message:
            continue
        error = missing_column(other.column, columns[other.table], other.table, other.field)
        yield PreflightFinding(job=job.name, path=other.field, message=error.message, hint=error.hint)


def _made_by(job: Job) -> set[str]:
    """The columns that a dataset itself adds to its rows: its other fields may name them, too."""
    spec = job.dataset
    if spec is None:
        return set()
    joins: tuple[Join | AsOfJoin, ...] = (*spec.joins, *spec.asof_joins)
    return {*spec.features, *(name for join in joins for name in join.columns)}


def _of_unknown(names: list[str]) -> str:
    verb = "is" if len(names) == 1 else "are"
    return f"the job reads {', '.join(names)}, which {verb} not known before the run"


def _model(artifact: Artifact) -> PreflightModel:
    details = artifact.output.details
    objective = Objective(str(details["objective"]))
    labels = tuple(str(name) for name in details.get("labels") or ())
    return PreflightModel(features={}, labels=labels, objective=objective, open=True)


def check(
    question: PreflightRequest, work: Path, patience_seconds: float = LONGEST_SECONDS
) -> PreflightResult:
    """Return the errors of the pipeline that can be found with the data that exist now.

    Preflight writes files only below the folder `work`. The time limit `patience_seconds` applies to all
    remote sources together.
    """
    scene = PreflightContext(work=work, folder=question.folder, root=question.root)
    with redirect_stdout(StringIO()):
        return _Preflight(question=question, scene=scene, patience=TimeBudget(patience_seconds)).check()
