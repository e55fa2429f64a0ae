"""This module has an index of sites, deployments and attempts: the free CPUs, memory and GPUs of each pod
and node, and the idle deployments."""

from collections.abc import Mapping

from gridmill.domain.amounts import Amounts
from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.rental_nodes import type_of
from gridmill.domain.run import Attempt
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.domain.states import LIVE_ATTEMPTS, AttemptState, DeploymentState, PodState
from gridmill.scheduler.capacity import Nodes, Pods, slot_of
from gridmill.scheduler.nodes_within_terms import types_and_reason
from gridmill.scheduler.run_index import forget
from gridmill.scheduler.sorted_tuples import SortedTuples

_INSTANCE_TYPE = "instance_type"
"""The setting of a resource at a cloud site that selects a type of machine."""
_Settings = tuple[tuple[str, str], ...]
"""The sorted settings of a resource."""


class ProjectTotals:
    """The total CPUs, memory and GPUs that the live attempts of a project hold. The totals are stored in
    whole thousandths, so that they do not depend on the order of the changes."""

    __slots__ = ("_cpus", "_since", "gpus", "memory_bytes", "places")

    def __init__(self) -> None:
        self.places = 0
        """One place for each attempt, or one for each GPU."""
        self.memory_bytes = 0
        self.gpus = 0
        self._cpus = 0
        self._since = 0
        """The sum of the times at which the places were taken."""

    @property
    def cpus(self) -> float:
        """The CPUs that the attempts requested. An attempt that requests no CPUs is counted as one CPU."""
        return self._cpus / 1000

    def held_seconds(self, now: float) -> float:
        """The total time for which the attempts have held their places, in seconds."""
        return max(0.0, self.places * now - self._since / 1000)

    def count(self, attempt: Attempt, times: int) -> None:
        """Add an attempt to the totals if `times` is 1, or subtract it from the totals if `times` is -1."""
        places = max(1, attempt.given.gpus) * times
        self.places += places
        self._since += places * round(attempt.placed * 1000)
        self.add(attempt.asked_cpus * times, attempt.given.memory_bytes * times, attempt.given.gpus * times)

    def add(self, cpus: float, memory_bytes: int, gpus: int) -> None:
        """Add amounts to the totals that a quota limits."""
        self._cpus += round(cpus * 1000)
        self.memory_bytes += memory_bytes
        self.gpus += gpus

    def copy(self) -> "ProjectTotals":
        """Return an independent copy of the totals."""
        twin = ProjectTotals()
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin


_SERVING = frozenset({DeploymentState.STARTING, DeploymentState.UP})


