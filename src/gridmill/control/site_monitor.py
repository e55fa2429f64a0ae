"""This module opens the interfaces (`SitePort`) to sites on other machines when the sites are declared, and
polls these sites for their nodes.

A site can take seconds to answer, or may not answer at all. Each poll has its own thread, so that no site
delays another site. The thread of a poll takes the node's lock only to record its result. (The local site is
opened together with the control node and does not change.)
"""

import threading
from concurrent.futures import Future
from functools import partial

from gridmill.control.node import ControlNode
from gridmill.control.rentable import RentableNodes, SiteNodes
from gridmill.control.steps.problems import surveyed
from gridmill.domain.farm_protocol import FarmStatus
from gridmill.domain.frozen import replace
from gridmill.domain.resource import Resource
from gridmill.domain.route import Route
from gridmill.domain.site import LOCAL, ConfiguredNodes, Site, SiteKind
from gridmill.errors import GridmillError, UnavailableError, explained
from gridmill.ports.site import ExternalCleanup, QueueSite, SitePort, TransferSite

SURVEY_SECONDS = 5.0
PROBE_SECONDS = 600.0
"""While the transfer rates of a site on other machines are unknown, the site is probed at this interval in
seconds."""


class SiteMonitor:
    """An object that keeps `control.sites` and the nodes of declared sites up to date. `close` ends the
    threads of the monitor."""

    def __init__(self, node: ControlNode, seconds: float = SURVEY_SECONDS) -> None:
        self._node = node
        self._seconds = seconds
        self._ending = threading.Event()
        self._futures: dict[str, threading.Thread] = {}
        self._next_probes: dict[str, float] = {}
        self._rentable = RentableNodes(node.control.clock.monotonic)
        self._thread = threading.Thread(target=self._loop, name="survey", daemon=True)

    def start(self) -> None:
        """Start the thread that polls the sites."""
        self._thread.start()

    def close(self) -> None:
        """End the threads of the monitor. The method does not wait for sites that do not answer."""
        self._ending.set()
        self._thread.join(1.0)

    def _loop(self) -> None:
        while not self._ending.is_set():
            self.start_checks()
            self._ending.wait(self._seconds)

    def start_checks(self) -> None:
        """Start a poll of every site whose last poll has ended. The method does not wait for the polls."""
        self._futures = {name: thread for name, thread in self._futures.items() if thread.is_alive()}
        for site in self._declared():
            if site.name not in self._futures:
                thread = threading.Thread(
                    target=self._guarded, args=(site,), name=f"survey {site.name}", daemon=True
                )
                self._futures[site.name] = thread
                thread.start()

    def _declared(self) -> tuple[Site, ...]:
        with self._node.lock:
            return tuple(
                site for site in self._node.control.ledger.snapshot.sites.values() if site.name != LOCAL
            )

    def _resources(self) -> tuple[Resource, ...]:
        with self._node.lock:
            return tuple(self._node.control.ledger.snapshot.resources.values())

    def _guarded(self, site: Site) -> None:
        """Poll a site, and report each problem once."""
        try:
            self.survey(site)
            self._note(site, "")
        except GridmillError as error:
            self._note(site, f"site {site.name}: {explained(error)}")
        except Exception as error:  # noqa: BLE001  outermost loop of this thread: other sites continue
            self._note(site, f"the state of site {site.name} cannot be read: {error!r}")

    def _note(self, site: Site, trouble: str) -> None:
        """Record a problem of a site. If the site was removed or changed in the meantime, the interface to
        the site was closed, and errors that are caused by the closed interface are not recorded."""
        with self._node.lock:
            stands = self._is_unchanged(site)
            if self._ending.is_set():
                return
            surveyed(
                self._node.control.ledger,
                self._node.control.problems,
                self._node.control.background,
                site.name,
                trouble if stands else "",
            )
            if stands and trouble:
                self._node.control.site_states.unreachable.add(site.name)
            elif stands:
                self._node.control.site_states.unreachable.discard(site.name)

    def _is_unchanged(self, site: Site) -> bool:
        """Return whether the declaration of the site is the same as at the start of the poll. The caller
        holds the node's lock."""
        now = self._node.control.ledger.snapshot.sites.get(site.name)
        return now is not None and describe_farm(now) == describe_farm(site)

    def survey(self, site: Site) -> None:
        """Poll one site and record the result. If the interface to the site raises an error, this method
        raises it too."""
        known = self._node.control.sites.get(site.name)
        port = known or self._node.control.open_site(site)
        adopted = False
        try:
            seen, route = self._rentable.read(site, port, self._resources()), self._route_of(site, port)
            adopted = self._apply_results(site, port, seen, configured_of(port), route)
            if isinstance(port, TransferSite):
                self._apply_status(site, port.farm_status())
        finally:
            if known is None and not adopted:
                port.close()

    def _apply_results(
        self,
        site: Site,
        port: SitePort,
        looked: SiteNodes,
        configured: ConfiguredNodes | None,
        route: Route | None,
    ) -> bool:
        """Record the result of a poll, and use the interface of the poll as the interface to the site. The
        method returns False if the site was removed or got another interface in the meantime."""
        with self._node.lock:
            now = self._node.control.ledger.snapshot.sites.get(site.name)
            if now is None or not self._is_unchanged(site) or self._node.ending:
                return False
            adopt(self._node, site.name, port)
            unchanged = now.nodes == looked.nodes and configured in (
                None,
                ConfiguredNodes(away=now.away, partitions=now.partitions),
            )
            seen = now if unchanged else now.with_nodes(looked.nodes, configured)
            seen = replace(seen, route=completed(now.route, route), market=looked.market)
            if seen != now:
                with self._node.changing() as transaction:
                    transaction.put(seen)
            return True

    def _apply_status(self, site: Site, status: FarmStatus) -> None:
        with self._node.lock:
            if self._is_unchanged(site):
                self._node.control.site_states.farm_statuses[site.name] = status

    def _route_of(self, site: Site, port: SitePort) -> Route | None:
        """Return the transfer rates of a site. While the rates are unknown, the site is probed from time to
        time, because a farm with an older version may not support probes yet."""
        now = self._node.control.clock.monotonic()
        if is_measured(site.route) or now < self._next_probes.get(site.name, 0.0):
            return site.route
        self._next_probes[site.name] = now + PROBE_SECONDS
        return route_of(site, port)


