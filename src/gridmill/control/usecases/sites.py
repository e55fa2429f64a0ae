"""This module has the use cases of sites."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace as changed

from gridmill.control.site_monitor import adopt, configured_of, describe_farm, leave, route_of
from gridmill.control.steps.problems import surveyed
from gridmill.control.steps.run_lifecycle import check_resource_settings
from gridmill.control.steps.secrets import check_secret_settings
from gridmill.control.usecases.base import UseCases
from gridmill.domain.amounts import Amounts
from gridmill.domain.deployment import Pod
from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import check_name
from gridmill.domain.rental_nodes import type_of
from gridmill.domain.route import Route
from gridmill.domain.site import LOCAL, ConfiguredNodes, Node, NodeUtilization, NodeView, Site, SiteKind
from gridmill.domain.states import PodState
from gridmill.domain.views import FarmView
from gridmill.errors import AwayError, ConflictError, InputError, NotFoundError, UnavailableError
from gridmill.ports.cloud import RentingSite
from gridmill.ports.pages import PAGE_ITEMS, Page, page_by_names, page_of_views, page_request
from gridmill.ports.site import SitePort, TransferSite
from gridmill.scheduler.rental_accounts import is_other_account, lost_region

_WHERE_NODES_ARE = {
    SiteKind.SLURM: "`sinfo` on the login node shows the partitions and the states of their nodes; "
    "`--set partition=NAME` selects one.",
    SiteKind.RAY: "`ray status` on the head of the cluster shows its nodes.",
    SiteKind.CLOUD: "No region begins with this text, or the account has not enabled the region. For "
    "example, `--region us-` permits all regions of AWS whose names begin with `us-`.",
}
LEAVE_SECONDS = 30.0
"""The seconds that a command waits while it removes a site and its files on other machines."""


class SiteUseCases(UseCases):
    """The use cases of sites (ports.grid.Sites)."""

    def sites(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Site]:
        """See Sites."""
        request = page_request(tuple, "sites", limit, cursor)
        with self._node.lock:
            return page_by_names(request, self._ledger.snapshot.sites.values(), lambda one: (one.name,))

    def nodes(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[NodeView]:
        """See Sites. The sites are queried without the node's lock."""
        request = page_request(tuple, "nodes", limit, cursor)
        with self._node.lock:
            views = [view for site in self._ledger.snapshot.sites.values() for view in self._views(site)]
            ports = dict(self._control.sites)
        looks = {name: _looks(port) for name, port in ports.items()}
        seen = (changed(view, utilization=looks.get(view.site, {}).get(view.node.name)) for view in views)
        return page_by_names(request, seen, lambda view: (view.site, view.node.name))

    def farms(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[FarmView]:
        """See Sites. The farms are queried without the node's lock."""
        request = page_request(tuple, "farms", limit, cursor)
        with self._node.lock:
            sites = [one for one in self._ledger.snapshot.sites.values() if one.kind == SiteKind.CLUSTER]
            away, known = self._control.site_states.unreachable, self._control.sites.items()
            ports = {name: port for name, port in known if name not in away}
        return page_of_views(
            request, sites, lambda site: (site.name,), lambda site: _farm(site, ports.get(site.name))
        )

    def _views(self, site: Site) -> Iterator[NodeView]:
        snapshot, shown = self._ledger.snapshot, set[str]()
        for node in site.nodes:
            pods = [
                pod
                for deployment in snapshot.deployments.values()
                for pod in deployment.pods
                if deployment.site == site.name and pod.node == node.name and pod.state != PodState.GONE
            ]
            running = tuple(attempt.id for pod in pods for attempt in snapshot.attempts_on(pod.id))
            # of the machines of a type that could be rented, one is enough
            kind = type_of(node.name) if site.kind is SiteKind.CLOUD and not pods else node.name
            if kind not in shown:
                shown.add(kind)
                yield NodeView(site=site.name, node=node, claimed=_sum(pods), running=running)

    def add_site(self, site: Site, *, replace: bool = False) -> Site:
        """See Sites. The site is queried without the node's lock, because the query may take seconds."""
        check_name("site", site.name)
        with self._node.lock:
            existing = self._ledger.snapshot.sites.get(site.name)
            check_secret_settings(self._ledger, site)
        _check(site, existing, replace=replace)
        port = self._control.open_site(site)
        try:
            observation = _look(site, existing, port, replace=replace)
            return self._keep(changed(site, route=observation.route), port, observation, replace=replace)
        except BaseException:
            port.close()
            raise

    def _keep(self, site: Site, port: SitePort, looked: "_SiteObservation", *, replace: bool) -> Site:
        """Store the site with its current state, unless another site with that name was added in the
        meantime."""
        with self._node.changing() as transaction:
            existing = self._ledger.snapshot.sites.get(site.name)
            _check(site, existing, replace=replace)
            self._check_resources(site)
            self._check_leases(site, looked.account)
            self._check_batch_jobs(site, existing)
            same = existing is not None and describe_farm(existing) == describe_farm(site)
            fresh = existing if existing is not None and same else describe_farm(site)
            seen = changed(fresh.with_nodes(looked.nodes, looked.configured), route=fresh.route or site.route)
            transaction.put(seen)
            transaction.then(lambda: self._adopt(site.name, port, looked))
        return seen

    def _adopt(self, name: str, port: SitePort, looked: "_SiteObservation") -> None:
        adopt(self._node, name, port)
        if looked.unreachable:
            self._control.site_states.unreachable.add(name)
        else:
            surveyed(self._control.ledger, self._control.problems, self._control.background, name, "")

    def _check_resources(self, site: Site) -> None:
        """Check that the existing resources still fit the site."""
        for resource in self._ledger.snapshot.resources.values():
            if resource.site == site.name and not resource.default:
                check_resource_settings(resource, site)

    def _check_leases(self, site: Site, account: str) -> None:
        """Check that the machines of open leases can still be seen with the new settings of the site."""
        leases = [one for one in self._ledger.snapshot.leases.values() if one.provider == site.name]
        for lease in leases:
            if is_other_account(lease, account):
                raise ConflictError(
                    f"lease {lease.id} has a machine in the account {lease.account}, and the new settings of"
                    f" site {site.name!r} use the account {account}",
                    hint=f"End the lease with `gridmill stop lease {lease.id}`, and wait until it is closed; "
                    "or add the account as a cloud provider with another name.",
                )
        lost = lost_region(leases, site.settings.get("regions", ""))
        if lost is not None:
            raise ConflictError(
                f"lease {lost[0].id} has requested a machine in the region {lost[1]}, which is not among the "
                f"new `regions` of site {site.name!r}",
                hint=f"End the lease with `gridmill stop lease {lost[0].id}`, and wait until it is closed; "
                f"or keep {lost[1]} in `regions`.",
            )

    def _check_batch_jobs(self, site: Site, existing: Site | None) -> None:
        """Check that the jobs of running attempts can still be found with the new settings of a batch site.
        Otherwise the attempts would count as lost, and their jobs would continue."""
        if existing is None or existing.kind is not SiteKind.BATCH:
            return
        old, new = existing.settings, site.settings
        names = [name for name in _PLACES_OF_JOBS if old.get(name, "") != new.get(name, "")]
        snapshot = self._ledger.snapshot
        for deployment in snapshot.deployments.values():
            attempts = snapshot.attempts_on(deployment.id) if deployment.site == site.name else ()
            if names and attempts:
                raise ConflictError(
                    f"attempt {attempts[0].id} has a job at the batch service, which cannot be found with "
                    f"another {names[0]!r} of site {site.name!r}",
                    hint=f"Stop the run with `gridmill stop {attempts[0].run_id}`, or wait until it ends; or "
                    "add the other service as a site with another name.",
                )

    def remove_site(self, name: str) -> None:
        """See Sites."""
        if name == LOCAL:
            raise ConflictError("the site `local` is the machine of the control node and cannot be removed")
        with self._node.changing() as transaction:
            snapshot = self._ledger.snapshot
            if name not in snapshot.sites:
                raise NotFoundError(
                    f"there is no site {name!r}", hint=f"There are: {', '.join(sorted(snapshot.sites))}."
                )
            users = [one.name for one in snapshot.resources.values() if one.site == name and not one.default]
            if users:
                raise ConflictError(
                    f"resource {users[0]!r} is at site {name!r}",
                    hint=f"`gridmill remove resource {users[0]}`, or configure the resource at another site.",
                )
            names = {one.name for one in snapshot.resources.values() if one.site == name}
            waits = [one for one in snapshot.job_runs.values() if one.resource in names]
            if waits:
                raise ConflictError(
                    f"job {waits[0].job.name!r} of run {waits[0].run_id} waits for site {name!r}",
                    hint=f"Stop the run with `gridmill stop {waits[0].run_id}`, or wait until it ends.",
                )
            rented = [one.id for one in snapshot.leases.values() if one.provider == name]
            if rented:
                raise ConflictError(
                    f"lease {rented[0]} is open at site {name!r}, so that a machine may cost money",
                    hint=f"End it with `gridmill stop lease {rented[0]}`, and wait until it is closed.",
                )
            up = [one.id for one in snapshot.deployments.values() if one.site == name]
            if up:
                raise ConflictError(
                    f"deployment {up[0]} is running at site {name!r}",
                    hint=f"Release it: `gridmill remove deployment {up[0]}`.",
                )
            gone = snapshot.sites[name]
            transaction.delete(Site, name)
            transaction.then(lambda: leave(self._node, gone))
        # waits, because a control node that is embedded in a command ends right after this call
        if self._control.alarms is None:
            self._control.background.stop(LEAVE_SECONDS)


_PLACES_OF_JOBS = ("service", "region", "project", "endpoint_url", "bucket", "bucket_endpoint", "shared_root")
"""The settings of a batch site that decide where its jobs and their objects are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SiteObservation:
    """An observation of a site by a use case. If the site is `unreachable`, the observation is the last one
    that succeeded. `account` is the account at the provider of a cloud site."""

    nodes: tuple[Node, ...]
    route: Route | None
    configured: ConfiguredNodes | None = None
    unreachable: bool = False
    account: str = ""


def _look(site: Site, existing: Site | None, port: SitePort, *, replace: bool) -> _SiteObservation:
    """Observe a site, and return the observation. If an `existing` site is changed while it does not answer,
    its last observation is used, and only settings that are certainly wrong are refused. Raises
    UnavailableError."""
    try:
        nodes = port.nodes()
    except AwayError:
        if existing is None or not replace:
            raise
        return _SiteObservation(
            nodes=existing.nodes,
            route=existing.route if existing.address == site.address else None,
            configured=ConfiguredNodes(away=existing.away, partitions=existing.partitions),
            unreachable=True,
        )
    if not nodes:
        raise UnavailableError(_no_nodes(site), hint=_WHERE_NODES_ARE.get(site.kind, ""))
    same = (
        existing
        if existing is not None and describe_farm(existing) == describe_farm(site)
        else describe_farm(site)
    )
    account = port.cloud().account_name() if isinstance(port, RentingSite) else ""
    return _SiteObservation(
        nodes=nodes, route=route_of(same, port), configured=configured_of(port), account=account
    )


def _no_nodes(site: Site) -> str:
    if site.kind is not SiteKind.CLOUD:
        return f"site {site.name} has no node that can be used now"
    where = f" in the regions {site.settings['regions']!r}" if site.settings.get("regions") else ""
    return f"site {site.name}: the provider offers no machines{where}"


def _farm(site: Site, port: SitePort | None) -> FarmView:
    view = FarmView(site=site.name, route=site.route)
    if not isinstance(port, TransferSite):
        return changed(view, problem="it does not answer")
    try:
        return changed(view, status=port.farm_status())
    except UnavailableError as error:
        return changed(view, problem=error.message)


def _looks(port: SitePort) -> Mapping[str, NodeUtilization]:
    """Return the utilization of the nodes of a site. The result is empty if the site does not answer."""
    try:
        return port.utilization()
    except UnavailableError:
        return {}


def _sum(pods: Sequence[Pod]) -> Amounts:
    return Amounts(
        cpus=sum(pod.capacity.cpus for pod in pods),
        memory_bytes=sum(pod.capacity.memory_bytes for pod in pods),
        gpus=sum(pod.capacity.gpus for pod in pods),
    )


def _check(site: Site, existing: Site | None, *, replace: bool) -> None:
    if site.kind == SiteKind.LOCAL or site.name == LOCAL:
        raise InputError(
            "the site `local` is the machine of the control node and always exists: it cannot be added",
            hint="The settings GRIDMILL_CPUS and GRIDMILL_MEMORY limit its use.",
        )
    if existing is not None and not replace and describe_farm(existing) != describe_farm(site):
        raise ConflictError(
            f"site {site.name!r} exists with other settings",
            hint=f"`gridmill configure site {site.name} ...` changes it.",
        )
    if existing is not None and existing.kind != site.kind:
        raise ConflictError(f"site {site.name!r} is of kind {existing.kind}", hint="Choose another name.")
