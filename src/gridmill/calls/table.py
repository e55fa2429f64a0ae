"""The use cases that can be called, with the types of what each takes and gives: read from `ports.grid`."""

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeAlias, get_type_hints

from gridmill.errors import InputError
from gridmill.model.noun import dataclass
from gridmill.ports.grid import Grid

Hint: TypeAlias = Any  # a type expression; typing has no type for them


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A use case: its parameters in order, with their types, and the type of its result."""

    name: str
    takes: Mapping[str, Hint]
    gives: Hint

    def named(self, given: tuple[object, ...], named: Mapping[str, object]) -> dict[str, object]:
        """All arguments by name."""
        return {**dict(zip(self.takes, given, strict=False)), **named}


@cache
def case(name: str) -> Case:
    """The use case of that name. Raises InputError."""
    method = None if name.startswith("_") else getattr(Grid, name, None)
    if not callable(method):
        raise InputError(f"there is no use case {name!r}")
    hints = get_type_hints(method)
    gives = hints.pop("return")
    return Case(name=name, takes=hints, gives=gives)