class CapacityIndex:
    """The free CPUs, memory and GPUs of pods and nodes, and the attempts on them.

    `open` has the pods that are up, and `coming` has the pods that are starting, by resource. `nodes` has
    the CPUs, memory and GPUs of nodes that are not assigned to a deployment, by site. `idle` has, by
    resource, the deployments without attempts, each with the time until which it is kept. `resumable` has
    the running attempts that may be preempted, the longest-running first, by resource; a gang is represented
    by its rank 0. `yielding` has the attempts that were asked to end and have not ended yet, with all ranks.
    `tallies` has the totals that the live attempts of each project hold, by project. `broken` has, by
    resource, the live pods of broken deployments, which are released as soon as they are idle.
    """

    def __init__(self) -> None:
        self.sites: dict[str, Site] = {}
        self.deployments: dict[str, Deployment] = {}
        self.attempts: dict[str, Attempt] = {}
        self.open: dict[str, Pods] = {}
        self.coming: dict[str, Pods] = {}
        self.broken: dict[str, dict[str, None]] = {}
        self.nodes: dict[str, Nodes] = {}
        self.idle: dict[str, SortedTuples[tuple[float, str]]] = {}
        self.resumable: dict[str, SortedTuples[tuple[float, str]]] = {}
        self.tallies: dict[str, ProjectTotals] = {}
        self.yielding: dict[str, dict[str, None]] = {}
        self.removed_nodes: dict[str, None] = {}
        """The deployments that are being released."""
        self.owners: dict[str, str] = {}
        """The deployment of each pod."""
        self.shapes: dict[str, tuple[Amounts, ...]] = {}
        """The different sizes of the nodes of each site, with the largest size first."""
        self.largest: dict[str, Amounts] = {}
        """`Site.largest` of each site, computed once because it is read for each job."""
        self.capacities: dict[tuple[str, str], Amounts] = {}
        """The capacity of the whole node, for each site and node."""
        self.claims: dict[tuple[str, str], dict[str, Amounts]] = {}
        """The capacity of each pod on a node, for each site and node."""
        self.terms: dict[str, tuple[float, float]] = {}
        """The start and the end of the lifetime of each pod whose site limits it."""
        self.on: dict[str, dict[str, None]] = {}
        """The live attempts of each pod, deployment and JobRun."""
        self._rentable_types: dict[tuple[str, _Settings], tuple[frozenset[str] | None, str]] = {}
        """The types of machines that resources may use, and the reason if there are none, by site and
        settings of the resource. The result is cached, because it is needed for each job."""
        self._usable: dict[tuple[str, _Settings, bool], tuple[Node, ...]] = {}
        """The result of `usable_nodes`, by its arguments. It is cached, because the plan and the status of
        each job need it, and a cloud site has a node for each machine of each type."""
        self._usable_shapes: dict[tuple[str, _Settings, Amounts], tuple[Amounts, ...]] = {}
        """The result of `usable_shapes`, by its arguments."""

    # --- sites

    def put_site(self, site: Site) -> None:
        """Insert a site into the index, or replace it."""
        old = self.sites.get(site.name)
        self.sites[site.name] = site
        if old is None or _what_nodes_depend_on(old) != _what_nodes_depend_on(site):
            self._forget_choices(site.name)
        if old is not None and (old.nodes, old.cpu_share) == (site.nodes, site.cpu_share):
            return
        self._forget_nodes(old)
        self.nodes[site.name] = Nodes()
        self.largest[site.name] = site.largest
        shapes = {node.capacity for node in site.nodes}
        self.shapes[site.name] = tuple(sorted(shapes, key=_size, reverse=True))
        for node in site.nodes:
            self.capacities[(site.name, node.name)] = node.capacity
            self._refresh_node(site.name, node.name)

    def drop_site(self, name: str) -> None:
        """Remove a site from the index. The deployments of the site stay in the index until they end."""
        self._forget_nodes(self.sites.pop(name, None))
        self._forget_choices(name)
        self.nodes.pop(name, None)
        self.shapes.pop(name, None)
        self.largest.pop(name, None)

    def types_and_reason(self, site: Site, settings: Mapping[str, str]) -> tuple[frozenset[str] | None, str]:
        """Return the types of machines at a cloud site that a resource with these settings may use, and the
        reason if there are none; see nodes_within_terms.types_and_reason."""
        key = site.name, tuple(sorted(settings.items()))
        if key not in self._rentable_types:
            self._rentable_types[key] = types_and_reason(site, settings)
        return self._rentable_types[key]

    def may_use(self, site: Site, settings: Mapping[str, str], node: str) -> bool:
        """Return whether deployments of a resource with these settings may use a node. The nodes `TYPE#K` of
        a cloud site stand for machines that could be rented, and the terms of the resource must permit such
        a machine. If the offers for these terms are unknown, only the selected type is checked."""
        if site.kind is not SiteKind.CLOUD:
            return True
        types, _ = self.types_and_reason(site, settings)
        if types is not None:
            return type_of(node) in types
        wanted = settings.get(_INSTANCE_TYPE, "")
        return not wanted or type_of(node) == wanted

    def usable_nodes(
        self, site: Site, settings: Mapping[str, str], *, away: bool = False
    ) -> tuple[Node, ...]:
        """Return the nodes of a site that deployments of a resource with these settings may use: the nodes
        of their partition, or the machines that can be rented within their terms. With `away`, the function
        returns those of the unavailable nodes."""
        key = site.name, tuple(sorted(settings.items())), away
        nodes = self._usable.get(key)
        if nodes is None:
            known = site.away if away else site.nodes
            nodes = tuple(node for node in known if self.may_use(site, settings, node.name))
            if site.partitions:
                named = settings.get("partition") or site.settings.get("partition") or site.partitions[0]
                wanted = frozenset(named.split(","))
                nodes = tuple(node for node in nodes if not wanted.isdisjoint(node.partitions))
            self._usable[key] = nodes
        return nodes

    def usable_shapes(self, site: Site, settings: Mapping[str, str], least: Amounts) -> tuple[Amounts, ...]:
        """Return the different sizes of `usable_nodes`, also of the unavailable ones, that are not smaller
        than `least`."""
        key = site.name, tuple(sorted(settings.items())), least
        shapes = self._usable_shapes.get(key)
        if shapes is None:
            nodes = (*self.usable_nodes(site, settings), *self.usable_nodes(site, settings, away=True))
            sizes = dict.fromkeys(node.capacity for node in nodes)
            shapes = self._usable_shapes[key] = tuple(one for one in sizes if least.fits_in(one))
        return shapes

    def _forget_choices(self, name: str) -> None:
        """Forget which nodes of a site the resources may use."""
        self._rentable_types = {key: one for key, one in self._rentable_types.items() if key[0] != name}
        self._usable = {key: one for key, one in self._usable.items() if key[0] != name}
        self._usable_shapes = {key: one for key, one in self._usable_shapes.items() if key[0] != name}

    def _forget_nodes(self, site: Site | None) -> None:
        for node in site.nodes if site else ():
            self.capacities.pop((site.name if site else "", node.name), None)

    def _refresh_node(self, site_name: str, node: str) -> None:
        site, whole = self.sites.get(site_name), self.capacities.get((site_name, node))
        if site is None or whole is None:
            return
        taken = self.claims.get((site_name, node), {})
        free = Amounts(
            # summed in a fixed order: repeated addition and subtraction of fractions would accumulate errors
            cpus=whole.cpus * site.cpu_share - sum(taken[pod].cpus for pod in sorted(taken)),
            memory_bytes=whole.memory_bytes - sum(claim.memory_bytes for claim in taken.values()),
            gpus=whole.gpus - sum(claim.gpus for claim in taken.values()),
        )
        self.nodes[site_name].set(node, free)

    # --- attempts

    def put_attempt(self, attempt: Attempt) -> None:
        """Insert an attempt into the index, or replace it. If the attempt has finished, it is removed from
        the index."""
        old = self.attempts.get(attempt.id)
        if old is not None and attempt.state in LIVE_ATTEMPTS and _same_place(old, attempt):
            self._forget_resumable(old)
            self.attempts[attempt.id] = attempt
            self._note_resumable(attempt)
            return
        self.drop_attempt(attempt.id)
        if attempt.state in LIVE_ATTEMPTS:
            self.attempts[attempt.id] = attempt
            for where in (attempt.pod_id, attempt.deployment_id, attempt.job_run_id):
                self.on.setdefault(where, {})[attempt.id] = None
            self._note_resumable(attempt)
            self._count(attempt, 1)
            self._refresh_around(attempt)

    def drop_attempt(self, key: str) -> None:
        """Remove an attempt from the index."""
        old = self.attempts.pop(key, None)
        if old is not None:
            for where in (old.pod_id, old.deployment_id, old.job_run_id):
                forget(self.on, where, key)
            self._forget_resumable(old)
            self._count(old, -1)
            self._refresh_around(old)

    def _count(self, attempt: Attempt, times: int) -> None:
        tally = self.tallies.get(attempt.project)
        if tally is None:
            tally = self.tallies[attempt.project] = ProjectTotals()
        tally.count(attempt, times)
        if not tally.places:
            del self.tallies[attempt.project]

    def _note_resumable(self, attempt: Attempt) -> None:
        """Add a resumable attempt to `resumable`. The name of the resource is taken from the beginning of
        the deployment's id, because the deployment may be inserted into the index later than the attempt."""
        resource = attempt.deployment_id.rpartition("-")[0]
        if attempt.resumable and attempt.interrupted is not None:
            self.yielding.setdefault(resource, {})[attempt.id] = None
        elif _is_resumable(attempt):
            self.resumable.setdefault(resource, SortedTuples()).add(_begun(attempt))

    def _forget_resumable(self, attempt: Attempt) -> None:
        resource = attempt.deployment_id.rpartition("-")[0]
        if attempt.resumable and attempt.interrupted is not None:
            forget(self.yielding, resource, attempt.id)
        elif _is_resumable(attempt):
            self.resumable[resource].discard(_begun(attempt))
            if not len(self.resumable[resource]):
                del self.resumable[resource]

    def _refresh_around(self, attempt: Attempt) -> None:
        deployment = self.deployments.get(attempt.deployment_id)
        if deployment is None:
            return
        for index in (self.open, self.coming):
            pods = index.get(deployment.resource)
            if pods is not None and attempt.pod_id in pods:
                pods.give(attempt.pod_id, self._given(attempt.pod_id))
        self._refresh_idle(deployment)

    # --- deployments

    def put_deployment(self, deployment: Deployment) -> None:
        """Insert a deployment into the index, or replace it. If the deployment has ended, it is removed from
        the index."""
        old = self.deployments.get(deployment.id)
        if old is not None:
            self._forget_idle(old)
        if deployment.state == DeploymentState.GONE:
            self.drop_deployment(deployment.id)
            return
        self.deployments[deployment.id] = deployment
        if deployment.state == DeploymentState.RELEASING:
            self.removed_nodes[deployment.id] = None
        if old is None or old.state != deployment.state or self.is_broken(old) != self.is_broken(deployment):
            self._replace_pods(old.pods if old else (), deployment)
        elif old.pods is not deployment.pods:
            self._replace_changed_pods(old, deployment)
        self._refresh_idle(deployment)

    def drop_deployment(self, key: str) -> None:
        """Remove a deployment and its pods from the index."""
        old = self.deployments.pop(key, None)
        self.removed_nodes.pop(key, None)
        if old is not None:
            self._forget_idle(old)
            for pod in old.pods:
                self._forget_pod(old, pod)

    def _replace_pods(self, before: tuple[Pod, ...], deployment: Deployment) -> None:
        for pod in before:
            self._forget_pod(deployment, pod)
        for pod in deployment.pods:
            self._place_pod(deployment, pod)

    def _replace_changed_pods(self, old: Deployment, deployment: Deployment) -> None:
        """Replace only the pods of a deployment that have changed. The index calls this function many times
        a second, because each acknowledgement replaces one pod of a deployment."""
        before = {pod.id: pod for pod in old.pods}
        for pod in deployment.pods:
            previous = before.pop(pod.id, None)
            if previous is None or not _same_pod(previous, pod):
                if previous is not None:
                    self._forget_pod(old, previous)
                self._place_pod(deployment, pod)
        for pod in before.values():
            self._forget_pod(old, pod)

    def _place_pod(self, deployment: Deployment, pod: Pod) -> None:
        self.owners[pod.id] = deployment.id
        if pod.state == PodState.GONE:
            return
        if pod.ends is not None:
            self.terms[pod.id] = (deployment.created if pod.began is None else pod.began, pod.ends)
        self.claims.setdefault((deployment.site, pod.node), {})[pod.id] = pod.capacity
        self._refresh_node(deployment.site, pod.node)
        if deployment.state not in _SERVING or pod.state == PodState.ENDING:
            return
        if self.is_broken(deployment):
            self.broken.setdefault(deployment.resource, {})[pod.id] = None
        else:
            index = self.open if pod.state == PodState.UP else self.coming
            node = pod.node if deployment.pinned or self._places_as_planned(deployment.site) else ""
            slot = slot_of(pod.id, pod.capacity, self._given(pod.id), deployment.id, node)
            index.setdefault(deployment.resource, Pods()).set(slot)

    def is_broken(self, deployment: Deployment) -> bool:
        """Return whether the deployment has lost a pod that cannot be replaced until the deployment ends, so
        that the deployment accepts no more jobs. Only deployments at Ray sites can lose a pod in this way,
        because Ray reserves the CPUs, memory and GPUs of the lost pod on any other node with enough free
        amounts, and does not release them."""
        if self._kind(deployment.site) is not SiteKind.RAY:
            return False
        return any(pod.state == PodState.GONE for pod in deployment.pods)

    def busy_broken(self, resource: str) -> int:
        """Return the number of pods of the resource's broken deployments that still run a job. The other
        pods of a broken deployment never run a job again, so new pods may replace them."""
        return sum(pod_id in self.on for pod_id in self.broken.get(resource, ()))

    def _places_as_planned(self, site: str) -> bool:
        """Return whether the site places pods on the planned nodes. At a Slurm site, Slurm chooses the nodes
        of pods."""
        return self._kind(site) is not SiteKind.SLURM

    def _kind(self, site: str) -> SiteKind | None:
        site_record = self.sites.get(site)
        return None if site_record is None else site_record.kind

    def _forget_pod(self, deployment: Deployment, pod: Pod) -> None:
        self.owners.pop(pod.id, None)
        self.terms.pop(pod.id, None)
        forget(self.broken, deployment.resource, pod.id)
        for index in (self.open, self.coming):
            pods = index.get(deployment.resource)
            if pods is not None:
                pods.drop(pod.id)
                if not len(pods):
                    del index[deployment.resource]
        claims = self.claims.get((deployment.site, pod.node))
        if claims is not None and claims.pop(pod.id, None) is not None:
            if not claims:
                del self.claims[(deployment.site, pod.node)]
            self._refresh_node(deployment.site, pod.node)

    def _given(self, pod_id: str) -> list[Amounts]:
        return [self.attempts[key].given for key in self.on.get(pod_id, ())]

    # --- idle deployments

    def _refresh_idle(self, deployment: Deployment) -> None:
        self._forget_idle(deployment)
        if deployment.state == DeploymentState.UP and not self.on.get(deployment.id):
            self.idle.setdefault(deployment.resource, SortedTuples()).add((expiry(deployment), deployment.id))

    def _forget_idle(self, deployment: Deployment) -> None:
        entries = self.idle.get(deployment.resource)
        if entries is not None:
            entries.discard((expiry(deployment), deployment.id))
            if not len(entries):
                del self.idle[deployment.resource]


