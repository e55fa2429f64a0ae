"""The routes of backfills."""

from dataclasses import replace
from typing import Annotated

from fastapi import Body
from starlette.responses import Response

from gridmill.api.replies import Name, TheGrid, make_router, reply
from gridmill.model.backfill import Backfill, BackfillView, Chunk

router = make_router("backfills")


@router.get("/backfills", response_model=tuple[BackfillView, ...])
def list_backfills(grid: TheGrid) -> Response:
    """Backfills of pipelines, by name."""
    return reply(grid.backfills())


@router.get("/backfills/{name}", response_model=BackfillView)
def show_backfill(grid: TheGrid, name: Name) -> Response:
    """One backfill, with its chunks."""
    return reply(grid.backfill(name))


@router.post("/backfills", response_model=BackfillView)
def start_backfill(grid: TheGrid, backfill: Backfill, chunks: tuple[Chunk, ...] = ()) -> Response:
    """Start a backfill, or the same one again: what is done stays, the rest is run."""
    return reply(grid.start_backfill(backfill, chunks))


@router.post("/pipelines/{name}/backfill", response_model=BackfillView)
def backfill_pipeline(
    grid: TheGrid, name: Name, backfill: Backfill, values: Annotated[dict[str, str] | None, Body()] = None
) -> Response:
    """Run a kept pipeline over a range, chunk by chunk: each has its bounds as the parameters `from` and
    `to`; `values` are for the others.
    """
    return reply(grid.backfill_pipeline(replace(backfill, name=name), values or {}))


@router.post("/backfills/{name}/stop", response_model=BackfillView)
def stop_backfill(grid: TheGrid, name: Name) -> Response:
    """Start no further chunk of it until it is started again."""
    return reply(grid.stop_backfill(name))
