"""The protocol between control node and pod: messages, orders and events, the same over every link.

A pod opens the link and sends Hello; the control node answers Welcome. From then on the pod sends Events in
journal order and keeps them until an Ack covers them. After a new Hello it sends again from the Welcome's
`acknowledged`. The control node sends Start for every placed attempt that the Hello does not list: a pod
starts an attempt id at most once, for ever. If a pod never received the attempt that a Stop names, it answers
with an ENDED event (state stopped) and refuses a later Start of that id. A pod whose `secret` is wrong, whose
deployment does not exist any more or whose protocol is unknown gets Goodbye and ends.

`Event` is the stored form of what a pod reports about an attempt. `JobPart` is one part of a job that is done
on several machines.
"""

import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, TypeAlias

from gridmill.domain.amounts import Amounts
from gridmill.domain.artifact import Input, Output
from gridmill.domain.frozen import dataclass
from gridmill.domain.gang import Gang
from gridmill.domain.job import Job, JobSize
from gridmill.domain.resource import MeasuredUse
from gridmill.domain.route import AttemptTransfers, Staging
from gridmill.domain.states import AttemptState, Cause
from gridmill.domain.usage import ParallelTiming
from gridmill.errors import InputError


class EventType(StrEnum):
    """Types of events; the body's fields are given in brackets."""

    STARTED = "started"  # {pid}
    LOG = "log"  # {stream: out|err|pod, text}: whole lines; text ends with a newline unless cut; a long text
    # instead as {packed, size}: base64 of its UTF-8 compressed by zlib, and the bytes of its UTF-8
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
    """A kept event. `id` is empty until it is kept. Of two events of a home the later one has the greater id,
    compared as text; otherwise an id has no meaning.

    Events of attempts carry the pod's number: (pod_id, number) is kept once. The control node's own
    (state changes of runs and jobs) have type `state`, no attempt, and body {what, id, state, message}.
    """

    time: float
    type: str
    run_id: str
    job: str = ""
    attempt_id: str = ""
    pod_id: str = ""
    number: int = 0
    body: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""


def event_id(sequence: int) -> str:
    """The id of the event that a store keeps under that number, which grows over the whole store."""
    return f"{sequence:016x}"


def sequence_of(id: str) -> int:
    """The number of the event with that id; 0, which is before all events, of an empty one. Raises
    InputError."""
    if id and not re.fullmatch("[0-7][0-9a-f]{15}", id):
        raise InputError(
            f"{id!r} is not the id of an event",
            place="after",
            hint="Use the `id` of an event from a response, or leave it out to begin with the first event.",
        )
    return int(id, 16) if id else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPart:
    """Part `number` (from 0) of the `count` of the JobRun `of`. `node`: on that node and no other."""

    of: str
    number: int
    count: int
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReport:
    """What the attempt that did a part told of it: Unix times, and what it used."""

    began: float
    ended: float
    use: MeasuredUse


PROTOCOL = 2
"""What a pod speaks. In version 2, a long text of a log is compressed."""
ACCEPTED_PROTOCOLS = (1, PROTOCOL)
"""What a control node understands: pods that started before an upgrade continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOrder:
    """Everything an attempt needs; `order.json` in the attempt's folder where its process has to read it.

    `root` is the storage root (a folder path or URL); the attempt may write only below `output_uri` in it,
    and, for sinks, to the sink's table `table_uri`. `folder` is the pipeline's folder on the user node.
    `bundle_path` is where a pod of another machine finds the code; empty: in the home.
    `earlier` is the newest committed version of the same artifact, if any; `kept_versions` are the versions
    of a sink's table that artifacts refer to. What is below `checkpoint_uri` is
    kept from one attempt of the same work to the next, until one succeeds. `share` below 1: the attempt is a
    probe and does that share of its data. `part`: it does this part only, and nothing comes of it but files
    below `output_uri` (`workers` are those of each part). `parts` are the folders of all of them, in order:
    it puts together what they hold. `gang`: it is one rank of several, which share the other folders.
    `staging` is how its data gets to a farm. `failed` are the jobs that failed before it, for one that runs
    all the same. `contents_uri` is where the attempt lists the files that it leaves (`model.stored`); empty:
    nowhere.
    """

    attempt_id: str
    token: str
    run_id: str
    pipeline: str
    job: Job
    given: Amounts
    root: str
    output_uri: str
    table_uri: str = ""
    checkpoint_uri: str = ""
    folder: str = ""
    bundle: str | None = None
    bundle_path: str = ""
    inputs: tuple[Input, ...] = ()
    earlier: tuple[Input, ...] = ()
    kept_versions: tuple[int, ...] = ()
    gpu_indices: tuple[int, ...] = ()
    workers: int = 1
    size: JobSize = field(default_factory=JobSize)
    share: float = 1.0
    part: JobPart | None = None
    parts: tuple[str, ...] = ()
    gang: Gang | None = None
    staging: Staging = Staging.DIRECT
    contents_uri: str = ""
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome:
    """How an attempt ended. `state` is succeeded, failed or stopped; lost if the machine ran out of memory,
    and for a gang's rank whose port somebody took: it is tried again. `transfers` is what a site in another
    place had carried for it, which that site says."""

    state: AttemptState
    use: MeasuredUse = field(default_factory=MeasuredUse)
    cause: Cause | None = None
    exit_code: int | None = None
    message: str = ""
    hint: str = ""
    outputs: tuple[Output, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    size: JobSize | None = None
    parallel: ParallelTiming | None = None
    transfers: AttemptTransfers | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOrder:
    """Everything a pod needs to be brought up; a site may write it to a file (0600), never to argv."""

    pod_id: str
    deployment_id: str
    type: str  # JobKind
    secret: str
    home: str  # folder for the pod's journal, attempts and caches
    link: str  # unix:PATH | tls:HOST:PORT#FINGERPRINT | spool:FOLDER
    capacity: Amounts
    keep_seconds: float
    orphan_seconds: float = 3600.0
    node: str = ""  # the node that the plan chose
    settings: Mapping[str, str] = field(default_factory=dict)  # the resource's for its site
    pinned: bool = False  # and nowhere else
    lease_seconds: float | None = None  # the pod ends, with its jobs, after this time without a control node


# pod -> control node
@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """`attempts` maps every attempt id the pod knows (live, or ended and not acknowledged) to its state.
    `address` is how other hosts of its site reach the pod's."""

    pod_id: str
    deployment_id: str
    secret: str
    protocol: int
    version: str
    attempts: Mapping[str, AttemptState] = field(default_factory=dict)
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Consecutive journal entries."""

    events: tuple[PodEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Sent each few seconds when nothing else is; either side."""

    time: float


# control node -> pod
@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """`acknowledged`: everything up to this journal number is committed."""

    acknowledged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start an attempt, unless its id was ever seen. `environment` is that of the client whose run it is,
    kept in memory alone; None: the pod's own."""

    order: AttemptOrder
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End an attempt: SIGTERM, then SIGKILL after `grace_seconds`, all its processes."""

    attempt_id: str
    reason: str
    grace_seconds: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Everything up to `number` is committed and may be forgotten."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodbye:
    """End: stop what runs, flush nothing further."""

    reason: str


FromPod: TypeAlias = Hello | Events | Heartbeat
ToPod: TypeAlias = Welcome | Start | Stop | Ack | Goodbye | Heartbeat
Message: TypeAlias = FromPod | ToPod

MESSAGES: Mapping[str, type[Any]] = {
    kind.__name__.lower(): kind for kind in (Hello, Events, Heartbeat, Welcome, Start, Stop, Ack, Goodbye)
}
