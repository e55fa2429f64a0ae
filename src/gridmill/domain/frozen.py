"""This module has a `dataclass` decorator with the semantics of the standard library, which takes a tenth of
the time to define a class.

The standard library generates and compiles the text of up to seven methods for each class. Generating these
methods takes 1 ms for each class, and there are about 500 classes, most of which a command imports but does
not use. The decorator of this module generates a method only when the method is first called. `replace`
behaves as `dataclasses.replace`; for a record it takes an eighth of the time of `dataclasses.replace`.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field
from reprlib import recursive_repr
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar, dataclass_transform

T = TypeVar("T")
_Method: TypeAlias = Callable[..., Any]
_Fields: TypeAlias = Sequence[Field[Any]]
_Writer: TypeAlias = Callable[[type, _Fields], Iterator[str]]

_FACTORY = object()
"""The argument that means the result of a field's default_factory."""


@dataclass_transform(field_specifiers=(dataclasses.field,))
def dataclass(
    *, frozen: bool = False, slots: bool = False, kw_only: bool = False
) -> Callable[[type[T]], type[T]]:
    """Decorate a class as `dataclasses.dataclass` does. CONTRIBUTING.md lists the arguments of the decorator
    that a class may use."""

    def made(cls: type[T]) -> type[T]:
        return _made(cls, frozen=frozen, slots=slots, kw_only=kw_only)

    return made


def _made(cls: type[T], *, frozen: bool, slots: bool, kw_only: bool) -> type[T]:
    # not the class's own, because Python sets `__hash__` to None in a class that defines `__eq__`
    own = {name for name, value in vars(cls).items() if (name, value) != ("__hash__", None)}
    # saves time: without a docstring, `dataclass` computes the signature of the class
    cls.__doc__ = cls.__doc__ or cls.__name__
    made = dataclasses.dataclass(slots=slots, kw_only=kw_only, init=False, repr=False, eq=False)(cls)
    methods = {name: _later(made, name, writer) for name, writer in _WRITTEN[frozen].items()}
    for name, method in (_ALIKE[frozen] | (_PICKLED if frozen and slots else {}) | methods).items():
        if name not in own:
            setattr(made, name, method)
    return made


def _later(made: type, name: str, writer: _Writer) -> _Method:
    def method(*given: object, **named: object) -> object:
        setattr(made, name, _write(made, name, writer))
        return getattr(made, name)(*given, **named)

    return method


def _write(made: type, name: str, writer: _Writer) -> _Method:
    fields = dataclasses.fields(made)
    scope: dict[str, Any] = {"_set": object.__setattr__, "_FACTORY": _FACTORY}
    for field in fields:
        scope |= {f"default_{field.name}": field.default, f"factory_{field.name}": field.default_factory}
        if _has_slot(made, field):
            scope[f"set_{field.name}"] = getattr(made, field.name).__set__
    exec("\n ".join(writer(made, fields)), scope)
    method: _Method = scope[name]
    method.__qualname__ = f"{made.__qualname__}.{name}"
    return method


def _has_slot(made: type, field: Field[Any]) -> bool:
    return isinstance(getattr(made, field.name, None), MemberDescriptorType)


def _init(made: type, fields: _Fields) -> Iterator[str]:
    # setting the slots directly saves a third of the time
    has_slots = all(_has_slot(made, field) for field in fields)
    return _init_with("set_{0}(self, {1})" if has_slots else "_set(self, {0!r}, {1})", made, fields)


def _init_mutable(made: type, fields: _Fields) -> Iterator[str]:
    return _init_with("self.{0} = {1}", made, fields)


def _init_with(assign: str, made: type, fields: _Fields) -> Iterator[str]:
    yield f"def __init__({', '.join(['self', *_arguments(fields)])}):"
    for field in fields:
        if field.init or field.default is not MISSING or field.default_factory is not MISSING:
            yield assign.format(field.name, _value(field))
    yield "self.__post_init__()" if hasattr(made, "__post_init__") else "pass"


def _arguments(fields: _Fields) -> Iterator[str]:
    given = [field for field in fields if field.init]
    yield from (f"{field.name}{_default(field)}" for field in given if not field.kw_only)
    named = [f"{field.name}{_default(field)}" for field in given if field.kw_only]
    yield from ["*", *named] if named else []


def _value(field: Field[Any]) -> str:
    name = field.name
    if field.default_factory is not MISSING:
        return f"factory_{name}() if {name} is _FACTORY else {name}" if field.init else f"factory_{name}()"
    return name if field.init else f"default_{name}"


def _default(field: Field[Any]) -> str:
    if field.default is not MISSING:
        return f"=default_{field.name}"
    return "=_FACTORY" if field.default_factory is not MISSING else ""


