"""What a simulated site has: its pods, and the attempts that they ran."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gridmill.model.event import EventType, PodEvent
from gridmill.model.message import PROTOCOL, Hello, Order, PodOrder, ToPod
from gridmill.model.state import LIVE_ATTEMPTS, AttemptState
from gridmill.testing.behaviour import Behaviour


@dataclass(slots=True, kw_only=True)
class Execution:
    """One attempt as it really ran: what safety is judged by."""

    order: Order
    pod_id: str
    began: float
    ends: float
    behaviour: Behaviour
    state: AttemptState = AttemptState.RUNNING
    ended: float | None = None


@dataclass(slots=True, kw_only=True)
class SimulatedPod:
    """A pod that journals, numbers, acknowledges and refuses as a real one must."""

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

    def journal_event(self, order: Order, time: float, kind: EventType, body: Mapping[str, Any]) -> None:
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
        """The greeting: live attempts and ended ones that are not acknowledged."""
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
