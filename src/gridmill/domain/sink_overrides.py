"""This module has alterations of a sink: changes made after its file was written, which apply until they are
reverted."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.sink import Constraint, Outage, SinkSpec
from gridmill.errors import InputError


class AlterVerb(StrEnum):
    """The action of an alteration of a sink."""

    ADD = "add"
    REMOVE = "remove"


class SinkPart(StrEnum):
    """The parts of a sink that can be altered."""

    SOURCE = "source"
    CONSTRAINT = "constraint"
    METRIC = "metric"
    OUTAGE_WINDOW = "outage_window"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkChange:
    """A part of a sink that was added or removed. `key` identifies the altered part among the parts of the
    same kind: it is the path of a source, the reason text of a constraint, the name of a metric, or the
    beginning of an outage. If a part was added, one of the fields `constraint`, `outage` and `text` (the SQL
    of a metric) contains the part. If a part was added, `hides` is true if a part of the pipeline file with
    the same key was removed before."""

    verb: AlterVerb
    part: SinkPart
    key: str
    constraint: Constraint | None = None
    outage: Outage | None = None
    text: str = ""
    hides: bool = False

    def __str__(self) -> str:
        return f"{self.verb} {self.part} {self.key}" + (f" = {self.text}" if self.text else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alterations:
    """All alterations of the sink `name` (`pipeline/job`), in the order in which they were made. `changed`
    is the time of the last alteration."""

    name: str
    changes: tuple[SinkChange, ...] = ()
    changed: float = 0.0


def key_of_constraint(constraint: Constraint) -> str:
    """Return the key of a constraint, which is its reason text."""
    return "; ".join(dict.fromkeys(reason for _, reason in constraint.rules()))


def with_change(spec: SinkSpec, changes: tuple[SinkChange, ...], new: SinkChange) -> tuple[SinkChange, ...]:
    """Return the alterations with one more change. If the new change reverts an earlier change, it replaces
    the earlier change. `spec` is the sink as it is declared, with or without the changes.

    Raises InputError if the part to remove does not exist, or if the part to add already exists.
    """
    keys = _keys(altered(spec, changes), new.part)
    exists, add = new.key in keys, new.verb == AlterVerb.ADD
    if exists == add:
        raise InputError(
            f"the sink {'already has the' if exists else 'has no'} {new.part} {new.key!r}",
            hint=f"It has {', '.join(repr(key) for key in keys) or 'none'}.",
        )
    if new.part == SinkPart.SOURCE and keys == (new.key,):
        raise InputError(f"{new.key!r} is the only source of the sink", hint="Add another source first.")
    before = next((change for change in changes if (change.part, change.key) == (new.part, new.key)), None)
    rest = tuple(change for change in changes if change is not before)
    if before is not None and not add and not before.hides:
        return rest
    return (*rest, replace(new, hides=before is not None and add))


def _keys(spec: SinkSpec, part: SinkPart) -> tuple[str, ...]:
    match part:
        case SinkPart.SOURCE:
            return spec.source.paths
        case SinkPart.CONSTRAINT:
            return tuple(key_of_constraint(one) for one in spec.constraints)
        case SinkPart.METRIC:
            return tuple(spec.metrics)
        case SinkPart.OUTAGE_WINDOW:
            return tuple(one.begins for one in spec.outages)


def altered(spec: SinkSpec, changes: Iterable[SinkChange]) -> SinkSpec:
    """Return the declaration of the sink with its alterations applied. Parts that were removed by an
    alteration may already be missing in the file."""
    for change in changes:
        add = change.verb == AlterVerb.ADD
        rest = _without(spec, change)
        if not add:
            spec = rest
        elif change.part == SinkPart.SOURCE:
            spec = replace(rest, source=replace(rest.source, path=(*rest.source.paths, change.key)))
        elif change.constraint is not None:
            spec = replace(rest, constraints=(*rest.constraints, change.constraint))
        elif change.outage is not None:
            spec = replace(rest, outages=(*rest.outages, change.outage))
        elif change.part == SinkPart.METRIC:
            spec = replace(rest, metrics={**rest.metrics, change.key: change.text})
    return spec


def _without(spec: SinkSpec, change: SinkChange) -> SinkSpec:
    match change.part:
        case SinkPart.SOURCE:
            paths = tuple(path for path in spec.source.paths if path != change.key)
            return (
                spec if paths == spec.source.paths else replace(spec, source=replace(spec.source, path=paths))
            )
        case SinkPart.CONSTRAINT:
            kept = tuple(one for one in spec.constraints if key_of_constraint(one) != change.key)
            return replace(spec, constraints=kept)
        case SinkPart.METRIC:
            return replace(
                spec, metrics={name: sql for name, sql in spec.metrics.items() if name != change.key}
            )
        case SinkPart.OUTAGE_WINDOW:
            return replace(spec, outages=tuple(one for one in spec.outages if one.begins != change.key))


def altered_pipeline(pipeline: Pipeline, alterations: Mapping[str, Alterations]) -> Pipeline:
    """Return the pipeline with the alterations of its sinks applied. `alterations` has the alterations by
    the name of the sink."""
    return replace(
        pipeline, jobs=tuple(_altered_job(job, pipeline.name, alterations) for job in pipeline.jobs)
    )


def _altered_job(job: Job, pipeline: str, found: Mapping[str, Alterations]) -> Job:
    alterations = found.get(f"{pipeline}/{job.name}")
    if job.sink is None or alterations is None:
        return job
    return replace(job, sink=altered(job.sink, alterations.changes))
