"""The JSON Schema of pipeline files, which is made from the schemas that read the files. Editors use this
JSON Schema to complete field names."""

import json
from collections.abc import Mapping
from typing import Any, cast

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema as core

from gridmill.declarations.field_reference import default_of, field_reference, noun_reference
from gridmill.declarations.invariants import AT_LEAST_ONE, EXACTLY_ONE, INSTEAD, written
from gridmill.declarations.scalars import ScalarType
from gridmill.declarations.schema import KINDS, FieldSchema, can_be_true, document_schema, shorthand

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Returns the schema for one document of a file. A document declares a pipeline, a resource or a site,
    depending on the field that contains the name."""
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
    """Returns the text of the JSON Schema for the published file."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _to(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


class _Generator(GenerateJsonSchema):
    """The JSON Schema generator of pydantic, extended for single values, records, and the short forms of
    records."""

    def function_plain_schema(self, schema: core.PlainValidatorFunctionSchema) -> JsonSchemaValue:
        """Returns the JSON Schema of a single value, from the table of types."""
        leaf: ScalarType = schema["metadata"]["leaf"]
        return dict(leaf.schema)

    def function_before_schema(self, schema: core.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        """Returns the JSON Schema for a tuple or a record that has a short form. A tuple can be a single
        value, and a record can be a text."""
        full = self.generate_inner(schema["schema"])
        if schema.get("metadata", {}).get("one"):
            return {"anyOf": [full["items"], full]}
        noun = _noun(schema["schema"])
        short = shorthand(noun)
        others = [full["properties"][short.written]] if short else []
        others += [{"const": True}] if can_be_true(noun) else []
        return {"anyOf": [full, *others]} if others else full

    def typed_dict_schema(self, schema: core.TypedDictSchema) -> JsonSchemaValue:
        """Returns the JSON Schema of a record's fields, with the meaning and an example of each field."""
        noun: type = _noun(schema)
        parts: Mapping[str, FieldSchema] = schema["metadata"]["parts"]
        properties = {
            name: {**self.generate_inner(field["schema"]), **_about(noun, parts[name])}
            for name, field in schema["fields"].items()
        }
        made: dict[str, Any] = {
            "description": noun_reference(noun),
            "type": "object",
            "properties": properties,
        }
        required = [name for name, part in parts.items() if part.required]
        if required:
            made["required"] = required
        if noun in EXACTLY_ONE:
            choices: list[dict[str, Any]] = [
                {"required": [name]} for name in dict.fromkeys(written(one) for one in EXACTLY_ONE[noun])
            ]
            alone = {"required": [INSTEAD.get(noun)], "not": {"anyOf": choices}}
            made["oneOf"] = [*choices, alone] if noun in INSTEAD else choices
        if noun in AT_LEAST_ONE:
            made["anyOf"] = [{"required": [name]} for name in AT_LEAST_ONE[noun]]
        return {**made, "additionalProperties": False}


def _noun(schema: Any) -> type:  # noqa: ANN401  any of the core's schemas
    return cast(type, schema["metadata"]["noun"])


def _about(noun: type, part: FieldSchema) -> dict[str, Any]:
    result: dict[str, Any] = {}
    reference = field_reference(noun, part.written)
    if reference is not None:
        result["description"] = reference.text
        result["examples"] = [reference.example]
    default = default_of(noun, part)
    if default is not None:
        result["default"] = default
    return result
