"""Checks the parts of a pipeline against each other: references must be valid, there must be no cycles, and
jobs must fit into their resources."""

import re
from collections.abc import Iterator, Mapping

from gridmill.declarations.problems import FieldPath, Problem
from gridmill.declarations.yaml import Value, YamlDocument, YamlList, YamlMapping
from gridmill.domain.command import input_variable
from gridmill.domain.due_times import check_spec
from gridmill.domain.graph import NAMED_WHERE_READ, order
from gridmill.domain.job import Job, JobKind
from gridmill.domain.naming import did_you_mean
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.prediction import KEYS_HINT, OWN_COLUMNS
from gridmill.domain.schedule import ScheduleSpec
from gridmill.domain.service_job import service_name
from gridmill.errors import InputError, PipelineError

_MAY_NAME: Mapping[tuple[JobKind, str], JobKind] = {
    (JobKind.TRAINING, "dataset"): JobKind.DATASET,
    (JobKind.TRAINING, "models"): JobKind.TRAINING,
    (JobKind.PREDICTION, "dataset"): JobKind.DATASET,
    (JobKind.PREDICTION, "models"): JobKind.TRAINING,
    (JobKind.SERVICE, "model"): JobKind.TRAINING,
}
"""The kind of job that a field accepts, for the fields that accept only one kind of job."""


def check(document: YamlDocument, pipeline: Pipeline) -> list[Problem]:
    """Returns the errors in a pipeline file that concern several jobs, or a job and its resource."""
    if not pipeline.jobs:
        return [document.problem(("jobs",), "a pipeline needs at least one job")]
    problems = [*_references(document, pipeline), *_same_variables(document, pipeline)]
    problems += _schedules(document, pipeline)
    problems += _resource_types(document, pipeline)
    problems += _overwritten_keys(document, pipeline)
    problems += _aliases_of_others(document, pipeline)
    problems += _same_services(document, pipeline)
    return problems or list(_cycle(document, pipeline))


def _schedules(document: YamlDocument, pipeline: Pipeline) -> Iterator[Problem]:
    yield from _schedule_at(document, (), pipeline.schedule)
    for job in pipeline.jobs:
        yield from _schedule_at(document, ("jobs", job.name), job.schedule)


def _schedule_at(document: YamlDocument, at: FieldPath, spec: ScheduleSpec | None) -> Iterator[Problem]:
    try:
        check_spec(spec or ScheduleSpec())
    except InputError as error:
        yield document.problem((*at, *error.place.split(".")), error.message, error.hint)


def external_resources(pipeline: Pipeline) -> tuple[str, ...]:
    """Returns the resources that jobs name and that the file does not declare. The grid must have these
    resources."""
    declared = {resource.name for resource in pipeline.resources}
    named = (name for job in pipeline.jobs for name in job.named_resources)
    return tuple(dict.fromkeys(name for name in named if name not in declared))


def _references(document: YamlDocument, pipeline: Pipeline) -> Iterator[Problem]:
    jobs = {job.name: job for job in pipeline.jobs}
    for job in pipeline.jobs:
        for number, name in enumerate(job.needs):
            if name in job.needs[:number]:
                at: FieldPath = ("jobs", job.name, "needs", number)
                yield document.problem(at, f"`{job.name}` needs `{name}` twice", "List each job once.")
        words = list(_words(document.value, ("jobs", job.name, job.kind.value)))
        for name, path in (*_needs(job), *_read(job, words)):
            if "/" in name:
                yield from _of_another(document, job, name, path)
            elif name == job.name:
                yield document.problem(path, f"`{name}` needs itself")
            elif name not in jobs:
                meant = did_you_mean(name, jobs) or _could_be(job, path, jobs)
                yield document.problem(path, f"there is no job `{name}`{meant}", _ELSEWHERE)
        for name, path in words:
            wanted = _MAY_NAME.get((job.kind, _field(job, path)))
            if wanted and name in jobs and jobs[name].kind != wanted:
                yield document.problem(path, f"`{name}` is a {jobs[name].kind} job, not a {wanted} job")


def _field(job: Job, path: FieldPath) -> str:
    """Returns the field of a job that a path leads to. A service can be written as the text of its model."""
    return str(path[3]) if len(path) > 3 else "model" if job.kind is JobKind.SERVICE else ""


def _could_be(job: Job, path: FieldPath, jobs: Mapping[str, Job]) -> str:
    """Returns a text with the names of the jobs that a field could name."""
    wanted = _MAY_NAME.get((job.kind, _field(job, path)))
    names = [name for name, one in jobs.items() if name != job.name and wanted in (None, one.kind)]
    kind = f"{wanted} jobs" if wanted else "jobs"
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return f"; the file has the {kind} {shown}" if names else f"; the file has no other {kind}"


def _overwritten_keys(document: YamlDocument, pipeline: Pipeline) -> Iterator[Problem]:
    """Yields a problem for each prediction whose dataset has an entity or time column with the same name as
    a column of the result."""
    datasets = {job.name: job.dataset for job in pipeline.jobs}
    for job in pipeline.jobs:
        dataset = datasets.get(job.prediction.dataset) if job.prediction else None
        for name in dataset.keys if dataset else ():
            if name in OWN_COLUMNS:
                yield document.problem(
                    ("jobs", job.name, "prediction", "dataset"),
                    f"the dataset's column `{name}` has the same name as a column of the prediction",
                    KEYS_HINT,
                )


