"""This module has the consequences of finished calls for a lease. Each function is pure, and may be called
with a result that is no longer of interest: then the lease does not change."""

from collections.abc import Mapping

from gridmill.domain.frozen import replace
from gridmill.domain.lease import LaunchTry, Lease, LeaseState, TryProblem, TryState, with_try
from gridmill.domain.machine import Machine
from gridmill.scheduler.rental_choice import Candidate

NONE: Mapping[str, str] = {}


def with_new_try(lease: Lease, candidate: Candidate, token: str, now: float, account: str = "") -> Lease:
    """Return the lease with a further request to `account`, which is sent after the commit. The account of
    earlier requests stays."""
    one = LaunchTry(
        number=len(lease.tries) + 1,
        token=token,
        region=candidate.region,
        zone=candidate.zone,
        instance_type=candidate.instance_type,
        spot=candidate.spot,
        price_micros=candidate.price_micros,
        currency=candidate.currency,
        charges=candidate.charges,
        at=now,
    )
    return replace(
        lease,
        state=LeaseState.LAUNCHING,
        tries=(*lease.tries, one),
        account=lease.account or account,
        address="",
        problem="",
    )


def image_built(lease: Lease, token: str, image_id: str, now: float) -> Lease:
    """Return the lease after its image was finished, so that its machine is ended."""
    one = _try_of(lease, token)
    if one is None or lease.state is not LeaseState.READY:
        return lease
    return replace(
        lease,
        image_id=image_id,
        state=LeaseState.RELEASING,
        reason=f"the image {lease.image_name} is finished: {image_id}",
        release_asked=now,
        problem="",
    )


def image_failed(lease: Lease, token: str, message: str, now: float) -> Lease:
    """Return the lease after its image could not be built. Another attempt would fail too."""
    if _try_of(lease, token) is None or lease.state is not LeaseState.READY:
        return lease
    reason = f"the image {lease.image_name} could not be built: {message}"
    return replace(lease, state=LeaseState.RELEASING, reason=reason, release_asked=now, problem="")


def launched(lease: Lease, token: str, machine: Machine, now: float) -> Lease:
    """Return the lease after the provider has returned the machine of a request."""
    one = _try_of(lease, token)
    if one is None or one.state in (TryState.CONFIRMED, TryState.ENDED):
        return replace(lease, problem="")
    lease, _ = confirmed(replace(lease, problem=""), one, machine, now)
    return replace(lease, state=LeaseState.BOOTING) if lease.state is LeaseState.LAUNCHING else lease


def confirmed(lease: Lease, one: LaunchTry, machine: Machine, now: float) -> tuple[Lease, LaunchTry]:
    """Return the lease and the try after its machine was seen. The provider's time of the start is used for
    the cost, because the control node may have been stopped since then. If another try of the lease may have
    a machine that can be used, or was written later, the machine is surplus."""
    launched_at = now if machine.launched is None else machine.launched
    others = [each for each in lease.tries if each.number != one.number]
    is_surplus = any(
        (not each.is_resolved and each.problem is None) or each.number > one.number for each in others
    )
    changed = replace(
        one,
        state=TryState.CONFIRMED,
        machine_id=machine.id,
        confirmed=min(now, max(one.at, launched_at)),
        ended=None,
        problem=TryProblem.SURPLUS if is_surplus else None,
        message="",
    )
    return with_try(lease, changed), changed


def refused(lease: Lease, token: str, problem: TryProblem, message: str, now: float) -> Lease:
    """Return the lease after the provider has refused a request. A machine that is already known stays."""
    one = _try_of(lease, token)
    if one is None or one.state is not TryState.WRITTEN:
        return lease
    over = replace(one, state=TryState.REFUSED, problem=problem, message=message, ended=now)
    return with_try(replace(lease, problem=""), over)


def prepared(lease: Lease, token: str, address: str, now: float, facts: Mapping[str, str] = NONE) -> Lease:
    """Return the lease after its machine became ready. `facts` describe the machine."""
    one = _try_of(lease, token)
    usable = one is not None and one.state is TryState.CONFIRMED and one.problem is None
    if not usable or lease.state is not LeaseState.BOOTING:
        return lease
    return replace(lease, state=LeaseState.READY, address=address, ready=now, problem="", facts=facts)


def faulty(lease: Lease, token: str, message: str, problem: TryProblem = TryProblem.FAULT) -> Lease:
    """Return the lease after its machine was found to be defective or unfit. The machine is ended. A
    defective machine is replaced."""
    one = _try_of(lease, token)
    usable = one is not None and one.state is TryState.CONFIRMED and one.problem is None
    if one is None or not usable or lease.state is not LeaseState.BOOTING:
        return lease
    return with_try(lease, replace(one, problem=problem, message=message))


def end_accepted(lease: Lease, machine_id: str, now: float) -> Lease:
    """Return the lease after the provider has accepted the request to end a machine."""
    one = next((each for each in lease.tries if each.machine_id == machine_id), None)
    if one is None or one.end_accepted is not None or one.state is not TryState.CONFIRMED:
        return lease
    return with_try(replace(lease, problem=""), replace(one, end_accepted=now))


def _try_of(lease: Lease, token: str) -> LaunchTry | None:
    return next((one for one in lease.tries if one.token == token), None)
