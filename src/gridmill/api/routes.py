"""The routes: each is one call of the Grid; nouns travel as the codec writes them.

The routes of versions and aliases.

The routes of schedules.

The routes of backfills.

The routes of projects that share a grid.

The routes of advice on workers.

The routes of sinks: altering them, and how they stand.
"""

import time
from dataclasses import replace
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import Body, Path, Query, Request
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from gridmill.api.replies import Long, Name, TheGrid, check_name, done, make_router, reply
from gridmill.domain.advice import Advice
from gridmill.domain.archive import Moved
from gridmill.domain.artifact import Alias, Artifact, ArtifactKind
from gridmill.domain.backfill import Backfill, BackfillView, Chunk
from gridmill.domain.comparison import ModelComparison, Preview, VersionDiff
from gridmill.domain.deployment import Deployment
from gridmill.domain.frozen import dataclass
from gridmill.domain.manifest import Verified
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import Event
from gridmill.domain.project import Project, ProjectView
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.run import Run
from gridmill.domain.sink_overrides import Alterations, Change
from gridmill.domain.sink_status import LoadTask
from gridmill.domain.site import NodeView, Site
from gridmill.domain.states import RunState
from gridmill.domain.usage import HISTORY_DAYS, Usage, Waste
from gridmill.domain.views import (
    ControlView,
    DryRun,
    FarmView,
    Removal,
    RunRemoval,
    RunView,
    ScheduleView,
    VersionView,
)
from gridmill.errors import InputError

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


Former = Annotated[tuple[str, ...], Query()]


@router.get("/artifacts", response_model=tuple[Artifact, ...], tags=["artifacts"])
def list_artifacts(grid: TheGrid, kind: ArtifactKind | None = None, name: str | None = None) -> Response:
    """Versions of sinks, datasets, models, predictions and files, newest first."""
    return reply(grid.artifacts(kind=kind, name=name))


@router.get("/artifacts/{artifact_id:path}", response_model=Artifact, tags=["artifacts"])
def show_artifact(grid: TheGrid, artifact_id: Long) -> Response:
    """A version (`pipeline/job@N` or `@ALIAS`) or the newest (`pipeline/job`)."""
    return reply(grid.artifact(artifact_id))


@router.delete("/artifacts/{artifact_id:path}", response_model=Removal, tags=["artifacts"])
def remove_artifact(grid: TheGrid, artifact_id: Long, force: bool = False, dry_run: bool = False) -> Response:
    """Delete the content of a version, or of all (`pipeline/job`)."""
    return reply(grid.remove_artifact(artifact_id, force=force, dry_run=dry_run))


@router.get("/versions/{artifact_id:path}", response_model=VersionView, tags=["artifacts"])
def show_version(grid: TheGrid, artifact_id: Long) -> Response:
    """A version with its names, what it was made from, and what was made from it."""
    return reply(grid.version(artifact_id))


@router.get("/previews/{artifact_id:path}", response_model=Preview, tags=["artifacts"])
def preview(
    grid: TheGrid, artifact_id: Long, rows: Annotated[int, Query(ge=1, le=10_000)] = 10, rejects: bool = False
) -> Response:
    """The first rows of a version (or of a sink's rejects), or its files."""
    return reply(grid.preview(artifact_id, rows=rows, rejects=rejects))


@router.get("/diffs", response_model=VersionDiff, tags=["artifacts"])
def diff(grid: TheGrid, before: str, after: str, key: Annotated[tuple[str, ...], Query()] = ()) -> Response:
    """How two versions differ; rows by the columns of `key`."""
    return reply(grid.diff(before, after, key=key))


@router.get("/comparisons/{name:path}", response_model=ModelComparison, tags=["artifacts"])
def compare(grid: TheGrid, name: Long, version: Annotated[tuple[str, ...], Query()] = ()) -> Response:
    """Versions of a model (numbers, aliases, other models) side by side; the last five when none is named."""
    return reply(grid.compare(name, version))


@router.post("/backup", response_model=Moved, tags=["projects"])
def backup(grid: TheGrid, path: str, pipeline: Annotated[tuple[str, ...], Query(min_length=1)]) -> Response:
    """Write pipelines with all they made into one archive on the control node's machine."""
    return reply(grid.backup(pipeline, path))


@router.post("/restore", response_model=Moved, tags=["projects"])
def restore(grid: TheGrid, path: str) -> Response:
    """Verify an archive on the control node's machine, then make all of it visible."""
    return reply(grid.restore(path))


@router.post("/projects/export", include_in_schema=False)
def former_export(grid: TheGrid, path: str = "", pipeline: Former = ()) -> Response:
    """Refuse the former name of `backup`."""
    raise InputError("/v1/projects/export is now /v1/backup", hint="POST /v1/backup?pipeline=NAME&path=FILE")


@router.post("/projects/import", include_in_schema=False)
def former_import(grid: TheGrid, path: str = "") -> Response:
    """Refuse the former name of `restore`."""
    raise InputError("/v1/projects/import is now /v1/restore", hint="POST /v1/restore?path=FILE")


