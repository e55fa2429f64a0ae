"""Checks the arguments of the methods of a client by their annotations before any request is sent.

Without this check of the arguments, Python would split a text into letters if a method takes several texts,
and the error would appear far from the call.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache, wraps
from numbers import Integral, Real
from pathlib import PurePath
from types import NoneType, UnionType
from typing import IO, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from gridmill.domain.naming import did_you_mean
from gridmill.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])
Hint = Any
"""A type expression."""
_WORDS: Mapping[object, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    Mapping: "a dict",
    Callable: "a function",
    tuple: "a list of texts",
    PurePath: "a path",
    IO: "a file",
}
_NUMBERS: Mapping[type, type] = {int: Integral, float: Real}


def checked(function: F) -> F:
    """Wrap a method so that its arguments are checked. The wrapper raises InputError instead of TypeError."""

    @wraps(function)
    def call(*given: object, **named: object) -> object:
        bound = _bind(function, given, named)
        return function(*bound.args, **bound.kwargs)

    return cast(F, call)


def check_methods(cls: type) -> None:
    """Wrap all public methods that a class itself defines, so that their arguments are checked."""
    for name, method in list(vars(cls).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(cls, name, checked(method))


def _bind(
    function: Callable[..., Any], given: tuple[object, ...], named: Mapping[str, object]
) -> inspect.BoundArguments:
    signature, hints = _described(function)
    try:
        bound = signature.bind(*given, **named)
    except TypeError as error:
        raise _unbound(function, signature, named, error) from None
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if name in hints and kind is inspect.Parameter.VAR_POSITIONAL:
            bound.arguments[name] = tuple(_fit(function, name, one, hints[name]) for one in value)
        elif name in hints and kind is not inspect.Parameter.VAR_KEYWORD:
            bound.arguments[name] = _fit(function, name, value, hints[name])
    return bound


@cache
def _described(function: Callable[..., Any]) -> tuple[inspect.Signature, Mapping[str, Hint]]:
    """Return the signature of a method and the types of its arguments. If the types cannot be resolved,
    return none of them."""
    try:
        hints = get_type_hints(function)
    except NameError:  # without a check, because an annotation names a type that only type checkers import
        hints = {}
    return inspect.signature(function), hints


def _unbound(
    function: Callable[..., Any], signature: inspect.Signature, named: Mapping[str, object], error: TypeError
) -> InputError:
    takes = [name for name in signature.parameters if name != "self"]
    unknown = next((name for name in named if name not in takes), None)
    if unknown is None:
        message = str(error).replace(" required", "")
    else:
        message = f"there is no argument `{unknown}`{did_you_mean(unknown, takes)}"
    return InputError(message, place=f"{function.__name__}()", hint=f"It takes {', '.join(takes) or 'none'}.")


def _fit(function: Callable[..., Any], name: str, value: object, hint: Hint) -> object:
    """Return the argument in the form that the method takes: a single text becomes a tuple if several texts
    are allowed. Raises InputError."""
    for one in _alternatives(hint):
        result = _fitted(value, one)
        if result is not _UNFIT:
            return result
    expected = " or ".join(dict.fromkeys(_word(one) for one in _alternatives(hint)))
    raise InputError(f"`{name}` is {expected}, got {_shown(value)}", place=f"{function.__name__}()")


_UNFIT = object()


def _alternatives(hint: Hint) -> Iterator[Hint]:
    origin: Any = get_origin(hint)
    if origin in (Union, UnionType):
        for one in get_args(hint):
            yield from _alternatives(one)
    else:
        yield hint


def _fitted(value: object, hint: Hint) -> object:
    origin: Any = get_origin(hint) or hint
    if origin is tuple:
        return _several(value, get_args(hint))
    if origin is NoneType:
        return value if value is None else _UNFIT
    if origin is Any:
        return value
    if origin is IO:
        return value if hasattr(value, "write") else _UNFIT
    if not isinstance(origin, type):
        return value  # cannot be checked: the type is Any, or exists only for type checkers
    if isinstance(value, bool):
        return value if origin in (bool, object) else _UNFIT
    if origin in _NUMBERS:
        # a NaN would be sent as a missing value, and its argument would have no effect
        is_number = isinstance(value, _NUMBERS[origin]) and not (
            isinstance(value, float) and math.isnan(value)
        )
        return origin(value) if is_number else _UNFIT
    return value if isinstance(value, origin) else _UNFIT


def _several(value: object, args: Sequence[Hint]) -> object:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list | tuple):
        return _UNFIT
    fitted = [_first_fit(one, args[0]) for one in values]
    return _UNFIT if any(one is _UNFIT for one in fitted) else tuple(fitted)


def _first_fit(value: object, hint: Hint) -> object:
    fits = (_fitted(value, one) for one in _alternatives(hint))
    return next((fit for fit in fits if fit is not _UNFIT), _UNFIT)


def _word(hint: Hint) -> str:
    origin: Any = get_origin(hint) or hint
    if origin is NoneType:
        return "None"
    if isinstance(origin, type) and issubclass(origin, Enum):
        return f"one of {', '.join(str(one.value) for one in origin)}"
    if isinstance(origin, type) and issubclass(origin, PurePath):
        return _WORDS[PurePath]
    return _WORDS.get(origin, "") or f"a {getattr(origin, '__name__', origin)}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
