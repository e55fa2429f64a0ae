"""The site of kind `cluster`: it implements SitePort, and its pods run at a farm in another subnet.

`probe` measures the speed of the connection to a farm before the first transfer. The settings of a site of
kind `cluster` and of resources at a farm are checked before the farm is called.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from gridmill.domain.amounts import parse_bytes, parse_seconds, show_bytes, show_seconds
from gridmill.domain.artifact import Artifact
from gridmill.domain.farm_protocol import DeployRequest, FarmStatus
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import JobKind
from gridmill.domain.lease import Lease
from gridmill.domain.pod_protocol import Events, PodEvent, PodOrder
from gridmill.domain.resource import Resource
from gridmill.domain.route import Route, Staging, TransferRate
from gridmill.domain.serving import Upstream
from gridmill.domain.site import Node, NodeUtilization, Site, SiteKind, check_settings
from gridmill.domain.source import CREDENTIALS
from gridmill.errors import GridmillError, InputError, UnavailableError
from gridmill.plugins import find
from gridmill.ports.site import NextAttempt, PodListeners, PodReport, PodStatus, SitePort
from gridmill.settings import Settings
from gridmill.sites.attempt_inputs import changed_shares, missing_bytes
from gridmill.sites.farm import carrier_choice
from gridmill.sites.farm.carrier_choice import bucket_of
from gridmill.sites.farm.client import FarmClient, member
from gridmill.sites.farm.credentials import CredentialFiles, keeping
from gridmill.sites.farm.join import read_controller, tenant_name
from gridmill.sites.farm.pod_leases import PodLeases, is_over
from gridmill.sites.farm.relay import Relay, UndeliveredEvents, Words
from gridmill.sites.farm.result_export import MachineExports, ResultExports, open_bucket, terms_of
from gridmill.sites.farm.service_link import upstream_at_farm
from gridmill.sites.farm.staging import HomeAttemptData
from gridmill.transfer.progress import LATELY_SECONDS, TransferState

SETTINGS = {
    "lease": "the time without contact after which the farm ends the pods of this home (default: 1h)",
    "checkpoints": "the shortest time between two downloads of checkpoints of a running job (default: 30s)",
    "early": "whether inputs of the next job are transferred while another job runs: yes, no (default: yes)",
    "rate": "the limit for transfers to and from the farm in bytes a second, as 20MiB (default: no limit)",
} | carrier_choice.SETTINGS
_LEASE, _CHECKPOINTS = "1h", "30s"
_LEAST_LEASE_SECONDS = 10.0
"""A lease must have at least this many seconds, because otherwise a short interruption of the connection
would end running pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FarmSettings:
    """The parsed settings of a site at a farm, without the settings of buckets. `rate` is the largest
    transfer rate in bytes per second, or None if there is no limit. `early` is whether the inputs of the next
    job are transferred while another job runs."""

    lease_seconds: float
    checkpoints_seconds: float
    rate: float | None
    early: bool = True


def read(site: Site) -> FarmSettings:
    """Parses the settings of the site. Raises InputError if a setting is invalid."""
    check_settings(site, SETTINGS)
    return FarmSettings(
        lease_seconds=_seconds(site, "lease", _LEASE, _LEAST_LEASE_SECONDS),
        checkpoints_seconds=_seconds(site, "checkpoints", _CHECKPOINTS, 1.0),
        rate=_rate(site),
        early=_early(site),
    )


def check_site(site: Site) -> None:
    """Raises InputError if the address or a setting of the site is invalid."""
    if site.address:
        read_controller(site.address)
    read(site)
    carrier_choice.check(site)


def _early(site: Site) -> bool:
    text = site.settings.get("early") or "yes"
    if text not in ("yes", "no"):
        raise _at(site, "early", InputError(f"{text!r} is neither yes nor no"))
    return text == "yes"


def _rate(site: Site) -> float | None:
    text = site.settings.get("rate")
    try:
        rate = float(parse_bytes(text)) if text else None
    except InputError as error:
        raise _at(site, "rate", error) from error
    if rate == 0.0:
        hint = f"Remove the limit: `gridmill configure site {site.name} --set rate=`."
        raise _at(site, "rate", InputError("the rate 0 permits no transfer", hint=hint))
    return rate


def _seconds(site: Site, name: str, usual: str, least: float) -> float:
    text = site.settings.get(name, usual)
    try:
        seconds = parse_seconds(text)
    except InputError as error:
        raise _at(site, name, error) from error
    if seconds < least:
        hint = f"The default is {usual}."
        raise _at(site, name, InputError(f"{text!r} is too short: the minimum is {least:g}s", hint=hint))
    return seconds


