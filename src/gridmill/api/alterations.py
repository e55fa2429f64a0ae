"""The routes of sinks: altering them, and how they stand."""

from starlette.responses import Response

from gridmill.api.replies import Long, TheGrid, make_router, reply
from gridmill.model.alteration import Alterations, Change
from gridmill.model.task import LoadTask

router = make_router("sinks")


@router.get("/alterations", response_model=tuple[Alterations, ...])
def list_alterations(grid: TheGrid, name: str | None = None) -> Response:
    """What was altered of one sink (`pipeline/job`) or of all."""
    return reply(grid.alterations(name=name))


@router.post("/alterations/{name:path}", response_model=Alterations)
def alter_sink(grid: TheGrid, name: Long, change: Change) -> Response:
    """Add or remove a source, constraint, metric or outage window."""
    return reply(grid.alter_sink(name, change))


@router.get("/tasks", response_model=tuple[LoadTask, ...])
def list_load_tasks(grid: TheGrid, name: str | None = None) -> Response:
    """The sources of one sink (`pipeline/job`) or of all: last load, rows, rejects, position, next look."""
    return reply(grid.load_tasks(name=name))
