"""How many rows went into a job, came out of it, and were dropped: from what its version counts."""

from collections.abc import Mapping
from typing import Any

from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.loaded import rejects_of
from gridmill.model.noun import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFlow:
    """`into` and `out` are rows; `dropped` are those of `into` that are not used, and `why` counts them by
    reason. None is unknown. `note` says what `out` means where that is not the rows of a table."""

    into: int | None = None
    out: int | None = None
    dropped: int | None = None
    why: Mapping[str, int] | None = None
    note: str = ""


def row_flow(version: Artifact) -> RowFlow | None:
    """The rows of a version; None for files."""
    make = _OF_KIND.get(version.kind)
    return make(version) if make else None


def _sink(version: Artifact) -> RowFlow:
    """What the last load read; `out` is the whole table."""
    details = version.output.details
    added = details.get("rows_added")
    rejects, unseen = rejects_of(version), int(details.get("unseen") or 0)
    why = {"rejected": int(rejects.get("added") or 0), "no cursor value": unseen}
    dropped = sum(why.values())
    into = None if added is None else int(added) + dropped
    return RowFlow(
        into=into, out=version.output.rows, dropped=dropped, why=_counted(why), note="in the table"
    )


def _dataset(version: Artifact) -> RowFlow:
    details = version.output.details
    why = {**_counts(details.get("dropped")), **_counts(details.get("excluded"))}
    dropped, rows = sum(why.values()), version.output.rows
    into = None if rows is None else rows + dropped
    return RowFlow(into=into, out=rows, dropped=dropped, why=_counted(why))


def _model(version: Artifact) -> RowFlow:
    """`out` are the rows that it learned from; the others of the dataset measure it."""
    details = version.output.details
    used = _counts(details.get("rows"))
    why = {f"no label in {split}": count for split, count in _counts(details.get("unlabelled")).items()}
    dropped = sum(why.values())
    into = sum(used.values()) + dropped if used else None
    return RowFlow(into=into, out=used.get("train"), dropped=dropped, why=_counted(why), note="learned from")


def _prediction(version: Artifact) -> RowFlow:
    rows = version.output.rows
    missing = int(version.output.details.get("unpredicted_rows") or 0)
    why = {"no prediction": missing}
    out = None if rows is None else rows - missing
    return RowFlow(into=rows, out=out, dropped=missing, why=_counted(why), note="predicted")


_OF_KIND = {
    ArtifactKind.SINK: _sink,
    ArtifactKind.DATASET: _dataset,
    ArtifactKind.MODEL: _model,
    ArtifactKind.PREDICTION: _prediction,
}


def _counts(value: Any) -> dict[str, int]:  # noqa: ANN401  a part of the details of any version
    if not isinstance(value, Mapping):
        return {}
    return {str(name): int(count) for name, count in value.items() if isinstance(count, int | float)}


def _counted(why: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in why.items() if count}
