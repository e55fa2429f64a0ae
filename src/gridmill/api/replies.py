"""The common code of the REST routes: access to the grid, names in paths, JSON responses, and unknown
fields.

If a request has a field that the call does not have, the request is refused. Without this check, a misspelt
field would be ignored without a message.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from json import JSONDecodeError
from typing import Annotated, Any, TypeAlias, cast, get_args, get_origin, get_type_hints

from fastapi import APIRouter, Depends, Path, Request
from fastapi.routing import APIRoute
from starlette.responses import HTMLResponse, Response

from gridmill.codec import encode
from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import did_you_mean
from gridmill.errors import InputError
from gridmill.ports.grid import Grid

Hint: TypeAlias = Any  # Any, because `typing` has no type for type expressions
Unknown: TypeAlias = tuple[tuple[str | int, ...], tuple[str, ...]]
"""The path of an unknown field, and the names of the fields that are allowed at this path."""


async def refuse_unknown(request: Request) -> None:
    """Raises InputError if a query parameter or a field of the body does not belong to the call."""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    takes = [parameter.alias for parameter in route.dependant.query_params]
    for name in request.query_params:
        if name not in takes:
            raise _refusal(("query", name), tuple(takes))
    body = _body_hint(route)
    if body is not None:
        for path, names in unknown_fields(await _json(request), body):
            raise _refusal(("body", *path), names)


def _refusal(path: tuple[str | int, ...], names: tuple[str, ...]) -> InputError:
    *_, name = path
    message = f"The fields are {', '.join(names)}." if names else "The call has no fields."
    return InputError(
        f"there is no field {str(name)!r} here{did_you_mean(str(name), names)}",
        place=".".join(map(str, path)),
        hint=f"{message} See /docs.",
    )


async def _json(request: Request) -> object:
    try:
        return await request.json()
    except (JSONDecodeError, UnicodeDecodeError, RecursionError):
        return None  # an invalid body counts as no body, which FastAPI refuses


def _body_hint(route: APIRoute) -> Hint | None:
    """Returns the type of the body, or a mapping of names to types if the body has several arguments.
    Returns None if the body is not JSON."""
    parts = {part.alias: part.field_info.annotation for part in route.dependant.body_params}
    if not parts or bytes in parts.values():
        return None
    return parts if len(parts) > 1 else next(iter(parts.values()))


def unknown_fields(value: object, hint: Hint) -> Iterator[Unknown]:
    """Yields the fields of a JSON value that its type does not have, in the order in which they occur in the
    value."""
    match value:
        case dict():
            yield from _in_object(value, hint)
        case list():
            for number, item in enumerate(value):
                yield from _inside((number,), item, _item(hint))


def _in_object(value: Mapping[str, object], hint: Hint) -> Iterator[Unknown]:
    if isinstance(hint, Mapping):
        yield from _of_fields(value, hint)
    elif is_dataclass(hint):
        yield from _of_fields(value, _fields(cast(type, hint)))
    elif get_origin(hint) is not None and issubclass(_class(hint), Mapping):
        for name, item in value.items():
            yield from _inside((name,), item, get_args(hint)[1])
    else:
        yield from _fewest(value, get_args(hint))


def _of_fields(value: Mapping[str, object], known: Mapping[str, Hint]) -> Iterator[Unknown]:
    for name, item in value.items():
        if name not in known:
            yield (name,), tuple(known)
        else:
            yield from _inside((name,), item, known[name])


def _fewest(value: Mapping[str, object], alternatives: Iterable[Hint]) -> list[Unknown]:
    """Returns the unknown fields for a union type. The result contains the unknown fields of the alternative
    that has most of the value's fields."""
    objects = [one for one in alternatives if is_dataclass(one) or get_args(one)]
    return min((list(_in_object(value, one)) for one in objects), key=len, default=[])


def _inside(path: tuple[str | int, ...], item: object, hint: Hint) -> Iterator[Unknown]:
    for inner, names in unknown_fields(item, hint):
        yield (*path, *inner), names


def _item(hint: Hint) -> Hint:
    """Returns the type of a list's items, which is the first argument of the first type that is not a
    mapping."""
    if get_origin(hint) is not None and _class(hint) is tuple:
        return get_args(hint)[0]
    return next((_item(one) for one in get_args(hint) if get_args(one)), None)


def _class(hint: Hint) -> type:
    origin = get_origin(hint)
    return origin if isinstance(origin, type) else object


@cache
def _fields(noun: type) -> Mapping[str, Hint]:
    hints = get_type_hints(noun)
    return {field.name: hints[field.name] for field in fields(noun)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBody:
    """The body of every error: a stable `code`, the `message`, the `place` of the error, and a `hint` what to
    do."""

    code: str
    message: str
    hint: str
    place: str
    retryable: bool


def _grid(request: Request) -> Grid:
    grid: Grid = request.app.state.grid
    return grid


TheGrid = Annotated[Grid, Depends(_grid)]
Name = Annotated[str, Path(min_length=1, max_length=200)]


def make_router() -> APIRouter:
    """Makes a router for routes under /v1. The routes refuse unknown fields and answer every error with the
    same kind of body."""
    return APIRouter(
        prefix="/v1",
        dependencies=[Depends(refuse_unknown)],
        responses={"default": {"model": ErrorBody, "description": "An error"}},
    )


def reply(noun: object) -> Response:
    """Returns a response with a record in the JSON format of the codec."""
    return Response(encode(noun), media_type="application/json")


_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
"""The content security policy of all pages. The policy allows no scripts and no external resources, so that
job output in a page has no effect."""


def page(html: str) -> HTMLResponse:
    """Returns a page for a browser, with the security policy of all pages."""
    return HTMLResponse(html, headers=_PAGE_HEADERS)


def check_name(given: str, name: str, *, field: str) -> None:
    """Raises InputError if the field of the body and the name in the path differ."""
    if given != name:
        raise InputError(f"{field} is {given!r} in the body, but {name!r} in the path", place=f"body.{field}")


def done() -> Response:
    """An empty answer."""
    return Response(status_code=204)
