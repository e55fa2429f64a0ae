"""A small provider on a fake clock, and a driver that executes the decisions about leases as the control node
does: it commits first, then acts, and may crash between the two."""

import random
from dataclasses import dataclass, field

from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.frozen import replace
from gridmill.domain.job import JobKind
from gridmill.domain.lease import Lease, LeaseState, RentalTerms, TryProblem, request_of
from gridmill.domain.machine import Leftover, Machine, MachineState, Offer, ProviderTraits, SelfEnd
from gridmill.domain.resource import Sizing
from gridmill.domain.states import DeploymentState, PodState
from gridmill.scheduler.rental_calls import Action, Call, Calls
from gridmill.scheduler.rental_choice import Market
from gridmill.scheduler.rental_list import MachineList, Sightings
from gridmill.scheduler.rental_results import end_accepted, faulty, launched, prepared, refused, with_new_try
from gridmill.scheduler.renting import RentingSituation, RentPlan, decide, releasing

LAG = 5.0
TRAITS = ProviderTraits(self_end=SelfEnd.SHUTDOWN, list_lag_seconds=LAG)
ENDING = 3.0
"""The seconds from the request to end a machine until it has ended."""


def an_offer(**fields) -> Offer:
    """A machine with one GPU in two zones, for 1 USD per hour."""
    plain = Offer(
        provider="aws",
        region="us-east-1",
        zones=("us-east-1a", "us-east-1b"),
        instance_type="g5.xlarge",
        cpus=4,
        memory_bytes=16 * GIB,
        gpus=1,
        gpu_memory_bytes=24 * GIB,
        price_micros=1_000_000,
        spot_price_micros=300_000,
    )
    return replace(plain, **fields)


def a_deployment(name: str = "burst-1", **fields) -> Deployment:
    """A starting deployment with one pod."""
    amounts = Amounts(cpus=2, memory_bytes=8 * GIB, gpus=1)
    pod = Pod(id=f"{name}.0", node="g5.xlarge#1", capacity=amounts, state=PodState.STARTING)
    plain = Deployment(
        id=name,
        resource="burst",
        type=JobKind.TRAINING,
        site="aws",
        state=DeploymentState.STARTING,
        sizing=Sizing(amounts=amounts),
        pods=(pod,),
        keep_seconds=0.0,
        created=0.0,
    )
    return replace(plain, **fields)


@dataclass(slots=True)
class RealMachine:
    """A machine that really exists at the provider."""

    machine: Machine
    started: float
    shown_at: float
    ends_at: float = float("inf")


