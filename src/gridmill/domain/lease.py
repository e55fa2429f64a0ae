"""This module has the lease, which is the record of a rented machine. A lease is stored before its machine is
requested.

A lease has one try for each request to the provider. The token of a try is the idempotency key of the
request, so that a repeated request does not rent a second machine. A lease is closed only after the provider
has confirmed that the machine and everything that was created for it no longer exist.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum

from gridmill.domain.charges import Charges, CostKind
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.states import check_move
from gridmill.errors import ConflictError

MICROS = 1_000_000
"""The number of micro-units in one unit of a currency."""
HOUR_SECONDS = 3600.0
DISK_BYTES = 64 << 30
"""The size of the disk of a machine whose terms set no size."""


class LeaseState(StrEnum):
    """The states that a lease can have."""

    PLANNED = "planned"
    """The lease is stored, and no request was sent to the provider."""
    LAUNCHING = "launching"
    """A try is stored. The provider may have started a machine for it."""
    BOOTING = "booting"
    """The provider has confirmed the machine. It boots, is checked, gets Gridmill, and its server is
    started."""
    READY = "ready"
    """Pods can start on the machine."""
    RELEASING = "releasing"
    """The machine must end. The provider has not confirmed yet that it has ended."""
    CLOSED = "closed"
    """The provider has confirmed that nothing of the lease is left."""


LEASE_MOVES: Mapping[LeaseState, frozenset[LeaseState]] = {
    LeaseState.PLANNED: frozenset({LeaseState.LAUNCHING, LeaseState.RELEASING, LeaseState.CLOSED}),
    LeaseState.LAUNCHING: frozenset({LeaseState.BOOTING, LeaseState.RELEASING}),
    # a bad machine is replaced by another try of the same lease
    LeaseState.BOOTING: frozenset({LeaseState.READY, LeaseState.LAUNCHING, LeaseState.RELEASING}),
    LeaseState.READY: frozenset({LeaseState.RELEASING}),
    LeaseState.RELEASING: frozenset({LeaseState.CLOSED}),
    LeaseState.CLOSED: frozenset(),
}


class TryState(StrEnum):
    """The states of one request for a machine."""

    WRITTEN = "written"
    """The try is stored. It is unknown whether the provider has received the request."""
    CONFIRMED = "confirmed"
    """The provider has returned or listed the machine of the try."""
    REFUSED = "refused"
    """The provider has refused the request, so that no machine exists for the try."""
    ABSENT = "absent"
    """The answer was lost, and the provider lists no machine for the try after the time that its lists may
    lag behind."""
    ENDED = "ended"
    """The provider has confirmed that the machine of the try has ended."""


RESOLVED_TRIES = frozenset({TryState.REFUSED, TryState.ABSENT, TryState.ENDED})
"""The states of tries for which no machine exists any more."""
TRY_MOVES: Mapping[TryState, frozenset[TryState]] = {
    TryState.WRITTEN: frozenset(
        {TryState.CONFIRMED, TryState.REFUSED, TryState.ABSENT, TryState.ENDED},
    ),
    TryState.CONFIRMED: frozenset({TryState.ENDED}),
    # a machine may appear although the provider refused the request or did not list the machine in time
    TryState.REFUSED: frozenset({TryState.CONFIRMED}),
    TryState.ABSENT: frozenset({TryState.CONFIRMED}),
    TryState.ENDED: frozenset(),
}


class TryProblem(StrEnum):
    """The reason why a try led to no machine, or why its machine cannot be used any more."""

    NO_MACHINE = "no-machine"
    """The provider has no free machine of the type in the zone."""
    QUOTA = "quota"
    """The quota of the account does not allow the machine."""
    REFUSED = "refused"
    """The provider refuses the request, and a repeated request would be refused too."""
    FAULT = "fault"
    """The machine was defective."""
    UNFIT = "unfit"
    """The image of the machine or the settings of the site do not fit. No further machine is rented."""
    INTERRUPTED = "interrupted"
    """The provider has ended a spot machine."""
    ENDED = "ended"
    """The machine ended, and the end was not requested by Gridmill."""
    SURPLUS = "surplus"
    """The machine appeared after its request counted as over, so that another machine replaces it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTry:
    """One request for a machine. `token` is the idempotency key, which no other try has. `price_micros` is
    the price per hour in micro-units of `currency`, or None if it is unknown. `charges` are the prices of
    everything but the machine in the same currency, or None if they are unknown. `at` is the Unix time at
    which the try was stored, `confirmed` the time at which the machine was started, and `ended` the time at
    which the try was over: the provider refused the request, did not list the machine, or has ended the
    machine. If the provider does not state when the machine ended, it is the latest possible time.
    `end_accepted` is the time at which the provider accepted the request to end the machine. `message` is the
    provider's reason for a refusal or for the end."""

    number: int
    token: str
    region: str
    zone: str
    instance_type: str
    spot: bool = False
    price_micros: int | None = None
    currency: str = "USD"
    charges: Charges | None = None
    state: TryState = TryState.WRITTEN
    machine_id: str = ""
    message: str = ""
    at: float = 0.0
    confirmed: float | None = None
    ended: float | None = None
    end_accepted: float | None = None
    problem: TryProblem | None = None

    @property
    def is_resolved(self) -> bool:
        """Whether it is known that no machine exists for the try."""
        return self.state in RESOLVED_TRIES


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalTerms:
    """The conditions under which machines may be rented for a resource, parsed from the settings of the
    resource and its site.

    `instance_type` is a type of the provider, or empty if any type with the needed amounts may be used.
    `region` is the beginning of the name of a region. `max_price_micros` is the highest price per hour in
    micro-units of `currency` (None: no limit, which requires known prices). `max_seconds` is the longest time
    for which one machine may be rented, and `max_cost_micros` the highest cost of one lease. A machine ends
    itself after `dead_man_seconds` without contact to the control node and without a running job whose result
    a bucket takes. After a failure, the machine is kept for `keep_on_failure_seconds`, but not longer than
    the limits allow.
    `accept_no_self_end` permits machines that cannot end themselves. `image` is an image of the provider
    (empty: the provider's image for the type). `disk_bytes` is the size of the machine's disk (None:
    DISK_BYTES). `budget_micros` is the highest cost of all rentals of the resource in one month. With
    `serves`, the resource is for services, which continue after the notice of a spot machine until it ends.
    """

    instance_type: str = ""
    gpu_memory_bytes: int | None = None
    region: str = ""
    spot: bool = False
    max_price_micros: int | None = None
    max_cost_micros: int | None = None
    budget_micros: int | None = None
    currency: str = "USD"
    max_seconds: float = 24 * HOUR_SECONDS
    dead_man_seconds: float = 900.0
    keep_on_failure_seconds: float = 0.0
    accept_no_self_end: bool = False
    image: str = ""
    disk_bytes: int | None = None
    serves: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseUse:
    """The time for which one job used the machine of a lease in one month (`2026-11`, UTC). If several jobs
    use the machine at the same time, each of them gets an equal part of `seconds`. `egress_bytes` is the
    number of bytes that were transferred from the machine for the job. `live` is the number of attempts of
    the job that run on the machine now."""

    month: str
    project: str
    run_id: str
    job: str
    seconds: float = 0.0
    egress_bytes: int = 0
    live: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The record of a rented machine, on which one pod of a deployment runs.

    `provider` is the name of the cloud site, `owner` identifies the grid in the tags of its machines.
    `account` is the provider's account in which the machines of the lease are (empty: not known yet).
    `needs` are the amounts that the pod needs; with `needs_container`, a job that waited when the lease was
    opened runs in a container. `tries` has the requests to the provider, the last one last.
    `opened`, `ready`, `release_asked` and `closed` are Unix times. `reason` is the reason why the machine
    must end. `problem` is a lasting problem, such as credentials that the provider refuses. `address` is the
    address at which the machine's SSH server answers. `leftovers` are the ids of the provider's resources,
    other than machines, that could not be deleted yet. `uses` has the times for which jobs used the machine,
    up to the Unix time `counted`. `failed` is the time at which an attempt on the machine failed last.
    `hopeless` means that no machine can be rented for the pod. `facts` describe the prepared machine.
    `project` is the project of the job for which the lease was opened (empty: unknown). If `is_batch`, the
    lease only counts the cost of an attempt that ran as a job of a batch service.

    The machine of a lease with an `image_name` runs no pod: an image with this name is built on it.
    `image_id` is the finished image.
    """

    id: str
    provider: str
    owner: str
    resource: str
    deployment_id: str
    pod_id: str
    state: LeaseState
    terms: RentalTerms
    needs_cpus: float = 0.0
    needs_memory_bytes: int = 0
    needs_gpus: int = 0
    needs_container: bool = False
    tries: tuple[LaunchTry, ...] = ()
    address: str = ""
    opened: float = 0.0
    ready: float | None = None
    release_asked: float | None = None
    closed: float | None = None
    reason: str = ""
    problem: str = ""
    leftovers: tuple[str, ...] = ()
    uses: tuple[LeaseUse, ...] = ()
    counted: float = 0.0
    failed: float | None = None
    hopeless: bool = False
    account: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    project: str = ""
    is_batch: bool = False
    image_name: str = ""
    image_id: str = ""

    @property
    def last_try(self) -> LaunchTry | None:
        """The last request to the provider, if there is one."""
        return self.tries[-1] if self.tries else None

    @property
    def machine_try(self) -> LaunchTry | None:
        """The try whose machine may exist now, if there is one."""
        return next((one for one in reversed(self.tries) if one.state is TryState.CONFIRMED), None)

    @property
    def disk_bytes(self) -> int:
        """The size of the disk of each machine of the lease."""
        return self.terms.disk_bytes or DISK_BYTES

    @property
    def counts_as_machine(self) -> bool:
        """Whether a machine of the lease may exist and cost money now."""
        return not all(one.is_resolved for one in self.tries)

    @property
    def may_have_machine(self) -> bool:
        """Whether a machine, or another resource that was found for the lease, may exist now. A lease stays
        open for some time after that, because the provider's list may lag behind."""
        return bool(self.leftovers) or self.counts_as_machine

    @property
    def is_open(self) -> bool:
        """Whether a machine or another resource of the lease may still exist at the provider."""
        return self.state is not LeaseState.CLOSED


