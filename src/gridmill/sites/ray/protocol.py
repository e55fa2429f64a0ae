"""The protocol between the Ray site and its bridge: one JSON document per line."""

from collections.abc import Mapping
from dataclasses import field

from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import PodEvent, PodOrder
from gridmill.domain.site import Node, NodeUtilization
from gridmill.ports.site import PodReport


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeHello:
    """The bridge's first line.

    `address` is the cluster's. `mark` distinguishes this home's pods from others. `notes` is the folder with
    records of started pods. `home` is the folder of pods on every node; `environment` are their variables.
    `root_mark` is a file below the storage root. Pods of a lost node count as ended after `patience_seconds`.
    """

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
    """The answer; `error` is the reason if there is none, with `hint`."""

    nodes: tuple[Node, ...] = ()
    utilization: Mapping[str, NodeUtilization] = field(default_factory=dict)
    pod_reports: Mapping[str, PodReport] = field(default_factory=dict)
    events: tuple[PodEvent, ...] = ()
    error: str = ""
    hint: str = ""
