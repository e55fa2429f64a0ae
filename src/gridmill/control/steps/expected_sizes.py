"""This module predicts the amount of data that each job of a run will process, before the run begins.

A job that would be restored keeps its existing version. The version of any other job is expected to grow by
the same factor by which the job's inputs have grown since its newest version was made. Because the growth of
a version is passed on from job to job, the growth of a source affects all later jobs of the pipeline. The
size of a job without a version is not predicted.
"""

from collections.abc import Collection, Mapping, Sequence

from gridmill.control.catalog import Catalog
from gridmill.control.steps.inputs import size_of
from gridmill.control.steps.references import fetch_artifact
from gridmill.control.steps.result_names import settle_names
from gridmill.control.steps.source_listing import NOTHING, SourceListing
from gridmill.domain.artifact import Artifact, ArtifactKind, Input
from gridmill.domain.frozen import replace
from gridmill.domain.graph import order
from gridmill.domain.job import Job, JobSize
from gridmill.domain.pipeline import Pipeline
from gridmill.errors import NotFoundError
from gridmill.scheduler.sizing import subject_of


def expected_sizes(
    catalog: Catalog,
    pipeline: Pipeline,
    listings: Mapping[str, SourceListing],
    unchanged: Collection[str],
) -> Mapping[str, JobSize]:
    """Return the expected size of each job, as far as it is known: from the listed sources, and from the
    expected sizes of the versions that the job reads. `unchanged` has the jobs that would be restored."""
    settled = settle_names(catalog, pipeline.jobs)
    expected: dict[str, Artifact] = {}
    sizes: dict[str, JobSize] = {}
    for name in order(pipeline):
        job = pipeline.job(name)
        present = [expected[need] for need in job.all_needs if need in expected]
        present += [fetch_artifact(catalog, settled[one]) for one in job.external_names if one in settled]
        inputs = tuple(Input(name=one.name.rpartition("/")[2], artifact=one) for one in present)
        sizes[name] = size_of(job, inputs, listings.get(name, NOTHING).size_bytes)
        newest = catalog.newest_artifact(f"{pipeline.name}/{name}")
        if newest is not None and not newest.removed:
            factor = 1.0 if name in unchanged else _growth(catalog, job, newest, present, sizes[name])
            expected[name] = _grown(newest, factor)
    return sizes


def _grown(version: Artifact, factor: float) -> Artifact:
    output = version.output
    rows = None if output.rows is None else round(output.rows * factor)
    return replace(version, output=replace(output, rows=rows, size_bytes=round(output.size_bytes * factor)))


def _growth(
    catalog: Catalog, job: Job, newest: Artifact, present: Sequence[Artifact], size: JobSize
) -> float:
    """Return the factor by which the next version of a job is expected to be larger than its newest
    version."""
    if job.sink is not None:
        return _growth_of_sink(catalog, job, newest, size)
    before = [one for key in newest.made_from if (one := _version(catalog, key)) is not None]
    basis = job.dataset.basis.table if job.dataset is not None and job.dataset.basis is not None else None
    return _ratio(_tables(present, basis), _tables(before, basis))


def _growth_of_sink(catalog: Catalog, job: Job, newest: Artifact, size: JobSize) -> float:
    """Return the growth factor of a sink: from the number of rows that the sink declares, otherwise from the
    size of its sources, compared with their size in the last run."""
    if job.rows is not None and newest.output.rows:
        return job.rows / newest.output.rows
    pipeline = newest.name.partition("/")[0]
    measured = catalog.ledger.snapshot.history.of_job(newest.name, subject_of(job, pipeline))
    of_newest = [one for one in measured if one.attempt_id == newest.attempt_id] or measured
    then = of_newest[-1].size.input_bytes if of_newest else None
    return size.input_bytes / then if size.input_bytes and then else 1.0


def _version(catalog: Catalog, key: str) -> Artifact | None:
    try:
        return fetch_artifact(catalog, key)
    except NotFoundError:
        return None


def _tables(versions: Sequence[Artifact], basis: str | None) -> Sequence[Artifact]:
    """Return the versions whose growth determines the growth of the job. For a dataset with a known basis,
    only the growth of the table of the basis is used. For all other jobs, the growth of all input versions
    except models is used."""
    own = [one for one in versions if basis is not None and one.name.rpartition("/")[2] == basis]
    return own or [one for one in versions if one.kind != ArtifactKind.MODEL]


def _ratio(now: Sequence[Artifact], before: Sequence[Artifact]) -> float:
    """Return the ratio of the rows of two sizes, otherwise the ratio of their bytes. The result is 1 if
    neither the rows nor the bytes are known."""
    for count in (_rows, _bytes):
        if (then := sum(map(count, before))) and (later := sum(map(count, now))):
            return later / then
    return 1.0


def _rows(version: Artifact) -> int:
    return version.output.rows or 0


def _bytes(version: Artifact) -> int:
    return version.output.size_bytes
