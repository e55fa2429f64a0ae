"""The site port: starts pods, stops them and reports on them. A site does not know jobs.

`PodReports` is the report of a farm on its pods.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from gridmill.domain.amounts import Amounts
from gridmill.domain.artifact import Artifact
from gridmill.domain.farm_protocol import FarmStatus
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import PodEvent, PodOrder
from gridmill.domain.resource import MeasuredUse
from gridmill.domain.route import Route
from gridmill.domain.site import ConfiguredNodes, Node, NodeUtilization
from gridmill.domain.states import Cause


class PodStatus(StrEnum):
    """The status of a pod, as its site reports it."""

    QUEUED = "queued"  # accepted by the site, waits in its queue
    RUNNING = "running"
    GONE = "gone"  # it has ended and none of its jobs' processes remain
    UNKNOWN = "unknown"  # its state is unknown now


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReport:
    """The status of a pod and what the site reports about it.

    `began` and `ends` are the Unix times at which the site began it and will end it, where it does. Of what
    is GONE: `cause` is why its attempts ended with it, `use` what the site measured of it, `hopeless` that
    another one like it would fare the same, `unfit` that its node lacks what it promised: on another one it
    may come up; `left` that its node has left the site, which says nothing of the pod.
    """

    status: PodStatus
    message: str = ""
    began: float | None = None
    ends: float | None = None
    cause: Cause = Cause.LOST
    use: MeasuredUse | None = None
    hopeless: bool = False
    unfit: bool = False
    left: bool = False


class PodListeners(Protocol):
    """The listeners by which pods of other machines reach the control node. A site asks for one when it is
    opened."""

    def tls(self, host: str, port: int = 0) -> str:
        """Listen at that address of this machine, once; the link for PodOrder.link. Port 0: one that is
        free, the same after a restart. Raises UnavailableError."""

    def spool(self, folder: Path) -> str:
        """Watch a folder that pods see under the same path; the link. Raises StorageError."""


@runtime_checkable
class ExternalCleanup(Protocol):
    """A site that stores files outside the farm and the home, such as objects in buckets."""

    def clean_up_previous(self) -> None:
        """Delete, in the background, what earlier ports of the site left in other places: this port
        owns the site from now on. Returns at once."""

    def delete_all(self) -> None:
        """Delete everything there, because the site was removed. Can take long; what cannot be
        deleted now stays and is logged."""


@runtime_checkable
class QueueSite(Protocol):
    """A site that puts requests into a queue of its own, together with those of other users."""

    def configured_nodes(self) -> ConfiguredNodes:
        """What it is configured with beside `nodes`, as of the same moment. Raises UnavailableError."""

    def request(self, amounts: Amounts, pods: int, settings: Mapping[str, str]) -> str:
        """What it would be asked for so many pods of that size, with a resource's settings: as people write
        it on the command line there. Raises InputError."""


@runtime_checkable
class TransferSite(Protocol):
    """A site that has its own storage, so that data is transferred to it and back."""

    def transfer_progress(self, attempt_id: str) -> Mapping[str, Any]:
        """How far its data is on the way: `done` of `total`, `unit` and `note`, as a progress event's body;
        empty when none is. Answers at once."""

    def farm_status(self) -> FarmStatus:
        """The status that the farm reported, at most some seconds old. Raises UnavailableError."""

    def transfer_problems(self) -> Mapping[str, str]:
        """Why the data of attempts cannot be transferred now, by their ids, and what is lost. Answers
        at once."""

    def missing_sizes(self, versions: Sequence[Artifact]) -> Mapping[str, int]:
        """Bytes of each version, by its id, that are not there; without those that it would take long to look
        at. Raises UnavailableError."""

    def probe(self) -> Route:
        """The measured transfer rate, by a few small transfers. Raises UnavailableError."""


@runtime_checkable
class ComparingSite(Protocol):
    """A TransferSite that knows of which parts the versions at home consist."""

    def changed_shares(self, pairs: Sequence[tuple[Artifact, Artifact]]) -> Mapping[str, float]:
        """Of pairs of a version and the one before it, by the id of the former: the share of its bytes that
        the other does not have (0 to 1). Without those that it would take long to look at."""


@runtime_checkable
class SharedMachineSite(Protocol):
    """A site on a machine whose memory other programs use as well."""

    def memory_problem(self) -> str:
        """Why the machine may run out of memory; empty if it will not. Returns at once."""


class SitePort(Protocol):
    """Every method may be repeated. `bring_up`, `observe`, `undelivered_events` and `tear_down` may take
    their time, and are called from several threads at once; the others answer at once."""

    def nodes(self) -> tuple[Node, ...]:
        """The machines and what each can give."""

    def utilization(self) -> Mapping[str, NodeUtilization]:
        """The use of those nodes that can be observed now, by name; can take a second."""

    def link(self) -> str:
        """How a pod of this site reaches the control node (PodOrder.link)."""

    def pod_home(self, pod_id: str) -> str:
        """PodOrder.home for a pod that starts here."""

    def prepare(self) -> None:
        """A job will probably be run soon: do what makes the first `bring_up` quicker, if there is anything.
        Whatever it leaves ends with `close`."""

    def bring_up(self, orders: Sequence[PodOrder]) -> None:
        """Start pods. A pod id that was ever started is not started again. Raises UnavailableError."""

    def observe(self, pod_ids: Sequence[str]) -> Mapping[str, PodReport]:
        """All at once. GONE for a pod that ended or that was never started; before it answers GONE for a
        pod that died, the site has ended every process the pod's jobs left behind."""

    def undelivered_events(self, pod_id: str) -> Sequence[PodEvent]:
        """The events that a pod that is GONE journalled and may not have delivered, in order; empty where
        that is lost. A result that waited longer than its pod for a control node is found here."""

    def tear_down(self, pod_ids: Sequence[str]) -> None:
        """End pods and every process of their jobs; when it returns they are gone. Gone ones are fine."""

    def close(self) -> None:
        """Forget the site without touching its pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReports:
    """The reports on pods, by id; for pods that are gone also the journalled events that may not be
    delivered."""

    reports: Mapping[str, PodReport]
    undelivered: Mapping[str, tuple[PodEvent, ...]] = field(default_factory=dict)
