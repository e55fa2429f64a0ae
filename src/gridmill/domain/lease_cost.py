"""This module computes what rented machines cost, and attributes the cost to the jobs that used them.

The cost of a machine is known to the micro-unit. Each job gets a part of it in proportion to the time for
which it used the machine. The rest is the cost of the time in which no job ran: the boot, the preparation,
transfers and idle time. The parts and the rest always add up to the whole cost.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum

from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.lease import LaunchTry, Lease, LeaseUse, at_highest_price, cost_micros

IDLE = "(no job)"
"""The name of the row with the cost of the time in which no job ran on a machine."""


class CostBy(StrEnum):
    """The ways to group the cost of rented machines."""

    JOB = "job"
    RUN = "run"
    PROJECT = "project"
    MONTH = "month"
    RESOURCE = "resource"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """The cost of the machines that a job (`run/job`), a run, a project or a resource used, or of all
    machines in a month, in micro-units of `currency`. `seconds` is the time of use. `leases` is the number of
    leases. `unknown` is the number of leases whose price is unknown, so that their cost is not included."""

    name: str
    currency: str
    micros: int = 0
    seconds: float = 0.0
    leases: int = 0
    unknown: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """A lease as the user interfaces show it. `cost_micros` is the cost until now (None: a price is unknown),
    of which `idle_micros` is the cost of the time in which no job ran. `price_micros` is the price per hour
    of the machine that exists now. Both are in micro-units of `currency`. `phase` describes what happens now,
    with its progress, and `seconds` is the time since the lease was opened, up to its end. `command` ends the
    machine."""

    lease: Lease
    currency: str
    cost_micros: int | None = None
    idle_micros: int | None = None
    price_micros: int | None = None
    phase: str = ""
    seconds: float = 0.0
    command: str = ""

    @property
    def id(self) -> str:
        """The id of the lease."""
        return self.lease.id


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """The cost of one lease in one month that belongs to a job (`use`) or to no job (None)."""

    month: str
    use: LeaseUse | None
    currency: str
    micros: int
    seconds: float


def month_of(time: float) -> str:
    """Return the month of a Unix time in UTC, such as `2026-11`."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m")


def _next_month(time: float) -> float:
    """Return the Unix time at which the next month begins in UTC."""
    moment = datetime.fromtimestamp(time, UTC)
    year, month = divmod(moment.year * 12 + moment.month, 12)
    return datetime(year, month + 1, 1, tzinfo=UTC).timestamp()


def _months(begins: float, ends: float) -> Iterator[tuple[float, float]]:
    while begins < ends:
        border = min(ends, _next_month(begins))
        yield begins, border
        begins = border


Subject = tuple[str, str, str]
"""The project, the run and the name of a job."""


def counted(lease: Lease, live: Mapping[Subject, int], now: float) -> Lease:
    """Return the lease with the use of its machine up to `now`, and with the attempts that run from now on,
    by job. The time since the last count is divided among the attempts that ran in this time."""
    uses = {(one.month, one.project, one.run_id, one.job): one for one in lease.uses}
    running = [one for one in lease.uses if one.live]
    total = sum(one.live for one in running)
    for begins, ends in _months(lease.counted, now) if total else ():
        for one in running:
            key = (month_of(begins), one.project, one.run_id, one.job)
            old = uses.get(key) or replace(one, month=key[0], seconds=0.0)
            uses[key] = replace(old, seconds=old.seconds + (ends - begins) * one.live / total)
    month = month_of(now)
    for project, run_id, job in live:
        key = (month, project, run_id, job)
        uses.setdefault(key, LeaseUse(month=month, project=project, run_id=run_id, job=job))
    final = (
        replace(one, live=live.get(key[1:], 0) if one.month == month else 0) for key, one in uses.items()
    )
    return replace(lease, uses=tuple(final), counted=max(now, lease.counted))


def live_uses(lease: Lease) -> Mapping[Subject, int]:
    """Return the number of attempts on the machine of a lease at the last count, by job."""
    return {(one.project, one.run_id, one.job): one.live for one in lease.uses if one.live}


