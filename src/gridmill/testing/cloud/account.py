"""An account at a simulated provider: the machines and resources that truly exist, what they cost, and who
changed them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from random import Random
from threading import RLock

from gridmill.domain.frozen import dataclass
from gridmill.domain.lease import HOUR_SECONDS
from gridmill.errors import ConflictError, NoMachineError, QuotaError, RefusedError
from gridmill.ports.clock import Clock
from gridmill.ports.cloud import LaunchRequest, Leftover, Machine, MachineState, ProviderTraits, SelfEnd
from gridmill.testing.cloud.catalog import GIB, TRAITS, Catalog, SimulatedType
from gridmill.testing.cloud.machine import SimulatedMachine, read_timers
from gridmill.testing.cloud.provider_faults import ProviderFaults

REMEMBERED_SECONDS = 3600.0
"""How long the provider lists a machine that has ended."""
TERMINATE_SECONDS = 5.0
"""The default time from the termination of a machine until the provider reports its end."""


@dataclass(slots=True, kw_only=True)
class Resource:
    """A resource other than a machine. `machine_id` is the machine that uses it, if there is one. The times
    are seconds on the monotonic clock of the simulation."""

    leftover: Leftover
    created: float
    machine_id: str = ""
    disk_bytes: int = 0
    deleted: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class BillItem:
    """An item of the bill, in micro-units of USD. `kind` is `machine`, `volume`, `address` or `egress`.
    `until` is None if the amount still grows. The times are seconds on the monotonic clock of the
    simulation."""

    kind: str
    id: str
    lease: str
    owner: str
    since: float
    until: float | None
    cost_micros: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A call that had an effect or that failed. `client` is the name of the caller, `subject` the token, the
    machine or the resource, and `owner` the owner of the subject. `effect` shows whether the call changed
    anything."""

    at: float
    client: str
    method: str
    subject: str = ""
    owner: str = ""
    effect: bool = False


