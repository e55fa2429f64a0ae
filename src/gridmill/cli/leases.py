"""The command `costs`, and the tables and texts of leases of rented machines."""

from typing import Annotated

import typer
from rich.console import Group, RenderableType

from gridmill.cli.format import moment
from gridmill.cli.session import Json, emit, print_error, session, show
from gridmill.cli.tables import table
from gridmill.domain.amounts import show_count, show_seconds
from gridmill.domain.lease import LaunchTry
from gridmill.domain.lease_cost import CostBy, CostRow, LeaseView
from gridmill.domain.rental_estimate import show_money
from gridmill.sdk.client import Client

HEAD = ("lease", "state", "machine", "at", "for", "time", "cost", "")
_UNKNOWN = "unknown"
_MOST_TOLD = 20


def costs(
    context: typer.Context,
    by: Annotated[
        CostBy, typer.Option(help="Group by job, run, project, resource or month.")
    ] = CostBy.PROJECT,
    month: Annotated[
        str,
        typer.Option(metavar="YYYY-MM", help="Show only the costs of this month (UTC).", show_default=False),
    ] = "",
    json: Json = False,
) -> None:
    """Show the cost of rented machines.

    The cost of a machine is divided among the jobs that used it, in proportion to their time. The row `(no
    job)` is the cost of the time in which no job ran: boot, transfers and idle time.
    """
    with session(context, reading=True) as client:
        rows = client.costs(by, month=month)
    if json:
        return emit(rows)
    show(table(by.value, "time", "leases", "cost", rows=[_row(row) for row in rows]))
    for currency in dict.fromkeys(row.currency for row in rows):
        total = sum(row.micros for row in rows if row.currency == currency)
        print(f"total: {show_money(total, currency)}")
    unknown = max((row.unknown for row in rows), default=0)
    if unknown:
        print_error(f"not included: machines of {show_count(unknown, 'lease')} whose price is unknown")
    return None


def _row(row: CostRow) -> tuple[object, ...]:
    return row.name, show_seconds(row.seconds), row.leases, show_money(row.micros, row.currency)


def lease_row(view: LeaseView) -> tuple[object, ...]:
    """Return the table cells of a lease."""
    last = view.lease.last_try
    return (
        view.id,
        view.lease.state,
        last.instance_type if last is not None else "",
        (last.zone or last.region) if last is not None else view.lease.provider,
        view.lease.deployment_id,
        show_seconds(view.seconds),
        _money(view.cost_micros, view.currency),
        view.phase,
    )


def _money(micros: int | None, currency: str) -> str:
    return _UNKNOWN if micros is None else show_money(micros, currency)


def lease_line(view: LeaseView) -> str:
    """Return a line about an open lease: its machine, what happens, the time and the cost."""
    last = view.lease.last_try
    what = "" if last is None else f" {last.instance_type} in {last.zone or last.region},"
    price = "" if view.price_micros is None else f" ({_money(view.price_micros, view.currency)} per hour)"
    cost = _money(view.cost_micros, view.currency)
    return f"rented machine {view.id}:{what} {view.phase}, {show_seconds(view.seconds)}, {cost}{price}"


def tell_leases(client: Client) -> None:
    """Print the machines that are still rented at the end of a command, so that nobody expects them to have
    ended. The control node continues until they have ended."""
    left = [view for view in client.list_leases(limit=_MOST_TOLD) if view.lease.is_open]
    for view in left:
        print_error(lease_line(view))
    if left:
        print_error("the control node returns these machines; `gridmill list leases` shows their state")


def show_lease(view: LeaseView) -> RenderableType:
    """Return the text of a lease: its facts, its cost, and its requests to the provider."""
    lease, one = view.lease, view.lease.machine_try
    place = "" if one is None else one.zone or one.region
    facts = [
        ("site", lease.provider),
        ("resource", lease.resource),
        ("deployment", lease.deployment_id),
        ("opened", moment(lease.opened)),
        ("ready", moment(lease.ready)),
        ("closed", moment(lease.closed)),
        ("now", view.phase),
        (
            "machine",
            "" if one is None else f"{one.machine_id} ({one.instance_type} in {place})",
        ),
        ("address", lease.address),
        *lease.facts.items(),
        ("price", "" if one is None else f"{_money(view.price_micros, view.currency)} per hour"),
        ("cost", _money(view.cost_micros, view.currency)),
        ("of it without a job", "" if not view.cost_micros else _money(view.idle_micros, view.currency)),
        ("reason of the end", lease.reason),
        ("left at the provider", ", ".join(lease.leftovers)),
        ("to end it now", view.command),
    ]
    told = table("", "", rows=[(name, value) for name, value in facts if value])
    told.show_header = False
    head = ("request", "state", "type", "zone", "machine", "")
    return Group(
        f"{lease.id}  {lease.state}", told, table(*head, rows=[_try_row(each) for each in lease.tries])
    )


def _try_row(one: LaunchTry) -> tuple[object, ...]:
    kind = f"{one.instance_type}{' spot' if one.spot else ''}"
    why = ": ".join(text for text in (one.problem or "", one.message) if text)
    return one.number, one.state, kind, one.zone or one.region, one.machine_id, why