def configured_of(port: SitePort) -> ConfiguredNodes | None:
    """Return the nodes that the site reports as configured but not available. The result is None for a site
    that does not report such nodes."""
    return port.configured_nodes() if isinstance(port, QueueSite) else None


def route_of(site: Site, port: SitePort) -> Route | None:
    """Return the transfer rates of a site. If the rates are not known yet, they are measured by a probe. The
    result is incomplete if the probe fails. A probe of the transfer rates takes about a second."""
    if is_measured(site.route) or not isinstance(port, TransferSite):
        return site.route
    try:
        return completed(site.route, port.probe())
    except UnavailableError:
        return site.route


def is_measured(route: Route | None) -> bool:
    """Return whether the transfer rates of both directions are known."""
    return route is not None and route.upload is not None and route.download is not None


def completed(route: Route | None, probed: Route | None) -> Route | None:
    """Return the known transfer rates. Rates that are not known are taken from the result of a probe."""
    if route is None or probed is None:
        return route or probed
    trip = route.round_trip_seconds
    return replace(
        route,
        upload=route.upload or probed.upload,
        download=route.download or probed.download,
        round_trip_seconds=probed.round_trip_seconds if trip is None else trip,
    )


def describe_farm(site: Site) -> Site:
    """Return the site as declared, without the observed values."""
    return replace(site, nodes=(), past=(), away=(), partitions=(), route=None, market=None)


def adopt(node: ControlNode, name: str, port: SitePort) -> None:
    """Use `port` as the interface to the site, and close the previous interface. The pods of the site
    continue to run."""
    if node.control.sites.get(name) is port:
        return
    retire(node, name)
    node.control.sites[name] = port
    if isinstance(port, ExternalCleanup):
        port.clean_up_previous()


def retire(node: ControlNode, name: str) -> None:
    """Close the interface to a site in the background, because a pending request can take long. The values
    that were observed through this interface are deleted."""
    port = _remove_site(node, name)
    if port is not None:
        node.control.background.submit(
            f"close site {name} {id(port)}", port.close, lambda done: done.result()
        )


def leave(node: ControlNode, site: Site) -> None:
    """Close the interface to a removed site, and delete the files of the site on other machines. The files
    are also deleted if the site has not answered since this control node started."""
    act = partial(_leave, node, site, _remove_site(node, site.name))
    node.control.background.submit(f"leave site {site.name}", act, partial(_left, node, site))


def _remove_site(node: ControlNode, name: str) -> SitePort | None:
    node.control.site_states.unreachable.discard(name)
    node.control.site_states.farm_statuses.pop(name, None)
    return node.control.sites.pop(name, None)


def _leave(node: ControlNode, site: Site, site_port: SitePort | None) -> None:
    if site_port is None and site.kind != SiteKind.CLUSTER:
        return
    port = site_port or node.control.open_site(site)
    try:
        if isinstance(port, ExternalCleanup):
            port.delete_all()
    finally:
        port.close()


def _left(node: ControlNode, site: Site, done: Future[None]) -> None:
    try:
        done.result()
    except GridmillError as error:
        node.control.problems.warn(
            f"files that were copied to other machines for site {site.name} may remain there:"
            f" {explained(error)}"
        )
