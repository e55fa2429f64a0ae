"""This module defines a site: a named place where pods can be started, with its nodes and the last
observations of these nodes."""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from gridmill.domain.amounts import Amounts
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.machine import Offer
from gridmill.domain.naming import suggestion
from gridmill.domain.rental_estimate import Charges
from gridmill.domain.route import Route
from gridmill.errors import InputError

LOCAL = "local"
"""The name of the site that every grid has, which is the machine of the control node."""


class SiteKind(StrEnum):
    """The kind of a site, which determines how pods are started at the site."""

    LOCAL = "local"
    RAY = "ray"
    SLURM = "slurm"
    CLUSTER = "cluster"
    CLOUD = "cloud"
    BATCH = "batch"
    SIMULATED = "simulated"


PAID = frozenset({SiteKind.CLOUD, SiteKind.BATCH})
"""The kinds of sites at which each further job or machine costs money, so that budgets apply."""


ELSEWHERE = frozenset({SiteKind.CLUSTER, SiteKind.CLOUD, SiteKind.BATCH})
"""The kinds of sites to which data is transferred. They do not load sinks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A provider node of a site, with its whole capacity. `partitions` are the queues to which the node
    belongs, if its site has queues."""

    name: str
    capacity: Amounts
    partitions: tuple[str, ...] = ()


MOST_NODES = "max_nodes"
"""The name of the setting for the largest number of nodes of a site that may grow."""
_FIXED = (SiteKind.LOCAL, SiteKind.SLURM, SiteKind.CLUSTER, SiteKind.BATCH)
"""The kinds of sites that have only the nodes of their configuration, and never get additional nodes by
themselves."""
_MOST_AWAY = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredNodes:
    """The configuration of a site in addition to its available nodes: the nodes that are `away` (down,
    drained, in maintenance), and the names of its queues, the default queue first."""

    away: tuple[Node, ...] = ()
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteOffers:
    """The offers of a cloud site when the site was last observed, as far as the planner needs them: the
    cheapest offer of each size within the terms of each resource. `asked` has the beginnings of the names of
    regions, each with a type of machine (empty: any type), for which the provider was asked. `charges` are
    the prices of everything but the machines, or None if they are unknown."""

    offers: tuple[Offer, ...] = ()
    asked: tuple[tuple[str, str], ...] = ()
    charges: Charges | None = None


