"""The routes: each is one call of the Grid; nouns travel as the codec writes them."""

import time
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import Body, Path, Query, Request
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from gridmill.api.replies import Name, TheGrid, check_name, done, make_router, reply
from gridmill.model.deployment import Deployment
from gridmill.model.event import Event
from gridmill.model.node import NodeView
from gridmill.model.noun import dataclass
from gridmill.model.pipeline import Pipeline
from gridmill.model.resource import Resource, Sizing
from gridmill.model.run import Run
from gridmill.model.site import Site
from gridmill.model.state import RunState
from gridmill.model.view import ControlView, DryRun, FarmView, RunRemoval, RunView

LONG_POLLS = 256
"""Followers served at once, in threads of their own, so that they never hold up other calls."""
SLICE_SECONDS = 1.0
"""A long poll looks this often whether its client is still there and the server is to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """Whether a bundle is there."""

    present: bool


Hash = Annotated[str, Path(pattern=r"^[0-9a-f]{8,128}$")]
router = make_router()


@router.get("/control", response_model=ControlView, tags=["control"])
def show_control(grid: TheGrid) -> Response:
    """The control node."""
    return reply(grid.control())


@router.post("/control/shutdown", status_code=204, response_class=Response, tags=["control"])
def shutdown(grid: TheGrid, all: bool = False) -> Response:
    """End the control node; `all` stops the runs that it works for first."""
    grid.shutdown(all=all)
    return done()


@router.get("/pipelines", response_model=tuple[Pipeline, ...], tags=["pipelines"])
def list_pipelines(grid: TheGrid) -> Response:
    """Pipelines, by name, as they were applied last, or else as they were run last."""
    return reply(grid.pipelines())


@router.post("/pipelines", response_model=Pipeline, tags=["pipelines"])
def apply_pipeline(grid: TheGrid, pipeline: Pipeline, adopt: bool = False) -> Response:
    """Keep a pipeline without running it; `adopt` moves its name to its folder."""
    return reply(grid.apply(pipeline, adopt=adopt))


@router.get("/pipelines/{name}", response_model=Pipeline, tags=["pipelines"])
def show_pipeline(grid: TheGrid, name: Name) -> Response:
    """One pipeline."""
    return reply(grid.pipeline(name))


@router.delete("/pipelines/{name}", status_code=204, response_class=Response, tags=["pipelines"])
def remove_pipeline(grid: TheGrid, name: Name) -> Response:
    """Forget a pipeline; its runs and artifacts stay."""
    grid.remove_pipeline(name)
    return done()


@router.post("/plans", response_model=DryRun, tags=["runs"])
def plan_run(grid: TheGrid, pipeline: Pipeline) -> Response:
    """What a run would do: sizes and why, order, expected memory and time."""
    return reply(grid.plan_run(pipeline))


@router.post("/runs", response_model=RunView, tags=["runs"])
def start_run(
    grid: TheGrid,
    pipeline: Pipeline,
    force: bool = False,
    only: Annotated[tuple[str, ...], Query()] = (),
    adopt: bool = False,
) -> Response:
    """Start a run; answers at once. `adopt` moves the pipeline's name to its folder."""
    return reply(grid.start_run(pipeline, force=force, only=only, adopt=adopt))


@router.get("/runs", response_model=tuple[Run, ...], tags=["runs"])
def list_runs(
    grid: TheGrid,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 50,
    pipeline: str | None = None,
    state: Annotated[tuple[RunState, ...], Query()] = (),
) -> Response:
    """Runs, newest first; with `state` (repeatable), those in one of these states."""
    return reply(grid.runs(limit=limit, pipeline=pipeline, states=state))


@router.get("/runs/{run_id}", response_model=RunView, tags=["runs"])
def show_run(grid: TheGrid, run_id: Name) -> Response:
    """A run and its jobs: states, progress, and what each waits for."""
    return reply(grid.run(run_id))


@router.delete("/runs/{run_id}", response_model=RunRemoval, tags=["runs"])
def remove_run(grid: TheGrid, run_id: Name, dry_run: bool = False) -> Response:
    """Delete a finished run with its logs, or with `dry_run` show what that is; what it made stays."""
    return reply(grid.remove_run(run_id, dry_run=dry_run))


@router.post("/runs/{run_id}/resume", response_model=RunView, tags=["runs"])
def resume_run(grid: TheGrid, run_id: Name) -> Response:
    """Continue a failed or stopped run."""
    return reply(grid.resume(run_id))


@router.post("/runs/{run_id}/stop", response_model=RunView, tags=["runs"])
def stop_run(grid: TheGrid, run_id: Name, job: str | None = None) -> Response:
    """Stop a run, or one job of it."""
    return reply(grid.stop_run(run_id, job=job))


