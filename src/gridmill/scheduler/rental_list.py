"""This module compares the leases of a site with the list of machines that the provider returned.

The list may lag behind: a machine that is missing in a list counts as absent only if the list is newer than
the last sign of the machine by more than the lag of the provider.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import field
from functools import cached_property
from typing import TypeVar

from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.lease import LaunchTry, Lease, LeaseState, TryProblem, TryState, with_try
from gridmill.domain.machine import IMAGE_KINDS, Leftover, Machine, MachineState, ProviderTraits, SelfEnd
from gridmill.domain.reaping import reap_command
from gridmill.domain.rental_estimate import show_money
from gridmill.scheduler.rental_calls import Action, Call, Calls
from gridmill.scheduler.rental_choice import Market, price_of
from gridmill.scheduler.rental_results import confirmed

_T = TypeVar("_T")
MOST_REPEATS = 3
"""A request without an answer is repeated this many times before another machine is requested. Another
machine is requested only if the provider does not list the machine of the request."""
FIRST_LIST_SECONDS, LONGEST_LIST_SECONDS = 2.0, 30.0
"""The shortest and the longest time between two lists while a lease changes."""
READY_LIST_SECONDS = 20.0
"""The time between two lists while all machines are ready. A machine that somebody ends at the provider is
noticed within a minute."""
IDLE_LIST_SECONDS, STRANGER_LIST_SECONDS = 600.0, 60.0
"""The time between two lists while there is no open lease, without and with machines that belong to no
lease."""
CALLS_PER_LIST = 4
"""If the provider limits the calls, at most one of this number of calls is a list."""


@dataclass(frozen=True, kw_only=True)
class MachineList:
    """A complete list of the machines and leftovers of a grid in an account. `at` is the Unix time at which
    the request for the list began."""

    at: float
    machines: tuple[Machine, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    account: str = ""

    @cached_property
    def by_token(self) -> Mapping[str, Sequence[Machine]]:
        """The machines by the token of their request."""
        return _grouped(self.machines, lambda one: one.token)

    @cached_property
    def by_id(self) -> Mapping[str, Sequence[Machine]]:
        """The machines by their id."""
        return _grouped(self.machines, lambda one: one.id)

    @cached_property
    def by_lease(self) -> Mapping[str, Sequence[Machine]]:
        """The machines by their lease."""
        return _grouped(self.machines, lambda one: one.lease)

    @cached_property
    def leftovers_by_lease(self) -> Mapping[str, Sequence[Leftover]]:
        """The leftovers by their lease."""
        return _grouped(self.leftovers, lambda one: one.lease)


def _grouped(items: Iterable[_T], key: Callable[[_T], str]) -> Mapping[str, Sequence[_T]]:
    groups: dict[str, list[_T]] = {}
    for one in items:
        groups.setdefault(key(one), []).append(one)
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Sightings:
    """The last signs of machines since the control node started at the Unix time `started`. `sent` has the
    time at which the last request of a token ended, `repeats` the number of its requests, and `seen` the time
    of the last list that had a machine with the token."""

    started: float
    sent: Mapping[str, float] = field(default_factory=dict)
    repeats: Mapping[str, int] = field(default_factory=dict)
    seen: Mapping[str, float] = field(default_factory=dict)

    def sent_at(self, token: str) -> float:
        """Return the time after which the provider has received no request with the token. A request of an
        earlier process of the control node was sent before `started`. The time in the record of the try is
        not used, because the clock may have been set back."""
        return self.sent.get(token, self.started)

    def seen_at(self, token: str) -> float:
        """Return the time of the last sign of a machine with the token."""
        return max(self.sent_at(token), self.seen.get(token, self.started))


def reconcile(
    lease: Lease,
    latest: MachineList | None,
    sightings: Sightings,
    calls: Calls,
    traits: ProviderTraits,
    now: float,
) -> Lease:
    """Return the lease with the states of its tries as the provider's list shows them."""
    if latest is None:
        return lease
    for number in [one.number for one in lease.tries]:
        one = next(each for each in lease.tries if each.number == number)
        machine = _listed(one, lease, latest)
        end_bound = _end_bound(one, lease, sightings, traits, now)
        if machine is not None:
            known = replace(lease, account=lease.account or latest.account)
            lease = _seen(known, one, machine, end_bound, now)
        elif not calls.is_running(Call.LAUNCH, one.token):
            is_missing = latest.at >= sightings.seen_at(one.token) + traits.list_lag_seconds
            repeats = sightings.repeats.get(one.token, 0)
            lease = _missing(lease, one, repeats, end_bound, now) if is_missing else lease
    return lease


