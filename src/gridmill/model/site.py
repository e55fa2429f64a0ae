"""A site: a named place where resources can be brought up, and its machines."""

from dataclasses import dataclass, field
from enum import StrEnum

from gridmill.model.amounts import Amounts


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
    CPUs (an idle one burns none) while memory and GPUs are never promised twice."""

    name: str
    kind: SiteKind
    nodes: tuple[Node, ...] = ()
    cpu_share: float = 1.0
    address: str | None = None
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def largest(self) -> Amounts:
        """The most that one pod could get on an empty site."""
        return Amounts(
            cpus=max((node.capacity.cpus for node in self.nodes), default=0.0),
            memory_bytes=max((node.capacity.memory_bytes for node in self.nodes), default=0),
            gpus=max((node.capacity.gpus for node in self.nodes), default=0),
        )
