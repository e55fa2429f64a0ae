"""A simulated cloud site: its machines are rented at a simulated provider, and its pods run on these
machines."""

from collections.abc import Callable, Mapping, Sequence

from gridmill.domain.amounts import Amounts
from gridmill.domain.lease import LaunchTry, Lease, LeaseState
from gridmill.domain.machine import Machine
from gridmill.domain.pod_protocol import AttemptOrder, PodEvent, PodOrder
from gridmill.domain.site import Node
from gridmill.errors import MachineFaultError, UnavailableError
from gridmill.ports.cloud import CloudPort, LaunchRequest, MachineReport
from gridmill.ports.site import PodReport, PodStatus
from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.catalog import GIB
from gridmill.testing.cloud.machine import MachineTimers, SimulatedMachine, write_timers
from gridmill.testing.cloud.provider import SimulatedProvider
from gridmill.testing.simulated_site import Behaviour, SimulatedPod, SimulatedWorld

PREPARE_SECONDS = 10.0
"""How long the installation of a machine takes after its SSH server answers."""
EXPORT_SECONDS = 120.0
"""The time without contact after which a machine exports the results of its jobs."""
RECONNECT_SECONDS = 5.0
"""The time between two attempts of a pod to connect to a control node that does not answer."""
_CONTACT = (LeaseState.BOOTING, LeaseState.READY)


