"""The REST routes, which are generated from the table of use cases with the types of the Grid's methods.

A route reads the arguments that its row of the table defines, calls the Grid, and encodes the answer with
the codec. This module also lists the use cases whose routes differ: the answer is wrapped in an object, or
the name in the body is replaced by the name in the path.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from inspect import Parameter, Signature
from types import NoneType
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Body, Path, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.responses import Response

from gridmill.api.replies import Name, TheGrid, check_name, done, make_router, page, reply
from gridmill.domain.backfill import Backfill
from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError
from gridmill.ports.grid import Grid
from gridmill.ports.usecase import ArgumentLimits, Hint, ResponseForm, UseCase
from gridmill.ports.usecases import USE_CASES

LONG_POLLS = 256
"""The largest number of long polls that are served at the same time. Each long poll has its own thread, so
that long polls never block other calls."""
SLICE_SECONDS = 1.0
"""The interval in seconds at which a long poll checks whether its client is still connected and whether the
server is stopping."""

Endpoint = Callable[..., Any]
"""The type of the function that handles a route. The web framework calls this function with the values that
its signature declares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundlePresence:
    """The answer to the question whether a bundle exists."""

    present: bool


def make_routes() -> APIRouter:
    """Makes the routes of all use cases, and the routes of paths that were renamed."""
    router = make_router()
    for row in USE_CASES.values():
        _add(router, row)
    for path, moved in {"/projects/export": _former_export, "/projects/import": _former_import}.items():
        router.add_api_route(path, moved, methods=["POST"], include_in_schema=False)
    return router


def _add(router: APIRouter, row: UseCase) -> None:
    router.add_api_route(
        row.route,
        _BY_HAND.get(row.name) or _endpoint(row),
        methods=[row.method],
        name=row.operation,
        description=row.help,
        tags=[row.tag],
        response_model=_WRAPPER.get(row.name, None if row.gives in _CLASSES else row.gives),
        response_class=_CLASSES.get(row.gives, JSONResponse),
        status_code=204 if row.form is ResponseForm.NOTHING else None,
    )


def _endpoint(row: UseCase) -> Endpoint:
    """Returns the function that handles a row of the table. The web framework reads requests according to
    the signature of this function."""
    endpoint = partial(_stream if row.form is ResponseForm.STREAM else _answer, row)
    given = (_parameter("request", Request), _parameter("grid", TheGrid))
    vars(endpoint)["__signature__"] = Signature([*given, *_parameters(row)])
    return endpoint


def _parameters(row: UseCase) -> Iterator[Parameter]:
    """Yields the parameters of a request, by their names in the request."""
    for place in row.places:
        yield _parameter(place.sent, Annotated[str, Path(**_words(place.limits))])
    for name, sent in row.queries.items():
        told = _DESCRIPTIONS.get((row.form, name))
        query = Query(description=told, **_words(row.limits.get(name, ArgumentLimits())))
        yield _parameter(sent, Annotated[row.takes[name], query], row.signature.parameters[name].default)
    for name in row.body:
        hint = row.takes[name]
        body = Body(media_type="application/octet-stream") if hint is bytes else Body()
        yield _parameter(name, Annotated[hint, body], row.signature.parameters[name].default)


def _parameter(name: str, hint: Hint, default: object = Parameter.empty) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=hint, default=default)


def _words(limits: ArgumentLimits) -> dict[str, Any]:
    return {name: value for name, value in asdict(limits).items() if value is not None}


def _answer(row: UseCase, request: Request, grid: Grid, **sent: Any) -> Response:  # noqa: ANN401  as the row has it
    """Calls the use case and returns its result as a response."""
    answer = getattr(grid, row.name)(**_arguments(row, sent))
    if row.gives is NoneType:
        return done()
    if row.gives is str:
        return page(answer)
    return reply(_WRAPPER[row.name](present=answer) if row.name in _WRAPPER else answer)


def _arguments(row: UseCase, sent: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the arguments of the use case from a request. Raises InputError if the path and the body have
    different names."""
    result = {name: sent[wire] for name, wire in row.queries.items()} | {
        name: sent[name] for name in row.body
    }
    for place in row.places:
        if place.field:
            check_name(getattr(result[place.argument], place.field), sent[place.sent], field=place.field)
        else:
            result[place.argument] = sent[place.sent]
    return result


async def _stream(row: UseCase, request: Request, grid: Grid, **sent: Any) -> Response:  # noqa: ANN401  as the row has it
    """Calls the use case repeatedly until it has items, or until the waiting time is over."""
    arguments = dict(_arguments(row, sent))
    until = time.monotonic() + arguments["wait_seconds"]
    while True:
        left = until - time.monotonic()
        wait = {"wait_seconds": max(0.0, min(left, SLICE_SECONDS))}
        call = partial(getattr(grid, row.name), **arguments | wait)
        items = await to_thread.run_sync(call, limiter=_limiter(request))
        if items or left <= SLICE_SECONDS or await _over(request):
            return reply(items)


def _limiter(request: Request) -> CapacityLimiter:
    state = request.app.state
    if not hasattr(state, "long_polls"):
        state.long_polls = CapacityLimiter(LONG_POLLS)
    limiter: CapacityLimiter = state.long_polls
    return limiter


async def _over(request: Request) -> bool:
    stopping: Any = request.scope.get("gridmill.stopping")
    return (stopping is not None and stopping()) or await request.is_disconnected()


def _backfill_pipeline(
    grid: TheGrid, name: Name, backfill: Backfill, values: Annotated[dict[str, str] | None, Body()] = None
) -> Response:
    """Take the pipeline's name from the path, and ignore the name in the body."""
    return reply(grid.backfill_pipeline(replace(backfill, name=name), values or {}))


def _former_export(path: str = "", pipeline: Annotated[tuple[str, ...], Query()] = ()) -> Response:
    raise InputError("/v1/projects/export is now /v1/backup", hint="POST /v1/backup?pipeline=NAME&path=FILE")


def _former_import(path: str = "") -> Response:
    raise InputError("/v1/projects/import is now /v1/restore", hint="POST /v1/restore?path=FILE")


_DESCRIPTIONS = {
    (
        ResponseForm.LIST,
        "limit",
    ): "The maximum number of items of a page. A page also has at most 1 MiB, unless one item is larger.",
    (
        ResponseForm.LIST,
        "cursor",
    ): "`next_cursor` of the previous page, with the same other arguments. Default: the first page.",
    (
        ResponseForm.STREAM,
        "limit",
    ): "The maximum number of items of an answer. An answer has at most 1 MiB, unless one item is larger.",
    (
        ResponseForm.STREAM,
        "after",
    ): "The `id` of your last item. Default: from the first item.",
    (ResponseForm.STREAM, "wait_seconds"): "Seconds to wait if there is no item yet.",
}
"""The descriptions of the arguments that all lists or all streams have."""
_BY_HAND: Mapping[str, Endpoint] = {"backfill_pipeline": _backfill_pipeline}
_WRAPPER = {"has_bundle": BundlePresence}
_CLASSES: Mapping[Hint, type[Response]] = {NoneType: Response, str: HTMLResponse}
"""The response classes for answers that are not JSON."""
