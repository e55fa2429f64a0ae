"""This module has the deployment: a running resource with one pod for each worker."""

from collections.abc import Mapping
from dataclasses import field

from gridmill.domain.amounts import Amounts
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import JobKind
from gridmill.domain.resource import Sizing
from gridmill.domain.states import DeploymentState, PodState


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of a deployment; each pod is one worker. `acknowledged` is the number of the last journal entry
    of the pod that is committed to the store. If the site limits the time of the pod, `began` and `ends` are
    the Unix times of the start and the end of that time. `address` is the host name or address by which
    other hosts of the site reach the pod, if the pod has reported it. `notice` is the provider's notice that
    it will end the spot machine of the pod; empty if there is none."""

    id: str
    node: str
    capacity: Amounts
    state: PodState
    acknowledged: int = 0
    message: str = ""
    began: float | None = None
    ends: float | None = None
    address: str = ""
    notice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A running resource: its pods, its state and its settings. The id of a deployment is `RESOURCE-N`, and
    the ids of its pods are `RESOURCE-N.K`. `idle_since` is None while the deployment has live attempts.
    `settings` are the settings of the resource for its site. `pinned` means that the pods must run on the
    planned nodes, so that the site may not choose other nodes."""

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
