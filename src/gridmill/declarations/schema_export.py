"""The JSON Schema of pipeline files, from the schemas that read them; editors use it for completion."""

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import Enum
from functools import cache
from inspect import getdoc, getsource
from itertools import pairwise
from textwrap import dedent
from typing import Any, cast

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema as core

from gridmill.declarations.invariants import EXACTLY_ONE, written
from gridmill.declarations.scalars import ScalarType
from gridmill.declarations.schema import KINDS, FieldSchema, can_be_true, document_schema, shorthand

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The schema of one document of a file: a pipeline, resource or site, told by the field that names it."""
    inputs = [(kind, "validation", document_schema(kind)) for kind in KINDS]
    _, definitions = _Generator().generate_definitions(cast(Any, inputs))
    return {
        "$schema": DIALECT,
        "title": "Gridmill pipeline file",
        "description": "A pipeline, or a resource or site to be applied.",
        "type": "object",
        "if": {"required": ["resource"]},
        "then": _to("ResourceDocument"),
        "else": {
            "if": {"required": ["site"]},
            "then": _to("SiteDocument"),
            "else": _to("PipelineDocument"),
        },
        "$defs": dict(sorted(definitions.items())),
    }


def schema_text() -> str:
    """The schema as the published file has it."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _to(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


class _Generator(GenerateJsonSchema):
    """pydantic's generator, told how leaves, nouns and their short forms are written."""

    def function_plain_schema(self, schema: core.PlainValidatorFunctionSchema) -> JsonSchemaValue:
        """A leaf says it itself."""
        leaf: ScalarType = schema["metadata"]["leaf"]
        return dict(leaf.schema)

    def function_before_schema(self, schema: core.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        """One where several are allowed; text for a noun that has a short form."""
        full = self.generate_inner(schema["schema"])
        if schema.get("metadata", {}).get("one"):
            return {"anyOf": [full["items"], full]}
        noun = _noun(schema["schema"])
        short = shorthand(noun)
        others = [full["properties"][short.written]] if short else []
        others += [{"const": True}] if can_be_true(noun) else []
        return {"anyOf": [full, *others]} if others else full

    def typed_dict_schema(self, schema: core.TypedDictSchema) -> JsonSchemaValue:
        """A noun's fields, with what the noun's docstring says of each."""
        noun: type = _noun(schema)
        parts: Mapping[str, FieldSchema] = schema["metadata"]["parts"]
        properties = {
            name: {**self.generate_inner(field["schema"]), **_about(noun, parts[name])}
            for name, field in schema["fields"].items()
        }
        made: dict[str, Any] = {"description": summary(noun), "type": "object", "properties": properties}
        required = [name for name, part in parts.items() if part.required]
        if required:
            made["required"] = required
        if noun in EXACTLY_ONE:
            made["oneOf"] = [
                {"required": [name]} for name in dict.fromkeys(written(one) for one in EXACTLY_ONE[noun])
            ]
        return {**made, "additionalProperties": False}


def _noun(schema: Any) -> type:  # noqa: ANN401  any of the core's schemas
    return cast(type, schema["metadata"]["noun"])


def _about(noun: type, part: FieldSchema) -> dict[str, Any]:
    result: dict[str, Any] = {}
    text = about(noun, part.field)
    if text:
        result["description"] = text
    default = default_of(noun, part)
    if default is not None:
        result["default"] = default
    return result


def default_of(noun: type, part: FieldSchema) -> Any:  # noqa: ANN401  any JSON value
    """The field's default as YAML has it; None where there is none, or nothing worth showing."""
    field = next(field for field in fields(cast(Any, noun)) if field.name == part.field)
    value = field.default
    if value is MISSING or value in (None, "", ()) or part.inside is not None:
        return None
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def summary(noun: type) -> str:
    """The noun's docstring as prose, with fields named as in YAML."""
    return _in_yaml(" ".join((getdoc(noun) or "").split()))


def about(noun: type, field: str) -> str:
    """What is said of a field: its own docstring, else the noun's sentences that start with or name it."""
    own = _field_docs(noun).get(field)
    if own is not None:
        return _in_yaml(own)
    prose = " ".join((getdoc(noun) or "").split())
    naming = [one for one in re.split(r"(?<=[.:;]) (?=[A-Z`])", prose) if f"`{field}`" in one]
    starting = [one for one in naming if one.startswith(f"`{field}`")]
    return _in_yaml(" ".join(starting or naming)).removesuffix(";")


@cache
def _field_docs(noun: type) -> Mapping[str, str]:
    """The strings that stand below fields."""
    body = cast(ast.ClassDef, ast.parse(dedent(getsource(noun))).body[0]).body
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _in_yaml(prose: str) -> str:
    return re.sub(r"`(\w+)`", lambda match: f"`{written(match[1])}`", prose)
