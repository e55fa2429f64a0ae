"""This module has the state of a control node, in parts: the store with its copy in memory (`Ledger`), the
interfaces to sites and pods, and values that are lost at a restart."""

import hashlib
import hmac
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import field
from typing import Any

from gridmill.control.background import BackgroundRunner, ImmediateRunner
from gridmill.control.catalog import LISTS_KEPT, BoundedCache, Catalog
from gridmill.control.counters import Counters
from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.renting_state import Rentals
from gridmill.control.secret_values import StoredSecrets
from gridmill.domain.artifact import Alias, Artifact
from gridmill.domain.farm_protocol import FarmStatus
from gridmill.domain.frozen import dataclass
from gridmill.domain.provenance import CodeFile, CodeList
from gridmill.domain.run import JobRun, RunRequest
from gridmill.domain.schedule import Schedule
from gridmill.domain.service_job import RequestOutcome, ServiceRequest
from gridmill.domain.site import Site
from gridmill.domain.states import JobState
from gridmill.domain.usage import DiskSpace
from gridmill.errors import UnavailableError
from gridmill.ports.clock import Clock
from gridmill.ports.cloud import CloudPort
from gridmill.ports.disk import HomeFolders, NoHomeFolders
from gridmill.ports.link import LinkServer
from gridmill.ports.secrets import NoVault, Vault
from gridmill.ports.site import SitePort
from gridmill.ports.storage import FileStat, Storage
from gridmill.ports.store import Noun

