"""This module has remarks on a version, as sentences about rows that were dropped, rejected, left out,
unknown or converted with loss.

Jobs count these rows in the details of their output. `remarks_of` turns these counts into sentences, which
the summary in the terminal, the report and `show` print. A job adds its own sentences under the key REMARKS.
`row_flow` returns how many rows a job read, wrote and dropped, from the counts of its version.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gridmill.domain.amounts import show_count, show_number
from gridmill.domain.artifact import Artifact, ArtifactKind
from gridmill.domain.comparison import options_of
from gridmill.domain.frozen import dataclass
from gridmill.domain.sink_status import WAITING, rejects_of, rejects_text, shifted_of
from gridmill.domain.source import waiting_text

REMARKS = "remarks"
"""The key of remarks in the details of an output: its value is a list of texts, or of [text, true] for a
warning."""
NOT_KNOWN_YET = "label not known yet"
"""The reason why a dataset drops a row whose label depends on events that have not happened yet."""
WARNING_SHARE = 0.1
"""If more than this fraction of the rows is dropped or rejected, the remark is a warning."""
LAST_SHARE, STILL_FALLING = 0.2, 0.03
"""A model could be better with more training if its best validation loss is its last one, and if this loss
fell by more than this fraction in the last fifth of the training. If the loss falls only because the
learning rate decreases, it falls by less than this fraction."""
_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """A sentence about the version whose id is `artifact`. `warning` means that the version may be wrong or
    useless."""

    artifact: str
    text: str
    warning: bool = False

    @property
    def line(self) -> str:
        """The remark as one line of text, such as `warning: weather/features@1: 237 of 560 rows dropped (42
        %): 237 no label`."""
        return f"{'warning: ' if self.warning else ''}{self.artifact}: {self.text}"


def remarks_of(artifact: Artifact) -> tuple[Remark, ...]:
    """Return the remarks about a version, warnings first."""
    remarks = [
        Remark(artifact=artifact.id, text=text, warning=warning) for text, warning in _remarks(artifact)
    ]
    return tuple(sorted(remarks, key=lambda one: not one.warning))


_Said = Iterator[tuple[str, bool]]


def _remarks(artifact: Artifact) -> _Said:
    yield from _rejected(artifact)
    yield from _OF_KIND.get(artifact.kind, _nothing)(artifact.output.details, artifact.output.rows or 0)
    for remarks in artifact.output.details.get(REMARKS) or ():
        text, warning = (remarks, False) if isinstance(remarks, str) else remarks
        yield str(text), bool(warning)


def _nothing(_details: Mapping[str, Any], _rows: int) -> _Said:
    yield from ()


def _rejected(artifact: Artifact) -> _Said:
    rejects, rows = rejects_of(artifact).get("rows", 0), artifact.output.rows or 0
    if rejects:
        yield rejects_text(artifact), rejects > WARNING_SHARE * (rows + rejects)
    for column, index in shifted_of(artifact).items():
        drift = f"population stability index {show_number(index)}"
        yield f"{column} has drifted since the previous load ({drift})", True


def _of_sink(details: Mapping[str, Any], rows: int) -> _Said:
    if waiting := details.get(WAITING):
        yield waiting_text(waiting["files"], waiting["settled_seconds"]), False
    if unseen := details.get("unseen"):
        why = "no value, NaN or infinity in the cursor"
        yield f"{show_count(unseen, 'row')} not loaded: {why}", unseen > WARNING_SHARE * (rows + unseen)
    if vanished := details.get("vanished"):
        yield f"{show_count(vanished, 'loaded file')} no longer in the source; the rows are kept", False
    if copies := details.get("copies"):
        names = ", ".join(copies[:_NAMED]) + ", ..." * (len(copies) > _NAMED)
        yield (
            f"files loaded a second time (they have the content of files that are no longer in the source): "
            f"{names}",
            True,
        )


def _of_dataset(details: Mapping[str, Any], rows: int) -> _Said:
    dropped: Mapping[str, int] = details.get("dropped") or {}
    total = sum(dropped.values())
    if total:
        share = total / (total + rows)
        of_all = f"{total:,} of {total + rows:,} rows dropped ({_percent(share)})"
        yield f"{of_all}: {_counts(dropped)}", share > WARNING_SHARE
    events = details.get("events_until") or {}
    if events and dropped.get(NOT_KNOWN_YET) and not events["declared"]:
        newest = f"the newest event is at {events['newest']}" if events["newest"] else "it has no events"
        yield (
            f"labels end with the events of {events['table']}: {newest}; set `known_until` to change this",
            False,
        )
    excluded: Mapping[str, int] = details.get("excluded") or {}
    if excluded:
        yield f"rows excluded by outages: {_counts(excluded)}", False
    yield from _left_out(details)


def _left_out(details: Mapping[str, Any]) -> _Said:
    left_out: Mapping[str, str] = details.get("left_out") or {}
    if left_out:
        listed = [f"{name} ({kind})" for name, kind in left_out.items()]
        yield f"{show_count(len(listed), 'column')} not used as features: {_listed(listed)}", False


def _of_model(details: Mapping[str, Any], _rows: int) -> _Said:
    if unlabelled := details.get("unlabelled"):
        used = sum((details.get("rows") or {}).values())
        total = sum(unlabelled.values())
        large = total > WARNING_SHARE * (used + total)
        yield f"rows not used because their label is missing: {_counts(unlabelled)}", large
    if missing := details.get("missing_labels"):
        yield f"train rows not used because one of the labels is missing: {_counts(missing)}", False
    if unseen := details.get("unseen_classes"):
        yield f"rows of a class that no training row has: {_counts(unseen)}", True
    if not_finite := details.get("own_not_finite"):
        texts = [f"{name} {value}" for name, value in not_finite.items()]
        yield f"the model's code reported metrics that are not finite: {_listed(texts)}", True
    if seen := details.get("not_measured"):
        yield f"rows not measured because a member was trained on them: {_counts(seen)}", False
    if infinite := details.get("infinite"):
        yield f"infinite values taken as missing: {_counts(infinite)}", False
    yield from _left_out(details)
    for name, (values, share) in (details.get("grouped") or {}).items():
        yield (
            f"{name} has {values:,} values: the most frequent ones have one input each "
            f"({_percent(share)} of the rows), the others share one input",
            False,
        )
    yield from _unfinished(options_of(details), details.get("curve") or ())


def _unfinished(options: Mapping[str, Any], curve: Sequence[Sequence[float]]) -> _Said:
    """Return a remark if the validation loss of a model (the third number of each point of the curve) was
    still falling when the training ended."""
    unit, most = ("epochs", options.get("epochs")) if "epochs" in options else ("trees", options.get("trees"))
    used = options.get("best_epoch") or options.get("trees_used")
    if not most or used != most or len(curve) < 2:
        return
    last = curve[-1]
    before = min((loss for at, _, loss in curve if at <= (1 - LAST_SHARE) * last[0]), default=last[2])
    fall = 1 - last[2] / before if before > 0 else 0.0
    if fall > STILL_FALLING and last[2] <= min(loss for _, _, loss in curve):
        yield (
            f"the validation loss was still falling (by {fall:.0%} in the last fifth of {most} {unit}): "
            f"raise `{unit}`",
            True,
        )


def _of_prediction(details: Mapping[str, Any], rows: int) -> _Said:
    if unknown := details.get("unknown_rows"):
        share = unknown / max(rows, 1)
        message = (
            f"{unknown:,} of {rows:,} rows ({_percent(share)}) have a category that is not in the training"
            f" rows"
        )
        yield message, share > WARNING_SHARE
    if details.get("train_rows") == "seen":
        yield "the train rows are predicted by a model that was trained on them", False
    if other := details.get("other_label"):
        yield (
            f"no metrics: the model predicts {details.get('label')}, the dataset's label is {other}",
            True,
        )
    yield from _learned(details, rows)
    yield from _compared(details.get("comparison") or {})
    if unpredicted := details.get("unpredicted_rows"):
        yield f"{unpredicted:,} of {rows:,} rows have no prediction", True


def _learned(details: Mapping[str, Any], rows: int) -> _Said:
    """Return a remark if some rows of the prediction were used to train the model, with the consequence for
    the metrics."""
    counts: Mapping[str, int] = details.get("learned_rows") or {}
    split = details.get("split")
    train, excluded, measured = (counts.get(name, 0) for name in ("train", "excluded", "measured"))
    if train and split is not None and split != "train":
        yield (
            f"the model was trained on {train:,} of the {rows:,} rows ({_percent(train / max(rows, 1))})",
            True,
        )
    if excluded:
        left = f"metrics are of the other {measured:,} rows" if measured else "there are no metrics"
        why = "they were used to train or to select the model"
        yield f"{excluded:,} rows are not measured because {why}: {left}", split is not None
    if rows and counts.get("unknown") == rows:
        yield "it is unknown which of the rows the model was trained on", False


def _compared(comparison: Mapping[str, Any]) -> _Said:
    """Return a remark about the rows and models that were left out when models were compared."""
    labelled, rows = comparison.get("labelled", 0), comparison.get("rows", 0)
    if rows < labelled:
        learned = comparison.get("learned") or {}
        by = f" ({_counts(learned)})" if learned else ""
        on = f"models compared on {rows:,} of {labelled:,} validation rows"
        yield f"{on}: a model was trained on the others{by}", False
    for name, why in (comparison.get("left_out") or {}).items():
        yield f"model {name} is not compared: {why}", True
    if unknown := comparison.get("unknown"):
        yield f"it is unknown which validation rows were used to train {_listed(list(unknown))}", True
    if comparison.get("stored"):
        yield "models compared by the metrics of their trainings: the dataset has no validation rows", False


_OF_KIND = {
    ArtifactKind.SINK: _of_sink,
    ArtifactKind.DATASET: _of_dataset,
    ArtifactKind.MODEL: _of_model,
    ArtifactKind.PREDICTION: _of_prediction,
}


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "below 1%"


def _counts(counts: Mapping[str, int]) -> str:
    largest = sorted(counts.items(), key=lambda item: -item[1])
    return _listed([f"{count:,} {name}" for name, count in largest])


def _listed(texts: list[str]) -> str:
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return ", ".join(texts[:_NAMED]) + more


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFlow:
    """The numbers of rows that a job read, dropped and wrote to make a version. `into` is the number of rows
    that were read, and `out` is the number of rows that were written. `dropped` is the number of rows of
    `into` that are not used. `why` has the number of dropped rows for each reason. A number of rows is None
    if it is unknown. `note` explains `out` if `out` is not the number of rows of a table."""

    into: int | None = None
    out: int | None = None
    dropped: int | None = None
    why: Mapping[str, int] | None = None
    note: str = ""


def row_flow(version: Artifact) -> RowFlow | None:
    """Return the numbers of rows of a version. The result is None for a kind of version that has no rows."""
    make = _COUNTS_BY_KIND.get(version.kind)
    return make(version) if make else None


def _sink(version: Artifact) -> RowFlow:
    """Return the numbers of rows of a sink: the numbers of the last load, and in `out` the number of rows of
    the whole table."""
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
    why = {**_row_counts(details.get("dropped")), **_row_counts(details.get("excluded"))}
    dropped, rows = sum(why.values()), version.output.rows
    into = None if rows is None else rows + dropped
    return RowFlow(into=into, out=rows, dropped=dropped, why=_counted(why))


def _model(version: Artifact) -> RowFlow:
    """Return the numbers of rows of a model. `out` is the number of rows with which the model was trained.
    The metrics of the model are computed on the other rows of the dataset."""
    details = version.output.details
    used = _row_counts(details.get("rows"))
    why = {f"no label in {split}": count for split, count in _row_counts(details.get("unlabelled")).items()}
    dropped = sum(why.values())
    into = sum(used.values()) + dropped if used else None
    return RowFlow(into=into, out=used.get("train"), dropped=dropped, why=_counted(why), note="learned from")


def _prediction(version: Artifact) -> RowFlow:
    rows = version.output.rows
    missing = int(version.output.details.get("unpredicted_rows") or 0)
    why = {"no prediction": missing}
    out = None if rows is None else rows - missing
    return RowFlow(into=rows, out=out, dropped=missing, why=_counted(why), note="predicted")


_COUNTS_BY_KIND = {
    ArtifactKind.SINK: _sink,
    ArtifactKind.DATASET: _dataset,
    ArtifactKind.MODEL: _model,
    ArtifactKind.PREDICTION: _prediction,
}


def _row_counts(value: Any) -> dict[str, int]:  # noqa: ANN401  a part of the details of any version
    if not isinstance(value, Mapping):
        return {}
    return {str(name): int(count) for name, count in value.items() if isinstance(count, int | float)}


def _counted(why: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in why.items() if count}
