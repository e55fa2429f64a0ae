"""What all routes share: the grid they ask, names in paths, and how they answer."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from starlette.responses import Response

from gridmill.api.known import refuse_unknown
from gridmill.codec import encode
from gridmill.errors import InputError
from gridmill.model.noun import dataclass
from gridmill.ports.grid import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The body of every error: `code` is stable, `message` says what, `place` where, `hint` what to do."""

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
Long = Annotated[str, Path(min_length=1, max_length=500)]


def make_router(*tags: str) -> APIRouter:
    """Routes under /v1 that refuse unknown fields and answer every error with the same body."""
    return APIRouter(
        prefix="/v1",
        tags=list(tags),
        dependencies=[Depends(refuse_unknown)],
        responses={"default": {"model": Failure, "description": "An error"}},
    )


def reply(noun: object) -> Response:
    """A noun as the codec writes it."""
    return Response(encode(noun), media_type="application/json")


def check_name(given: str, name: str) -> None:
    """Raise InputError unless the noun in the body is the one that the path names."""
    if given != name:
        raise InputError(f"the body's name is {given!r}, the path's {name!r}", place="body.name")


def done() -> Response:
    """Nothing to say."""
    return Response(status_code=204)
