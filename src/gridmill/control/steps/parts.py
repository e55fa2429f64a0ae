"""This module runs jobs in parts: a ready job is divided into parts, and the results are combined when the
parts have ended."""

from functools import partial

from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import Channels, Endings
from gridmill.control.steps.end_attempt import ManifestWriteError, measure_nodes, publish, runs
from gridmill.control.steps.gangs import members_of, send_to_pod, stop_message
from gridmill.control.steps.output_folders import discard_parts, part_id, parts_of
from gridmill.domain.command import Each
from gridmill.domain.frozen import replace
from gridmill.domain.job import JobSize
from gridmill.domain.pod_protocol import JobPart
from gridmill.domain.resource import Sizing
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.site import Site
from gridmill.domain.states import DONE_JOBS, FINISHED_JOBS, JobState, RunState
from gridmill.scheduler.feasibility import asked_of
from gridmill.scheduler.sizing import size_job
from gridmill.scheduler.splitting import cut_job

_MOST_TOLD = 5


def cut(ledger: Ledger, transaction: Transaction, job_run: JobRun) -> JobRun:
    """Divide a ready job into parts, and return the changed job. The returned job is RUNNING, and its parts
    are WAITING. The job is returned unchanged if it is not useful to divide it, or if another job that makes
    the same artifact must run first."""
    snapshot = ledger.snapshot
    resource = snapshot.resource_of(job_run.resource, job_run.job.kind)
    site = snapshot.sites.get(resource.site) if resource else None
    if resource is None or site is None or job_run.probe is not None:
        return job_run
    if job_run.job.each is not None:
        return _on_each(transaction, job_run, job_run.job.each, site)
    size = job_run.size or JobSize()
    sized = partial(
        size_job,
        size=size,
        history=snapshot.history,
        pipeline=job_run.pipeline,
        resource=resource,
        largest=asked_of(snapshot, resource, snapshot.largest_pod(site.name)),
        nodes=len(site.nodes),
    )
    sizes = cut_job(job_run.job, size, resource, site, sized)
    if sizes is None or not _has_turn(ledger, transaction, job_run):
        return job_run
    for number in range(sizes.count):
        part = JobPart(of=job_run.id, number=number, count=sizes.count)
        transaction.put(_part(transaction, job_run, part, sizes.part))
    return replace(
        job_run, state=JobState.RUNNING, parts=sizes.count, sizing=sizes.whole, started=transaction.now
    )


def _on_each(transaction: Transaction, job_run: JobRun, each: Each, site: Site) -> JobRun:
    """Return the job with one part for every node that matches. If the memory of a node is smaller than the
    estimate for a part, the node still gets a part."""
    nodes = sorted(filter(each.matches, site.nodes), key=lambda node: node.name)
    if not nodes:
        names = ", ".join(node.name for node in site.nodes) or "none"
        message = f"no node of site {site.name} matches `each` (its nodes are {names})"
        return replace(job_run, state=JobState.FAILED, message=message, ended=transaction.now)
    asked = job_run.sizing.amounts
    for number, node in enumerate(nodes):
        part = JobPart(of=job_run.id, number=number, count=len(nodes), node=node.name)
        most = asked.memory_bytes if job_run.job.memory_bytes else node.capacity.memory_bytes
        amounts = replace(asked, memory_bytes=min(asked.memory_bytes, most))
        transaction.put(_part(transaction, job_run, part, replace(job_run.sizing, amounts=amounts)))
    return replace(job_run, state=JobState.RUNNING, parts=len(nodes), started=transaction.now)


def _has_turn(ledger: Ledger, transaction: Transaction, job_run: JobRun) -> bool:
    lines = ledger.snapshot.lines
    turn = lines.turn_of(job_run)
    also = (noun for noun in transaction.nouns.values() if isinstance(noun, JobRun) and noun.parts)
    return lines.turns.before(turn, job_run.id) is None and all(lines.turn_of(one) != turn for one in also)


