"""`python -m gridmill.sites.ray.bridge` is a driver of the Ray cluster that answers requests of the site,
one per line.

Before a pod starts, its node is recorded, so that the same pod never starts twice. The bridge gives names to
Ray's nodes and converts their capacity. The bridge also computes the resources that a pod claims, and
shortens Ray's errors to one line.
"""

import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from gridmill.codec import decode, encode
from gridmill.domain.amounts import Amounts
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import PodOrder
from gridmill.domain.site import Node, NodeUtilization
from gridmill.errors import GridmillError, UnavailableError
from gridmill.ports.site import PodReport, PodStatus
from gridmill.sites.ray.pod_keeper import PodActor, look, look_around, read_last_words
from gridmill.sites.ray.protocol import BridgeHello, BridgeRequest, BridgeResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementNote:
    """The record of a pod: the id of its Ray node, the first pod of its placement group, the Unix time,
    whether the pod has ended permanently, and the reason if the pod never started. `left` is true if the
    node of the pod left the cluster."""

    node: str
    group: str
    at: float
    over: bool = False
    why: str = ""
    left: bool = False

    def ended(self) -> "PlacementNote":
        """Returns a copy of this record for the time after the pod has ended."""
        return replace(self, over=True)


class PlacementNotes:
    """Stores the records of pods in the control node's home, one file for each pod id."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, pod_id: str) -> PlacementNote | None:
        """Returns the record of the pod, or None for a pod that this home never started."""
        try:
            return decode((self._folder / pod_id).read_bytes(), PlacementNote)
        except FileNotFoundError:
            return None

    def write(self, pod_id: str, note: PlacementNote) -> None:
        """Writes the record. If writing fails, an older record stays unchanged."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self._folder / f".{pod_id}"
        draft.write_bytes(encode(note))
        draft.rename(self._folder / pod_id)

    def remove_ended(self, before: float) -> None:
        """Removes records of pods that ended before this time, because these records are not needed any
        more."""
        for pod_id, note in tuple(self._all()):
            if note.over and note.at < before:
                (self._folder / pod_id).unlink(missing_ok=True)

    def active_pods(self) -> tuple[str, ...]:
        """Returns the recorded pods that have not ended."""
        return tuple(name for name, note in self._all() if not note.over)

    def same_group(self, note: PlacementNote) -> tuple[PlacementNote, ...]:
        """Returns the records of all pods in the same placement group, including this record."""
        return tuple(other for _, other in self._all() if other.group == note.group)

    def _all(self) -> Iterator[tuple[str, PlacementNote]]:
        for path in sorted(self._folder.glob("[!.]*")):
            note = self.read(path.name)
            if note is not None:
                yield path.name, note


def short_of(error: BaseException) -> str:
    """Returns the message of the error on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:500] or type(error).__name__


def last_of(error: BaseException) -> str:
    """Returns the last line of a traceback that Ray reports, which is the error itself."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:500] if lines else type(error).__name__


def hint_of(error: BaseException) -> str:
    """Returns the hint for the user about an error of Ray."""
    text = str(error)
    if "ersion mismatch" in text:
        return "Install the same version of Python (including the patch level) and of Ray on every machine."
    if "token" in text.lower() or "auth" in text.lower():
        return (
            "Write the cluster's token to a file and set its path: `gridmill configure site NAME --set "
            "token_file=FILE`."
        )
    return (
        "Check that the cluster runs and that this machine is one of its nodes. If it is not a node, use "
        "the address ray://HOST:10001."
    )


# small, because each node has 1 of Ray's own resource `node:ADDRESS`, and all its pods claim a part
_PIN = 0.001


def all_nodes() -> list[dict[str, Any]]:
    """Returns all nodes that Ray lists, including dead nodes."""
    listed: Any = ray.nodes
    nodes: list[dict[str, Any]] = listed()
    return nodes


def name_of(node: dict[str, Any], hosts: Sequence[str]) -> str:
    """Returns the host name of the node. The name contains the address if several of `hosts` have the same
    name."""
    host = str(node["NodeManagerHostname"])
    return host if hosts.count(host) == 1 else f"{host}-{node['NodeManagerAddress']}"


def capacity_of(node: dict[str, Any]) -> Amounts:
    """Returns the resources that `ray start` declared for this node."""
    total = node["Resources"]
    return Amounts(
        cpus=float(total.get("CPU", 0.0)),
        memory_bytes=int(total.get("memory", 0)),
        gpus=int(total.get("GPU", 0)),
    )


