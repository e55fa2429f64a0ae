"""This module has the protocol between the control node and pods: messages, orders and events, which are
equal on every kind of link.

A pod opens the link and sends Hello, and the control node answers Welcome. After the Welcome, the pod sends
Events in the order of its journal, and stores them until an Ack covers them. After a new Hello, the pod
sends Events again, starting after the journal number `acknowledged` of the Welcome. The control node sends
Start for every placed attempt that the Hello does not list, and a pod never starts the same attempt id
twice. If the job of an attempt refers to secrets, the pod sends SecretRequest, and starts the attempt when
it receives SecretValues. If a Stop names an attempt that the pod never received, the pod answers with an
ENDED event (state stopped) and refuses a later Start of that id. A pod receives Goodbye and ends if its
`secret` is wrong, if its deployment no longer exists, or if its protocol is unknown.

`Event` is the form in which a pod's report about an attempt is stored. `JobPart` is one part of a job that
runs on several machines.
"""

import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, TypeAlias

from gridmill.domain.amounts import Amounts
from gridmill.domain.artifact import Input, Output
from gridmill.domain.batch_use import BatchUse
from gridmill.domain.frozen import dataclass
from gridmill.domain.gang import Gang
from gridmill.domain.job import Job, JobSize
from gridmill.domain.resource import MeasuredUse
from gridmill.domain.route import AttemptTransfers, Staging
from gridmill.domain.service_features import ViewOrders
from gridmill.domain.serving import ServiceOrder
from gridmill.domain.states import AttemptState, Cause
from gridmill.domain.usage import ParallelTiming
from gridmill.errors import InputError


class EventType(StrEnum):
    """The types of events of a pod; braces contain the fields of the body."""

    STARTED = "started"
    """The process of an attempt was started. The body is {pid}."""
    LOG = "log"
    """An attempt wrote whole lines. The body is {stream: out|err|pod, text}, where the text ends with a
    newline unless it is cut. For a long text, the body contains {packed, size} instead: `packed` is the
    base64 code of its UTF-8 compressed by zlib, and `size` is the number of bytes of its UTF-8."""
    PROGRESS = "progress"
    """An attempt made progress. The body is {done, total, unit, note}, or {phase: environment} before the job
    itself begins."""
    METRIC = "metric"
    """An attempt reported a metric. The body is {name, value, step}."""
    REPORT = "report"
    """The process of a service wrote another report. The body is {report}, see ServiceReport."""
    ENDED = "ended"
    """An attempt has ended. The body is {outcome}, see AttemptOutcome. This event is always the attempt's
    last event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEvent:
    """One entry in the journal of a pod. `number` is the number of the entry in the journal of its pod,
    counted from 1 without gaps. `time` is the time of the event by the clock of the pod.

    `token` is the token of the attempt: an event with an old token is acknowledged and dropped.
    """

    number: int
    attempt_id: str
    token: str
    time: float
    type: EventType
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A stored event of an attempt, a job or a run. `id` is empty until the event is stored. If the ids of
    two events of a home are compared as text, the later event has the greater id. An id has no other
    meaning.

    Events of attempts have the number that the pod gave them: for each pod and each number, only one event
    is stored. Events of the control node itself (state changes of runs and jobs) have type `state`, no
    attempt, and body {what, id, state, message}.
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
    """Return the id that an event has if it is stored under that number. Each event that is stored later, of
    any run, has a larger number."""
    return f"{sequence:016x}"


def sequence_of(id: str) -> int:
    """Return the number of the event with that id. An empty id has the number 0, and the numbers of events
    begin at 1. Raises InputError."""
    if id and not re.fullmatch("[0-7][0-9a-f]{15}", id):
        raise InputError(
            f"{id!r} is not the id of an event",
            place="after",
            hint="Use the `id` of an event from a response, or leave it out to begin with the first event.",
        )
    return int(id, 16) if id else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPart:
    """One part of a job that runs in parts. The JobRun with the id `of` has `count` parts, which are
    numbered from 0, and this part has the number `number`. If `node` is set, the part must run on that
    node."""

    of: str
    number: int
    count: int
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReport:
    """The report of the attempt that ran one part of a job. The report has the Unix times of the start and
    the end of the attempt, and its measured resource use."""

    began: float
    ended: float
    use: MeasuredUse


PROTOCOL = 7
"""The version of the protocol that pods of this Gridmill use. Since version 2 of the protocol, a long log
text is compressed. Since version 3, a pod asks for the values of secrets. Since version 4, a pod runs
services. Since version 5, the order of a service has canaries, contextual features, trust, a range of
replicas, API keys and an upstream, which a pod of version 4 would silently leave out. Since version 6, the
view of a service at another site is made from files that the home sends. Since version 7, the order of a
service has a shadow, the further pods of its router, the writer of its request log and a limit of GPU
memory."""
SECRETS_PROTOCOL = 3
"""The first version of the protocol in which a pod asks for the values of secrets."""
SERVICES_PROTOCOL = 7
"""The first version of the protocol in which a pod knows all fields of the order of a service. A service that
runs in an older pod goes on, but gets no new order."""
ACCEPTED_PROTOCOLS = (4, 5, 6, PROTOCOL)
"""The versions of the protocol that a control node accepts, so that pods that started before an upgrade can
continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOrder:
    """All values that a pod needs to run an attempt. The process of the attempt reads these values from
    `order.json` in the folder of the attempt.

    `root` is the path or the URL of the storage root. The attempt may write only below `output_uri` in the
    storage root and, if its job is a sink, to the table `table_uri` of the sink. `folder` is the folder of
    the pipeline on the user node. `bundle_path` is the path of the code bundle for a pod on another machine;
    empty if the bundle is in the home. `earlier` is the newest committed version of the same artifact, if
    there is one. For a sink, `kept_versions` are the versions of its table to which artifacts refer. Files
    below `checkpoint_uri` are kept for the next attempt of the same work, until an attempt succeeds. If
    `share` is below 1, the attempt is a probe and processes only that fraction of its data. With `part`, the
    attempt runs only this part of the job, and writes only files below `output_uri`; `workers` is the number
    of workers of each part. If `parts` is set, the attempt combines the results of the parts; `parts` has
    the folders of all parts in order. With `gang`, the attempt is one of several ranks, and all ranks share
    the folders that the order names. `staging` describes how the data of the attempt is transferred to a
    farm. `failed` has the names of the jobs that failed earlier, for a job that also runs after failures.
    `contents_uri` is the file in which the attempt lists the files of its output (`model.stored`); empty if
    the attempt writes no list. `service` is the first order for the process of a service, and `views` is the
    content of its views. They are None for all other jobs.
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
    service: ServiceOrder | None = None
    views: ViewOrders | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome:
    """The result of an attempt that has ended. `state` is succeeded, failed, stopped or lost. `state` is
    lost if the machine ran out of memory, if another process took the port of a rank of a gang, or if the
    control group was deleted before the start; the job is then tried again. `transfers` are the transfers of
    data for the attempt to and from a site in another place, as that site reports them. `batch_use` is the
    time for which a batch service ran the attempt."""

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
    batch_use: BatchUse | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOrder:
    """All values that a site needs to start a pod. A site may write these values to a file (mode 0600), but
    never to argv."""

    pod_id: str
    deployment_id: str
    type: str
    """The kind of the jobs that the pod runs, see JobKind."""
    secret: str
    home: str
    """The folder for the journal, the attempts and the caches of the pod."""
    link: str
    """The address of the control node: unix:PATH, tls:HOST:PORT#FINGERPRINT or spool:FOLDER."""
    capacity: Amounts
    keep_seconds: float
    orphan_seconds: float = 3600.0
    node: str = ""
    """The node on which the plan places the pod."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The settings of the resource for its site."""
    pinned: bool = False
    """Whether the pod must run on `node`."""
    lease_seconds: float | None = None
    """The pod ends, together with its jobs, after this time without a control node."""


