"""The meaning, the default and an example of each field of pipeline files, from the YAML files in `fields/`.

The reference page and the JSON Schema are made from them. A field that has one default in code takes it from
there; the files state a default in words only for the others.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, cast

from gridmill.declarations.schema import KINDS, FieldSchema
from gridmill.declarations.yaml import parse_documents
from gridmill.domain.frozen import dataclass

_SECTIONS = ("pipeline", "data", "dataset", "models", "places")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldReference:
    """What the reference states about one field: sentences, the default in words (empty: it is that of the
    code), and an example as YAML text and as a value."""

    text: str
    default: str
    written_example: str
    example: Any


def title_of(noun: type) -> str:
    """The title of a noun's section: the class's name without `Spec`."""
    return noun.__name__.removesuffix("Spec")


def noun_reference(noun: type) -> str:
    """The introduction to a noun; empty if no file has one."""
    return str(_reference().get(title_of(noun), {}).get("about", ""))


def field_reference(noun: type, written: str) -> FieldReference | None:
    """The reference of a field by its name in YAML, where a document's name is `name`; None if there is
    none."""
    entries = _reference().get(title_of(noun), {})
    kind = next((kind for kind, document in KINDS.items() if document is noun), None)
    entry = entries.get(kind if written == "name" and kind is not None else written)
    if entry is None or isinstance(entry, str):
        return None
    example = str(entry["example"])
    (document,) = parse_documents(f"value: {example}", "example")
    return FieldReference(
        text=str(entry["text"]),
        default=str(entry.get("default", "")),
        written_example=example,
        example=json.loads(json.dumps(cast(Any, document.value)["value"])),
    )


def referenced_fields(title: str) -> frozenset[str]:
    """The names that the files have for a section; empty for an unknown section."""
    return frozenset(_reference().get(title, {})) - {"about"}


def referenced_sections() -> frozenset[str]:
    """The titles of all sections in the files."""
    return frozenset(_reference())


def default_of(noun: type, part: FieldSchema) -> Any:  # noqa: ANN401  any JSON value
    """The default of a field as a JSON value; None if it has none, or if it is empty."""
    field = next(field for field in fields(cast(Any, noun)) if field.name == part.field)
    value = field.default
    if value is MISSING or value in (None, "", ()) or part.inside is not None:
        return None
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


@cache
def _reference() -> Mapping[str, Mapping[str, Any]]:
    folder = Path(__file__).with_name("fields")
    sections: dict[str, Mapping[str, Any]] = {}
    for name in _SECTIONS:
        text = (folder / f"{name}.yaml").read_text("utf-8")
        for document in parse_documents(text, f"{name}.yaml"):
            sections |= cast(Any, document.value)
    return sections
