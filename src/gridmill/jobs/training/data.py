"""Loads a dataset as arrays for training: inputs, label, splits, and the first row of each entity."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.domain.dataset import SCALERS
from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import suggestion
from gridmill.domain.training import Objective, TrainingSpec
from gridmill.errors import DataError, InputError
from gridmill.jobs.classes import TEXT, Classes, find_classes
from gridmill.jobs.context import JobContext
from gridmill.jobs.dataset_reader import Partitions, open_partitions
from gridmill.jobs.features import (
    Encoding,
    Floats,
    Integers,
    encode,
    is_number,
    numbers,
    present_values,
    runs,
)
from gridmill.jobs.training.columns import ChosenColumns, choose_encodings
from gridmill.jobs.training.weights import check_column, row_weights

MOST_CLASSES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetColumns:
    """The roles of the columns of a dataset.

    `label_columns` contains for each label the column whose later value is the label, if the dataset has
    this column. `has_one_unit` is true if all labels have the same unit, because they are later values of a
    single column, or of columns that the dataset has scaled.
    """

    features: tuple[str, ...]
    labels: tuple[str, ...]
    label_columns: tuple[str | None, ...]
    entity: tuple[str, ...]
    time: str | None
    has_one_unit: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of all columns to read, each name once."""
        more = (*self.labels, *self.label_columns, *self.entity, self.time, "split")
        return tuple(dict.fromkeys((*self.features, *(name for name in more if name))))


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedFrame:
    """The rows of a dataset, sorted by entity and time.

    `target` contains the labels, in the shape [rows] or [rows, labels], or the numbers of their classes. A
    missing label is NaN. `rows` contains for each split the numbers of the rows that have all labels.
    `starts` contains for each row the number of the first row of its entity.

    For each split, `unlabelled` is the number of rows without a label, and `unseen_classes` is the number of
    rows whose class no training row has. `classes` and `class_type` have the same meaning as in the class
    `Classes`. `infinite` contains for each feature the number of its infinite values, which are treated as
    missing. `left_out` and `grouped` have the same meaning as in the class `ChosenColumns`. `present` has
    the shape of `target`, and contains for each row the value of the label column at the time of the row, or
    NaN if this value does not exist. `weights` are the weights of the rows in training. `weights` is None if
    all rows have the same weight. The metrics of a model weight all rows equally.
    """

    subject: DatasetColumns
    objective: Objective
    encodings: tuple[Encoding, ...]
    inputs: Floats
    target: Floats
    classes: tuple[str, ...]
    rows: Mapping[str, Integers]
    starts: Integers
    present: Floats
    class_type: str = TEXT
    unlabelled: Mapping[str, int] = field(default_factory=dict)
    missing_labels: Mapping[str, int] = field(default_factory=dict)
    unseen_classes: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    grouped: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    infinite: Mapping[str, int] = field(default_factory=dict)
    weights: Floats | None = None

    def weights_of(self, rows: Integers) -> Floats | None:
        """Return the weights of these rows, or None if all rows have the same weight."""
        return None if self.weights is None else self.weights[rows]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the inputs, in order."""
        return tuple(name for encoding in self.encodings for name in encoding.inputs)

    @property
    def present_inputs(self) -> tuple[int | None, ...]:
        """Return for each label the input that contains the present value of its column, if this value is a
        feature."""
        place = {name: number for number, name in enumerate(self.names)}
        return tuple(place.get(name) if name else None for name in self.subject.label_columns)


def read_frame(
    context: JobContext, spec: TrainingSpec, encodings: tuple[Encoding, ...] | None = None
) -> SortedFrame:
    """Read the dataset of a training. If `encodings` are given, the function uses them instead of choosing
    new encodings.

    Raises InputError and DataError for a dataset from which no model can be trained.
    """
    artifact = context.input(spec.dataset)
    parts = open_partitions(context.below_root(artifact.output.uri))
    chosen = dict.fromkeys(encoding.column for encoding in encodings) if encodings else spec.features
    # an ensemble declares no features, because it takes the features of its members
    place = "training.models" if encodings else "training.features"
    subject = find_subject(artifact.output.details, parts, tuple(chosen), place)
    if spec.weight is not None:
        check_column(spec.weight, parts.schema, spec.features)
        features = tuple(name for name in subject.features if name != spec.weight)
        subject = replace(subject, features=features)
    more = () if spec.weight is None else (spec.weight,)
    table = _sorted(parts.read(tuple(dict.fromkeys((*subject.columns, *more)))), subject)
    frame = make_frame(table, subject, spec.objective, encodings, declared=bool(spec.features))
    column = None if spec.weight is None else table[spec.weight]
    weights = row_weights(spec, column, frame.target, frame.classes, frame.rows)
    return replace(frame, weights=weights)


def _sorted(table: pa.Table, subject: DatasetColumns) -> pa.Table:
    """Return the rows sorted by entity and time. If the rows are already sorted, they are not copied."""
    order = row_order(table, subject)
    return table if np.array_equal(order, np.arange(len(order))) else table.take(order)


def find_subject(
    details: Mapping[str, Any], parts: Partitions, chosen: Sequence[str] = (), place: str = ""
) -> DatasetColumns:
    """Return the roles of the columns, as described in the details of the dataset. `place` is the field of
    the declaration that chose the features. Raises InputError."""
    labels, columns = _labels(details)
    names = set(parts.schema.names)
    if not labels or not names.issuperset(labels):
        raise InputError(
            "the dataset has no label to predict",
            hint="Declare `label: {column: ..., horizon: ...}` in the dataset.",
        )
    if "split" not in names:
        raise InputError(
            "the dataset has no splits",
            hint="Declare `split: {validation: 0.15, test: 0.15}` in the dataset.",
        )
    features = tuple(details.get("features") or ())
    for name in chosen:
        if name not in features:
            hint = suggestion(name, features, f"The features are {', '.join(features)}.")
            raise InputError(f"the dataset has no feature {name!r}", hint=hint, place=place)
    return DatasetColumns(
        features=tuple(chosen) or features,
        labels=labels,
        label_columns=tuple(column if column in names else None for column in columns),
        entity=tuple(details.get("entity") or ()),
        time=details.get("time"),
        has_one_unit=_has_one_unit(details, columns),
    )


def _has_one_unit(details: Mapping[str, Any], columns: Sequence[str | None]) -> bool:
    scaled = {one["column"] for one in details.get("encoders") or () if one["method"] in SCALERS}
    return None not in columns and (len(set(columns)) == 1 or scaled.issuperset(columns))


def _labels(details: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str | None, ...]]:
    """Return the names of the labels, and for each label the column whose later value it is."""
    if many := details.get("labels"):
        return tuple(one["name"] for one in many), tuple(one.get("column") for one in many)
    label = details.get("label")
    return ((label,), (details.get("label_column"),)) if label else ((), ())


def row_order(table: pa.Table, subject: DatasetColumns) -> Integers:
    """Return the numbers of the rows of the table, sorted by entity and time. Rows with the same entity and
    time keep their order."""
    keys = [*subject.entity, *([subject.time] if subject.time else [])]
    if not keys:
        return np.arange(table.num_rows, dtype=np.int64)
    order: Integers = pc.sort_indices(table, [(name, "ascending") for name in keys]).to_numpy()
    return order.astype(np.int64)


def make_frame(
    table: pa.Table,
    subject: DatasetColumns,
    objective: Objective | None,
    encodings: tuple[Encoding, ...] | None = None,
    *,
    declared: bool = False,
) -> SortedFrame:
    """Make the arrays for training from a sorted table. `declared` means that the declaration of the
    training names the features.

    Raises InputError and DataError for data from which no model can be trained.
    """
    split = table["split"].cast(pa.string())
    train = pc.equal(split, "train")
    aim = objective or _objective(table[subject.labels[0]].type)
    target, classes = _targets(table, train, subject.labels, aim)
    labelled = ~np.isnan(target.reshape(len(target), -1)).any(axis=1)
    rows = {
        name: np.flatnonzero(_mask(pc.equal(split, name)) & labelled)
        for name in ("train", "validation", "test")
    }
    for number, name in enumerate(subject.labels):
        _check_rows(rows, target.reshape(len(target), -1)[:, number], split, name)
    if encodings:
        chosen = ChosenColumns(encodings=encodings)
    else:
        chosen = choose_encodings(
            table.select(subject.features).filter(train), subject.features, declared=declared
        )
    encodings = chosen.encodings
    if not encodings:
        left_out = ", ".join(f"{name} ({why})" for name, why in chosen.left_out.items())
        none = f": {left_out} cannot be used" if left_out else ""
        raise InputError(f"the dataset has no features to learn from{none}")
    return SortedFrame(
        subject=subject,
        objective=aim,
        encodings=encodings,
        inputs=encode(table, encodings),
        target=target,
        classes=classes.names,
        class_type=classes.type,
        rows=rows,
        starts=runs(table, subject.entity),
        present=present_values(table, subject.label_columns),
        missing_labels=_missing(target, subject.labels, _mask(train)),
        unlabelled=_counted({name: ~labelled & _mask(pc.equal(split, name)) for name in rows}),
        unseen_classes=_counted({name: target[rows[name]] < 0 for name in rows} if classes.names else {}),
        infinite=_counted({encoding.column: _infinite(table[encoding.column]) for encoding in encodings}),
        left_out=chosen.left_out,
        grouped=chosen.grouped,
    )


def _missing(target: Floats, labels: Sequence[str], train: npt.NDArray[np.bool_]) -> Mapping[str, int]:
    """If there are several labels, return for each label the number of training rows in which the label is
    missing. If there is only one label, the result is empty."""
    if len(labels) == 1:
        return {}
    return _counted({name: np.isnan(target[train, number]) for number, name in enumerate(labels)})


def _counted(masks: Mapping[str, npt.NDArray[np.bool_]]) -> Mapping[str, int]:
    counts = {name: int(rows.sum()) for name, rows in masks.items()}
    return {name: count for name, count in counts.items() if count}


def _infinite(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    if not pa.types.is_floating(column.type):
        return np.zeros(0, bool)
    return _mask(pc.is_inf(column))


def _mask(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    result: npt.NDArray[np.bool_] = pc.fill_null(column, False).to_numpy().astype(bool)
    return result


def _objective(kind: pa.DataType) -> Objective:
    numeric = is_number(kind) and not pa.types.is_boolean(kind)
    return Objective.REGRESSION if numeric else Objective.CLASSIFICATION


def _targets(
    table: pa.Table, train: pa.ChunkedArray, labels: Sequence[str], objective: Objective
) -> tuple[Floats, Classes]:
    if len(labels) == 1:
        return _target(table[labels[0]], train, labels[0], objective)
    if objective == Objective.CLASSIFICATION:
        raise InputError(
            f"the dataset has {len(labels)} labels, but classification needs exactly one",
            hint="Declare one dataset per label, or use numeric labels.",
        )
    return np.stack([_target(table[name], train, name, objective)[0] for name in labels], axis=1), Classes()


def _target(
    label: pa.ChunkedArray, train: pa.ChunkedArray, name: str, objective: Objective
) -> tuple[Floats, Classes]:
    if objective == Objective.REGRESSION:
        if not is_number(label.type):
            raise InputError(
                f"label {name!r} has type {label.type}, but regression needs a numeric label",
                hint="Use `objective: classification`, or a numeric label.",
            )
        return numbers(label), Classes()
    classes = find_classes(label.filter(train))
    if len(classes.names) > MOST_CLASSES:
        raise DataError(
            f"label {name!r} has {len(classes.names)} different values, which is too many for classification",
            hint="Use `objective: regression` for a number.",
        )
    return classes.numbers(label), classes


def _check_rows(rows: Mapping[str, Integers], target: Floats, split: pa.ChunkedArray, label: str) -> None:
    if len(target) == 0:
        raise DataError("the dataset has no rows")
    if np.isnan(target).all():
        raise DataError(
            f"label {label!r} is missing in every row",
            hint="Check that the label's horizon is shorter than the time that the data spans.",
        )
    splits = [str(value) for value in pc.unique(split).to_pylist()]
    empty = [name for name in ("train", "validation") if len(rows[name]) == 0]
    if len(rows["test"]) and "validation" not in splits:
        # a dataset that has a test split and no validation split is valid
        empty = [name for name in empty if name == "train"]
    for name in empty:
        raise DataError(
            f"the {name} split has no row with a label (splits with rows: {', '.join(splits)})",
            hint="Move the bounds in the dataset's `split`.",
        )
    learned = target[rows["train"]]
    if (learned == learned[0]).all():
        raise DataError(
            f"label {label!r} is the same in every training row: there is nothing to learn",
            hint="Check the dataset's label, or take a longer training period.",
        )


def whole_windows(frame: SortedFrame, length: int) -> Integers:
    """Return the training rows whose entity has at least `length` rows up to and including this row. Raises
    DataError if no training row has so many rows of its entity."""
    rows = frame.rows["train"]
    whole: Integers = rows[rows - frame.starts[rows] >= length - 1]
    if len(whole) == 0:
        most = int((rows - frame.starts[rows]).max()) + 1
        raise DataError(
            f"no training row has {length} rows of the same entity up to its time (the maximum is {most})",
            hint=f"Use `sequence: {most}` or less, or check the dataset's entity.",
            place="training.sequence",
        )
    return whole
