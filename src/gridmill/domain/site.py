"""A site: a named place where pods can be started; its nodes and the last observations of them."""

from collections.abc import Mapping
from dataclasses import field
from difflib import get_close_matches
from enum import StrEnum

from gridmill.domain.amounts import Amounts
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.route import Route
from gridmill.errors import InputError

LOCAL = "local"
"""The site that every grid has: the machine of the control node."""


class SiteKind(StrEnum):
    """The kind of a site, which decides how pods are started there."""

    LOCAL = "local"
    RAY = "ray"
    SLURM = "slurm"
    CLUSTER = "cluster"
    CLOUD = "cloud"
    SIMULATED = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A provider node and its whole capacity. `partitions` are its queues, if its site has queues."""

    name: str
    capacity: Amounts
    partitions: tuple[str, ...] = ()


MOST_NODES = "max_nodes"
"""The setting for the largest number of nodes of a site that may grow."""
_FIXED = (SiteKind.LOCAL, SiteKind.SLURM, SiteKind.CLUSTER)
"""Kinds of sites that have only the nodes of their configuration, and never get other nodes by themselves."""
_MOST_AWAY = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredNodes:
    """The configuration of a site beyond its available nodes: the nodes that are `away` (down, drained, in
    maintenance), and the names of its queues, the default queue first."""

    away: tuple[Node, ...] = ()
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A site. `cpu_share` is the number of CPUs that may be claimed per real CPU: on a personal machine
    deployments share CPUs (an idle deployment uses none), but memory and GPUs are never claimed twice.
    `address` is the address of the site. The possible `settings` depend on the kind. `nodes` are the nodes of
    the last observation. `past` are the largest sizes of earlier nodes that may return. `away` are configured
    nodes that cannot be used now, if the site reports them. `partitions` are the names of its queues, if it
    has any; jobs that name no queue use the first. `route` is the measured route to a site in another place.
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

    @property
    def most_nodes(self) -> int | None:
        """The most nodes that the site can have, used or not; None: no limit."""
        declared = self.settings.get(MOST_NODES, "")
        if declared.isdigit():
            return int(declared)
        return len(self.nodes) + len(self.away) if self.kind in _FIXED else None

    @property
    def largest(self) -> Amounts:
        """The most that one pod could get if the site were empty."""
        return Amounts(
            cpus=max((node.capacity.cpus for node in self.nodes), default=0.0),
            memory_bytes=max((node.capacity.memory_bytes for node in self.nodes), default=0),
            gpus=max((node.capacity.gpus for node in self.nodes), default=0),
        )

    def with_nodes(self, nodes: tuple[Node, ...], configured: "ConfiguredNodes | None" = None) -> "Site":
        """The site with its observed nodes. If the site does not report its `configured` nodes, nodes that
        were seen before and are missing now are away."""
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
    """Raise InputError, with the place of the setting, for a setting that is not in `allowed` (name ->
    description)."""
    for name in site.settings:
        if name not in allowed:
            near = get_close_matches(name, allowed, n=1)
            meant = f"Did you mean {near[0]!r}? " if near else ""
            raise InputError(
                f"a {site.kind} site has no setting {name!r}",
                hint=f"{meant}Settings are  {', '.join(sorted(allowed)) or 'none'}.",
                place=f"site {site.name}: settings.{name}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as its driver reports it (NVML): memory in bytes; `busy` is the share of time with work (0 to
    1)."""

    model: str
    memory_bytes: int
    used_bytes: int
    busy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSlot:
    """A GPU of a farm's node, by its number there, or a share of a GPU. `taken` means that a deployment has
    it. The deployment is named if it belongs to the tenant."""

    gpu: int
    taken: bool = False
    deployment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUtilization:
    """The use of a machine over a fraction of a second. `busy_cpus` are in use, of which `owner_cpus` by
    processes that are not Gridmill's. The used memory is the memory that cannot be assigned without swapping.
    `seats` are the GPUs of a farm with the deployments that hold them, if the farm assigns GPUs."""

    busy_cpus: float
    owner_cpus: float
    used_bytes: int
    gpus: tuple[Gpu, ...] = ()
    seats: tuple[GpuSlot, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A provider node of a site: the amounts that deployments have claimed, the attempts that run there,
    and the observed use (None if it cannot be observed)."""

    site: str
    node: Node
    claimed: Amounts
    running: tuple[str, ...] = ()
    utilization: NodeUtilization | None = None
