"""This module decides once, when a run begins, which versions the names of other pipelines' results mean in
the run."""

from collections.abc import Iterable, Mapping

from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Ledger
from gridmill.control.steps.references import find_version
from gridmill.domain.artifact import Artifact, split_reference
from gridmill.domain.job import Job
from gridmill.domain.naming import suggestion
from gridmill.errors import InputError, NotFoundError


def settle_names(catalog: Catalog, jobs: Iterable[Job]) -> Mapping[str, str]:
    """Return the id of the version that each name in these jobs means now. Names without a version are left
    out."""
    settled: dict[str, str] = {}
    for name in dict.fromkeys(name for job in jobs for name in job.external_names):
        try:
            settled[name] = find_version(catalog, name).id
        except NotFoundError:
            continue
    return settled


def check_names_exist(catalog: Catalog, jobs: Iterable[Job]) -> None:
    """Raise InputError if a name has no version."""
    for job in jobs:
        for name in job.external_names:
            unknown = unknown_name(catalog, name, job)
            if unknown is not None:
                raise unknown


def unknown_name(catalog: Catalog, reference: str, job: Job) -> InputError | None:
    """Return the message about a name that has no version. The result is None for a name that has a
    version, or that needs none."""
    if reference in job.optional_names:
        return None
    try:
        find_version(catalog, reference)
    except NotFoundError as error:
        if catalog.newest_artifact(split_reference(reference)[0]) is not None:
            message = f"job {job.name!r} reads {reference!r}: {error}"
            return InputError(message, hint=error.hint, place=_place(job, reference))
        return InputError(
            f"job {job.name!r} reads {reference!r}, which does not exist",
            hint=_near(catalog.ledger, reference),
            place=_place(job, reference),
        )
    return None


def _place(job: Job, reference: str) -> str:
    """Return the field of the job that contains the name, if only one field contains it."""
    if reference in job.needs:
        return f"jobs.{job.name}.needs[{job.needs.index(reference)}]"
    spec, place = job.spec, f"jobs.{job.name}.{job.kind.value}"
    for name in ("dataset", "models", "model", "tables"):
        value = getattr(spec, name, None)
        if value == reference:
            return f"{place}.{name}"
        if isinstance(value, tuple) and reference in value:
            return f"{place}.{name}[{value.index(reference)}]"
    return place


def _near(ledger: Ledger, reference: str) -> str:
    name = split_reference(reference)[0]
    names = {version.name for version in ledger.read_all(Artifact)}
    meant, first = suggestion(name, names), f"Run the pipeline {name.partition('/')[0]!r} first."
    return f"{meant} Otherwise: {first}" if meant else first
