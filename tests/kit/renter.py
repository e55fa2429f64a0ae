"""Rents a machine for each pod of a cloud site and returns it when its deployment has ended: the smallest
loop that does what the control node does with leases."""

import threading
from dataclasses import replace
from typing import Protocol

from gridmill.bootstrap.node import EmbeddedNode
from gridmill.domain.deployment import Deployment
from gridmill.domain.lease import LaunchTry, Lease, LeaseState, RentalTerms, TryState
from gridmill.domain.machine import Machine, MachineState
from gridmill.domain.states import DeploymentState
from gridmill.errors import MachineFaultError, UnavailableError
from gridmill.ports.cloud import MachineReport, RentingSite


class Clock(Protocol):
    def __call__(self) -> float: ...


class Renter:
    """`leases` has all leases by pod, also closed ones. `reports` has the report about each prepared
    machine."""

    def __init__(self, site: str, terms: RentalTerms, now: Clock) -> None:
        self.site, self.terms, self.now = site, terms, now
        self.leases: dict[str, Lease] = {}
        self.machines: dict[str, Machine] = {}
        self.reports: dict[str, MachineReport] = {}
        self.faults: list[str] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, node: EmbeddedNode) -> None:
        """Rent for this control node."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(node, self._over), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """As a control node that ends: leases stay as they are."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(120)

    def _run(self, node: EmbeddedNode, over: threading.Event) -> None:
        while not over.wait(0.05):
            port = node.node.control.sites.get(self.site)
            if isinstance(port, RentingSite):
                deployments = node.node.control.ledger.snapshot.deployments
                self.tick(port, {d.id: d for d in deployments.values() if d.site == self.site}, over)

    def tick(self, port: RentingSite, deployments: dict[str, Deployment], over: threading.Event) -> None:
        for deployment in deployments.values():
            for pod in deployment.pods:
                if pod.id not in self.leases and deployment.state is not DeploymentState.GONE:
                    self.leases[pod.id] = self._new(deployment, pod.id, port.owner, pod.capacity.gpus)
        seen = {machine.token: machine for machine in port.cloud().machines(port.owner)}
        port.use_leases([one for one in self.leases.values() if one.is_open])
        for pod, lease in tuple(self.leases.items()):
            if over.is_set() or not lease.is_open:
                continue
            deployment = deployments.get(lease.deployment_id)
            self.leases[pod] = self._step(port, lease, deployment, seen)

    def _new(self, deployment: Deployment, pod: str, owner: str, gpus: int) -> Lease:
        return Lease(
            id=f"lease-{len(self.leases) + 1}",
            provider=self.site,
            owner=owner,
            resource=deployment.resource,
            deployment_id=deployment.id,
            pod_id=pod,
            state=LeaseState.LAUNCHING,
            terms=self.terms,
            needs_cpus=1,
            needs_gpus=gpus,
            tries=(self._try(pod, 1),),
            opened=self.now(),
        )

    def _try(self, pod: str, number: int) -> LaunchTry:
        return LaunchTry(
            number=number,
            token=f"{pod}-{number}",
            region="here",
            zone="here-a",
            instance_type="host.small",
            spot=self.terms.spot,
            at=self.now(),
        )

    def _step(
        self, port: RentingSite, lease: Lease, deployment: Deployment | None, seen: dict[str, Machine]
    ) -> Lease:
        last = lease.tries[-1]
        machine = seen.get(last.token)
        if machine is not None and machine.state is MachineState.ENDED:
            return self._close(port, lease, lease.reason or "the machine has ended")
        if deployment is None or deployment.state is DeploymentState.GONE:
            return self._close(port, lease, "not needed any more")
        if lease.state is LeaseState.LAUNCHING:
            launched = port.launch(lease, last)
            known = replace(last, state=TryState.CONFIRMED, machine_id=launched.id, confirmed=self.now())
            return replace(lease, state=LeaseState.PREPARING, tries=(*lease.tries[:-1], known))
        if lease.state is LeaseState.PREPARING and machine is not None:
            return self._prepare(port, lease, machine)
        return lease

    def _prepare(self, port: RentingSite, lease: Lease, machine: Machine) -> Lease:
        try:
            self.reports[lease.id] = port.prepare_machine(lease, machine)
        except MachineFaultError as error:
            self.faults.append(error.message)
            port.forget_lease(lease)
            port.cloud().terminate(machine)
            again = self._try(lease.pod_id, len(lease.tries) + 1)
            return replace(lease, state=LeaseState.LAUNCHING, tries=(*lease.tries, again))
        except UnavailableError:
            return lease
        return replace(lease, state=LeaseState.READY, ready=self.now())

    def _close(self, port: RentingSite, lease: Lease, reason: str) -> Lease:
        releasing = replace(lease, state=LeaseState.RELEASING, reason=reason, release_asked=self.now())
        self.leases[lease.pod_id] = releasing
        port.use_leases([one for one in self.leases.values() if one.is_open])
        port.forget_lease(releasing)
        for machine in port.cloud().machines(port.owner):
            if machine.lease == lease.id:
                port.cloud().terminate(machine)
        closed = replace(releasing, state=LeaseState.CLOSED, closed=self.now())
        port.forget_lease(closed)
        return closed
