"""Finds records by name for the commands `show`, `list` and `remove`."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Any

from gridmill.domain.artifact import ArtifactKind
from gridmill.domain.machine_image import ImageView
from gridmill.domain.run import Attempt
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.views import JobView, RunView
from gridmill.errors import InputError, NotFoundError
from gridmill.ports.grid import Grid
from gridmill.ports.pages import Page
from gridmill.sdk.listing import Listing, Lists

_LATEST = 20
"""The number of newest runs of a pipeline that are searched for a run that is not a probe."""


class Noun(StrEnum):
    """The kinds of records that `gridmill show` can print."""

    RUN = "run"
    JOB = "job"
    ATTEMPT = "attempt"
    RESOURCE = "resource"
    PROJECT = "project"
    SITE = "site"
    CLOUDPROVIDER = "cloudprovider"
    DEPLOYMENT = "deployment"
    LEASE = "lease"
    SERVICE = "service"
    IMAGE = "image"
    PIPELINE = "pipeline"
    SCHEDULE = "schedule"
    BACKFILL = "backfill"
    SINK = "sink"
    DATASET = "dataset"
    MODEL = "model"
    PREDICTION = "prediction"
    FILES = "files"
    ARTIFACT = "artifact"
    ALIAS = "alias"
    SECRET = "secret"
    CONTROL = "control"


def _clouds(grid: Grid, *, limit: int, cursor: str | None) -> Page[Site]:
    """Return the cloud sites of a page of sites. A page may have fewer items than `limit`."""
    page = grid.sites(limit=limit, cursor=cursor)
    clouds = tuple(site for site in page.items if site.kind is SiteKind.CLOUD)
    return Page(items=clouds, next_cursor=page.next_cursor)


LISTED: Mapping[Noun, Callable[[Grid], Lists[Any]]] = {
    Noun.RUN: lambda grid: grid.runs,
    Noun.RESOURCE: lambda grid: grid.resources,
    Noun.PROJECT: lambda grid: grid.projects,
    Noun.SITE: lambda grid: grid.sites,
    Noun.CLOUDPROVIDER: lambda grid: partial(_clouds, grid),
    Noun.DEPLOYMENT: lambda grid: grid.deployments,
    Noun.LEASE: lambda grid: grid.leases,
    Noun.SERVICE: lambda grid: grid.services,
    Noun.PIPELINE: lambda grid: grid.pipelines,
    Noun.SCHEDULE: lambda grid: grid.schedules,
    Noun.BACKFILL: lambda grid: grid.backfills,
    Noun.SINK: lambda grid: partial(grid.artifacts, kind=ArtifactKind.SINK),
    Noun.DATASET: lambda grid: partial(grid.artifacts, kind=ArtifactKind.DATASET),
    Noun.MODEL: lambda grid: partial(grid.artifacts, kind=ArtifactKind.MODEL),
    Noun.PREDICTION: lambda grid: partial(grid.artifacts, kind=ArtifactKind.PREDICTION),
    Noun.FILES: lambda grid: partial(grid.artifacts, kind=ArtifactKind.FILES),
    Noun.ARTIFACT: lambda grid: grid.artifacts,
    Noun.ALIAS: lambda grid: grid.aliases,
    Noun.SECRET: lambda grid: grid.secrets,
}
"""The use case that lists records of each kind."""

ARTIFACTS = frozenset({Noun.SINK, Noun.DATASET, Noun.MODEL, Noun.PREDICTION, Noun.FILES, Noun.ARTIFACT})
"""The kinds of records that are versions."""


def plural(noun: Noun) -> str:
    """Return the plural of the name of a kind of record, such as `runs`, `aliases` or `files`."""
    return noun.value if noun == Noun.FILES else f"{noun}es" if noun == Noun.ALIAS else f"{noun}s"


REMOVED: Mapping[Noun, Callable[[Grid, str], object]] = {
    Noun.RUN: lambda grid, name: grid.remove_run(name),
    Noun.RESOURCE: lambda grid, name: grid.remove_resource(name),
    Noun.PROJECT: lambda grid, name: grid.remove_project(name),
    Noun.SITE: lambda grid, name: grid.remove_site(name),
    Noun.CLOUDPROVIDER: lambda grid, name: grid.remove_site(_listed(grid, Noun.CLOUDPROVIDER, name).name),
    Noun.PIPELINE: lambda grid, name: grid.remove_pipeline(name),
    Noun.DEPLOYMENT: lambda grid, name: grid.release(name),
    Noun.IMAGE: lambda grid, name: grid.remove_image(name),
    Noun.SERVICE: lambda grid, name: grid.remove_service(name),
    Noun.ALIAS: lambda grid, name: grid.remove_alias(name),
    Noun.SECRET: lambda grid, name: grid.remove_secret(name),
}
"""The function that deletes records of each kind, except versions."""


def read_noun(word: str) -> Noun:
    """Parse a noun. The name of a kind may be in the plural, and `version` has the same meaning as
    `artifact`. Raises InputError."""
    singular = word.lower()
    for candidate in (singular, singular.removesuffix("s"), singular.removesuffix("es")):
        if candidate == "version":
            return Noun.ARTIFACT
        if candidate in list(Noun):
            return Noun(candidate)
    raise InputError(f"unknown object type {word!r}", hint=f"The types are {', '.join(Noun)}.")


def list_nouns(grid: Grid, noun: Noun, *, limit: int | None = None) -> Listing[Any]:
    """Return all records of a kind, or the first `limit` records. Raises InputError for records that are
    parts of a run."""
    if noun not in LISTED:
        raise InputError(
            f"{noun}s cannot be listed without a run", hint="To see the jobs of a run: gridmill show run RUN"
        )
    return Listing(LISTED[noun](grid), limit=limit)


def remove_noun(grid: Grid, noun: Noun, name: str) -> None:
    """Delete a record that is not a version. Raises InputError for records of the past, such as attempts."""
    if noun not in REMOVED:
        hint = f"Types that can be removed: {', '.join((*REMOVED, *sorted(ARTIFACTS)))}."
        raise InputError(f"a {noun} cannot be removed", hint=hint)
    REMOVED[noun](grid, name)


def find_noun(grid: Grid, noun: Noun, name: str) -> Any:  # noqa: ANN401  the noun's class follows from `noun`
    """Return the record with this name or id. Raises NotFoundError."""
    match noun:
        case Noun.CONTROL:
            return grid.control()
        case Noun.RUN:
            return find_run(grid, name)
        case Noun.JOB:
            return find_job(grid, name)
        case Noun.ATTEMPT:
            return find_attempt(grid, name)
        case Noun.PIPELINE:
            return grid.pipeline(name)
        case Noun.SCHEDULE:
            return grid.schedule(name)
        case Noun.BACKFILL:
            return grid.backfill(name)
        case Noun.SECRET:
            return grid.secret(name)
        case Noun.LEASE:
            return grid.lease(name)
        case Noun.SERVICE:
            return grid.service(name)
        case Noun.IMAGE:
            return find_image(grid, name)
        case _ if noun in ARTIFACTS:
            return _artifact(grid, noun, name)
        case _:
            return _listed(grid, noun, name)


def find_run(grid: Grid, name: str) -> RunView:
    """Return the run with this id, or the newest run of the pipeline with this name that is not a probe.
    Raises NotFoundError."""
    try:
        return grid.run(name)
    except NotFoundError:
        runs = grid.runs(limit=_LATEST, pipeline=name).items
        newest = next((run for run in runs if not run.probe), None)
        if newest is None:
            raise
    return grid.run(newest.id)


def find_image(grid: Grid, name: str) -> ImageView:
    """Return the image of machines with this name or id. Raises NotFoundError."""
    for image in grid.images():
        if name in (image.name, image.id):
            return image
    raise NotFoundError(f"there is no image {name!r}", hint="`gridmill list images` shows them.")


def find_job(grid: Grid, name: str) -> JobView:
    """Return the job with the name `RUN/JOB`. Raises NotFoundError, InputError."""
    run_id, slash, job = name.partition("/")
    if not slash:
        raise InputError(
            f"{name!r} is not the name of a job", hint="Write RUN/JOB, for example weather-1/train."
        )
    return grid.job(find_run(grid, run_id).run.id, job)


def find_attempt(grid: Grid, name: str) -> Attempt:
    """Return the attempt `RUN.JOB.K`, or a rank of a gang, `RUN.JOB.K.RANK`. Raises NotFoundError,
    InputError."""
    parts = name.split(".")
    if len(parts) not in (3, 4):
        raise InputError(
            f"{name!r} is not the id of an attempt", hint="Write RUN.JOB.K, for example weather-1.train.1."
        )
    view = grid.job(parts[0], parts[1])
    for attempt in (*view.attempts, *view.ranks):
        if attempt.id == name:
            return attempt
    raise NotFoundError(f"there is no attempt {name!r}")


def _listed(grid: Grid, noun: Noun, name: str) -> Any:  # noqa: ANN401  as find_noun
    nouns_by_name = {getattr(one, "id", None) or one.name: one for one in list_nouns(grid, noun)}
    if name not in nouns_by_name:
        hint = (
            f"The names are {', '.join(sorted(nouns_by_name))}."
            if nouns_by_name
            else "There is no record of this type."
        )
        raise NotFoundError(f"there is no {noun} {name!r}", hint=hint)
    return nouns_by_name[name]


def _artifact(grid: Grid, noun: Noun, name: str) -> Any:  # noqa: ANN401  as find_noun
    artifact = grid.artifact(name)
    if noun != Noun.ARTIFACT and artifact.kind != noun.value:
        raise NotFoundError(
            f"{artifact.id} is not a {noun}: its kind is {artifact.kind}",
            hint=f"To list the versions of this kind: gridmill list {noun}",
        )
    return artifact
