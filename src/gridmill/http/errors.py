"""Error responses with one typed body, and a size limit for request bodies."""

import asyncio
import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gridmill.codec import encode
from gridmill.errors import (
    TABLE,
    GridmillError,
    InputError,
    InternalError,
    NotFoundError,
    UnavailableError,
    to_body,
)

PATIENCE_SECONDS = 60.0
"""The timeout in seconds for the next piece of a request."""


_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")


def failure(error: GridmillError, status: int) -> Response:
    """Returns the error as a response. Text that is not valid Unicode (lone surrogates) is replaced."""
    body = {
        key: value.encode(errors="replace").decode() if isinstance(value, str) else value
        for key, value in to_body(error).items()
    }
    return Response(encode(body), status_code=status, media_type="application/json")


async def pass_on(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, *, who: str, log: logging.Logger
) -> None:
    """Calls the application.

    If the application raises an unexpected error, it is logged. If the application had not started a
    response before the error, the client gets a response which reports that `who` failed.
    """
    started = False

    async def watched(message: Message) -> None:
        nonlocal started
        started = True
        await send(message)

    try:
        await app(scope, receive, watched)
    except ClientDisconnect:
        log.info("%s %s was broken off", scope["method"], scope["path"])
    except Exception as error:
        log.exception("%s %s failed", scope["method"], scope["path"])
        if not started and _is_short_of_threads(error):
            short = UnavailableError(
                f"{who} cannot start a thread: its machine has reached the limit of processes and threads",
                hint="Retry in a moment. To count the threads on that machine: ps -eLf | wc -l",
            )
            await failure(short, 503)(scope, receive, send)
        elif not started:
            defect = InternalError(f"{who} failed: {type(error).__name__}")
            await failure(defect, 500)(scope, receive, send)


def _is_short_of_threads(error: Exception) -> bool:
    """Returns whether the error means that no thread could be started.

    If no thread can be started, Python raises a plain RuntimeError, without a class of its own for this
    error.
    """
    return isinstance(error, RuntimeError) and "can't start new thread" in str(error)


def answer_errors(app: FastAPI) -> None:
    """Installs handlers, so that `failure` makes the response for every error of the application."""
    app.add_exception_handler(GridmillError, _explained)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)


async def _explained(_: Request, error: Exception) -> Response:
    assert isinstance(error, GridmillError)
    return failure(error, TABLE[error.code].http_status)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return failure(InputError(first["msg"], place=place, hint=_hint(request)), 422)


def _hint(request: Request) -> str:
    """Returns the hint for an invalid request. A farm has no page /docs, because only Gridmill itself calls
    a farm."""
    if any(getattr(route, "path", "") == "/docs" for route in request.app.routes):
        return "See /docs for the arguments of this call."
    return (
        "The versions of Gridmill at home and at the farm may differ. To compare them, run at home: "
        "gridmill doctor"
    )


def _methods_at(request: Request) -> str:
    """Returns the methods of all routes that have the path of the request, because each route contains only
    its own methods."""
    return ", ".join(
        method
        for method in _METHODS
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL
            for route in request.app.routes
        )
    )


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return failure(NotFoundError(f"there is nothing at {request.url.path}", hint=_hint(request)), 404)
    detail, busy = str(error.detail), error.status_code == 503
    why = (
        UnavailableError(detail, hint="Send the request again.")
        if busy
        else InputError(detail, hint=_hint(request))
    )
    answer = failure(why, error.status_code)
    answer.headers.update(error.headers or {})
    if error.status_code == 405:
        answer.headers["allow"] = _methods_at(request)
    return answer


def declared_bytes(length: str) -> int:
    """Parses the header Content-Length, and returns 0 if the header is missing or invalid."""
    return int(length) if length.isascii() and length.isdigit() else 0


def too_large(limit: int) -> InputError:
    """Returns the error for a body that has more bytes than the limit."""
    return InputError(f"the request is larger than {limit} bytes")


def bounded(receive: Receive, limit: int, patience_seconds: float = PATIENCE_SECONDS) -> Receive:
    """Wraps the function `receive`, so that a body that is larger than declared, and a body that does not
    arrive, are refused. No other layer detects a body that does not arrive. The wrapped function raises
    HTTPException, which FastAPI passes on."""
    read, whole = 0, False

    async def taken() -> Message:
        nonlocal read, whole
        try:
            async with asyncio.timeout(None if whole else patience_seconds):
                message = await receive()
        except TimeoutError as error:
            raise HTTPException(
                503, f"the rest of the request did not arrive within {patience_seconds:g} s"
            ) from error
        read += len(message.get("body", b""))
        whole = not message.get("more_body", False)
        if read > limit:
            raise HTTPException(413, too_large(limit).message)
        return message

    return taken
