"""A cloud site on a fake clock: machines of the simulated provider, with simulated pods on them, and a real
control node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gridmill.control.node import ControlNode
from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.command import CommandSpec
from gridmill.domain.job import Job, JobKind
from gridmill.domain.lease import LaunchTry, Lease, LeaseState
from gridmill.domain.machine import Machine
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import PodOrder
from gridmill.domain.resource import Resource
from gridmill.domain.run import Run
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.errors import MachineFaultError, UnavailableError
from gridmill.ports.cloud import CloudPort, LaunchRequest, MachineReport
from gridmill.ports.site import PodReport, PodStatus
from gridmill.stores.memory import MemoryStore
from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.account import SimulatedAccount
from gridmill.testing.cloud.provider import SimulatedProvider
from gridmill.testing.simulated_site import Behaviour, SimulatedWorld
from gridmill.testing.simulation import Simulation

AWS = "aws"


class RentedSite(SimulatedWorld):
    """Implements SitePort, RentingSite and the links of pods. `faulty` has machines that are defective."""

    owner = "grid"

    def __init__(self, clock: FakeClock, behave, provider: SimulatedProvider) -> None:
        nodes = tuple(
            Node(name=f"gpu.one#{number}", capacity=Amounts(cpus=4.0, memory_bytes=14 * GIB, gpus=1))
            for number in range(1, 9)
        )
        super().__init__(clock, behave, nodes=nodes)
        self.provider, self.account = provider, provider.account
        self.faulty: set[str] = set()
        self.told: tuple[Lease, ...] = ()
        self.orders: dict[str, PodOrder] = {}
        self.over: dict[str, str] = {}
        self.heartbeats: list[float] = []
        self.forgotten: list[tuple[str, LeaseState]] = []

    def cloud(self) -> CloudPort:
        return self.provider

    def launch(self, lease: Lease, launch_try: LaunchTry) -> Machine:
        request = LaunchRequest(
            token=launch_try.token,
            lease=lease.id,
            owner=self.owner,
            region=launch_try.region,
            zone=launch_try.zone,
            instance_type=launch_try.instance_type,
            image="",
            spot=launch_try.spot,
            disk_bytes=50 * GIB,
            ssh_public_key="key",
            user_data="",
            max_seconds=lease.terms.max_seconds,
        )
        return self.provider.launch(request)

    def prepare_machine(self, lease: Lease, machine: Machine) -> MachineReport:
        one = self.account.every[machine.id]
        if not one.works(self.clock.monotonic()):
            raise UnavailableError("the SSH server does not answer yet")
        if machine.id in self.faulty:
            raise MachineFaultError("a GPU is missing")
        return MachineReport(address=one.address, cpus=4.0, memory_bytes=16 * GIB)

    def heartbeat(self) -> None:
        self.heartbeats.append(self.clock.monotonic())

    def use_leases(self, leases: Sequence[Lease]) -> None:
        open_pods = {lease.pod_id for lease in leases if lease.state is not LeaseState.RELEASING}
        for lease in (*self.told, *leases):
            if lease.pod_id not in open_pods:
                reason = next((one.reason for one in leases if one.id == lease.id), lease.reason)
                self.over.setdefault(lease.pod_id, reason)
        self.told = tuple(leases)
        self._start_ready()

    def forget_lease(self, lease: Lease) -> None:
        self.forgotten.append((lease.id, lease.state))

    def progress(self, lease: str) -> str:
        return ""

    def bring_up(self, orders: Sequence[PodOrder]) -> None:
        self.orders |= {order.pod_id: order for order in orders}
        self._start_ready()

    def _start_ready(self) -> None:
        ready = {lease.pod_id for lease in self.told if lease.state is LeaseState.READY}
        for pod_id in ready & self.orders.keys():
            super().bring_up((self.orders.pop(pod_id),))

    def observe(self, pod_ids: Sequence[str]) -> Mapping[str, PodReport]:
        return {name: self._seen(name) for name in pod_ids}

    def _seen(self, pod_id: str) -> PodReport:
        if pod_id in self.over:
            self.kill_pod(pod_id)
            return PodReport(status=PodStatus.GONE, message=self.over[pod_id], left=True, taken=True)
        if pod_id in self.pods:
            hung = any(one.hangs_at <= self.clock.monotonic() for one in self.account.machines_alive())
            return PodReport(status=PodStatus.UNKNOWN) if hung else self._pod_report(pod_id)
        return PodReport(status=PodStatus.QUEUED, message="a machine will be rented")

    def undelivered_events(self, pod_id: str):
        return () if pod_id in self.over else super().undelivered_events(pod_id)

    def next_event(self) -> float | None:
        times = [super().next_event(), self.account.next_event()]
        return min((time for time in times if time is not None), default=None)

    def step(self) -> None:
        self.account.settle()
        super().step()


@dataclass(slots=True, kw_only=True)
class RentedGrid(Simulation):
    """A grid whose only machines are rented. `settings` are the terms of the site."""

    store: MemoryStore = field(default_factory=MemoryStore)
    behave: object = lambda order: Behaviour(seconds=60.0)
    account: SimulatedAccount | None = None
    settings: dict[str, str] = field(default_factory=dict)
    workers: int = 1
    strict: bool = False

    def __post_init__(self) -> None:
        self.account = self.account or SimulatedAccount(self.clock)
        provider = SimulatedProvider(self.account)
        self.world = RentedSite(self.clock, self.behave, provider)
        self.node = self.new_node()
        self.declare()

    def new_node(self, sites=None, background=None) -> ControlNode:
        return Simulation.new_node(self, {AWS: self.world}, background)

    def declare(self) -> None:
        """Write the site and its resource to the store."""
        control = self.node.control
        control.ledger.load()
        transaction = control.begin()
        nodes = self.world.nodes()
        transaction.put(
            Site(name=AWS, kind=SiteKind.CLOUD, nodes=nodes, settings=self.settings),
            Resource(name="burst", type=JobKind.COMMAND, site=AWS, gpus=1, workers=self.workers),
        )
        control.ledger.commit(transaction)
        control.ledger.doubtful = True

    def start(self, *names: str, pipeline: str = "p") -> Run:
        """Start a run of commands on rented machines."""
        jobs = tuple(
            Job(name=name, command=CommandSpec(run="true"), resource="burst") for name in names or ("train",)
        )
        return self.submit(Pipeline(name=pipeline, jobs=jobs))

    def leases(self) -> list[Lease]:
        """All leases, open and closed."""
        return [record.noun for record in self.store.list(Lease)]

    def alive(self) -> int:
        """The number of machines that cost money."""
        return len(self.account.machines_alive())

    def until(self, done, seconds: float = 3600.0) -> float:
        """Go on until something is true. Returns the seconds that it took."""
        began = self.clock.monotonic()
        while not done():
            assert self.clock.monotonic() < began + seconds, (self.leases(), self.warnings[-5:])
            self.advance()
        return self.clock.monotonic() - began

    def is_over(self) -> bool:
        """Whether no run is active and all leases are closed."""
        idle = not self.node.control.ledger.snapshot.runs
        return idle and all(not one.is_open for one in self.leases()) and bool(self.leases())


def with_terms(**settings: str) -> RentedGrid:
    """A grid whose resource has these settings."""
    return RentedGrid(settings=settings)
