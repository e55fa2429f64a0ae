"""The base of the classes that create records from the fields of pipeline files and validate them."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from inspect import Parameter, Signature
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

T = TypeVar("T")

Duration: TypeAlias = str | float | timedelta
"""A duration, such as `"5m"`, or a number of seconds."""
Size: TypeAlias = str | int
"""A size, such as `"2GiB"`, or a number of bytes."""
Count: TypeAlias = str | int
"""A count, such as `"1M"`, or a number."""
Text: TypeAlias = str | int | float | bool | PathLike[str]
"""A text, or a value that is written as text in a pipeline file."""
Given: TypeAlias = Mapping[str, Any]
"""A record as it is written in a pipeline file, as a mapping."""
Several: TypeAlias = T | Sequence[T]
"""A single value, or several values."""
ByName: TypeAlias = T | Sequence[T] | Mapping[str, T | Given]
"""Named records: a single record, several records, or a mapping by name."""


class Declaring(type):
    """The metaclass of the classes that declare records: a call takes the fields of a pipeline file and
    returns the record of the base class."""

    if not TYPE_CHECKING:  # type checkers must see the __init__ of each class instead

        def __call__(cls, *given: object, **named: object) -> object:
            """Return the record with these fields. Raises PipelineError with the same messages as for
            pipeline files."""
            # imported here, because it loads YAML and Pydantic, which most clients do not need
            from gridmill.declarations.construct import construct

            return construct(cls.__base__, given, named)

        @property
        def __signature__(cls) -> Signature:
            return Signature(_parameters(cls.__base__))

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, cls.__base__)


def _parameters(noun: type) -> list[Parameter]:
    # imported here, because it loads Pydantic, which most clients do not need
    from gridmill.declarations.schema import parts

    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=Parameter.empty if part.required else part.default)
        for name, part in parts(noun).items()
    ]