def _shares(lease: Lease, now: float) -> Iterator[_Share]:
    """Yield the parts of the cost of a lease. The cost of tries with an unknown price is not included."""
    current = counted(lease, {}, now) if live_uses(lease) else lease
    costs: dict[tuple[str, str], int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    for one in lease.tries:
        for month, micros, length in _costs_of(one, now):
            costs[month, one.currency] += micros
            seconds[month] += length
    for (month, currency), micros in costs.items():
        left, left_seconds = micros, seconds[month]
        for use in (one for one in current.uses if one.month == month and one.seconds):
            part = min(left, int(micros * min(1.0, use.seconds / max(seconds[month], 1e-9))))
            left, left_seconds = left - part, left_seconds - use.seconds
            yield _Share(month=month, use=use, currency=currency, micros=part, seconds=use.seconds)
        idle_seconds = max(0.0, left_seconds)
        yield _Share(month=month, use=None, currency=currency, micros=left, seconds=idle_seconds)


def _costs_of(one: LaunchTry, now: float) -> Iterator[tuple[str, int, float]]:
    """Yield the cost and the seconds of a machine in each month. The costs of the months add up to the cost
    of the machine."""
    if one.confirmed is None or one.price_micros is None:
        return
    ends = max(one.confirmed, now if one.ended is None else one.ended)
    before = 0
    for begins, border in _months(one.confirmed, ends) if ends > one.confirmed else ((ends, ends),):
        until = cost_micros(replace(one, ended=border), border) or 0
        yield month_of(begins), until - before, border - begins
        before = until


def has_unknown_price(lease: Lease) -> bool:
    """Return whether the price of a machine of the lease is unknown."""
    return any(one.confirmed is not None and one.price_micros is None for one in lease.tries)


def idle_cost_micros(lease: Lease, now: float) -> int:
    """Return the cost of the time in which no job ran, in micro-units."""
    return sum(one.micros for one in _shares(lease, now) if one.use is None)


def costs(leases: Iterable[Lease], by: CostBy, now: float, month: str = "") -> tuple[CostRow, ...]:
    """Return the costs of these leases, the highest first. `month` selects one month (`2026-11`, UTC)."""
    rows: dict[tuple[str, str], CostRow] = {}
    for lease in leases:
        seen: set[tuple[str, str]] = set()
        for share in _shares(lease, now):
            if month not in ("", share.month):
                continue
            key = (_name(lease, share, by), share.currency)
            row = rows.get(key) or CostRow(name=key[0], currency=key[1])
            rows[key] = replace(
                row,
                micros=row.micros + share.micros,
                seconds=row.seconds + share.seconds,
                leases=row.leases + (key not in seen),
                unknown=row.unknown + (key not in seen and has_unknown_price(lease)),
            )
            seen.add(key)
    used = (row for row in rows.values() if row.micros or row.seconds)
    if by is CostBy.MONTH:
        return tuple(sorted(used, key=lambda row: (row.name, row.currency), reverse=True))
    return tuple(sorted(used, key=lambda row: (row.name == IDLE, -row.micros, row.name)))


def month_bounds_micros(leases: Iterable[Lease], now: float, month: str) -> Mapping[tuple[str, str], int]:
    """Return the highest possible cost of these leases in a month (`2026-11`, UTC), by resource and currency,
    in micro-units. For a machine with an unknown price, the highest price that its terms allow is used."""
    rows = costs((at_highest_price(lease) for lease in leases), CostBy.RESOURCE, now, month)
    return {(row.name, row.currency): row.micros for row in rows}


def _name(lease: Lease, share: _Share, by: CostBy) -> str:
    match by:
        case CostBy.MONTH:
            return share.month
        case CostBy.RESOURCE:
            return lease.resource
        case _ if share.use is None:
            return IDLE
        case CostBy.JOB:
            return f"{share.use.run_id}/{share.use.job}"
        case CostBy.RUN:
            return share.use.run_id
        case CostBy.PROJECT:
            return share.use.project
