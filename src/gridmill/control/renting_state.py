"""This module has the state of rentals that is lost at a restart: the provider's last list, the calls that
run, and the offers of each site."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from math import inf

from gridmill.control.background import BackgroundRunner, ImmediateRunner
from gridmill.domain.frozen import dataclass
from gridmill.domain.lease import Lease, RentalTerms
from gridmill.domain.lease_cost import MonthCosts, month_costs
from gridmill.domain.machine import Offer, Quota
from gridmill.domain.site import Site
from gridmill.ports.cloud import RentingSite
from gridmill.scheduler.rental_calls import Calls
from gridmill.scheduler.rental_list import MachineList, Sightings

FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 2.0, 60.0
"""A failed call is repeated after the first time, and after twice as long for each further failure, up to the
second time. Calls that end machines are repeated for ever."""
PREPARE_AGAIN_SECONDS = 2.0
"""The time after which an unfinished preparation of a machine goes on, because a machine that waits costs
money."""
TERMINATE_AGAIN_SECONDS = 10.0
"""The longest time after which a failed request to end a machine is repeated, so that the machine ends soon
after the provider can be reached again."""
LIST_AGAIN_SECONDS = 10.0
"""The longest time after which a failed list is requested again. No lease is closed without a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLease:
    """What is needed of a closed lease to recognize its machines: its site, and the tokens of its tries."""

    provider: str
    tokens: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTerms:
    """The terms that were read from the settings of a deployment, or None if the settings are invalid."""

    site: Site
    settings: Mapping[str, str]
    terms: RentalTerms | None


@dataclass(slots=True, kw_only=True)
class SiteRental:
    """The state of the rentals of one site.

    `port` is the interface that was used last, and `told` are the leases that it knows. `failures` has the
    number of failures of each action in a row. `machines_of` has the ids of the live attempts on the machine
    of each lease. `closed` has the closed leases of all sites that were closed since the start or that a list
    has named. `market_at` is the Unix time at which the offers were read (None: never). `problems` are
    the present problems of the site by subject. `terms` has the terms that were read, by deployment.
    """

    started: float
    port: RentingSite | None = None
    told: tuple[Lease, ...] | None = None
    latest: MachineList | None = None
    closed: dict[str, ClosedLease] = field(default_factory=dict)
    sent: dict[str, float] = field(default_factory=dict)
    repeats: dict[str, int] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    not_before: dict[str, float] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    last_launch: float = -inf
    last_call: float = -inf
    offers: tuple[Offer, ...] = ()
    quotas: tuple[Quota, ...] = ()
    market_at: float | None = None
    market_wanted: frozenset[tuple[str, str]] = frozenset()
    live: dict[str, frozenset[str]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    terms: dict[str, ReadTerms] = field(default_factory=dict)

    def calls(self) -> Calls:
        """Return the calls that run or have to wait."""
        return Calls(
            running=frozenset(self.running),
            not_before=dict(self.not_before),
            failures=dict(self.failures),
            last_launch=self.last_launch,
            last_call=self.last_call,
        )

    def sightings(self) -> Sightings:
        """Return the last signs of machines."""
        return Sightings(
            started=self.started, sent=dict(self.sent), repeats=dict(self.repeats), seen=dict(self.seen)
        )

    def failed(self, action: str, now: float, longest_seconds: float = LONGEST_BACKOFF_SECONDS) -> None:
        """Record that an action failed, so that it is repeated later, after `longest_seconds` at most."""
        count = self.failures.get(action, 0) + 1
        self.failures[action] = count
        wait = min(FIRST_BACKOFF_SECONDS * 2 ** min(count - 1, 10), longest_seconds)
        self.not_before[action] = now + wait

    def succeeded(self, action: str) -> None:
        """Record that an action succeeded."""
        self.failures.pop(action, None)
        self.not_before.pop(action, None)

    def forget_closed(self, lease: Lease) -> None:
        """Remove the values of a lease that was closed."""
        self.live.pop(lease.id, None)
        for one in lease.tries:
            for values in (self.sent, self.repeats, self.seen):
                values.pop(one.token, None)


def closed_lease(lease: Lease) -> ClosedLease:
    """Return what is needed of a closed lease to recognize its machines."""
    return ClosedLease(provider=lease.provider, tokens=frozenset(one.token for one in lease.tries))


@dataclass(slots=True, kw_only=True)
class Rentals:
    """The state of the rentals of all sites. Calls to providers, the preparation of machines, and the end of
    connections have threads of their own, because a machine boots for minutes and a broken connection needs
    seconds to close, and requests that end machines do not wait for them.

    `used_budgets` are the budgets that are used up in the present month, with their reasons, by the kind and
    the name of their owner. `spent` has a month and the highest possible costs of the closed leases in this
    month, if they were read. `closed` has the closed leases by id, if they were read.
    """

    sites: dict[str, SiteRental] = field(default_factory=dict)
    calls: BackgroundRunner = field(default_factory=ImmediateRunner)
    preparing: BackgroundRunner = field(default_factory=ImmediateRunner)
    forgetting: BackgroundRunner = field(default_factory=ImmediateRunner)
    used_budgets: Mapping[tuple[str, str], str] = field(default_factory=dict)
    spent: tuple[str, MonthCosts] | None = None
    closed: dict[str, Lease] | None = None

    def closed_leases(self, leases: Callable[[], Iterable[Lease]]) -> Mapping[str, Lease]:
        """Return the closed leases by id. `leases` reads all leases; it is called only once. If the commit of
        the end of a lease failed, the lease is still open."""
        if self.closed is None:
            self.closed = {one.id: one for one in leases() if not one.is_open}
        return self.closed

    def month_costs(self, month: str, leases: Callable[[], Iterable[Lease]]) -> MonthCosts:
        """Return the highest possible costs of the closed leases and of the ended jobs of batch services in a
        month. `leases` reads all leases; they are read again only after a lease was closed."""
        if self.spent is None or self.spent[0] != month:
            closed = (one for one in leases() if not one.is_open)
            self.spent = month, month_costs(closed, 0.0, month)
        return self.spent[1]

    def note_batch_job(self, lease: Lease) -> None:
        """Add the cost of a job of a batch service that has ended."""
        if self.spent is not None:
            month, costs = self.spent
            more = month_costs([lease], lease.counted, month)
            keys = costs.bounds.keys() | more.bounds.keys()
            bounds = {key: costs.bounds.get(key, 0) + more.bounds.get(key, 0) for key in keys}
            self.spent = month, MonthCosts(bounds=bounds, uncounted=costs.uncounted | more.uncounted)

    def halted(self, kind: str) -> Mapping[str, str]:
        """Return the resources or the projects for which no further machine is rented, with the reason."""
        return {name: text for (owner, name), text in self.used_budgets.items() if owner == kind}

    def at(self, site: str, now: float) -> SiteRental:
        """Return the state of the rentals of a site."""
        return self.sites.setdefault(site, SiteRental(started=now))

    def note_closed(self, lease: Lease) -> None:
        """Record that a lease was closed, for all sites: two sites may use the same account."""
        self.spent = None
        if self.closed is not None:
            self.closed[lease.id] = lease
        for rental in self.sites.values():
            rental.closed[lease.id] = closed_lease(lease)

    def apply_results(self) -> None:
        """Apply the results of the calls that have ended. The caller holds the node's lock."""
        self.calls.apply_results()
        self.preparing.apply_results()
        self.forgetting.apply_results()

    def has_more(self) -> bool:
        """Return whether calls have ended since the last tick."""
        return any([self.calls.has_more(), self.preparing.has_more(), self.forgetting.has_more()])
