"""The reference explains every field of pipeline files, and its examples can be read."""

import re
from collections.abc import Iterator

import pytest
from pydantic_core import SchemaValidator
from pydantic_core import core_schema as core

from gridmill.declarations import field_reference as reference
from gridmill.declarations.schema import KINDS, FieldSchema, document_schema, is_named, nouns_in, parts, shape
from gridmill.declarations.yaml import YamlMapping, parse_documents
from gridmill.domain.service_features import FeatureSettings


def _below(noun: type, seen: list[type]) -> list[type]:
    if noun not in seen:
        seen.append(noun)
        for part in parts(noun).values():
            for inside in () if part.inside else nouns_in(part.hint):
                _below(inside, seen)
    return seen


def _nouns() -> list[type]:
    seen: list[type] = []
    for noun in (*KINDS.values(), FeatureSettings):  # these have a file of their own as well
        _below(noun, seen)
    return seen


NOUNS = _nouns()


def _fields() -> Iterator[tuple[type, FieldSchema]]:
    for noun in NOUNS:
        for name, part in parts(noun).items():
            if name != "name" or not is_named(noun) or noun in KINDS.values():
                yield noun, part


FIELDS = list(_fields())
RECORDS = list({one["ref"]: one for kind in KINDS for one in document_schema(kind)["definitions"]}.values())
IDS = [f"{reference.title_of(noun)}.{part.written}" for noun, part in FIELDS]


def _sentences(text: str) -> list[str]:
    return [one.strip(" .") for one in re.split(r"(?<=\.) ", text) if len(one.split()) > 8]


def test_the_files_have_the_records_that_can_be_declared_and_no_others():
    assert reference.referenced_sections() == {reference.title_of(noun) for noun in NOUNS}


@pytest.mark.parametrize("noun", NOUNS, ids=reference.title_of)
def test_the_files_have_the_fields_of_a_record_and_no_others(noun: type):
    kind = next((kind for kind, one in KINDS.items() if one is noun), None)
    names = {kind if name == "name" and is_named(noun) else name for name in parts(noun)} - {None}
    assert reference.referenced_fields(reference.title_of(noun)) == names
    assert reference.noun_reference(noun)


@pytest.mark.parametrize("noun", NOUNS, ids=reference.title_of)
def test_no_sentence_is_repeated_within_a_section(noun: type):
    said = [reference.noun_reference(noun)]
    said += [found.text for name in parts(noun) if (found := reference.field_reference(noun, name))]
    sentences = [sentence for text in said for sentence in _sentences(text)]
    assert sorted({one for one in sentences if sentences.count(one) > 1}) == []


@pytest.mark.parametrize(("noun", "part"), FIELDS, ids=IDS)
def test_a_field_has_a_meaning_one_default_and_an_example_that_can_be_read(noun: type, part: FieldSchema):
    found = reference.field_reference(noun, part.written)
    assert found is not None
    assert found.text.endswith(".")
    in_code = reference.default_of(noun, part) is not None
    assert (bool(found.default), in_code, part.required).count(True) <= 1
    assert found.default or in_code or part.required
    (document,) = parse_documents(f"value: {found.written_example}", "example")
    assert isinstance(document.value, YamlMapping)
    example = document.value["value"]
    schema = core.definitions_schema(shape(part), RECORDS)
    assert SchemaValidator(schema).validate_python(example) != part.default
