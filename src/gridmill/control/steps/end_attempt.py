"""This module ends an attempt: its record, the next state of its job, the versions that it made, and its
measured use.

If an unexpected error (a defect of Gridmill itself) occurs at one job, this job fails with a message, and
all other jobs continue.
"""

import traceback
from collections.abc import Sequence
from functools import partial

from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import Candidates, Endings, Problems, ReportedProgress
from gridmill.control.steps.gangs import note_end
from gridmill.control.steps.job_terms import over_budget
from gridmill.control.steps.latest import note_latest
from gridmill.control.steps.lineage import with_origin
from gridmill.control.steps.output_folders import discard_parts, left_behind, output_uri, parts_of
from gridmill.control.steps.promotions import note_promotion
from gridmill.control.steps.provenance import is_declared_alike, look_up_provenance, note_made
from gridmill.control.steps.service_measuring import after_measuring
from gridmill.control.steps.services import note_calibration, note_log_end
from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.batch_use import account_of
from gridmill.domain.frozen import replace
from gridmill.domain.job import JobSize
from gridmill.domain.lease import Lease
from gridmill.domain.pipeline import place_message
from gridmill.domain.pod_protocol import AttemptOutcome, PartReport
from gridmill.domain.project import Project
from gridmill.domain.provenance import Provenance
from gridmill.domain.resource import MeasuredUse, Measurement
from gridmill.domain.route import Route
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.sink_status import WAITING
from gridmill.domain.site import LOCAL, Site
from gridmill.domain.states import (
    ATTEMPT_MOVES,
    DONE_JOBS,
    FINISHED_JOBS,
    LIVE_ATTEMPTS,
    AttemptState,
    Cause,
    JobState,
    check_move,
)
from gridmill.domain.usage import ParallelTiming
from gridmill.domain.version_manifest import contents_uri
from gridmill.errors import GridmillError, InternalError, StorageError
from gridmill.ports.storage import Storage
from gridmill.scheduler.bottleneck import has_workers
from gridmill.scheduler.fair_share import charged
from gridmill.scheduler.gang_results import parallel_of_swarm, parallel_of_whole, together_used, use_of_whole
from gridmill.scheduler.history import PROBE
from gridmill.scheduler.needs import may_go_on
from gridmill.scheduler.outcomes import settle
from gridmill.scheduler.site_choice import learned
from gridmill.scheduler.sizing import declared_as, model_bytes, subject_of


def defect(problems: Problems, job: str, error: Exception) -> InternalError:
    """Return the message about an unexpected error. The traceback of the error is written to the log of the
    control node."""
    problems.warn(
        f"an internal error of Gridmill at {job}:\n{''.join(traceback.format_exception(error)).rstrip()}"
    )
    return InternalError(
        f"an internal error of Gridmill: {type(error).__name__}: {error}".rstrip(": "),
        hint="The traceback is in the control node's log; please report it. `gridmill resume` tries again.",
    )


LOST = AttemptOutcome(state=AttemptState.LOST, cause=Cause.LOST, message="its pod does not exist any more")


class ManifestWriteError(Exception):
    """This error means that the manifest of a version could not be written, so that the version does not
    exist."""


def runs(attempt: Attempt) -> bool:
    """Return whether the attempt can still send events. An attempt can send no events if it has ended, or if
    it is a rank that has ended and waits for the other ranks."""
    return attempt.state in LIVE_ATTEMPTS and attempt.outcome is None


def settle_attempt(
    endings: Endings, transaction: Transaction, attempt: Attempt, outcome: AttemptOutcome
) -> None:
    """Record all consequences of the end of an attempt, in one transaction.

    If a defect of Gridmill prevents this, or if the manifests of the attempt's versions cannot be written,
    only that attempt fails.
    """
    inner = transaction.within()
    try:
        _settle(endings, inner, attempt, outcome)
    except GridmillError:
        raise
    except ManifestWriteError as error:
        inner = transaction.within()
        endings.catalog.newest_artifacts.clear()
        failed = AttemptOutcome(state=AttemptState.FAILED, cause=Cause.STORAGE, message=str(error))
        _settle(endings, inner, attempt, failed)
    except Exception as error:  # noqa: BLE001  a retry would fail again and block every run
        inner = transaction.within()
        endings.catalog.newest_artifacts.clear()
        error_text = defect(endings.problems, attempt.id, error)
        failed = AttemptOutcome(
            state=AttemptState.FAILED, cause=Cause.INTERNAL, message=error_text.message, hint=error_text.hint
        )
        _settle(endings, inner, attempt, failed)
    transaction.join(inner)


