"""The protocol between the Ray site and its bridge: one JSON document per line."""

from collections.abc import Mapping
from dataclasses import field

from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import PodEvent, PodOrder
from gridmill.domain.site import Node, NodeUtilization
from gridmill.ports.site import PodReport


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeHello:
    """The bridge's first line: the cluster's address; `mark` tells this home's pods from another's; `notes`
    is the folder with notes of where each pod was brought up; `home` the pods' folder on every node;
    `environment` what they start with; `root_mark` a file below the storage root. Pods of a
    lost node are gone after `patience_seconds`."""

    address: str
    mark: str
    notes: str
    home: str
    environment: Mapping[str, str]
    root_mark: str
    patience_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeRequest:
    """One request: `nodes`, `looks`, `bring_up`, `observe`, `last_words` or `tear_down`."""

    operation: str
    pods: tuple[str, ...] = ()
    orders: tuple[PodOrder, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeResponse:
    """Its answer; `error` says why there is none, with `hint`."""

    nodes: tuple[Node, ...] = ()
    utilization: Mapping[str, NodeUtilization] = field(default_factory=dict)
    pod_reports: Mapping[str, PodReport] = field(default_factory=dict)
    events: tuple[PodEvent, ...] = ()
    error: str = ""
    hint: str = ""