def _at(site: Site, name: str, error: InputError) -> InputError:
    return InputError(error.message, hint=error.hint, place=f"site {site.name}: settings.{name}")


def check_resource(resource: Resource, site: Site) -> None:
    """Raises InputError if a resource cannot be used at a farm. A sink is always loaded in the home, staging
    through a bucket needs a bucket, and a resource at a farm has no settings of its own."""
    for name in resource.settings:
        raise InputError(
            f"a resource at a farm has no setting {name!r}",
            hint=f"Set it for the whole farm: gridmill configure site {site.name} --set NAME=VALUE. Only "
            "resources at a cloud site have settings of rented machines.",
            place=f"resource {resource.name}: settings.{name}",
        )
    if resource.type == JobKind.SINK:
        raise InputError(
            f"a sink is loaded at home, not at the farm {site.name}",
            hint="Remove `site` from the resource. Jobs at the farm get the table by a transfer.",
            place=f"resource {resource.name}: site",
        )
    if resource.staging not in (None, Staging.DIRECT):
        bucket_of(site, resource.staging)


_SIZES = (64 << 10, 512 << 10, 4 << 20)
_ENOUGH_SECONDS = 0.25
"""A speed measurement that took this long is sufficient. A larger measurement would only take longer."""
_LEAST_SECONDS = 1e-4
_TRIPS = 3


def probe(
    farm: FarmClient, limit_bytes_per_second: float | None = None, clock: Callable[[], float] = time.monotonic
) -> Route:
    """Measures the speed of the connection by sending and receiving some bytes. Raises UnavailableError.

    If the farm does not support speed measurements, only the time of a round trip is measured.
    """
    trip = min(_timed(farm.greet, clock) for _ in range(_TRIPS))
    try:
        farm.probe(0, 0)  # data uses its own connections; the time to open one must not count
        upload = _measured_rate(
            lambda size: partial(farm.probe, size, 0), trip, limit_bytes_per_second, clock
        )
        download = _measured_rate(
            lambda size: partial(farm.probe, 0, size), trip, limit_bytes_per_second, clock
        )
    except UnavailableError:
        raise
    except GridmillError:
        return Route(round_trip_seconds=trip)
    return Route(upload=upload, download=download, round_trip_seconds=trip)


def _measured_rate(
    asking: Callable[[int], Callable[[], None]],
    trip: float,
    limit: float | None,
    clock: Callable[[], float],
) -> TransferRate:
    for size in _SIZES:
        took = max(_LEAST_SECONDS, _timed(asking(size), clock) - trip)
        if took >= _ENOUGH_SECONDS:
            break
    return TransferRate(transferred_bytes=float(size), seconds=max(took, size / limit if limit else 0.0))


def _timed(act: Callable[[], None], clock: Callable[[], float]) -> float:
    began = clock()
    act()
    return clock() - began


T = TypeVar("T")
_POLL_SECONDS = 5.0
_NEVER = PodReport(status=PodStatus.GONE, message="it was never started")
_LEAVES = PodReport(
    status=PodStatus.UNKNOWN, message="the job has ended, and its results are being downloaded"
)


