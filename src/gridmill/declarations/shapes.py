"""The YAML shape of each noun, derived from its dataclass as a type that pydantic validates and describes.

- `x_seconds` and `x_bytes` are written `x` and take a unit; counts of rows and columns take k, M, B;
- a tuple accepts a single value; a tuple of nouns that must have a name is a mapping by name;
- a noun with one required field of text can be written as that text;
- what is written as nothing has its default.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache, partial
from inspect import getdoc
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NotRequired,
    Required,
    TypeAlias,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import AfterValidator, BeforeValidator, ConfigDict, PlainValidator, TypeAdapter, WithJsonSchema
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from gridmill.declarations import leaves
from gridmill.declarations.invariants import Flaw, flaws
from gridmill.declarations.leaves import Leaf
from gridmill.errors import InputError
from gridmill.model.pipeline import Pipeline
from gridmill.model.resource import Resource
from gridmill.model.site import Site

Hint: TypeAlias = Any  # a type expression; typing has no type for them

KINDS: Mapping[str, type] = {"pipeline": Pipeline, "resource": Resource, "site": Site}
"""What a document can declare, by the field that gives its name."""

_NOT_WRITTEN: Mapping[type, set[str]] = {
    Pipeline: {"folder", "bundle"},
    Resource: {"default"},
    Site: {"nodes"},
}
_FLATTENED: Mapping[tuple[type, str], tuple[str, ...]] = {(Resource, "size"): ("rows", "columns")}
_UNITS = {"_seconds": leaves.DURATION, "_bytes": leaves.SIZE}
_COUNTS = ("rows", "columns")
_SCALARS = frozenset({str, int, float, bool})


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A field of a noun as YAML has it. `inside` leads into a noun that is written flat."""

    written: str
    field: str
    hint: Hint
    leaf: Leaf | None
    required: bool
    default: Any = None
    inside: type | None = None


@cache
def parts(noun: type) -> Mapping[str, Part]:
    """The fields of a noun, by the name they are written with."""
    return {part.written: part for part in _parts(noun)}


def _parts(noun: type) -> Iterator[Part]:
    hints = get_type_hints(noun)
    for field in fields(noun):
        flat = _FLATTENED.get((noun, field.name))
        if flat:
            (inside,) = nouns_in(hints[field.name])
            for name in flat:
                yield replace(parts(inside)[name], field=field.name, inside=inside)
        elif field.name not in _NOT_WRITTEN.get(noun, ()):
            yield _part(field, hints[field.name])


def _part(field: Field[Any], hint: Hint) -> Part:
    written, leaf = field.name, None
    for suffix, unit in _UNITS.items():
        if field.name.endswith(suffix):
            written, leaf = field.name.removesuffix(suffix), unit
    if field.name in _COUNTS or field.name.endswith(tuple("_" + count for count in _COUNTS)):
        leaf = leaves.COUNT if int in _inner(hint) else None
    if field.name == "name" and field.default is MISSING:
        leaf = leaves.NAME
    default = None if field.default is MISSING else field.default
    required = field.default is MISSING and field.default_factory is MISSING
    return Part(written=written, field=field.name, hint=hint, leaf=leaf, required=required, default=default)


def _inner(hint: Hint) -> tuple[Any, ...]:
    """The alternatives of a union, None left out; else the hint alone."""
    if origin_of(hint) in (Union, UnionType):
        return tuple(arg for arg in get_args(hint) if arg is not NoneType)
    return (hint,)


def origin_of(hint: Hint) -> object:
    """`tuple` of `tuple[str, ...]`; the hint itself where nothing is wrapped."""
    return get_origin(hint) or hint


def is_named(noun: Hint) -> bool:
    """Whether several of them are written as a mapping by name."""
    name = parts(cast(type, noun)).get("name") if is_dataclass(noun) else None
    return name is not None and name.required


def nouns_in(hint: Hint) -> Iterator[type]:
    """The nouns a hint speaks of, whatever they are wrapped in."""
    if is_dataclass(hint):
        yield hint  # type: ignore[misc]
    for arg in get_args(hint):
        yield from nouns_in(arg)


def shorthand(noun: type) -> Part | None:
    """The field a noun's short form stands for: the only required one, when it takes text."""
    required = [part for part in parts(noun).values() if part.required]
    short = len(required) == 1 and not is_named(noun) and str in _inner(required[0].hint)
    return required[0] if short else None


# to pydantic


@cache
def adapter(kind: str) -> TypeAdapter[Any]:
    """Validates a document of that kind (a key of KINDS) into its noun."""
    return TypeAdapter(record(KINDS[kind], kind))