def _listed(one: LaunchTry, lease: Lease, latest: MachineList) -> Machine | None:
    """Return the machine of a try: the machine that is already known, or the first machine that has not
    ended."""
    own = [each for each in latest.by_token.get(one.token, ()) if each.lease == lease.id]
    own += [each for each in latest.by_id.get(one.machine_id, ()) if each not in own]
    if one.machine_id:
        return next((each for each in own if each.id == one.machine_id), None)
    return min(own, key=lambda each: (each.state is MachineState.ENDED, each.id), default=None)


def _end_bound(
    one: LaunchTry, lease: Lease, sightings: Sightings, traits: ProviderTraits, now: float
) -> float:
    """Return the latest time at which a machine that does not exist now can have ended. A machine ends itself
    after its longest rental time, also while the control node does not run."""
    if one.confirmed is None or traits.self_end is SelfEnd.NONE:
        return now
    limit = one.confirmed + lease.terms.max_seconds
    was_later = sightings.seen.get(one.token, limit) > limit
    return now if was_later else min(now, limit)


def _seen(lease: Lease, one: LaunchTry, machine: Machine, end_bound: float, now: float) -> Lease:
    if one.state is TryState.ENDED:
        return lease
    if one.state is not TryState.CONFIRMED:
        lease, one = confirmed(lease, one, machine, now)
    going = machine.state in (MachineState.STOPPING, MachineState.STOPPED, MachineState.ENDED)
    if going and one.problem is None and one.end_accepted is None and lease.state is not LeaseState.RELEASING:
        one = replace(one, problem=_end_of(one, machine), message=machine.reason or machine.native_state)
    if machine.state is MachineState.ENDED:
        ended = end_bound if machine.ended is None else min(now, max(machine.ended, one.confirmed or 0.0))
        one = replace(one, state=TryState.ENDED, ended=ended, message=one.message or machine.reason)
    return with_try(lease, one)


def _end_of(one: LaunchTry, machine: Machine) -> TryProblem:
    words = f"{machine.reason} {machine.native_state}".lower()
    if one.spot and ("spot" in words or "preempt" in words):
        return TryProblem.INTERRUPTED
    return TryProblem.ENDED


def _missing(lease: Lease, one: LaunchTry, repeats: int, end_bound: float, now: float) -> Lease:
    """Return the lease after a list that does not have the machine of a try, although the machine would be in
    the list. The end of a confirmed machine is recorded only after the provider has accepted the request to
    end it."""
    if one.state is TryState.WRITTEN:
        if lease.state is not LeaseState.RELEASING and repeats < MOST_REPEATS:
            return lease
        return with_try(lease, replace(one, state=TryState.ABSENT, ended=now))
    if one.state is not TryState.CONFIRMED:
        return lease
    if one.end_accepted is not None:
        return with_try(lease, replace(one, state=TryState.ENDED, ended=end_bound))
    if lease.state is LeaseState.RELEASING or one.problem is not None:
        return lease
    message = "the provider does not list it any more"
    return with_try(lease, replace(one, problem=TryProblem.ENDED, message=message))