def _aliases_of_others(document: YamlDocument, pipeline: Pipeline) -> Iterator[Problem]:
    """Yields a problem for each prediction that would move an alias of another model."""
    for job in pipeline.jobs:
        terms = job.prediction.promote if job.prediction is not None else None
        if job.prediction is None or terms is None:
            continue
        model = job.prediction.models[0]
        wanted = model if "/" in model else f"{pipeline.name}/{model}"
        name, _, alias = terms.alias.partition("@")
        if name != wanted:
            yield document.problem(
                ("jobs", job.name, "prediction", "promote", "alias"),
                f"`{terms.alias}` is an alias of `{name}`, but the model is `{wanted}`",
                f"Write `{wanted}@{alias}`.",
            )


def _same_variables(document: YamlDocument, pipeline: Pipeline) -> Iterator[Problem]:
    """Yields a problem for each command that needs two jobs whose folders would be in the same environment
    variable."""
    for job in pipeline.jobs:
        seen: dict[str, str] = {}
        for number, name in enumerate(job.needs if job.command is not None else ()):
            first = seen.setdefault(input_variable(name), name)
            if first != name:
                called = [_with_line(document, one) for one in (first, name)]
                yield document.problem(
                    ("jobs", job.name, "needs", number),
                    f"the folders of {called[0]} and {called[1]} would both be ${input_variable(name)} "
                    f"in `{job.name}`",
                    "Rename one of the two jobs.",
                )


def _same_services(document: YamlDocument, pipeline: Pipeline) -> Iterator[Problem]:
    """Yields a problem for each job whose service an earlier job starts too."""
    first: dict[str, str] = {}
    for job in pipeline.jobs if any(one.starts_service for one in pipeline.jobs) else ():
        if not job.starts_service:
            continue
        name = service_name(job)
        if first.setdefault(name, job.name) != job.name:
            called = _with_line(document, first[name])
            message = f"the job {called} starts the service `{name}` too"
            yield document.problem(("jobs", job.name, "service", "name"), message, "Set another `name`.")


def _with_line(document: YamlDocument, name: str) -> str:
    """Returns the name of a job with the line of its declaration. A result of another pipeline has no line
    in this file."""
    return f"`{name}`" if "/" in name else f"`{name}` ({document.file}:{document.locate(('jobs', name))[0]})"


_ELSEWHERE = "Write a job of another pipeline as `pipeline/job`."
_REFERENCE = re.compile(r"[^/@]+/[^/@]+(@[^/@]+)?")


def _of_another(document: YamlDocument, job: Job, name: str, path: FieldPath) -> Iterator[Problem]:
    if job.command is None:
        yield document.problem(path, f"`{name}` is a result of another pipeline", NAMED_WHERE_READ)
    elif not _REFERENCE.fullmatch(name):
        hint = "Write `pipeline/job`, `pipeline/job@3` or `pipeline/job@prod`."
        yield document.problem(path, f"`{name}` is not a result of another pipeline", hint)


def _needs(job: Job) -> Iterator[tuple[str, FieldPath]]:
    for number, name in enumerate(job.needs):
        yield name, ("jobs", job.name, "needs", number)


def _read(job: Job, words: list[tuple[str, FieldPath]]) -> Iterator[tuple[str, FieldPath]]:
    """Yields the jobs whose results the declaration reads, each with the path where it is named first."""
    first = dict(reversed(words))
    for name in job.spec.references():
        if "/" not in name:
            yield name, first.get(name, ("jobs", job.name, job.kind.value))


def _words(value: Value, start: FieldPath) -> Iterator[tuple[str, FieldPath]]:
    """Yields the texts below a path of the document, with their paths."""
    yield from _walk(_at(value, start), start)


def _at(value: Value, path: FieldPath) -> Value:
    """Returns the value at a path of the document, or None if there is no value."""
    for part in path:
        value = value.get(part) if isinstance(value, YamlMapping) and isinstance(part, str) else None
    return value


def _walk(value: Value, path: FieldPath) -> Iterator[tuple[str, FieldPath]]:
    match value:
        case str():
            yield value, path
        case YamlMapping():
            for key, item in value.items():
                yield from _walk(item, (*path, key))
        case YamlList():
            for number, item in enumerate(value):
                yield from _walk(item, (*path, number))


def _resource_types(document: YamlDocument, pipeline: Pipeline) -> Iterator[Problem]:
    types = {resource.name: resource.type for resource in pipeline.resources}
    for job in pipeline.jobs:
        for number, name in enumerate(job.named_resources):
            type_, path = types.get(name), ("resource",) if job.resource else ("resources", number)
            if type_ is not None and type_ != job.kind:
                message = f"resource `{name}` serves {type_} jobs, but `{job.name}` is a {job.kind} job"
                yield document.problem(("jobs", job.name, *path), message)
        if job.resource and job.resources:
            yield document.problem(
                ("jobs", job.name, "resources"),
                f"`{job.name}` has both `resource` and `resources`",
                "Remove one of the two.",
            )
        yield from _several(document, job)


def _several(document: YamlDocument, job: Job) -> Iterator[Problem]:
    path: FieldPath = ("jobs", job.name, "resources")
    if not job.resources and isinstance(_at(document.value, path), YamlList):
        message, hint = f"`resources` of `{job.name}` is empty", "List resources, or remove `resources`."
        yield document.problem(path, message, hint)
    for number, name in enumerate(job.resources):
        if name in job.resources[:number]:
            yield document.problem((*path, number), f"`{job.name}` names `{name}` twice")


def _cycle(document: YamlDocument, pipeline: Pipeline) -> Iterator[Problem]:
    try:
        order(pipeline)
    except PipelineError as error:
        name = error.place.rpartition("jobs.")[2]
        yield document.problem(("jobs", name), error.message, error.hint)
