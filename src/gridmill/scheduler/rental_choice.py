"""This module chooses the machine to request for a lease: the cheapest offer that fits the needs and the
terms of the lease, and another zone, region or type after a refusal.

Zones in which the quota is too small are skipped without a request. Refusals of the last minutes are not
repeated, also if another lease received them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from gridmill.domain.amounts import Amounts, show_bytes, show_count, show_cpus, show_number
from gridmill.domain.charges import Charges
from gridmill.domain.frozen import dataclass
from gridmill.domain.lease import (
    HOUR_SECONDS,
    LaunchTry,
    Lease,
    RentalTerms,
    TryProblem,
    TryState,
    cost_bound_micros,
)
from gridmill.domain.machine import Offer, Quota, SelfEnd, capacity_of
from gridmill.domain.rental_estimate import show_money

RETRY_SECONDS, LONGEST_RETRY_SECONDS = 60.0, 600.0
"""After a refusal, the same request is repeated after the first time, and after twice as long for each
further refusal, up to the second time."""
BOOT_SECONDS = 1800.0
"""A machine that is not ready this many seconds after its start is replaced."""
MOST_MACHINES = 3
"""The number of machines that are started for a lease. If all of them were defective, or were interrupted
before they were ready, the lease requests no other machine."""
LEAST_BILLED_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """The machines that can be rented at a site. `capacities` has the amounts that pods can use on a machine
    of each type, if they were measured; see capacity_of for other types. The strongest
    means by which a machine ends itself is `self_end`. If `is_known` is false, the offers were not read
    yet. `charges` are the prices of everything but the machines, for offers that state none."""

    offers: tuple[Offer, ...] = ()
    quotas: tuple[Quota, ...] = ()
    capacities: Mapping[str, Amounts]
    self_end: SelfEnd = SelfEnd.SHUTDOWN
    is_known: bool = True
    charges: Charges | None = None

    def charges_of(self, offer: Offer) -> Charges | None:
        """Return the prices of everything but the machine, or None if they are unknown in the currency of the
        offer."""
        charges = offer.charges or self.charges
        return charges if charges is not None and charges.currency == offer.currency else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A machine that could be requested. `price_micros` is the price per hour in micro-units of `currency`,
    or None if it is unknown. `charges` are the prices of everything but the machine, if they are known."""

    region: str
    zone: str
    instance_type: str
    spot: bool
    price_micros: int | None
    currency: str
    charges: Charges | None = None

    @property
    def place(self) -> str:
        """The zone, or the region if the provider has no zones."""
        return self.zone or self.region


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A refused request of a lease, at the Unix time `at`."""

    lease: str
    launch_try: LaunchTry
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The machine to request, or the reason why no machine is requested now. `again_at` is the Unix time at
    which the choice may differ. If `hopeless` is true, no later request can succeed."""

    candidate: Candidate | None = None
    why: str = ""
    again_at: float | None = None
    hopeless: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Obstacle:
    """The reason why a candidate is not requested before the Unix time `until` (None: unknown)."""

    text: str
    places: tuple[str, ...]
    until: float | None = None
    lasting: bool = False


def refusals_of(leases: Iterable[Lease]) -> tuple[Refusal, ...]:
    """Return the refused requests of these leases."""
    return tuple(
        Refusal(lease=lease.id, launch_try=one, at=one.at if one.ended is None else one.ended)
        for lease in leases
        for one in lease.tries
        if one.state is TryState.REFUSED
    )


def choose(lease: Lease, market: Market, refusals: Sequence[Refusal], now: float) -> Choice:
    """Return the next machine to request for a lease without a machine. `refusals` are the refusals of all
    leases of the site."""
    if problem := _lasting_problem(lease, market, now):
        return Choice(why=problem, hopeless=True)
    if not market.is_known:
        return Choice()
    fitting = candidates(lease, market)
    if not fitting:
        return Choice(why=_nothing_fits(lease, market), hopeless=True)
    obstacles: list[_Obstacle] = []
    for candidate in fitting:
        obstacle = _obstacle(lease, market, refusals, candidate, now)
        if obstacle is None:
            return Choice(candidate=candidate)
        obstacles.append(obstacle)
    return Choice(
        why=f"no machine: {_texts(obstacles)}",
        again_at=min((one.until for one in obstacles if one.until is not None), default=None),
        hopeless=all(one.lasting for one in obstacles),
    )


