"""Pipeline files: YAML to nouns with errors that name file, line and field; their JSON Schema."""

from gridmill.declarations.read import parse_declarations, read_declarations, read_pipeline
from gridmill.declarations.semantics import external_resources

__all__ = ["external_resources", "parse_declarations", "read_declarations", "read_pipeline"]
