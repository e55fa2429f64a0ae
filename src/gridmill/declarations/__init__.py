"""Reads pipeline files: converts YAML to records, reports errors with file, line and field, and provides the
JSON Schema of these files."""

from typing import Any

from gridmill.declarations.read import parse_declarations, read_again, read_declarations, read_pipeline
from gridmill.declarations.validate import external_resources

__all__ = [
    "external_resources",
    "json_schema",
    "parse_declarations",
    "read_again",
    "read_declarations",
    "read_pipeline",
]


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema (draft 2020-12) of pipeline files."""
    # imported here, because it loads Pydantic, which is slow to import
    from gridmill.declarations import schema_export

    return schema_export.json_schema()