def bundle_of(order: PodOrder, node: dict[str, Any] | None) -> dict[str, float]:
    """Returns the resources that a pod claims on a node. If the node is known, the claimed resources include
    the special resource that exists only on this node."""
    wanted = {
        "CPU": order.capacity.cpus,
        "memory": float(order.capacity.memory_bytes),
        "GPU": float(order.capacity.gpus),
    }
    pin = {f"node:{node['NodeManagerAddress']}": _PIN} if node else {}
    return {name: amount for name, amount in {**wanted, **pin}.items() if amount}


NAMESPACE = "gridmill"
_POLL_SECONDS = 2.0
_TOOK_LEAVE = 1  # the value of NodeDeathInfo.EXPECTED_TERMINATION, which means that the node left on purpose
_LEAVE_SECONDS = 8.0
_END_SECONDS = 10.0
"""The number of seconds that supervising actors have to end their pods.

The sum of this time and LEFT_SECONDS is below the site's timeout for an answer. A bridge that is killed
after a timeout would lose the record of how long a node has been lost.
"""
LEFT_SECONDS = 6.0
"""The number of seconds in which nodes must report on pods without actors. All nodes report in parallel."""
_NOTES_KEPT_SECONDS = 7 * 86400.0


class Bridge:
    """Answers the site's requests about its pods in the Ray cluster."""

    def __init__(self, opening: BridgeHello) -> None:
        """Connects to the Ray cluster. Raises RayError, RuntimeError, ConnectionError or ValueError if the
        cluster refuses the connection."""
        self._opening = opening
        self._notes = PlacementNotes(Path(opening.notes))
        self._futures: dict[str, Any] = {}
        """The pending request to the actor of each pod."""
        self._left: dict[str, Any] = {}
        """The pending request about remains of each pod that has no actor."""
        self._lost_since: dict[str, float] = {}
        self._groups: dict[str, str] | None = None
        self._notes.remove_ended(time.time() - _NOTES_KEPT_SECONDS)
        ray.init(
            address=opening.address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR
        )

    def answer(self, bridge_request: BridgeRequest) -> BridgeResponse:
        """Answers one request."""
        self._groups = None
        match bridge_request.operation:
            case "nodes":
                return BridgeResponse(nodes=self._nodes())
            case "looks":
                return BridgeResponse(utilization=self._looks())
            case "bring_up":
                self._bring_up(bridge_request.orders)
                return BridgeResponse()
            case "observe":
                return BridgeResponse(pod_reports=self._observe(bridge_request.pods))
            case "undelivered_events":
                return self._last_words(bridge_request.pods[0])
            case _:
                self._tear_down(bridge_request.pods)
                return BridgeResponse()

    # --- nodes

    def _living(self) -> dict[str, dict[str, Any]]:
        """Returns the nodes of Ray that are alive, by their names in Gridmill."""
        living = [node for node in all_nodes() if node["Alive"]]
        hosts = [node["NodeManagerHostname"] for node in living]
        return {name_of(node, hosts): node for node in sorted(living, key=lambda node: str(node["NodeID"]))}

    def _nodes(self) -> tuple[Node, ...]:
        return tuple(Node(name=name, capacity=capacity_of(node)) for name, node in self._living().items())

    def _looks(self) -> dict[str, NodeUtilization]:
        refs = {
            name: look_around.options(
                num_cpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(str(node["NodeID"]), soft=False),
            ).remote(self._opening.home)
            for name, node in self._living().items()
        }
        ready = _ended(list(refs.values()), _POLL_SECONDS * 4)
        return {name: decode(ray.get(ref), NodeUtilization) for name, ref in refs.items() if ref in ready}

    # --- pods

    def _name(self, pod_or_deployment: str) -> str:
        return f"{self._opening.mark}.{pod_or_deployment}"

    def _bring_up(self, orders: Sequence[PodOrder]) -> None:
        """Places the pods of each deployment in one placement group of Ray, so that either all of them or
        none are placed."""
        orders_by_pod = {order.pod_id: order for order in orders}
        fresh = [order for order in orders_by_pod.values() if self._notes.read(order.pod_id) is None]
        nodes = self._living()
        for deployment in dict.fromkeys(order.deployment_id for order in fresh):
            pods = [order for order in fresh if order.deployment_id == deployment]
            away = {order.node for order in pods if order.node and order.node not in nodes}
            if away:
                self._refuse(pods, f"node {min(away)} has left the cluster", left=True)
            else:
                self._place(pods, nodes)

    def _refuse(self, orders: Sequence[PodOrder], why: str, *, left: bool = False) -> None:
        for order in orders:
            note = PlacementNote(node="", group=order.pod_id, at=time.time(), over=True, why=why, left=left)
            self._notes.write(order.pod_id, note)

    def _place(self, orders: Sequence[PodOrder], nodes: dict[str, dict[str, Any]]) -> None:
        name = orders[0].pod_id
        for order in orders:
            node = nodes.get(order.node)
            node_id = str(node["NodeID"]) if node else ""
            self._notes.write(order.pod_id, PlacementNote(node=node_id, group=name, at=time.time()))
        group = placement_group(
            [bundle_of(order, nodes.get(order.node)) for order in orders],
            strategy="PACK",
            name=self._name(name),
            lifetime="detached",
        )
        opening = self._opening
        node_arguments = (dict(opening.environment), opening.root_mark, opening.patience_seconds)
        for index, order in enumerate(orders):
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
            keeper: Any = PodActor
            keeper.options(
                name=self._name(order.pod_id),
                namespace=NAMESPACE,
                lifetime="detached",
                num_cpus=order.capacity.cpus,
                memory=order.capacity.memory_bytes,
                num_gpus=order.capacity.gpus,
                max_concurrency=4,
                scheduling_strategy=strategy,
            ).remote(encode(order), *node_arguments)

    def _keeper(self, pod_id: str) -> Any:  # noqa: ANN401  an actor's handle
        try:
            return ray.get_actor(self._name(pod_id), namespace=NAMESPACE)
        except ValueError:
            return None

    def _observe(self, pod_ids: Sequence[str]) -> dict[str, PodReport]:
        keepers = {pod_id: keeper for pod_id in pod_ids if (keeper := self._keeper(pod_id)) is not None}
        for pod_id, keeper in keepers.items():
            if pod_id not in self._futures:
                self._futures[pod_id] = keeper.sight.remote()
        pending = [self._futures[pod_id] for pod_id in keepers]
        ready = (
            set(ray.wait(pending, num_returns=len(pending), timeout=_POLL_SECONDS)[0]) if pending else set()
        )
        answers = {
            pod_id: self._pod_report(pod_id) if self._futures[pod_id] in ready else self._waiting(pod_id)
            for pod_id in keepers
        }
        reports = {pod_id: status for pod_id, status in answers.items() if status is not None}
        return reports | self._without_keepers([pod_id for pod_id in pod_ids if pod_id not in reports])

    def _waiting(self, pod_id: str) -> PodReport:
        """Returns the report on a pod whose actor has not answered. There are three possible reasons: the
        pod waits for its placement, the pod is starting, or the connection is slow. If a node left the
        cluster before a placement group was placed, the group will never be placed."""
        note = self._notes.read(pod_id)
        if note is None or self._group(pod_id) != "PENDING":
            return PodReport(status=PodStatus.RUNNING, message="the node of the pod has not answered yet")
        living = {str(node["NodeID"]) for node in self._living().values()}
        if all(other.node in living for other in self._notes.same_group(note) if other.node):
            return PodReport(
                status=PodStatus.QUEUED,
                message="the pod waits for Ray: the nodes of the cluster have no free resources now",
            )
        self._futures.pop(pod_id, None)
        self._release_group(pod_id)
        why = "the node left the cluster before the pod was placed"
        return PodReport(status=PodStatus.GONE, message=why, left=True)

    def _pod_report(self, pod_id: str) -> PodReport | None:
        """Returns the report of the pod's actor, or None if the actor is dead."""
        unfit = False
        try:
            status, message, unfit = ray.get(self._futures.pop(pod_id))
        except RayActorError as error:
            if "creation task" not in str(error):
                return None
            status, message = (
                PodStatus.GONE,
                f"the process that keeps the pod could not start: {last_of(error)}",
            )
        except RayError:
            return None
        self._lost_since.pop(pod_id, None)
        if status == PodStatus.GONE:
            self._release_group(pod_id)
        return PodReport(status=PodStatus(status), message=message, unfit=unfit)

    def _release_group(self, pod_id: str) -> None:
        """Releases the placement of a pod that ended by itself, so that Ray can use its resources."""
        keeper = self._keeper(pod_id)
        if keeper is not None:
            ray.kill(keeper)
        self._over(pod_id)

    def _without_keepers(self, pod_ids: Sequence[str]) -> dict[str, PodReport]:
        """Returns the reports on pods whose actors are dead or were never created. The nodes of these pods
        report in parallel, so that a node that hangs does not delay the other nodes."""
        reports: dict[str, PodReport] = {}
        notes: dict[str, PlacementNote] = {}
        living = {str(node["NodeID"]) for node in self._living().values()} if pod_ids else set()
        for pod_id in pod_ids:
            self._futures.pop(pod_id, None)
            note = self._notes.read(pod_id)
            if note is not None and not note.over and note.node in living:
                notes[pod_id] = note
            else:
                reports[pod_id] = self._unlooked(pod_id, note)
        for pod_id, note in notes.items():
            if pod_id not in self._left:
                self._left[pod_id] = self._ask_what_is_left(pod_id, note)
        ready = self._ready([self._left[pod_id] for pod_id in notes], LEFT_SECONDS)
        for pod_id in notes:
            reports[pod_id] = self._looked_at(pod_id, self._left[pod_id] in ready)
        return reports

    def _unlooked(self, pod_id: str, note: PlacementNote | None) -> PodReport:
        """Returns the report on a pod about which no node can report. If the node of the pod is lost, the
        pod may still run there without a connection until its actor ends itself. Therefore the pod is
        reported as ended only after a waiting time."""
        self._left.pop(pod_id, None)
        if note is None:
            return PodReport(status=PodStatus.GONE, message="it was never started")
        if note.over:
            return PodReport(status=PodStatus.GONE, message=note.why or "it has ended", left=note.left)
        return self._lost(pod_id)

    def _ask_what_is_left(self, pod_id: str, note: PlacementNote) -> Any:  # noqa: ANN401  a reference
        where = NodeAffinitySchedulingStrategy(note.node, soft=False)
        opening = self._opening
        return look.options(num_cpus=0, scheduling_strategy=where).remote(
            opening.home, dict(opening.environment), pod_id
        )

    def _ready(self, references: list[Any], seconds: float) -> list[Any]:
        """Returns the results (Ray object references) that are ready within this number of seconds."""
        return _ended(references, seconds)

    def _read(self, reference: Any) -> Any:  # noqa: ANN401  what the node told
        return ray.get(reference)

    def _looked_at(self, pod_id: str, ready: bool) -> PodReport:
        unknown = PodReport(status=PodStatus.UNKNOWN, message="the node of the pod does not answer")
        if not ready:
            # unknown now, because the request stays open and is checked again by the next report
            return unknown
        try:
            status, message = self._read(self._left.pop(pod_id))
        except RayError:
            return unknown
        if status == PodStatus.GONE:
            self._over(pod_id)
        return PodReport(status=PodStatus(status), message=message)

    def _lost(self, pod_id: str) -> PodReport:
        since = self._lost_since.setdefault(pod_id, time.monotonic())
        if time.monotonic() - since < self._patience_with(pod_id):
            return PodReport(status=PodStatus.UNKNOWN, message="the node of the pod is lost")
        self._over(pod_id)
        why = "the node of the pod is lost: it was switched off, disconnected or removed"
        return PodReport(status=PodStatus.GONE, message=why, left=True)

    def _patience_with(self, pod_id: str) -> float:
        """Returns for how many seconds the bridge waits for the lost node of a pod. If the node left the
        cluster in an orderly way, the wait is short, because the node ended its pods before it left."""
        note = self._notes.read(pod_id)
        gone = [node for node in all_nodes() if note is not None and str(node["NodeID"]) == note.node]
        left = any(int(node.get("DeathReason") or 0) == _TOOK_LEAVE for node in gone)
        return min(_LEAVE_SECONDS, self._opening.patience_seconds) if left else self._opening.patience_seconds

    def _over(self, pod_id: str) -> None:
        """Records that a pod has ended permanently, or that it will never start. After the last pod of its
        placement group, the placement group is removed too."""
        self._lost_since.pop(pod_id, None)
        note = self._notes.read(pod_id) or PlacementNote(node="", group=pod_id, at=time.time())
        self._notes.write(pod_id, note.ended())
        if self._group(pod_id) and all(other.over for other in self._notes.same_group(note)):
            remove_placement_group(ray.util.get_placement_group(self._name(note.group)))
            self._groups = None

    def _last_words(self, pod_id: str) -> BridgeResponse:
        note = self._notes.read(pod_id)
        living = {str(node["NodeID"]) for node in self._living().values()}
        if note is None or note.node not in living:
            return BridgeResponse()
        where = NodeAffinitySchedulingStrategy(note.node, soft=False)
        ref = read_last_words.options(num_cpus=0, scheduling_strategy=where).remote(
            self._opening.home, pod_id
        )
        try:
            return decode(ray.get(ref, timeout=_POLL_SECONDS * 4), BridgeResponse)
        except (RayError, TimeoutError):
            return BridgeResponse()

    def _tear_down(self, pod_ids: Sequence[str]) -> None:
        """Ends the pods through their actors, and then ends the actors. Raises UnavailableError while a lost
        node may still run some of the pods."""
        placed = self._placed()
        keepers = {pod_id: keeper for pod_id in pod_ids if (keeper := self._keeper(pod_id)) is not None}
        ends = {pod_id: keeper.end.remote() for pod_id, keeper in keepers.items() if pod_id in placed}
        _ended(list(ends.values()), _END_SECONDS)
        self._groups = None  # read again, because a group may have been placed during the wait
        for keeper in keepers.values():
            ray.kill(keeper)
        unsure = [pod_id for pod_id in pod_ids if not self._is_over(pod_id, placed, ends.get(pod_id))]
        reports = self._without_keepers(unsure)
        left = [pod_id for pod_id in unsure if reports[pod_id].status != PodStatus.GONE]
        if left:
            raise UnavailableError(f"{left[0]} may still run on a node that does not answer")

    def _is_over(self, pod_id: str, placed: frozenset[str], ended: Any) -> bool:  # noqa: ANN401  a reference
        """Returns whether the pod has certainly ended. The function does not contact the node of the pod."""
        note = self._notes.read(pod_id)
        never = note is None or (pod_id not in placed and not note.over and self._group(pod_id) == "PENDING")
        over = never or (ended is not None and _succeeded(ended))
        if over:
            self._over(pod_id)
        return over

    def _placed(self) -> frozenset[str]:
        """Returns the recorded pods whose placement group exists."""
        return frozenset(pod_id for pod_id in self._notes.active_pods() if self._group(pod_id) == "CREATED")

    def _group(self, pod_id: str) -> str:
        """Returns the state of a pod's placement group, or an empty text if there is no group."""
        note = self._notes.read(pod_id)
        return self._standing().get(self._name(note.group), "") if note is not None else ""

    def _standing(self) -> dict[str, str]:
        """Returns the states of placement groups by their names. The states are read once for each
        request."""
        if self._groups is None:
            groups: list[dict[str, Any]] = list(ray.util.placement_group_table().values())
            self._groups = {one["name"]: str(one["state"]) for one in groups if one["state"] != "REMOVED"}
        return self._groups


