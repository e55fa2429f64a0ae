"""A whole grid on a fake clock: the real control node over a simulated world, with a schedule of faults."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from gridmill.control.begin import begin_run, stop_run
from gridmill.control.ledger import Ledger
from gridmill.control.node import ControlNode
from gridmill.control.state import Control, Counters
from gridmill.errors import StorageError
from gridmill.model.data import FileSource
from gridmill.model.job import Job
from gridmill.model.message import Order
from gridmill.model.pipeline import Pipeline
from gridmill.model.run import Run
from gridmill.model.site import Node, Site, SiteKind
from gridmill.ports.storage import FileStat
from gridmill.ports.store import Store
from gridmill.testing.clock import FakeClock
from gridmill.testing.simulated import Behaviour, SimulatedWorld


class NoStorage:
    """Storage of a simulation: no files at all."""

    location = "/simulated"

    def describe_source(self, source: FileSource, folder: str) -> tuple[FileStat, ...]:
        """No files."""
        return ()

    def remove(self, uri: str) -> None:
        """Nothing to remove."""

    def free_bytes(self) -> int:
        """Plenty."""
        return 2**40

    def has_bundle(self, bundle: str) -> bool:
        """No bundles are needed."""
        return True

    def put_bundle(self, bundle: str, data: bytes) -> None:
        """Nothing is kept."""


@dataclass(slots=True, kw_only=True)
class Simulation:
    """`control_dies` starts a new control node on the same store, as after SIGKILL."""

    store: Store
    behave: Callable[[Order], Behaviour]
    nodes: tuple[Node, ...] = ()
    clock: FakeClock = field(default_factory=FakeClock)
    seed: int = 0
    warnings: list[str] = field(default_factory=list)
    world: SimulatedWorld = field(init=False)
    node: ControlNode = field(init=False)
    tokens: int = 0

    def __post_init__(self) -> None:
        self.world = SimulatedWorld(self.clock, self.behave, nodes=self.nodes)
        self.node = self._control()

    def _token(self) -> str:
        self.tokens += 1
        return f"token-{self.tokens}"

    def _control(self) -> ControlNode:
        ledger = Ledger(self.store)
        control = Control(
            ledger=ledger,
            clock=self.clock,
            sites={"local": self.world},
            links=self.world,
            storage=NoStorage(),
            secret=b"simulated",
            new_token=self._token,
            counters=Counters(self.store.counters()),
            warn=self.warnings.append,
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

    def submit(self, pipeline: Pipeline) -> Run:
        """Start a run; raises what the store raises."""
        control = self.node.control
        if control.ledger.doubtful:
            self.tick()
        transaction = control.begin()
        run = begin_run(control, transaction, pipeline, force=True)
        control.ledger.commit(transaction)
        return run

    def stop(self, run_id: str) -> None:
        """Ask a run to stop."""
        control = self.node.control
        run = control.ledger.snapshot.runs.get(run_id)
        if run is not None:
            transaction = control.begin()
            stop_run(control, transaction, run, None)
            control.ledger.commit(transaction)

    def tick(self) -> float:
        """One tick; a failing store is survived as the loop survives it."""
        try:
            return self.node.tick()
        except StorageError:
            self.node.control.ledger.doubtful = True
            return 1.0

    def advance(self) -> float:
        """Tick and step until nothing is due, then let time pass to the next thing. Seconds passed."""
        wait = self.tick()
        self.world.step()
        due = self.world.next_event()
        if due is not None:
            wait = min(wait, max(0.0, due - self.clock.monotonic()))
        wait = min(max(wait, 0.001), 1.0)
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
        job = make(job_name)
        jobs.append(_needing(job, tuple(random.sample(names[:index], count))))
    return Pipeline(name=name, jobs=tuple(jobs))


def _needing(job: Job, needs: tuple[str, ...]) -> Job:
    return Job(
        name=job.name,
        needs=needs,
        retries=job.retries,
        memory_bytes=job.memory_bytes,
        priority=job.priority,
        command=job.command,
    )
