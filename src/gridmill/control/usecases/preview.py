"""This module previews a run: the versions that its jobs would read, the transfers, and problems with the
data.

A plan is checked against the versions that its jobs read, so that errors in the columns that jobs name are
reported before a run. For the transfers, the module finds out which of these versions each site already
has.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

from gridmill.control.catalog import Catalog
from gridmill.control.steps.planned_transfers import Lacking, names_read, next_of, planned_version
from gridmill.control.steps.references import fetch_artifact, find_version
from gridmill.control.steps.result_names import unknown_name
from gridmill.domain.artifact import Artifact, ArtifactKind
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.preflight import PreflightRequest, preflight_question, with_findings
from gridmill.domain.resource import Resource
from gridmill.domain.sink import SinkSpec
from gridmill.domain.sink_overrides import AlterVerb, SinkChange
from gridmill.domain.views import DryRun, PlannedJob
from gridmill.errors import (
    InputError,
    NotFoundError,
    PipelineError,
    UnavailableError,
    explained,
    raise_all,
)
from gridmill.ports.site import ComparingSite, SitePort, TransferSite
from gridmill.ports.storage import Storage
from gridmill.scheduler.missing_columns import (
    Known,
    columns_of,
    columns_of_change,
    columns_selected,
    missing,
    missing_error,
    missing_text,
)


def predecessors(catalog: Catalog, versions: Mapping[str, Sequence[Artifact]]) -> Mapping[str, Artifact]:
    """Return for each of these versions the version before it, by the id of the later version. Versions
    without an earlier version are left out."""
    found: dict[str, Artifact] = {}
    for one in {one.id: one for some in versions.values() for one in some}.values():
        if one.number > 1 and one.kind != ArtifactKind.SINK:
            try:
                before = fetch_artifact(catalog, f"{one.name}@{one.number - 1}")
            except NotFoundError:
                continue
            if not before.removed:
                found[one.id] = before
    return found


def versions_read(
    catalog: Catalog, pipeline: Pipeline, resources: Mapping[str, Sequence[Resource]]
) -> dict[str, tuple[Artifact, ...]]:
    """Return the versions that the pipeline's jobs would read now, by site. A version is listed for each
    site to which a job that reads it may go. `resources` has the possible resources of each job."""
    artifacts: dict[str, dict[str, Artifact]] = {}
    for job in pipeline.jobs:
        versions = [
            one for name in names_read(job) if (one := planned_version(catalog, pipeline, name)) is not None
        ]
        for site in {one.site for one in resources[job.name]}:
            artifacts.setdefault(site, {}).update({one.id: one for one in versions})
    return {site: tuple(versions.values()) for site, versions in artifacts.items() if versions}


def missing_at_sites(
    ports: Mapping[str, SitePort],
    versions: Mapping[str, Sequence[Artifact]],
    before: Mapping[str, Artifact],
) -> Lacking:
    """Return the missing bytes that sites on other machines report for the `versions` that jobs would read
    at these sites. A site that does not answer is left out. The sites are queried in parallel. For each
    version, the next version is expected to contain the same fraction of new data as this version has
    compared with the version `before` it. A call of this function takes a moment, because it queries
    sites."""
    ports_to_ask = {
        name: (port, versions[name])
        for name, port in ports.items()
        if isinstance(port, TransferSite) and name in versions
    }
    with ThreadPoolExecutor(max(1, len(ports_to_ask)), "gridmill-lacking") as pool:
        futures = {name: pool.submit(_missing_at, *one, before) for name, one in ports_to_ask.items()}
    return {name: found for name, one in futures.items() if (found := one.result()) is not None}


def _missing_at(
    port: TransferSite, versions: Sequence[Artifact], before: Mapping[str, Artifact]
) -> Mapping[str, int] | None:
    try:
        missing_sizes = port.missing_sizes(versions)
    except UnavailableError:
        return None
    pairs = [(one, before[one.id]) for one in versions if one.id in before and one.id in missing_sizes]
    if not pairs or not isinstance(port, ComparingSite):
        return missing_sizes
    sizes = {one.id: one.output.size_bytes for one in versions}
    expected = {
        next_of(key): round(missing_sizes[key] * (1.0 - share) + sizes[key] * share)
        for key, share in port.changed_shares(pairs).items()
    }
    return {**missing_sizes, **expected}


def with_columns_checked(
    catalog: Catalog, pipeline: Pipeline, planned: PlannedJob, unchanged: frozenset[str]
) -> PlannedJob:
    """Return the planned job with the problems of its columns. If a column is missing in a table that is
    loaded again, the problem is only a doubt, because the load may add the column."""
    job = pipeline.job(planned.job)
    columns, later = _known_columns(catalog, pipeline, job, unchanged)
    problems = (unknown_name(catalog, name, job) for name in job.external_names)
    unknown = [error for error in problems if error is not None]
    for error in unknown:
        error.place = pipeline.lines.place(error.place) if pipeline.lines is not None else error.place
    wrong = [*map(explained, unknown), *_missing_texts(job, columns)]
    unsure = _missing_texts(job, later)
    return replace(planned, problem=planned.problem or "; ".join(wrong), doubt="; ".join(unsure))


def _missing_texts(job: Job, known: Known) -> tuple[str, ...]:
    return tuple(missing_text(one, known) for one in missing(columns_of(job), known))


def check_columns(catalog: Catalog, pipeline: Pipeline) -> None:
    """Raise one PipelineError for all columns that jobs name and that cannot exist: columns of versions of
    other pipelines, and columns of sinks whose declaration lists their columns with `select`."""
    selected = {job.name: columns_selected(job.sink) for job in pipeline.jobs if job.sink is not None}
    errors: list[PipelineError] = []
    for job in pipeline.jobs:
        known = {name: columns for name, columns in selected.items() if columns}
        for name in job.external_names:
            version = _expected_version(catalog, name)
            if version is not None:
                known[name] = _columns(version, job)
        absent = missing(columns_of(job), known, ignore_case=True)
        errors += [missing_error(job, one, known) for one in absent]
    for error in errors:
        error.place = pipeline.lines.place(error.place) if pipeline.lines is not None else error.place
    raise_all(errors, pipeline.file or pipeline.name)


def check_change(catalog: Catalog, name: str, spec: SinkSpec, change: SinkChange) -> None:
    """Raise InputError if an addition to the sink `name` (`pipeline/job`) names a column that neither its
    newest version nor its declaration has. A sink that was never loaded is not checked."""
    if change.verb == AlterVerb.REMOVE:
        return
    pipeline, _, sink = name.partition("/")
    others = (change.constraint.references,) if change.constraint and change.constraint.references else ()
    columns: dict[str, tuple[str, ...]] = {}
    for called in (sink, *others):
        version = _expected_version(catalog, called if "/" in called else f"{pipeline}/{called}")
        if version is not None:
            names = tuple(column.name for column in version.output.columns)
            columns[called] = (*names, *_declared(spec)) if called == sink else names
    absent = missing(columns_of_change(change, sink), columns, ignore_case=True)
    wrong = "; ".join(missing_text(one, columns) for one in absent)
    if wrong:
        tables = (f"{called!r} has {', '.join(dict.fromkeys(names))}" for called, names in columns.items())
        raise InputError(
            wrong, hint=f"{'; '.join(tables)}. To add a column, name it in `columns` of the sink first."
        )


def _known_columns(
    catalog: Catalog, pipeline: Pipeline, job: Job, unchanged: frozenset[str]
) -> tuple[Known, Known]:
    """Return the columns of the tables that do not change, and the columns of the sinks that are loaded
    again. The columns of tables that other jobs make again are unknown."""
    sinks = {one.name: one.sink for one in pipeline.jobs if one.sink is not None}
    columns: dict[str, tuple[str, ...]] = {}
    later: dict[str, tuple[str, ...]] = {}
    for name in job.spec.references():
        version = _expected_version(catalog, name if "/" in name else f"{pipeline.name}/{name}")
        if version is None:
            continue
        if "/" in name or name in unchanged:
            columns[name] = _columns(version, job)
        elif name in sinks:
            later[name] = (*_columns(version, job), *_declared(sinks[name]))
    return columns, later


def _expected_version(catalog: Catalog, reference: str) -> Artifact | None:
    try:
        version = find_version(catalog, reference)
    except NotFoundError:
        return None
    return None if version.removed else version


def _columns(version: Artifact, job: Job) -> tuple[str, ...]:
    """Return the columns of a version. If a training reads a dataset, the function returns only the features
    of the dataset."""
    if job.training is not None and version.kind == ArtifactKind.DATASET:
        return tuple(version.output.details.get("features") or ())
    return tuple(column.name for column in version.output.columns)


def _declared(sink: SinkSpec) -> tuple[str, ...]:
    return (*sink.columns, *sink.select, *sink.rename.values(), *sink.add)


def with_preflight(
    catalog: Catalog, storage: Storage, pipeline: Pipeline, made: DryRun, lock: AbstractContextManager[object]
) -> DryRun:
    """Return the plan with the results of the check of the jobs' data. The data is read without the node's
    lock."""
    with lock:
        question = _question(catalog, storage, pipeline, made)
    if question is None:
        return made
    checked = storage.preflight(question)
    return replace(
        made,
        jobs=tuple(with_findings(job, pipeline, checked) for job in made.jobs),
        unchecked=tuple(f"{one.job}: {one.why}" for one in checked.unchecked),
    )


def _question(
    catalog: Catalog, storage: Storage, pipeline: Pipeline, made: DryRun
) -> PreflightRequest | None:
    unchanged = {job.job for job in made.jobs if job.unchanged}
    external = {name for job in pipeline.jobs for name in job.external_names}
    standing = {name: f"{pipeline.name}/{name}" for name in unchanged} | {name: name for name in external}
    again = {job.name for job in pipeline.jobs if job.sink is not None or job.dataset is not None} - unchanged
    return preflight_question(
        pipeline,
        root=storage.location,
        versions=_versions(catalog, standing),
        earlier=_versions(catalog, {name: f"{pipeline.name}/{name}" for name in again}),
        unchanged=unchanged,
    )


def _versions(catalog: Catalog, references: Mapping[str, str]) -> dict[str, Artifact]:
    artifacts: dict[str, Artifact] = {}
    for name, reference in references.items():
        try:
            version = find_version(catalog, reference)
        except NotFoundError:
            continue
        if not version.removed:
            artifacts[name] = version
    return artifacts
