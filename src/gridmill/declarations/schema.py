"""The YAML shape of each record, derived from its dataclass as a schema of pydantic-core.

- The field `x_seconds` or `x_bytes` of a record is written as `x` in YAML, and its value has a unit.
- The field `x_micros` of a record is written as `x`, in whole units of the currency.
- Counts of rows and columns can have the suffixes k, M and B.
- If a record has `x_months` beside `x_seconds`, `x` is a period, which can be a number of calendar months.
- A tuple can be written as a single value.
- A tuple of records that must have a name is written as a mapping by name.
- A record with one required field that is text can be written as this text.
- A record that is requested by its field alone can be written as `true`.
- An empty value means None if the field allows None; otherwise it means the default of the field.

The schemas of pydantic-core are built directly, because the annotation layer of pydantic would take longer
to start than reading a file takes. `declarations.schema_export` converts these schemas into JSON Schema.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

from pydantic_core import CoreSchema, PydanticCustomError, SchemaValidator
from pydantic_core import core_schema as core

from gridmill.declarations import scalars
from gridmill.declarations.invariants import InvariantViolation, flaws
from gridmill.declarations.scalars import ScalarType
from gridmill.domain.amounts import Months
from gridmill.domain.command import CommandSpec, Each
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.resource import Resource
from gridmill.domain.schedule import Continuous
from gridmill.domain.service_features import FeatureSettings
from gridmill.domain.service_settings import WRITTEN, ServiceSettings
from gridmill.domain.service_spec import ServiceSpec
from gridmill.domain.site import Site
from gridmill.domain.source import Source, SqlSource, StreamSource
from gridmill.domain.sql_statement import Scalar
from gridmill.domain.training import TrainingSpec
from gridmill.domain.tuning import Range
from gridmill.errors import InputError

Hint: TypeAlias = Any  # Any, because `typing` has no type for type expressions

KINDS: Mapping[str, type] = {"pipeline": Pipeline, "resource": Resource, "site": Site}
"""The kinds of records that a document can declare. The keys are the fields that contain the name of the
record."""

NOT_WRITTEN: Mapping[type, set[str]] = {
    Pipeline: {"folder", "host", "bundle", "commit", "written", "awaits", "applied", "data"},
    Job: {"parameters"},
    ServiceSpec: {
        "replicas",
        "routes",
        "has_view",
        "canary_bytes",
        "shadow_bytes",
        "gpus",
        "node",
        "calibrates",
        "machine",
    },
    ServiceSettings: {"unset"},
    SqlSource: {"parameters"},
    Resource: {"default"},
    Site: {"nodes", "past", "route", "market"},
}
"""The fields of records that a file cannot contain."""
_WRITTEN_TRUE = frozenset({Continuous, Each})
FLATTENED: Mapping[tuple[type, str], tuple[str, ...]] = {
    (Resource, "size"): ("rows", "columns"),
    (ServiceSpec, "settings"): (),
    (FeatureSettings, "policy"): (),
}
"""Fields with a nested record whose fields are written directly in the outer record: the fields with these
names, or all fields if no names are listed."""
_SHORT: Mapping[type, str] = {Source: "path", Range: "between", Each: "nodes", ServiceSpec: "model"}
_WRITTEN: Mapping[type, Mapping[str, str]] = {ServiceSettings: WRITTEN, ServiceSpec: {"count": "replicas"}}
"""The names of fields in YAML, if they do not follow from the names in the record."""
_LEAVES: Mapping[tuple[type, str], ScalarType] = {
    (PredictionSpec, "workers"): scalars.AUTO,
    (Range, "between"): scalars.AS_WRITTEN,
    (Range, "log"): scalars.AS_WRITTEN,
    (ServiceSpec, "name"): scalars.NAME,
    (FeatureSettings, "reach_back_seconds"): scalars.REACH_BACK,
    (CommandSpec, "env"): scalars.TEXT_OR_SECRET,
    (CommandSpec, "registry_login"): scalars.TEXT_OR_SECRET,
    (Source, "headers"): scalars.TEXT_OR_SECRET,
    (Source, "credentials"): scalars.TEXT_OR_SECRET,
    (SqlSource, "url"): scalars.TEXT_OR_SECRET,
    (StreamSource, "url"): scalars.TEXT_OR_SECRET,
    (TrainingSpec, "track"): scalars.TEXT_OR_SECRET,
    (TrainingSpec, "registry_login"): scalars.TEXT_OR_SECRET,
}
_UNITS = {"_seconds": scalars.DURATION, "_bytes": scalars.SIZE, "_micros": scalars.MONEY}
_COUNTS = ("rows", "columns")
_SCALARS = frozenset({str, int, float, bool})


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSchema:
    """A field of a record in YAML. If a field belongs to a nested record but is written directly in the
    outer record, `inside` is the class of the nested record, and `inner` is the name of its field."""

    written: str
    field: str
    hint: Hint
    leaf: ScalarType | None
    required: bool
    default: Any = None
    inside: type | None = None
    inner: str = ""


@cache
def parts(noun: type) -> Mapping[str, FieldSchema]:
    """Returns the fields of a record class, by their names in YAML."""
    return {part.written: part for part in _parts(noun)}


def _parts(noun: type) -> Iterator[FieldSchema]:
    hints = get_type_hints(noun)
    names = {field.name for field in fields(noun)}
    for field in fields(noun):
        flat = FLATTENED.get((noun, field.name))
        if flat is not None:
            inside = next(nouns_in(hints[field.name]))
            for name in flat or parts(inside):
                part = parts(inside)[name]
                yield replace(part, field=field.name, inside=inside, inner=part.field)
        elif field.name not in NOT_WRITTEN.get(noun, ()) and not _is_months(field.name, names):
            part = _part(field, hints[field.name], _WRITTEN.get(noun, {}).get(field.name, ""))
            leaf = scalars.PERIOD if _months_of(field.name) in names else part.leaf
            yield replace(part, leaf=_LEAVES.get((noun, field.name), leaf))


def _months_of(name: str) -> str:
    return name.removesuffix("_seconds") + "_months" if name.endswith("_seconds") else ""


def _is_months(name: str, names: Container[str]) -> bool:
    return name.endswith("_months") and name.removesuffix("_months") + "_seconds" in names


def _part(field: Field[Any], hint: Hint, renamed: str = "") -> FieldSchema:
    written, leaf = renamed or field.name, None
    for suffix, unit in _UNITS.items():
        if field.name.endswith(suffix):
            written, leaf = renamed or field.name.removesuffix(suffix), unit
    if field.name in _COUNTS or field.name.endswith(tuple("_" + count for count in _COUNTS)):
        leaf = scalars.COUNT if int in _inner(hint) else None
    if field.name == "name" and field.default is MISSING:
        leaf = scalars.NAME
    default = None if field.default is MISSING else field.default
    required = field.default is MISSING and field.default_factory is MISSING
    return FieldSchema(
        written=written, field=field.name, hint=hint, leaf=leaf, required=required, default=default
    )


def _inner(hint: Hint) -> tuple[Any, ...]:
    """Returns the alternatives of a union type without None. For any type that is not a union, the function
    returns only this type."""
    if origin_of(hint) in (Union, UnionType):
        return tuple(arg for arg in get_args(hint) if arg is not NoneType)
    return (hint,)


def origin_of(hint: Hint) -> object:
    """Returns the outer type, such as `tuple` for `tuple[str, ...]`. If the type has no arguments, the
    function returns the type itself."""
    return get_origin(hint) or hint


def is_named(noun: Hint) -> bool:
    """Returns True if several records of this type are written as a mapping by name."""
    name = parts(cast(type, noun)).get("name") if is_dataclass(noun) else None
    return name is not None and name.required


def nouns_in(hint: Hint) -> Iterator[type]:
    """Yields the record classes that occur in a type, at any depth."""
    if is_dataclass(hint):
        yield hint  # type: ignore[misc]
    for arg in get_args(hint):
        yield from nouns_in(arg)


def shorthand(noun: type) -> FieldSchema | None:
    """Returns the field that the short form of a record sets. For some records, a table names this field.
    For all others, it is the only required field, if this field can be written as text."""
    if noun in _SHORT:
        return parts(noun)[_SHORT[noun]]
    required = [part for part in parts(noun).values() if part.required]
    if len(required) != 1 or is_named(noun):
        return None
    inner = _inner(required[0].hint)
    takes_text = str in inner or any(is_dataclass(one) and shorthand(cast(type, one)) for one in inner)
    return required[0] if takes_text else None


def can_be_true(noun: type) -> bool:
    """Returns True if a record can be written as `true`, because all its fields have defaults that are valid
    together."""
    return noun in _WRITTEN_TRUE


# --- to pydantic-core


@cache
def validator(kind: str) -> SchemaValidator:
    """Returns the validator for a kind of document (a key of KINDS). The validator returns the record of the
    document."""
    return SchemaValidator(document_schema(kind))


def document_schema(kind: str) -> CoreSchema:
    """Returns the schema for a kind of document, with a definition for each record in it."""
    noun = KINDS[kind]
    inside = dict.fromkeys(one for part in parts(noun).values() for one in _reachable(part.hint))
    return core.definitions_schema(_record(noun, kind), [_record(one) for one in inside])


def noun_schema(noun: type) -> CoreSchema:
    """Returns the schema of one record class with its nested records. If the record must have a name, its
    name is in the field `name`."""
    inside = dict.fromkeys(one for part in parts(noun).values() for one in _reachable(part.hint))
    root = _record(noun, "name" if is_named(noun) else None)
    return core.definitions_schema(root, [_record(one) for one in inside if one is not noun])


def _reachable(hint: Hint) -> Iterator[type]:
    for noun in nouns_in(hint):
        yield noun
        for part in parts(noun).values():
            yield from _reachable(part.hint)


def _record(noun: type, kind: str | None = None) -> CoreSchema:
    """Returns the schema of a mapping with the fields of the record class. Validating such a mapping gives a
    record.

    `kind` is the field that contains the name of the record. If `kind` is not set, a record that must have a
    name first gets an empty name. Later the record gets its name, which is its key in the mapping that
    contains it.
    """
    written = dict(parts(noun))
    if is_named(noun):
        name = written.pop("name")
        written = {kind: name, **written} if kind else written
    body = core.typed_dict_schema(
        {key: core.typed_dict_field(shape(part), required=part.required) for key, part in written.items()},
        extra_behavior="forbid",
        metadata={"noun": noun, "parts": written},
    )
    optional = frozenset(key for key, part in written.items() if not (part.required or _nullable(part)))
    prepared = core.no_info_before_validator_function(
        partial(_prepare, shorthand(noun), optional, can_be_true(noun)), body
    )
    ref = _ref(noun, kind)
    if noun not in NOT_WRITTEN:
        return core.no_info_after_validator_function(partial(_build, noun, written), prepared, ref=ref)
    built = core.no_info_after_validator_function(partial(_build, noun, written), prepared)
    return core.no_info_wrap_validator_function(partial(_with_the_rest, noun), built, ref=ref)


def _with_the_rest(noun: type, value: object, validate: Callable[[object], Any]) -> object:
    """Validates a mapping, and restores the fields that `construct.written` left out when it converted the
    record to a mapping."""
    made, origin = validate(value), getattr(value, "noun", None)
    if not isinstance(origin, noun):
        return made
    return replace(made, **{name: getattr(origin, name) for name in NOT_WRITTEN[noun]})


def _ref(noun: type, kind: str | None = None) -> str:
    return f"{noun.__name__}Document" if kind else noun.__name__


def _prepare(short: FieldSchema | None, optional: frozenset[str], bare: bool, value: object) -> object:
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if item is not None or key not in optional}
    if value is True and bare:
        return {}
    return {short.written: value} if short is not None and value is not None else value


def _build(noun: type, written: Mapping[str, FieldSchema], value: dict[str, Any]) -> object:
    given: dict[str, Any] = {"name": ""} if is_named(noun) else {}
    for key, item in value.items():
        part = written[key]
        if isinstance(item, Months):
            given |= {part.field: None, _months_of(part.field): int(item)}
        elif part.inside is None:
            given[part.field] = item
        else:
            given[part.field] = replace(given.get(part.field) or part.inside(), **{part.inner: item})
    try:
        built = noun(**given)
        violations = list(flaws(built))
    except InputError as error:
        violations = [InvariantViolation(message=error.message, hint=error.hint)]
    if violations:
        raise PydanticCustomError("flaws", "flaws", {"flaws": violations})
    return built


def shape(part: FieldSchema) -> CoreSchema:
    """Returns the schema of a field."""
    shaped = _alternatives(_inner(part.hint), part.leaf)
    return core.nullable_schema(shaped) if _nullable(part) else shaped


def _nullable(part: FieldSchema) -> bool:
    return NoneType in get_args(part.hint)


def _alternatives(inner: tuple[Hint, ...], leaf: ScalarType | None) -> CoreSchema:
    if len(inner) > 1 and set(inner) <= _SCALARS:
        return _leaf(scalars.SCALAR)
    if set(inner) == {*_SCALARS, tuple[Scalar, ...]}:
        return _leaf(scalars.VALUE)
    if set(inner) == {str, tuple[str, ...]}:
        return _leaf(scalars.TEXTS)
    if len(inner) > 1:
        return core.union_schema([_single(one, leaf) for one in inner])
    return _single(inner[0], leaf)


def _single(hint: Hint, leaf: ScalarType | None) -> CoreSchema:
    origin, args = origin_of(hint), get_args(hint)
    if origin is tuple:
        return _several(args[0], leaf)
    if origin in (Mapping, dict):
        return core.dict_schema(_leaf(scalars.TEXT), _alternatives(_inner(args[1]), leaf))
    if is_dataclass(hint):
        return core.definition_reference_schema(_ref(cast(type, hint)))
    return _leaf(_leaf_of(hint, leaf))


def _several(item: Hint, leaf: ScalarType | None) -> CoreSchema:
    several = core.tuple_variable_schema(_single(item, leaf))
    if is_named(item):
        by_name = core.dict_schema(_leaf(scalars.NAME), _single(item, leaf))
        return core.no_info_after_validator_function(_named, by_name)
    if is_dataclass(item):
        return several
    return core.no_info_before_validator_function(_one_or_more, several, metadata={"one": True})


def _named(value: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(replace(noun, name=name) for name, noun in value.items())


def _one_or_more(value: object) -> object:
    return value if value is None or isinstance(value, list | dict) else [value]


def _leaf_of(hint: Hint, leaf: ScalarType | None) -> ScalarType:
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return scalars.choice(hint)
    return leaf or scalars.PLAIN.get(hint, scalars.SCALAR)


def _leaf(leaf: ScalarType) -> CoreSchema:
    return core.no_info_plain_validator_function(leaf.parse, metadata={"leaf": leaf})
