"""The site port: starts pods, stops them and reports on them. A site knows nothing about jobs.

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

    QUEUED = "queued"  # the site has accepted the pod, which waits in the queue
    RUNNING = "running"
    GONE = "gone"  # the pod has ended, and no process of its jobs remains
    UNKNOWN = "unknown"  # the site cannot observe the pod now


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReport:
    """The status of a pod and the other facts that the site reports about it.

    `began` and `ends` are the Unix times in seconds at which the site started the pod and will stop it, if
    the site has such times. The other fields are for a pod that is GONE. `cause` is the reason why its
    attempts ended, and `use` is the use that the site measured. `hopeless`: another pod of the same kind
    would fail in the same way. `unfit`: the pod's node lacks something that it promised; the pod may start on
    another node. `left`: the node of the pod has left the site, so that the end shows nothing about the pod
    itself.
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
    """The listeners of the control node to which pods on other machines connect. A site gets them when it is
    opened."""

    def tls(self, host: str, port: int = 0) -> str:
        """Listen at this address of this machine, unless a listener exists already. Returns the link for
        PodOrder.link. Port 0 chooses a free port, which stays the same after a restart. Raises
        UnavailableError."""

    def spool(self, folder: Path) -> str:
        """Watch a folder that pods see under the same path. Returns the link. Raises StorageError."""


@runtime_checkable
class ExternalCleanup(Protocol):
    """A site that stores files outside the farm and the home, such as objects in buckets."""

    def clean_up_previous(self) -> None:
        """Delete, in the background, files that earlier ports of the site left outside the farm and the home.
        This port now owns the site. Returns at once."""

    def delete_all(self) -> None:
        """Delete all external files, because the site was removed. Can take long. A file that cannot be
        deleted now stays, and is logged."""


@runtime_checkable
class QueueSite(Protocol):
    """A site that puts its requests into a queue that it shares with other users."""

    def configured_nodes(self) -> ConfiguredNodes:
        """The nodes that the site is configured with, read at the same moment as `nodes`. Raises
        UnavailableError."""

    def request(self, amounts: Amounts, pods: int, settings: Mapping[str, str]) -> str:
        """The request that the site would get for `pods` pods of this size with the settings of a resource,
        in the form of the site's command line. Raises InputError."""


@runtime_checkable
class TransferSite(Protocol):
    """A site that has its own storage, so that data is transferred to the site and back."""

    def transfer_progress(self, attempt_id: str) -> Mapping[str, Any]:
        """The progress of the transfer of an attempt's data, as the body of a progress event: `done` of
        `total`, `unit` and `note`. Empty if there is no transfer. Returns at once."""

    def farm_status(self) -> FarmStatus:
        """The status that the farm reported, at most some seconds old. Raises UnavailableError."""

    def transfer_problems(self) -> Mapping[str, str]:
        """The reason why data cannot be transferred now or is lost, by attempt id. Returns at once."""

    def missing_sizes(self, versions: Sequence[Artifact]) -> Mapping[str, int]:
        """The number of bytes that the site lacks of each version, by version id. Versions that would take
        long to check are left out. Raises UnavailableError."""

    def probe(self) -> Route:
        """The transfer rate, measured by a few small transfers. Raises UnavailableError."""


@runtime_checkable
class ComparingSite(Protocol):
    """A TransferSite that knows the parts of the versions at home."""

    def changed_shares(self, pairs: Sequence[tuple[Artifact, Artifact]]) -> Mapping[str, float]:
        """The share (0 to 1) of a version's bytes that the previous version does not have, by the version's
        id. Each pair is a version and its previous version. Pairs that would take long to compare are left
        out."""


@runtime_checkable
class SharedMachineSite(Protocol):
    """A site on a machine whose memory other programs also use."""

    def memory_problem(self) -> str:
        """The reason why the machine may run out of memory; empty if there is no such risk. Returns at
        once."""


class SitePort(Protocol):
    """A site. Every method may be repeated. `bring_up`, `observe`, `undelivered_events` and `tear_down` may
    take long, and several threads call them at once. The other methods return at once."""

    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the site and the amounts that each node offers."""

    def utilization(self) -> Mapping[str, NodeUtilization]:
        """The use of each node that can be observed now, by node name. Can take a second."""

    def link(self) -> str:
        """The link by which a pod of this site connects to the control node (PodOrder.link)."""

    def pod_home(self, pod_id: str) -> str:
        """The home of a pod that starts at this site (PodOrder.home)."""

    def prepare(self) -> None:
        """Prepare the site for a job that will probably run soon, so that the first `bring_up` takes less
        time. `close` ends everything that this method started."""

    def bring_up(self, orders: Sequence[PodOrder]) -> None:
        """Start pods. A pod whose id was started before is not started again. Raises UnavailableError."""

    def observe(self, pod_ids: Sequence[str]) -> Mapping[str, PodReport]:
        """The reports on these pods, by id. A pod is GONE if it ended or was never started. Before the site
        reports a dead pod as GONE, it ends every remaining process of the pod's jobs."""

    def undelivered_events(self, pod_id: str) -> Sequence[PodEvent]:
        """The events in the journal of a pod that is GONE which may not have reached the control node, in
        order; empty if the journal is lost. They include results for which the pod could not wait until a
        control node was available."""

    def tear_down(self, pod_ids: Sequence[str]) -> None:
        """Stop pods and every process of their jobs, and wait until they have ended. A pod that has already
        ended is ignored."""

    def close(self) -> None:
        """Close the port without stopping the site's pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReports:
    """The reports on pods, by id. For pods that are GONE, `undelivered` has the events in their journals that
    may not have been delivered."""

    reports: Mapping[str, PodReport]
    undelivered: Mapping[str, tuple[PodEvent, ...]] = field(default_factory=dict)