MAX_MACHINES = "max_machines"
"""The name of the setting for the largest number of machines of a cloud site at the same time."""
USUAL_MACHINES = 8
"""The largest number of machines of a cloud site at the same time, if it is not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A named place where pods can be started. `cpu_share` is the number of CPUs that may be assigned to
    deployments for each real CPU: on a personal machine deployments share CPUs (an idle deployment uses
    none), but memory and GPUs are never assigned twice. `address` is the network address of the site. The
    kind of the site determines which settings `settings` may contain. `nodes` are the nodes that the site
    had when it was last observed. `past` has the largest sizes of nodes that the site had earlier and that
    may become available again. `away` are configured nodes that cannot be used now, if the site reports such
    nodes. `partitions` are the names of the queues of the site, if it has queues; jobs that name no queue
    use the first queue. `route` is the measured route to the site, if the site is in another place. `market`
    has the offers of a cloud site, or None if they were not read yet. The nodes `TYPE#K` of a cloud site
    stand for machines that could be rented.
    """

    name: str
    kind: SiteKind
    nodes: tuple[Node, ...] = ()
    cpu_share: float = 1.0
    address: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    past: tuple[Amounts, ...] = ()
    away: tuple[Node, ...] = ()
    partitions: tuple[str, ...] = ()
    route: Route | None = None
    market: SiteOffers | None = None

    @property
    def most_machines(self) -> int | None:
        """The largest number of machines that may be rented at the same time, or None if this site is not a
        cloud site. Each pod has a machine of its own."""
        if self.kind is not SiteKind.CLOUD:
            return None
        declared = self.settings.get(MAX_MACHINES, "")
        return int(declared) if declared.isdigit() else USUAL_MACHINES

    @property
    def why_no_gangs(self) -> str:
        """The reason why the site runs no jobs with several ranks. It is empty if the site runs such jobs."""
        if self.kind is not SiteKind.BATCH:
            return ""
        if self.settings.get("service") != "aws":
            return f"service {self.settings.get('service', '')!r} runs no jobs with several ranks"
        if self.settings.get("platform", "EC2") != "EC2":
            return "AWS Batch runs jobs with several ranks only on EC2, not on Fargate"
        if not self.settings.get("image"):
            return "jobs with several ranks need the setting `image`, and the site has `job_definition`"
        return ""

    @property
    def machine_count(self) -> int:
        """The number of machines on which pods can run at the same time: the nodes, or the machines that may
        be rented."""
        return len(self.nodes) if self.most_machines is None else min(len(self.nodes), self.most_machines)

    @property
    def kinds_of_nodes(self) -> tuple[Node, ...]:
        """The nodes, or one node for each type of machine that can be rented, with the name of the type."""
        if self.kind is not SiteKind.CLOUD:
            return self.nodes
        types = {node.name.rpartition("#")[0]: node for node in reversed(self.nodes)}
        return tuple(replace(node, name=name) for name, node in reversed(types.items()))

    @property
    def most_nodes(self) -> int | None:
        """The largest number of nodes that the site can have, including nodes that are not used now, or None
        if there is no limit."""
        declared = self.settings.get(MOST_NODES, "")
        if declared.isdigit():
            return int(declared)
        if self.kind is SiteKind.CLOUD:
            return self.most_machines
        return len(self.nodes) + len(self.away) if self.kind in _FIXED else None

    @property
    def largest(self) -> Amounts:
        """The largest amounts that one pod could get if no deployment ran at the site."""
        return Amounts(
            cpus=max((node.capacity.cpus for node in self.nodes), default=0.0),
            memory_bytes=max((node.capacity.memory_bytes for node in self.nodes), default=0),
            gpus=max((node.capacity.gpus for node in self.nodes), default=0),
        )

    def with_nodes(self, nodes: tuple[Node, ...], configured: "ConfiguredNodes | None" = None) -> "Site":
        """Return the site with the nodes that were observed now. If the site does not report its
        `configured` nodes, nodes that were observed before and are missing now are `away`."""
        sizes = {*self.past, *(node.capacity for node in self.nodes)}
        lost = {size for size in sizes if not any(size.fits_in(node.capacity) for node in nodes)}
        largest = {size for size in lost if not any(size.fits_in(other) for other in lost - {size})}
        past = tuple(sorted(largest, key=_size))
        if configured is not None:
            away, names = configured.away, configured.partitions
            return replace(self, nodes=nodes, past=past, away=away, partitions=names)
        here = {node.name for node in nodes}
        gone = {node.name: node for node in (*self.away, *self.nodes) if node.name not in here}
        kept = tuple(gone.values())[-_MOST_AWAY:] if self.kind is SiteKind.CLUSTER else ()
        return replace(self, nodes=nodes, past=past, away=kept)


def _size(amounts: Amounts) -> tuple[int, float, int]:
    return amounts.memory_bytes, amounts.cpus, amounts.gpus


def check_settings(site: Site, allowed: Mapping[str, str]) -> None:
    """Raise InputError, with the place of the setting, if a setting is not in `allowed` (name ->
    description)."""
    for name in site.settings:
        if name not in allowed:
            names = ", ".join(sorted(allowed)) or "none"
            raise InputError(
                f"a {site.kind} site has no setting {name!r}",
                hint=f"{suggestion(name, allowed)} Settings are {names}.".lstrip(),
                place=f"site {site.name}: settings.{name}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as its driver (NVML) reports it, with its memory in bytes. `busy` is the fraction of the time in
    which the GPU was working (0 to 1)."""

    model: str
    memory_bytes: int
    used_bytes: int
    busy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSlot:
    """A GPU of a node of a farm, by its number on the node, or a share of such a GPU. `taken` means that a
    deployment holds the GPU or the share. If the deployment that holds the GPU belongs to the tenant, the
    record has the name of this deployment."""

    gpu: int
    taken: bool = False
    deployment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUtilization:
    """The resource use of a machine, measured over a fraction of a second. `busy_cpus` is the number of CPUs
    in use, of which processes that do not belong to Gridmill use `owner_cpus`. The used memory is the memory
    that cannot be assigned to other processes without swapping. `seats` are the GPUs of a farm with the
    deployments that hold them, if the farm assigns GPUs."""

    busy_cpus: float
    owner_cpus: float
    used_bytes: int
    gpus: tuple[Gpu, ...] = ()
    seats: tuple[GpuSlot, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A provider node of a site: the amounts that are assigned to deployments, the attempts that run on the
    node, and the observed use of the node (None if it cannot be observed)."""

    site: str
    node: Node
    claimed: Amounts
    running: tuple[str, ...] = ()
    utilization: NodeUtilization | None = None
