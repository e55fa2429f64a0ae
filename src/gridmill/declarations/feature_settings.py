"""Reads the file with the settings of the contextual features of a service."""

from pathlib import Path

from pydantic_core import SchemaValidator, ValidationError

from gridmill.declarations.problems import to_error
from gridmill.declarations.read import explain
from gridmill.declarations.schema import noun_schema
from gridmill.declarations.yaml import YamlDocument, YamlMapping, parse_documents
from gridmill.domain.service_features import FeatureSettings, check_features
from gridmill.errors import InputError


def read_feature_settings(file: Path) -> FeatureSettings:
    """Return the settings in a YAML or JSON file, whose fields are those of `features` in a pipeline file.
    Raises InputError with the file, the line and the field."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {error}", place="features") from error
    documents = parse_documents(text, str(file))
    document = documents[0] if documents else YamlDocument(file=str(file), line=1, value=YamlMapping(1))
    validator = SchemaValidator(noun_schema(FeatureSettings))
    try:
        settings: FeatureSettings = validator.validate_python(document.value)
    except ValidationError as error:
        raise to_error(str(file), explain(document, FeatureSettings, error)) from error
    check_features(settings)
    return settings
