"""A whole grid on a fake clock: the real control node over a simulated world, with a schedule of faults."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import field, replace
from random import Random

from gridmill.control.ledger import Ledger
from gridmill.control.node import ControlNode
from gridmill.control.state import (
    Catalog,
    Channels,
    CodeFiles,
    Control,
    ControlTimeouts,
    Counters,
    Problems,
    ScheduleTimers,
    Timeline,
)
from gridmill.control.steps.run_lifecycle import begin_run, resume_run, stop_run
from gridmill.control.usecases.pipelines import PipelineUseCases
from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.preflight import PreflightRequest, PreflightResult, UncheckedJob
from gridmill.domain.provenance import CodeFile, Provenance
from gridmill.domain.run import Run
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.domain.source import Source
from gridmill.domain.version_manifest import AliasMove, FileProblem, VerificationResult
from gridmill.errors import StorageError
from gridmill.ports.storage import FileStat
from gridmill.ports.store import Store
from gridmill.testing.clock import FakeClock
from gridmill.testing.memory_logs import MemoryLogs
from gridmill.testing.simulated_site import Behaviour, SimulatedWorld


class NoStorage:
    """Storage of a simulation: no files at all. `removed` lists what was to be removed, `manifests` the
    versions that have one, `moves` those of aliases; `wrong` is what is wrong with versions."""

    location = "/simulated"
    bundles_location = "/simulated"

    def __init__(self) -> None:
        self.removed: list[str] = []
        self.manifests: set[str] = set()
        self._written: set[str] = set()
        self.moves: list[AliasMove] = []
        self.wrong: dict[str, tuple[FileProblem, ...]] = {}

    def describe_source(self, source: Source, folder: str) -> tuple[FileStat, ...]:
        """No files."""
        return ()

    def hash_sources(self, files: tuple[FileStat, ...], key: str) -> tuple[FileStat, ...]:
        """The files as they are: what a simulated file holds never changes."""
        return files

    def code_files(self, bundle: str) -> tuple[CodeFile, ...]:
        """One file, which the bundle's hash stands for."""
        return (CodeFile(name="code", digest=bundle),)

    def preflight(self, question: PreflightRequest) -> PreflightResult:
        """Nothing can be looked at."""
        return PreflightResult(
            unchecked=tuple(UncheckedJob(job=job.name, why="simulated") for job in question.jobs)
        )

    def remove(self, uri: str) -> None:
        """Nothing to remove, but to remember."""
        self.removed.append(uri)

    def keep_manifest(
        self,
        version: Artifact,
        listed: str,
        *,
        shared: bool = False,
        provenance: Provenance | None = None,
    ) -> None:
        """Nothing is kept, but remembered."""
        self._written.add(version.id)

    def sync_manifests(self) -> None:
        """Nothing is kept, but remembered."""
        self.manifests |= self._written

    def next_number(self, name: str, number: int, attempt_id: str, *, first: bool) -> int:
        """The number itself: there are no files of versions that nobody knows."""
        return number

    def highest_run(self, pipeline: str) -> int:
        """There are no files."""
        return 0

    def drop_listed(self, listed: str) -> None:
        """Nothing is there."""

    def problems(self, version: Artifact) -> tuple[FileProblem, ...]:
        """What a test says."""
        return self.wrong.get(version.id, ())

    def verify(self, versions: Iterable[Artifact]) -> Iterator[VerificationResult]:
        """What a test says."""
        yield from (
            VerificationResult(version=version.id, file_problems=self.problems(version))
            for version in versions
        )

    def note_move(self, move: AliasMove) -> None:
        """Nothing is kept, but remembered."""
        self.moves.append(move)

    def claim(self, pipeline: str, owner: str) -> None:
        """Nobody else is there."""

    def has_left(self, folder: str, host: str) -> bool:
        """All folders are where they were, but those of the host `moved`."""
        return host == "moved"

    def free_bytes(self) -> int:
        """Plenty."""
        return 2**40

    def has_bundle(self, bundle: str) -> bool:
        """No bundles are needed."""
        return True

    def shared_bundle(self, bundle: str) -> str:
        """Nowhere in particular."""
        return f"/simulated/{bundle}"

    def share_bundle(self, bundle: str) -> None:
        """No bundles are needed."""

    def put_bundle(self, bundle: str, data: bytes) -> None:
        """Nothing is kept."""