def _equal(made: type, fields: _Fields) -> Iterator[str]:
    compared = [field for field in fields if field.compare]
    yield "def __eq__(self, other):"
    yield "if other.__class__ is not self.__class__: return NotImplemented"
    yield f"return {_values('self', compared)} == {_values('other', compared)}"


def _hash(made: type, fields: _Fields) -> Iterator[str]:
    hashed = [field for field in fields if (field.compare if field.hash is None else field.hash)]
    yield f"def __hash__(self): return hash({_values('self', hashed)})"


def _values(noun: str, fields: _Fields) -> str:
    return f"({''.join(f'{noun}.{field.name}, ' for field in fields)})"


def _refuse(noun: object, name: str, value: object = None) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"a {type(noun).__name__} does not change: {name!r}")


@recursive_repr()
def _text(noun: Any) -> str:  # noqa: ANN401  a dataclass
    named = ", ".join(f"{f.name}={getattr(noun, f.name)!r}" for f in dataclasses.fields(noun) if f.repr)
    return f"{type(noun).__qualname__}({named})"


def text_of_changes(noun: Any) -> str:  # noqa: ANN401  a dataclass
    """Return the `repr` of a record without the fields that have their default values. The function takes a
    tenth of the time that `repr` takes. If a class gets a new field, the text does not change as long as the
    field has its default value."""
    kind = type(noun)
    if (defaults := _DEFAULTS.get(kind)) is None:
        defaults = _DEFAULTS[kind] = [(field.name, _default_of(field)) for field in dataclasses.fields(kind)]
    changes = ", ".join(
        f"{name}={value!r}"
        for name, default in defaults
        if (value := getattr(noun, name)) is not default and value != default
    )
    return f"{kind.__qualname__}({changes})"


_DEFAULTS: dict[type, list[tuple[str, object]]] = {}


def _default_of(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _state(noun: Any) -> list[object]:  # noqa: ANN401  a dataclass
    return [getattr(noun, field.name) for field in dataclasses.fields(noun)]


def _restore(noun: Any, state: Sequence[object]) -> None:  # noqa: ANN401  a dataclass
    for field, value in zip(dataclasses.fields(noun), state, strict=True):
        object.__setattr__(noun, field.name, value)


_WRITTEN: dict[bool, dict[str, _Writer]] = {
    True: {"__init__": _init, "__eq__": _equal, "__hash__": _hash},
    False: {"__init__": _init_mutable, "__eq__": _equal},
}
_ALIKE: dict[bool, dict[str, _Method | None]] = {
    True: {"__repr__": _text, "__setattr__": _refuse, "__delattr__": _refuse},
    False: {"__repr__": _text, "__hash__": None},
}
_PICKLED: dict[str, _Method] = {"__getstate__": _state, "__setstate__": _restore}


if TYPE_CHECKING:
    # mypy checks the fields only for this name of the standard library
    from dataclasses import replace as replace
else:

    def replace(noun: Any, /, **changes: Any) -> Any:  # noqa: ANN401  any dataclass
        """Return a copy of a record in which the fields in `changes` have new values."""
        copy = _COPIES.get(noun.__class__)
        if copy is None:
            copy = _COPIES[noun.__class__] = _copy_of(noun.__class__)
        return copy(noun, changes)


_Copy: TypeAlias = Callable[[Any, Mapping[str, Any]], Any]
_COPIES: dict[type, _Copy] = {}


def _copy_of(made: type) -> _Copy:
    """Return a function that copies an object of that class with changes.

    The copy of a record is first an object of another class with the same slots, whose attributes can be
    set. The copy gets the class of the record when it is complete. Python sets attributes of this other
    class several times as fast as with `object.__setattr__`.
    """
    if not _is_plain_record(made):
        return lambda noun, changes: dataclasses.replace(noun, **changes)
    slots = vars(made)["__slots__"]
    scope: dict[str, Any] = {
        "_new": object.__new__,
        "_Open": type("_Open", (), {"__slots__": slots}),
        "_made": made,
    }
    lines = ["def copy(noun, changes):", "made = _new(_Open)"]
    lines += [f"made.{name} = noun.{name}" for name in slots]
    lines += ["for name, value in changes.items(): setattr(made, name, value)"]
    exec("\n ".join([*lines, "made.__class__ = _made", "return made"]), scope)
    copy: _Copy = scope["copy"]
    return copy


def _is_plain_record(made: type) -> bool:
    """Return whether `__init__` of the class only sets the slots of the class, one for each argument."""
    fields = dataclasses.fields(made)
    return (
        vars(made).get("__slots__") == tuple(field.name for field in fields)
        and made.__bases__ == (object,)
        and all(field.init for field in fields)
        and not hasattr(made, "__post_init__")
    )
