"""Orders for the processes that serve a model, and the reports of these processes.

A service has a folder. The file `service.json` in this folder is the desired state, a `ServiceOrder`. The
parent process of the service (`python -m gridmill.serving FOLDER`) reads this file when it changes, and
writes the observed state, a `ServiceReport`, to the file `report.json`. Both files are replaced atomically,
so the control node and the parent process can each end and start again without the other.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import StrEnum

from gridmill.domain.amounts import MIB
from gridmill.domain.drift import DriftCounts, VersionDrift
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.log_counts import LogReport
from gridmill.domain.service_features import ViewReport

ORDER_FILE = "service.json"
REPORT_FILE = "report.json"
BUILDER_VARIABLE = "GRIDMILL_ENVIRONMENT_BUILDER"
"""The environment variable of the processes of a service with the name of the module that builds the Python
environment of a version."""
HOME_VARIABLE = "GRIDMILL_POD_HOME"
"""The environment variable of the processes of a service with the home in which Python environments are
built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedVersion:
    """A version of a model that a service offers. `label` names the version in requests and answers, such as
    `weather/lstm@3`. `folder` is the absolute path of the model's files.

    Requests that name no version are divided among the versions in proportion to `weight`. A version with
    weight 0 answers only requests that name it.

    `features` is the absolute path of the folder with the definition of the contextual features of the
    version, which replicas compute from a view. It is empty if requests send all features. With `trust`, the
    replicas may run the code of the version. The `stages` predict features of this version for each request.
    """

    label: str
    folder: str
    weight: float = 1.0
    features: str = ""
    view: str = ""
    trust: bool = False
    stages: "tuple[ServedStage, ...]" = ()

    def all_versions(self) -> "tuple[ServedVersion, ...]":
        """Return this version and those of all its stages."""
        return (self, *(part for one in self.stages for part in one.version.all_versions()))

    def changed(self, change: "Callable[[ServedVersion], ServedVersion]") -> "ServedVersion":
        """Return this version after a change that is made to this version and to those of all its stages."""
        stages = tuple(replace(one, version=one.version.changed(change)) for one in self.stages)
        return change(replace(self, stages=stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedStage:
    """A version whose predictions are features of another version. `columns` are the columns of its
    predictions (`prediction`, `probability_yes`), by the names of the features."""

    version: ServedVersion
    columns: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowOrder:
    """A version that gets copies of `percent` percent of the requests to predict that the first version of a
    service has answered. Its answers are compared, and no client gets them. A process with more
    than `memory_bytes` bytes of memory is replaced (None means no limit)."""

    version: ServedVersion
    percent: float = 100.0
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLog:
    """The log of the requests of a service. Each replica appends JSON lines to a file of its own in
    `folder`. A line has the request id, the time, the version, the status and the duration.

    `fraction` (0 to 1) of all requests are logged. With `bodies`, a line also has the texts of the request
    and of the answer. With `rows`, each row of a logged request to `POST /predict` is also written to other
    files, as an object with its features and its prediction, in a form that a sink can load
    (`serving/row_log.py`). A file is replaced by a new file when it has `file_bytes` bytes, and the oldest
    files are deleted when there are more than `files`.

    `writer` is a part of the names of the files with rows. At sites other than `local`, each attempt has
    another one, because several attempts may write to one folder, and because their files come to one folder
    at home. With `is_transferred`, complete files are moved to the folder `ready` in `folder`, from which
    the home takes them, and rows of files that are deleted before are counted as lost.
    """

    folder: str
    fraction: float = 1.0
    bodies: bool = False
    rows: bool = False
    file_bytes: int = 64 * MIB
    files: int = 10
    writer: str = ""
    is_transferred: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The terms by which the parent process changes the number of replicas, from `least` to `most`. With
    `least` 0, a service without requests has no replica, and its first request waits until one is ready.

    One replica serves `rate_per_replica` requests per second. If requests take longer than `slow_seconds`
    (99th percentile), a replica is added although the rate is lower. After a change, no replica is removed
    for `down_seconds`, and the rate must be low for all of this time. A service without a request for
    `idle_seconds` ends its last replica, if `least` is 0.
    """

    least: int
    most: int
    rate_per_replica: float
    slow_seconds: float = 1.0
    down_seconds: float = 60.0
    idle_seconds: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The replicas to which the router of a service connects. `link` is the name of the plug-in that opens
    the connections (`plugins.SERVICE_LINKS`), and `settings` are the settings of this plug-in. `attempt_id`
    is the attempt in which the replicas run. The settings contain no secrets, only paths of files with
    secrets."""

    link: str
    attempt_id: str
    settings: Mapping[str, str] = field(default_factory=dict)


MOST_OPEN = 256
"""The largest number of open connections to the replicas at a site, of all routers together. A farm accepts
512 connections of one address, and the control node needs some of them."""
LEAST_OPEN = 4
"""The number of connections that each router may open in any case."""
NO_UPSTREAM = Upstream(link="none", attempt_id="")
"""The upstream of a router whose service has no replicas yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOrder:
    """The desired state of a service. A changed order needs a higher `generation`.

    Network: `host` and `port` are the address at which all replicas accept connections (port 0 means any free
    port, which is kept while the parent process runs). If `certificate_file` and `key_file` are set, the
    service uses TLS. Browsers may call the service from the origins in `cors_origins` (`*` means every
    origin). `api_keys_file` is a file with one SHA-256 hash (hex) of an API key per line, optionally followed
    by a space and a name. If it is set, every request except health checks needs one of these keys. Instead
    of naming a file, `api_keys` can have the lines of the file, which the parent process then writes. Other
    `api_keys` need no new replicas.

    If `socket` is set, the service listens at this path of a Unix socket instead of `host` and `port`.

    Router: if `upstream` is set, the processes load no versions. They pass requests on to the replicas at
    `upstream` and at the `further_upstreams` in turn, leave out those that cannot be reached, hold a request
    for at most `hold_seconds` while no replica can be reached, and keep at most `hold_bytes` of held requests
    in memory. A router has at most `most_open` connections to replicas; if more clients send requests at the
    same time, they take turns. A changed way to replicas or `most_open` takes effect without new processes.

    Computation: each of the `replicas` is a process that has loaded all versions, and computes with `threads`
    threads. One batch has at most `max_batch` rows from at most `max_concurrent` requests. While a batch is
    computed, at most `queue_limit` further requests wait in each replica, and the replica refuses all others
    with status 429. If `max_wait_seconds` is 0, a batch starts as soon as the model is free. Otherwise a
    batch that is not full waits for this time.

    Limits: a request that is not answered within `timeout_seconds` gets status 504. A body of more than
    `max_body_bytes` bytes gets status 413. A replica that is stopped answers its running requests for at most
    `drain_seconds`. A replica whose event loop or model does not respond for `hang_seconds`, or which uses
    more than `memory_bytes` bytes of memory (None means no limit), is replaced. A replica that is not ready
    after `start_seconds` has failed. After `max_failures` failures in succession, replicas of a new order are
    not started again, and the replicas of the last working order continue. The code of each version may use
    `gpu_memory_bytes` bytes of GPU memory in each replica (None: an equal part of the share of the attempt).

    With `scaling`, the parent process changes the number of replicas, and `replicas` is the number with which
    it begins. If `calibrates` is true, the process measures one replica instead, writes the result as the
    outcome of its attempt, and ends.

    With a `shadow`, a process beside the replicas loads another version and compares its answers. If
    `counts_drift` is true, the reports have the counts behind the drift, so that those of several pods can be
    added.
    """

    name: str
    versions: tuple[ServedVersion, ...]
    generation: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    certificate_file: str = ""
    key_file: str = ""
    cors_origins: tuple[str, ...] = ()
    api_keys_file: str = ""
    api_keys: tuple[str, ...] | None = None
    replicas: int = 1
    threads: int = 1
    max_batch: int = 256
    max_concurrent: int = 64
    queue_limit: int = 256
    max_wait_seconds: float = 0.0
    timeout_seconds: float = 10.0
    max_body_bytes: int = 16 * MIB
    drain_seconds: float = 10.0
    hang_seconds: float = 20.0
    start_seconds: float = 120.0
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    max_failures: int = 3
    request_log: RequestLog | None = None
    scaling: Scaling | None = None
    calibrates: bool = False
    socket: str = ""
    upstream: Upstream | None = None
    further_upstreams: tuple[Upstream, ...] = ()
    most_open: int = MOST_OPEN
    hold_seconds: float = 10.0
    hold_bytes: int = 64 * MIB
    shadow: ShadowOrder | None = None
    counts_drift: bool = False

    @property
    def loaded(self) -> tuple[ServedVersion, ...]:
        """All versions that processes of the service load: those that answer, and the shadow."""
        return (*self.versions, *((self.shadow.version,) if self.shadow is not None else ()))

    def changed(self, change: Callable[[ServedVersion], ServedVersion]) -> "ServiceOrder":
        """Return this order after a change of all versions, of their stages and of the shadow."""
        shadow = self.shadow
        if shadow is not None:
            shadow = replace(shadow, version=shadow.version.changed(change))
        return replace(self, versions=tuple(one.changed(change) for one in self.versions), shadow=shadow)

    @property
    def upstreams(self) -> tuple[Upstream, ...]:
        """All ways to the replicas; empty if the processes are no router."""
        return () if self.upstream is None else (self.upstream, *self.further_upstreams)


class ServiceState(StrEnum):
    """The state of a service as its parent process observes it."""

    STARTING = "starting"
    """No replica is ready yet."""
    READY = "ready"
    """All replicas of the newest order are ready."""
    UPDATING = "updating"
    """Some replicas are ready, and others start or end because the order changed or a replica ended."""
    FAILED = "failed"
    """The replicas of the newest order fail. Replicas of an earlier order can still be ready."""
    DRAINING = "draining"
    """The service stops, and its replicas answer their last requests."""
    STOPPED = "stopped"
    """The parent process has ended all replicas."""


class ReplicaState(StrEnum):
    """The state of one replica."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    WAITING = "waiting"
    """The replica ended, and its successor starts after a pause."""


class Verification(StrEnum):
    """Whether a loaded version computes what it computed when it was made."""

    VERIFIED = "verified"
    """The version reproduced the outputs of its golden rows."""
    NOT_VERIFIED = "not verified"
    """The version has no golden rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedVersion:
    """A version that a replica has loaded. `differences` are texts about packages that compute its
    predictions in another version than the one with which it was made."""

    label: str
    verification: Verification = Verification.NOT_VERIFIED
    differences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """The observed state of one replica. `pid` is None if the replica has no process now.

    Times are Unix times in seconds. `restarts` counts the processes of this replica that ended without being
    told to. `memory_bytes` is the memory of the process at the last check, and `gpu_memory_bytes` the GPU
    memory of the code of its models. `gpu_needed_bytes` is the GPU memory of this code after its largest
    batch, and `gpu_size_bytes` the memory of the GPU. Both are 0 if they were not measured.
    """

    number: int
    state: ReplicaState
    generation: int
    pid: int | None = None
    started_at: float | None = None
    ready_at: float | None = None
    versions: tuple[LoadedVersion, ...] = ()
    restarts: int = 0
    memory_bytes: int = 0
    gpu_memory_bytes: int = 0
    gpu_needed_bytes: int = 0
    gpu_size_bytes: int = 0
    last_failure: str = ""
    last_failure_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowReport:
    """The comparison of the answers of a shadow with the served answers, since the service has this shadow.

    `equal` and `different` are rows. `mean_difference` and `largest_difference` are those of the numbers of
    the different rows, in the unit of the label or as probabilities; the mean is that of `difference_rows`
    rows. `failed` are copies without a prediction, and `dropped` copies that were not sent because the shadow
    was slow or did not run. `mean_seconds` is the mean time of an answer. The percentiles are those of the
    last compared requests: of the shadow, and of the answers that the clients got to the same requests.
    `problem` is the reason why the shadow does not run. The answers are compared with those of the version
    `served` since the Unix time `began`.
    """

    label: str
    is_ready: bool = False
    requests: int = 0
    equal: int = 0
    different: int = 0
    mean_difference: float = 0.0
    largest_difference: float = 0.0
    failed: int = 0
    dropped: int = 0
    mean_seconds: float = 0.0
    p50_seconds: float = 0.0
    p99_seconds: float = 0.0
    served_p50_seconds: float = 0.0
    served_p99_seconds: float = 0.0
    restarts: int = 0
    problem: str = ""
    difference_rows: int = 0
    served: str = ""
    began: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReport:
    """The observed state of a service. `generation` is the newest order of which all replicas were ready.
    `seen_generation` is the newest order that the parent process has read.

    `address` is the URL of the service with its real port. `pid` is the parent process. `written_at` is the
    Unix time of this report, which the parent process writes again at least every 2 seconds. `problem` is the
    reason why the newest order is not in effect.

    `wanted` is the number of replicas that the parent process wants to be ready. If it changed this number by
    itself, `scaled_at` is the Unix time of the last change, and `scale_reason` is the reason. `drift` has the
    versions with training statistics, and `drift_counts` has their counts if the order asks for them.
    `log_lost` is the number of lines and rows of the request log that were lost since the service started in
    this place. `log` has the numbers of logged and lost lines of its kinds; None if nothing was logged.
    """

    name: str
    state: ServiceState
    generation: int
    seen_generation: int
    address: str
    host: str
    port: int
    pid: int
    started_at: float
    written_at: float
    replicas: tuple[ReplicaReport, ...] = ()
    views: tuple[ViewReport, ...] = ()
    restarts: int = 0
    problem: str = ""
    last_failure: str = ""
    last_failure_at: float | None = None
    wanted: int | None = None
    scaled_at: float | None = None
    scale_reason: str = ""
    drift: tuple[VersionDrift, ...] = ()
    shadow: ShadowReport | None = None
    log_lost: int = 0
    drift_counts: tuple[DriftCounts, ...] = ()
    log: LogReport | None = None


def loaded_versions(report: ServiceReport | None) -> tuple[LoadedVersion, ...]:
    """Return the different versions that the replicas have loaded."""
    replicas = report.replicas if report is not None else ()
    return tuple(dict.fromkeys(version for replica in replicas for version in replica.versions))
