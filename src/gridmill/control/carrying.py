"""What would be carried for the jobs of a pipeline: the versions they read, and what of these is where."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from gridmill.control.choosing import crowded_among, made_before, readings_of
from gridmill.control.references import find_version
from gridmill.control.state import Control
from gridmill.errors import NotFoundError, UnavailableError
from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.job import Job
from gridmill.model.pipeline import Pipeline
from gridmill.model.resource import Resource
from gridmill.planning.dry_run import Carrying
from gridmill.planning.travel import Reading
from gridmill.ports.site import Carries, SitePort

Lacking = Mapping[str, Mapping[str, int]]
"""Bytes that lack, by site, and by the id of a version."""


def versions_read(
    control: Control, pipeline: Pipeline, resources: Mapping[str, Sequence[Resource]]
) -> dict[str, tuple[Artifact, ...]]:
    """The versions that its jobs would read, as they are now, by the sites to which they may go; `resources`
    are those of each job."""
    found: dict[str, dict[str, Artifact]] = {}
    for job in pipeline.jobs:
        versions = [one for name in _names(job) if (one := _version(control, pipeline, name)) is not None]
        for site in {one.site for one in resources[job.name]}:
            found.setdefault(site, {}).update({one.id: one for one in versions})
    return {site: tuple(versions.values()) for site, versions in found.items() if versions}


def ask_lacking(ports: Mapping[str, SitePort], versions: Mapping[str, Sequence[Artifact]]) -> Lacking:
    """What the sites in other places say of the `versions` that jobs would read there; nothing of one that
    does not answer. They are asked at the same time. Takes a moment."""
    asked = {
        name: (port, versions[name])
        for name, port in ports.items()
        if isinstance(port, Carries) and name in versions
    }
    with ThreadPoolExecutor(max(1, len(asked)), "gridmill-lacking") as pool:
        told = {name: pool.submit(_lacking, *one) for name, one in asked.items()}
    return {name: found for name, one in told.items() if (found := one.result()) is not None}


def _lacking(port: Carries, versions: Sequence[Artifact]) -> Mapping[str, int] | None:
    try:
        return port.lacking(versions)
    except UnavailableError:
        return None


def forecast_carrying(
    control: Control, pipeline: Pipeline, unchanged: frozenset[str], lacking: Lacking
) -> Carrying:
    """What each job reads, and what it made before. What sites say goes before records."""
    jobs = {job.name for job in pipeline.jobs}
    readings = {
        job.name: tuple(
            _reading(control, pipeline, name, made_anew=name in jobs - unchanged, lacking=lacking)
            for name in _names(job)
        )
        for job in pipeline.jobs
    }
    before = {job.name: made_before(control, f"{pipeline.name}/{job.name}") for job in pipeline.jobs}
    made = {name: size for name, size in before.items() if size is not None}
    known = (*control.ledger.snapshot.resources.values(), *pipeline.resources)
    return Carrying(
        readings=readings,
        made_bytes=made,
        away=tuple(control.away),
        crowded=crowded_among(control, known),
    )


def _names(job: Job) -> tuple[str, ...]:
    return (*job.all_needs, *job.external_names)


def _version(control: Control, pipeline: Pipeline, name: str) -> Artifact | None:
    try:
        found = find_version(control, name if "/" in name else f"{pipeline.name}/{name}")
    except NotFoundError:
        return None
    return None if found.removed else found


def _reading(
    control: Control, pipeline: Pipeline, name: str, *, made_anew: bool, lacking: Lacking
) -> Reading:
    """Of what is made anew, all travels; but of a sink only what comes to it."""
    version = _version(control, pipeline, name)
    if version is None:
        return Reading(name=name, made_by=name if made_anew else "")
    if not version.output.uri:
        return Reading(name=name, size_bytes=0)
    known = readings_of(control, (version,))[0]
    said = {site: some[version.id] for site, some in lacking.items() if version.id in some}
    there = {**known.lacking, **said}
    if made_anew and version.kind != ArtifactKind.SINK:
        there = {}
    return replace(known, name=name, lacking=there, made_by=name if made_anew else "")
