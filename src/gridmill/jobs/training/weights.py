"""The weight of each row in training, computed from a column of the dataset and from the class of the
row."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from gridmill.domain.naming import suggestion
from gridmill.domain.training import ClassWeight, TrainingSpec
from gridmill.errors import DataError, InputError
from gridmill.jobs.features import Floats, is_number, numbers

_PLACE, _CLASSES = "training.weight", "training.class_weights"


def check_column(name: str, schema: pa.Schema, chosen: tuple[str, ...]) -> None:
    """Raise InputError if the dataset does not have this column, if the column is not numeric, or if it is
    declared as a feature."""
    if name not in schema.names:
        raise InputError(
            f"the dataset has no column {name!r}",
            hint=suggestion(name, schema.names, f"The columns are {', '.join(schema.names)}."),
            place=_PLACE,
        )
    kind = schema.field(name).type
    if not is_number(kind) or pa.types.is_boolean(kind):
        raise InputError(f"column {name!r} has type {kind}, but weights must be numbers", place=_PLACE)
    if name in chosen:
        raise InputError(
            f"column {name!r} is the weight, but also listed in `features`",
            hint="The weight of a row is not known when the row is predicted. Remove it from `features`.",
            place=_PLACE,
        )


def class_factors(
    spec: TrainingSpec, classes: tuple[str, ...], target: Floats, weights: Floats
) -> Floats | None:
    """Return the weight of each class, from the class numbers and weights of the training rows. Return None
    if all classes have the same weight.

    With `balanced`, the sums of the weights of the rows are equal for all classes. Raises InputError.
    """
    if spec.class_weight is None and not spec.class_weights:
        return None
    if not classes:
        place = "training.class_weight" if spec.class_weight else _CLASSES
        raise InputError("class weights need a label with classes, but the label has numbers", place=place)
    if spec.class_weight == ClassWeight.BALANCED:
        sums = np.bincount(target.astype(int), weights, minlength=len(classes))
        return np.asarray(weights.sum() / (len(classes) * np.where(sums > 0, sums, np.inf)))
    return _declared(spec.class_weights, classes)


def _declared(factors: Mapping[str, float], classes: tuple[str, ...]) -> Floats:
    for name in factors:
        if name not in classes:
            raise InputError(
                f"the label has no class {name!r}",
                hint=f"The classes are {', '.join(classes[:20])}.",
                place=f"{_CLASSES}.{name}",
            )
    return np.array([float(factors.get(name, 1.0)) for name in classes])


def row_weights(
    spec: TrainingSpec,
    column: pa.ChunkedArray | None,
    target: Floats,
    classes: tuple[str, ...],
    rows: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]],
) -> Floats | None:
    """Return the weight of each row. Return None if all rows have the same weight. The mean of the weights
    over the training rows is 1.

    `rows` are the numbers of the rows with labels, for each split. Raises DataError if weights of train and
    validation rows are missing or negative, InputError for classes that the label does not have.
    """
    row_weight = np.ones(len(target)) if column is None else numbers(column)
    train = rows["train"]
    used = np.concatenate([train, rows["validation"]])
    wrong = ~(row_weight[used] >= 0)
    if wrong.any():
        raise DataError(
            f"weight {spec.weight!r} is missing or negative in {wrong.sum()} of {len(used)} train and"
            " validation rows",
            hint="Set the weights where the table is made; a weight of 0 leaves a row out.",
            place=_PLACE,
        )
    factors = class_factors(spec, classes, target[train], row_weight[train])
    if factors is not None:
        number = target.copy()
        # a class that does not occur in the training rows has no factor, and gets the weight 1
        number[~(number >= 0)] = len(factors)
        row_weight = row_weight * np.append(factors, 1.0)[number.astype(int)]
    elif column is None:
        return None
    mean = row_weight[train].mean()
    if not mean > 0:
        raise DataError("the weights of all train rows are 0: there is nothing to learn", place=_PLACE)
    return np.asarray(row_weight / mean)
