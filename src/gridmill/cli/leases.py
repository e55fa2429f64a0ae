"""The command `costs`, and the tables and texts of leases of rented machines."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.console import Group, RenderableType

from gridmill.cli.format import moment
from gridmill.cli.session import Json, emit, print_error, session, show
from gridmill.cli.tables import FittedTable, table
from gridmill.domain.amounts import show_count, show_seconds
from gridmill.domain.charges import CostKind
from gridmill.domain.lease import LaunchTry, LeaseState
from gridmill.domain.lease_cost import CostBy, CostRow, LeaseView
from gridmill.domain.rental_estimate import show_money
from gridmill.sdk.client import Client

HEAD = ("lease", "state", "machine", "at", "for", "time", "cost", "")
_UNKNOWN = "unknown"
_MOST_TOLD = 20


_COSTS = ("time", "leases", *CostKind, "cost", "with idle time", "forecast")
_LEFT_OUT = ("leases", *reversed(CostKind), "time")


def costs(
    context: typer.Context,
    by: Annotated[
        CostBy | None,
        typer.Option(
            help="Group by job, run, project, resource or month. Default: by job with --run or --job, by run"
            " with --project, otherwise by project.",
            show_default=False,
        ),
    ] = None,
    project: Annotated[
        str, typer.Option(metavar="NAME", help="Show only the costs of this project.", show_default=False)
    ] = "",
    run: Annotated[
        str, typer.Option(metavar="RUN", help="Show only the costs of this run.", show_default=False)
    ] = "",
    job: Annotated[
        str, typer.Option(metavar="RUN/JOB", help="Show only the costs of this job.", show_default=False)
    ] = "",
    month: Annotated[
        str,
        typer.Option(metavar="YYYY-MM", help="Show only the costs of this month (UTC).", show_default=False),
    ] = "",
    json: Json = False,
) -> None:
    """Show the cost of rented machines and of jobs at batch services.

    The cost of a machine includes its disk, its public address and transferred data. It is divided among the
    jobs that used the machine, in proportion to their time. The row `(no job)` is the cost of the time in
    which no job ran: boot, transfers and idle time. The column `with idle time` is the cost of a row plus the
    part of the row `(no job)` that belongs to it. The forecast is stored when a run starts, and includes this
    part too.
    """
    owner, _, name = job.rpartition("/")
    chosen = by or (CostBy.JOB if run or job else CostBy.RUN if project else CostBy.PROJECT)
    with session(context, reading=True) as client:
        rows = client.costs(chosen, month=month, project=project, run=run or owner, job=name)
    if json:
        return emit(rows)
    shown = [_row(row) for row in rows]
    show(FittedTable((chosen.value, *_COSTS), shown, left_out=_LEFT_OUT))
    totals: dict[str, int] = {}
    for row in rows:
        totals[row.currency] = totals.get(row.currency, 0) + row.micros
    for currency, total in totals.items():
        print(f"total: {show_money(total, currency)}")
    for text in _not_included(rows):
        print_error(text)
    return None


def _not_included(rows: Sequence[CostRow]) -> Iterator[str]:
    unknown = max((row.unknown for row in rows), default=0)
    if unknown:
        yield f"not included: machines of {show_count(unknown, 'lease')} whose price is unknown"
    charges = max((row.unknown_charges for row in rows), default=0)
    if charges:
        of = show_count(charges, "lease")
        yield f"not included: disks, public addresses and data of {of} whose prices are unknown"


def _row(row: CostRow) -> tuple[object, ...]:
    def shown(micros: int | None) -> str:
        return "" if micros is None else show_money(micros, row.currency)

    cost = " and ".join([*([shown(row.micros)] if row.micros else []), *([_UNKNOWN] if row.unknown else [])])
    kinds = (shown(row.kinds.get(kind)) for kind in CostKind)
    whole = shown(row.micros + row.overhead_micros) if row.overhead_micros else ""
    seconds = show_seconds(row.seconds)
    return row.name, seconds, row.leases, *kinds, cost or shown(0), whole, shown(row.forecast_micros)


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
        _cost(view),
        view.problem or view.phase,
    )


def _money(micros: int | None, currency: str) -> str:
    return _UNKNOWN if micros is None else show_money(micros, currency)


def _cost(view: LeaseView) -> str:
    """Return the cost of a lease, and the names of costs that are not included because prices are unknown."""
    cost = _money(view.cost_micros, view.currency)
    return (
        cost
        if view.cost_micros is None or not view.unknown
        else f"{cost}, and the unknown cost of {view.unknown}"
    )


def lease_line(view: LeaseView) -> str:
    """Return a line about an open lease: its machine, what happens, the time and the cost."""
    last = view.lease.last_try
    what = "" if last is None else f" {last.instance_type} in {last.zone or last.region},"
    price = "" if view.price_micros is None else f" ({_money(view.price_micros, view.currency)} per hour)"
    cost = _cost(view)
    return f"rented machine {view.id}:{what} {view.phase}, {show_seconds(view.seconds)}, {cost}{price}"


def tell_leases(client: Client) -> None:
    """Print the machines that are still rented at the end of a command, so that nobody expects them to have
    ended. The control node continues until they have ended."""
    left = [view for view in client.list_leases(limit=_MOST_TOLD) if view.lease.is_open]
    for view in left:
        print_error(lease_line(view))
    kept = next((one for one in left if one.lease.failed and one.lease.state is LeaseState.READY), None)
    if kept is not None:
        print_error(f"to look at the machine: gridmill ssh {kept.id}; to end it now: {kept.command}")
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
        ("image", lease.image_id),
        ("opened", moment(lease.opened)),
        ("ready", moment(lease.ready)),
        ("closed", moment(lease.closed)),
        ("now", view.phase),
        ("problem", view.problem),
        (
            "machine",
            "" if one is None else f"{one.machine_id} ({one.instance_type} in {place})",
        ),
        ("address", lease.address),
        *lease.facts.items(),
        ("price", "" if one is None else f"{_money(view.price_micros, view.currency)} per hour"),
        ("cost", _cost(view)),
        ("of it without a job", "" if not view.cost_micros else _money(view.idle_micros, view.currency)),
        ("ends itself", _self_end(view)),
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


def _self_end(view: LeaseView) -> str:
    """Return when the machine of an open lease ends itself if the control node is away."""
    terms = view.lease.terms
    if view.lease.closed is not None:
        return ""
    if terms.accept_no_self_end:
        return "perhaps never (accept_no_self_end)"
    dead_man, longest = show_seconds(terms.dead_man_seconds), show_seconds(terms.max_seconds)
    return f"{dead_man} after the last contact (dead_man), {longest} after its start (max_hours)"


def _try_row(one: LaunchTry) -> tuple[object, ...]:
    kind = f"{one.instance_type}{' spot' if one.spot else ''}"
    why = ": ".join(text for text in (one.problem or "", one.message) if text)
    return one.number, one.state, kind, one.zone or one.region, one.machine_id, why
