"""Use cases of sites."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace as changed

from gridmill.control.site_monitor import adopt, described, leave, way_of
from gridmill.control.steps.begin import check_wishes
from gridmill.control.steps.problems import surveyed
from gridmill.control.usecases.base import Cases
from gridmill.domain.amounts import Amounts
from gridmill.domain.deployment import Pod
from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import check_name
from gridmill.domain.route import Way
from gridmill.domain.site import LOCAL, Node, NodeLook, NodeView, Site, SiteKind
from gridmill.domain.states import PodState
from gridmill.domain.views import FarmView
from gridmill.errors import AwayError, ConflictError, InputError, NotFoundError, UnavailableError
from gridmill.ports.pages import PAGE_ITEMS, Page, page_by_names, page_of_views, page_request
from gridmill.ports.site import Carries, SitePort

_WHERE_NODES_ARE = {
    SiteKind.SLURM: "`sinfo` on its login node shows partitions and what their nodes are up to; "
    "`--set partition=NAME` names one.",
    SiteKind.RAY: "`ray status` on its head shows its nodes.",
}
LEAVE_SECONDS = 30.0
"""How long a command waits that removes a site and its files in other places."""


class SiteCases(Cases):
    """What may be asked about sites (ports.sites.Sites)."""

    def sites(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Site]:
        """See Sites."""
        request = page_request(tuple, "sites", limit, cursor)
        with self._node.lock:
            return page_by_names(request, self._ledger.snapshot.sites.values(), lambda one: (one.name,))

    def nodes(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[NodeView]:
        """See Sites. Sites are asked without the lock."""
        request = page_request(tuple, "nodes", limit, cursor)
        with self._node.lock:
            views = [view for site in self._ledger.snapshot.sites.values() for view in self._views(site)]
            ports = dict(self._control.sites)
        looks = {name: _looks(port) for name, port in ports.items()}
        seen = (changed(view, look=looks.get(view.site, {}).get(view.node.name)) for view in views)
        return page_by_names(request, seen, lambda view: (view.site, view.node.name))

    def farms(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[FarmView]:
        """See Sites. They are asked without the lock."""
        request = page_request(tuple, "farms", limit, cursor)
        with self._node.lock:
            sites = [one for one in self._ledger.snapshot.sites.values() if one.kind == SiteKind.CLUSTER]
            away, known = self._control.sites_seen.away, self._control.sites.items()
            ports = {name: port for name, port in known if name not in away}
        return page_of_views(
            request, sites, lambda site: (site.name,), lambda site: _farm(site, ports.get(site.name))
        )

    def _views(self, site: Site) -> Iterator[NodeView]:
        snapshot = self._ledger.snapshot
        for node in site.nodes:
            pods = [
                pod
                for deployment in snapshot.deployments.values()
                for pod in deployment.pods
                if deployment.site == site.name and pod.node == node.name and pod.state != PodState.GONE
            ]
            running = tuple(attempt.id for pod in pods for attempt in snapshot.attempts_on(pod.id))
            yield NodeView(site=site.name, node=node, claimed=_sum(pods), running=running)

    def add_site(self, site: Site, *, replace: bool = False) -> Site:
        """See Sites. The site is asked without the lock: it may take seconds."""
        check_name("site", site.name)
        with self._node.lock:
            known = self._ledger.snapshot.sites.get(site.name)
        _check(site, known, replace=replace)
        port = self._control.open_site(site)
        try:
            looked = _look(site, known, port, replace=replace)
            return self._keep(changed(site, way=looked.way), port, looked, replace=replace)
        except BaseException:
            port.close()
            raise

    def _keep(self, site: Site, port: SitePort, looked: "_Looked", *, replace: bool) -> Site:
        """As it is now, unless somebody has added another one of that name meanwhile."""
        with self._node.changing() as transaction:
            known = self._ledger.snapshot.sites.get(site.name)
            _check(site, known, replace=replace)
            self._check_resources(site)
            same = known is not None and described(known) == described(site)
            fresh = known if known is not None and same else described(site)
            seen = changed(fresh.with_nodes(looked.nodes), way=fresh.way or site.way)
            transaction.put(seen)
            transaction.then(lambda: self._adopt(site.name, port, looked))
        return seen

    def _adopt(self, name: str, port: SitePort, looked: "_Looked") -> None:
        adopt(self._node, name, port)
        if looked.away:
            self._control.sites_seen.away.add(name)
        else:
            surveyed(self._control.ledger, self._control.problems, self._control.aside, name, "")

    def _check_resources(self, site: Site) -> None:
        """Those that are there still get what they ask for."""
        for resource in self._ledger.snapshot.resources.values():
            if resource.site == site.name and not resource.default:
                check_wishes(resource, site)

    def remove_site(self, name: str) -> None:
        """See Sites."""
        if name == LOCAL:
            raise ConflictError("the site `local` is the control node's own machine and always there")
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
                    hint=f"`gridmill remove resource {users[0]}`, or configure it at another site.",
                )
            there = {one.name for one in snapshot.resources.values() if one.site == name}
            waits = [one for one in snapshot.job_runs.values() if one.resource in there]
            if waits:
                raise ConflictError(
                    f"job {waits[0].job.name!r} of run {waits[0].run_id} is to run at site {name!r}",
                    hint=f"`gridmill stop {waits[0].run_id}`, or wait for its end.",
                )
            up = [one.id for one in snapshot.deployments.values() if one.site == name]
            if up:
                raise ConflictError(
                    f"deployment {up[0]} is up at site {name!r}", hint=f"`gridmill remove deployment {up[0]}`"
                )
            gone = snapshot.sites[name]
            transaction.delete(Site, name)
            transaction.then(lambda: leave(self._node, gone))
        if self._control.alarms is None:  # embedded in a command, which ends now
            self._control.aside.finish(LEAVE_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """What was seen of a site; of one that is `away`, before."""

    nodes: tuple[Node, ...]
    way: Way | None
    away: bool = False


def _look(site: Site, known: Site | None, port: SitePort, *, replace: bool) -> _Looked:
    """Of one that is changed while nobody answers there, what was `known`: only what can be seen to be wrong
    is refused. Raises UnavailableError."""
    try:
        nodes = port.nodes()
    except AwayError:
        if known is None or not replace:
            raise
        return _Looked(nodes=known.nodes, way=known.way if known.address == site.address else None, away=True)
    if not nodes:
        raise UnavailableError(
            f"site {site.name} has no node that can be used now", hint=_WHERE_NODES_ARE.get(site.kind, "")
        )
    same = known if known is not None and described(known) == described(site) else described(site)
    return _Looked(nodes=nodes, way=way_of(same, port))


def _farm(site: Site, port: SitePort | None) -> FarmView:
    known = FarmView(site=site.name, way=site.way)
    if not isinstance(port, Carries):
        return changed(known, problem="it does not answer")
    try:
        return changed(known, look=port.farm())
    except UnavailableError as error:
        return changed(known, problem=error.message)


def _looks(port: SitePort) -> Mapping[str, NodeLook]:
    """Nothing where the site does not answer."""
    try:
        return port.looks()
    except UnavailableError:
        return {}


def _sum(pods: Sequence[Pod]) -> Amounts:
    return Amounts(
        cpus=sum(pod.capacity.cpus for pod in pods),
        memory_bytes=sum(pod.capacity.memory_bytes for pod in pods),
        gpus=sum(pod.capacity.gpus for pod in pods),
    )


def _check(site: Site, known: Site | None, *, replace: bool) -> None:
    if site.kind == SiteKind.LOCAL or site.name == LOCAL:
        raise InputError(
            "the site `local` is the control node's own machine: it is there and is not added",
            hint="Settings GRIDMILL_CPUS and GRIDMILL_MEMORY say how much of it is given.",
        )
    if known is not None and not replace and described(known) != described(site):
        raise ConflictError(
            f"there is a site {site.name!r} with other settings",
            hint=f"`gridmill configure site {site.name} ...` changes it.",
        )
    if known is not None and known.kind != site.kind:
        raise ConflictError(f"site {site.name!r} is of kind {known.kind}", hint="Take another name.")
