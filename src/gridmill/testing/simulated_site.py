"""A simulated site: its pods, links and jobs follow the protocol on a fake clock, with random but repeatable
faults.

`Behaviour` declares the behaviour of a simulated job. The site records its pods, and the attempts that the
pods ran.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from random import Random
from typing import Any

from gridmill.codec import to_builtins
from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.artifact import ArtifactKind, Output
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import JobKind
from gridmill.domain.pod_protocol import (
    PROTOCOL,
    Ack,
    AttemptOrder,
    AttemptOutcome,
    Events,
    EventType,
    FromPod,
    Goodbye,
    Hello,
    PodEvent,
    PodOrder,
    ServiceUpdate,
    Start,
    Stop,
    ToPod,
    Welcome,
)
from gridmill.domain.resource import MeasuredUse
from gridmill.domain.service_features import ViewOrders
from gridmill.domain.serving import (
    LoadedVersion,
    ReplicaReport,
    ReplicaState,
    ServiceOrder,
    ServiceReport,
    ServiceState,
    Upstream,
)
from gridmill.domain.site import Node, NodeUtilization
from gridmill.domain.states import LIVE_ATTEMPTS, AttemptState, Cause
from gridmill.domain.usage import ParallelTiming
from gridmill.errors import UnavailableError
from gridmill.ports.link import ReceivedMessage
from gridmill.ports.site import PodReport, PodStatus
from gridmill.testing.clock import FakeClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """The behaviour of a simulated job: how long it runs, how it ends, how many log lines it writes, and
    what its workers report. `outputs` are the results of the job. None means one output of the job's
    kind."""

    seconds: float = 1.0
    outcome: AttemptState = AttemptState.SUCCEEDED
    cause: Cause | None = None
    lines: int = 1
    peak_memory_bytes: int = 2**20
    parallel: ParallelTiming | None = None
    outputs: tuple[Output, ...] | None = None


def pick(random: Random, order: AttemptOrder, *, failing: float = 0.0, killed: float = 0.0) -> Behaviour:
    """Returns a random behaviour: some jobs fail, some run out of memory, and most succeed."""
    draw, seconds, lines = random.random(), random.uniform(0.1, 20.0), random.randrange(4)
    if draw < failing:
        return Behaviour(seconds=seconds, lines=lines, outcome=AttemptState.FAILED, cause=Cause.EXIT)
    if draw < failing + killed:
        return Behaviour(
            seconds=seconds,
            lines=lines,
            outcome=AttemptState.FAILED,
            cause=Cause.MEMORY,
            peak_memory_bytes=order.given.memory_bytes,
        )
    return Behaviour(seconds=seconds, lines=lines, peak_memory_bytes=order.given.memory_bytes // 2)


@dataclass(slots=True, kw_only=True)
class Execution:
    """The record that the simulated site makes of an attempt when a pod runs the attempt. Tests compare the
    records of the grid with these records."""

    order: AttemptOrder
    pod_id: str
    began: float
    ends: float
    behaviour: Behaviour
    state: AttemptState = AttemptState.RUNNING
    ended: float | None = None


@dataclass(slots=True, kw_only=True)
class SimulatedPod:
    """A simulated pod that writes a journal, numbers its events, and acknowledges and refuses messages like
    a real pod."""

    order: PodOrder
    channel: int | None = None
    welcomed: bool = False
    journal: list[PodEvent] = field(default_factory=list)
    numbered: int = 0
    sent: int = 0
    seen: dict[str, AttemptState] = field(default_factory=dict)
    running: dict[str, Execution] = field(default_factory=dict)
    mail: list[ToPod] = field(default_factory=list)
    connect_at: float = 0.0
    frozen_until: float = 0.0
    ending: bool = False

    def journal_event(
        self, order: AttemptOrder, time: float, kind: EventType, body: Mapping[str, Any]
    ) -> None:
        """Append an event."""
        self.numbered += 1
        self.journal.append(
            PodEvent(
                number=self.numbered,
                attempt_id=order.attempt_id,
                token=order.token,
                time=time,
                type=kind,
                body=body,
            )
        )

    def hello(self) -> Hello:
        """Returns the Hello message with the running attempts, and with the ended attempts that are not
        acknowledged."""
        unacknowledged = {event.attempt_id for event in self.journal}
        known = {
            name: state
            for name, state in self.seen.items()
            if state in LIVE_ATTEMPTS or name in unacknowledged
        }
        return Hello(
            pod_id=self.order.pod_id,
            deployment_id=self.order.deployment_id,
            secret=self.order.secret,
            protocol=PROTOCOL,
            version="simulated",
            attempts=known,
        )


_LACKS = PodReport(status=PodStatus.GONE, message="its node has no GPU", unfit=True)
_HAS_LEFT = PodReport(status=PodStatus.GONE, message="its node has left", left=True)


class SimulatedWorld:
    """Implements SitePort and LinkServer for a control node that is tested.

    `behave` returns the behaviour of each attempt. `step` executes all events up to the present time of the
    clock, and `next_event` returns the time of the next event. Several methods of this class inject faults.
    `orders` has the newest order of each attempt of a service, and `views` has the newest content of its
    views. A service whose version is in `broken` does not become ready. `dial_seconds` is the number of
    seconds that a new pod needs to connect. No pod starts on the nodes in `unfit`, `lacking` and `left`. For
    nodes in `lacking` and `left`, the site reports the reason.
    """

    def __init__(
        self, clock: FakeClock, behave: Callable[[AttemptOrder], Behaviour], *, nodes: tuple[Node, ...] = ()
    ) -> None:
        self.clock = clock
        self._behave = behave
        self._nodes = nodes or (Node(name="sim", capacity=Amounts(cpus=8, memory_bytes=32 * 2**30)),)
        self.pods: dict[str, SimulatedPod] = {}
        self.ever: set[str] = set()
        self.executions: list[Execution] = []
        self.words: dict[str, tuple[PodEvent, ...]] = {}
        self._inbox: list[ReceivedMessage] = []
        self._channels: dict[int, str] = {}
        self._last_channel = 0
        self._away_until = 0.0
        self._doubt_until = 0.0
        self.unfit: set[str] = set()
        self.lacking: set[str] = set()
        self.left: set[str] = set()
        self._refused: dict[str, PodReport] = {}
        self.dial_seconds = 0.1
        self.orders: dict[str, ServiceOrder] = {}
        self.views: dict[str, ViewOrders] = {}
        self.given: dict[str, Amounts] = {}
        """The CPUs and the memory of attempts of services by the last update."""
        self.broken: set[str] = set()
        self.gpu_needs: dict[str, int] = {}
        """The measured GPU memory of one replica in bytes, by the label of its version."""
        self.gpu_size_bytes = 24 * GIB
        self.taken_ports: set[int] = set()

    def nodes(self) -> tuple[Node, ...]:
        """Returns the nodes that the test has set."""
        return self._nodes

    def utilization(self) -> Mapping[str, NodeUtilization]:
        """No measurements."""
        return {}

    def link(self) -> str:
        """Returns an empty address, because the pods are simulated."""
        return "simulated:"

    def pod_home(self, pod_id: str) -> str:
        """Returns an empty path, because the pods are simulated."""
        return f"/simulated/{pod_id}"

    def prepare(self) -> None:
        """Does nothing, because simulated pods need no preparation."""

    def bring_up(self, orders: Sequence[PodOrder]) -> None:
        """Starts each of these pods that was never started before."""
        self._check_available()
        for order in orders:
            if order.pod_id not in self.ever:
                self.ever.add(order.pod_id)
                if order.node in self.lacking:
                    self._refused[order.pod_id] = _LACKS
                if order.node in self.left:
                    self._refused[order.pod_id] = _HAS_LEFT
                if order.node in self.unfit | self.lacking | self.left:
                    continue
                connect_at = self.clock.monotonic() + self.dial_seconds
                self.pods[order.pod_id] = SimulatedPod(order=order, connect_at=connect_at)

    def observe(self, pod_ids: Sequence[str]) -> Mapping[str, PodReport]:
        """RUNNING or GONE; UNKNOWN during `doubt`."""
        self._check_available()
        if self.clock.monotonic() < self._doubt_until:
            return dict.fromkeys(pod_ids, PodReport(status=PodStatus.UNKNOWN))
        return {name: self._pod_report(name) for name in pod_ids}

    def _pod_report(self, name: str) -> PodReport:
        return self._refused.get(name) or PodReport(
            status=PodStatus.RUNNING if name in self.pods else PodStatus.GONE
        )

    def undelivered_events(self, pod_id: str) -> Sequence[PodEvent]:
        """Returns the events in the journal of a pod that was killed after it had written them."""
        return self.words.get(pod_id, ())

    def tear_down(self, pod_ids: Sequence[str]) -> None:
        """Ends these pods and their jobs."""
        self._check_available()
        for name in pod_ids:
            self.ever.add(name)
            self.kill_pod(name)

    def close(self) -> None:
        """Does nothing, because there is nothing to close."""

    def _check_available(self) -> None:
        if self.clock.monotonic() < self._away_until:
            raise UnavailableError("the simulated site is away")

    # --- LinkServer

    def receive(self) -> Sequence[ReceivedMessage]:
        """Returns the messages that have arrived."""
        received, self._inbox = self._inbox, []
        return received

    def send(self, channel: int, messages: Sequence[ToPod]) -> None:
        """Sends messages to a pod. The messages are delivered at the next step, or lost if the channel has
        closed."""
        pod = self.pods.get(self._channels.get(channel, ""))
        if pod is not None and pod.channel == channel:
            pod.mail.extend(messages)

    def has_mail(self) -> bool:
        """Returns whether a message has arrived that was not received yet."""
        return any(received.message is not None for received in self._inbox)

    def drop(self, channel: int) -> None:
        """Delivers the messages that were sent, and then closes the channel."""
        name = self._channels.get(channel, "")
        pod = self.pods.get(name)
        if pod is not None and pod.channel == channel:
            self._deliver(pod)
        self._close(channel)

    # --- faults

    def kill_pod(self, pod_id: str) -> None:
        """Kills the pod as SIGKILL does: its jobs die with it. The journal of every second killed pod is
        lost, as if its disk were lost."""
        pod = self.pods.pop(pod_id, None)
        if pod is None:
            return
        self.words[pod_id] = tuple(pod.journal) if len(self.words) % 2 else ()
        for execution in pod.running.values():
            self._over(execution, AttemptState.LOST)
        if pod.channel is not None:
            self._close(pod.channel)

    def end_pod(self, pod_id: str) -> None:
        """Makes the pod stop its jobs and start no others, as on a machine that is preempted. The pod stays
        visible."""
        pod = self.pods[pod_id]
        pod.ending = True
        for attempt_id in tuple(pod.running):
            self._stop(pod, attempt_id)

    def cut_link(self, pod_id: str, seconds: float) -> None:
        """Closes the channel, so that its messages are lost. The pod connects again after `seconds`
        seconds."""
        pod = self.pods.get(pod_id)
        if pod is not None and pod.channel is not None:
            self._close(pod.channel)
            pod.connect_at = self.clock.monotonic() + seconds

    def freeze(self, pod_id: str, seconds: float) -> None:
        """Makes the pod do nothing for a while. Its link stays open."""
        pod = self.pods.get(pod_id)
        if pod is not None:
            pod.frozen_until = self.clock.monotonic() + seconds

    def repeat_events(self, pod_id: str) -> None:
        """Sends all unacknowledged events of the pod once more."""
        pod = self.pods.get(pod_id)
        if pod is not None:
            pod.sent = 0

    def forge(self, pod_id: str) -> None:
        """Reports with a wrong token that the attempts in the pod have succeeded."""
        pod = self.pods.get(pod_id)
        for execution in pod.running.values() if pod else ():
            order = replace(execution.order, token="stale")
            outcome = to_builtins(AttemptOutcome(state=AttemptState.SUCCEEDED))
            pod.journal_event(order, self.clock.now(), EventType.ENDED, {"outcome": outcome}) if pod else None

    def away(self, seconds: float) -> None:
        """Makes the site not answer for this number of seconds."""
        self._away_until = self.clock.monotonic() + seconds

    def doubt(self, seconds: float) -> None:
        """Makes the site unable to report the state of any pod for this number of seconds."""
        self._doubt_until = self.clock.monotonic() + seconds

    def control_died(self) -> None:
        """Closes every channel and loses unread messages, as when the control node is killed with
        SIGKILL."""
        for channel in list(self._channels):
            self._close(channel)
        self._inbox.clear()

    # --- time

    def next_event(self) -> float | None:
        """Returns the monotonic time of the next event that happens without a call."""
        pods = self.pods.values()
        times = [max(e.ends, pod.frozen_until) for pod in pods for e in pod.running.values()]
        times += [max(pod.connect_at, pod.frozen_until) for pod in pods if pod.channel is None]
        times += [pod.frozen_until for pod in pods if pod.mail]
        return min(times, default=None)

    def step(self) -> None:
        """Delivers messages, ends jobs whose run time is over, and makes pods connect and send."""
        now = self.clock.monotonic()
        for pod in [pod for pod in self.pods.values() if pod.frozen_until <= now]:
            if pod.channel is None and pod.connect_at <= now:
                self._connect(pod)
            self._deliver(pod)
            for execution in [e for e in pod.running.values() if e.ends <= now]:
                self._finish(pod, execution)
            self._send_events(pod)

    def _connect(self, pod: SimulatedPod) -> None:
        self._last_channel += 1
        pod.channel, pod.welcomed = self._last_channel, False
        self._channels[self._last_channel] = pod.order.pod_id
        self._receive(pod, pod.hello())

    def _receive(self, pod: SimulatedPod, message: FromPod) -> None:
        if pod.channel is not None:
            self._inbox.append(ReceivedMessage(channel=pod.channel, message=message))

    def _close(self, channel: int) -> None:
        name = self._channels.pop(channel, None)
        pod = self.pods.get(name or "")
        if pod is not None and pod.channel == channel:
            pod.channel = None
            pod.mail.clear()
            pod.connect_at = self.clock.monotonic() + 0.1
        if name is not None:
            self._inbox.append(ReceivedMessage(channel=channel, message=None))

    def _deliver(self, pod: SimulatedPod) -> None:
        mail, pod.mail = pod.mail, []
        for message in mail:
            match message:
                case Welcome(acknowledged=number):
                    pod.welcomed = True
                    self._acknowledge(pod, number)
                    pod.sent = number
                case Ack(number=number):
                    self._acknowledge(pod, number)
                case Start(order=order):
                    self._start(pod, order)
                    if order.service is not None and not order.service.calibrates:
                        self._note_views(order.attempt_id, order.views)
                        self._serve(pod, order.attempt_id, order.service)
                case ServiceUpdate():
                    self._note_views(message.attempt_id, message.views)
                    if message.given is not None:
                        self.given[message.attempt_id] = message.given
                    self._serve(pod, message.attempt_id, message.order)
                case Stop(attempt_id=attempt_id):
                    self._stop(pod, attempt_id)
                case Goodbye():
                    self.kill_pod(pod.order.pod_id)
                    return
                case _:
                    pass

    def _acknowledge(self, pod: SimulatedPod, number: int) -> None:
        pod.journal = [event for event in pod.journal if event.number > number]

    def _start(self, pod: SimulatedPod, order: AttemptOrder) -> None:
        if order.attempt_id in pod.seen or pod.ending:
            return
        now, behaviour = self.clock.monotonic(), self._behave(order)
        execution = Execution(
            order=order,
            pod_id=pod.order.pod_id,
            began=now,
            ends=now + behaviour.seconds,
            behaviour=behaviour,
        )
        pod.seen[order.attempt_id] = AttemptState.RUNNING
        pod.running[order.attempt_id] = execution
        self.executions.append(execution)
        pod.journal_event(order, self.clock.now(), EventType.STARTED, {"pid": len(self.executions)})

    def _note_views(self, attempt_id: str, views: ViewOrders | None) -> None:
        if views is not None:
            self.views[attempt_id] = views

    def _serve(self, pod: SimulatedPod, attempt_id: str, order: ServiceOrder) -> None:
        """Reports that all replicas serve the order, or that they fail. An order that is not newer than the
        present order is ignored."""
        execution, before = pod.running.get(attempt_id), self.orders.get(attempt_id)
        if execution is None or (before is not None and before.generation >= order.generation):
            return
        self.orders[attempt_id] = order
        label, now = order.versions[0].label if order.versions else "", self.clock.now()
        taken = order.port in self.taken_ports
        fails = taken or any(one.label in self.broken for one in order.versions)
        generation = (before.generation if before is not None else 0) if fails else order.generation
        replica = ReplicaReport(
            number=1,
            state=ReplicaState.WAITING if fails else ReplicaState.READY,
            generation=generation,
            pid=len(self.executions),
            ready_at=now,
            versions=(LoadedVersion(label=label),) if label else (),
            gpu_memory_bytes=self.gpu_needs.get(label, 0),
            gpu_needed_bytes=self.gpu_needs.get(label, 0),
            gpu_size_bytes=self.gpu_size_bytes if label in self.gpu_needs else 0,
        )
        port = order.port or 41000 + len(self.executions)
        report = ServiceReport(
            name=order.name,
            state=ServiceState.FAILED if fails else ServiceState.READY,
            generation=generation,
            seen_generation=order.generation,
            address=f"http://{order.host}:{port}",
            host=order.host,
            port=port,
            pid=len(self.executions),
            started_at=now,
            written_at=now,
            replicas=(replica,) * order.replicas,
            problem=f"port {order.port} is taken" if taken else f"{label} cannot be loaded" if fails else "",
        )
        pod.journal_event(execution.order, now, EventType.REPORT, {"report": to_builtins(report)})

    def upstream(self, pod_id: str, attempt_id: str, address: str) -> Upstream | None:
        """See ServingSite. The replicas can be reached when they have reported their address."""
        return Upstream(link="tcp", attempt_id=attempt_id, settings={"at": address}) if address else None

    def _stop(self, pod: SimulatedPod, attempt_id: str) -> None:
        execution = pod.running.get(attempt_id)
        if execution is not None:
            execution.behaviour = replace(
                execution.behaviour, outcome=AttemptState.STOPPED, cause=Cause.STOPPED
            )
            self._finish(pod, execution)
        elif attempt_id not in pod.seen:
            pod.seen[attempt_id] = AttemptState.STOPPED  # so that a Start that arrives later is refused

    def _finish(self, pod: SimulatedPod, execution: Execution) -> None:
        order, behaviour = execution.order, execution.behaviour
        for line in range(behaviour.lines):
            text = f"line {line}\n"
            pod.journal_event(order, self.clock.now(), EventType.LOG, {"stream": "out", "text": text})
        outcome = AttemptOutcome(
            state=behaviour.outcome,
            cause=behaviour.cause,
            message="" if behaviour.cause is None else f"simulated {behaviour.cause}",
            use=MeasuredUse(
                wall_seconds=behaviour.seconds,
                cpu_seconds=behaviour.seconds,
                peak_memory_bytes=behaviour.peak_memory_bytes,
            ),
            outputs=_outputs(order, behaviour),
            parallel=behaviour.parallel,
        )
        pod.journal_event(order, self.clock.now(), EventType.ENDED, {"outcome": to_builtins(outcome)})
        pod.seen[order.attempt_id] = behaviour.outcome
        del pod.running[order.attempt_id]
        self._over(execution, behaviour.outcome)

    def _over(self, execution: Execution, state: AttemptState) -> None:
        execution.state, execution.ended = state, self.clock.monotonic()

    def _send_events(self, pod: SimulatedPod) -> None:
        fresh = tuple(event for event in pod.journal if event.number > pod.sent)
        if fresh and pod.welcomed and pod.channel is not None:
            pod.sent = fresh[-1].number
            self._receive(pod, Events(events=fresh))


def _outputs(order: AttemptOrder, behaviour: Behaviour) -> tuple[Output, ...]:
    made = behaviour.outcome == AttemptState.SUCCEEDED
    if behaviour.outputs is not None:
        return behaviour.outputs if made else ()
    kind = ArtifactKind.DATASET if order.job.kind == JobKind.DATASET else ArtifactKind.FILES
    return (Output(kind=kind, uri=order.output_uri, size_bytes=1),) if made else ()