@cache
def record(noun: type, name_field: str | None = None) -> Hint:
    """A mapping with the noun's fields, validated into the noun.

    `name_field` is how its name is written; without, a noun that must be named gets an empty one: the
    mapping it stands in gives it.
    """
    written = {part.written: part for part in parts(noun).values()}
    if is_named(noun):
        name = written.pop("name")
        written = {name_field: name, **written} if name_field else written
    body = TypedDict(  # type: ignore[misc]
        f"{noun.__name__}Document" if name_field else noun.__name__,
        {key: _item(part) for key, part in written.items()},
    )
    described = cast(Any, body)
    described.__pydantic_config__ = ConfigDict(extra="forbid")
    described.__doc__ = getdoc(noun)
    optional = frozenset(key for key, part in written.items() if not part.required)
    return Annotated[
        body,
        BeforeValidator(partial(_prepare, shorthand(noun), optional)),
        AfterValidator(partial(_build, noun, written)),
    ]


def _item(part: Part) -> Hint:
    item = shape(part.hint, part.leaf)
    return Required[item] if part.required else NotRequired[item]


def _prepare(short: Part | None, optional: frozenset[str], value: object) -> object:
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if item is not None or key not in optional}
    if short is not None and value is not None:
        return {short.written: value}
    return value


def _build(noun: type, written: Mapping[str, Part], value: dict[str, Any]) -> object:
    given: dict[str, Any] = {"name": ""} if is_named(noun) else {}
    for key, item in value.items():
        part = written[key]
        if part.inside is None:
            given[part.field] = item
        else:
            given[part.field] = replace(given.get(part.field) or part.inside(), **{key: item})
    try:
        built = noun(**given)
        found = list(flaws(built))
    except InputError as error:
        found = [Flaw(message=error.message, hint=error.hint)]
    if found:
        raise PydanticCustomError("flaws", "flaws", {"flaws": found})
    return built


def shape(hint: Hint, leaf: Leaf | None = None) -> Hint:
    """The type that pydantic reads a field of type `hint` with; `leaf` is how its numbers are written."""
    inner = _inner(hint)
    shaped = _alternatives(inner, leaf)
    return shaped | None if NoneType in get_args(hint) else shaped


def _alternatives(inner: tuple[Any, ...], leaf: Leaf | None) -> Hint:
    if len(inner) > 1 and set(inner) <= _SCALARS:
        return _leaf(leaves.SCALAR)
    if set(inner) == {str, tuple[str, ...]}:
        return _text_or_texts
    if len(inner) > 1:
        return Union[tuple(shape(one, leaf) for one in inner)]  # noqa: UP007  built from a tuple
    return _single(inner[0], leaf)


def _single(hint: Hint, leaf: Leaf | None) -> Hint:
    match origin_of(hint):
        case origin if origin is tuple:
            return _tuple(get_args(hint)[0], leaf)
        case origin if origin in (Mapping, dict):
            return dict[_leaf(leaves.TEXT), shape(get_args(hint)[1], leaf)]  # type: ignore[misc]
        case noun if is_dataclass(noun):
            return record(cast(type, noun))
    return _leaf(_leaf_of(hint, leaf))


def _leaf_of(hint: Hint, leaf: Leaf | None) -> Leaf:
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return leaves.choice(hint)
    return leaf or leaves.PLAIN.get(hint, leaves.SCALAR)


def _leaf(leaf: Leaf) -> Hint:
    return Annotated[Any, PlainValidator(leaf.parse), WithJsonSchema(leaf.schema)]


def _tuple(item: Hint, leaf: Leaf | None) -> Hint:
    if is_named(item):
        return Annotated[dict[_leaf(leaves.NAME), record(item)], AfterValidator(_by_name)]  # type: ignore[misc]
    several: Hint = tuple[shape(item, leaf), ...]  # type: ignore[misc]
    if is_dataclass(item):
        return several
    one = _leaf_of(item, leaf).schema
    schema = {"anyOf": [one, {"type": "array", "items": one}]}
    return Annotated[several, BeforeValidator(_one_or_more), WithJsonSchema(schema)]


def _by_name(value: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(replace(noun, name=name) for name, noun in value.items())


def _one_or_more(value: object) -> object:
    return value if value is None or isinstance(value, list | dict) else [value]


def _read_text_or_texts(value: object) -> str | tuple[str, ...]:
    text: Callable[[Any], str] = leaves.TEXT.parse
    if isinstance(value, list) and not any(isinstance(item, list | dict) or item is None for item in value):
        return tuple(text(item) for item in value)
    if value is None or isinstance(value, list | dict):
        raise leaves.wrong("text or a list of text", value)
    return text(value)


_text_or_texts = _leaf(
    Leaf(
        expected="text or a list of text",
        parse=_read_text_or_texts,
        schema={"anyOf": [leaves.TEXT.schema, {"type": "array", "items": leaves.TEXT.schema}]},
    )
)
