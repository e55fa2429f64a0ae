"""This module has the tick that ends measurements for which a machine would have to be rented."""

from collections.abc import Sequence

from gridmill.control.state import Endings
from gridmill.domain.amounts import Amounts
from gridmill.domain.deployment import Pod
from gridmill.domain.frozen import replace
from gridmill.domain.run import JobRun
from gridmill.domain.service import CALIBRATION_JOB, CALIBRATION_NAME
from gridmill.domain.site import SiteKind
from gridmill.domain.states import DeploymentState, JobState
from gridmill.scheduler.snapshot import Snapshot


def refuse_measurements(endings: Endings, now: float) -> None:
    """Fail the measurements that wait for a rented machine on which they do not fit now. A measurement on the
    machine of a running service never rents another machine, so it starts at once or not at all."""
    snapshot = endings.ledger.snapshot
    names = [
        f"{one.id}/{CALIBRATION_JOB}" for one in snapshot.runs.values() if one.pipeline == CALIBRATION_NAME
    ]
    if not names:
        return
    transaction = endings.ledger.begin(now)
    for name in names:
        job_run = transaction.get(JobRun, name)
        if job_run is None or not _waits_for_rented_machine(snapshot, job_run):
            continue
        after = decide_measurement(job_run, _free(snapshot, job_run), transaction.now)
        if after is not job_run:
            transaction.put(after)
            endings.candidates.add(job_run.run_id, [job_run.id])
    if transaction.nouns:
        endings.ledger.stage(transaction)


def decide_measurement(job_run: JobRun, free: Sequence[Amounts], now: float) -> JobRun:
    """Decide whether a waiting measurement can start now. `free` has the free amounts of the machines on
    which it may run. If it fits on none of them, it fails."""
    needed = replace(job_run.sizing.amounts, cpus=job_run.job.cpus or 0.0)
    if any(needed.fits_in(one) for one in free):
        return job_run
    message = (
        "the machine of the service has too few free CPUs or too little free memory for a measurement now, "
        "or it has ended; no other machine is rented for it"
    )
    return replace(job_run, state=JobState.FAILED, message=message, ended=now)


def _waits_for_rented_machine(snapshot: Snapshot, job_run: JobRun) -> bool:
    resource = snapshot.resources.get(job_run.resource)
    site = snapshot.sites.get(resource.site) if resource is not None else None
    return job_run.state is JobState.WAITING and site is not None and site.kind is SiteKind.CLOUD


def _free(snapshot: Snapshot, job_run: JobRun) -> tuple[Amounts, ...]:
    """Return what is free in the pods on the node of a measurement that do not end soon."""
    spec = job_run.job.service
    wanted = (job_run.resource, DeploymentState.UP, spec.node if spec is not None else "", None)
    return tuple(
        _left(snapshot, pod)
        for one in snapshot.deployments.values()
        for pod in one.pods
        if (one.resource, one.state, pod.node, pod.ends) == wanted
    )


def _left(snapshot: Snapshot, pod: Pod) -> Amounts:
    given = [one.given for one in snapshot.attempts_on(pod.id)]
    return Amounts(
        cpus=max(0.0, pod.capacity.cpus - sum(one.cpus for one in given)),
        memory_bytes=max(0, pod.capacity.memory_bytes - sum(one.memory_bytes for one in given)),
        gpus=max(0, pod.capacity.gpus - sum(one.gpus for one in given)),
    )
