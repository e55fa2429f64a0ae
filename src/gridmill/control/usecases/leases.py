"""This module has the use cases of leases and of the costs of rented machines."""

import re
from collections.abc import Mapping

from gridmill.control.steps.lease_records import runs_of
from gridmill.control.usecases.base import UseCases
from gridmill.domain.amounts import show_seconds
from gridmill.domain.frozen import replace
from gridmill.domain.lease import Lease, LeaseState, lease_cost_micros
from gridmill.domain.lease_cost import (
    PROJECT,
    RESOURCE,
    CostBy,
    CostFilter,
    CostRow,
    LeaseView,
    costs,
    has_unknown_price,
    idle_cost_micros,
    unknown_costs,
)
from gridmill.domain.rental_estimate import CostForecast
from gridmill.domain.run import JobRun, Run
from gridmill.domain.run_costs import run_costs
from gridmill.domain.states import RunState
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
        views = tuple(self._lease_view(one) for one in page.items if not one.is_batch)
        return Page(items=views, next_cursor=page.next_cursor)

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

    def costs(
        self, *, by: CostBy = CostBy.PROJECT, month: str = "", project: str = "", run: str = "", job: str = ""
    ) -> tuple[CostRow, ...]:
        """See Renting."""
        if month and not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", month):
            raise InputError(f"{month!r} is not a month", hint="Write for example 2026-11.", place="month")
        if job and not run:
            raise InputError(f"the run of job {job!r} is missing", hint="Write RUN/JOB.", place="job")
        selected = CostFilter(month=month, project=project, run=run, job=job)
        rows = costs(self._list(Lease), by, self._control.now(), selected)
        forecasts = self._forecasts(rows, by)
        return tuple(
            replace(row, forecast_micros=_forecast_in(forecasts.get(row.name), row.currency)) for row in rows
        )

    def _rented_lines(self, run: Run) -> tuple[str, ...]:
        """Return sentences about the cost of the rented machines of a run, and about their problems now."""
        lasting = dict(self._control.problems.lasting)
        with self._node.lock:
            leases = self._ledger.snapshot.leases.values()
            own = [one for one in leases if run.id in dict(runs_of(self._ledger, one))]
        keys = [f"rental at {one.provider} {one.id}" for one in own]
        if run.state is RunState.ACTIVE:
            keys += [f"budget of {RESOURCE} {name}" for name in sorted({one.resource for one in own})]
            keys += [f"budget of {PROJECT} {run.project}"]
        problems = (lasting[key] for key in keys if key in lasting)
        return (*run_costs(run, self.costs(by=CostBy.RUN, run=run.id)), *problems)

    def _forecasts(self, rows: tuple[CostRow, ...], by: CostBy) -> Mapping[str, CostForecast | None]:
        """Return the forecasts of the runs or jobs of these rows, which may have been deleted meanwhile."""
        found: dict[str, CostForecast | None] = {}
        for row in rows:
            if by is CostBy.RUN and (run := self._ledger.read(Run, row.name)) is not None:
                found[row.name] = run.forecast
            elif by is CostBy.JOB and (job := self._ledger.read(JobRun, row.name)) is not None:
                found[row.name] = job.forecast
        return found

    def _lease_view(self, lease: Lease) -> LeaseView:
        site = self._control.sites.get(lease.provider)
        told = site.progress(lease.id) if isinstance(site, RentingSite) and lease.is_open else ""
        problem = self._control.problems.lasting.get(f"rental at {lease.provider} {lease.id}", "")
        return view_of(lease, self._control.now(), told, problem if lease.is_open else "")


def view_of(lease: Lease, now: float, progress: str = "", problem: str = "") -> LeaseView:
    """Return the view of a lease at the time `now`. `progress` is what the site does for the lease, and
    `problem` its lasting problem."""
    last = lease.last_try
    phase = _PHASES[lease.state]
    ending = lease.reason if lease.release_asked is not None else _kept(lease, now)
    detail = lease.problem or progress or ending
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
        unknown=unknown_costs(lease),
        problem=problem,
    )


def _kept(lease: Lease, now: float) -> str:
    """Return a text about a machine that is kept because a job on it has failed; empty for other machines."""
    if lease.failed is None or lease.state is not LeaseState.READY:
        return ""
    left_seconds = lease.failed + lease.terms.keep_on_failure_seconds - now
    if left_seconds <= 0:
        return ""
    return f"kept for {show_seconds(left_seconds)} because a job failed (keep_on_failure)"


def _forecast_in(forecast: CostForecast | None, currency: str) -> int | None:
    """Return the forecast in this currency, or None if it is not complete."""
    return None if forecast is None or forecast.unknown else forecast.micros.get(currency, 0)


def _unknown(lease_id: str) -> NotFoundError:
    return NotFoundError(f"there is no lease {lease_id!r}", hint="`gridmill list leases` shows them.")
