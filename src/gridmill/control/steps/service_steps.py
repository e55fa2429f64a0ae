"""This module makes the next step of each service whose replicas run at sites of one kind, in one commit."""

from collections.abc import Callable
from math import inf

from gridmill.control.ledger import Ledger, Transaction
from gridmill.domain.run import Run
from gridmill.domain.service import Service
from gridmill.domain.site import SiteKind
from gridmill.domain.states import RunState
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


def _is_at(snapshot: Snapshot, service: Service, kind: SiteKind) -> bool:
    if service.route is None or not service.is_meant_to_run or service.retry_at is not None:
        return False
    site = snapshot.sites.get(service.route.site)
    return site is not None and site.kind is kind
