"""A deployment: a running resource with one pod per worker."""

from collections.abc import Mapping
from dataclasses import field

from gridmill.domain.amounts import Amounts
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import JobKind
from gridmill.domain.resource import Sizing
from gridmill.domain.states import DeploymentState, PodState


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One worker. `acknowledged` is the number of the last journal entry that is committed to the store.
    If its site limits its time, `began` and `ends` are the Unix times of its beginning and end. `address`
    is the host name or address by which other hosts of its site reach it, if it has reported one."""

    id: str
    node: str
    capacity: Amounts
    state: PodState
    acknowledged: int = 0
    message: str = ""
    began: float | None = None
    ends: float | None = None
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Its id is `RESOURCE-N`; pods are `RESOURCE-N.K`. `idle_since` is None while it has live attempts.
    `settings` are the resource's for its site. `pinned`: its pods are on the nodes that they are planned on,
    and the site may choose no others."""

    id: str
    resource: str
    type: JobKind
    site: str
    state: DeploymentState
    sizing: Sizing
    pods: tuple[Pod, ...]
    keep_seconds: float
    created: float
    idle_since: float | None = None
    pinned: bool = False
    message: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
