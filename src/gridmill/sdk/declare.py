"""Base of the classes that create records from the fields of pipeline files and validate them when called."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from inspect import Parameter, Signature
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

T = TypeVar("T")

Duration: TypeAlias = str | float | timedelta
"""`"5m"`, or seconds."""
Size: TypeAlias = str | int
"""`"2GiB"`, or bytes."""
Count: TypeAlias = str | int
"""`"1M"`, or a number."""
Text: TypeAlias = str | int | float | bool | PathLike[str]
"""Text, or a value that is written as text."""
Given: TypeAlias = Mapping[str, Any]
"""A record as a mapping, as in a file."""
Several: TypeAlias = T | Sequence[T]
"""One, or several."""
ByName: TypeAlias = T | Sequence[T] | Mapping[str, T | Given]
"""Named records: one, several, or a mapping by their names."""


class Declaring(type):
    """The class of a class whose call gives the noun that is its base, with the fields of a pipeline file."""

    if not TYPE_CHECKING:  # type checkers see __init__ of each class

        def __call__(cls, *given: object, **named: object) -> object:
            """The noun. Raises PipelineError, with the messages of a pipeline file."""
            from gridmill.declarations.construct import construct  # and with it YAML and Pydantic

            return construct(cls.__base__, given, named)

        @property
        def __signature__(cls) -> Signature:
            return Signature(_parameters(cls.__base__))

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, cls.__base__)


def _parameters(noun: type) -> list[Parameter]:
    from gridmill.declarations.schema import parts  # and with it Pydantic

    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=Parameter.empty if part.required else part.default)
        for name, part in parts(noun).items()
    ]
