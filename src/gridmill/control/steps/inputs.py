"""This module finds the inputs of a job: its input versions, its size, and the order for its pod."""

from collections.abc import Mapping
from functools import partial

from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.steps.damage import may_have_lost_versions
from gridmill.control.steps.gangs import gang_for
from gridmill.control.steps.output_folders import folders_of_parts, output_uri
from gridmill.control.steps.references import fetch_artifact
from gridmill.control.steps.result_names import unknown_name
from gridmill.control.steps.services import service_order, service_views
from gridmill.control.steps.source_listing import NOTHING, SourceListing
from gridmill.domain.artifact import Artifact, ArtifactKind, Input
from gridmill.domain.job import Job, JobKind, JobSize, check_kind
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.route import Staging
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.site import LOCAL
from gridmill.domain.version_manifest import contents_uri
from gridmill.errors import InputError, NotFoundError
from gridmill.ports.storage import Storage
from gridmill.scheduler.needs import failed_before


def leaves_checkpoints(job: Job) -> bool:
    """Return whether attempts of the job leave a checkpoint from which the next attempt resumes."""
    return job.kind == JobKind.TRAINING or bool(job.gang) or job.can_resume


def checkpoints_of(run: Run, job_run: JobRun, fingerprint: str, same: Artifact | None) -> str:
    """Return the folder in which attempts of a training, a gang or a job that can resume leave checkpoints
    for the next attempt. The checkpoint folder is deleted when an attempt of the job succeeds. The result is
    empty for jobs that leave no checkpoints.

    Attempts share a folder only if they do the same work (the fingerprint) and never run at the same time
    (`ExclusiveTurns`). Jobs of runs without parameters and jobs of runs with parameters may run at the same
    time, so their folders differ. If the job is repeated although the version `same` exists, the job gets
    another checkpoint folder, because the deletion of the old folder may not be finished.
    """
    if not leaves_checkpoints(job_run.job):
        return ""
    again = f"-after-{same.number}" if same is not None else ""
    return f"checkpoints/{job_run.name}/{fingerprint[:32]}{'' if run.parameters else '-plain'}{again}"


def table_uri(job_run: JobRun) -> str:
    """Return the path of the Delta table of a sink, below the storage root."""
    return f"sinks/{job_run.name}/table" if job_run.job.kind == JobKind.SINK else ""


def inputs_of(catalog: Catalog, transaction: Transaction, job_run: JobRun) -> tuple[Input, ...]:
    """Return the versions that a job reads: the versions of the jobs that it needs, and versions of other
    pipelines. The versions of other pipelines are fixed when the run begins.

    Raises InputError if a version does not exist, was removed, or has another kind.
    """
    run = transaction.get(Run, job_run.run_id)
    inputs: list[Input] = []
    for need in job_run.needs:
        needed = transaction.get(JobRun, need)
        for artifact_id in needed.artifacts if needed else ():
            artifact = fetch_artifact(catalog, artifact_id)
            inputs.append(Input(name=need.rpartition("/")[2], artifact=_kept(artifact, job_run)))
    for name in job_run.job.external_names:
        if name in job_run.job.optional_names and (run is None or name not in run.settled):
            continue
        settled = _settled(catalog, run, name, job_run)
        check_kind(job_run.job, name, settled)
        inputs.append(Input(name=name, artifact=_kept(settled, job_run)))
    return tuple(inputs)


def _kept(artifact: Artifact, job_run: JobRun) -> Artifact:
    if artifact.removed:
        raise InputError(
            f"job {job_run.job.name!r} reads {artifact.id}, which was removed",
            hint=f"To make a new version: `gridmill run {artifact.name.partition('/')[0]}`.",
        )
    return artifact


def _settled(catalog: Catalog, run: Run | None, name: str, job_run: JobRun) -> Artifact:
    """Return the version that a name means in the run. Raises InputError if the name had no version when the
    run began."""
    artifact_id = run.settled.get(name) if run is not None else None
    if artifact_id is not None:
        return fetch_artifact(catalog, artifact_id)
    raise unknown_name(catalog, name, job_run.job) or InputError(
        f"job {job_run.job.name!r} reads {name!r}, which did not exist when run {job_run.run_id} began",
        hint=f"{name} exists now. Repeat the job: `gridmill resume {job_run.run_id}`, or start a new run.",
    )


