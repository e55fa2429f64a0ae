"""The interface to a site, which starts pods, stops pods and reports the status of pods. A site knows
nothing about jobs.

`PodReports` is the report of a farm on the pods of one home.
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
from gridmill.domain.pod_protocol import AttemptOrder, PodEvent, PodOrder
from gridmill.domain.resource import MeasuredUse
from gridmill.domain.route import Route
from gridmill.domain.serving import Upstream
from gridmill.domain.site import ConfiguredNodes, Node, NodeUtilization
from gridmill.domain.states import Cause


class PodStatus(StrEnum):
    """The status of a pod, as the site of the pod reports it."""

    QUEUED = "queued"
    """The site has accepted the pod, and the pod waits in the queue."""
    RUNNING = "running"
    GONE = "gone"
    """The pod has ended, and no process of its jobs remains."""
    UNKNOWN = "unknown"
    """The site cannot observe the pod now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReport:
    """The status of a pod and the other facts that the site reports about it.

    `began` and `ends` are the Unix times in seconds at which the site started the pod and will stop it, if
    the site has such times. `notice` is the provider's notice that it will end the spot machine of a pod that
    continues until then. All other fields are set only for a pod whose status is GONE. `cause` is the reason
    why the pod's attempts ended, and `use` is the resource use that the site measured. `hopeless` is true if
    another pod of the same kind would fail in the same way. `unfit` is true if the node of the pod lacks a
    property that the node had reported, such as free memory; the pod may start on another node. `left` is
    true if the node of the pod has left the site, so that the end of the pod shows no fault of the pod
    itself. `taken` is true if the provider or its user has ended the rented machine of the pod; the attempts
    on it are then not counted.
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
    taken: bool = False
    notice: str = ""


class PodListeners(Protocol):
    """The interface to the addresses at which the control node listens for pods on other machines. A site
    gets the listeners when the control node opens the site."""

    def tls(self, host: str, port: int = 0) -> str:
        """Listen at this address of this machine, unless a listener already exists for it. Returns the link
        that is used as PodOrder.link. With port 0, the method chooses a free port, which stays the same
        after a restart. Raises UnavailableError."""

    def spool(self, folder: Path) -> str:
        """Accept connections through files in a folder that pods can open under the same path. Returns the
        link. Raises StorageError."""


@runtime_checkable
class ExternalCleanup(Protocol):
    """A site that stores files outside the farm and the home, such as objects in buckets."""

    def clean_up_previous(self) -> None:
        """Delete, in the background, the files outside the farm and the home that earlier instances of this
        class left. The instance on which this method is called now owns the site. Returns at once."""

    def delete_all(self) -> None:
        """Delete all files of the site outside the farm and the home, because the site was removed. Can take
        long. If a file cannot be deleted now, the file stays and the failure is logged."""


@runtime_checkable
class QueueSite(Protocol):
    """A site that puts its requests into a queue that other users of the site also use."""

    def configured_nodes(self) -> ConfiguredNodes:
        """The nodes that are configured at the site, read at the same moment as `nodes`. Raises
        UnavailableError."""

    def request(self, amounts: Amounts, pods: int, settings: Mapping[str, str]) -> str:
        """The command line with which Gridmill would request `pods` pods of this size from the site, with
        the settings of a resource. Raises InputError."""


@runtime_checkable
class TransferSite(Protocol):
    """A site with its own storage, so that Gridmill transfers data to the site and back."""

    def transfer_progress(self, attempt_id: str) -> Mapping[str, Any]:
        """The progress of the transfer of an attempt's data, as the body of a progress event. The body of
        the progress event has `done` of `total`, `unit` and `note`; it is empty if there is no transfer.
        Returns at once."""

    def farm_status(self) -> FarmStatus:
        """The last status that the farm reported, which is at most some seconds old. Raises
        UnavailableError."""

    def transfer_problems(self) -> Mapping[str, str]:
        """The reasons why data of attempts cannot be transferred now or is lost, by attempt id. Returns at
        once."""

    def missing_sizes(self, versions: Sequence[Artifact]) -> Mapping[str, int]:
        """The number of bytes of each version that the site does not have yet, by version id. Versions are
        left out if the check would take long. Raises UnavailableError."""

    def probe(self) -> Route:
        """The transfer rate to the site, measured by a few small transfers. Raises UnavailableError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextAttempt:
    """The attempt that will probably start next on a pod. The attempt does not exist yet: its `order` has no
    token."""

    pod_id: str
    order: AttemptOrder


