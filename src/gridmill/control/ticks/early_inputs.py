"""This module has the tick that transfers the inputs of the next jobs to machines on which other jobs still
run.

The tick changes no records. The attempts of these jobs do not exist yet, and a site releases the inputs when
the control node no longer requests them, or after a time without a request.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Transaction
from gridmill.control.state import ControlTimeouts, EarlyTurns, Starting
from gridmill.control.steps.inputs import order_for
from gridmill.domain.deployment import Deployment
from gridmill.domain.run import Attempt, JobRun, attempt_id_of
from gridmill.domain.states import AttemptState
from gridmill.errors import GridmillError
from gridmill.ports.site import EarlyTransferSite, NextAttempt, SitePort
from gridmill.ports.storage import Storage
from gridmill.scheduler.early_inputs import NextJob, next_jobs


def transfer_early(
    starting: Starting, ports: Mapping[str, SitePort], turns: EarlyTurns, limits: ControlTimeouts
) -> None:
    """Request the early transfers of each site: for the job that will probably start next on each busy pod.
    The tick does this at most once in each interval of observations."""
    now, snapshot = starting.timeline.clock.monotonic(), starting.ledger.snapshot
    sites = {name: one for name, one in ports.items() if isinstance(one, EarlyTransferSite)}
    if now < turns.next_at or not sites:
        return
    turns.next_at = now + limits.observe_seconds
    transaction = starting.ledger.begin(starting.timeline.now())
    chosen = next_jobs(snapshot, transaction.now)
    attempts = _attempts(starting.endings.catalog, starting.endings.storage, transaction, chosen)
    for name, some in decide_transfers(snapshot.deployments.values(), attempts, sites.keys()).items():
        sites[name].transfer_early(some)


def decide_transfers(
    deployments: Iterable[Deployment], attempts: Sequence[NextAttempt], sites: AbstractSet[str]
) -> Mapping[str, tuple[NextAttempt, ...]]:
    """Decide the early transfers of each site: those for the next attempts on its pods. A site without a next
    attempt has an empty entry, so that it ends the transfers for earlier requests."""
    places = {pod.id: one.site for one in deployments for pod in one.pods}
    return {
        name: tuple([one for one in attempts if places.get(one.pod_id) == name]) for name in sorted(sites)
    }


def _attempts(
    catalog: Catalog, storage: Storage, transaction: Transaction, chosen: Sequence[NextJob]
) -> tuple[NextAttempt, ...]:
    found: list[NextAttempt] = []
    deployments = catalog.ledger.snapshot.deployments.values()
    homes = {pod.id: one.id for one in deployments for pod in one.pods}
    for one in chosen:
        job_run = transaction.get(JobRun, one.job_run_id)
        if job_run is None:
            continue
        attempt = _expected_attempt(job_run, homes[one.pod_id], one.pod_id, transaction.now)
        try:
            order = order_for(catalog, storage, transaction, attempt)
        except GridmillError:
            continue  # the start of the attempt reports the error
        found.append(NextAttempt(pod_id=one.pod_id, order=order))
    return tuple(found)


def _expected_attempt(job_run: JobRun, deployment_id: str, pod_id: str, now: float) -> Attempt:
    """Return the attempt that the job will probably start next. It has no token, so no pod accepts it."""
    return Attempt(
        id=attempt_id_of(job_run.id, job_run.attempts + 1),
        run_id=job_run.run_id,
        job_run_id=job_run.id,
        token="",
        deployment_id=deployment_id,
        pod_id=pod_id,
        state=AttemptState.PLACED,
        given=job_run.sizing.amounts,
        placed=now,
        project=job_run.project,
    )
