"""This module has the lineage of a version: the versions and sources from which it was made, and the
versions that were made from it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass

from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Ledger
from gridmill.control.steps.latest import latest_of
from gridmill.control.steps.references import aliases_of, best_by, fetch_artifact, find_version, versions_of
from gridmill.domain.artifact import BEST, LATEST, Artifact, ArtifactKind, best_of
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job
from gridmill.domain.run import JobRun, Run
from gridmill.domain.sql_statement import Given
from gridmill.domain.views import VersionView
from gridmill.errors import NotFoundError


def version_view(catalog: Catalog, reference: str) -> VersionView:
    """Return a version with its names and its lineage. Raises NotFoundError."""
    artifact = find_version(catalog, reference)
    lineage = ancestors(catalog, artifact)
    return VersionView(
        artifact=artifact,
        names=names_of(catalog, artifact),
        lineage=lineage,
        sources={one.id: source for one in (artifact, *lineage) if (source := _source(catalog.ledger, one))},
        used_by=tuple(one.id for one in users_of(catalog.ledger, {artifact.id})),
        bundle=code_of(catalog.ledger, artifact),
        parameters=artifact.parameters or _parameters(catalog.ledger, artifact),
    )


def with_origin(artifact: Artifact, run: Run | None, job_run: JobRun) -> Artifact:
    """Return the version with its source, its code and its parameters, as they are in the records of its run
    and its job."""
    if run is None:
        return artifact
    bundle = (run.bundle or "") if job_run.job.runs_code else ""
    return replace(artifact, source=_source_of(job_run.job), bundle=bundle, parameters=run.parameters)


def code_of(ledger: Ledger, artifact: Artifact) -> str:
    """Return the code bundle of a version if its job runs code of its pipeline. Otherwise the result is
    empty, because the bundle of the run belongs to other jobs."""
    if artifact.bundle:
        return artifact.bundle
    job_run = ledger.store.get(JobRun, f"{artifact.run_id}/{artifact.name.partition('/')[2]}")
    run = ledger.store.get(Run, artifact.run_id)
    runs_code = job_run is None or not isinstance(job_run.noun, JobRun) or job_run.noun.job.runs_code
    return (run.noun.bundle or "") if runs_code and run is not None and isinstance(run.noun, Run) else ""


def _parameters(ledger: Ledger, artifact: Artifact) -> Mapping[str, Given]:
    """Return the parameters of the run that made the version. The result is None if this run no longer has a
    record."""
    record = ledger.store.get(Run, artifact.run_id)
    return record.noun.parameters if record is not None and isinstance(record.noun, Run) else {}


def names_of(catalog: Catalog, artifact: Artifact) -> tuple[str, ...]:
    """Return the names that refer to a version now, which are `latest`, `best` (if there are several
    versions) and aliases."""
    versions, aliases = versions_of(catalog.ledger, artifact.name), aliases_of(catalog.ledger, artifact.name)
    best = best_of(versions, best_by(catalog.ledger, artifact.name)) if len(versions) > 1 else None
    latest = latest_of(catalog, artifact.name) if versions else None
    named = [LATEST] if latest is not None and latest.id == artifact.id else []
    named += [BEST] if best is not None and best.id == artifact.id else []
    return (*named, *(alias.alias for alias in aliases if alias.number == artifact.number))


def ancestors(catalog: Catalog, artifact: Artifact) -> tuple[Artifact, ...]:
    """Return all versions from which the version was made, nearest first. Versions without a record are left
    out."""
    artifacts: dict[str, Artifact] = {}
    waiting = list(artifact.made_from)
    # the list grows during the loop, so that the loop also visits indirect sources
    for artifact_id in waiting:
        if artifact_id in artifacts:
            continue
        try:
            artifacts[artifact_id] = fetch_artifact(catalog, artifact_id)
        except NotFoundError:
            continue
        waiting.extend(artifacts[artifact_id].made_from)
    return tuple(artifacts.values())


def users_of(ledger: Ledger, artifact_ids: Iterable[str]) -> Iterator[Artifact]:
    """Return the existing versions that were made directly from one of these versions."""
    wanted = set(artifact_ids)
    for record in ledger.store.list(Artifact):
        if (
            isinstance(record.noun, Artifact)
            and not record.noun.removed
            and wanted & {*record.noun.made_from}
        ):
            yield record.noun


def _source(ledger: Ledger, artifact: Artifact) -> str:
    """Return the source of a sink's rows, as declared. The result is empty for versions of other kinds."""
    if artifact.source or artifact.kind != ArtifactKind.SINK:
        return artifact.source
    record = ledger.store.get(JobRun, f"{artifact.run_id}/{artifact.name.partition('/')[2]}")
    return _source_of(record.noun.job) if record is not None and isinstance(record.noun, JobRun) else ""


def _source_of(job: Job) -> str:
    if job.sink is None:
        return ""
    source = job.sink.source
    path = (source.path,) if isinstance(source.path, str) else source.path
    others = (getattr(source, field.name) for field in fields(source))
    return ", ".join((*path, *(_words(other) for other in others if is_dataclass(other))))


def _words(part: object) -> str:
    """Return the fields of a declaration as text, such as `url: sqlite:///shop.db, table: sales`."""
    values = ((field.name, getattr(part, field.name)) for field in fields(part))  # type: ignore[arg-type]
    return ", ".join(f"{name}: {value}" for name, value in values if isinstance(value, str) and value)