@runtime_checkable
class EarlyTransferSite(Protocol):
    """A TransferSite that transfers the inputs of a job while another job runs."""

    def transfer_early(self, attempts: Sequence[NextAttempt]) -> None:
        """Transfer the inputs of these attempts in the background, if the link and the disks of the site
        have room. End the early transfers for all other attempts, and release their data at the site.
        Returns at once."""

    def early_transfers(self) -> Mapping[str, str]:
        """A text about the early transfer for each pod, by pod id, such as `transferring inputs of job
        train: 40 %`. Returns at once."""


@runtime_checkable
class ComparingSite(Protocol):
    """A TransferSite that can list the chunks of the versions at home."""

    def changed_shares(self, pairs: Sequence[tuple[Artifact, Artifact]]) -> Mapping[str, float]:
        """The fraction (0 to 1) of a version's bytes that the previous version does not contain, by the id
        of the version. Each pair is a version and the previous version of the same job. Pairs are left out
        if the comparison would take long."""


@runtime_checkable
class ServingSite(Protocol):
    """A site at which services can run although it is not this machine. A router on this machine connects to
    their replicas."""

    def upstream(self, pod_id: str, attempt_id: str, address: str) -> Upstream | None:
        """How a router connects to the replicas that the attempt runs on the pod; None if this is not known
        yet. `address` is the address that the process of the service has reported, HOST:PORT, or empty.
        Returns at once."""


@runtime_checkable
class SharedMachineSite(Protocol):
    """A site on a machine whose memory is also used by other programs."""

    def memory_problem(self) -> str:
        """The reason why the machine may run out of memory; empty if there is no such risk. Returns at
        once."""


class SitePort(Protocol):
    """The protocol of a site. Every method may be repeated with the same arguments. The methods `bring_up`,
    `observe`, `undelivered_events` and `tear_down` may take long, and several threads may call them at the
    same time. All other methods of a site return immediately."""

    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the site, with the CPUs, memory and GPUs that each node offers."""

    def utilization(self) -> Mapping[str, NodeUtilization]:
        """The resource use of each node that can be observed now, by node name. Can take a second."""

    def link(self) -> str:
        """The link by which a pod of this site connects to the control node (PodOrder.link)."""

    def pod_home(self, pod_id: str) -> str:
        """The home folder of a pod that starts at this site (PodOrder.home)."""

    def prepare(self) -> None:
        """Prepare the site for a job that will probably run soon, so that the first `bring_up` takes less
        time. `close` ends everything that `prepare` started."""

    def bring_up(self, orders: Sequence[PodOrder]) -> None:
        """Start pods. A pod whose id was started before is not started again. Raises
        UnavailableError."""

    def observe(self, pod_ids: Sequence[str]) -> Mapping[str, PodReport]:
        """Return the reports on these pods, by pod id. A pod has the status GONE if it has ended or was
        never started. Before the site reports that a dead pod is GONE, the site ends all remaining processes
        of the pod's jobs."""

    def undelivered_events(self, pod_id: str) -> Sequence[PodEvent]:
        """Return the events in the journal of a GONE pod that may not have reached the control node, in
        order; empty if the journal is lost. The events include results that the pod could not deliver
        because no control node was available."""

    def tear_down(self, pod_ids: Sequence[str]) -> None:
        """Stop pods and all processes of their jobs, and wait until these processes have ended. The method
        ignores pods that have already ended."""

    def close(self) -> None:
        """Close the interface to the site without stopping the pods of the site."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReports:
    """The reports of a farm on pods, by pod id. For each GONE pod, `undelivered` has the events of its
    journal that may not have reached the control node."""

    reports: Mapping[str, PodReport]
    undelivered: Mapping[str, tuple[PodEvent, ...]] = field(default_factory=dict)