BUNDLES_KEPT = 8
"""The number of code bundles whose lists of files are held in memory."""
BRING_UPS = 3
"""If the pods of a resource fail to start this many times in a row, its waiting jobs fail."""
STARTS_PER_TICK = 200
"""The largest number of starts in one plan. The limit on the number of starts keeps a tick short, so that a
new job does not wait for many other jobs."""
CANDIDATES_PER_TICK = 200
"""The number of jobs whose fingerprints are computed in one tick; these jobs are taken from all runs in
turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlTimeouts:
    """The timeouts of the control node in seconds, from the settings."""

    observe_seconds: float = 1.0
    orphan_seconds: float = 3600.0
    greeting_seconds: float = 120.0


@dataclass(slots=True)
class SourceWatch:
    """The state of the sources of a continuous schedule. `seen` has the files for which runs were started;
    it is empty after a restart of the control node. `waiting_since` is the time since which new files wait,
    and `look_at` is the time of the next check; both are monotonic times. `message` is the reason why the
    schedule starts no run now."""

    seen: frozenset[FileStat] = frozenset()
    waiting_since: float | None = None
    look_at: float = 0.0
    message: str = ""


@dataclass(slots=True)
class ScheduleTimers:
    """The times at which schedules are checked again. For each schedule, `times` has the record of the
    schedule at its last check, and the time of its next check (Unix time of the wall clock).

    `awake_since` is the time at which the control node started, or at which its machine woke from sleep.
    `offset` is the difference between the wall clock and the monotonic clock. If the offset changes, the
    machine slept or its clock was set. `watches` has the state of continuous schedules.
    """

    awake_since: float = 0.0
    offset: float | None = None
    times: dict[str, tuple[Schedule, float]] = field(default_factory=dict)
    watches: dict[str, SourceWatch] = field(default_factory=dict)


class Candidates:
    """The jobs that may be able to run now, because the jobs that they need may have ended. One job after
    the other is taken from each run in turn, so that a large run does not delay a small run."""

    def __init__(self) -> None:
        self._by_run: dict[str, deque[str]] = {}

    def add(self, run_id: str, job_run_ids: Iterable[str]) -> None:
        """Check these jobs in one of the next ticks."""
        added = deque(job_run_ids)
        if added:
            self._by_run.setdefault(run_id, deque()).extend(added)

    def take(self, limit: int) -> Iterator[str]:
        """Return up to `limit` ids of jobs, one from each run in turn."""
        for _ in range(limit):
            run_id = next(iter(self._by_run), None)
            if run_id is None:
                return
            waiting = self._by_run.pop(run_id)
            job_run_id = waiting.popleft()
            if waiting:
                self._by_run[run_id] = waiting
            yield job_run_id

    def __bool__(self) -> bool:
        return bool(self._by_run)


def no_site(site: Site) -> SitePort:
    """Raise UnavailableError, because a control node that starts no pods has no interfaces to sites."""
    raise UnavailableError(f"site {site.name} is not open in this control node")


def no_cloud(site: Site) -> CloudPort:
    """Raise UnavailableError, because a control node that starts no pods opens no account of a provider."""
    raise UnavailableError(f"site {site.name} is not open in this control node")


@dataclass(slots=True, kw_only=True)
class Timeline:
    """The clock from which records get their times. The wall clock is read only once. After that, the time
    is advanced by the monotonic clock, so the times of records never jump."""

    clock: Clock
    offset: float | None = None

    def now(self) -> float:
        """Return the time as Unix time in seconds."""
        if self.offset is None:
            self.offset = self.clock.now() - self.clock.monotonic()
        return self.offset + self.clock.monotonic()


@dataclass(slots=True, kw_only=True)
class CodeFiles:
    """The files of code bundles in the storage, and the lists of the files that each job reads."""

    storage: Storage
    timeline: Timeline
    files: BoundedCache[Sequence[CodeFile]] = field(default_factory=lambda: BoundedCache(BUNDLES_KEPT))
    read: BoundedCache[CodeList] = field(default_factory=lambda: BoundedCache(LISTS_KEPT))


@dataclass(slots=True, kw_only=True)
class Channels:
    """The channels of the connected pods. `open` has all channels, including channels whose pod has not sent
    a Hello. `protocols` has the version of the protocol of each pod that has sent a Hello."""

    links: LinkServer
    secret: bytes
    grace_seconds: float = 5.0
    by_pod: dict[str, int] = field(default_factory=dict)
    by_channel: dict[int, str] = field(default_factory=dict)
    protocols: dict[str, int] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)

    def pod_secret(self, pod_id: str) -> str:
        """Return the secret that a pod must send in its Hello. The secret is derived from another secret, so
        that it does not have to be stored."""
        return hmac.new(self.secret, pod_id.encode(), hashlib.sha256).hexdigest()

    def drop_all(self) -> None:
        """Close all channels, so that every pod connects again and sends a new Hello."""
        for channel in self.open:
            self.links.drop(channel)
        self.open.clear()
        self.by_channel.clear()
        self.by_pod.clear()


@dataclass(slots=True, kw_only=True)
class Problems:
    """The function that prints warnings, and the last warning about each subject that has a lasting
    problem."""

    warn: Callable[[str], None] = lambda message: None
    lasting: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class DiskState:
    """The free space of home and root at the last check, and the number of bytes that were evicted since the
    start."""

    spaces: tuple[DiskSpace, ...] = ()
    evicted_bytes: int = 0
    evicted_items: int = 0
    next_eviction: float = 0.0
    """The monotonic time of the next eviction, in seconds."""

    @property
    def shortage(self) -> str:
        """Return a sentence about the disk that is nearly full. The result is empty if no disk is nearly
        full."""
        return next((space.shortage for space in self.spaces if space.is_short), "")


@dataclass(slots=True, kw_only=True)
class BringUps:
    """The results of the requests for pods that were sent to sites. After a restart of the control node, the
    results are collected anew.

    `failed` is the number of requests for pods that failed in a row, by resource. `problems` has the last
    failed request for pods of each resource, as text. `refusing_nodes` has, by resource, the nodes on which
    pods failed to start. When a pod of the resource starts successfully, these nodes are removed. `unfit`
    has, by resource and node, the time and the text of the node's report about missing properties.
    `not_before` is the time at which Gridmill tries again to tear down a deployment (monotonic).
    """

    brought_up: set[str] = field(default_factory=set)
    silent_since: dict[str, float] = field(default_factory=dict)
    unknown_since: dict[str, float] = field(default_factory=dict)
    """The monotonic time since which the site cannot observe a pod, by pod id."""
    failed: dict[str, int] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    refusing_nodes: dict[str, set[str]] = field(default_factory=dict)
    unfit: dict[str, dict[str, tuple[float, str]]] = field(default_factory=dict)
    not_before: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class ReportedProgress:
    """The values of running jobs that are not stored: progress, metrics, and the last line of each node."""

    progress: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    last_lines: dict[str, str] = field(default_factory=dict)

    def keep_only(self, job_runs: Mapping[str, JobRun]) -> None:
        """Delete the reported values of all jobs except these."""
        self.progress = {j: body for j, body in self.progress.items() if j in job_runs}
        self.metrics = {j: metrics for j, metrics in self.metrics.items() if j in job_runs}
        running = {job.id for job in job_runs.values() if job.state is JobState.RUNNING}
        self.last_lines = {j: line for j, line in self.last_lines.items() if j in running}

    def drop(self, job_run_id: str) -> None:
        """Delete the reported values of that job."""
        self.progress.pop(job_run_id, None)
        self.metrics.pop(job_run_id, None)
        self.last_lines.pop(job_run_id, None)


@dataclass(slots=True, kw_only=True)
class SiteChoices:
    """The jobs that may use several resources. `to_recheck` has the jobs for which Gridmill will check, one
    after the other, whether another resource is better. `unchecked` has the waiting jobs whose deadline and
    budget are checked when the offers of their cloud sites were read."""

    choosing: set[str] = field(default_factory=set)
    to_recheck: list[str] = field(default_factory=list)
    unchecked: set[str] = field(default_factory=set)
    next_at: float = 0.0


@dataclass(slots=True, kw_only=True)
class EarlyTurns:
    """The monotonic time at which the early transfers of inputs are chosen again, in seconds."""

    next_at: float = 0.0


@dataclass(slots=True, kw_only=True)
class SiteStates:
    """The last observed state of each farm, by site, and the sites that did not answer."""

    farm_statuses: dict[str, FarmStatus] = field(default_factory=dict)
    unreachable: set[str] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class PendingReads:
    """The results of reads in the background that were not used yet: lists of the files of sources, and
    checks of the files of versions."""

    listings: dict[str, Future[Any]] = field(default_factory=dict)
    files: dict[str, Future[Any]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Clients:
    """The environments of clients, by run, and the client of the run that is being started."""

    environments: dict[str, Mapping[str, str]] = field(default_factory=dict)
    request: RunRequest = field(default_factory=RunRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endings:
    """The parts of the control node's state that are needed to end an attempt: the records, the reported
    values of the job, and the state that the end of the attempt changes."""

    catalog: Catalog
    channels: Channels
    storage: Storage
    problems: Problems
    reported: ReportedProgress
    candidates: Candidates
    discarded: list[str]
    rentals: Rentals

    @property
    def ledger(self) -> Ledger:
        """The `Ledger` that the catalog uses."""
        return self.catalog.ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """The parts of the control node's state that are needed to start an attempt, or to end an attempt that
    cannot be started."""

    endings: Endings
    timeline: Timeline
    aside: BackgroundRunner
    clients: Clients
    secrets: StoredSecrets

    @property
    def ledger(self) -> Ledger:
        """The `Ledger` that the catalog uses."""
        return self.endings.catalog.ledger

    @property
    def channels(self) -> Channels:
        """The channels through which Start and Stop messages are sent."""
        return self.endings.channels


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMoves:
    """The parts of the control node's state that are needed to choose the resource of a job, and to move a
    job to another resource."""

    catalog: Catalog
    problems: Problems
    choices: SiteChoices
    site_states: SiteStates
    rentals: Rentals
    timeline: Timeline

    @property
    def ledger(self) -> Ledger:
        """The `Ledger` that the catalog uses."""
        return self.catalog.ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequests:
    """The parts of the control node's state that are needed to request pods from sites in the background."""

    sites: Mapping[str, SitePort]
    channels: Channels
    limits: ControlTimeouts
    bring_ups: BringUps
    problems: Problems
    runner: BackgroundRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCreation:
    """The parts of the control node's state that are needed to create a run. `claimed` has the pipelines
    whose names were reserved in the storage root."""

    catalog: Catalog
    storage: Storage
    counters: Counters
    claimed: set[str]
    clients: Clients
    candidates: Candidates

    @property
    def ledger(self) -> Ledger:
        """The `Ledger` that the catalog uses."""
        return self.catalog.ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundReads:
    """The parts of the control node's state that are needed to read files in the background: the storage,
    the threads, and the results that were not used yet."""

    storage: Storage
    runner: BackgroundRunner
    clock: Clock
    pending: PendingReads


