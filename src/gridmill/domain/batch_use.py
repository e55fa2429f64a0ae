"""The time for which a batch service ran an attempt, and the record with which its cost is counted."""

import re

from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.lease import LaunchTry, Lease, LeaseState, RentalTerms, TryState
from gridmill.domain.lease_cost import Subject, counted

_NOT_PLAIN = re.compile(r"[^\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchUse:
    """The time for which a batch service ran an attempt: from the start of its container, `started`, to its
    end, `ended`, as Unix times in seconds. `price_micros` is the price per hour of the attempt's part of a
    machine in micro-units of `currency`, or None if it is unknown."""

    site: str
    job_id: str
    region: str
    started: float
    ended: float
    price_micros: int | None
    currency: str
    spot: bool = False


def account_of(
    use: BatchUse, attempt_id: str, subject: Subject, *, resource: str, deployment_id: str, pod_id: str
) -> Lease:
    """Return the closed lease with which the cost of the attempt is counted for its job. Repeated calls for
    an attempt return a lease with the same id."""
    tried = LaunchTry(
        number=1,
        token=use.job_id,
        region=use.region,
        zone="",
        instance_type="batch job",
        spot=use.spot,
        price_micros=use.price_micros,
        currency=use.currency,
        state=TryState.ENDED,
        machine_id=use.job_id,
        at=use.started,
        confirmed=use.started,
        ended=use.ended,
    )
    lease = Lease(
        id=f"batch.{_NOT_PLAIN.sub('.', attempt_id)}",
        provider=use.site,
        owner="",
        resource=resource,
        deployment_id=deployment_id,
        pod_id=pod_id,
        state=LeaseState.CLOSED,
        terms=RentalTerms(currency=use.currency),
        tries=(tried,),
        opened=use.started,
        ready=use.started,
        closed=use.ended,
        counted=use.started,
        project=subject[0],
        is_batch=True,
    )
    running = counted(lease, {subject: 1}, use.started)
    return replace(counted(running, {}, use.ended), counted=use.ended)
