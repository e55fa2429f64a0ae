"""This module defines what a use case consists of: a method of `Grid`, its HTTP request, and the place of
each argument in the request."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum
from functools import cache
from inspect import Signature, cleandoc, signature
from types import NoneType
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

from gridmill.domain.frozen import dataclass
from gridmill.ports.grid import Grid
from gridmill.ports.pages import Page

Hint: TypeAlias = Any  # Any, because `typing` has no type for type expressions


class Role(StrEnum):
    """The role that a caller needs to call a use case. The role has no effect yet, because every caller that
    connects may call every use case."""

    VIEWER = "viewer"
    """A viewer only reads."""
    OPERATOR = "operator"
    """An operator runs pipelines, and changes their results."""
    ADMIN = "admin"
    """An administrator changes objects that all users share: sites, projects, the disk and the control
    node."""


class ResponseForm(StrEnum):
    """The form of the answer of a use case."""

    NOTHING = "nothing"
    ONE = "one"
    LIST = "list"
    STREAM = "stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentLimits:
    """The limits of the value of an argument over HTTP, with the names that FastAPI uses for them. A limit
    is None if there is no limit."""

    ge: int | None = None
    gt: int | None = None
    le: int | None = None
    lt: int | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None


_NAME = ArgumentLimits(min_length=1, max_length=200)
_LONG = ArgumentLimits(min_length=1, max_length=500)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathField:
    """A name in the path of an HTTP request. The value of the name is an argument or, if `field` is set, a
    field of the argument. `sent` is the name of the path field in OpenAPI."""

    argument: str
    field: str
    sent: str
    limits: ArgumentLimits

    def value(self, arguments: Mapping[str, Any]) -> str:
        """Return the value that this name of the path has in a call with these arguments."""
        argument: Any = arguments[self.argument]
        value: str = getattr(argument, self.field) if self.field else argument
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class UseCase:
    """A row of the table of use cases. `name` is the name of the method of `Grid`, and `operation` is the
    name of the route in OpenAPI.

    `path` is below /v1. In `path`, `{run_id}` stands for an argument and `{resource.name}` for a field of an
    argument. A value of `{name:path}` may contain slashes. `body` names the arguments that are in the body
    of the request: a single argument is the whole body, and several arguments are the fields of an object.
    All arguments that are neither in the path nor in the body are query parameters. `sent` has the names
    that arguments have in requests, if they differ from the names in Python. `starts_run` is true if the
    answer is a run that is now active. If the caller requests it, the control node stops this run when the
    caller disconnects.
    """

    name: str
    method: str
    path: str
    tag: str
    role: Role
    operation: str
    body: tuple[str, ...] = ()
    sent: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, ArgumentLimits] = field(default_factory=dict)
    starts_run: bool = False

    @property
    def signature(self) -> Signature:
        """The signature of the method of the use case, without `self`."""
        return _signature(self.name)

    @property
    def takes(self) -> Mapping[str, Hint]:
        """The types of the arguments of a use case, by name, in order."""
        return {name: hint for name, hint in _hints(self.name).items() if name != "return"}

    @property
    def gives(self) -> Hint:
        """The type of the answer of a use case. The type is NoneType if the use case has no answer."""
        return _hints(self.name)["return"]

    @property
    def item(self) -> Hint | None:
        """The type of the items if the answer is a list, or None if the answer is not a list."""
        origin: object = get_origin(self.gives)
        return get_args(self.gives)[0] if origin is Page else None

    @property
    def form(self) -> ResponseForm:
        """The form of the answer: one value (which may be a tuple), a page of a list, a stream, or no
        answer."""
        if self.gives is NoneType:
            return ResponseForm.NOTHING
        if self.item is not None:
            return ResponseForm.LIST
        return (
            ResponseForm.STREAM
            if Ellipsis in get_args(self.gives) and "after" in self.takes
            else ResponseForm.ONE
        )

    @property
    def may_repeat(self) -> bool:
        """Whether a caller that received no answer may send the request again. The result is true for
        requests that only read, and for storing a bundle, because a bundle has the hash of its content as
        its name."""
        return self.method == "GET" or self.tag == "bundles"

    @property
    def help(self) -> str:
        """The first line of the docstring of the use case's method."""
        return cleandoc(getattr(Grid, self.name).__doc__).partition("\n")[0]

    @property
    def places(self) -> tuple[PathField, ...]:
        """The names in the path of a use case, in order."""
        return tuple(self._place(match) for match in _PLACE.finditer(self.path))

    def _place(self, found: re.Match[str]) -> PathField:
        sent = self.sent.get(found["whole"], found["field"] or found["argument"])
        limits = self.limits.get(found["whole"], _LONG if found["slashes"] else _NAME)
        return PathField(argument=found["argument"], field=found["field"] or "", sent=sent, limits=limits)

    @property
    def queries(self) -> Mapping[str, str]:
        """The arguments that are query parameters, each with the name that it has in a request."""
        elsewhere = {*self.body, *(place.argument for place in self.places)}
        return {name: self.sent.get(name, name) for name in self.takes if name not in elsewhere}

    def filled(self, values: tuple[str, ...]) -> str:
        """Return the path with its names replaced by `values`, in the order of `places`."""
        left = iter(values)
        return _PLACE.sub(lambda found: next(left), self.path)

    @property
    def route(self) -> str:
        """The path as a pattern of the web framework, such as `/resources/{name}`."""
        return _PLACE.sub(lambda found: f"{{{self._place(found).sent}{found['slashes']}}}", self.path)

    def arguments(self, given: tuple[object, ...], named: Mapping[str, object]) -> Mapping[str, Any]:
        """Return the arguments of a call of the use case, by name. Raises TypeError for arguments that the
        method does not accept."""
        return self.signature.bind(*given, **named).arguments

    def names(self, given: int, named: Iterable[str]) -> tuple[str, ...]:
        """Return the names of all arguments in a call. `given` is the number of positional arguments, and
        the named arguments are passed too. Raises TypeError for arguments that the method does not
        accept."""
        return tuple(self.signature.bind(*range(given), **dict.fromkeys(named)).arguments)


_PLACE = re.compile(r"\{(?P<whole>(?P<argument>\w+)(?:\.(?P<field>\w+))?)(?P<slashes>(?::path)?)\}")


@cache
def _signature(name: str) -> Signature:
    whole = signature(getattr(Grid, name))
    return whole.replace(
        parameters=[parameter for parameter in whole.parameters.values() if parameter.name != "self"]
    )


@cache
def _hints(name: str) -> Mapping[str, Hint]:
    return get_type_hints(getattr(Grid, name))