class FarmSite:
    """A site whose pods run at a farm. This class is safe to call from several threads."""

    def __init__(
        self,
        name: str,
        farm: FarmClient,
        relay: Relay,
        carrying: HomeAttemptData,
        link: str,
        leases: PodLeases,
        monotonic: Callable[[], float] = time.monotonic,
        early: bool = True,
        folder: Path | None = None,
        controller: str = "",
    ) -> None:
        """`folder` has the credentials for the farm, and `controller` is its configured address."""
        self._is_early, self._folder, self._controller = early, folder, controller
        self._name, self._farm, self._relay, self._attempt_data = name, farm, relay, carrying
        self._link, self._leases, self._monotonic = link, leases, monotonic
        self._last_contact = monotonic()
        self._lock = threading.Lock()
        self._cached_status: tuple[float, FarmStatus] | None = None
        self._unanswered: set[str] = set()
        self._undelivered = UndeliveredEvents(self._download_events)
        self._next_pods: Mapping[str, str] = {}
        """The pods on which the next attempts will start, by attempt id."""

    def nodes(self) -> tuple[Node, ...]:
        """Returns the capacity of the farm's nodes. Raises UnavailableError."""
        return self._status().nodes

    def utilization(self) -> Mapping[str, NodeUtilization]:
        """Returns the present load of the farm's nodes. Raises UnavailableError."""
        return self._status(fresh=True).utilization

    def _status(self, *, fresh: bool = False) -> FarmStatus:
        with self._lock:
            status = self._cached_status
        if status is not None and not fresh and self._monotonic() - status[0] < _POLL_SECONDS:
            return status[1]
        farm_status = self._answer(self._farm.status)
        with self._lock:
            self._cached_status = self._monotonic(), farm_status
        return farm_status

    def _answer(self, ask: Callable[[], T]) -> T:
        """Returns the answer of the farm to the call `ask`. If the farm refuses the call, UnavailableError
        is raised, because the control node cannot correct the call."""
        try:
            result = ask()
        except UnavailableError:
            raise
        except GridmillError as error:
            raise UnavailableError(error.message, hint=error.hint) from error
        self._last_contact = self._monotonic()
        return result

    def link(self) -> str:
        """Returns a placeholder address, which the farm replaces with its own address."""
        return self._link

    def pod_home(self, pod_id: str) -> str:
        """Returns a placeholder folder, which the farm replaces with its own folder."""
        return ""

    def prepare(self) -> None:
        """Does nothing, because unused capacity of a farm costs nothing."""

    def bring_up(self, orders: Sequence[PodOrder]) -> None:
        """Requests pods from the farm. The pods are QUEUED until the farm has free capacity. Raises
        UnavailableError."""
        by_deployment = attrgetter("deployment_id")
        once = {order.pod_id: order for order in orders}.values()
        for deployment_id, some in groupby(sorted(once, key=by_deployment), key=by_deployment):
            orders_to_send = tuple(some)
            pods = {order.pod_id for order in orders_to_send}
            wanted = DeployRequest(orders=orders_to_send, lease_seconds=self._leases.lease_seconds(pods))
            self._unanswered |= pods
            self._answer(partial(self._farm.deploy, deployment_id, wanted))
            self._unanswered -= pods

    def observe(self, pod_ids: Sequence[str]) -> Mapping[str, PodReport]:
        """Returns the farm's report on these pods. A pod that has ended is reported only after its results
        have arrived. If the farm did not answer for longer than the lease of a pod, the pod is reported as
        ended."""
        try:
            seen = self._answer(partial(self._farm.observe, pod_ids))
        except UnavailableError:
            if not any(map(self._is_lost, pod_ids)):
                raise
            return {pod_id: self._given_up(pod_id) for pod_id in pod_ids}
        if self._attempt_data.exports is not None:
            self._attempt_data.exports.renew(pod_ids)
        reports = {pod_id: seen.reports.get(pod_id, _NEVER) for pod_id in pod_ids}
        gone = [pod_id for pod_id, report in reports.items() if report.status == PodStatus.GONE]
        here = self._undelivered.downloaded(
            {pod_id: tuple(seen.undelivered.get(pod_id, ())) for pod_id in gone}
        )
        return reports | {pod_id: _LEAVES for pod_id in gone if pod_id not in here}

    def _given_up(self, pod_id: str) -> PodReport:
        """Returns the report on a pod whose farm cannot be reached. If the farm never answered the request
        for the pod, the pod may still start."""
        if pod_id in self._unanswered or not self._is_lost(pod_id):
            return PodReport(status=PodStatus.UNKNOWN, message="the farm does not answer")
        why = (
            f"the farm has not answered for {self._leases.of(pod_id):g} s: its lease has expired, and it "
            "has ended the pods"
        )
        return PodReport(status=PodStatus.GONE, message=why)

    def undelivered_events(self, pod_id: str) -> Sequence[PodEvent]:
        """Downloads the results that the events in the pod's journal report, and then returns the events.
        Raises UnavailableError."""
        here = self._undelivered.take(pod_id)
        if here is not None:
            return here
        if self._is_lost(pod_id):
            self._undelivered.drop((pod_id,))
            self._attempt_data.leave(pod_id)
            self._attempt_data.checkpoints.lose(pod_id)
            return ()
        words = self._answer(partial(self._farm.observe, (pod_id,))).undelivered.get(pod_id, ())
        return self._download_events(pod_id, tuple(words))

    def _download_events(self, pod_id: str, words: Words) -> Words:
        """Downloads the results that the events in the pod's journal report, and then returns the events.
        Raises UnavailableError."""
        self._attempt_data.leave(pod_id)
        events = self._attempt_data.download_results(Events(events=words)).events
        self._answer(partial(self._attempt_data.checkpoints.settle, pod_id))
        self._leases.over((pod_id,))
        return events

    def _is_lost(self, pod_id: str) -> bool:
        """Returns whether the farm did not answer for longer than the lease of this pod."""
        last_contact = max(self._last_contact, self._farm.reached)
        return is_over(self._monotonic() - last_contact, self._leases.of(pod_id))

    def tear_down(self, pod_ids: Sequence[str]) -> None:
        """Ends the pods. When this function returns, the pods have ended. Raises UnavailableError."""
        if not all(map(self._is_lost, pod_ids)):
            self._answer(partial(self._farm.end, pod_ids))
        for pod_id in pod_ids:
            self._attempt_data.leave(pod_id)
            if self._is_lost(pod_id):
                self._attempt_data.checkpoints.lose(pod_id)
            else:
                self._answer(partial(self._attempt_data.checkpoints.settle, pod_id))
        self._leases.over(pod_ids)
        self._undelivered.drop(pod_ids)

    def transfer_progress(self, attempt_id: str) -> Mapping[str, Any]:
        """See TransferSite."""
        direction, progress = self._attempt_data.progress(attempt_id) or ("", None)
        if progress is None or not progress.total_bytes:
            return {}
        note = ", ".join([f"transfer {direction} {self._name}", *_rate_texts(progress)])
        done = progress.present_bytes + progress.transferred_bytes
        return {"done": done, "total": progress.total_bytes, "unit": "bytes", "note": note}

    def farm_status(self) -> FarmStatus:
        """See TransferSite."""
        return self._status()

    def transfer_problems(self) -> Mapping[str, str]:
        """See TransferSite. Returns messages about data that cannot be transferred. A message about data
        that the farm has lost concerns the farm, not an attempt."""
        with self._lock:
            status = self._cached_status
        lost = status[1].warnings if status is not None else ()
        return {message: f"site {self._name}: {message}" for message in lost} | self._attempt_data.held_up()

    def transfer_early(self, attempts: Sequence[NextAttempt]) -> None:
        """See EarlyTransferSite."""
        if not self._is_early:
            return
        self._next_pods = {one.order.attempt_id: one.pod_id for one in attempts}
        self._attempt_data.early.want([one.order for one in attempts])

    def early_transfers(self) -> Mapping[str, str]:
        """See EarlyTransferSite."""
        pods, texts = self._next_pods, self._attempt_data.early.progress()
        return {pods[name]: text for name, text in texts.items() if name in pods}

    def upstream(self, pod_id: str, attempt_id: str, address: str) -> Upstream | None:
        """See ServingSite."""
        del pod_id, address
        return upstream_at_farm(self._folder, self._controller, attempt_id) if self._folder else None

    def missing_sizes(self, versions: Sequence[Artifact]) -> Mapping[str, int]:
        """See TransferSite. Results that the farm has not released yet count as missing. No job waits for
        the release of these results, because the farm stores their chunks before another job reads the
        results."""
        self._attempt_data.cleanup.soon()
        return self._answer(
            partial(missing_bytes, self._farm, versions, self._attempt_data.trees.manifest_of)
        )

    def changed_shares(self, pairs: Sequence[tuple[Artifact, Artifact]]) -> Mapping[str, float]:
        """See ComparingSite."""
        return changed_shares(pairs, self._attempt_data.trees.manifest_of)

    def probe(self) -> Route:
        """See TransferSite."""
        return self._answer(partial(probe, self._farm, self._attempt_data.limit_bytes_per_second))

    def clean_up_previous(self) -> None:
        """See ExternalCleanup."""
        self._attempt_data.tidy_buckets()

    def delete_all(self) -> None:
        """See ExternalCleanup."""
        self._attempt_data.clear_buckets()

    def close(self) -> None:
        """Closes the site. Pods continue."""
        self._undelivered.close()
        self._attempt_data.close()
        self._relay.close()