class SimulatedAccount:
    """An account at a simulated provider, which several clients can use at the same time.

    The account follows the monotonic time of the clock, so that it is not affected by a wrong wall clock of
    the control node. `epoch` is the Unix time at the start of the clock. The simulation of the machines
    reports contacts with `note_contact` and jobs with `note_job`, because these keep a machine from ending
    itself. `calls` has the calls of all clients.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        seed: int = 0,
        traits: ProviderTraits = TRAITS[SelfEnd.SHUTDOWN],
        faults: ProviderFaults | None = None,
        catalog: Catalog | None = None,
        name: str = "simulated",
        terminate_seconds: float = TERMINATE_SECONDS,
    ) -> None:
        self.clock, self.traits, self.name = clock, traits, name
        self.faults, self.catalog = faults or ProviderFaults(), catalog or Catalog()
        self.random = Random(seed)
        self._terminate_seconds = terminate_seconds
        self.epoch = clock.now() - clock.monotonic()
        self.every: dict[str, SimulatedMachine] = {}
        self.resources: dict[tuple[str, str], Resource] = {}
        self.calls: list[RecordedCall] = []
        self.credentials_end = inf
        self.away_until = -inf
        self.region_away_until: dict[str, float] = {}
        self.hidden_regions: set[str] = set()
        self.lock = RLock()
        self._tokens: dict[tuple[str, str], str] = {}
        self._settled = -inf
        self._live: dict[str, SimulatedMachine] = {}

    # --- the truth

    def machines_alive(self, owner: str = "") -> tuple[SimulatedMachine, ...]:
        """Returns the machines that are billed now."""
        self.settle()
        return tuple(one for one in self._live.values() if owner in ("", one.request.owner))

    def resources_alive(self, owner: str = "") -> tuple[Leftover, ...]:
        """Returns the resources other than machines that exist now, without those that end together with a
        machine that still exists."""
        self.settle()
        return tuple(
            one.leftover
            for one in self.resources.values()
            if one.deleted == inf and owner in ("", one.leftover.owner)
        )

    def bill(self, owner: str = "") -> tuple[BillItem, ...]:
        """Returns the items of the bill until now."""
        self.settle()
        return tuple(item for item in self._items() if owner in ("", item.owner))

    def cost_micros(self, owner: str = "") -> int:
        """Returns the sum of the bill until now, in micro-units of USD."""
        return sum(item.cost_micros for item in self.bill(owner))

    def _items(self) -> Iterator[BillItem]:
        now = self.clock.monotonic()
        for one in self.every.values():
            until = None if one.ended == inf else one.ended
            cost = one.cost_micros(now, self.traits.least_billed_seconds)
            yield self._item("machine", one, one.started, until, cost)
            if one.egress_bytes:
                cost = -(-one.egress_bytes * self.catalog.egress_price_micros // GIB)
                yield self._item("egress", one, one.started, until, cost)
        for resource in self.resources.values():
            cost = self._resource_cost(resource, now)
            if cost:
                until = None if resource.deleted == inf else resource.deleted
                yield BillItem(
                    kind=resource.leftover.kind,
                    id=resource.leftover.id,
                    lease=resource.leftover.lease,
                    owner=resource.leftover.owner,
                    since=resource.created,
                    until=until,
                    cost_micros=cost,
                )

    def _item(
        self, kind: str, one: SimulatedMachine, since: float, until: float | None, cost: int
    ) -> BillItem:
        request = one.request
        return BillItem(
            kind=kind,
            id=one.id,
            lease=request.lease,
            owner=request.owner,
            since=since,
            until=until,
            cost_micros=cost,
        )

    def _resource_cost(self, resource: Resource, now: float) -> int:
        seconds = min(now, resource.deleted) - resource.created
        price = 0.0
        if resource.leftover.kind == "volume":
            price = self.catalog.disk_price_micros * resource.disk_bytes / GIB
        if resource.leftover.kind == "address":
            price = self.catalog.address_price_micros
        return -int(-seconds * price // HOUR_SECONDS)

    # --- time

    def settle(self) -> None:
        """Executes everything that has happened until now: timers, defects and interruptions."""
        now = self.clock.monotonic()
        if now == self._settled:
            return
        self._settled = now
        for one in tuple(self._live.values()):
            self._settle_one(one, now)

    def _settle_one(self, one: SimulatedMachine, now: float) -> None:
        """Executes what has happened to one machine until now."""
        if one.id not in self._live:
            return
        self._settle_machine(one, now)
        if one.ended <= now:
            del self._live[one.id]
            self._machine_ended(one)

    def _settle_again(self) -> None:
        """Executes what happens now because of a call or a fault."""
        self._settled = -inf
        self.settle()

    def _settle_machine(self, one: SimulatedMachine, now: float) -> None:
        while one.ended == inf:
            due, act = min(
                (one.fault_due(), self._fault_ends),
                (one.provider_due(), self._provider_ends),
                (one.self_end_due(), self._machine_ends_itself),
                key=lambda pair: pair[0],
            )
            if due > now:
                return
            act(one, due)

    def _fault_ends(self, one: SimulatedMachine, at: float) -> None:
        reason = "the provider interrupted the spot machine" if at == one.interrupted_at else "hardware fault"
        one.end(at, reason, gone=at)

    def _provider_ends(self, one: SimulatedMachine, at: float) -> None:
        one.end(at, "the time limit of the provider is over", gone=at)

    def _machine_ends_itself(self, one: SimulatedMachine, at: float) -> None:
        if one.self_end is SelfEnd.SHUTDOWN:
            one.shut_down(at, "the machine shut itself down")
        elif at < self.away_until or at < self.region_away_until.get(one.request.region, -inf):
            one.own_call_at = at + 30.0
        else:
            one.end(at, "the machine ended itself by a call", gone=at + self._terminate_seconds)

    def _machine_ended(self, one: SimulatedMachine) -> None:
        for resource in self.resources.values():
            ends = resource.leftover.kind == "address" or not one.keeps_volume
            if resource.machine_id == one.id and resource.leftover.kind in ("address", "volume") and ends:
                resource.deleted = min(resource.deleted, one.ended)

    def next_event(self) -> float | None:
        """Returns the monotonic time of the next event that happens without a call."""
        self.settle()
        now = self.clock.monotonic()
        times = [time for one in self._live.values() for time in self._times(one) if now < time < inf]
        return min(times, default=None)

    def _times(self, one: SimulatedMachine) -> tuple[float, ...]:
        notice = one.interrupted_at - self.traits.spot_notice_seconds
        return (one.ssh_at, one.fault_due(), one.provider_due(), one.self_end_due(), one.ended, notice)

    def wall(self, monotonic: float) -> float:
        """Returns the true Unix time for a monotonic time."""
        return self.epoch + monotonic

    # --- reports of the simulation of the machines

    def note_contact(self, machine_id: str) -> bool:
        """Notes a contact between the machine and the control node. Returns False if the machine does not
        work."""
        one, now = self.every[machine_id], self.clock.monotonic()
        self._settle_one(one, now)  # not all machines, because every machine has a contact in each step
        if not one.works(now):
            return False
        one.last_contact = now
        return True

    def note_job(self, machine_id: str, running: bool) -> None:
        """Notes whether a job runs on the machine now."""
        one, now = self.every[machine_id], self.clock.monotonic()
        self._settle_one(one, now)
        if one.busy and not running:
            one.idle_since = now
        one.busy = running and one.ended == inf

    def note_egress(self, machine_id: str, size_bytes: int) -> None:
        """Notes bytes that left the provider's network, and which the provider bills."""
        self.every[machine_id].egress_bytes += size_bytes

    def notice_at(self, machine_id: str) -> float:
        """Returns the monotonic time of the notice before the interruption of a spot machine. The time is
        infinite if the machine is not interrupted."""
        return self.every[machine_id].interrupted_at - self.traits.spot_notice_seconds

    # --- faults by hand

    def end_by_hand(self, machine_id: str) -> None:
        """Ends a machine, as somebody does in the console of the provider."""
        self.settle()
        now = self.clock.monotonic()
        self.every[machine_id].end(now, "user initiated", gone=now)
        self._settle_again()

    def kill_machine(self, machine_id: str) -> None:
        """Ends a machine by a defect."""
        self.every[machine_id].dies_at = self.clock.monotonic()
        self._settle_again()

    def hang_machine(self, machine_id: str) -> None:
        """Makes a machine stop working. The provider still reports the machine as running."""
        self.settle()
        self.every[machine_id].hangs_at = self.clock.monotonic()

    def interrupt_machine(self, machine_id: str) -> None:
        """Sends the notice of an interruption to a spot machine, which ends after the time of the notice."""
        self.every[machine_id].interrupted_at = self.clock.monotonic() + self.traits.spot_notice_seconds

    def go_away(self, seconds: float, region: str = "") -> None:
        """Makes the provider, or one of its regions, not answer for this number of seconds."""
        until = self.clock.monotonic() + seconds
        if region:
            self.region_away_until[region] = until
        else:
            self.away_until = until

    # --- what calls do

    def launch(self, request: LaunchRequest) -> SimulatedMachine:
        """Starts a machine, or returns the machine that was started for the same token in the same zone.
        Raises the errors of CloudPort.launch."""
        self.settle()
        known = self._tokens.get((request.token, request.zone))
        if known is not None:
            one = self.every[known]
            if one.request != request:
                raise ConflictError(
                    f"the token {request.token} was used with other parameters",
                    hint="Repeat the launch with the first parameters, or use another token.",
                )
            return one
        kind = self._check_request(request)
        self._create_resources(request)
        self._check_room(request, kind)
        return self._start(request, kind)

    def _check_request(self, request: LaunchRequest) -> SimulatedType:
        kind, zones = self.catalog.type_named(request.instance_type), self.catalog.regions
        if request.region in self.hidden_regions or request.region not in zones:
            raise RefusedError(f"the region {request.region} does not exist")
        if kind is None or request.zone not in zones[request.region]:
            raise RefusedError(f"{request.zone} does not offer {request.instance_type}")
        if self.catalog.images and request.image not in self.catalog.images:
            raise RefusedError(f"the image {request.image} does not exist")
        if request.spot and kind.spot_price_micros is None:
            raise RefusedError(f"{request.instance_type} is not offered as a spot machine")
        return kind

    def _check_room(self, request: LaunchRequest, kind: SimulatedType) -> None:
        key = (request.region, kind.family, request.spot)
        limit, used = self.catalog.quotas.get(key, inf), self.used_quota().get(key, 0.0)
        if used + kind.cpus > limit:
            raise QuotaError(f"the quota for {kind.family} in {request.region} is {limit:g} vCPUs")
        if {(request.zone, kind.name), (request.zone, "*")} & self.faults.no_machine:
            raise NoMachineError(f"{request.zone} has no free {kind.name}")

    def used_quota(self) -> dict[tuple[str, str, bool], float]:
        """Returns the CPUs of the machines that exist, by region, family and whether they are spot
        machines."""
        used: dict[tuple[str, str, bool], float] = {}
        for one in self._live.values():
            kind = self.catalog.type_named(one.request.instance_type)
            if kind is not None:
                key = (one.request.region, kind.family, one.request.spot)
                used[key] = used.get(key, 0.0) + kind.cpus
        return used

    def _create_resources(self, request: LaunchRequest) -> None:
        for kind in ("key", "security-group"):
            self._add_resource(kind, f"gridmill-{request.lease}", request)

    def _add_resource(
        self, kind: str, name: str, request: LaunchRequest, machine_id: str = "", disk_bytes: int = 0
    ) -> None:
        known = self.resources.get((kind, name))
        if known is None or known.deleted < inf:
            leftover = Leftover(
                kind=kind,
                id=name,
                region=request.region,
                lease=request.lease,
                owner=request.owner,
                # as at EC2, which reports no time for groups and addresses
                created=self.clock.now() if kind in ("volume", "key") else None,
            )
            self.resources[kind, name] = Resource(
                leftover=leftover,
                created=self.clock.monotonic(),
                machine_id=machine_id,
                disk_bytes=disk_bytes,
            )

    def _start(self, request: LaunchRequest, kind: SimulatedType) -> SimulatedMachine:
        now, number = self.clock.monotonic(), len(self.every) + 1
        one = SimulatedMachine(
            id=f"m-{number:04d}",
            request=request,
            price_micros=kind.spot_price_micros if request.spot else kind.price_micros,
            self_end=self.traits.self_end,
            started=now,
            boots_at=now,
            ssh_at=now,
            timers=read_timers(request.user_data),
            bills_stopped=self.traits.bills_stopped,
            address=f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
        )
        self._draw_faults(one)
        self.every[one.id] = self._live[one.id] = one
        self._tokens[request.token, request.zone] = one.id
        self._add_resource("volume", f"vol-{one.id}", request, one.id, request.disk_bytes)
        self._add_resource("address", f"ip-{one.id}", request, one.id)
        return one

    def _draw_faults(self, one: SimulatedMachine) -> None:
        draw, faults, now = self.random, self.faults, one.started
        seconds = draw.uniform(*faults.boot_seconds) * (10.0 if draw.random() < faults.slow_boots else 1.0)
        one.boots_at, one.ssh_at = now + seconds * 0.7, now + seconds
        if draw.random() < faults.silent_boots:
            one.ssh_at = inf
        if draw.random() < faults.dead_boots:
            one.boots_at = one.ssh_at = inf
        one.shutdown_ends = draw.random() >= faults.bad_shutdowns
        one.keeps_volume = draw.random() < faults.orphaned_volumes
        one.dies_at = now + self._drawn_seconds(faults.dies_per_hour)
        one.hangs_at = now + self._drawn_seconds(faults.hangs_per_hour)
        interrupted = self._drawn_seconds(faults.interrupts_per_hour if one.request.spot else 0.0)
        one.interrupted_at = now + interrupted + self.traits.spot_notice_seconds

    def _drawn_seconds(self, per_hour: float) -> float:
        return self.random.expovariate(per_hour / HOUR_SECONDS) if per_hour > 0 else inf

    def terminate(self, machine_id: str) -> bool:
        """Ends a machine. Returns False if there is nothing to end."""
        self.settle()
        one, now = self.every.get(machine_id), self.clock.monotonic()
        if one is None or one.ended <= now:
            return False
        if self.random.random() >= self.faults.ignored_terminates:
            one.end(now, "terminated by a client", gone=now + self._terminate_seconds)
            self._settle_again()
        return True

    def delete(self, leftover: Leftover) -> bool:
        """Deletes a resource. Returns False if it does not exist. Raises ConflictError if it is in use."""
        self.settle()
        resource = self.resources.get((leftover.kind, leftover.id))
        if resource is None or resource.deleted < inf:
            return False
        if self._is_used(resource):
            raise ConflictError(f"the {leftover.kind} {leftover.id} is in use")
        resource.deleted = self.clock.monotonic()
        return True

    def _is_used(self, resource: Resource) -> bool:
        if resource.leftover.kind == "key":
            return False
        free_at = max((self._frees_at(one) for one in self._users(resource)), default=-inf)
        return self.clock.monotonic() < free_at

    def _users(self, resource: Resource) -> Sequence[SimulatedMachine]:
        if resource.machine_id:
            return (self.every[resource.machine_id],)
        return [one for one in self.every.values() if one.request.lease == resource.leftover.lease]

    def _frees_at(self, one: SimulatedMachine) -> float:
        return one.gone + self.faults.detach_seconds

    # --- what lists show

    def listed_machines(self, owner: str) -> tuple[Machine, ...]:
        """Returns the list that a client sees now: each machine as it was up to `lag_seconds` ago."""
        self.settle()
        now = self.clock.monotonic()
        seen = []
        for one in self.every.values():
            at = now - self.random.uniform(0.0, self.faults.lag_seconds)
            listed = one.started <= at and at < one.gone + REMEMBERED_SECONDS
            if listed and owner in ("", one.request.owner):
                seen.append(self.view(one, at))
        return tuple(seen)

    def view(self, one: SimulatedMachine, at: float) -> Machine:
        """Returns a machine as the provider reports it for a monotonic time."""
        state, word = one.state(at)
        request = one.request
        return Machine(
            id=one.id,
            provider=self.name,
            region=request.region,
            zone=request.zone,
            instance_type=request.instance_type,
            state=state,
            native_state=word,
            lease=request.lease,
            owner=request.owner,
            token=request.token,
            address=one.address if state is MachineState.RUNNING else "",
            spot=request.spot,
            launched=self.wall(one.started),
            ended=self.wall(one.ended) if at >= one.ended else None,
            reason=one.reason if at >= min(one.ended, one.stopped) else "",
        )

    def listed_resources(self, owner: str) -> tuple[Leftover, ...]:
        """Returns the resources that a client sees now. A resource of a machine is listed until it is
        deleted; a resource can be missing for up to `lag_seconds`."""
        self.settle()
        now = self.clock.monotonic()
        seen = []
        for one in self.resources.values():
            at = now - self.random.uniform(0.0, self.faults.lag_seconds)
            if one.created <= at < one.deleted and owner in ("", one.leftover.owner):
                seen.append(one.leftover)
        return tuple(seen)

    def use_faults(self, faults: ProviderFaults) -> None:
        """Changes the faults from now on. Machines that exist keep the faults that were drawn for them."""
        self.faults = faults

    def give_faults(self, method: str, *faults: str) -> None:
        """Injects faults into the next calls of a method: `before`, `after` or `none`."""
        known = {**self.faults.next_faults, method: faults}
        self.faults = replace(self.faults, next_faults=known)