@router.get("/usage", response_model=tuple[Usage, ...], tags=["housekeeping"])
def usage(grid: TheGrid) -> Response:
    """What takes space on the control node's disk."""
    return reply(grid.usage())


@router.post("/clean", response_model=tuple[Waste, ...], tags=["housekeeping"])
def clean(
    grid: TheGrid, days: Annotated[float, Query(gt=0)] = HISTORY_DAYS, dry_run: bool = False
) -> Response:
    """Take away what nobody needs, and history older than `days`; what that is."""
    return reply(grid.clean(days=days, dry_run=dry_run))


@router.post("/verify", response_model=tuple[Verified, ...], tags=["artifacts"])
def verify(grid: TheGrid, reference: str = "") -> Response:
    """Read all content of a version (`pipeline/job@N`), of all of a job or a pipeline, or of all there are,
    and compare it with what it was when it was made."""
    return reply(grid.verify(reference))


@router.get("/aliases", response_model=tuple[Alias, ...], tags=["aliases"])
def list_aliases(grid: TheGrid, name: str | None = None) -> Response:
    """Names that were given to versions."""
    return reply(grid.aliases(name=name))


@router.put("/aliases/{alias_id:path}", response_model=Alias, tags=["aliases"])
def set_alias(
    grid: TheGrid, alias_id: Long, alias: Alias, expected: Annotated[int | None, Query(ge=0)] = None
) -> Response:
    """Set or move an alias; with `expected` only where it stands for that version now (0: not set)."""
    if alias.id != alias_id:
        raise InputError(f"the body's id is {alias.id!r}, the path's {alias_id!r}", place="body.id")
    return reply(grid.set_alias(alias, expected=expected))


@router.delete("/aliases/{alias_id:path}", status_code=204, response_class=Response, tags=["aliases"])
def remove_alias(grid: TheGrid, alias_id: Long) -> Response:
    """Forget an alias; its version stays."""
    grid.remove_alias(alias_id)
    return done()


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


backfill_router = make_router("backfills")


@backfill_router.get("/backfills", response_model=tuple[BackfillView, ...])
def list_backfills(grid: TheGrid) -> Response:
    """Backfills of pipelines, by name."""
    return reply(grid.backfills())


@backfill_router.get("/backfills/{name}", response_model=BackfillView)
def show_backfill(grid: TheGrid, name: Name) -> Response:
    """One backfill, with its chunks."""
    return reply(grid.backfill(name))


@backfill_router.post("/backfills", response_model=BackfillView)
def start_backfill(grid: TheGrid, backfill: Backfill, chunks: tuple[Chunk, ...] = ()) -> Response:
    """Start a backfill, or the same one again: what is done stays, the rest is run."""
    return reply(grid.start_backfill(backfill, chunks))


@backfill_router.post("/pipelines/{name}/backfill", response_model=BackfillView)
def backfill_pipeline(
    grid: TheGrid, name: Name, backfill: Backfill, values: Annotated[dict[str, str] | None, Body()] = None
) -> Response:
    """Run a kept pipeline over a range, chunk by chunk: each has its bounds as the parameters `from` and
    `to`; `values` are for the others.
    """
    return reply(grid.backfill_pipeline(replace(backfill, name=name), values or {}))


@backfill_router.post("/backfills/{name}/stop", response_model=BackfillView)
def stop_backfill(grid: TheGrid, name: Name) -> Response:
    """Start no further chunk of it until it is started again."""
    return reply(grid.stop_backfill(name))


@router.get("/projects", response_model=tuple[ProjectView, ...], tags=["projects"])
def list_projects(grid: TheGrid) -> Response:
    """Projects as they stand, by name."""
    return reply(grid.projects())


@router.put("/projects/{name}", response_model=ProjectView, tags=["projects"])
def configure_project(grid: TheGrid, name: Name, project: Project) -> Response:
    """Create a project, or replace its share and quota; what it used stays."""
    check_name(project.name, name)
    return reply(grid.configure_project(project))


@router.delete("/projects/{name}", status_code=204, response_class=Response, tags=["projects"])
def remove_project(grid: TheGrid, name: Name) -> Response:
    """Remove a project without active runs, and what it used."""
    grid.remove_project(name)
    return done()


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


sink_router = make_router("sinks")


@sink_router.get("/alterations", response_model=tuple[Alterations, ...])
def list_alterations(grid: TheGrid, name: str | None = None) -> Response:
    """What was altered of one sink (`pipeline/job`) or of all."""
    return reply(grid.alterations(name=name))


@sink_router.post("/alterations/{name:path}", response_model=Alterations)
def alter_sink(grid: TheGrid, name: Long, change: Change) -> Response:
    """Add or remove a source, constraint, metric or outage window."""
    return reply(grid.alter_sink(name, change))


@sink_router.get("/tasks", response_model=tuple[LoadTask, ...])
def list_load_tasks(grid: TheGrid, name: str | None = None) -> Response:
    """The sources of one sink (`pipeline/job`) or of all: last load, rows, rejects, position, next look."""
    return reply(grid.load_tasks(name=name))
