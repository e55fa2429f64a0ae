"""This module has the use cases of leases and of the costs of rented machines."""

import re

from gridmill.control.usecases.base import UseCases
from gridmill.domain.lease import Lease, LeaseState, lease_cost_micros
from gridmill.domain.lease_cost import CostBy, CostRow, LeaseView, costs, has_unknown_price, idle_cost_micros
from gridmill.errors import InputError, NotFoundError
from gridmill.ports.cloud import RentingSite
from gridmill.ports.pages import PAGE_ITEMS, Page, page_request
from gridmill.ports.store import Order
from gridmill.scheduler.renting import releasing

_PHASES = {
    LeaseState.PLANNED: "a machine is being chosen",
    LeaseState.LAUNCHING: "a machine is requested",
    LeaseState.BOOTING: "booting",
    LeaseState.READY: "ready",
    LeaseState.RELEASING: "ending",
    LeaseState.CLOSED: "closed",
}


class LeaseUseCases(UseCases):
    """The use cases of leases (ports.grid.Renting)."""

    def leases(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[LeaseView]:
        """See Renting."""
        request = page_request(int, "leases", limit, cursor)
        page = self._page_by_position(Lease, request, Order.NEWEST_FIRST)
        return Page(items=tuple(map(self._lease_view, page.items)), next_cursor=page.next_cursor)

    def lease(self, lease_id: str) -> LeaseView:
        """See Renting."""
        record = self._ledger.store.get(Lease, lease_id)
        if record is None or not isinstance(record.noun, Lease):
            raise _unknown(lease_id)
        return self._lease_view(record.noun)

    def stop_lease(self, lease_id: str) -> LeaseView:
        """See Renting."""
        with self._node.changing() as transaction:
            lease = transaction.get(Lease, lease_id)
            if lease is not None and lease.state is not LeaseState.RELEASING:
                transaction.put(releasing(lease, "stopped by a user", transaction.now))
        return self.lease(lease_id)

    def costs(self, *, by: CostBy = CostBy.PROJECT, month: str = "") -> tuple[CostRow, ...]:
        """See Renting."""
        if month and not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", month):
            raise InputError(f"{month!r} is not a month", hint="Write for example 2026-11.", place="month")
        return costs(self._list(Lease), by, self._control.now(), month)

    def _lease_view(self, lease: Lease) -> LeaseView:
        site = self._control.sites.get(lease.provider)
        told = site.progress(lease.id) if isinstance(site, RentingSite) and lease.is_open else ""
        return view_of(lease, self._control.now(), told)


def view_of(lease: Lease, now: float, progress: str = "") -> LeaseView:
    """Return the view of a lease at the time `now`. `progress` is what the site does for the lease."""
    last = lease.last_try
    phase = _PHASES[lease.state]
    detail = lease.problem or progress or (lease.reason if lease.release_asked is not None else "")
    one = lease.machine_try
    return LeaseView(
        lease=lease,
        currency=lease.terms.currency if last is None else last.currency,
        cost_micros=lease_cost_micros(lease, now),
        idle_micros=None if has_unknown_price(lease) else idle_cost_micros(lease, now),
        price_micros=None if one is None else one.price_micros,
        phase=f"{phase}: {detail}" if detail else phase,
        seconds=max(0.0, (now if lease.closed is None else lease.closed) - lease.opened),
        command=f"gridmill stop lease {lease.id}" if lease.is_open else "",
    )


def _unknown(lease_id: str) -> NotFoundError:
    return NotFoundError(f"there is no lease {lease_id!r}", hint="`gridmill list leases` shows them.")
