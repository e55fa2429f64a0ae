"""This module describes the cost of the rented machines of a run, and the cost that was expected when the run
started."""

from collections.abc import Iterator, Sequence

from gridmill.domain.amounts import show_count
from gridmill.domain.lease_cost import CostRow
from gridmill.domain.rental_estimate import CostForecast, show_money, show_moneys
from gridmill.domain.run import Run


def run_costs(run: Run, rows: Sequence[CostRow]) -> tuple[str, ...]:
    """Return the sentences about the cost of the rented machines of a run. `rows` are the costs by run."""
    forecast = run.forecast
    if forecast is None and not rows:
        return ()
    spent = [one for row in rows for one in _spent(row)]
    expected = "" if forecast is None else f"; expected at the start: {_expected(forecast)}"
    return (f"rented machines: {', '.join(spent) or 'nothing'} until now{expected}",)


def _spent(row: CostRow) -> Iterator[str]:
    if row.micros or row.overhead_micros or not row.unknown:
        idle = f" ({show_money(row.overhead_micros, row.currency)} of it without a job)"
        whole = show_money(row.micros + row.overhead_micros, row.currency)
        yield f"{whole}{idle if row.overhead_micros else ''}"
    if row.unknown:
        yield f"the unknown cost of {show_count(row.unknown, 'lease')}"
    if row.unknown_charges:
        yield "the unknown cost of disks, public addresses and data"


def _expected(forecast: CostForecast) -> str:
    unknown = f"unknown ({'; '.join(forecast.unknown)})" if forecast.unknown else ""
    known = show_moneys(forecast.micros) if forecast.micros or not unknown else ""
    return " and ".join(filter(None, (known, unknown)))
