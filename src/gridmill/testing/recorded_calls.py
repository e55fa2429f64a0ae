"""Records the calls that change something, for a Grid in memory, by the rows of the table of use cases."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

from gridmill.ports.usecase import Role, UseCase
from gridmill.ports.usecases import USE_CASES

C = TypeVar("C", bound=type)


def recorded(grid: C) -> C:
    """Append each use case that changes something to `grid.calls` once it has succeeded: `stop_run demo-1`.

    Dry runs are left out. A method is replaced in the class that defines it.
    """
    for row in USE_CASES.values():
        if row.role is not Role.VIEWER:
            home = next(one for one in grid.__mro__ if row.name in vars(one))
            setattr(home, row.name, _recorded(row, vars(home)[row.name]))
    return grid


def _recorded(row: UseCase, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(grid: Any, *given: Any, **named: Any) -> Any:  # noqa: ANN401  as the method has them
        answer = method(grid, *given, **named)
        arguments = row.arguments(given, named)
        if not arguments.get("dry_run"):
            grid.calls.append(" ".join([row.name, *_subjects(row, arguments)]))
        return answer

    return call


def _subjects(row: UseCase, arguments: Mapping[str, Any]) -> list[str]:
    """The names in the path, or else the names of the nouns in the body."""
    in_path = [place.value(arguments) for place in row.places]
    return in_path or [arguments[name].name for name in row.body if hasattr(arguments.get(name), "name")]
