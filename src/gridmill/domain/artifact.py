"""This module has artifacts (versions of the results of jobs: sink, dataset, model, prediction, files) and
their aliases.

The aliases `latest` and `best` always exist. All aliases except `latest` and `best` are set by users. The
alias `latest` names the version that the last run of its pipeline made or found unchanged.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum
from math import isfinite
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.domain.metrics import read_metric
from gridmill.domain.promotion import Promotion
from gridmill.domain.sql_statement import Given
from gridmill.errors import InputError


class ArtifactKind(StrEnum):
    """The kind of a version, such as a table or a model."""

    SINK = "sink"
    DATASET = "dataset"
    MODEL = "model"
    PREDICTION = "prediction"
    FILES = "files"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table and its type, named as in Arrow (`double`, `timestamp[us]`, ...)."""

    name: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The result that an attempt reports to the control node. The result of an attempt is visible to users
    and other jobs only after the control node has committed this result. `uri` is the path of the result
    relative to the storage root. For a table, `table_version` is the version number of the Delta table.
    `details` is JSON with facts for the lineage, column statistics, samples, and curves for the report."""

    kind: ArtifactKind
    uri: str
    table_version: int | None = None
    rows: int | None = None
    size_bytes: int = 0
    columns: tuple[Column, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A committed version of the result of the job `name` (`pipeline/job`), which never changes. `number` is
    the number of the version, counted from 1.

    `fingerprint` is the hash of everything from which the version was made (declaration, code, input
    versions). Versions with the same fingerprint have the same content. `made_from` has the ids of the input
    versions. `source` is the source from which a sink loaded its rows. `bundle` is the hash of the code that
    made the version (empty if Gridmill stored no code for it). `parameters` are the parameters of the run
    that made the version; the version has a copy because the records of the run may be deleted before the
    version.
    """

    id: str
    """The id of the version, in the form `pipeline/job@number`."""
    name: str
    number: int
    output: Output
    fingerprint: str
    made_from: tuple[str, ...] = ()
    run_id: str = ""
    attempt_id: str = ""
    created: float = 0.0
    removed: bool = False
    source: str = ""
    bundle: str = ""
    parameters: Mapping[str, Given] = field(default_factory=dict)

    @property
    def kind(self) -> ArtifactKind:
        """The kind of this version."""
        return self.output.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A version that a job reads, with the name that the version has in the declaration of the job."""

    name: str
    artifact: Artifact


LATEST, BEST = "latest", "best"
_ALIAS = re.compile("[a-z][a-z0-9_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """A name that a user has set for a version of the result of the job `name` (`pipeline/job`). The id of
    an alias is `pipeline/job@alias`.

    The alias means the version `number`. Without a number, the alias means the version that is currently the
    best by `metric` (a name from the metrics of the versions, or `max:NAME`, `min:NAME`). `changed` is the
    time when the alias was set (Unix seconds). `promotion` is the last comparison of a new version with the
    version of the alias, by a prediction with `promote`.
    """

    id: str
    name: str
    alias: str
    number: int | None = None
    metric: str = ""
    changed: float = 0.0
    promotion: Promotion | None = None

    @property
    def version(self) -> str:
        """The id of the version that the alias names; empty for the best version by a metric."""
        return f"{self.name}@{self.number}" if self.number is not None else ""


def split_reference(reference: str) -> tuple[str, str]:
    """Return the two parts of a reference to a version. The parts of a reference are `pipeline/job` and the
    text after the `@` (a number, an alias, or empty)."""
    name, _, version = reference.partition("@")
    return name, version


def check_alias(alias: Alias) -> None:
    """Raise InputError if the name of the alias is invalid, or if the alias has neither a version nor a
    metric."""
    if not _ALIAS.fullmatch(alias.alias):
        raise InputError(
            f"{alias.alias!r} cannot be the name of an alias",
            hint="Use lower-case letters, digits, - and _. Begin with a letter.",
        )
    if alias.alias == LATEST:
        raise InputError("`latest` is reserved for the newest version", hint="Choose another name.")
    if alias.id != f"{alias.name}@{alias.alias}" or (alias.number is None) == (not alias.metric):
        raise InputError(f"alias {alias.id!r} must name a version, or the best version by a metric")
    if alias.metric:
        read_metric(alias.metric)


def best_of(versions: Iterable[Artifact], metric: str = "") -> Artifact | None:
    """Return the best of these versions by a metric. The caller passes the versions newest first. If several
    versions are equally good, the function returns the newest of them.

    Without `metric`, the versions are compared by the metric that the newest model declares (`best_by`), on
    the validation split. A version is left out if the values that it predicts are of another kind than the
    values that the newest version predicts. The result is None if no version has a value of the metric.
    """
    existing = [one for one in versions if not one.removed]
    existing = [one for one in existing if predicts(one) == predicts(existing[0])]
    wanted = metric or (own_metric(existing[0]) if existing else "")
    if not wanted:
        return None
    name, higher = read_metric(wanted)
    measured = [one for one in existing if isfinite(one.output.metrics.get(name, float("nan")))]
    pick = max if higher else min
    return pick(measured, key=lambda one: one.output.metrics[name], default=None)


def predicts(version: Artifact) -> tuple[str, ...]:
    """Return a description of the values that a model predicts, and the classes of the model. The result is
    empty for old records and for versions that are not models."""
    details = version.output.details
    return (str(details.get("predicts") or ""), *sorted(map(str, details.get("classes") or ())))


def own_metric(version: Artifact) -> str:
    """Return the metric that a model declares for comparisons with other models. The result is empty if the
    version is not a model."""
    best_by = version.output.details.get("best_by")
    if version.kind != ArtifactKind.MODEL or not best_by:
        return ""
    return f"validation_{best_by}" if f"validation_{best_by}" in version.output.metrics else str(best_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """The latest version of the result of the job `name` (`pipeline/job`). `artifact` is the id of the
    latest version.

    `run` is the last submitted run in which the job succeeded or was unchanged, and `order` is the order
    number of that run. If a run that was submitted earlier ends later, it does not replace this latest
    version.
    """

    name: str
    artifact: str
    run: str
    order: int