CONFIRMED_SECONDS = 5.0
"""The farm confirms received data within this number of seconds, unless the connection or a bucket is
slow."""


def _rate_texts(transfer_state: TransferState) -> Iterator[str]:
    """Yields texts with the speed and the remaining time of a transfer."""
    if transfer_state.trouble:
        yield f"retried because {transfer_state.trouble}"
    if not transfer_state.left_bytes and transfer_state.still_seconds >= CONFIRMED_SECONDS:
        yield (
            "all data is sent; the farm has not confirmed it for "
            f"{show_seconds(transfer_state.still_seconds)}"
        )
    # shown only after this time, because sending data that ssh has buffered may take as long
    if transfer_state.left_bytes and transfer_state.still_seconds >= LATELY_SECONDS:
        yield f"no data was transferred for {show_seconds(transfer_state.still_seconds)}"
    elif transfer_state.bytes_per_second:
        yield f"{show_bytes(int(transfer_state.bytes_per_second))}/s"
        if transfer_state.left_seconds:
            yield f"{show_seconds(transfer_state.left_seconds)} left"


def make(
    settings: Settings, site: Site, doors: PodListeners, resolve: Callable[[str], str] | None = None
) -> SitePort:
    """Makes the site of a farm. This home must have joined the farm before. `resolve` returns the value of a
    secret. Raises InputError."""
    del doors  # the home connects to the farm, so no listener is needed
    farm_settings = read(site)
    kept = keeping(settings.home, site.name)
    farm = member(kept, read_controller(site.address) if site.address else None)
    buckets = carrier_choice.BucketEndpoints(farm, site, tenant_name(settings.home), kept.folder, resolve)
    return _open(settings, site, kept, farm, farm_settings, buckets)


