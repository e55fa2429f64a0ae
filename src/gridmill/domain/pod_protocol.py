"""The protocol between control node and pod: messages, orders and events, equal on every kind of link.

A pod opens the link and sends Hello, and the control node answers Welcome. After that the pod sends Events in
journal order and keeps them until an Ack covers them. After a new Hello, the pod sends Events again, starting
after the Welcome's `acknowledged`. The control node sends Start for every placed attempt that the Hello does
not list: a pod never starts the same attempt id twice. If a pod never received the attempt that a Stop names,
it answers with an ENDED event (state stopped) and refuses a later Start of that id. A pod whose `secret` is
wrong, whose deployment does not exist any more or whose protocol is unknown gets Goodbye and ends.

`Event` is the stored form of a pod's report about an attempt. `JobPart` is one part of a job that runs on
several machines.
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
    """Types of events; the body's fields are given in braces."""

    STARTED = "started"  # {pid}
    LOG = "log"  # {stream: out|err|pod, text}: whole lines; text ends with a newline unless cut; a long text
    # instead as {packed, size}: base64 of its UTF-8 compressed by zlib, and the bytes of its UTF-8
    PROGRESS = "progress"  # {done, total, unit, note}; {phase: environment} before the job itself begins
    METRIC = "metric"  # {name, value, step}
    ENDED = "ended"  # {outcome}: see model.message.Outcome; always the attempt's last event


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEvent:
    """One journal entry of a pod. `number` counts from 1 per pod without gaps. `time` is the pod's clock.

    `token` is the attempt's token: an event with an old token is acknowledged and dropped.
    """

    number: int
    attempt_id: str
    token: str
    time: float
    type: EventType
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A stored event. `id` is empty until the event is stored. Of two events of a home the later event has
    the greater id, compared as text; otherwise an id has no meaning.

    Events of attempts carry the pod's number: an event of (pod_id, number) is stored once. Events of the
    control node itself (state changes of runs and jobs) have type `state`, no attempt, and body {what, id,
    state, message}.
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
    """The id of the event that a store keeps under that number. The number increases over the whole store."""
    return f"{sequence:016x}"


def sequence_of(id: str) -> int:
    """The number of the event with that id. An empty id gives 0, which is before all events. Raises
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
    """Part `number` (from 0) of the `count` parts of the JobRun `of`. If `node` is set, the part must run on
    that node."""

    of: str
    number: int
    count: int
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReport:
    """The report of the attempt that ran a part: Unix times, and the measured use."""

    began: float
    ended: float
    use: MeasuredUse


PROTOCOL = 2
"""What a pod speaks. In version 2, a long text of a log is compressed."""
ACCEPTED_PROTOCOLS = (1, PROTOCOL)
"""What a control node understands: pods that started before an upgrade continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOrder:
    """All values that an attempt needs. Its process reads them from `order.json` in the attempt's folder.

    `root` is the storage root (a folder path or URL). The attempt may write only below `output_uri` in it,
    and, for sinks, to the sink's table `table_uri`. `folder` is the pipeline's folder on the user node.
    `bundle_path` is the place of the code for a pod of another machine; empty means in the home. `earlier` is
    the newest committed version of the same artifact, if any. `kept_versions` are the versions of a sink's
    table that artifacts refer to. Files below `checkpoint_uri` are kept from one attempt of the same work to
    the next, until an attempt succeeds. If `share` is below 1, the attempt is a probe and processes that
    share of its data. With `part` the attempt runs only this part, and its only result is files below
    `output_uri` (`workers` is the number of workers of each part). `parts` are the folders of all parts, in
    order: the attempt combines their contents. With `gang` the attempt is one rank of several, which share
    the other folders. `staging` is how its data gets to a farm. `failed` are the jobs that failed before it,
    for a job that runs after failures too. `contents_uri` is where the attempt lists the files of its output
    (`model.stored`); empty: nowhere.
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
    """The end of an attempt. `state` is succeeded, failed or stopped. It is lost if the machine ran out of
    memory, or if another process took the port of a gang's rank: then the job is tried again. `transfers` is
    what a site in another place transferred for the attempt, as that site reports it."""

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
    """All values that a site needs to start a pod. A site may write them to a file (0600), never to argv."""

    pod_id: str
    deployment_id: str
    type: str  # JobKind
    secret: str
    home: str  # folder for the pod's journal, attempts and caches
    link: str  # unix:PATH | tls:HOST:PORT#FINGERPRINT | spool:FOLDER
    capacity: Amounts
    keep_seconds: float
    orphan_seconds: float = 3600.0
    node: str = ""  # the planned node
    settings: Mapping[str, str] = field(default_factory=dict)  # of the resource for its site
    pinned: bool = False  # must run on `node`
    lease_seconds: float | None = None  # the pod ends, with its jobs, after this time without a control node


# pod -> control node
@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message of a pod. `attempts` maps every attempt id that the pod knows (live, or ended and not
    acknowledged) to its state. `address` is the address by which other hosts of its site reach the pod's
    host."""

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
    """A message that either side sends every few seconds when it has no other message to send."""

    time: float


# control node -> pod
@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The answer to a Hello: all entries up to the journal number `acknowledged` are committed."""

    acknowledged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start an attempt, unless the pod has seen its id before. `environment` is the environment of the client
    that started the run, kept only in memory; None means the pod's own environment."""

    order: AttemptOrder
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End an attempt: all its processes get SIGTERM, and SIGKILL after `grace_seconds`."""

    attempt_id: str
    reason: str
    grace_seconds: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """All entries up to `number` are committed, and the pod may delete them."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodbye:
    """End the pod: stop its attempts, and send nothing more."""

    reason: str


FromPod: TypeAlias = Hello | Events | Heartbeat
ToPod: TypeAlias = Welcome | Start | Stop | Ack | Goodbye | Heartbeat
Message: TypeAlias = FromPod | ToPod

MESSAGES: Mapping[str, type[Any]] = {
    kind.__name__.lower(): kind for kind in (Hello, Events, Heartbeat, Welcome, Start, Stop, Ack, Goodbye)
}
