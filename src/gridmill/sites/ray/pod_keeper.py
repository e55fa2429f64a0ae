"""The actors on Ray's nodes: one actor for each pod, the checks of the node, and the cleanup after a dead
actor.

An actor occupies the resources of its pod in the placement group, and has one end of a pipe whose other end
the pod has. When the actor ends for any reason, the pod ends itself and its jobs. Therefore a pod ends
whenever Ray ends its actor. Before a pod starts, the actor checks whether the machine really has the claimed
resources, because Ray trusts the values that were given to `ray start`.
"""

import fcntl
import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled; nothing public tells clusters apart
from ray.exceptions import AuthenticationError, RpcError

from gridmill.codec import decode, encode
from gridmill.domain.amounts import show_bytes, show_count
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import PodOrder
from gridmill.errors import GridmillError
from gridmill.ports.site import PodStatus
from gridmill.settings import Settings, read_settings
from gridmill.sites.machine import count_gpus, look_at_machine, memory_of_machine
from gridmill.sites.processes import ProcessSite, clear, clear_old
from gridmill.sites.ray.protocol import BridgeResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCapacity:
    """The capacity of the machine, and the memory that is promised to its running pods. `gpus` is None if
    the machine has GPUs of a vendor whose driver Gridmill cannot ask."""

    memory_bytes: int
    claimed_bytes: int = 0
    gpus: int | None = None


def why_unseen(root_mark: Path) -> str:
    """Returns the reason why the storage root cannot be used on this node, or an empty text if the storage
    root can be used. `root_mark` is a file in the folder `.sites` of the storage root."""
    if root_mark.exists():
        return ""
    host, root = socket.gethostname(), root_mark.parent.parent
    return f"the storage root {root} does not exist on host {host}; mount it there under the same path"


def why_unfit(order: PodOrder, machine: NodeCapacity, gpus: str = "") -> str:
    """Returns which resource the machine does not have for this pod, or an empty text if the machine has all
    of them. `gpus` are the GPUs that Ray assigned to the pod, in the form of CUDA_VISIBLE_DEVICES."""
    host = socket.gethostname()
    return _without_memory(host, order.capacity.memory_bytes, machine) or _without_gpu(host, gpus, machine)


def _without_memory(host: str, wanted: int, machine: NodeCapacity) -> str:
    if machine.claimed_bytes + wanted <= machine.memory_bytes:
        return ""
    others = (
        f", {show_bytes(machine.claimed_bytes)} of it reserved for other pods,"
        if machine.claimed_bytes
        else ""
    )
    return (
        f"host {host} has {show_bytes(machine.memory_bytes)} of memory{others} and not the "
        f"{show_bytes(wanted)} "
        "that Ray assigned to a pod; start Ray there with the correct --memory"
    )


def _without_gpu(host: str, given: str, machine: NodeCapacity) -> str:
    """Checks whether the machine has the GPUs whose numbers Ray assigned. A GPU name that is not a number
    belongs to a part of a GPU, and is not checked."""
    has = machine.gpus
    missing = [one for one in given.split(",") if one.isdigit() and has is not None and int(one) >= has]
    if not missing:
        return ""
    return (
        f"host {host} has {show_count(has or 0, 'GPU')} and not GPU number {missing[0]}, which Ray assigned "
        "to a pod; start Ray there with the correct --num-gpus"
    )


GIVE_UP_SHARE = 0.5
"""An actor that lost its cluster ends after this fraction of the site's setting `patience`. Therefore the
pods of a lost node have really ended when the site counts them as ended."""
_ASK_SECONDS = 1.0


def _site(home: str, environment: Mapping[str, str]) -> ProcessSite:
    settings: Settings = read_settings({**environment, "GRIDMILL_HOME": home})
    return ProcessSite(replace(settings, home=Path(home)), lifeline=True)