def _settle(endings: Endings, transaction: Transaction, attempt: Attempt, outcome: AttemptOutcome) -> None:
    _count_cost(endings, transaction, attempt, outcome)
    if attempt.ranks:
        whole = note_end(endings.channels, transaction, attempt, outcome)
        if whole is None:
            return
        attempt, outcome = whole
    job_run = transaction.get(JobRun, attempt.job_run_id)
    ended = _ended(endings.reported, attempt, _placed(outcome, job_run), transaction.now)
    transaction.put(ended)
    _charge(endings.ledger, transaction, ended)
    if job_run is not None and ended.state != AttemptState.SUCCEEDED:
        transaction.then(partial(endings.discarded.extend, left_behind(job_run, attempt.id)))
    if job_run is not None and job_run.job.service is not None:
        note_log_end(endings.storage, transaction, job_run, attempt.id)
    if job_run is None or job_run.attempt_id != attempt.id:
        return
    out_of_memory = ended.cause == Cause.MEMORY
    largest, whose = _most_memory(endings.ledger, job_run) if out_of_memory else (0, "")
    after = settle(job_run, ended, transaction.now, largest=largest, whose=whose)
    if after.state is JobState.WAITING and (why := over_budget(endings.ledger, after, transaction.now)):
        after = replace(after, state=JobState.FAILED, message=why, ended=transaction.now)
    line = endings.reported.last_lines.get(job_run.id, "")
    if line and after.state in (JobState.SUCCEEDED, JobState.FAILED):
        after = replace(after, message=f"{after.message}: {line}" if after.message else line)
    if after.state in DONE_JOBS and job_run.probe is not None:
        transaction.then(partial(endings.discarded.extend, left_behind(job_run, attempt.id)))
    elif after.state in DONE_JOBS and job_run.job.service is not None:
        note_calibration(endings.ledger, transaction, job_run, outcome)
        after = after_measuring(endings.catalog, transaction, after, ended)
    elif after.state in DONE_JOBS and job_run.part is None:
        after = publish(
            endings.catalog, endings.storage, transaction, after, attempt=ended, outputs=outcome.outputs
        )
        note_latest(endings.ledger, endings.storage, endings.problems, transaction, after)
        after = note_promotion(endings.ledger, endings.storage, endings.problems, transaction, after, outcome)
        if job_run.checkpoints:
            transaction.then(partial(endings.discarded.append, job_run.checkpoints))
    if job_run.part is not None:
        after = replace(after, part_report=_part_report(ended))
    transaction.put(after)
    _update_route(endings.ledger, transaction, after, ended)
    merged = _whole(transaction, after, outcome)
    if merged is not None:
        measured = job_run if after.job.service is not None else after
        measure(endings.ledger, transaction, measured, ended, merged)
    if after.state in FINISHED_JOBS:
        dependents = may_go_on(endings.ledger.snapshot, job_run.id)
        endings.candidates.add(job_run.run_id, dependents or [job_run.id])
        _look_again(endings.ledger, endings.candidates, transaction, job_run)
        discard_parts(endings.discarded, transaction, job_run)
    transaction.then(partial(_clear_job_caches, endings.reported, job_run.id))


def _part_report(ended: Attempt) -> PartReport | None:
    if ended.state != AttemptState.SUCCEEDED:
        return None
    return PartReport(
        began=ended.started or ended.placed, ended=ended.ended or ended.placed, use=ended.use or MeasuredUse()
    )