@dataclass(slots=True, kw_only=True)
class FollowedNames:
    """Whether an alias may name another version than at the last look. It is true at first, because aliases
    may have moved while no control node ran."""

    may_have_moved: bool = True
    views_at: float = 0.0
    """The time (Unix seconds) at which the services get the newest versions of the tables behind their views
    again, although nothing has changed."""

    def look_again(self) -> None:
        """Let the next tick read the aliases that services follow."""
        self.may_have_moved = True

    def note(self, nouns: Collection[Noun], deleted: Collection[tuple[type[Any], str]]) -> None:
        """Take note of the records of a commit."""
        if any(isinstance(one, Alias | Artifact) for one in nouns) or any(key[0] is Alias for key in deleted):
            self.may_have_moved = True


def no_services(transaction: Transaction, request: ServiceRequest) -> RequestOutcome:
    """Raise UnavailableError, because a control node that only reads starts no services."""
    raise UnavailableError(f"service {request.name} cannot be started by this control node")


@dataclass(slots=True, kw_only=True)
class ServiceJobs:
    """The running jobs that start or update services. `open` has the ids of their JobRuns, and `measuring`
    the ids of the runs that measure the versions of their models first. `serve` changes a service as such a
    job requests; the use cases of services set it."""

    open: set[str] = field(default_factory=set)
    measuring: dict[str, str] = field(default_factory=dict)
    serve: Callable[[Transaction, ServiceRequest], RequestOutcome] = no_services

    def forget(self, job_run_id: str) -> None:
        """Forget a job that has ended."""
        self.open.discard(job_run_id)
        self.measuring.pop(job_run_id, None)