@dataclass(slots=True, kw_only=True)
class RentingWorld:
    """A provider, the records of the control node, and the values that a crash of the control node loses."""

    now: float = 1000.0
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    traits: ProviderTraits = TRAITS
    market: Market = field(default_factory=lambda: Market(offers=(an_offer(),), capacities={}))
    terms: RentalTerms = field(default_factory=RentalTerms)
    in_containers: frozenset[str] = frozenset()
    halted: dict[str, str] = field(default_factory=dict)
    ending: float = ENDING
    deployments: dict[str, Deployment] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    closed: dict[str, Lease] = field(default_factory=dict)
    real: list[RealMachine] = field(default_factory=list)
    leftovers: dict[str, Leftover] = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)
    awaits_used: bool = False
    requests: dict[str, tuple] = field(default_factory=dict)
    executed: list[Action] = field(default_factory=list)
    latest: MachineList | None = None
    calls: Calls = field(default_factory=Calls)
    sightings: Sightings = field(default_factory=lambda: Sightings(started=1000.0))
    fails: object = None
    """A function of an action that returns what goes wrong with it: an empty text, `lost`, `unavailable`, or
    a TryProblem."""

    def situation(self) -> RentingSituation:
        """The situation at the present time."""
        return RentingSituation(
            site="aws",
            provider="aws",
            owner="grid",
            traits=self.traits,
            market=self.market,
            deployments=tuple(self.deployments.values()),
            leases=tuple(self.leases.values()),
            closed={key: frozenset(each.token for each in one.tries) for key, one in self.closed.items()},
            terms={"burst": self.terms},
            halted=self.halted,
            in_containers=self.in_containers,
            latest=self.latest,
            used_seconds=self.used,
            awaits_used=self.awaits_used,
            sightings=self.sightings,
            calls=self.calls,
        )

    def lease(self) -> Lease:
        """The newest lease, open or closed."""
        known = {**self.leases, **self.closed}
        return known[f"lease-{len(known)}"]

    def commit(self) -> RentPlan:
        """Decide, and store the decisions."""
        plan = decide(self.situation(), self.now)
        for lease in plan.changed:
            self.put(lease)
        for new in plan.opened:
            number = len(self.leases) + len(self.closed) + 1
            self.put(
                Lease(
                    id=f"lease-{number}",
                    provider="aws",
                    owner="grid",
                    resource=new.resource,
                    deployment_id=new.deployment_id,
                    pod_id=new.pod_id,
                    state=LeaseState.PLANNED,
                    terms=new.terms,
                    needs_cpus=new.cpus,
                    needs_memory_bytes=new.memory_bytes,
                    needs_gpus=new.gpus,
                    needs_container=new.needs_container,
                    opened=self.now,
                )
            )
        for new in plan.tries:
            lease = self.leases[new.lease_id]
            assert all(one.is_resolved for one in lease.tries), "a try of the lease is not resolved yet"
            token = f"{lease.id}-{len(lease.tries) + 1}"
            self.put(with_new_try(lease, new.candidate, token, self.now))
        return plan

    def put(self, lease: Lease) -> None:
        """Store a lease; a closed lease must have left nothing at the provider."""
        for one in lease.tries:
            known = self.requests.setdefault(one.token, request_of(one))
            assert known == request_of(one), "a token is used with another request"
        if lease.is_open:
            self.leases[lease.id] = lease
            return
        assert not self.alive(lease.id), "a lease is closed although its machine exists"
        assert not [one for one in self.leftovers.values() if one.lease == lease.id]
        self.leases.pop(lease.id)
        self.closed[lease.id] = lease
        for deployment in list(self.deployments.values()):
            if deployment.id == lease.deployment_id:
                del self.deployments[deployment.id]

    def alive(self, lease: str = "") -> list[RealMachine]:
        """The machines that cost money now."""
        return [one for one in self.real if one.ends_at > self.now and lease in ("", one.machine.lease)]

    def step(self, seconds: float = 1.0) -> RentPlan:
        """Decide, commit and act; then the time goes on."""
        plan = self.commit()
        for action in plan.actions:
            self.act(action)
        self.now += seconds
        return plan

    def until(self, *states: LeaseState, seconds: float = 600.0) -> Lease:
        """Go on until the newest lease is in one of these states."""
        end = self.now + seconds
        while not (self.leases or self.closed) or self.lease().state not in states:
            assert self.now < end, self.lease()
            self.step()
        return self.lease()

    def act(self, action: Action) -> None:
        """Execute an action, and apply its result."""
        self.executed.append(action)
        wrong = self.fails(action) if self.fails is not None else ""
        calls = {Call.LAUNCH, Call.LIST, Call.TERMINATE, Call.DELETE}
        if action.call in calls:
            self.calls = replace(self.calls, last_call=self.now)
        match action.call:
            case Call.LIST:
                self._list(wrong)
            case Call.LAUNCH:
                self.calls = replace(self.calls, last_launch=self.now)
                self._launch(action, wrong)
            case Call.PREPARE:
                self._prepare(action, wrong)
            case Call.TERMINATE:
                self._terminate(action, wrong)
            case Call.DELETE:
                if not wrong:
                    self.leftovers.pop(action.key, None)
                    waits = {**self.calls.not_before, action.id: self.now + 30.0}
                    self.calls = replace(self.calls, not_before=waits)
        if wrong in ("lost", "unavailable"):
            waits = {**self.calls.not_before, action.id: self.now + 2.0}
            failures = {**self.calls.failures, action.id: self.calls.failures_of(action.call, action.key) + 1}
            self.calls = replace(self.calls, not_before=waits, failures=failures)

    def _list(self, wrong) -> None:
        if wrong:
            return
        shown = [one for one in self.real if one.shown_at <= self.now]
        machines = tuple(
            replace(
                one.machine,
                state=MachineState.ENDED if one.ends_at <= self.now else MachineState.RUNNING,
            )
            for one in shown
        )
        self.latest = MachineList(at=self.now, machines=machines, leftovers=tuple(self.leftovers.values()))
        seen = {one.token: self.now for one in machines if one.state is not MachineState.ENDED}
        self.sightings = replace(self.sightings, seen={**self.sightings.seen, **seen})

    def _launch(self, action: Action, wrong) -> None:
        one = action.launch_try
        lease = self.leases[action.lease.id]
        repeats = {**self.sightings.repeats, one.token: self.sightings.repeats.get(one.token, 0) + 1}
        sent = {**self.sightings.sent, one.token: self.now}
        self.sightings = replace(self.sightings, sent=sent, repeats=repeats)
        if isinstance(wrong, TryProblem):
            if not any(each.machine.token == one.token for each in self.real):
                self.put(refused(lease, one.token, wrong, str(wrong), self.now))
            return
        if wrong == "unavailable":
            return
        known = next((each for each in self.real if each.machine.token == one.token), None)
        if known is None:
            machine = Machine(
                id=f"i-{len(self.real) + 1}",
                provider="aws",
                region=one.region,
                zone=one.zone,
                instance_type=one.instance_type,
                state=MachineState.PENDING,
                lease=lease.id,
                owner="grid",
                token=one.token,
                spot=one.spot,
                launched=self.now,
            )
            shown_at = self.now + self.rng.random() * LAG
            known = RealMachine(machine=machine, started=self.now, shown_at=shown_at)
            self.real.append(known)
            key = f"key-{machine.id}"
            self.leftovers[key] = Leftover(
                kind="key", id=key, region=one.region, lease=lease.id, owner="grid"
            )
        if wrong != "lost":
            self.put(launched(lease, one.token, known.machine, self.now))

    def _prepare(self, action: Action, wrong) -> None:
        lease = self.leases[action.lease.id]
        if wrong == "fault":
            self.put(faulty(lease, action.key, "no GPU"))
        elif wrong == "unfit":
            self.put(faulty(lease, action.key, "another Python", TryProblem.UNFIT))
        elif not wrong and any(each.machine.id == action.machine.id for each in self.alive()):
            self.put(prepared(lease, action.key, "10.0.0.1", self.now))

    def _terminate(self, action: Action, wrong) -> None:
        if wrong == "unavailable":
            return
        for one in self.real:
            if one.machine.id == action.machine.id and one.ends_at > self.now + self.ending:
                one.ends_at = self.now + self.ending
        if not wrong and action.lease is not None and action.lease.id in self.leases:
            self.put(end_accepted(self.leases[action.lease.id], action.machine.id, self.now))
        waits = {**self.calls.not_before, action.id: self.now + 30.0}
        self.calls = replace(self.calls, not_before=waits)

    def crash(self) -> None:
        """The control node starts again: only the stored records are left."""
        self.latest, self.calls, self.sightings = None, Calls(), Sightings(started=self.now)

    def release(self, name: str = "burst-1", message: str = "idle") -> None:
        """The planner releases a deployment."""
        deployment = self.deployments.get(name)
        if deployment is not None:
            gone = replace(deployment, state=DeploymentState.RELEASING, message=message)
            self.deployments[name] = gone

    def stop_lease(self) -> None:
        """A user stops the newest lease."""
        self.put(releasing(self.lease(), "stopped by a user", self.now))