def _part(transaction: Transaction, job_run: JobRun, part: JobPart, sizing: Sizing) -> JobRun:
    """Return a part that is ready to run. If the run was resumed, the number of attempts of the part
    continues from its earlier value."""
    before = transaction.get(JobRun, part_id(job_run.id, part.number))
    return replace(
        job_run,
        id=part_id(job_run.id, part.number),
        state=JobState.WAITING,
        part=part,
        sizing=sizing,
        attempts=before.attempts if before else 0,
        attempt_id=None,
        artifacts=(),
    )


def gather(endings: Endings, transaction: Transaction, run: Run, job_run: JobRun) -> JobRun:
    """Return the job after its parts have ended. The new state of the job is WAITING if an attempt must
    combine the results of the parts, SUCCEEDED if no such attempt is needed, and otherwise FAILED or
    STOPPED. While a part is still running, the job is returned unchanged. If a part has failed, the other
    parts are stopped, except for an `each` job."""
    parts = tuple(parts_of(transaction, job_run))
    bad = [part for part in parts if part.state in FINISHED_JOBS - DONE_JOBS]
    each = job_run.job.each is not None
    if (bad and not each) or run.state != RunState.ACTIVE:
        parts = tuple(_stopped(endings.channels, transaction, part) for part in parts)
    if any(part.state not in FINISHED_JOBS for part in parts):
        return job_run
    if not bad and each:
        measure_nodes(transaction, job_run, parts)
        discard_parts(endings.discarded, transaction, job_run)
        done = replace(job_run, state=JobState.SUCCEEDED, ended=transaction.now)
        try:
            return publish(endings.catalog, endings.storage, transaction, done, attempt=None, outputs=())
        except ManifestWriteError as error:
            return replace(done, state=JobState.FAILED, message=str(error))
    if not bad and run.state == RunState.ACTIVE:
        return replace(job_run, state=JobState.WAITING, ready=transaction.now)
    discard_parts(endings.discarded, transaction, job_run)
    failed = [part for part in bad if part.state == JobState.FAILED]
    if failed:
        reasons = "; ".join(f"{_called(part)}: {part.message}" for part in failed[:_MOST_TOLD])
        left = len(failed) - _MOST_TOLD
        message = f"{reasons}; and {left} more" if left > 0 else reasons
        return replace(job_run, state=JobState.FAILED, message=message, ended=transaction.now)
    return replace(job_run, state=JobState.STOPPED, message="stopped", ended=transaction.now)


def _called(part_run: JobRun) -> str:
    assert part_run.part is not None
    if part_run.part.node:
        return f"on {part_run.part.node}"
    return f"part {part_run.part.number + 1} of {part_run.part.count}"


def _stopped(channels: Channels, transaction: Transaction, part_run: JobRun) -> JobRun:
    """Ask a part of a job to end, and return the changed part. A part that has already ended is returned
    unchanged."""
    if part_run.state in (JobState.BLOCKED, JobState.WAITING):
        part_run = replace(part_run, state=JobState.STOPPED, message="stopped", ended=transaction.now)
        transaction.put(part_run)
    elif part_run.state == JobState.RUNNING:
        stop_attempt(channels, transaction, part_run)
    return part_run


def stop_attempt(channels: Channels, transaction: Transaction, job_run: JobRun) -> None:
    """Ask the live attempt of the job to end, if there is one. For a gang, the function asks all ranks to
    end."""
    attempt = transaction.get(Attempt, job_run.attempt_id or "")
    if attempt is None:
        return
    for one in members_of(transaction, attempt) if attempt.ranks else (attempt,):
        if runs(one):
            transaction.put(replace(one, stop_requested=True))
            message = stop_message(channels, one.id, "stopped on request", job_run.job)
            transaction.then(partial(send_to_pod, channels, one.pod_id, message))