def size_of(job: Job, inputs: tuple[Input, ...], source_bytes: int) -> JobSize:
    """Return the size of the job as far as it is known from its declaration, its sources and its inputs.
    Models are not counted as data of the job."""
    tables = [entry.artifact.output for entry in inputs if entry.artifact.kind != ArtifactKind.MODEL]
    rows = sum(output.rows or 0 for output in tables)
    columns = max((len(output.columns) for output in tables), default=0)
    size = sum(output.size_bytes for output in tables)
    if job.sink:
        size = source_bytes
    return JobSize(rows=job.rows or rows or None, columns=columns or None, input_bytes=size or None)


def declared_sizes(
    catalog: Catalog, pipeline: Pipeline, listings: Mapping[str, SourceListing]
) -> Mapping[str, JobSize]:
    """Return the sizes of jobs before a run: from the listed sources, and from the newest versions that each
    job reads."""
    sizes: dict[str, JobSize] = {}
    for job in pipeline.jobs:
        inputs: list[Input] = []
        for name in job.all_needs:
            artifact = catalog.newest_artifact(f"{pipeline.name}/{name}")
            if artifact is not None and not artifact.removed:
                inputs.append(Input(name=name, artifact=artifact))
        sizes[job.name] = size_of(job, tuple(inputs), listings.get(job.name, NOTHING).size_bytes)
    return sizes


def kept_versions(ledger: Ledger, job_run: JobRun) -> tuple[int, ...]:
    """Return the versions of a sink's table to which an artifact refers. If the record of an artifact may be
    lost, the result is empty, which means that the files of all versions are kept."""
    if may_have_lost_versions(ledger):
        return ()
    artifacts = ledger.read_all(Artifact, parent=job_run.name)
    versions = {one.output.table_version for one in artifacts if not one.removed}
    return tuple(sorted(version for version in versions if version is not None))


def _shared_bundle(
    ledger: Ledger, storage: Storage, job_run: JobRun, bundle: str | None, attempt: Attempt
) -> str:
    """Return the path where the pod finds the code if the job needs code and the pod is on another machine;
    otherwise return an empty text."""
    deployment = ledger.snapshot.deployments.get(attempt.deployment_id)
    elsewhere = deployment is not None and deployment.site != LOCAL
    return storage.shared_bundle(bundle) if bundle and elsewhere and job_run.job.runs_code else ""


def _staging(ledger: Ledger, attempt: Attempt) -> Staging:
    """Return the way in which data is transferred for the attempt, as its resource declares it now."""
    snapshot = ledger.snapshot
    deployment = snapshot.deployments.get(attempt.deployment_id)
    resource = snapshot.resources.get(deployment.resource) if deployment is not None else None
    return (resource.staging if resource is not None else None) or Staging.DIRECT


def order_for(catalog: Catalog, storage: Storage, transaction: Transaction, attempt: Attempt) -> AttemptOrder:
    """Return the order for the pod of an attempt."""
    job_run = transaction.get(JobRun, attempt.job_run_id)
    run = transaction.get(Run, attempt.run_id)
    if job_run is None or run is None:
        raise NotFoundError(f"attempt {attempt.id} has no job")
    inputs = inputs_of(catalog, transaction, job_run)
    earlier = catalog.newest_artifact(job_run.name)
    uri = output_uri(job_run, attempt.gang or attempt.id)
    return AttemptOrder(
        attempt_id=attempt.id,
        token=attempt.token,
        run_id=run.id,
        pipeline=run.pipeline,
        job=job_run.job,
        given=attempt.given,
        root=storage.location,
        output_uri=uri,
        table_uri=table_uri(job_run),
        checkpoint_uri=job_run.checkpoints,
        folder=run.folder,
        bundle=run.bundle,
        bundle_path=_shared_bundle(catalog.ledger, storage, job_run, run.bundle, attempt),
        inputs=inputs,
        earlier=(Input(name=job_run.job.name, artifact=earlier),) if earlier and not earlier.removed else (),
        kept_versions=kept_versions(catalog.ledger, job_run) if job_run.job.sink else (),
        workers=job_run.sizing.workers,
        gpu_indices=attempt.gpu_indices,
        size=job_run.size or size_of(job_run.job, inputs, 0),
        share=job_run.probe or 1.0,
        part=job_run.part,
        parts=folders_of_parts(transaction, job_run),
        gang=gang_for(catalog.ledger, transaction, attempt, job_run),
        staging=_staging(catalog.ledger, attempt),
        failed=failed_before(job_run, partial(transaction.get, JobRun)),
        contents_uri=contents_uri(uri) if job_run.part is None and job_run.probe is None else "",
        service=service_order(catalog, storage, transaction, job_run.job, attempt),
        views=service_views(catalog, storage, transaction, job_run.job),
    )
