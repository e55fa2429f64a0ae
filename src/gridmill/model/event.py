"""The event record: what a pod says about an attempt, and how it is kept."""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from gridmill.model.noun import dataclass


class EventType(StrEnum):
    """Types of events; the body's fields are given in brackets."""

    STARTED = "started"  # {pid}
    LOG = "log"  # {stream: out|err|pod, text}: whole lines; text ends with a newline unless cut
    PROGRESS = "progress"  # {done, total, unit, note}; {phase: environment} before the job itself begins
    METRIC = "metric"  # {name, value, step}
    ENDED = "ended"  # {outcome}: see model.message.Outcome; always the attempt's last event


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEvent:
    """One journal entry of a pod. `number` counts from 1 per pod without gaps; `time` is the pod's clock.

    `token` is the attempt's: what comes with an old one is acknowledged and dropped.
    """

    number: int
    attempt_id: str
    token: str
    time: float
    type: EventType
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A kept event. `sequence` grows over the whole store (0 until kept).

    Events of attempts carry the pod's number: (pod_id, number) is kept once. The control node's own
    (state changes of runs and jobs) have type `state`, no attempt, and body {what, id, state, message}.
    """

    sequence: int
    time: float
    type: str
    run_id: str
    job: str = ""
    attempt_id: str = ""
    pod_id: str = ""
    number: int = 0
    body: Mapping[str, Any] = field(default_factory=dict)