@dataclass(slots=True, kw_only=True)
class Control:
    """The whole state of a control node, divided into parts: its interfaces to the store, sites and pods,
    and values that are lost at a restart. Each step receives only the parts of the state that it needs. Only
    the holder of the node's lock may use this object.

    `alarms` is None if schedules do not run: in a control node that is embedded in a command, and in a
    control node that only reads.
    """

    ledger: Ledger
    clock: Clock
    sites: dict[str, SitePort]
    storage: Storage
    timeline: Timeline
    new_token: Callable[[], str]
    counters: Counters
    catalog: Catalog
    channels: Channels
    code: CodeFiles
    limits: ControlTimeouts = field(default_factory=ControlTimeouts)
    home_folders: HomeFolders = field(default_factory=NoHomeFolders)
    open_site: Callable[[Site], SitePort] = no_site
    open_cloud: Callable[[Site], CloudPort] = no_cloud
    background: BackgroundRunner = field(default_factory=ImmediateRunner)
    problems: Problems = field(default_factory=Problems)
    candidates: Candidates = field(default_factory=Candidates)
    disk: DiskState = field(default_factory=DiskState)
    bring_ups: BringUps = field(default_factory=BringUps)
    rentals: Rentals = field(default_factory=Rentals)
    reported: ReportedProgress = field(default_factory=ReportedProgress)
    choices: SiteChoices = field(default_factory=SiteChoices)
    site_states: SiteStates = field(default_factory=SiteStates)
    pending_reads: PendingReads = field(default_factory=PendingReads)
    clients: Clients = field(default_factory=Clients)
    discarded: list[str] = field(default_factory=list)
    claimed: set[str] = field(default_factory=set)
    next_observe: float = 0.0
    early: EarlyTurns = field(default_factory=EarlyTurns)
    vault: Vault = field(default_factory=NoVault)
    alarms: ScheduleTimers | None = None
    names: FollowedNames = field(default_factory=FollowedNames)
    service_jobs: ServiceJobs = field(default_factory=ServiceJobs)

    @property
    def endings(self) -> Endings:
        """The parts of the control node's state that are needed to end an attempt."""
        return Endings(
            catalog=self.catalog,
            channels=self.channels,
            storage=self.storage,
            problems=self.problems,
            reported=self.reported,
            candidates=self.candidates,
            discarded=self.discarded,
            rentals=self.rentals,
        )

    @property
    def secrets(self) -> StoredSecrets:
        """The secrets in the store, with the vault that decrypts them."""
        return StoredSecrets(ledger=self.ledger, vault=self.vault)

    @property
    def starting(self) -> Starting:
        """The parts of the control node's state that are needed to start an attempt."""
        return Starting(
            endings=self.endings,
            timeline=self.timeline,
            aside=self.background,
            clients=self.clients,
            secrets=self.secrets,
        )

    @property
    def run_creation(self) -> RunCreation:
        """The parts of the control node's state that are needed to create a run."""
        return RunCreation(
            catalog=self.catalog,
            storage=self.storage,
            counters=self.counters,
            claimed=self.claimed,
            clients=self.clients,
            candidates=self.candidates,
        )

    @property
    def pod_requests(self) -> PodRequests:
        """The parts of the control node's state that are needed to request pods from sites."""
        return PodRequests(
            sites=self.sites,
            channels=self.channels,
            limits=self.limits,
            bring_ups=self.bring_ups,
            problems=self.problems,
            runner=self.background,
        )

    @property
    def job_moves(self) -> JobMoves:
        """The parts of the control node's state that are needed to choose the resource of a job."""
        return JobMoves(
            catalog=self.catalog,
            problems=self.problems,
            choices=self.choices,
            site_states=self.site_states,
            rentals=self.rentals,
            timeline=self.timeline,
        )

    @property
    def reads(self) -> BackgroundReads:
        """The parts of the control node's state that are needed to read files in the background."""
        return BackgroundReads(
            storage=self.storage, runner=self.background, clock=self.clock, pending=self.pending_reads
        )

    def now(self) -> float:
        """See Timeline."""
        return self.timeline.now()

    def begin(self) -> Transaction:
        """Return a transaction whose changes have the present time."""
        return self.ledger.begin(self.now())

    def clear_caches(self) -> None:
        """Clear all caches, because they may contradict the records that were loaded again from the
        store."""
        snapshot = self.ledger.snapshot
        self.catalog.clear()
        self.pending_reads.listings.clear()
        self.pending_reads.files.clear()
        ups = self.bring_ups
        ups.brought_up &= snapshot.places.owners.keys()
        ups.silent_since = {d: t for d, t in ups.silent_since.items() if d in snapshot.deployments}
        self.reported.keep_only(snapshot.job_runs)
        running = (job for job in snapshot.job_runs.values() if job.state is JobState.RUNNING)
        self.service_jobs.open = {job.id for job in running if job.job.starts_service}
        self.choices.choosing = {job.id for job in snapshot.job_runs.values() if job.job.resources}
        self.choices.unchecked = {
            job.id
            for job in snapshot.job_runs.values()
            if job.job.has_terms and (job.forecast is None or job.forecast.unknown)
        }
