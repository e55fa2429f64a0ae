"""The protocol between the Ray site and its bridge: each line is one JSON document."""

from collections.abc import Mapping
from dataclasses import field

from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import PodEvent, PodOrder
from gridmill.domain.site import Node, NodeUtilization
from gridmill.ports.site import PodReport


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeHello:
    """The first line that the bridge receives.

    `address` is the address of the Ray cluster. `mark` distinguishes the pods of this home from the pods of
    other homes. `notes` is the folder with the records of started pods. `home` is the folder of pods on
    every node, and `environment` contains the environment variables of the pods. `root_mark` is the path of
    a file below the storage root. The site treats the pods of a lost node as ended after `patience_seconds`.
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
    """One request of the site to the bridge: `nodes`, `looks`, `bring_up`, `observe`, `last_words` or
    `tear_down`."""

    operation: str
    pods: tuple[str, ...] = ()
    orders: tuple[PodOrder, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeResponse:
    """The answer to a request. If the request failed, `error` is the reason, and `hint` is a hint for the
    user."""

    nodes: tuple[Node, ...] = ()
    utilization: Mapping[str, NodeUtilization] = field(default_factory=dict)
    pod_reports: Mapping[str, PodReport] = field(default_factory=dict)
    events: tuple[PodEvent, ...] = ()
    error: str = ""
    hint: str = ""
