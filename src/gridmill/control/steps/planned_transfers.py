"""This module returns the versions that the jobs of a planned run will read, with the bytes that a site does
not have."""

from collections.abc import Mapping

from gridmill.control.catalog import Catalog
from gridmill.control.state import SiteStates
from gridmill.control.steps.references import find_version
from gridmill.control.steps.resource_choice import crowded_among, made_before, readings_of
from gridmill.domain.artifact import Artifact, ArtifactKind
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.errors import NotFoundError
from gridmill.scheduler.dry_run import TransferInput
from gridmill.scheduler.site_choice import InputVersion

Lacking = Mapping[str, Mapping[str, int]]
"""The missing bytes, by site and by the id of a version. The key `next_of` the id means the version that
follows the version with this id."""


def next_of(version: str) -> str:
    """Return the key for the expected missing bytes of the version that will be made after this version."""
    return f"{version}, the next"


def transfer_input(
    catalog: Catalog, sites_seen: SiteStates, pipeline: Pipeline, unchanged: frozenset[str], lacking: Lacking
) -> TransferInput:
    """Return the versions that each job reads, and the bytes that the job made last. Reports of sites take
    precedence over records."""
    jobs = {job.name for job in pipeline.jobs}
    readings = {
        job.name: tuple(
            _reading(catalog, pipeline, name, made_anew=name in jobs - unchanged, lacking=lacking)
            for name in names_read(job)
        )
        for job in pipeline.jobs
    }
    before = {job.name: made_before(catalog, f"{pipeline.name}/{job.name}") for job in pipeline.jobs}
    made = {name: size for name, size in before.items() if size is not None}
    resources = (*catalog.ledger.snapshot.resources.values(), *pipeline.resources)
    return TransferInput(
        readings=readings,
        made_bytes=made,
        unreachable=tuple(sites_seen.unreachable),
        crowded=crowded_among(sites_seen, resources),
    )


def names_read(job: Job) -> tuple[str, ...]:
    """Return the names of the versions that a job reads."""
    return (*job.all_needs, *job.external_names)


def planned_version(catalog: Catalog, pipeline: Pipeline, name: str) -> Artifact | None:
    """Return the present version that a job of the pipeline reads by this name, or None."""
    try:
        version = find_version(catalog, name if "/" in name else f"{pipeline.name}/{name}")
    except NotFoundError:
        return None
    return None if version.removed else version


def _reading(
    catalog: Catalog, pipeline: Pipeline, name: str, *, made_anew: bool, lacking: Lacking
) -> InputVersion:
    """Return a version that a job reads, with its missing bytes. If the version is made again in this run,
    the expected missing bytes of the next version are used. If the expected missing bytes are unknown, the
    size of the whole version is used. For a sink that is made again, only the size of the added data is
    used."""
    version = planned_version(catalog, pipeline, name)
    if version is None:
        return InputVersion(name=name, made_by=name if made_anew else "")
    if not version.output.uri:
        return InputVersion(name=name, size_bytes=0)
    recorded = readings_of(catalog, (version,))[0]
    answered = {site: some[version.id] for site, some in lacking.items() if version.id in some}
    there = {**recorded.missing_bytes, **answered}
    if made_anew and version.kind != ArtifactKind.SINK:
        key = next_of(version.id)
        there = {site: some[key] for site, some in lacking.items() if key in some}
    return replace(recorded, name=name, missing_bytes=there, made_by=name if made_anew else "")