def machine_settings() -> dict[str, str]:
    """Returns the settings that a site of another kind may have for the farms on its machines, with their
    descriptions."""
    keys = {"lease", *(name for names in CREDENTIALS.values() for name in names)}
    return {name: text for name, text in SETTINGS.items() if name not in keys}


def open_machine(
    settings: Settings,
    site: Site,
    folder: Path,
    lease_seconds: float,
    exports: ResultExports | None = None,
    lease: Lease | None = None,
    credentials: Mapping[str, str] = MappingProxyType({}),
    resolve: Callable[[str], str] | None = None,
) -> SitePort:
    """Makes the site of the farm on one machine of a site of another kind. The home has joined this farm
    with the credentials in `folder`. Settings of the site that a farm does not have are ignored, and so are
    keys, because they belong to the account of the provider: `credentials` are those of its buckets, as
    references to secrets, whose values `resolve` returns. The pods continue for `lease_seconds` without
    contact. The machine of the rental `lease` may upload results to `exports`. Raises InputError."""
    place = _of_machines(site, credentials)
    kept = CredentialFiles(folder=folder)
    settings_of_farm = replace(read(place), lease_seconds=max(lease_seconds, _LEAST_LEASE_SECONDS))
    farm = member(kept)
    of_machine = None
    if exports is not None and lease is not None:
        of_machine = MachineExports(exports, farm, terms_of(lease, lease_seconds))
    # the notes on the buckets outlive the machine
    notes = carrier_choice.notes_of_machines(settings.home, site.name)
    buckets = carrier_choice.BucketEndpoints(
        farm, place, tenant_name(settings.home), notes, resolve, is_of_machines=True
    )
    return _open(settings, place, kept, farm, settings_of_farm, buckets, of_machine)


def _of_machines(site: Site, credentials: Mapping[str, str]) -> Site:
    some = {name: one for name, one in site.settings.items() if name in machine_settings()}
    return replace(site, kind=SiteKind.CLUSTER, settings={**some, **credentials}, address=None)


def open_exports(
    settings: Settings,
    site: Site,
    credentials: Mapping[str, str] = MappingProxyType({}),
    resolve: Callable[[str], str] | None = None,
) -> ResultExports:
    """Opens the buckets of a site with rented machines: the exported results, and the data in transfer.
    `credentials` are the credentials of the buckets as references to secrets, whose values `resolve`
    returns."""
    folder = settings.home / "exports" / site.name
    tenant, place = tenant_name(settings.home), _of_machines(site, credentials)
    notes = carrier_choice.notes_of_machines(settings.home, site.name)
    buckets = carrier_choice.SiteBuckets(place, tenant, notes, resolve, is_of_machines=True)
    opener = partial(open_bucket, credentials=credentials, resolve=resolve or carrier_choice.no_secrets)
    return ResultExports(site, tenant, settings.root, folder, opener, buckets=buckets)


def _open(
    settings: Settings,
    site: Site,
    kept: CredentialFiles,
    farm: FarmClient,
    farm_settings: FarmSettings,
    there_and_back: carrier_choice.BucketEndpoints,
    exports: MachineExports | None = None,
) -> SitePort:
    notes = kept.folder / "carried"
    carrying = HomeAttemptData(
        farm, settings.root, settings.home / "bundles", notes, farm_settings.rate, there_and_back, exports
    )
    socket = settings.home / "links.sock"
    relay = Relay(farm, partial(find("links", "unix"), str(socket)), carrying)
    leases = PodLeases(kept.folder / "leases.json", farm_settings.lease_seconds)
    made = FarmSite(
        site.name,
        farm,
        relay,
        carrying,
        f"unix:{socket}",
        leases,
        early=farm_settings.early,
        folder=kept.folder,
        controller=site.address or "",
    )
    relay.start()
    carrying.checkpoints.start(farm_settings.checkpoints_seconds)
    carrying.cleanup.start()
    carrying.logs.start()
    return made
