"""This module makes the next step of each service whose replicas run at sites of one kind, in one commit, and
the further jobs of the run of such a service."""

from collections.abc import Callable
from math import inf

from gridmill.control.ledger import Ledger, Transaction
from gridmill.domain.frozen import replace
from gridmill.domain.run import JobRun, Run
from gridmill.domain.service import Service
from gridmill.domain.site import SiteKind
from gridmill.domain.states import JobState, RunState
from gridmill.scheduler.snapshot import Snapshot


def step_services(
    ledger: Ledger, kind: SiteKind, now: float, step: Callable[[Transaction, Run, Service], float]
) -> float:
    """Call `step` for each active service at the sites of a kind. `step` returns the Unix time in seconds at
    which it is due again. Returns the seconds until another step is due."""
    names = [one.name for one in ledger.snapshot.services.values() if _is_at(ledger.snapshot, one, kind)]
    if not names:
        return inf
    transaction, again_at = ledger.begin(now), inf
    for name in names:
        service = transaction.get(Service, name)
        run = transaction.get(Run, service.run_id) if service is not None else None
        if service is not None and run is not None and run.state is RunState.ACTIVE:
            again_at = min(again_at, step(transaction, run, service))
    if transaction.nouns:
        ledger.stage(transaction)
        return 0.0
    return max(0.0, again_at - now)


def further_job(first: JobRun, job: str, before: JobRun | None, now: float) -> JobRun:
    """Return a job of the run of a service with the name `job`, which waits for its first attempt and is like
    the job `first`, whose failures do not count for it. If the run had a job with this name `before`, the
    numbers of its attempts continue."""
    return replace(
        first,
        id=f"{first.run_id}/{job}",
        job=replace(first.job, name=job),
        state=JobState.WAITING,
        attempts=before.attempts if before is not None else 0,
        attempt_id=None,
        failures=0,
        losses=0,
        memory_kills=0,
        interruptions=0,
        served_seconds=0.0,
        waited_seconds=0.0,
        not_before=0.0,
        message="",
        ready=now,
        started=None,
        ended=None,
    )


def _is_at(snapshot: Snapshot, service: Service, kind: SiteKind) -> bool:
    if service.route is None or not service.is_meant_to_run or service.retry_at is not None:
        return False
    site = snapshot.sites.get(service.route.site)
    return site is not None and site.kind is kind
