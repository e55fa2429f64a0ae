"""The routes of schedules."""

from starlette.responses import Response

from gridmill.api.replies import Name, TheGrid, make_router, reply
from gridmill.model.view import ScheduleView

router = make_router()


@router.get("/schedules", response_model=tuple[ScheduleView, ...], tags=["schedules"])
def list_schedules(grid: TheGrid) -> Response:
    """Schedules of kept pipelines, by name."""
    return reply(grid.schedules())


@router.get("/schedules/{name:path}", response_model=ScheduleView, tags=["schedules"])
def show_schedule(grid: TheGrid, name: Name) -> Response:
    """One schedule, with its next due times."""
    return reply(grid.schedule(name))


@router.post("/schedules/{name:path}/stop", response_model=ScheduleView, tags=["schedules"])
def pause_schedule(grid: TheGrid, name: Name) -> Response:
    """Start no further run of it until it is started again."""
    return reply(grid.pause_schedule(name))


@router.post("/schedules/{name:path}/start", response_model=ScheduleView, tags=["schedules"])
def start_schedule(grid: TheGrid, name: Name) -> Response:
    """Let a paused schedule go on, from now."""
    return reply(grid.start_schedule(name))
