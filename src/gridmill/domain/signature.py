"""This module defines signatures. The signature of a model or of a dataset's label describes what is
predicted.

Models and datasets with different signatures cannot be compared.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from gridmill.domain.amounts import show_period
from gridmill.domain.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The names of the labels, and how each label is made.

    `source` has the fields of the dataset's label declaration that are set (`column`, `horizon_seconds`,
    `steps`, `next_rows`, `delay_seconds`, `table`, `outcome`). `type` is number, boolean, text or the name
    of the Arrow type. `objective` and `classes` are the objective and the classes of the model. If a field
    is empty, its value is unknown, and the field is treated as equal to every value.
    """

    labels: tuple[str, ...]
    source: Mapping[str, Any] = field(default_factory=dict)
    type: str = ""
    objective: str = ""
    classes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """A description of the signature for people, such as `label: temp, 1 d later (number)`."""
        names = ", ".join(self.labels) if len(self.labels) < 4 else f"{len(self.labels)} labels"
        made = ", ".join(_made(self.source))
        kind = f"classes {', '.join(self.classes[:5])}" if self.classes else self.objective or self.type
        return names + (f": {made}" if made else "") + (f" ({kind})" if kind else "")


def differences_between(one: Signature, other: Signature) -> tuple[str, ...]:
    """Return the names of the fields in which two signatures differ (`label`, `column`, `horizon`, `type`,
    `objective`, `classes`)."""
    differences = [] if one.labels == other.labels else ["label"]
    if one.source and other.source:
        names = dict.fromkeys((*one.source, *other.source))
        differences += [
            name.removesuffix("_seconds")
            for name in names
            if _value(one.source.get(name)) != _value(other.source.get(name))
        ]
    for name in ("type", "objective"):
        here, other_value = getattr(one, name), getattr(other, name)
        differences += [name] if here and other_value and here != other_value else []
    if one.classes and other.classes and set(one.classes) != set(other.classes):
        differences.append("classes")
    return tuple(differences)


def _value(value: object) -> object:
    """Return a value as it is in JSON, where tuples are lists."""
    return list(value) if isinstance(value, tuple) else value


def _made(source: Mapping[str, Any]) -> Iterator[str]:
    if source.get("table"):
        yield f"{source.get('outcome') or 'events'} of {source['table']}"
    if columns := source.get("column") or ", ".join(source.get("columns") or ()):
        yield str(columns)
    if source.get("horizon_seconds"):
        yield f"{show_period(float(source['horizon_seconds']))} later"
    if source.get("steps"):
        yield f"{source['steps']} rows later"
    if source.get("next_rows"):
        yield f"the next {source['next_rows']} rows"
    if source.get("delay_seconds"):
        yield f"known {show_period(float(source['delay_seconds']))} after that"