class RentedWorld(SimulatedWorld):
    """Implements SitePort, RentingSite and LinkServer for a control node that is tested.

    By default, the site has `machines` nodes of each type. The pods of a machine live as long as their
    machine. While the control node lives and has a network, its
    leases count as in contact with their machines. With `exports`, a bucket takes the results of jobs: a
    running job counts as contact too, and the results outlast the machine. The check of the first
    `bad_machines` machines finds a defect.
    """

    def __init__(
        self,
        clock: FakeClock,
        behave: Callable[[AttemptOrder], Behaviour],
        provider: SimulatedProvider,
        *,
        owner: str = "grid-a",
        nodes: tuple[Node, ...] = (),
        machines: int = 4,
        exports: bool = False,
        bad_machines: int = 0,
    ) -> None:
        super().__init__(clock, behave, nodes=nodes or slots_of(provider, machines))
        self.owner, self.provider, self.account = owner, provider, provider.account
        self.exports, self.bad_machines = exports, bad_machines
        self.is_node_alive = True
        self._heartbeat = clock.monotonic()
        self.machine_of_pod: dict[str, str] = {}
        self._bad: set[str] = set()
        self._installed: dict[str, float] = {}
        self._noticed: set[str] = set()
        self._leases: dict[str, Lease] | None = None
        self._orders: dict[str, PodOrder] = {}
        self._gone: dict[str, str] = {}
        self.exported: dict[str, tuple[PodEvent, ...]] = {}
        """The events in the bucket, by pod."""

    # --- RentingSite

    def cloud(self) -> CloudPort:
        """Returns the account of the site."""
        return self.provider

    def launch(self, lease: Lease, launch_try: LaunchTry) -> Machine:
        """See RentingSite."""
        terms = lease.terms
        timers = MachineTimers(
            dead_man_seconds=terms.dead_man_seconds, job_holds=self.exports, max_seconds=terms.max_seconds
        )
        request = LaunchRequest(
            token=launch_try.token,
            lease=lease.id,
            owner=self.owner,
            region=launch_try.region,
            zone=launch_try.zone,
            instance_type=launch_try.instance_type,
            image=terms.image,
            spot=launch_try.spot,
            disk_bytes=terms.disk_bytes or 50 * GIB,
            ssh_public_key=f"key of {lease.id}",
            user_data=write_timers(timers),
            max_seconds=terms.max_seconds,
        )
        return self.provider.launch(request)

    def prepare_machine(self, lease: Lease, machine: Machine) -> MachineReport:
        """See RentingSite. Raises UnavailableError until the machine has booted and is installed."""
        one = self.account.every.get(machine.id)
        if one is None or not self._reach(one):
            raise UnavailableError(f"the SSH server of {machine.id} does not answer yet")
        self.account.note_contact(one.id)
        if one.id in self._bad or len(self._bad) < self.bad_machines:
            self._bad.add(one.id)
            raise MachineFaultError(f"{one.id} has a GPU that does not work")
        ready = self._installed.setdefault(one.id, self.clock.monotonic() + PREPARE_SECONDS)
        if self.clock.monotonic() < ready:
            raise UnavailableError(f"Gridmill is being installed on {machine.id}")
        kind = self.account.catalog.type_named(one.request.instance_type)
        assert kind is not None
        return MachineReport(
            address=one.address,
            cpus=kind.cpus,
            memory_bytes=kind.memory_bytes,
            gpus=(kind.gpu_model,) * kind.gpus,
            installed="wheel",
            seconds={"ssh": one.ssh_at - one.started, "install": PREPARE_SECONDS},
        )

    def heartbeat(self) -> None:
        """See RentingSite."""
        self._heartbeat = self.clock.monotonic()

    def use_leases(self, leases: Sequence[Lease]) -> None:
        """See RentingSite."""
        before, self._leases = self._leases or {}, {lease.pod_id: lease for lease in leases}
        for pod_id, lease in before.items():
            if pod_id not in self._leases:
                self._gone.setdefault(pod_id, lease.reason or "its lease was closed")
        for pod_id, lease in self._leases.items():
            if lease.state in (LeaseState.RELEASING, LeaseState.CLOSED):
                self._gone.setdefault(pod_id, lease.reason)

    def forget_lease(self, lease: Lease) -> None:
        """Does nothing, because there are no connections and keys."""

    def progress(self, lease: str) -> str:
        """Returns an empty text."""
        return ""

    # --- SitePort

    def bring_up(self, orders: Sequence[PodOrder]) -> None:
        """Starts pods whose machine is ready. Other pods start as soon as their machine is ready."""
        for order in orders:
            self._orders[order.pod_id] = order
        self._start_waiting()

    def _start_waiting(self) -> None:
        for pod_id in tuple(self._orders):
            lease = (self._leases or {}).get(pod_id)
            machine = None if lease is None else self._machine(lease)
            if lease is None or machine is None or lease.state is not LeaseState.READY:
                continue
            if self._reach(machine):
                self.machine_of_pod.setdefault(pod_id, machine.id)
                super().bring_up((self._orders.pop(pod_id),))

    def observe(self, pod_ids: Sequence[str]) -> Mapping[str, PodReport]:
        """GONE after the machine has ended, QUEUED before it is ready, and UNKNOWN while it does not
        answer."""
        self._start_waiting()
        return {name: self._report(name) for name in pod_ids}

    def _report(self, pod_id: str) -> PodReport:
        if pod_id in self._gone:
            return PodReport(status=PodStatus.GONE, message=self._gone[pod_id], left=True)
        lease = (self._leases or {}).get(pod_id)
        if lease is None and pod_id not in self._orders:
            known = self._leases is not None
            return PodReport(status=PodStatus.GONE if known else PodStatus.UNKNOWN, left=known)
        machine = None if lease is None else self._machine(lease)
        if lease is None or machine is None or lease.state is not LeaseState.READY:
            return PodReport(status=PodStatus.QUEUED, message="a machine will be rented")
        if not self._reach(machine):
            return PodReport(status=PodStatus.UNKNOWN, message=f"{machine.id} does not answer")
        if pod_id in self._noticed:
            self.kill_pod(pod_id)
            return PodReport(status=PodStatus.GONE, message="the spot machine ends", left=True)
        return self._pod_report(pod_id)

    def undelivered_events(self, pod_id: str) -> Sequence[PodEvent]:
        """Returns the events of a GONE pod from its machine, or from the bucket if the machine does not
        answer any more."""
        machine = self.account.every.get(self.machine_of_pod.get(pod_id, ""))
        if machine is not None and self._reach(machine):
            return super().undelivered_events(pod_id)
        return self.exported.get(pod_id, ())

    def tear_down(self, pod_ids: Sequence[str]) -> None:
        """Ends pods. A machine that does not answer is given up, because it is returned afterwards."""
        for pod_id in pod_ids:
            self._orders.pop(pod_id, None)
            machine = self.account.every.get(self.machine_of_pod.get(pod_id, ""))
            if machine is None or self._reach(machine):
                super().tear_down((pod_id,))

    def _machine(self, lease: Lease) -> SimulatedMachine | None:
        known = lease.machine_try
        return None if known is None else self.account.every.get(known.machine_id)

    def _reach(self, machine: SimulatedMachine) -> bool:
        return not self.provider.is_cut and machine.works(self.clock.monotonic())

    # --- time and faults

    def control_died(self) -> None:
        """Closes every channel, and forgets what the control node has told the site."""
        super().control_died()
        self._leases, self._orders, self._gone, self._noticed = None, {}, {}, set()

    def step(self) -> None:
        """Executes everything that has happened at the provider, on the machines and in their pods."""
        self._note_contacts()
        self.account.settle()
        now = self.clock.monotonic()
        for pod_id in tuple(self.pods):
            machine = self.account.every[self.machine_of_pod[pod_id]]
            if not machine.works(now):
                self.kill_pod(pod_id)
                self.words[pod_id] = ()
            elif not self._can_connect():
                self.cut_link(pod_id, RECONNECT_SECONDS)
            if self.account.notice_at(machine.id) <= now < machine.interrupted_at:
                self._noticed.add(pod_id)
        self._start_waiting()
        super().step()
        self._note_jobs()
        self._export_results()

    def _export_results(self) -> None:
        """Puts the results of ended jobs into the bucket, if the control node has been silent."""
        for pod_id, pod in self.pods.items() if self.exports else ():
            machine = self.account.every[self.machine_of_pod[pod_id]]
            if self.clock.monotonic() - machine.last_contact >= EXPORT_SECONDS and not pod.running:
                self.exported[pod_id] = tuple(pod.journal)

    def _can_connect(self) -> bool:
        return self.is_node_alive and not self.provider.is_cut

    def _connect(self, pod: SimulatedPod) -> None:
        if self._can_connect():
            super()._connect(pod)
        else:
            pod.connect_at = self.clock.monotonic() + RECONNECT_SECONDS

    def _note_contacts(self) -> None:
        if not self._can_connect():
            return
        silent = self.clock.monotonic() - self._heartbeat
        for lease in (self._leases or {}).values():
            machine = self._machine(lease)
            is_wanted = lease.state in _CONTACT and silent < lease.terms.dead_man_seconds / 2
            if machine is not None and is_wanted and self._reach(machine):
                self.account.note_contact(machine.id)

    def _note_jobs(self) -> None:
        busy = {self.machine_of_pod[pod_id] for pod_id, pod in self.pods.items() if pod.running}
        for machine in self.account.machines_alive(self.owner):
            self.account.note_job(machine.id, machine.id in busy)

    def next_event(self) -> float | None:
        """Returns the monotonic time of the next event. While machines exist, this is at most one minute
        from now, because contacts are noted at each step."""
        now = self.clock.monotonic()
        times = [super().next_event(), self.account.next_event()]
        times += [ready for ready in self._installed.values() if ready > now]
        times += [now + 60.0] if self.account.machines_alive() else []
        return min((time for time in times if time is not None), default=None)


def slots_of(provider: SimulatedProvider, machines: int) -> tuple[Node, ...]:
    """Returns one node for each machine that could be rented, as a cloud site does."""
    return tuple(
        Node(
            name=f"{kind.name}#{number}",
            capacity=Amounts(
                cpus=float(kind.cpus), memory_bytes=int(kind.memory_bytes * 0.85), gpus=kind.gpus
            ),
        )
        for kind in provider.account.catalog.types
        for number in range(1, machines + 1)
    )
