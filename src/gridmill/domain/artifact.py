"""Artifacts (versions of the results of jobs: sink, dataset, model, prediction, files) and their aliases.

`latest` and `best` are aliases that always exist. Users set other aliases. `latest` is the version that the
last run of its pipeline made or found unchanged.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum
from math import isfinite
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.domain.metrics import read_metric
from gridmill.domain.sql_statement import Given
from gridmill.errors import InputError


class ArtifactKind(StrEnum):
    """The kind of a version."""

    SINK = "sink"
    DATASET = "dataset"
    MODEL = "model"
    PREDICTION = "prediction"
    FILES = "files"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column and its type, named as in Arrow (`double`, `timestamp[us]`, ...)."""

    name: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The result that an attempt reports. Other jobs and users see it only after the control node has
    committed it. `uri` is relative to the storage root. For a table, `table_version` is the Delta version.
    `details` is JSON: lineage facts, column statistics, samples and curves for the report."""

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
    """A committed, immutable version `number` (from 1) of `name` (`pipeline/job`).

    `fingerprint` is the hash of everything that the version was made from (declaration, code, input
    versions): versions with the same fingerprint have the same content. `made_from` are the ids of the input
    versions. `source` is the source of a sink's rows. `bundle` is the hash of the code that made the version
    (empty: no code). `parameters` are the parameters of its run; the version keeps a copy because the records
    of the run may be deleted before the version.
    """

    id: str  # pipeline/job@number
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
        """The kind of the version."""
        return self.output.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """An artifact as a job reads it, under the name in the job's declaration."""

    name: str
    artifact: Artifact


LATEST, BEST = "latest", "best"
_ALIAS = re.compile("[a-z][a-z0-9_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """A name for a version of `name` (`pipeline/job`), set by a user. Its id is `pipeline/job@alias`.

    It means the version `number`. Without a number it means the version that is currently the best by
    `metric` (a name as in the version's metrics, or `max:NAME`, `min:NAME`). `changed` is when the alias was
    set (Unix seconds).
    """

    id: str
    name: str
    alias: str
    number: int | None = None
    metric: str = ""
    changed: float = 0.0


def split_reference(reference: str) -> tuple[str, str]:
    """The parts of a reference: `pipeline/job`, and the text after the `@` (a number, an alias, or empty)."""
    name, _, version = reference.partition("@")
    return name, version


def check_alias(alias: Alias) -> None:
    """Raise InputError for an invalid name of an alias, or an alias without a version and a metric."""
    if not _ALIAS.fullmatch(alias.alias):
        raise InputError(
            f"{alias.alias!r} cannot be the name of an alias",
            hint="Use small letters, digits, - and _; begin with a letter.",
        )
    if alias.alias == LATEST:
        raise InputError("`latest` is reserved for the newest version", hint="Choose another name.")
    if alias.id != f"{alias.name}@{alias.alias}" or (alias.number is None) == (not alias.metric):
        raise InputError(f"alias {alias.id!r} must name a version, or the best version by a metric")
    if alias.metric:
        read_metric(alias.metric)


def best_of(versions: Iterable[Artifact], metric: str = "") -> Artifact | None:
    """The best of the versions by a metric. The versions are given newest first. Of equally good versions the
    newest is returned.

    Without `metric`, the versions are compared by the metric that the newest model declares (`best_by`), on
    the validation split. Versions whose prediction differs from that of the newest version are left out. The
    result is None if no version has a value.
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
    """A description of the values that a model predicts, and its classes; empty for other versions and old
    records."""
    details = version.output.details
    return (str(details.get("predicts") or ""), *sorted(map(str, details.get("classes") or ())))


def own_metric(version: Artifact) -> str:
    """The metric by which a model declares to be compared; empty for other versions."""
    best_by = version.output.details.get("best_by")
    if version.kind != ArtifactKind.MODEL or not best_by:
        return ""
    return f"validation_{best_by}" if f"validation_{best_by}" in version.output.metrics else str(best_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """The latest version of `name` (`pipeline/job`). `artifact` is the id of this version.

    `run` is the last submitted run in which the job succeeded or was unchanged, and `order` is the order of
    that run: an earlier run that ends later does not replace it.
    """

    name: str
    artifact: str
    run: str
    order: int
