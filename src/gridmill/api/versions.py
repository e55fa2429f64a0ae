"""The routes of versions and aliases."""

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from gridmill.api.replies import Long, TheGrid, done, make_router, reply
from gridmill.errors import InputError
from gridmill.model.alias import Alias
from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.compared import ModelComparison
from gridmill.model.look import Preview, VersionDiff
from gridmill.model.parcel import Moved
from gridmill.model.space import HISTORY_DAYS, Usage, Waste
from gridmill.model.stored import Verified
from gridmill.model.view import Removal, VersionView

router = make_router()
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
