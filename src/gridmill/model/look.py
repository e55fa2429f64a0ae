"""Looking into versions: the first rows, and how two of them differ."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from gridmill.model.artifact import Artifact, Column
from gridmill.model.noun import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A question about `artifact` below the storage root `root`: its first `rows` (of a sink's `rejects`),
    or with `other` how many rows differ, told apart by `key`, or the `files` that it consists of."""

    root: str
    artifact: Artifact
    rows: int = 0
    rejects: bool = False
    other: Artifact | None = None
    key: tuple[str, ...] = ()
    files: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The first of `total` rows. Cells are JSON values: times as ISO 8601, long texts cut."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanges:
    """Rows by their `key`: in the second version only, in the first only, and in both but not alike."""

    key: tuple[str, ...]
    added: int
    removed: int
    changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The answer to a Look: one of them; `files` are paths below the artifact's, of a table those of its data
    before those of its log. `error` is as `errors.to_body` writes it."""

    preview: Preview | None = None
    changes: RowChanges | None = None
    files: tuple[str, ...] = ()
    error: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not alike in two versions; None where a version does not have it.

    `part` says what: `facts`, `columns` (types), `statistics` (`COLUMN.FACT`), `metrics`, `settings`.
    """

    part: str
    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionDiff:
    """How two versions differ. `rows` is None where rows were not compared; `rows_why` says why not."""

    before: str
    after: str
    differences: tuple[Difference, ...] = ()
    same_metrics: Mapping[str, float] = field(default_factory=dict)
    rows: RowChanges | None = None
    rows_why: str = ""
