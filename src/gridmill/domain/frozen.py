"""`dataclass` with the standard library's semantics; a class takes a tenth of the time to define.

The standard library generates and compiles the text of up to seven methods for each class. This takes 1 ms,
and there are some 500 classes, most of which a command only mentions. Here a method is generated when it is
first called.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field
from reprlib import recursive_repr
from typing import Any, NoReturn, TypeAlias, TypeVar, dataclass_transform

T = TypeVar("T")
_Method: TypeAlias = Callable[..., Any]
_Fields: TypeAlias = Sequence[Field[Any]]
_Writer: TypeAlias = Callable[[type, _Fields], Iterator[str]]

_FACTORY = object()  # the argument that stands for what a field's default_factory gives


@dataclass_transform(field_specifiers=(dataclasses.field,))
def dataclass(
    *, frozen: bool = False, slots: bool = False, kw_only: bool = False
) -> Callable[[type[T]], type[T]]:
    """What `dataclasses.dataclass` does. CONTRIBUTING.md says which arguments a class takes."""

    def made(cls: type[T]) -> type[T]:
        return _made(cls, frozen=frozen, slots=slots, kw_only=kw_only)

    return made


def _made(cls: type[T], *, frozen: bool, slots: bool, kw_only: bool) -> type[T]:
    own = {name for name, value in vars(cls).items() if (name, value) != ("__hash__", None)}  # of an __eq__
    cls.__doc__ = cls.__doc__ or cls.__name__  # else its signature is made into one
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
    exec("\n ".join(writer(made, fields)), scope)
    method: _Method = scope[name]
    method.__qualname__ = f"{made.__qualname__}.{name}"
    return method


def _init(made: type, fields: _Fields) -> Iterator[str]:
    return _init_with("_set(self, {!r}, {})", made, fields)


def _init_mutable(made: type, fields: _Fields) -> Iterator[str]:
    return _init_with("self.{} = {}", made, fields)


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