def lease_of_pod(leases: Iterable[Lease], pod_id: str) -> Lease | None:
    """Return the lease of the machine of a pod."""
    return next((one for one in leases if one.pod_id == pod_id), None)


def with_try(lease: Lease, changed: LaunchTry) -> Lease:
    """Return the lease with the try that has the same number replaced. Raises ConflictError if the try
    cannot change to its new state, or if another property of the request would change."""
    old = lease.tries[[one.number for one in lease.tries].index(changed.number)]
    check_move(TRY_MOVES, old.state, changed.state, f"try {old.number} of lease {lease.id}")
    if request_of(old) != request_of(changed):
        raise ConflictError(f"the request of try {old.number} of lease {lease.id} cannot change")
    return replace(lease, tries=tuple(changed if one is old else one for one in lease.tries))


def request_of(launch_try: LaunchTry) -> tuple[str, str, str, str, bool]:
    """Return the properties of a try that never change, because the provider compares them with the
    token."""
    one = launch_try
    return one.token, one.region, one.zone, one.instance_type, one.spot


def check_lease_move(lease: Lease, state: LeaseState) -> None:
    """Raises ConflictError if the lease cannot change to this state."""
    check_move(LEASE_MOVES, lease.state, state, f"lease {lease.id}")


LEAST_BILLED_SECONDS = 60.0
"""The shortest time for which providers bill a machine, a disk or an address."""