def _watch_head(head: GcsClient, seconds: float) -> None:
    """Ends this process, and with it the pod, if the head of the cluster could not be reached for this
    number of seconds, or if another cluster answers at its address. The pod must end because the cluster may
    soon run the jobs of the pod on another machine.

    (Ray's agents give up only when they are notified that they are dead.) A head that restarts with its
    stored state is the same cluster.
    """
    last_contact = time.monotonic()
    while time.monotonic() - last_contact < seconds:
        try:
            head.internal_kv_exists(b"session_name", b"session", timeout=_ASK_SECONDS)
            last_contact = time.monotonic()
        except AuthenticationError:
            break
        except RpcError:
            pass
        time.sleep(_ASK_SECONDS)
    os._exit(1)


@ray.remote
class PodActor:
    """The Ray actor of one pod on this node. If the pod cannot run, the actor reports it as GONE with the
    reason."""

    def __init__(
        self, order: bytes, environment: Mapping[str, str], root_mark: str, patience_seconds: float
    ) -> None:
        address = ray.get_runtime_context().gcs_address
        head = GcsClient(address=address, cluster_id=GcsClient(address=address).cluster_id.hex())
        watch = (head, patience_seconds * GIVE_UP_SHARE)
        threading.Thread(target=_watch_head, args=watch, daemon=True).start()
        self._order = decode(order, PodOrder)
        # Ray sets this variable to the GPUs that it assigned to this actor
        given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        os.environ["GRIDMILL_GPUS"] = given
        self._site = _site(self._order.home, environment)
        self._lacks = False
        self._unfit = self._bring_up(Path(root_mark), given)

    def _bring_up(self, root_mark: Path, gpus: str) -> str:
        """Starts the pod, or returns the reason why it cannot start. Only one actor at a time reads the
        claims of other pods and adds its own claim."""
        home = Path(self._order.home)
        try:
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
            with (home / "claims.lock").open("ab") as turn:
                fcntl.flock(turn, fcntl.LOCK_EX)
                clear_old(home / "pods", time.time())
                machine = NodeCapacity(
                    memory_bytes=memory_of_machine(),
                    claimed_bytes=self._site.claimed_bytes(),
                    gpus=count_gpus(),
                )
                unfit = why_unseen(root_mark)
                if not unfit:
                    unfit = why_unfit(self._order, machine, gpus)
                    self._lacks = bool(unfit)
                if not unfit:
                    self._site.bring_up([self._order])
        except (OSError, GridmillError) as error:
            return f"host {socket.gethostname()}: {error}"
        return unfit

    def sight(self) -> tuple[str, str, bool]:
        """Returns this node's report on the pod, and whether the node lacks a claimed resource."""
        if self._unfit:
            return PodStatus.GONE.value, self._unfit, self._lacks
        seen = self._site.observe([self._order.pod_id])[self._order.pod_id]
        return seen.status.value, seen.message, False

    def end(self) -> None:
        """Ends the pod and its jobs. No request about the pod follows, so all files of the pod are
        removed."""
        if not self._unfit:
            self._site.tear_down([self._order.pod_id])
            clear(Path(self._order.home) / "pods" / self._order.pod_id)


@ray.remote
def look(home: str, environment: Mapping[str, str], pod_id: str) -> tuple[str, str]:
    """Returns this node's report on a pod without an actor. Before the report, the function ends the
    processes of the pod that still run."""
    site = _site(home, environment)
    site.tear_down([pod_id])
    seen = site.observe([pod_id])[pod_id]
    return seen.status.value, "its keeper ended" if seen.status == "gone" else seen.message


@ray.remote
def look_around(home: str) -> bytes:
    """Returns the measured load of this node, encoded as bytes. The function also removes the files of pods
    that ended long ago."""
    clear_old(Path(home) / "pods", time.time())
    return encode(look_at_machine())


@ray.remote
def read_last_words(home: str, pod_id: str) -> bytes:
    """Returns the events in the pod's journal."""
    return encode(BridgeResponse(events=tuple(_site(home, {}).undelivered_events(pod_id))))