def _whole(transaction: Transaction, job_run: JobRun, outcome: AttemptOutcome) -> AttemptOutcome | None:
    """Return the outcome from which the whole job is measured. If the job ran in parts, the result is the
    outcome of the attempt that combined the parts, with the use of all parts. The result is None if the job
    cannot be measured from the outcome. A job is not measured from the outcome of one of its parts. An
    `each` job is an exception if one of its nodes needed more memory."""
    if job_run.part is not None:
        return outcome if job_run.part.node and outcome.cause == Cause.MEMORY else None
    if not job_run.parts:
        return outcome
    reports = [part.part_report for part in parts_of(transaction, job_run) if part.part_report is not None]
    if len(reports) < job_run.parts:
        return None
    parallel = _parallel(job_run, outcome, reports)
    return replace(outcome, use=use_of_whole(reports, outcome.use or MeasuredUse()), parallel=parallel)


def _parallel(
    job_run: JobRun, outcome: AttemptOutcome, part_reports: Sequence[PartReport]
) -> ParallelTiming | None:
    """Return the parallel timing of a job in parts. For a prediction, the timing is the timing that its
    workers have reported. For any other job, the parts of the job are treated as its workers."""
    if outcome.parallel is not None:
        return parallel_of_swarm(outcome.parallel, part_reports)
    if has_workers(job_run.job):
        return None
    rows, unit = _extent(job_run)
    return parallel_of_whole(f"{subject_of(job_run.job, job_run.pipeline)} by {unit}", rows, part_reports)


def _extent(job_run: JobRun) -> tuple[int, str]:
    """Return the amount of work of the job, and the unit in which it is counted."""
    size = job_run.size or JobSize()
    if job_run.job.sink is not None and size.input_bytes:
        return size.input_bytes, "bytes"
    return (size.rows, "rows") if size.rows else (1, "whole")


def _update_route(ledger: Ledger, transaction: Transaction, job_run: JobRun, ended: Attempt) -> None:
    """Update the route of the site with the attempt's transfers: the rates, and the versions that the site
    has now."""
    deployment = ledger.snapshot.deployments.get(ended.deployment_id)
    site = transaction.get(Site, deployment.site) if deployment is not None else None
    if site is None or ended.transfers is None:
        return
    artifact_ids = _made_from(transaction, job_run) if ended.started is not None else []
    made = job_run.artifacts if ended.state == AttemptState.SUCCEEDED else ()
    transaction.put(
        replace(site, route=learned(site.route or Route(), ended.transfers, (*artifact_ids, *made)))
    )


def _charge(ledger: Ledger, transaction: Transaction, ended: Attempt) -> None:
    """Add the use of the attempt to the past use of its project, if several projects share the grid."""
    if ledger.snapshot.projects:
        project = transaction.get(Project, ended.project) or Project(name=ended.project)
        places = max(1, ended.given.gpus) * max(1, ended.ranks)
        held = max(0.0, transaction.now - ended.placed)
        transaction.put(charged(project, places * held, transaction.now))


def _count_cost(
    endings: Endings, transaction: Transaction, attempt: Attempt, outcome: AttemptOutcome
) -> None:
    """Count the cost of an attempt, or of a rank, that ran as a job of a batch service."""
    use, job_run = outcome.batch_use, transaction.get(JobRun, attempt.job_run_id)
    if use is None or job_run is None:
        return
    lease = account_of(
        use,
        attempt.id,
        (job_run.project, job_run.run_id, job_run.job.name),
        resource=job_run.resource,
        deployment_id=attempt.deployment_id,
        pod_id=attempt.pod_id,
    )
    if transaction.get(Lease, lease.id) is None:
        transaction.put(lease)
        transaction.then(partial(endings.rentals.note_batch_job, lease))


def _look_again(ledger: Ledger, candidates: Candidates, transaction: Transaction, job_run: JobRun) -> None:
    """Check jobs of other runs that waited for this job and may need its result."""
    snapshot = ledger.snapshot
    for key in snapshot.lines.turns.behind(snapshot.lines.turn_of(job_run)):
        other = transaction.get(JobRun, key)
        if other is not None and other.state == JobState.WAITING and not other.attempts:
            transaction.put(replace(other, state=JobState.BLOCKED))
            candidates.add(other.run_id, [other.id])


def _clear_job_caches(reported: ReportedProgress, job_run_id: str) -> None:
    reported.drop(job_run_id)


def _placed(outcome: AttemptOutcome, job_run: JobRun | None) -> AttemptOutcome:
    """Return the outcome, with the file and line of the field that its message names."""
    if job_run is None or not outcome.message:
        return outcome
    job = job_run.job
    return replace(outcome, message=place_message(outcome.message, job.kind.value, job.name, job_run.lines))