def cost_micros(launch_try: LaunchTry, now: float, least_seconds: float = LEAST_BILLED_SECONDS) -> int | None:
    """Returns the cost of the machine of a try until `now`, in micro-units of its currency, rounded up. The
    provider bills each second, but at least `least_seconds`. The cost is 0 if no machine was confirmed, and
    None if the price is unknown. Its disk and its address are not included."""
    if launch_try.confirmed is None:
        return 0
    if launch_try.price_micros is None:
        return None
    return -int(-_billed_seconds(launch_try, now, least_seconds) * launch_try.price_micros // HOUR_SECONDS)


def _billed_seconds(one: LaunchTry, now: float, least_seconds: float = LEAST_BILLED_SECONDS) -> float:
    if one.confirmed is None:
        return 0.0
    return max(least_seconds, (now if one.ended is None else one.ended) - one.confirmed)


def known_costs(lease: Lease, one: LaunchTry, now: float) -> Mapping[CostKind, int]:
    """Return the known costs of a try until `now` that grow with time: the machine, its disk and its public
    address, in micro-units of the currency of the try."""
    if one.confirmed is None:
        return {}
    machine, charges = cost_micros(one, now), one.charges
    known = {} if machine is None else {CostKind.MACHINE: machine}
    if charges is not None:
        seconds = _billed_seconds(one, now)
        known[CostKind.DISK] = charges.disk_cost_micros(lease.disk_bytes, seconds)
        known[CostKind.ADDRESS] = charges.address_cost_micros(seconds)
    return known


def lease_charges(lease: Lease) -> Charges | None:
    """Return the prices for everything but the machines of a lease, or None if they are unknown."""
    return next((one.charges for one in reversed(lease.tries) if one.charges is not None), None)


def egress_micros(lease: Lease, use: LeaseUse) -> int:
    """Return the known cost of the data that were transferred from the machine for a job."""
    charges = lease_charges(lease)
    return 0 if charges is None else charges.egress_cost_micros(use.egress_bytes)


def lease_cost_micros(lease: Lease, now: float) -> int | None:
    """Returns the cost of everything of a lease until `now`, or None if the price of a machine is unknown.
    Disks, addresses and data whose prices are unknown are not included. All tries of a lease have prices in
    the same currency."""
    if any(cost_micros(one, now) is None for one in lease.tries):
        return None
    timed = sum(sum(known_costs(lease, one, now).values()) for one in lease.tries)
    return timed + sum(egress_micros(lease, one) for one in lease.uses)


def cost_bound_micros(lease: Lease, now: float) -> int:
    """Return the highest cost that everything of a lease can have until `now`. For a machine with an unknown
    price, the highest price that the terms allow is used."""
    return lease_cost_micros(at_highest_price(lease), now) or 0


def hourly_bound_micros(lease: Lease) -> int:
    """Return the highest cost in an hour of the machine that exists now, with its disk and its address, in
    micro-units. The result is 0 if there is no machine."""
    bounded = at_highest_price(lease)
    one = bounded.machine_try
    if one is None:
        return 0
    hour = replace(one, confirmed=0.0, ended=HOUR_SECONDS)
    return sum(known_costs(bounded, hour, HOUR_SECONDS).values())


def at_highest_price(lease: Lease) -> Lease:
    """Return the lease with the highest price that its terms allow for each machine with an unknown price."""
    terms = lease.terms
    highest = terms.max_price_micros or 0
    tries = (
        one if one.price_micros is not None else replace(one, price_micros=highest, currency=terms.currency)
        for one in lease.tries
    )
    return replace(lease, tries=tuple(tries))