def candidates(lease: Lease, market: Market) -> tuple[Candidate, ...]:
    """Return the machines that fit the needs and the terms of the lease, the best first: zones in which no
    machine of the lease was defective, then the cheapest, then the smallest."""
    faults = [one for one in lease.tries if one.problem is TryProblem.FAULT]
    fitting = [one for one in market.offers if not _misfit(lease, market, one)]
    found = [(offer, one) for offer in fitting for one in _of(lease, market, offer)]

    def order(pair: tuple[Offer, Candidate]) -> tuple[int, bool, int, int, int, str, str, str]:
        offer, one = pair
        bad = sum((each.zone, each.instance_type) == (one.zone, one.instance_type) for each in faults)
        price, size = one.price_micros, (offer.gpus, offer.memory_bytes)
        return bad, price is None, price or 0, *size, one.instance_type, one.region, one.zone

    return tuple(one for _, one in sorted(found, key=order))


def _misfit(lease: Lease, market: Market, offer: Offer) -> str:
    """Return the first reason why an offer does not fit a lease. All machines of a lease have prices in one
    currency, because costs in different currencies cannot be added."""
    if lease.tries and lease.tries[0].currency != offer.currency:
        return f"prices in {offer.currency}"
    return misfit(lease.terms, needs_of(lease), market, offer)


def _of(lease: Lease, market: Market, offer: Offer) -> Iterator[Candidate]:
    spot = lease.terms.spot
    for zone in offer.zones or ("",):
        yield Candidate(
            region=offer.region,
            zone=zone,
            instance_type=offer.instance_type,
            spot=spot,
            price_micros=price_of(offer, spot=spot),
            currency=offer.currency,
            charges=market.charges_of(offer),
        )


def price_of(offer: Offer, *, spot: bool) -> int | None:
    """Return the price of an offer per hour in micro-units, or None if it is unknown."""
    return offer.spot_price_micros if spot else offer.price_micros


def needs_of(lease: Lease) -> Amounts:
    """Return the amounts that the pod of a lease needs."""
    return Amounts(cpus=lease.needs_cpus, memory_bytes=lease.needs_memory_bytes, gpus=lease.needs_gpus)


def _lasting_problem(lease: Lease, market: Market, now: float) -> str:
    terms = lease.terms
    if market.self_end is SelfEnd.NONE and not terms.accept_no_self_end:
        return (
            "machines of this provider cannot end themselves, so that they cost money until somebody ends"
            " them if the control node fails: set `accept_no_self_end: true` to rent them anyway"
        )
    unfit = next((one for one in lease.tries if one.problem is TryProblem.UNFIT), None)
    if unfit is not None:
        return unfit.message
    unusable = unusable_tries(lease)
    if len(unusable) >= MOST_MACHINES:
        return f"{len(unusable)} machines could not be used; the last one: {unusable[-1].message}"
    if terms.max_cost_micros is not None and cost_bound_micros(lease, now) >= terms.max_cost_micros:
        return f"the limit max_cost of {show_money(terms.max_cost_micros, terms.currency)} does not allow it"
    return ""


def unusable_tries(lease: Lease) -> tuple[LaunchTry, ...]:
    """Return the tries whose machines were defective, or were interrupted by the provider."""
    problems = (TryProblem.FAULT, TryProblem.INTERRUPTED)
    return tuple(one for one in lease.tries if one.confirmed is not None and one.problem in problems)


def misfit(terms: RentalTerms, needs: Amounts, market: Market, offer: Offer) -> str:
    """Return the first reason why an offer does not fit these terms and needs, in a few words. The result is
    empty if the offer fits."""
    if terms.instance_type not in ("", offer.instance_type):
        return f"no type {terms.instance_type}"
    if not offer.region.startswith(terms.region):
        return f"no region {terms.region}"
    if not terms.instance_type and offer.architecture != "x86_64":
        return f"{offer.architecture} processors"
    return _too_small(terms, needs, market, offer) or _too_dear(terms, offer)


def _too_small(terms: RentalTerms, needs: Amounts, market: Market, offer: Offer) -> str:
    usable = market.capacities.get(offer.instance_type) or capacity_of(offer)
    if usable.gpus < needs.gpus:
        return "too few GPUs"
    if usable.cpus + 1e-9 < needs.cpus:
        return "too few CPUs"
    if usable.memory_bytes < needs.memory_bytes:
        return "too little memory"
    if terms.gpu_memory_bytes is not None and offer.gpu_memory_bytes < terms.gpu_memory_bytes:
        return "too little GPU memory"
    return ""