def _ended(reported: ReportedProgress, attempt: Attempt, outcome: AttemptOutcome, now: float) -> Attempt:
    """Return the final record of the attempt, with the values that the job measured."""
    check_move(ATTEMPT_MOVES, attempt.state, outcome.state, f"attempt {attempt.id}")
    return replace(
        attempt,
        state=outcome.state,
        ended=now,
        cause=outcome.cause,
        exit_code=outcome.exit_code,
        message=outcome.message,
        hint=outcome.hint,
        use=outcome.use,
        metrics={**reported.metrics.get(attempt.job_run_id, {}), **outcome.metrics},
        transfers=outcome.transfers,
    )


def _most_memory(ledger: Ledger, job_run: JobRun) -> tuple[int, str]:
    """Return the largest memory of an attempt in bytes, and the name of the resource or site that sets this
    limit."""
    resource = ledger.snapshot.resources.get(job_run.resource)
    site = ledger.snapshot.sites.get(resource.site if resource else LOCAL)
    most = site.largest.memory_bytes if site else 0
    if resource and resource.memory_bytes and resource.memory_bytes <= most:
        return resource.memory_bytes, f"resource {resource.name}"
    return most, f"site {site.name}" if site else "its site"


def publish(
    catalog: Catalog,
    storage: Storage,
    transaction: Transaction,
    job_run: JobRun,
    *,
    attempt: Attempt | None,
    outputs: tuple[Output, ...],
) -> JobRun:
    """Commit the versions that the attempt made. The manifests of these versions are written to the disk
    first. A command without files makes an empty version, so that a later run can find it unchanged. Raises
    ManifestWriteError."""
    outputs = outputs or (Output(kind=ArtifactKind.FILES, uri=""),)
    listed = contents_uri(output_uri(job_run, attempt.gang or attempt.id)) if attempt is not None else ""
    if listed:
        transaction.then(partial(storage.drop_listed, listed))
    same = _unchanged_version(catalog, job_run, outputs)
    if same is not None:
        message = f"as {same.run_id} made it"
        note_made(catalog, transaction, look_up_provenance(catalog, transaction, job_run), same.id)
        return replace(job_run, state=JobState.UNCHANGED, artifacts=(same.id,), message=message)
    made: list[str] = []
    sources = tuple(_made_from(transaction, job_run))
    for output in outputs:
        newest = catalog.newest_artifact(job_run.name)
        number = storage.next_number(
            job_run.name,
            newest.number + 1 if newest else 1,
            attempt.id if attempt is not None else "",
            first=newest is None,
        )
        artifact = Artifact(
            id=f"{job_run.name}@{number}",
            name=job_run.name,
            number=number,
            output=output,
            fingerprint=job_run.fingerprint,
            made_from=sources,
            run_id=job_run.run_id,
            attempt_id=attempt.id if attempt is not None else "",
            created=transaction.now,
        )
        artifact = with_origin(artifact, transaction.get(Run, job_run.run_id), job_run)
        made_as = look_up_provenance(catalog, transaction, job_run)
        _keep_manifest(storage, transaction, artifact, listed, attempt, made_as)
        catalog.newest_artifacts[job_run.name] = artifact
        transaction.put(artifact)
        note_made(catalog, transaction, made_as, artifact.id)
        made.append(artifact.id)
    return replace(job_run, artifacts=tuple(made))


def _keep_manifest(
    storage: Storage,
    transaction: Transaction,
    version: Artifact,
    listed: str,
    attempt: Attempt | None,
    made: Provenance | None,
) -> None:
    provenance = replace(made, artifact=version.id) if made is not None else None
    shared = attempt is not None and bool(attempt.ranks) and version.kind == ArtifactKind.FILES
    try:
        storage.keep_manifest(
            version, listed if version.output.uri else "", shared=shared, provenance=provenance
        )
    except StorageError as error:
        raise ManifestWriteError(f"the manifest of the version could not be written: {error}") from error
    transaction.first(storage.sync_manifests)


