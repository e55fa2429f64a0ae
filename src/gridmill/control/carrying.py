"""What would be carried for the jobs of a pipeline: the versions they read, and what of these is where."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gridmill.control.choosing import crowded_among, made_before, readings_of
from gridmill.control.inputs import external_references
from gridmill.control.references import find_version
from gridmill.control.state import Control
from gridmill.errors import NotFoundError, UnavailableError
from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.job import Job
from gridmill.model.pipeline import Pipeline
from gridmill.planning.dry_run import Carrying
from gridmill.planning.travel import Reading
from gridmill.ports.site import Carries, SitePort

Lacking = Mapping[str, Mapping[str, int]]
"""Bytes that lack, by site, and by the id of a version."""


def versions_read(control: Control, pipeline: Pipeline) -> tuple[Artifact, ...]:
    """The versions that its jobs would read, as they are now."""
    found = (_version(control, pipeline, name) for job in pipeline.jobs for name in _names(job))
    return tuple({one.id: one for one in found if one is not None}.values())


def ask_lacking(ports: Mapping[str, SitePort], versions: Sequence[Artifact]) -> Lacking:
    """What the sites in other places say; nothing of one that does not answer. Takes a moment."""
    found: dict[str, Mapping[str, int]] = {}
    for name, port in ports.items():
        if isinstance(port, Carries) and versions:
            try:
                found[name] = port.lacking(versions)
            except UnavailableError:
                continue
    return found


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
    return (*job.all_needs, *external_references(job))


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
