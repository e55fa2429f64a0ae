"""The form of a use case: a method of `Grid`, its HTTP request, and the place of each argument in the
request."""

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

Hint: TypeAlias = Any  # a type expression, for which `typing` has no type


class Role(StrEnum):
    """The role that a caller needs. It has no effect yet: every caller that connects may call everything."""

    VIEWER = "viewer"  # only reads
    OPERATOR = "operator"  # runs pipelines, and changes their results
    ADMIN = "admin"  # changes objects that all users share: sites, projects, the disk, the control node


class ResponseForm(StrEnum):
    """The form of an answer."""

    NOTHING = "nothing"
    ONE = "one"
    LIST = "list"
    STREAM = "stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentLimits:
    """The limits of an argument's value over HTTP, with FastAPI's names. None: no limit."""

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
    """A name in a path. Its value is an argument or, if `field` is set, a field of the argument. `sent` is
    its name in OpenAPI."""

    argument: str
    field: str
    sent: str
    limits: ArgumentLimits

    def value(self, arguments: Mapping[str, Any]) -> str:
        """The value in the path of a call with these arguments."""
        argument: Any = arguments[self.argument]
        value: str = getattr(argument, self.field) if self.field else argument
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class UseCase:
    """A row of the table. `name` is the method of `Grid`, `operation` the name of the route in OpenAPI.

    `path` is below /v1. In `path`, `{run_id}` is an argument and `{resource.name}` a field of an argument. A
    value of `{name:path}` may contain slashes. `body` names the arguments in the body of the request: a
    single argument is the whole body, and several arguments are the fields of an object. All other arguments
    are query parameters. `sent` has the names in requests that differ from the names of arguments.
    `starts_run`: the answer is a run that is now active. If the caller asks for it, the control node stops
    this run when the caller disconnects.
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
        """The signature of the method, without `self`."""
        return _signature(self.name)

    @property
    def takes(self) -> Mapping[str, Hint]:
        """The types of the arguments, by name, in order."""
        return {name: hint for name, hint in _hints(self.name).items() if name != "return"}

    @property
    def gives(self) -> Hint:
        """The type of the answer; NoneType if there is no answer."""
        return _hints(self.name)["return"]

    @property
    def item(self) -> Hint | None:
        """The type of the items of a list; None if the answer is not a list."""
        origin: object = get_origin(self.gives)
        return get_args(self.gives)[0] if origin is Page else None

    @property
    def form(self) -> ResponseForm:
        """The form of the answer: one value (which may be a tuple), a page of a list, a stream or nothing."""
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
        """Whether a caller that got no answer may send the request again. This is true for requests that only
        read, and for bundles, because the name of a bundle is the hash of its content."""
        return self.method == "GET" or self.tag == "bundles"

    @property
    def help(self) -> str:
        """The first line of the method's docstring."""
        return cleandoc(getattr(Grid, self.name).__doc__).partition("\n")[0]

    @property
    def places(self) -> tuple[PathField, ...]:
        """The names in the path, in order."""
        return tuple(self._place(match) for match in _PLACE.finditer(self.path))

    def _place(self, found: re.Match[str]) -> PathField:
        sent = self.sent.get(found["whole"], found["field"] or found["argument"])
        limits = self.limits.get(found["whole"], _LONG if found["slashes"] else _NAME)
        return PathField(argument=found["argument"], field=found["field"] or "", sent=sent, limits=limits)

    @property
    def queries(self) -> Mapping[str, str]:
        """The arguments that are query parameters, each with its name in a request."""
        elsewhere = {*self.body, *(place.argument for place in self.places)}
        return {name: self.sent.get(name, name) for name in self.takes if name not in elsewhere}

    def filled(self, values: tuple[str, ...]) -> str:
        """The path in which `values`, in the order of `places`, replace the names."""
        left = iter(values)
        return _PLACE.sub(lambda found: next(left), self.path)

    @property
    def route(self) -> str:
        """The path as a pattern of the web framework: `/resources/{name}`."""
        return _PLACE.sub(lambda found: f"{{{self._place(found).sent}{found['slashes']}}}", self.path)

    def arguments(self, given: tuple[object, ...], named: Mapping[str, object]) -> Mapping[str, Any]:
        """The arguments of a call, by name. Raises TypeError for arguments that the method does not
        accept."""
        return self.signature.bind(*given, **named).arguments

    def names(self, given: int, named: Iterable[str]) -> tuple[str, ...]:
        """The names of the arguments of a call with `given` positional arguments and the named ones. Raises
        TypeError for arguments that the method does not accept."""
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
