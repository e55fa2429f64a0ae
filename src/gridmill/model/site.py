"""A site: a named place where resources can be brought up, and its machines."""

from collections.abc import Mapping
from dataclasses import field, replace
from difflib import get_close_matches
from enum import StrEnum

from gridmill.errors import InputError
from gridmill.model.amounts import Amounts
from gridmill.model.noun import dataclass
from gridmill.model.way import Way

LOCAL = "local"
"""The site that every grid has: the control node's machine."""


class SiteKind(StrEnum):
    """How pods are brought up there."""

    LOCAL = "local"
    RAY = "ray"
    SLURM = "slurm"
    CLUSTER = "cluster"
    CLOUD = "cloud"
    SIMULATED = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A provider node and what it can give in all."""

    name: str
    capacity: Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """`cpu_share` is how many CPUs may be claimed per real one: on one's own machine deployments share
    CPUs (an idle one burns none) while memory and GPUs are never promised twice. `address` is where the
    site is reached; what `settings` there are is the kind's own. `nodes` is as last seen; `past` are sizes
    of nodes that it had and that may come back: the largest ones. `way` is what was measured of the way to
    one in another place."""

    name: str
    kind: SiteKind
    nodes: tuple[Node, ...] = ()
    cpu_share: float = 1.0
    address: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    past: tuple[Amounts, ...] = ()
    way: Way | None = None

    @property
    def largest(self) -> Amounts:
        """The most that one pod could get on an empty site."""
        return Amounts(
            cpus=max((node.capacity.cpus for node in self.nodes), default=0.0),
            memory_bytes=max((node.capacity.memory_bytes for node in self.nodes), default=0),
            gpus=max((node.capacity.gpus for node in self.nodes), default=0),
        )

    def with_nodes(self, nodes: tuple[Node, ...]) -> "Site":
        """The site with what is seen of it now."""
        sizes = {*self.past, *(node.capacity for node in self.nodes)}
        away = {size for size in sizes if not any(size.fits_in(node.capacity) for node in nodes)}
        largest = {size for size in away if not any(size.fits_in(other) for other in away - {size})}
        return replace(self, nodes=nodes, past=tuple(sorted(largest, key=_size)))


def _size(amounts: Amounts) -> tuple[int, float, int]:
    return amounts.memory_bytes, amounts.cpus, amounts.gpus


def check_settings(site: Site, known: Mapping[str, str]) -> None:
    """Raises InputError, at the setting, for one that `known` (name -> what it says) does not have."""
    for name in site.settings:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            meant = f"Did you mean {near[0]!r}? " if near else ""
            raise InputError(
                f"a {site.kind} site has no setting {name!r}",
                hint=f"{meant}There are: {', '.join(sorted(known)) or 'none'}.",
                place=f"site {site.name}: settings.{name}",
            )
