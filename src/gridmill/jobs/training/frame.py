"""A dataset as arrays to learn from: inputs, label, splits, and where each entity begins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.errors import DataError, InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.features import (
    Encoding,
    Floats,
    Integers,
    class_numbers,
    encode,
    fit_encoding,
    is_number,
    numbers,
    runs,
)
from gridmill.jobs.partitions import Partitions, open_partitions
from gridmill.model.training import Objective, TrainingSpec

MOST_CLASSES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Which columns of the dataset play which part."""

    features: tuple[str, ...]
    label: str
    label_column: str | None
    entity: tuple[str, ...]
    time: str | None

    @property
    def columns(self) -> tuple[str, ...]:
        """All that must be read, each once."""
        more = (self.label, self.label_column, *self.entity, self.time, "split")
        return tuple(dict.fromkeys((*self.features, *(name for name in more if name))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Rows sorted by entity and time.

    `target` is the label, or the number of its class; NaN where it is missing. `rows` are the numbers of
    the rows with a label, per split. `starts` is for each row the first row of its entity. `present` is
    the label column's value at the basis time, where there is one.
    """

    subject: Subject
    objective: Objective
    encodings: tuple[Encoding, ...]
    inputs: Floats
    target: Floats
    classes: tuple[str, ...]
    rows: Mapping[str, Integers]
    starts: Integers
    present: Floats | None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs, in order."""
        return tuple(name for encoding in self.encodings for name in encoding.inputs)

    @property
    def present_input(self) -> int | None:
        """The input that is the label's present value, if it is among the features."""
        name = self.subject.label_column
        return self.names.index(name) if name in self.names else None


def read_frame(context: JobContext, spec: TrainingSpec) -> Frame:
    """The dataset of a training. Raises InputError and DataError for what cannot be learned."""
    artifact = context.input(spec.dataset)
    parts = open_partitions(context.below_root(artifact.output.uri))
    subject = find_subject(artifact.output.details, parts, spec.features)
    return make_frame(_sorted(parts.read(subject.columns), subject), subject, spec.objective)


def find_subject(details: Mapping[str, Any], parts: Partitions, chosen: Sequence[str] = ()) -> Subject:
    """Who is who, from what the dataset says about itself. Raises InputError."""
    label = details.get("label")
    names = set(parts.schema.names)
    if not label or label not in names:
        raise InputError(
            "the dataset has no label to learn",
            hint="Declare `label: {column: ..., horizon: ...}` in the dataset.",
        )
    if "split" not in names:
        raise InputError(
            "the dataset has no splits", hint="Declare `split: {validation: 0.15, test: 0.15}` in it."
        )
    features = tuple(details.get("features") or ())
    for name in chosen:
        if name not in features:
            near = get_close_matches(name, features, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(features)}."
            raise InputError(f"the dataset has no feature {name!r}", hint=hint, place="training.features")
    column = details.get("label_column")
    return Subject(
        features=tuple(chosen) or features,
        label=label,
        label_column=column if column in names else None,
        entity=tuple(details.get("entity") or ()),
        time=details.get("time"),
    )


def _sorted(table: pa.Table, subject: Subject) -> pa.Table:
    keys = [*subject.entity, *([subject.time] if subject.time else [])]
    return table.take(pc.sort_indices(table, [(name, "ascending") for name in keys])) if keys else table


def make_frame(table: pa.Table, subject: Subject, objective: Objective | None) -> Frame:
    """The arrays of a sorted table. Raises InputError and DataError for what cannot be learned."""
    split = table["split"].cast(pa.string())
    train = pc.equal(split, "train")
    label = table[subject.label]
    aim = objective or _objective(label.type)
    target, classes = _target(label, train, subject.label, aim)
    rows = {
        name: np.flatnonzero(_mask(pc.equal(split, name)) & ~np.isnan(target))
        for name in ("train", "validation", "test")
    }
    _check_rows(rows, target, split, subject.label)
    known = table.filter(train)
    encodings = tuple(fit_encoding(name, known[name]) for name in subject.features)
    if not encodings:
        raise InputError("the dataset has no features to learn from")
    return Frame(
        subject=subject,
        objective=aim,
        encodings=encodings,
        inputs=encode(table, encodings),
        target=target,
        classes=classes,
        rows=rows,
        starts=runs(table, subject.entity),
        present=present_values(table, subject.label_column),
    )


def present_values(table: pa.Table, column: str | None) -> Floats | None:
    """The label column at the basis time, where it is a number."""
    if column is None or not is_number(table[column].type):
        return None
    return numbers(table[column])


def _mask(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = pc.fill_null(column, False).to_numpy().astype(bool)
    return found


def _objective(kind: pa.DataType) -> Objective:
    numeric = is_number(kind) and not pa.types.is_boolean(kind)
    return Objective.REGRESSION if numeric else Objective.CLASSIFICATION


def _target(
    label: pa.ChunkedArray, train: pa.ChunkedArray, name: str, objective: Objective
) -> tuple[Floats, tuple[str, ...]]:
    if objective == Objective.REGRESSION:
        if not is_number(label.type):
            raise InputError(
                f"label {name!r} has type {label.type}, which cannot be regressed",
                hint="Use `objective: classification`, or a numeric label.",
            )
        return numbers(label), ()
    classes = sorted(value for value in pc.unique(label.filter(train)).cast(pa.string()).to_pylist() if value)
    if len(classes) > MOST_CLASSES:
        raise DataError(
            f"label {name!r} has {len(classes)} different values, too many classes",
            hint="Use `objective: regression` for a number.",
        )
    return class_numbers(label, classes), tuple(classes)


def _check_rows(rows: Mapping[str, Integers], target: Floats, split: pa.ChunkedArray, label: str) -> None:
    if len(target) == 0:
        raise DataError("the dataset has no rows")
    if np.isnan(target).all():
        raise DataError(
            f"label {label!r} is missing in every row", hint="Is its horizon longer than the data?"
        )
    for name in ("train", "validation"):
        if len(rows[name]) == 0:
            there = ", ".join(str(value) for value in pc.unique(split).to_pylist())
            raise DataError(
                f"the {name} split has no row with a label (splits with rows: {there})",
                hint="Move the bounds in the dataset's `split`.",
            )
    learned = target[rows["train"]]
    if (learned == learned[0]).all():
        raise DataError(
            f"label {label!r} is the same in every training row: there is nothing to learn",
            hint="Check the dataset's label, or take a longer training period.",
        )