class Killed(BaseException):
    """SIGKILL of the simulated control node, in the middle of whatever it does."""


def kill() -> None:
    """What a store with faults is to call instead of killing this process."""
    raise Killed


@dataclass(slots=True, kw_only=True)
class Simulation:
    """`control_dies` starts a new control node on the same store, as after SIGKILL.

    `strict`: whenever a tick says to wait, ticking again at once must change nothing.
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
        self.node = self._control()

    def _token(self) -> str:
        self.tokens += 1
        return f"token-{self.tokens}"

    def _control(self) -> ControlNode:
        ledger, timeline = Ledger(self.store, self.logs), Timeline(clock=self.clock)
        control = Control(
            ledger=ledger,
            clock=self.clock,
            sites={"local": self.world},
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
        """SIGKILL and a new start: only the store and the world remain."""
        self.world.control_died()
        self.node = self._control()

    def declare_site(self) -> None:
        """Put the site into the store, as bootstrap does."""
        control = self.node.control
        control.ledger.load()
        site = Site(name="local", kind=SiteKind.SIMULATED, nodes=self.world.nodes())
        if control.ledger.find(Site, "local") != site:
            transaction = control.begin()
            transaction.put(site)
            control.ledger.commit(transaction)
        control.ledger.doubtful = True

    def submit(self, pipeline: Pipeline, *, force: bool = True, adopt: bool = False) -> Run:
        """Start a run; raises what the store raises."""
        with self.node.changing() as transaction:
            return begin_run(self.node.control, transaction, pipeline, force=force, adopt=adopt)

    def apply(self, pipeline: Pipeline) -> None:
        """Keep a pipeline, with its schedule."""
        PipelineUseCases(self.node).apply(pipeline)

    def stop(self, run_id: str, job: str | None = None) -> None:
        """Ask a run, or one job of it, to stop."""
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
        """Continue a run. Raises ConflictError when it succeeded."""
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
        """Do something; a failing store and a kill are survived as in life. False: it may not be done."""
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
        """One tick; a failing store is survived as the loop survives it."""
        waits: list[float] = []
        if not self.attempt(lambda: waits.append(self.node.tick())):
            return 1.0
        if self.strict and waits[0] > 0 and not self.world.has_mail():
            before = self.node.commits
            if self.attempt(self.node.tick):
                assert self.node.commits == before, "a tick said to wait, and there was more to do"
        return waits[0]

    def stall(self, seconds: float) -> None:
        """The control node is busy elsewhere while the world goes on."""
        for _ in range(4):
            self.clock.advance(seconds / 4)
            self.world.step()

    def advance(self) -> float:
        """Tick and step until nothing is due, then let time pass to the next thing. Seconds passed."""
        wait = self.tick()
        self.world.step()
        due = self.world.next_event()
        if due is not None:
            wait = min(wait, max(0.0, due - self.clock.monotonic()))
        wait = max(wait, 0.001)
        self.clock.advance(wait)
        return wait

    def run_until(self, done: Callable[[], bool], *, at_most_steps: int = 100_000) -> bool:
        """Advance until `done`; False when it never came."""
        for _ in range(at_most_steps):
            if done():
                return True
            self.advance()
        return done()


def random_pipeline(random: Random, name: str, make: Callable[[str], Job]) -> Pipeline:
    """A random DAG of up to a dozen jobs made by `make`."""
    names = [f"job{index}" for index in range(random.randint(1, 12))]
    jobs = []
    for index, job_name in enumerate(names):
        count = random.randint(0, min(index, 3))
        jobs.append(replace(make(job_name), needs=tuple(random.sample(names[:index], count))))
    return Pipeline(name=name, jobs=tuple(jobs))