@router.get("/runs/{run_id}/events", response_model=tuple[Event, ...], tags=["runs"])
async def follow_events(
    request: Request,
    grid: TheGrid,
    run_id: Name,
    job: str | None = None,
    after: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    wait_seconds: Annotated[float, Query(ge=0, le=60)] = 0,
) -> Response:
    """Events with sequence > `after`; waits for one up to `wait_seconds`."""
    until = time.monotonic() + wait_seconds
    while True:
        left = until - time.monotonic()

        def look(wait: float = min(left, SLICE_SECONDS)) -> tuple[Event, ...]:
            return grid.events(run_id, job=job, after=after, limit=limit, wait_seconds=max(0.0, wait))

        events = await to_thread.run_sync(look, limiter=_limiter(request))
        if events or left <= SLICE_SECONDS or await _over(request):
            return reply(events)


def _limiter(request: Request) -> CapacityLimiter:
    state = request.app.state
    if not hasattr(state, "long_polls"):
        state.long_polls = CapacityLimiter(LONG_POLLS)
    limiter: CapacityLimiter = state.long_polls
    return limiter


async def _over(request: Request) -> bool:
    stopping: Any = request.scope.get("gridmill.stopping")
    return (stopping is not None and stopping()) or await request.is_disconnected()


@router.get("/runs/{run_id}/report", response_class=HTMLResponse, tags=["runs"])
def show_report(grid: TheGrid, run_id: Name) -> HTMLResponse:
    """The run's report: one self-contained HTML document."""
    return HTMLResponse(grid.report(run_id))


@router.get("/resources", response_model=tuple[Resource, ...], tags=["resources"])
def list_resources(grid: TheGrid) -> Response:
    """Resources, by name."""
    return reply(grid.resources())


@router.put("/resources/{name}", response_model=tuple[Resource, Sizing], tags=["resources"])
def configure_resource(grid: TheGrid, name: Name, resource: Resource) -> Response:
    """Create or replace a resource; answers with it and the size chosen, with why."""
    check_name(resource.name, name)
    return reply(grid.configure_resource(resource))


@router.delete("/resources/{name}", status_code=204, response_class=Response, tags=["resources"])
def remove_resource(grid: TheGrid, name: Name) -> Response:
    """Remove a resource."""
    grid.remove_resource(name)
    return done()


@router.get("/sites", response_model=tuple[Site, ...], tags=["sites"])
def list_sites(grid: TheGrid) -> Response:
    """Sites and their nodes."""
    return reply(grid.sites())


@router.get("/nodes", response_model=tuple[NodeView, ...], tags=["sites"])
def list_nodes(grid: TheGrid) -> Response:
    """Provider nodes of all sites: claimed, running, and as seen now."""
    return reply(grid.nodes())


@router.get("/farms", response_model=tuple[FarmView, ...], tags=["sites"])
def list_farms(grid: TheGrid) -> Response:
    """Farms, as they were some seconds ago, and how quick the way there is."""
    return reply(grid.farms())


@router.put("/sites/{name}", response_model=Site, tags=["sites"])
def add_site(grid: TheGrid, name: Name, site: Site, replace: bool = False) -> Response:
    """Add a site, or replace its settings with `replace`; answers with it and the nodes seen there."""
    check_name(site.name, name)
    return reply(grid.add_site(site, replace=replace))


@router.delete("/sites/{name}", status_code=204, response_class=Response, tags=["sites"])
def remove_site(grid: TheGrid, name: Name) -> Response:
    """Forget a site where nothing is up."""
    grid.remove_site(name)
    return done()


@router.get("/deployments", response_model=tuple[Deployment, ...], tags=["deployments"])
def list_deployments(grid: TheGrid) -> Response:
    """Deployments that are not gone."""
    return reply(grid.deployments())


@router.delete("/deployments/{name}", status_code=204, response_class=Response, tags=["deployments"])
def release(grid: TheGrid, name: Name) -> Response:
    """Tear an idle deployment down."""
    grid.release(name)
    return done()


@router.get("/bundles/{bundle}", response_model=Presence, tags=["bundles"])
def has_bundle(grid: TheGrid, bundle: Hash) -> Response:
    """Whether the code bundle of that hash is here."""
    return reply(Presence(present=grid.has_bundle(bundle)))


@router.put("/bundles/{bundle}", status_code=204, response_class=Response, tags=["bundles"])
def put_bundle(
    grid: TheGrid, bundle: Hash, data: Annotated[bytes, Body(media_type="application/octet-stream")]
) -> Response:
    """Keep a code bundle (tar.gz)."""
    grid.put_bundle(bundle, data)
    return done()
