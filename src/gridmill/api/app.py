"""The REST API: routes under /v1, an offline docs page, and every error as the same typed body."""

from importlib.resources import files

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from jinja2 import Environment
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gridmill import __version__
from gridmill.api.advising import router as advising
from gridmill.api.alterations import router as alterations
from gridmill.api.backfills import router as backfills
from gridmill.api.guard import Guard, failure
from gridmill.api.routes import router
from gridmill.api.schedules import router as schedules
from gridmill.api.sharing import router as sharing
from gridmill.api.versions import router as versions
from gridmill.errors import TABLE, GridmillError, InputError, NotFoundError
from gridmill.ports.grid import Grid


def make_app(grid: Grid, *, token: str | None = None) -> FastAPI:
    """The application. With `token`, every /v1 request needs it as a bearer and a loopback Host.

    Without, whoever can connect may do everything: for a Unix socket that only its owner can open.
    """
    app = FastAPI(title="Gridmill", version=__version__, docs_url=None, redoc_url=None)
    app.state.grid = grid
    app.include_router(router)
    app.include_router(versions)
    app.include_router(schedules)
    app.include_router(backfills)
    app.include_router(alterations)
    app.include_router(advising)
    app.include_router(sharing)
    app.add_api_route("/healthz", _health, methods=["GET"], tags=["control"], summary="Whether it answers")
    app.add_api_route("/docs", _docs, methods=["GET"], include_in_schema=False)
    app.add_exception_handler(GridmillError, _explained)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_middleware(Guard, token=token)
    return app


def _health() -> dict[str, str]:
    return {"status": "ok"}


def _docs(request: Request) -> HTMLResponse:
    """The API as one page without scripts or anything fetched from elsewhere."""
    source = files("gridmill.api").joinpath("docs.html.j2").read_text()
    template = Environment(autoescape=True).from_string(source)
    return HTMLResponse(template.render(api=request.app.openapi()))


async def _explained(_: Request, error: Exception) -> Response:
    assert isinstance(error, GridmillError)
    return failure(error, TABLE[error.code].http_status)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return failure(InputError(first["msg"], place=place, hint="See /docs for what this call takes."), 422)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return failure(NotFoundError(f"there is nothing at {request.url.path}", hint="See /docs."), 404)
    answer = failure(InputError(str(error.detail), hint="See /docs."), error.status_code)
    answer.headers.update(error.headers or {})
    return answer