def _unchanged_version(catalog: Catalog, job_run: JobRun, outputs: tuple[Output, ...]) -> Artifact | None:
    """Return the newest version if the job checked its sources and the table is unchanged; otherwise return
    None."""
    newest = catalog.newest_artifact(job_run.name)
    if newest is None or newest.removed or len(outputs) != 1:
        return None
    if not is_declared_alike(catalog, job_run.name, newest.fingerprint, job_run.fingerprint):
        return None
    previous, now = newest.output, outputs[0]
    same = now.kind == ArtifactKind.SINK and (previous.uri, previous.table_version) == (
        now.uri,
        now.table_version,
    )
    waiting = [output.details.get(WAITING) or {} for output in (previous, now)]
    return newest if same and waiting[0] == waiting[1] else None


def _made_from(transaction: Transaction, job_run: JobRun) -> list[str]:
    artifact_ids: list[str] = []
    for need in job_run.needs:
        needed = transaction.get(JobRun, need)
        artifact_ids.extend(needed.artifacts if needed else ())
    return [*artifact_ids, *job_run.external]


def measure(
    ledger: Ledger, transaction: Transaction, job_run: JobRun, attempt: Attempt, outcome: AttemptOutcome
) -> None:
    """Record the use of the attempt for the next sizing. Lost and stopped attempts are not measured."""
    killed = outcome.cause == Cause.MEMORY
    if outcome.state != AttemptState.SUCCEEDED and not killed:
        return
    size = _size(job_run, outcome)
    transaction.put(
        Measurement(
            attempt_id=attempt.id,
            subject=subject_of(job_run.job, job_run.pipeline) + (PROBE if job_run.probe else ""),
            job=job_run.name,
            size=size,
            given=attempt.given,
            use=_use_of_all(job_run, outcome.use or MeasuredUse()),
            ended=transaction.now,
            memory_killed=killed,
            waited_seconds=_waited(job_run, attempt),
            parallel=outcome.parallel,
            resource=job_run.resource,
            site=_site_of(ledger, job_run),
            declared=declared_as(job_run.job),
            model_bytes=model_bytes(job_run.job, size, outcome.parallel),
        )
    )


def _site_of(ledger: Ledger, job_run: JobRun) -> str:
    resource = ledger.snapshot.resource_of(job_run.resource, job_run.job.kind)
    return resource.site if resource is not None else ""


def measure_nodes(transaction: Transaction, job_run: JobRun, parts: Sequence[JobRun]) -> None:
    """Record the use of a job that ran on every node. The recorded memory is the memory of the node that
    used the most memory."""
    uses = [(part, part.part_report.use) for part in parts if part.part_report is not None]
    neediest, _ = max(uses, key=lambda one: one[1].peak_memory_bytes)
    transaction.put(
        Measurement(
            attempt_id=neediest.attempt_id or neediest.id,
            subject=subject_of(job_run.job, job_run.pipeline),
            job=job_run.name,
            size=job_run.size or JobSize(rows=job_run.job.rows),
            given=neediest.sizing.amounts,
            use=together_used([use for _, use in uses]),
            ended=transaction.now,
            declared=declared_as(job_run.job),
        )
    )


def _use_of_all(job_run: JobRun, use: MeasuredUse) -> MeasuredUse:
    """Return the combined use of the attempt and of the earlier attempts from whose checkpoints the attempt
    resumed."""
    return replace(use, wall_seconds=use.wall_seconds + job_run.served_seconds)


def _waited(job_run: JobRun, attempt: Attempt) -> float:
    """Return the seconds for which the job waited until it was placed. The result is 0 for a retry, because
    a retry also waits for its backoff."""
    return max(0.0, attempt.placed - job_run.ready) if job_run.attempts == 1 and job_run.ready else 0.0


def _size(job_run: JobRun, outcome: AttemptOutcome) -> JobSize:
    """Return the size of the job's data, which is recorded in its measurement. Values that were known before
    the attempt take precedence, so that measured sizes are comparable with the sizes of plans. Values that
    were unknown before the attempt come from the measurement of the job. For a probe, the measured values
    take precedence."""
    before, measured = job_run.size or JobSize(rows=job_run.job.rows), outcome.size or JobSize()
    return before.or_else(measured) if job_run.probe is None else measured.or_else(before)