# --- messages from a pod to the control node
@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message that a pod sends. `attempts` has the state of every attempt that the pod knows
    (running, or ended and not acknowledged), by attempt id. `address` is the address by which other hosts of
    the site connect to the host of the pod."""

    pod_id: str
    deployment_id: str
    secret: str
    protocol: int
    version: str
    attempts: Mapping[str, AttemptState] = field(default_factory=dict)
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """A message with consecutive entries of the journal of a pod."""

    events: tuple[PodEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRequest:
    """Ask for the values of the secrets that an attempt needs, before the attempt starts. `public_key` is the
    X25519 key of the pod in base64. The pod sends this message again after each Start of the attempt."""

    attempt_id: str
    token: str
    public_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A message that either side sends every few seconds when it has no other message to send."""

    time: float


# --- messages from the control node to a pod
@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The answer to a Hello: all entries up to the journal number `acknowledged` are committed."""

    acknowledged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start an attempt, unless the pod has already seen the id of the attempt. `environment` has the
    environment variables of the client that started the run, which are held only in memory; if it is None,
    the attempt uses the environment of the pod."""

    order: AttemptOrder
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretValues:
    """The answer to a SecretRequest. `sealed` has the values by name, encrypted for the pod that asked. The
    message is never stored in clear, also where messages pass through files."""

    attempt_id: str
    sealed: str


def secret_context(attempt_id: str, token: str) -> str:
    """Return the text to which the encrypted values of an attempt are bound."""
    return f"{attempt_id} {token}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceUpdate:
    """The newest order for the process of a service. The pod stores it beside the attempt, unless it already
    has an order with this generation or a later one. The control node sends the message after each change,
    and after each Hello of the pod. `views` is the desired content of the views of the service; it replaces
    the content before. `given` are the CPUs and the memory of the attempt, which an update may enlarge (None:
    they stay as they are)."""

    attempt_id: str
    order: ServiceOrder
    views: ViewOrders | None = None
    given: Amounts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End an attempt: all its processes receive SIGTERM, and SIGKILL after `grace_seconds`."""

    attempt_id: str
    reason: str
    grace_seconds: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """All journal entries up to `number` are committed, so the pod may delete them."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodbye:
    """End the pod: the pod stops its attempts, and sends no more messages."""

    reason: str


FromPod: TypeAlias = Hello | Events | SecretRequest | Heartbeat
ToPod: TypeAlias = Welcome | Start | SecretValues | ServiceUpdate | Stop | Ack | Goodbye | Heartbeat
Message: TypeAlias = FromPod | ToPod

MESSAGES: Mapping[str, type[Any]] = {
    kind.__name__.lower(): kind
    for kind in (
        *(Hello, Events, SecretRequest, Heartbeat),
        *(Welcome, Start, SecretValues, ServiceUpdate, Stop, Ack, Goodbye),
    )
}