def strangers(
    site: str,
    provider: str,
    market: Market,
    latest: MachineList | None,
    leases: Sequence[Lease],
    closed: Mapping[str, Set[str]],
    elsewhere: Set[str] = frozenset(),
) -> tuple[Mapping[str, str], tuple[Action, ...]]:
    """Return the problems with machines that no lease uses, by machine, and the actions that end such
    machines if their requests are in the store: machines of closed leases, second machines of one request,
    and machines that are listed again after their end. A machine whose request is not in the store is not
    ended, because the store may be an old copy. `provider` is the kind of the provider. `closed` has the
    tokens of closed leases, and `elsewhere` the ids of leases of other sites, which may use the same
    account."""
    problems: dict[str, str] = {}
    actions: list[Action] = []
    if latest is None:
        return problems, ()
    by_id = {lease.id: lease for lease in leases}
    alive = [one for one in latest.machines if one.state is not MachineState.ENDED]
    for machine in alive:
        lease = by_id.get(machine.lease)
        if machine.lease in elsewhere:
            continue
        if machine.token in closed.get(machine.lease, ()) or (lease is not None and _is_over(lease, machine)):
            actions.append(Action(call=Call.TERMINATE, key=machine.id, machine=machine))
            if machine.state is not MachineState.STOPPING:
                problems[machine.id] = _unused(site, market, machine)
        elif lease is None or all(machine.token != one.token for one in lease.tries):
            problems[machine.id] = _unknown(site, market, machine, is_open=lease is not None)
    for left in latest.leftovers:
        if left.lease in by_id or left.lease in elsewhere:
            continue
        machines = [one for one in alive if one.lease == left.lease]
        tokens = closed.get(left.lease, frozenset())
        if tokens and left.kind in IMAGE_KINDS:
            continue  # the lease was closed without an unfinished image, so that the list is old
        if tokens and all(one.token in tokens for one in machines):
            actions.append(Action(call=Call.DELETE, key=left.id, leftover=left))
        elif not machines:
            problems[left.id] = _unknown_leftover(site, provider, left)
    return problems, tuple(actions)


def _is_over(lease: Lease, machine: Machine) -> bool:
    """Return whether a try of the lease has another machine than this machine with the same token, or counts
    this machine as ended. A machine can be missing in lists for so long that it counts as ended."""
    return any(
        (one.token == machine.token and one.machine_id not in ("", machine.id))
        or (one.machine_id == machine.id and one.state is TryState.ENDED)
        for one in lease.tries
    )


def _described(site: str, market: Market, machine: Machine) -> tuple[str, str]:
    """Return a description of a machine, and its cost per hour."""
    kind = (machine.region, machine.instance_type)
    offer = next((one for one in market.offers if (one.region, one.instance_type) == kind), None)
    price = None if offer is None else price_of(offer, spot=machine.spot)
    costs = "an unknown amount" if offer is None or price is None else show_money(price, offer.currency)
    where = f"{machine.instance_type} in {machine.zone or machine.region}"
    return f"machine {machine.id} ({where}) at {site}", costs


def _unused(site: str, market: Market, machine: Machine) -> str:
    name, costs = _described(site, market, machine)
    command = reap_command(machine.provider, machine.owner, machine.lease)
    return (
        f"{name} is not used by its lease {machine.lease} any more: it costs {costs} per hour. Gridmill"
        f" ends it, and `{command}` ends it without the control node"
    )


def _unknown(site: str, market: Market, machine: Machine, *, is_open: bool) -> str:
    name, costs = _described(site, market, machine)
    command = reap_command(machine.provider, machine.owner, machine.lease)
    return (
        f"{name} has the tags of a request of lease {machine.lease or '?'}, which is not in the store: it"
        f" costs {costs} per hour. `{command}` ends it"
        f"{', and all other machines of the lease, which is open' if is_open else ''}"
    )


def _unknown_leftover(site: str, provider: str, left: Leftover) -> str:
    command = reap_command(provider, left.owner, left.lease)
    return (
        f"{left.kind} {left.id} in {left.region} at {site} has the tags of lease {left.lease or '?'}, which"
        f" is not in the store. `{command}` deletes it"
    )


def list_interval(leases: Iterable[Lease], latest: MachineList, traits: ProviderTraits, now: float) -> float:
    """Return the seconds between two lists of the provider: short while something changes, and longer with
    age."""
    waits = [_interval_of(lease, now) for lease in leases]
    if not waits:
        alive = any(one.state is not MachineState.ENDED for one in latest.machines)
        waits = [STRANGER_LIST_SECONDS if alive else IDLE_LIST_SECONDS]
    return max(min(waits), CALLS_PER_LIST * traits.call_gap_seconds)


def _interval_of(lease: Lease, now: float) -> float:
    if lease.state is LeaseState.READY:
        return READY_LIST_SECONDS
    last = lease.last_try
    since = max(lease.opened, lease.release_asked or 0.0, last.at if last is not None else 0.0)
    return min(LONGEST_LIST_SECONDS, max(FIRST_LIST_SECONDS, (now - since) / 15))