def expiry(deployment: Deployment) -> float:
    """Return the time at which the keep time of an idle deployment ends. The result is infinite if it is not
    recorded when the deployment became idle."""
    idle_since = deployment.idle_since
    return float("inf") if idle_since is None else idle_since + deployment.keep_seconds


def _what_nodes_depend_on(site: Site) -> tuple[object, ...]:
    """Return the properties of a site that determine which of its nodes a resource may use."""
    return site.kind, site.nodes, site.away, site.partitions, site.market, site.settings


def _size(amounts: Amounts) -> tuple[int, int, float]:
    return (amounts.memory_bytes, amounts.gpus, amounts.cpus)


def _is_resumable(attempt: Attempt) -> bool:
    return (
        attempt.resumable
        and attempt.rank == 0
        and attempt.state is AttemptState.RUNNING
        and not attempt.stop_requested
        and attempt.interrupted is None
    )


def _begun(attempt: Attempt) -> tuple[float, str]:
    return attempt.placed if attempt.started is None else attempt.started, attempt.id


def _same_place(old: Attempt, new: Attempt) -> bool:
    return (old.pod_id, old.deployment_id, old.job_run_id, old.given) == (
        new.pod_id,
        new.deployment_id,
        new.job_run_id,
        new.given,
    )


def _same_pod(old: Pod, new: Pod) -> bool:
    return old is new or (old.state, old.node, old.capacity, old.began, old.ends) == (
        new.state,
        new.node,
        new.capacity,
        new.began,
        new.ends,
    )
