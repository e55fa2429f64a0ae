"""Simulates a grid on a fake clock: the real control node with a simulated site, and a schedule of
faults."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from random import Random

from gridmill.codec import fingerprint
from gridmill.control.background import BackgroundRunner, ImmediateRunner
from gridmill.control.catalog import Catalog
from gridmill.control.counters import Counters
from gridmill.control.ledger import Ledger
from gridmill.control.node import ControlNode
from gridmill.control.renting_state import Rentals
from gridmill.control.state import (
    Channels,
    CodeFiles,
    Control,
    ControlTimeouts,
    Problems,
    ScheduleTimers,
    Timeline,
)
from gridmill.control.steps.run_lifecycle import begin_run, resume_run, stop_run
from gridmill.control.usecases.pipelines import PipelineUseCases
from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job
from gridmill.domain.log_counts import NO_ARRIVALS, LogArrivals
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.preflight import PreflightRequest, PreflightResult, UncheckedJob
from gridmill.domain.provenance import CodeFile, Provenance
from gridmill.domain.run import Run
from gridmill.domain.service_features import (
    FeatureAnswer,
    FeatureDefinition,
    FeatureQuestion,
    FeatureSettings,
    features_folder,
)
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.domain.source import Source
from gridmill.domain.version_manifest import AliasMove, FileProblem, VerificationResult
from gridmill.errors import StorageError
from gridmill.ports.site import SitePort
from gridmill.ports.storage import FileStat
from gridmill.ports.store import Store
from gridmill.testing.clock import FakeClock
from gridmill.testing.memory_logs import MemoryLogs
from gridmill.testing.simulated_site import Behaviour, SimulatedWorld


class NoStorage:
    """The storage of a simulation, which has no files. `removed` lists the deleted paths, `manifests` lists
    the versions that have a manifest, and `moves` lists the moves of aliases. `wrong` contains the file
    problems of versions, and `arrivals` the arrived log files, which a test can set."""

    location = "/simulated"
    bundles_location = "/simulated"

    def __init__(self) -> None:
        self.removed: list[str] = []
        self.manifests: set[str] = set()
        self._written: set[str] = set()
        self.moves: list[AliasMove] = []
        self.arrivals = NO_ARRIVALS
        self.wrong: dict[str, tuple[FileProblem, ...]] = {}

    def describe_source(self, source: Source, folder: str) -> tuple[FileStat, ...]:
        """No files."""
        return ()

    def hash_sources(self, files: tuple[FileStat, ...], key: str) -> tuple[FileStat, ...]:
        """Returns the files unchanged, because the content of a simulated file never changes."""
        return files

    def code_files(self, bundle: str) -> tuple[CodeFile, ...]:
        """Returns one file, which represents the hash of the bundle."""
        return (CodeFile(name="code", digest=bundle),)

    def preflight(self, question: PreflightRequest) -> PreflightResult:
        """Returns no problems, because there are no files to check."""
        return PreflightResult(
            unchecked=tuple(UncheckedJob(job=job.name, why="simulated") for job in question.jobs)
        )

    def define_features(self, question: FeatureQuestion) -> FeatureAnswer:
        """Returns a definition that reads all tables of the dataset. Other settings make another one."""
        base = features_folder(question.service)
        is_default = question.settings == FeatureSettings()
        suffix = "" if is_default else f"-{fingerprint(question.settings)[:8]}"
        return FeatureAnswer(
            definition=FeatureDefinition(
                folder=f"{base}/definition-{question.dataset.number}{suffix}",
                view=f"{base}/view{suffix}",
                tables=question.table_names(),
                request=dict.fromkeys(question.columns, "DOUBLE"),
            )
        )

    def remove(self, uri: str) -> None:
        """Note the removed path."""
        self.removed.append(uri)

    def keep_manifest(
        self,
        version: Artifact,
        listed: str,
        *,
        shared: bool = False,
        provenance: Provenance | None = None,
    ) -> None:
        """Note the manifest."""
        self._written.add(version.id)

    def sync_manifests(self) -> None:
        """Note the manifests."""
        self.manifests |= self._written

    def next_number(self, name: str, number: int, attempt_id: str, *, first: bool) -> int:
        """Returns the given version number, because no files of unknown versions exist."""
        return number

    def highest_run(self, pipeline: str) -> int:
        """Returns 0, because there are no files."""
        return 0

    def drop_listed(self, listed: str) -> None:
        """Does nothing, because there are no files."""

    def problems(self, version: Artifact) -> tuple[FileProblem, ...]:
        """Returns the problems that a test has set."""
        return self.wrong.get(version.id, ())

    def verify(self, versions: Iterable[Artifact]) -> Iterator[VerificationResult]:
        """Yields the problems that a test has set."""
        yield from (
            VerificationResult(version=version.id, file_problems=self.problems(version))
            for version in versions
        )

    def note_move(self, move: AliasMove) -> None:
        """Note the move."""
        self.moves.append(move)

    def claim(self, pipeline: str, owner: str) -> None:
        """Does nothing, because there is no other owner."""

    def has_left(self, folder: str, host: str) -> bool:
        """Returns whether the host is `moved`. The folders of all other hosts still exist."""
        return host == "moved"

    def log_arrivals(self, service: str, writers: Iterable[str]) -> LogArrivals:
        """Returns what a test has set."""
        return self.arrivals

    def free_bytes(self) -> int:
        """Returns more bytes than any job needs."""
        return 2**40

    def has_bundle(self, bundle: str) -> bool:
        """No bundles are needed."""
        return True

    def shared_bundle(self, bundle: str) -> str:
        """A fixed path."""
        return f"/simulated/{bundle}"

    def share_bundle(self, bundle: str) -> None:
        """No bundles are needed."""

    def put_bundle(self, bundle: str, data: bytes) -> None:
        """Does nothing, because bundles are not stored."""


class Killed(BaseException):
    """Represents a SIGKILL to the simulated control node, at any point of its work."""


def kill() -> None:
    """Raises Killed. A store with faults calls this function instead of killing the process of the test."""
    raise Killed


@dataclass(slots=True, kw_only=True)
class Simulation:
    """A simulated grid on a fake clock. `control_dies` starts a new control node on the same record store,
    as after a SIGKILL.

    With `strict`, the simulation checks each tick that reports no more work: a second tick at the same time
    must change nothing.
    """

    store: Store
    behave: Callable[[AttemptOrder], Behaviour]
    nodes: tuple[Node, ...] = ()
    clock: FakeClock = field(default_factory=FakeClock)
    seed: int = 0
    warnings: list[str] = field(default_factory=list)
    world: SimulatedWorld = field(init=False)
    node: ControlNode = field(init=False)
    tokens: int = 0
    strict: bool = True
    limits: ControlTimeouts = field(default_factory=ControlTimeouts)
    storage: NoStorage = field(default_factory=NoStorage)
    logs: MemoryLogs = field(default_factory=MemoryLogs)

    def __post_init__(self) -> None:
        self.world = SimulatedWorld(self.clock, self.behave, nodes=self.nodes)
        self.node = self.new_node()

    def _token(self) -> str:
        self.tokens += 1
        return f"token-{self.tokens}"

    def new_node(
        self, sites: Mapping[str, SitePort] | None = None, background: BackgroundRunner | None = None
    ) -> ControlNode:
        """Returns a new control node on the record store. By default, its site `local` is the simulated
        world, and slow actions run immediately."""
        ledger, timeline = Ledger(self.store, self.logs), Timeline(clock=self.clock)
        control = Control(
            ledger=ledger,
            clock=self.clock,
            sites=dict(sites or {"local": self.world}),
            background=background or ImmediateRunner(),
            rentals=Rentals(
                calls=background or ImmediateRunner(),
                preparing=background or ImmediateRunner(),
                forgetting=background or ImmediateRunner(),
            ),
            storage=self.storage,
            timeline=timeline,
            code=CodeFiles(storage=self.storage, timeline=timeline),
            new_token=self._token,
            counters=Counters(self.store.counters()),
            limits=self.limits,
            catalog=Catalog(ledger=ledger),
            channels=Channels(links=self.world, secret=b"simulated"),
            problems=Problems(warn=self.warnings.append),
            alarms=ScheduleTimers(),
        )
        return ControlNode(control)

    def control_dies(self) -> None:
        """Kills the control node as SIGKILL does, and starts a new one. Only the record store and the
        simulated site continue to exist."""
        self.world.control_died()
        self.node = self.new_node()

    def declare_site(self) -> None:
        """Writes the site to the record store, in the same way as bootstrap."""
        control = self.node.control
        control.ledger.load()
        site = Site(name="local", kind=SiteKind.SIMULATED, nodes=self.world.nodes())
        if control.ledger.find(Site, "local") != site:
            transaction = control.begin()
            transaction.put(site)
            control.ledger.commit(transaction)
        control.ledger.doubtful = True

    def submit(self, pipeline: Pipeline, *, force: bool = True, adopt: bool = False) -> Run:
        """Starts a run of the pipeline. Raises the errors of the record store."""
        with self.node.changing() as transaction:
            return begin_run(self.node.control.run_creation, transaction, pipeline, force=force, adopt=adopt)

    def apply(self, pipeline: Pipeline) -> None:
        """Stores a pipeline with its schedule."""
        PipelineUseCases(self.node).apply(pipeline)

    def stop(self, run_id: str, job: str | None = None) -> None:
        """Stops a run or one job of the run."""
        with self.node.changing() as transaction:
            run = self.node.control.ledger.snapshot.runs.get(run_id)
            if run is not None:
                stop_run(
                    self.node.control.ledger,
                    self.node.control.channels,
                    self.node.control.candidates,
                    transaction,
                    run,
                    job,
                )

    def resume(self, run_id: str) -> None:
        """Continues a run. Raises ConflictError if the run has succeeded."""
        with self.node.changing() as transaction:
            resume_run(
                self.node.control.catalog,
                self.node.control.storage,
                self.node.control.candidates,
                self.node.control.clients,
                transaction,
                run_id,
            )

    def attempt(self, act: Callable[[], object]) -> bool:
        """Executes an action. A failing record store and a killed control node are handled as in a real
        grid. Returns False if the action is not permitted."""
        try:
            act()
        except StorageError:
            self.node.control.ledger.doubtful = True
            return False
        except Killed:
            self.control_dies()
            return False
        return True

    def tick(self) -> float:
        """Executes one tick. A failing record store is handled in the same way as in the loop of a control
        node."""
        waits: list[float] = []
        if not self.attempt(lambda: waits.append(self.node.tick())):
            return 1.0
        if self.strict and waits[0] > 0 and not self.world.has_mail():
            before = self.node.commits
            if self.attempt(self.node.tick):
                assert self.node.commits == before, "a tick said to wait, and there was more to do"
        return waits[0]

    def stall(self, seconds: float) -> None:
        """Lets time pass at the simulated site while the control node is busy."""
        for _ in range(4):
            self.clock.advance(seconds / 4)
            self.world.step()

    def advance(self) -> float:
        """Executes ticks and steps until there is nothing to do, and then advances the clock to the next
        event. Returns the number of seconds that passed."""
        wait = self.tick()
        self.world.step()
        due = self.world.next_event()
        if due is not None:
            wait = min(wait, max(0.0, due - self.clock.monotonic()))
        wait = max(wait, 0.001)
        self.clock.advance(wait)
        return wait

    def run_until(self, done: Callable[[], bool], *, at_most_steps: int = 100_000) -> bool:
        """Advances the simulation until `done` returns true. Returns False if `done` does not return true
        within the allowed steps."""
        for _ in range(at_most_steps):
            if done():
                return True
            self.advance()
        return done()


def random_pipeline(random: Random, name: str, make: Callable[[str], Job]) -> Pipeline:
    """Returns a pipeline that is a random DAG of up to a dozen jobs. `make` makes each job."""
    names = [f"job{index}" for index in range(random.randint(1, 12))]
    jobs = []
    for index, job_name in enumerate(names):
        count = random.randint(0, min(index, 3))
        jobs.append(replace(make(job_name), needs=tuple(random.sample(names[:index], count))))
    return Pipeline(name=name, jobs=tuple(jobs))
