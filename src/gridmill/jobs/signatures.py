"""The signatures of models and of the labels of datasets, and the error that is raised if two signatures
differ."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from gridmill.domain.signature import Signature, differences_between
from gridmill.errors import InputError
from gridmill.jobs.features import is_number, is_text
from gridmill.jobs.model_files import ModelCard


def dataset_signature(details: Mapping[str, Any], schema: pa.Schema) -> Signature | None:
    """Return the signature of the label of a dataset. Return None for a dataset without a label."""
    many = details.get("labels") or ()
    labels = tuple(str(one["name"]) for one in many) or tuple(filter(None, [details.get("label")]))
    if not labels or labels[0] not in schema.names:
        return None
    return Signature(
        labels=labels,
        source=details.get("label_of") or {},
        type=type_in_words(schema.field(labels[0]).type),
    )


def type_in_words(kind: pa.DataType) -> str:
    """Return the column type in words that show the differences that matter to a model: boolean, number,
    text, or the Arrow type."""
    if pa.types.is_boolean(kind):
        return "boolean"
    return "number" if is_number(kind) else "text" if is_text(kind) else str(kind)


def model_signature(card: ModelCard) -> Signature:
    """Return the signature of the prediction of a model. If the model was stored without a signature, return
    only those fields of the signature that are known."""
    signature = card.signature or Signature(labels=card.labels)
    return Signature(
        labels=card.labels,
        source=signature.source,
        type=signature.type,
        objective=card.objective.value,
        classes=_comparable(card),
    )


def _comparable(card: ModelCard) -> tuple[str, ...]:
    """Return the classes of a model in a form that can be compared.

    Numbers become doubles, because a label may have whole numbers in one version and fractions in another.
    """
    values = card.classified.values()
    if pa.types.is_boolean(values.type) or not is_number(values.type):
        return card.classes
    return tuple(f"{value:g}" for value in values.cast(pa.float64(), safe=False).to_pylist())


def check_same(one: Signature, other: Signature, names: tuple[str, str], place: str) -> None:
    """Raise InputError with the names of both models or datasets if their signatures differ."""
    if differs := differences_between(one, other):
        raise InputError(
            f"{names[0]} and {names[1]} differ in {', '.join(differs)}: {names[0]} predicts {one.text}, "
            f"{names[1]} predicts {other.text}",
            hint="Name only models with the same label: the same column, horizon, type and classes.",
            place=place,
        )
