"""This module describes in a few words what happens to the leases for which jobs wait."""

from collections.abc import Iterable

from gridmill.domain.amounts import show_count, show_seconds
from gridmill.domain.lease import Lease, LeaseState, lease_cost_micros
from gridmill.domain.rental_estimate import show_money

_WORDS = {
    LeaseState.PLANNED: "a machine is being chosen",
    LeaseState.LAUNCHING: "requested",
    LeaseState.BOOTING: "booting",
}


def why_renting(leases: Iterable[Lease], resource: str, now: float) -> str:
    """Return a text about the machines that are being rented for a resource, such as `renting g5.xlarge in
    us-east-1a: booting, 40 s, 0.02 USD`. The result is empty if no machine is being rented."""
    coming = [one for one in leases if one.resource == resource and one.state in _WORDS]
    if not coming:
        return ""
    more = f" and {show_count(len(coming) - 1, 'more machine')}" if len(coming) > 1 else ""
    return f"{progress_text(max(coming, key=_advance), now)}{more}"


def _advance(lease: Lease) -> tuple[int, bool]:
    return list(_WORDS).index(lease.state), not lease.problem


def progress_text(lease: Lease, now: float) -> str:
    """Return a text with the phase of a lease, the time since it was opened, and its cost until now."""
    if lease.problem:
        return lease.problem
    last = lease.last_try
    what = "renting a machine"
    if last is not None:
        spot = " (spot)" if last.spot else ""
        what = f"renting {last.instance_type}{spot} in {last.zone or last.region}"
    parts = [_WORDS.get(lease.state, lease.state.value), show_seconds(max(0.0, now - lease.opened))]
    micros = lease_cost_micros(lease, now)
    if micros is None:
        parts.append("unknown cost")
    elif micros and last is not None:
        parts.append(show_money(micros, last.currency))
    return f"{what}: {', '.join(parts)}"
