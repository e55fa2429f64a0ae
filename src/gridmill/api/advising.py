"""The routes of advice on workers."""

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from gridmill.api.replies import Name, TheGrid, make_router, reply
from gridmill.model.advice import Advice
from gridmill.model.view import RunView

router = make_router()


@router.get("/advice/{name:path}", response_model=Advice, tags=["advice"])
def advise(grid: TheGrid, name: Name) -> Response:
    """Advice on the workers of `pipeline/job`, from what its attempts measured."""
    return reply(grid.advise(name))


@router.post("/probes/{name:path}", response_model=RunView, tags=["advice"])
def probe(
    grid: TheGrid,
    name: Name,
    workers: Annotated[int, Query(ge=1, le=1024)],
    share: Annotated[float, Query(gt=0, le=1)] = 0.1,
) -> Response:
    """Try that job with so many workers on a share of its data; answers at once, keeps no artifact."""
    return reply(grid.probe(name, workers=workers, share=share))
