"""This module resolves references to versions. A reference is `pipeline/job`, `pipeline/job@3` or
`pipeline/job@prod`."""

from collections.abc import Mapping

from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Ledger
from gridmill.control.steps.latest import latest_of
from gridmill.domain.artifact import BEST, LATEST, Alias, Artifact, best_of, split_reference
from gridmill.domain.naming import suggestion
from gridmill.domain.run import Attempt
from gridmill.errors import NotFoundError


def fetch_artifact(catalog: Catalog, artifact_id: str) -> Artifact:
    """Return a version by id, including removed versions. Raises NotFoundError."""
    result = catalog.versions.get(artifact_id)
    if result is not None:
        return result
    version = catalog.ledger.read(Artifact, artifact_id)
    if version is None:
        raise NotFoundError(
            f"there is no version {artifact_id!r}", hint=_available_versions(catalog.ledger, artifact_id)
        )
    catalog.versions[artifact_id] = version
    return version


def metrics_of(catalog: Catalog, version: Artifact) -> Mapping[str, float]:
    """Return the metrics of a version. If the attempt that made the version still has a record, the metrics
    of this attempt are included."""
    result = catalog.metrics_of_versions.get(version.id)
    if result is None:
        attempt = catalog.ledger.read(Attempt, version.attempt_id) if version.attempt_id else None
        metrics = attempt.metrics if attempt is not None else {}
        result = catalog.metrics_of_versions[version.id] = {**metrics, **version.output.metrics}
    return result


def find_version(catalog: Catalog, reference: str) -> Artifact:
    """Return the version to which a reference refers now. A name without a version number or alias means
    `latest`. Raises NotFoundError."""
    name, version = split_reference(_with_pipeline(catalog.ledger, reference))
    if version.isdecimal():
        return fetch_artifact(catalog, f"{name}@{int(version)}")
    if version in ("", LATEST):
        return _latest(catalog, name)
    alias = find_alias(catalog.ledger, f"{name}@{version}")
    if alias is not None and alias.number is not None:
        return fetch_artifact(catalog, f"{name}@{alias.number}")
    if alias is None and version != BEST:
        raise NotFoundError(f"there is no {reference!r}", hint=_available_versions(catalog.ledger, reference))
    return _best(catalog.ledger, name, alias.metric if alias else "")


def _with_pipeline(ledger: Ledger, reference: str) -> str:
    """Return the full reference to a version from a reference that names a job without its pipeline. For
    example, `sales@3` means `shop/sales@3` if only the pipeline `shop` has versions of a job `sales`.

    Raises NotFoundError if several pipelines have versions of this job.
    """
    job, version = split_reference(reference)
    if "/" in job or not job:
        return reference
    names = {version.name for version in ledger.read_all(Artifact)}
    matches = sorted(name for name in names if name.endswith(f"/{job}"))
    if len(matches) > 1:
        raise NotFoundError(
            f"several pipelines have a job {job!r}", hint=f"Use one of these names: {', '.join(matches)}."
        )
    return f"{matches[0]}@{version}" if matches and version else matches[0] if matches else reference


def find_alias(ledger: Ledger, alias_id: str) -> Alias | None:
    """Return an alias that was set, by its id `pipeline/job@alias`."""
    return ledger.read(Alias, alias_id)


def aliases_of(ledger: Ledger, name: str | None) -> tuple[Alias, ...]:
    """Return the aliases that were set: the aliases of one name, or all aliases."""
    return ledger.read_all(Alias, parent=name)


def best_by(ledger: Ledger, name: str) -> str:
    """Return the metric that was set for the best version of that name. The result is empty if the model
    chooses the metric."""
    alias = find_alias(ledger, f"{name}@{BEST}")
    return alias.metric if alias else ""


def versions_of(ledger: Ledger, name: str) -> tuple[Artifact, ...]:
    """Return all versions of that name that are not removed, newest first."""
    every = ledger.read_all(Artifact, parent=name, newest_first=True)
    return tuple(one for one in every if not one.removed)


def _latest(catalog: Catalog, name: str) -> Artifact:
    latest = latest_of(catalog, name)
    if latest is None:
        raise NotFoundError(f"there is no {name!r}", hint=_near(catalog.ledger, name))
    return latest


def _near(ledger: Ledger, name: str) -> str:
    """Return the existing name that is most similar to this name, and the command that lists all names."""
    names = {version.name for version in ledger.read_all(Artifact) if not version.removed}
    return f"{suggestion(name, names)} `gridmill list artifacts` lists all names.".lstrip()


def _best(ledger: Ledger, name: str, metric: str) -> Artifact:
    result = best_of(versions_of(ledger, name), metric)
    if result is None:
        what = f"was measured by {metric!r}" if metric else "was measured on a validation split"
        raise NotFoundError(
            f"no version of {name!r} {what}",
            hint=f"Set the metric: `gridmill configure model {name} --best-by METRIC`.",
        )
    return result


def _available_versions(ledger: Ledger, reference: str) -> str:
    name, _ = split_reference(reference)
    versions = versions_of(ledger, name)
    numbers = [str(one.number) for one in versions[:5]]
    if not numbers:
        return _near(ledger, name)
    best = [BEST] if best_of(versions, best_by(ledger, name)) is not None else []
    names = [alias.alias for alias in aliases_of(ledger, name) if alias.alias != BEST]
    return f"{name} has the versions {', '.join(numbers)} and the names {', '.join((LATEST, *best, *names))}."
