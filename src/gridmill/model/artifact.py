"""Versions of what jobs made: sink, dataset, model, prediction, files."""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from gridmill.model.noun import dataclass


class ArtifactKind(StrEnum):
    """What a version is."""

    SINK = "sink"
    DATASET = "dataset"
    MODEL = "model"
    PREDICTION = "prediction"
    FILES = "files"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column and its type in Arrow's words (`double`, `timestamp[us]`, ...)."""

    name: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What an attempt says it made; it exists for others only once the control node has committed it.

    `uri` is relative to the storage root. For a table, `table_version` is the Delta version. `details` is
    JSON: lineage facts, column statistics, samples and curves for the report.
    """

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

    `fingerprint` is the hash of everything it was made from (declaration, code, input versions): the same
    fingerprint is the same thing. `made_from` are the ids of the input versions.
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

    @property
    def kind(self) -> ArtifactKind:
        """What it is."""
        return self.output.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """An artifact as a job reads it, under the name its declaration uses."""

    name: str
    artifact: Artifact
