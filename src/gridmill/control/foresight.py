"""What is wrong with the columns that jobs name, told before a run by the versions that they read."""

from dataclasses import replace

from gridmill.control.names import unknown_name
from gridmill.control.references import find_version
from gridmill.control.state import Control
from gridmill.errors import InputError, NotFoundError, explained
from gridmill.model.alteration import AlterVerb, Change
from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.job import Job
from gridmill.model.pipeline import Pipeline
from gridmill.model.sink import SinkSpec
from gridmill.model.view import PlannedJob
from gridmill.planning.columns import Known, missing, missing_of


def with_columns_checked(
    control: Control, pipeline: Pipeline, planned: PlannedJob, unchanged: frozenset[str]
) -> PlannedJob:
    """The job with what it would fail with, or may: a table that is loaded again may get the column."""
    job = pipeline.job(planned.job)
    there, later = _known(control, pipeline, job, unchanged)
    found = (unknown_name(control, name, job) for name in job.external_names)
    unknown = [error for error in found if error is not None]
    for error in unknown:
        error.place = pipeline.lines.place(error.place) if pipeline.lines is not None else error.place
    wrong = [*map(explained, unknown), *missing(job, there)]
    unsure = missing(job, later)
    return replace(planned, problem=planned.problem or "; ".join(wrong), doubt="; ".join(unsure))


def check_change(control: Control, name: str, spec: SinkSpec, change: Change) -> None:
    """Raises InputError where what is added to the sink `name` (`pipeline/job`) names a column that neither
    its newest version nor its declaration has; of what was never loaded nothing is known."""
    if change.verb == AlterVerb.REMOVE:
        return
    pipeline, _, sink = name.partition("/")
    others = (change.constraint.references,) if change.constraint and change.constraint.references else ()
    known: dict[str, tuple[str, ...]] = {}
    for called in (sink, *others):
        found = _version(control, called if "/" in called else f"{pipeline}/{called}")
        if found is not None:
            names = tuple(column.name for column in found.output.columns)
            known[called] = (*names, *_declared(spec)) if called == sink else names
    wrong = "; ".join(missing_of(change, sink, known))
    if wrong:
        tables = (f"{called!r} has {', '.join(dict.fromkeys(names))}" for called, names in known.items())
        raise InputError(
            wrong, hint=f"{'; '.join(tables)}. One that is to come is named in `columns` of the sink first."
        )


def _known(control: Control, pipeline: Pipeline, job: Job, unchanged: frozenset[str]) -> tuple[Known, Known]:
    """The columns of tables that stand as they are, and of sinks that are loaded again. What other jobs will
    make anew is not known."""
    sinks = {one.name: one.sink for one in pipeline.jobs if one.sink is not None}
    there: dict[str, tuple[str, ...]] = {}
    later: dict[str, tuple[str, ...]] = {}
    for name in job.spec.references():
        found = _version(control, name if "/" in name else f"{pipeline.name}/{name}")
        if found is None:
            continue
        if "/" in name or name in unchanged:
            there[name] = _columns(found, job)
        elif name in sinks:
            later[name] = (*_columns(found, job), *_declared(sinks[name]))
    return there, later


def _version(control: Control, reference: str) -> Artifact | None:
    try:
        found = find_version(control, reference)
    except NotFoundError:
        return None
    return None if found.removed else found


def _columns(version: Artifact, job: Job) -> tuple[str, ...]:
    """Of a dataset that is learned from, its features."""
    if job.training is not None and version.kind == ArtifactKind.DATASET:
        return tuple(version.output.details.get("features") or ())
    return tuple(column.name for column in version.output.columns)


def _declared(sink: SinkSpec) -> tuple[str, ...]:
    return (*sink.columns, *sink.select, *sink.rename.values(), *sink.add)
