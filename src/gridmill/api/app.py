"""The REST API: routes under /v1, an offline docs page, and every error as the same typed body."""

from importlib.resources import files

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment

from gridmill import __version__
from gridmill.api.advising import router as advising
from gridmill.api.alterations import router as alterations
from gridmill.api.backfills import router as backfills
from gridmill.api.guard import Guard
from gridmill.api.routes import router
from gridmill.api.schedules import router as schedules
from gridmill.api.sharing import router as sharing
from gridmill.api.versions import router as versions
from gridmill.http.answers import answer_errors
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
    answer_errors(app)
    app.add_middleware(Guard, token=token)
    return app


def _health() -> dict[str, str]:
    return {"status": "ok"}


def _docs(request: Request) -> HTMLResponse:
    """The API as one page without scripts or anything fetched from elsewhere."""
    source = files("gridmill.api").joinpath("docs.html.j2").read_text()
    template = Environment(autoescape=True).from_string(source)
    return HTMLResponse(template.render(api=request.app.openapi()))
