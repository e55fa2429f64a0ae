"""The site of kind `cloud`. It implements SitePort, RentingSite and TransferSite.

The control node decides when machines are rented and returned, and this site carries it out. Each pod runs
on the machine of its lease, through the light server of that machine.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

from gridmill.domain.amounts import show_seconds
from gridmill.domain.artifact import Artifact
from gridmill.domain.farm_protocol import FARM_PROTOCOL, FarmStatus
from gridmill.domain.frozen import dataclass
from gridmill.domain.lease import LaunchTry, Lease, LeaseState
from gridmill.domain.machine import Machine
from gridmill.domain.pod_protocol import PodEvent, PodOrder
from gridmill.domain.rental_nodes import nodes_of_offers
from gridmill.domain.route import Route
from gridmill.domain.serving import Upstream
from gridmill.domain.site import Node, NodeUtilization, Site
from gridmill.errors import GridmillError, RefusedError, UnavailableError, explained
from gridmill.plugins import find
from gridmill.ports.cloud import CloudPort, EndCommands, ImageProvider, MachineImage, MachineReport
from gridmill.ports.site import (
    EarlyTransferSite,
    NextAttempt,
    PodListeners,
    PodReport,
    PodStatus,
    ServingSite,
    SitePort,
    TransferSite,
)
from gridmill.settings import Settings
from gridmill.sites.cloud.bucket_settings import bucket_credentials
from gridmill.sites.cloud.connection import MachineConnection
from gridmill.sites.cloud.rentals import Rentals, launch_request
from gridmill.sites.cloud.settings import CloudSettings, read
from gridmill.sites.marks import mark_of
from gridmill.version import __version__

_OFFERS_SECONDS = 600.0
"""The time for which the offers of the provider are cached. Prices and types change rarely."""
_GIVE_UP_SECONDS = 30.0
"""If a machine does not answer for this time while its pods are ended, its pods count as ended, because the
whole machine is returned afterwards."""
_MOST_AT_ONCE = 16
_WAITS = {
    LeaseState.PLANNED: "a machine will be requested",
    LeaseState.LAUNCHING: "a machine was requested",
    LeaseState.BOOTING: "its machine boots",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedMachine:
    """The reason why the machine of a pod has ended. With `left`, the end shows no fault of the pod."""

    reason: str
    left: bool


def ended_machine(lease: Lease, now: float) -> EndedMachine:
    """Returns why the machine of a lease that is being released, or is closed, has ended. A machine that had
    run for its longest time is no fault of the provider."""
    last = lease.last_try
    why = lease.reason or (last.message if last is not None else "") or "its machine has ended"
    launched = last.confirmed if last is not None else None
    ends = (now, lease.release_asked, last.ended if last is not None else None)
    end = min(time for time in ends if time is not None)
    at_cap = launched is not None and end - launched >= lease.terms.max_seconds
    return EndedMachine(reason=why, left=not at_cap)


class MachineExports(Protocol):
    """The results that machines exported to a bucket while this home was away."""

    def collect(self, pod_id: str) -> tuple[PodEvent, ...]:
        """Returns the events of the exported results of a pod, after the results are at home. Raises
        UnavailableError."""

    def settle_pod(self, pod_id: str) -> None:
        """Notes that no result of the pod is needed any more."""

    def start(self) -> None:
        """Starts to delete objects that are not needed any more."""

    def clear(self) -> None:
        """Deletes all objects, because the site was removed."""

    def close(self) -> None:
        """Stops. May be repeated."""


class CloudSite:
    """A site whose machines are rented. This class is safe to call from several threads."""

    def __init__(
        self,
        settings: Settings,
        site: Site,
        parsed: CloudSettings,
        cloud: CloudPort,
        owner: str,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        resolve: Callable[[str], str] | None = None,
    ) -> None:
        """`resolve` returns the value of a secret by its name."""
        self.owner = owner
        self._settings, self._site, self._parsed, self._cloud = settings, site, parsed, cloud
        self._monotonic, self._now = monotonic, now
        self._exports: MachineExports = find("machines", "exports")(
            settings, site, bucket_credentials(site), resolve
        )
        self._rentals = Rentals(
            settings, site, parsed, monotonic, now, self._end_command, self._exports, resolve
        )
        self._lock = threading.Lock()
        self._leases: dict[str, Lease] | None = None
        """The open leases by pod; None until the control node has named them."""
        self._ended: dict[str, EndedMachine] = {}
        self._waiting: dict[str, PodOrder] = {}
        """The orders of pods that have no machine yet."""
        self._given_up: dict[str, float] = {}
        self._offers: tuple[float, tuple[Node, ...]] | None = None

    # --- RentingSite

    def cloud(self) -> CloudPort:
        """See RentingSite."""
        return self._cloud

    def launch(self, lease: Lease, launch_try: LaunchTry) -> Machine:
        """See RentingSite."""
        keys = self._rentals.keys(lease, launch_try.number)
        end_command = self._end_command(launch_try.token)
        request = launch_request(lease, launch_try, self.owner, keys, self._parsed, end_command)
        return self._cloud.launch(request)

    def _end_command(self, token: str) -> str:
        return self._cloud.end_command(token) if isinstance(self._cloud, EndCommands) else ""

    def prepare_machine(self, lease: Lease, machine: Machine) -> MachineReport:
        """See RentingSite."""
        return self._rentals.prepare(lease, machine, is_key_injected=self._cloud.traits.runs_user_data)

    def build_image(self, lease: Lease, machine: Machine) -> MachineImage:
        """See BuildingSite."""
        if not isinstance(self._cloud, ImageProvider):
            raise RefusedError(f"the provider {self._parsed.provider} makes no images of machines")
        return self._rentals.build(lease, machine, self._cloud)

    def heartbeat(self) -> None:
        """See RentingSite."""
        self._rentals.heartbeat()

    def use_leases(self, leases: Sequence[Lease]) -> None:
        """See RentingSite."""
        now = self._now()
        by_pod = {lease.pod_id: lease for lease in leases if lease.state is not LeaseState.CLOSED}
        over = [one for one in leases if one.state in (LeaseState.RELEASING, LeaseState.CLOSED)]
        with self._lock:
            before = self._leases or {}
            vanished = [lease for pod, lease in before.items() if pod not in by_pod]
            for lease in (*vanished, *over):
                if by_pod.get(lease.pod_id, lease).id == lease.id:
                    self._ended.setdefault(lease.pod_id, ended_machine(lease, now))
            for pod, lease in by_pod.items():
                if lease.state is not LeaseState.RELEASING:
                    self._ended.pop(pod, None)
            self._leases = by_pod
        self._rentals.connect_soon(tuple(by_pod.values()))

    def forget_lease(self, lease: Lease) -> None:
        """See RentingSite."""
        self._rentals.forget(lease)

    def used_seconds(self, lease: str) -> float | None:
        """See TimedSite."""
        return self._rentals.used_seconds(lease)

    def progress(self, lease: str) -> str:
        """See RentingSite."""
        return self._rentals.progress(lease) or self._early_text(lease)

    def _early_text(self, lease: str) -> str:
        connection = self._rentals.open_connections().get(lease)
        if connection is None or not isinstance(connection.site, EarlyTransferSite):
            return ""
        return ", ".join(connection.site.early_transfers().values())

    # --- ExternalCleanup

    def clean_up_previous(self) -> None:
        """See ExternalCleanup."""
        self._exports.start()

    def delete_all(self) -> None:
        """See ExternalCleanup."""
        self._exports.clear()

    # --- SitePort

    def nodes(self) -> tuple[Node, ...]:
        """Returns one node for each machine that could be rented. Raises UnavailableError if the provider
        has not answered yet."""
        with self._lock:
            cached = self._offers
        if cached is not None and self._monotonic() - cached[0] < _OFFERS_SECONDS:
            return cached[1]
        try:
            offers = self._cloud.offers(
                self._site.settings.get("region", ""), self._site.settings.get("instance_type", "")
            )
        except UnavailableError:
            if cached is None:
                raise
            return cached[1]
        except GridmillError as error:
            raise UnavailableError(error.message, hint=error.hint) from error
        found = nodes_of_offers(offers, self._parsed.max_machines)
        with self._lock:
            self._offers = self._monotonic(), found
        return found

    def utilization(self) -> Mapping[str, NodeUtilization]:
        """Returns nothing, because the nodes stand for machines that could be rented."""
        return {}

    def link(self) -> str:
        """Returns a placeholder address, which the light server of a machine replaces with its own
        address."""
        return f"unix:{self._settings.home / 'links.sock'}"

    def pod_home(self, pod_id: str) -> str:
        """Returns a placeholder folder, which the light server of a machine replaces with its own folder."""
        return ""

    def prepare(self) -> None:
        """Does nothing, because machines cost money."""

    def bring_up(self, orders: Sequence[PodOrder]) -> None:
        """Starts pods whose machine is ready. Other pods start as soon as their machine is ready."""
        with self._lock:
            for order in orders:
                # the slot stands for a machine that could be rented, and the light server has one node
                self._waiting[order.pod_id] = replace(order, node="", pinned=False)
                if self._leases is None or order.pod_id not in self._leases:
                    self._ended.pop(order.pod_id, None)
        for order in orders:
            lease = self._lease(order.pod_id)
            if lease is not None and lease.state is LeaseState.READY:
                self._start_waiting(order.pod_id, self._rentals.connection(lease))

    def _start_waiting(self, pod_id: str, connection: MachineConnection) -> None:
        with self._lock:
            order = self._waiting.get(pod_id)
        if order is not None:
            connection.site.bring_up((order,))
            with self._lock:
                self._waiting.pop(pod_id, None)

    def observe(self, pod_ids: Sequence[str]) -> Mapping[str, PodReport]:
        """Returns the reports on pods. A pod whose machine has ended is GONE; a pod without a ready machine
        is QUEUED. A machine that does not answer concerns only its own pods."""
        if not pod_ids:
            return {}
        if len(pod_ids) == 1:
            return {pod_ids[0]: self._report(pod_ids[0])}
        with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(pod_ids)), "gridmill-machines") as pool:
            return dict(zip(pod_ids, pool.map(self._report, pod_ids), strict=True))

    def _report(self, pod_id: str) -> PodReport:
        with self._lock:
            lease = self._leases.get(pod_id) if self._leases is not None else None
            ended, is_known = self._ended.get(pod_id), self._leases is not None
            is_waiting = pod_id in self._waiting
        if ended is not None:
            return PodReport(status=PodStatus.GONE, message=ended.reason, left=ended.left, taken=ended.left)
        if lease is not None and lease.state is LeaseState.READY:
            return self._on_machine(pod_id, lease)
        if lease is not None:
            return PodReport(status=PodStatus.QUEUED, message=self._why_waiting(lease))
        if is_waiting:
            return PodReport(status=PodStatus.QUEUED, message="a machine will be rented")
        if not is_known:
            return PodReport(status=PodStatus.UNKNOWN, message="the leases were not read yet")
        # the pod ran before this control node started, and its lease was closed since then
        return PodReport(status=PodStatus.GONE, message="its machine has ended", left=True)

    def _why_waiting(self, lease: Lease) -> str:
        details = (self._rentals.progress(lease.id), lease.problem)
        return ": ".join((_WAITS[lease.state], *filter(None, details)))

    def _on_machine(self, pod_id: str, lease: Lease) -> PodReport:
        try:
            connection = self._rentals.connection(lease)
        except UnavailableError as error:
            return PodReport(status=PodStatus.UNKNOWN, message=explained(error))
        if connection.notice and not lease.terms.serves:
            return self._leaving(pod_id, lease, connection)
        try:
            self._start_waiting(pod_id, connection)
            report = connection.site.observe((pod_id,))[pod_id]
        except UnavailableError as error:
            connection.server_answered(False)
            silent = show_seconds(connection.silent_seconds)
            return PodReport(
                status=PodStatus.UNKNOWN, message=f"its machine does not answer ({silent}): {error.message}"
            )
        connection.server_answered(True)
        return replace(report, notice=connection.notice) if connection.notice else report

    def _leaving(self, pod_id: str, lease: Lease, connection: MachineConnection) -> PodReport:
        """Ends a pod, and with it its jobs, because the provider is about to end the machine. The last
        checkpoints of the jobs are downloaded before the pod is reported as GONE."""
        why = f"the provider ends the spot machine of lease {lease.id}: {connection.notice}"
        try:
            connection.site.tear_down((pod_id,))
        except UnavailableError as error:
            return PodReport(status=PodStatus.UNKNOWN, message=f"{why}; {error.message}")
        with self._lock:
            self._waiting.pop(pod_id, None)
        return PodReport(status=PodStatus.GONE, message=why, left=True, taken=True)

    def undelivered_events(self, pod_id: str) -> Sequence[PodEvent]:
        """Returns the events of a GONE pod, and downloads the results that they report, as long as its
        machine can be reached. Raises UnavailableError."""
        lease = self._lease(pod_id)
        if lease is None or lease.state is not LeaseState.READY:
            return self._exports.collect(pod_id)
        return self._rentals.connection(lease).site.undelivered_events(pod_id)

    def tear_down(self, pod_ids: Sequence[str]) -> None:
        """Ends pods. A machine that does not answer for half a minute is given up, because it is returned
        afterwards. Raises UnavailableError."""
        for pod_id in pod_ids:
            with self._lock:
                self._waiting.pop(pod_id, None)
            lease = self._lease(pod_id)
            if lease is not None and lease.state is LeaseState.READY:
                self._tear_down(pod_id, lease)
            self._exports.settle_pod(pod_id)

    def _tear_down(self, pod_id: str, lease: Lease) -> None:
        began = self._given_up.setdefault(pod_id, self._monotonic())
        try:
            self._rentals.connection(lease).site.tear_down((pod_id,))
        except UnavailableError:
            if self._monotonic() - began < _GIVE_UP_SECONDS:
                raise
        self._given_up.pop(pod_id, None)

    def _lease(self, pod_id: str) -> Lease | None:
        with self._lock:
            return (self._leases or {}).get(pod_id)

    def close(self) -> None:
        """Closes the site. The machines and their pods continue."""
        self._exports.close()
        self._rentals.close()
        self._cloud.close()

    # --- TransferSite

    def _machines(self) -> list[TransferSite]:
        sites = (one.site for one in self._rentals.open_connections().values())
        return [site for site in sites if isinstance(site, TransferSite)]

    def transfer_progress(self, attempt_id: str) -> Mapping[str, Any]:
        """See TransferSite."""
        progress = (one.transfer_progress(attempt_id) for one in self._machines())
        return next((one for one in progress if one), {})

    def transfer_early(self, attempts: Sequence[NextAttempt]) -> None:
        """See EarlyTransferSite. The inputs are transferred to the machine of the pod."""
        with self._lock:
            leases = self._leases or {}
        machines = self._rentals.open_connections()
        by_lease = {leases[one.pod_id].id: one for one in attempts if one.pod_id in leases}
        for lease_id, connection in machines.items():
            if isinstance(connection.site, EarlyTransferSite):
                one = by_lease.get(lease_id)
                is_leaving = bool(connection.notice)
                connection.site.transfer_early(() if one is None or is_leaving else (one,))

    def early_transfers(self) -> Mapping[str, str]:
        """See EarlyTransferSite."""
        machines = [one for one in self._machines() if isinstance(one, EarlyTransferSite)]
        return {pod_id: text for one in machines for pod_id, text in one.early_transfers().items()}

    def upstream(self, pod_id: str, attempt_id: str, address: str) -> Upstream | None:
        """See ServingSite. The router connects to the machine of the pod through an SSH tunnel of its own."""
        lease = self._lease(pod_id)
        connection = self._rentals.open_connections().get(lease.id) if lease is not None else None
        if connection is None or not isinstance(connection.site, ServingSite):
            return None
        return connection.site.upstream(pod_id, attempt_id, address)

    def farm_status(self) -> FarmStatus:
        """See TransferSite."""
        return FarmStatus(version=__version__, protocol=FARM_PROTOCOL, root="", nodes=self.nodes())

    def transfer_problems(self) -> Mapping[str, str]:
        """See TransferSite."""
        return {key: why for one in self._machines() for key, why in one.transfer_problems().items()}

    def missing_sizes(self, versions: Sequence[Artifact]) -> Mapping[str, int]:
        """See TransferSite. A machine that will be rented has none of the bytes."""
        return {version.id: version.output.size_bytes for version in versions}

    def probe(self) -> Route:
        """See TransferSite. Raises UnavailableError while no machine is rented."""
        for machine in self._machines():
            return machine.probe()
        raise UnavailableError(f"the transfer rate to {self._site.name} is measured when a machine is rented")


def make(
    settings: Settings,
    site: Site,
    doors: PodListeners,
    resolve: Callable[[str], str] | None = None,
) -> SitePort:
    """Makes the site. `resolve` returns the value of a secret by its name. Raises InputError, and what the
    provider raises."""
    del doors  # this home connects to the machines, so no listener is needed
    parsed = read(site)
    known = {"cache_folder": str(settings.home / "cache" / "offers"), **site.settings}
    cloud: CloudPort = find("clouds", parsed.provider)(known, resolve)
    owner = mark_of(settings.home / "leases", "owner")
    return CloudSite(settings, site, parsed, cloud, owner, resolve=resolve)
