"""What is seen on a provider node just now."""

from gridmill.model.amounts import Amounts
from gridmill.model.noun import dataclass
from gridmill.model.site import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as its driver tells (NVML): memory in bytes, `busy` the share of time with work (0 to 1)."""

    model: str
    memory_bytes: int
    used_bytes: int
    busy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A GPU of a farm's node, by its number there, or a share of one: `taken` by a deployment, which is named
    where it is one's own."""

    gpu: int
    taken: bool = False
    deployment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLook:
    """A machine over a fraction of a second: `busy_cpus` are in use, of them `owner_cpus` by processes that
    are not Gridmill's; memory is what cannot be given out without swapping. `seats` says who has which of a
    farm's GPUs, where the farm gives them out."""

    busy_cpus: float
    owner_cpus: float
    used_bytes: int
    gpus: tuple[Gpu, ...] = ()
    seats: tuple[Seat, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A provider node of a site: what deployments have claimed of it, the attempts that run there, and what
    is seen now (None where it cannot be asked)."""

    site: str
    node: Node
    claimed: Amounts
    running: tuple[str, ...] = ()
    look: NodeLook | None = None