def _ended(references: list[Any], seconds: float) -> list[Any]:
    """Returns the results (Ray object references) that are ready within this number of seconds."""
    if not references:
        return []
    ready: list[Any] = ray.wait(references, num_returns=len(references), timeout=seconds)[0]
    return ready


def _succeeded(ended: Any) -> bool:  # noqa: ANN401  an object reference
    if ended is None:
        return True
    try:
        ray.get(ended, timeout=0)
    except (RayError, TimeoutError):
        return False
    return True


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    while line := stream.readline():
        yield line


def main() -> int:
    """Answers requests until standard input ends. Standard output is only for the answers to the site, so
    the output of Ray is redirected to the log."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    lines = _lines(sys.stdin.buffer)
    try:
        bridge = Bridge(decode(next(lines), BridgeHello))
    except (RayError, RuntimeError, ConnectionError, ValueError, OSError) as error:
        _write_response(
            out,
            BridgeResponse(
                error=f"the Ray cluster refuses the connection: {short_of(error)}", hint=hint_of(error)
            ),
        )
        return 1
    _write_response(out, BridgeResponse())
    for line in lines:
        try:
            _write_response(out, bridge.answer(decode(line, BridgeRequest)))
        except GridmillError as error:
            _write_response(out, BridgeResponse(error=error.message, hint=error.hint))
        except (RayError, RuntimeError, ConnectionError, ValueError) as error:
            _write_response(out, BridgeResponse(error=f"Ray reports: {short_of(error)}"))
            return 1  # ends, because the site starts a new bridge for the next request
    return 0


def _write_response(out: BinaryIO, answer: BridgeResponse) -> None:
    out.write(encode(answer) + b"\n")
    out.flush()


if __name__ == "__main__":
    raise SystemExit(main())