def _too_dear(terms: RentalTerms, offer: Offer) -> str:
    price = price_of(offer, spot=terms.spot)
    limits = (terms.max_price_micros, terms.max_cost_micros, terms.budget_micros)
    if any(one is not None for one in limits) and offer.currency != terms.currency:
        return f"prices in {offer.currency}"
    if price is None:
        return "" if terms.max_price_micros is not None else "an unknown price, which needs max_price"
    if terms.max_price_micros is not None and price > terms.max_price_micros:
        return f"a price above {show_money(terms.max_price_micros, terms.currency)} per hour"
    least = -int(-price * LEAST_BILLED_SECONDS // HOUR_SECONDS)
    if terms.max_cost_micros is not None and least > terms.max_cost_micros:
        return f"a cost above {show_money(terms.max_cost_micros, terms.currency)}"
    return ""


def _nothing_fits(lease: Lease, market: Market) -> str:
    gpus = f", {show_count(lease.needs_gpus, 'GPU')}" if lease.needs_gpus else ""
    need = f"{show_cpus(lease.needs_cpus)}, {show_bytes(lease.needs_memory_bytes)}{gpus}"
    if lease.image_name and not lease.needs_cpus:
        need = "an image"  # the type is given, so that nothing else is needed
    if not market.offers:
        return f"the provider offers no machine for {need}"
    reasons = sorted({_misfit(lease, market, offer) for offer in market.offers})
    return f"no offer fits {need}: the offers have {', '.join(reasons)}"


def _obstacle(
    lease: Lease, market: Market, refusals: Sequence[Refusal], candidate: Candidate, now: float
) -> _Obstacle | None:
    quota = _quota_problem(market, candidate)
    if quota:
        return _Obstacle(text=quota, places=(candidate.region,))
    own = [one for one in refusals if one.lease == lease.id and _concerns(one.launch_try, candidate)]
    foreign = [
        one
        for one in refusals
        if one.lease != lease.id
        and one.launch_try.problem is not TryProblem.REFUSED
        and _concerns(one.launch_try, candidate)
    ]
    wait = min(RETRY_SECONDS * 2 ** min(max(len(own) - 1, 0), 10), LONGEST_RETRY_SECONDS)
    waits = [(one.at + wait, one) for one in own] + [(one.at + RETRY_SECONDS, one) for one in foreign]
    until, last = max(waits, key=lambda pair: pair[0], default=(0.0, None))
    lasting = last is not None and last.launch_try.problem is TryProblem.REFUSED
    if last is None or (until <= now and not lasting):
        return None
    return _described(last.launch_try, candidate, None if lasting else until)


def _described(launch_try: LaunchTry, candidate: Candidate, until: float | None) -> _Obstacle:
    match launch_try.problem:
        case TryProblem.REFUSED:
            text = f"refused ({launch_try.message}) in"
            return _Obstacle(text=text, places=(candidate.region,), lasting=True)
        case TryProblem.QUOTA:
            return _Obstacle(text="the quota is used up in", places=(candidate.region,), until=until)
        case _:
            text = f"no free {candidate.instance_type} in"
            return _Obstacle(text=text, places=(candidate.place,), until=until)


def _concerns(launch_try: LaunchTry, candidate: Candidate) -> bool:
    """Return whether a refused request shows that the request of the candidate would be refused too."""
    if (launch_try.instance_type, launch_try.spot) != (candidate.instance_type, candidate.spot):
        return False
    if launch_try.problem is TryProblem.NO_MACHINE:
        return launch_try.zone == candidate.zone and launch_try.region == candidate.region
    return launch_try.region == candidate.region


def _quota_problem(market: Market, candidate: Candidate) -> str:
    offer = next(
        one
        for one in market.offers
        if (one.region, one.instance_type) == (candidate.region, candidate.instance_type)
    )
    for quota in _quotas_of(market, offer, spot=candidate.spot):
        used = quota.used or 0.0
        if quota_units(quota, offer) > quota.limit - used:
            of = f" ({show_number(used)} used)" if used else ""
            return f"the quota of {show_number(quota.limit)} {quota.unit}{of} is too small in"
    return ""


def _quotas_of(market: Market, offer: Offer, *, spot: bool) -> Iterator[Quota]:
    """Return the quotas that limit the machines of an offer."""
    for quota in market.quotas:
        is_same = quota.region == offer.region and quota.spot == spot
        if is_same and offer.instance_type.startswith(quota.types):
            yield quota


def quota_limit(market: Market, offer: Offer, *, spot: bool) -> str:
    """Return the quota that permits no machine of an offer, even if no other machine is rented. The result is
    empty if the quotas permit one."""
    for quota in _quotas_of(market, offer, spot=spot):
        if quota_units(quota, offer) > quota.limit:
            return f"the quota of {show_number(quota.limit)} {quota.unit} in {offer.region}"
    return ""


def quota_units(quota: Quota, offer: Offer) -> float:
    """Return the number of units of the quota that one machine of the offer needs."""
    unit = quota.unit.lower()
    if "cpu" in unit:
        return float(offer.cpus)
    return float(offer.gpus) if "gpu" in unit else 1.0


def _texts(obstacles: Sequence[_Obstacle]) -> str:
    texts: list[str] = []
    for text, group in groupby(sorted(obstacles, key=lambda one: one.text), key=lambda one: one.text):
        places = dict.fromkeys(place for one in group for place in one.places)
        texts.append(f"{text} {', '.join(places)}")
    return "; ".join(texts)
