"""`dataclass` with the standard library's semantics; a frozen class takes a tenth of the time to define.

The standard library generates and compiles the text of seven methods for each class. This takes 1 ms, and
there are some 250 classes, most of which a command only mentions. Here a method is generated when it is first
called.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field
from typing import Any, NoReturn, TypeAlias, TypeVar, dataclass_transform

T = TypeVar("T")
_Method: TypeAlias = Callable[..., Any]
_Fields: TypeAlias = Sequence[Field[Any]]

_FACTORY = object()  # the argument that stands for what a field's default_factory gives


@dataclass_transform(field_specifiers=(dataclasses.field,))
def dataclass(
    *, frozen: bool = False, slots: bool = False, kw_only: bool = False
) -> Callable[[type[T]], type[T]]:
    """What `dataclasses.dataclass` does."""
    if frozen and slots and kw_only:
        return _noun
    return dataclasses.dataclass(frozen=frozen, slots=slots, kw_only=kw_only)


def _noun(cls: type[T]) -> type[T]:
    own = set(vars(cls))
    cls.__doc__ = cls.__doc__ or cls.__name__  # else its signature is made into one
    made = dataclasses.dataclass(slots=True, kw_only=True, init=False, repr=False, eq=False)(cls)
    for name, method in (_ALIKE | {name: _later(made, name) for name in _WRITTEN}).items():
        if name not in own:
            setattr(made, name, method)
    return made


def _later(made: type, name: str) -> _Method:
    def method(*given: object, **named: object) -> object:
        setattr(made, name, _write(made, name))
        return getattr(made, name)(*given, **named)

    return method


def _write(made: type, name: str) -> _Method:
    fields = dataclasses.fields(made)
    scope: dict[str, Any] = {"_set": object.__setattr__, "_FACTORY": _FACTORY}
    for field in fields:
        scope |= {f"default_{field.name}": field.default, f"factory_{field.name}": field.default_factory}
    exec("\n ".join(_WRITTEN[name](made, fields)), scope)
    method: _Method = scope[name]
    method.__qualname__ = f"{made.__qualname__}.{name}"
    return method


def _init(made: type, fields: _Fields) -> Iterator[str]:
    arguments = [f"{field.name}{_default(field)}" for field in fields]
    yield f"def __init__({', '.join(['self', *['*'][: len(arguments)], *arguments])}):"
    for field in fields:
        value = field.name
        if field.default_factory is not MISSING:
            value = f"factory_{value}() if {value} is _FACTORY else {value}"
        yield f"_set(self, {field.name!r}, {value})"
    yield "self.__post_init__()" if hasattr(made, "__post_init__") else "pass"


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


def _text(noun: Any) -> str:  # noqa: ANN401  a dataclass
    named = ", ".join(f"{f.name}={getattr(noun, f.name)!r}" for f in dataclasses.fields(noun) if f.repr)
    return f"{type(noun).__qualname__}({named})"


def _state(noun: Any) -> list[object]:  # noqa: ANN401  a dataclass
    return [getattr(noun, field.name) for field in dataclasses.fields(noun)]


def _restore(noun: Any, state: Sequence[object]) -> None:  # noqa: ANN401  a dataclass
    for field, value in zip(dataclasses.fields(noun), state, strict=True):
        object.__setattr__(noun, field.name, value)


_WRITTEN = {"__init__": _init, "__eq__": _equal, "__hash__": _hash}
_ALIKE: dict[str, _Method] = {
    "__repr__": _text,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
    "__getstate__": _state,
    "__setstate__": _restore,
}
