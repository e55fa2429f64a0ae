"""This module computes what rented machines cost, and attributes the cost to the jobs that used them.

The cost of a machine, its disk and its public address is known to the micro-unit. Each job gets a part of it
in proportion to the time for which it used the machine, and the cost of the data that were transferred for
it. The rest is the cost of the time in which no job ran: the boot, the preparation, transfers and idle time.
The parts and the rest always add up to the whole cost. Costs in different currencies are never added.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from enum import StrEnum

from gridmill.domain.charges import CostKind
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.lease import (
    LaunchTry,
    Lease,
    LeaseUse,
    at_highest_price,
    egress_micros,
    known_costs,
    lease_charges,
)

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
class CostFilter:
    """The costs to show. `month` is a month in UTC, such as `2026-11`, and `job` the name of a job within its
    run. An empty text selects everything. A filter of a project, a run or a job leaves out the cost of the
    time in which no job ran."""

    month: str = ""
    project: str = ""
    run: str = ""
    job: str = ""

    def has(self, month: str, use: LeaseUse | None) -> bool:
        """Return whether the costs of a job (or of no job) in a month are selected."""
        if self.month not in ("", month):
            return False
        if use is None:
            return not (self.project or self.run or self.job)
        wanted = ((self.project, use.project), (self.run, use.run_id), (self.job, use.job))
        return all(one in ("", own) for one, own in wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """The cost of the machines that a job (`run/job`), a run, a project or a resource used, or of all
    machines in a month, in micro-units of `currency`. `kinds` divides the cost into the machine, its disk,
    its public address, and the data that were transferred from it. `seconds` is the time of use. `leases` is
    the number of leases. `unknown` is the number of leases whose price is unknown, and `unknown_charges` the
    number of leases whose prices of disks, addresses and data are unknown: these costs are not included.
    `overhead_micros` is the row's part, in proportion to its time, of the cost of the time in which no job
    ran; it is not included in `micros`. `forecast_micros` is the cost, with this part, that was expected when
    the run started, in the same currency. It is None if it was unknown, or if the row is not the row of a run
    or a job."""

    name: str
    currency: str
    micros: int = 0
    seconds: float = 0.0
    leases: int = 0
    unknown: int = 0
    unknown_charges: int = 0
    kinds: Mapping[CostKind, int] = field(default_factory=dict)
    overhead_micros: int = 0
    forecast_micros: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """A lease as the user interfaces show it. `cost_micros` is the cost until now (None: a price is unknown),
    of which `idle_micros` is the cost of the time in which no job ran. `price_micros` is the price per hour
    of the machine that exists now. Both are in micro-units of `currency`. `phase` describes the present phase
    of the lease with its progress, and `seconds` is the time since the lease was opened, up to its end.
    `command` ends the machine. `unknown` names the costs that are not included because their prices are
    unknown. `problem` is a lasting problem with the machine, its cost per hour, and the commands that end
    it."""

    lease: Lease
    currency: str
    cost_micros: int | None = None
    idle_micros: int | None = None
    price_micros: int | None = None
    phase: str = ""
    seconds: float = 0.0
    command: str = ""
    unknown: str = ""
    problem: str = ""

    @property
    def id(self) -> str:
        """The id of the lease."""
        return self.lease.id


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """The costs of one lease in one month that belong to a job (`use`) or to no job (None)."""

    month: str
    use: LeaseUse | None
    currency: str
    kinds: Mapping[CostKind, int]
    seconds: float

    @property
    def micros(self) -> int:
        return sum(self.kinds.values())


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


def with_egress(lease: Lease, subject: Subject, sent_bytes: int, now: float) -> Lease:
    """Return the lease after these bytes were transferred from its machine for a job."""
    month, (project, run_id, job) = month_of(now), subject
    plain = LeaseUse(month=month, project=project, run_id=run_id, job=job)
    uses = {(one.month, one.project, one.run_id, one.job): one for one in lease.uses}
    old = uses.get((month, *subject), plain)
    uses[month, project, run_id, job] = replace(old, egress_bytes=old.egress_bytes + sent_bytes)
    return replace(lease, uses=tuple(uses.values()))


def _shares(lease: Lease, now: float) -> Iterator[_Share]:
    """Yield the parts of the cost of a lease. Costs with an unknown price are not included."""
    current = counted(lease, {}, now) if live_uses(lease) else lease
    costs: dict[tuple[str, str], dict[CostKind, int]] = defaultdict(lambda: defaultdict(int))
    seconds: dict[str, float] = defaultdict(float)
    for one in lease.tries:
        for month, kinds, length in _costs_of(lease, one, now):
            for kind, micros in kinds.items():
                costs[month, one.currency][kind] += micros
            costs[month, one.currency].setdefault(CostKind.MACHINE, 0)
            seconds[month] += length
    for (month, currency), left in costs.items():
        whole, left_seconds = dict(left), seconds[month]
        for use in (one for one in current.uses if one.month == month and one.seconds):
            part = min(1.0, use.seconds / max(seconds[month], 1e-9))
            kinds = {kind: min(left[kind], int(micros * part)) for kind, micros in whole.items()}
            for kind, micros in kinds.items():
                left[kind] -= micros
            left_seconds -= use.seconds
            yield _Share(month=month, use=use, currency=currency, kinds=kinds, seconds=use.seconds)
        idle_seconds = max(0.0, left_seconds)
        yield _Share(month=month, use=None, currency=currency, kinds=left, seconds=idle_seconds)
    yield from _egress(current)


def _egress(lease: Lease) -> Iterator[_Share]:
    charges = lease_charges(lease)
    for use in lease.uses if charges is not None else ():
        kinds = {CostKind.EGRESS: egress_micros(lease, use)}
        if charges is not None and use.egress_bytes:
            yield _Share(month=use.month, use=use, currency=charges.currency, kinds=kinds, seconds=0.0)


def _costs_of(
    lease: Lease, one: LaunchTry, now: float
) -> Iterator[tuple[str, Mapping[CostKind, int], float]]:
    """Yield the known costs and the seconds of a machine in each month. The costs of the months add up to the
    cost of the machine."""
    if one.confirmed is None:
        return
    ends = max(one.confirmed, now if one.ended is None else one.ended)
    before: Mapping[CostKind, int] = {}
    for begins, border in _months(one.confirmed, ends) if ends > one.confirmed else ((ends, ends),):
        until = known_costs(lease, replace(one, ended=border), border)
        yield (
            month_of(begins),
            {kind: micros - before.get(kind, 0) for kind, micros in until.items()},
            border - begins,
        )
        before = until


def has_unknown_price(lease: Lease) -> bool:
    """Return whether the price of a machine of the lease is unknown."""
    return any(one.confirmed is not None and one.price_micros is None for one in lease.tries)


def has_unknown_charges(lease: Lease) -> bool:
    """Return whether the lease had a machine whose prices of disks, addresses and data are unknown."""
    return any(one.confirmed is not None and one.charges is None for one in lease.tries)


def unknown_costs(lease: Lease) -> str:
    """Return the costs of a lease that are unknown, as the end of a sentence; empty if there are none."""
    machine = ["the machine"] if has_unknown_price(lease) else []
    return ", ".join(
        [*machine, *(["its disk, its address and its data"] if has_unknown_charges(lease) else [])]
    )


def idle_cost_micros(lease: Lease, now: float) -> int:
    """Return the cost of the time in which no job ran, in micro-units."""
    return sum(one.micros for one in _shares(lease, now) if one.use is None)


_ALL = CostFilter()


def costs(
    leases: Iterable[Lease], by: CostBy, now: float, selected: CostFilter = _ALL
) -> tuple[CostRow, ...]:
    """Return the selected costs of these leases, the highest first."""
    rows: dict[tuple[str, str], CostRow] = {}
    for lease in leases:
        seen: set[tuple[str, str]] = set()
        shares = tuple(_shares(lease, now))
        for share in (one for one in shares if selected.has(one.month, one.use)):
            key = (_name(lease, share, by), share.currency)
            row = rows.get(key) or CostRow(name=key[0], currency=key[1])
            rows[key] = _with_share(row, lease, share, is_new=key not in seen)
            seen.add(key)
        for key, micros in _overheads(lease, shares, by, selected) if by in _BY_USE else ():
            if key in rows:
                rows[key] = replace(rows[key], overhead_micros=rows[key].overhead_micros + micros)
    used = (row for row in rows.values() if row.micros or row.seconds)
    if by is CostBy.MONTH:
        return tuple(sorted(used, key=lambda row: (row.name, row.currency), reverse=True))
    return tuple(sorted(used, key=lambda row: (row.name == IDLE, row.currency, -row.micros, row.name)))


_BY_USE = (CostBy.JOB, CostBy.RUN, CostBy.PROJECT)


def _overheads(
    lease: Lease, shares: Sequence[_Share], by: CostBy, selected: CostFilter
) -> Iterator[tuple[tuple[str, str], int]]:
    """Yield the parts of the cost of the time in which no job ran, for the rows of the jobs."""
    uses = [one for one in shares if one.use is not None and one.seconds]
    total = sum(one.seconds for one in uses)
    for idle in (one for one in shares if one.use is None):
        for one in uses:
            if selected.has(idle.month, one.use):
                yield (_name(lease, one, by), idle.currency), int(idle.micros * one.seconds / total)


def _with_share(row: CostRow, lease: Lease, share: _Share, *, is_new: bool) -> CostRow:
    kinds = {kind: row.kinds.get(kind, 0) + share.kinds.get(kind, 0) for kind in CostKind}
    return replace(
        row,
        micros=row.micros + share.micros,
        seconds=row.seconds + share.seconds,
        leases=row.leases + is_new,
        unknown=row.unknown + (is_new and has_unknown_price(lease)),
        unknown_charges=row.unknown_charges + (is_new and has_unknown_charges(lease)),
        kinds={kind: micros for kind, micros in kinds.items() if micros},
    )


Bounds = Mapping[tuple[str, str, str], int]
"""The highest possible costs in micro-units, by the kind of the owner (RESOURCE or PROJECT), its name, and
the currency."""
RESOURCE, PROJECT = "resource", "project"


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthCosts:
    """The highest possible costs of leases in one month. `uncounted` has the resources and projects with
    further costs, which have no bound, because the prices of disks, addresses and data are unknown."""

    bounds: Bounds
    uncounted: frozenset[tuple[str, str]] = frozenset()


def month_costs(leases: Iterable[Lease], now: float, month: str) -> MonthCosts:
    """Return the costs of these leases in a month; see `month_bounds_micros`."""
    leases = tuple(leases)
    uncounted: set[tuple[str, str]] = set()
    for lease in leases:
        shares = [one for one in _shares(lease, now) if one.month == month]
        if shares and has_unknown_charges(lease):
            projects = {lease.project, *(one.use.project for one in shares if one.use is not None)}
            uncounted |= {(RESOURCE, lease.resource), *((PROJECT, name) for name in projects if name)}
    return MonthCosts(bounds=month_bounds_micros(leases, now, month), uncounted=frozenset(uncounted))


def month_bounds_micros(leases: Iterable[Lease], now: float, month: str) -> Bounds:
    """Return the highest possible costs of these leases in a month (`2026-11`, UTC), by resource and by
    project, in micro-units. For a machine with an unknown price, the highest price that its terms allow is
    used. The cost of the time in which no job ran counts for the project for which the lease was opened."""
    bounds: dict[tuple[str, str, str], int] = defaultdict(int)
    for lease in map(at_highest_price, leases):
        for share in (one for one in _shares(lease, now) if one.month == month):
            project = lease.project if share.use is None else share.use.project
            bounds[RESOURCE, lease.resource, share.currency] += share.micros
            if project:
                bounds[PROJECT, project, share.currency] += share.micros
    return {key: micros for key, micros in bounds.items() if micros}


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
