"""Provides the meaning, the default and an example of each field of pipeline files. This information comes
from the YAML files in `fields/`.

The reference page and the JSON Schema are made from this information. If a field has a single default in the
code, this default is used. The YAML files describe a default in words only for other fields.
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
    """The information about one field in the reference: sentences, the default in words (empty if the
    default in the code is used), and an example as YAML text and as a value."""

    text: str
    default: str
    written_example: str
    example: Any


def title_of(noun: type) -> str:
    """Returns the title of the section about a record class, which is the name of the class without
    `Spec`."""
    return noun.__name__.removesuffix("Spec")


def noun_reference(noun: type) -> str:
    """Returns the introduction to a record class, or an empty text if there is none."""
    return str(_reference().get(title_of(noun), {}).get("about", ""))


def field_reference(noun: type, written: str) -> FieldReference | None:
    """Returns the reference of a field by its name in YAML, or None if there is none. For the field that
    contains the name of a document, `written` is `name`."""
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
    """Returns the field names that the YAML files contain for a section, or an empty set if the section is
    unknown."""
    return frozenset(_reference().get(title, {})) - {"about"}


def referenced_sections() -> frozenset[str]:
    """Returns the titles of all sections in the YAML files."""
    return frozenset(_reference())


def default_of(noun: type, part: FieldSchema) -> Any:  # noqa: ANN401  any JSON value
    """Returns the default of a field as a JSON value, or None if the field has no default or an empty
    default."""
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
