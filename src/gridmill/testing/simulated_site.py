"""A simulated site: pods, links and jobs that follow the protocol, on a fake clock, with seeded faults.

`Behaviour` defines what a simulated job does. The site records its pods and the attempts that they ran.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from random import Random
from typing import Any

from gridmill.codec import to_builtins
from gridmill.domain.amounts import Amounts
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
    Start,
    Stop,
    ToPod,
    Welcome,
)
from gridmill.domain.resource import MeasuredUse
from gridmill.domain.site import Node, NodeUtilization
from gridmill.domain.states import LIVE_ATTEMPTS, AttemptState, Cause
from gridmill.domain.usage import ParallelTiming
from gridmill.errors import UnavailableError
from gridmill.ports.link import ReceivedMessage
from gridmill.ports.site import PodReport, PodStatus
from gridmill.testing.clock import FakeClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What a simulated job does: how long it runs, how it ends, how many log lines it writes, and what its
    workers report. `outputs` are its results; None: one output of its kind."""

    seconds: float = 1.0
    outcome: AttemptState = AttemptState.SUCCEEDED
    cause: Cause | None = None
    lines: int = 1
    peak_memory_bytes: int = 2**20
    parallel: ParallelTiming | None = None
    outputs: tuple[Output, ...] | None = None


def pick(random: Random, order: AttemptOrder, *, failing: float = 0.0, killed: float = 0.0) -> Behaviour:
    """A random behaviour: some jobs fail, some run out of memory, most succeed."""
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
    """One attempt as it really ran. Tests compare the records of the grid with it."""

    order: AttemptOrder
    pod_id: str
    began: float
    ends: float
    behaviour: Behaviour
    state: AttemptState = AttemptState.RUNNING
    ended: float | None = None


@dataclass(slots=True, kw_only=True)
class SimulatedPod:
    """A simulated pod: it journals, numbers, acknowledges and refuses like a real one."""

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
        """The Hello message: running attempts, and ended ones that are not acknowledged."""
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
    """Implements SitePort and LinkServer for a control node under test.

    `behave` decides what each attempt does. `step` executes everything that is due; `next_event` is the time
    of the next event. The methods of faults inject faults. `dial_seconds` is how long a new pod takes to
    connect. No pod starts on nodes that are `unfit`, `lacking` or have `left`; the site reports the latter
    two.
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

    def nodes(self) -> tuple[Node, ...]:
        """The nodes, as the test set them."""
        return self._nodes

    def utilization(self) -> Mapping[str, NodeUtilization]:
        """No measurements."""
        return {}

    def link(self) -> str:
        """An empty address: pods are simulated."""
        return "simulated:"

    def pod_home(self, pod_id: str) -> str:
        """An empty path: pods are simulated."""
        return f"/simulated/{pod_id}"

    def prepare(self) -> None:
        """Do nothing: simulated pods need no preparation."""

    def bring_up(self, orders: Sequence[PodOrder]) -> None:
        """Start pods that were never started."""
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
        """The journal of a pod that was killed after it could write its events."""
        return self.words.get(pod_id, ())

    def tear_down(self, pod_ids: Sequence[str]) -> None:
        """End pods and what runs in them."""
        self._check_available()
        for name in pod_ids:
            self.ever.add(name)
            self.kill_pod(name)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _check_available(self) -> None:
        if self.clock.monotonic() < self._away_until:
            raise UnavailableError("the simulated site is away")

    # LinkServer

    def receive(self) -> Sequence[ReceivedMessage]:
        """The messages that have arrived."""
        received, self._inbox = self._inbox, []
        return received

    def send(self, channel: int, messages: Sequence[ToPod]) -> None:
        """Send a message; it is delivered at the next step, or lost if the channel has closed."""
        pod = self.pods.get(self._channels.get(channel, ""))
        if pod is not None and pod.channel == channel:
            pod.mail.extend(messages)

    def has_mail(self) -> bool:
        """Whether a message has arrived that was not received yet."""
        return any(received.message is not None for received in self._inbox)

    def drop(self, channel: int) -> None:
        """Deliver sent messages, then close the channel."""
        name = self._channels.get(channel, "")
        pod = self.pods.get(name)
        if pod is not None and pod.channel == channel:
            self._deliver(pod)
        self._close(channel)

    # faults

    def kill_pod(self, pod_id: str) -> None:
        """SIGKILL: its jobs die with it. The journal of every second pod is lost, as with its disk."""
        pod = self.pods.pop(pod_id, None)
        if pod is None:
            return
        self.words[pod_id] = tuple(pod.journal) if len(self.words) % 2 else ()
        for execution in pod.running.values():
            self._over(execution, AttemptState.LOST)
        if pod.channel is not None:
            self._close(pod.channel)

    def end_pod(self, pod_id: str) -> None:
        """The pod stops its jobs and starts no others, as on a machine that is preempted. It stays
        visible."""
        pod = self.pods[pod_id]
        pod.ending = True
        for attempt_id in tuple(pod.running):
            self._stop(pod, attempt_id)

    def cut_link(self, pod_id: str, seconds: float) -> None:
        """Close the channel and lose its messages. The pod connects again after `seconds`."""
        pod = self.pods.get(pod_id)
        if pod is not None and pod.channel is not None:
            self._close(pod.channel)
            pod.connect_at = self.clock.monotonic() + seconds

    def freeze(self, pod_id: str, seconds: float) -> None:
        """The pod does nothing for a while; its link stays open."""
        pod = self.pods.get(pod_id)
        if pod is not None:
            pod.frozen_until = self.clock.monotonic() + seconds

    def repeat_events(self, pod_id: str) -> None:
        """Send all unacknowledged events once more."""
        pod = self.pods.get(pod_id)
        if pod is not None:
            pod.sent = 0

    def forge(self, pod_id: str) -> None:
        """Report that the attempts in the pod have succeeded, with a wrong token."""
        pod = self.pods.get(pod_id)
        for execution in pod.running.values() if pod else ():
            order = replace(execution.order, token="stale")
            outcome = to_builtins(AttemptOutcome(state=AttemptState.SUCCEEDED))
            pod.journal_event(order, self.clock.now(), EventType.ENDED, {"outcome": outcome}) if pod else None

    def away(self, seconds: float) -> None:
        """The site does not answer."""
        self._away_until = self.clock.monotonic() + seconds

    def doubt(self, seconds: float) -> None:
        """The site cannot report the state of any pod."""
        self._doubt_until = self.clock.monotonic() + seconds

    def control_died(self) -> None:
        """SIGKILL of the control node: every channel closes, and unread messages are lost."""
        for channel in list(self._channels):
            self._close(channel)
        self._inbox.clear()

    # time

    def next_event(self) -> float | None:
        """The monotonic time of the next event that no call causes."""
        pods = self.pods.values()
        times = [max(e.ends, pod.frozen_until) for pod in pods for e in pod.running.values()]
        times += [max(pod.connect_at, pod.frozen_until) for pod in pods if pod.channel is None]
        times += [pod.frozen_until for pod in pods if pod.mail]
        return min(times, default=None)

    def step(self) -> None:
        """Deliver messages, end jobs that are due, connect, send."""
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

    def _stop(self, pod: SimulatedPod, attempt_id: str) -> None:
        execution = pod.running.get(attempt_id)
        if execution is not None:
            execution.behaviour = replace(
                execution.behaviour, outcome=AttemptState.STOPPED, cause=Cause.STOPPED
            )
            self._finish(pod, execution)
        elif attempt_id not in pod.seen:
            pod.seen[attempt_id] = AttemptState.STOPPED  # a Start that arrives later is refused

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
