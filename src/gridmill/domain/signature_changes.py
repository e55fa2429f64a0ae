"""This module finds what clients of a service would notice if it served another version of its model."""

from collections.abc import Mapping
from typing import Any

_LISTS = (("features", "the features"), ("labels", "the labels"))
_VALUES = {
    "objective": "the kind of the prediction",
    "class_type": "the type of the classes",
    "sequence": "the number of rows of a sequence",
}


def signature_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the differences between the details of two versions of a model that clients of a service would
    notice: features that were added or removed or have another type, other labels, another kind of
    prediction. Facts that one of the versions does not state are not compared."""
    differences: list[str] = []
    for name, what in _LISTS:
        if name in before and name in after:
            differences += _changed_names(what, before[name] or (), after[name] or ())
    differences += _changed_types(before.get("feature_types") or {}, after.get("feature_types") or {})
    for name, what in _VALUES.items():
        if name in before and name in after and before[name] != after[name]:
            differences.append(f"{what} was {_shown(before[name])} and is {_shown(after[name])}")
    return tuple(differences)


def _changed_names(what: str, before: Any, after: Any) -> list[str]:  # noqa: ANN401  JSON
    removed = [name for name in before if name not in after]
    added = [name for name in after if name not in before]
    changes = [f"{what} {_named(removed)} are missing"] if removed else []
    return changes + ([f"{what} {_named(added)} are new"] if added else [])


def _changed_types(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return [
        f"the type of `{name}` was {before[name]} and is {after[name]}"
        for name in before
        if name in after and before[name] != after[name]
    ]


def _named(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _shown(value: object) -> str:
    return "not set" if value is None else f"`{value}`"
