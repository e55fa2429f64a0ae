"""Simulates rentals on a fake clock: the real control node with a simulated provider, whose control node dies
and starts again later or never."""

from collections.abc import Callable, Mapping
from dataclasses import field
from math import inf
from random import Random
from typing import TypeVar

from gridmill.control.client_runs import AttendedRuns
from gridmill.domain.command import CommandSpec
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job, JobKind
from gridmill.domain.lease import Lease
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.rental_terms import EXPORT
from gridmill.domain.resource import Resource
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.states import FINISHED_RUNS, AttemptState, JobState
from gridmill.errors import StorageError
from gridmill.ports.store import Store
from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.account import SimulatedAccount
from gridmill.testing.cloud.provider import SimulatedProvider
from gridmill.testing.cloud.rental_oracle import Story, Watch
from gridmill.testing.cloud.rented_world import RentedWorld
from gridmill.testing.cloud.wire_runner import WireRunner
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Killed, Simulation

T = TypeVar("T")
SITE = "cloud"
"""The name of the simulated cloud site."""


@dataclass(slots=True, kw_only=True)
class RentalSimulation:
    """A control node that rents machines of an account, on a fake clock.

    If the control node is killed, it starts again `restart_after` seconds later; infinite means never.
    `settings` are settings of the site; with a bucket `export`, results outlast their machines. Several
    simulations can share an account, a clock and no more: each of them has its own `owner`.
    """

    account: SimulatedAccount
    clock: FakeClock
    store: Store
    owner: str = "grid-a"
    seed: int = 0
    restart_after: float = 0.0
    job_seconds: float = 60.0
    bad_machines: int = 0
    machines: int = 4
    settings: Mapping[str, str] = field(default_factory=dict)
    at_call: Callable[[str], None] = lambda moment: None
    grid: Simulation = field(init=False)
    world: RentedWorld = field(init=False)
    provider: SimulatedProvider = field(init=False)
    runner: WireRunner = field(init=False)
    random: Random = field(init=False)
    watch: Watch = field(default_factory=Watch)
    down_until: float = -inf
    died: float = inf
    stopped: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.provider = SimulatedProvider(self.account, name=self.owner, at_call=self.at_call)
        self.runner = WireRunner(self.clock, self.random)
        self.grid = Simulation(store=self.store, behave=self._behave, clock=self.clock, strict=False)
        self.world = RentedWorld(
            self.clock,
            self._behave,
            self.provider,
            owner=self.owner,
            exports=bool(self.settings.get(EXPORT)),
            bad_machines=self.bad_machines,
            machines=self.machines,
        )
        self.grid.world = self.world
        self._start()

    def _behave(self, order: AttemptOrder) -> Behaviour:
        return Behaviour(seconds=self.job_seconds)

    def _start(self) -> None:
        """Starts the control node, as after a SIGKILL."""
        self.world.control_died()
        self.world.is_node_alive = True
        self.grid.node = self.grid.new_node(sites={SITE: self.world}, background=self.runner)
        self.down_until, self.died = -inf, inf

    @property
    def is_up(self) -> bool:
        """Whether the control node runs now."""
        return self.down_until == -inf

    def attempt(self, act: Callable[[], object]) -> bool:
        """Executes an action of a user or of the control node. Returns False if the control node is dead, or
        if its store failed."""
        if not self.is_up:
            return False
        try:
            act()
        except StorageError:
            self.grid.node.control.ledger.doubtful = True
            return False
        except Killed:
            self.die()
            return False
        return True

    def die(self) -> None:
        """Kills the control node. Requests that it has already sent may still have their effect."""
        self.down_until = self.clock.monotonic() + self.restart_after
        self.died = self.clock.monotonic()
        self.world.is_node_alive = False
        self.runner.die(Killed)
        self.world.control_died()

    def interrupt(self) -> None:
        """Ends the control node as SIGINT and SIGTERM do: no further tick begins, and the calls that run end.
        Nothing is released. It starts again as after a SIGKILL."""
        if self.is_up and self.attempt(lambda: self.runner.stop(0.0)) and self.is_up:
            self.die()

    def disconnect(self) -> None:
        """Ends the clients of all runs, as Ctrl-C in `gridmill run` does: their runs are stopped."""
        for run in self.runs():
            if run.state not in FINISHED_RUNS:
                self.persist(lambda run=run: self._attended().stop(run.id))  # type: ignore[misc]
                self.stopped.add(run.id)

    def _attended(self) -> AttendedRuns:
        return AttendedRuns(self.grid.node, own_environment=True)

    def persist(self, act: Callable[[], object]) -> None:
        """Executes an action of a user until it succeeds, or until the control node is dead for ever."""
        while not self.attempt(act) and self.down_until < inf:
            self.advance()

    # --- what users do

    def declare(self) -> None:
        """Adds the site."""
        self.persist(self._declare)

    def _declare(self) -> None:
        control = self.grid.node.control
        control.ledger.load()
        settings = {"provider": "simulated", **self.settings}
        site = Site(name=SITE, kind=SiteKind.CLOUD, nodes=self.world.nodes(), settings=settings)
        if control.ledger.find(Site, SITE) != site:
            transaction = control.begin()
            transaction.put(site)
            control.ledger.commit(transaction)
        control.ledger.doubtful = True

    def submit(self, jobs: int) -> None:
        """Starts a run of this number of jobs. Each job needs a machine of its own."""
        self.persist(lambda: self.grid.submit(pipeline(jobs)) if not self.runs() else None)

    def stop(self) -> None:
        """Stops all runs."""
        for run in self.runs():
            if run.state not in FINISHED_RUNS:
                self.persist(lambda run=run: self.grid.stop(run.id))  # type: ignore[misc]
                self.stopped.add(run.id)

    # --- records

    def runs(self) -> tuple[Run, ...]:
        """Returns the stored runs."""
        return tuple(self._all(Run))

    def leases(self) -> tuple[Lease, ...]:
        """Returns the stored leases."""
        return tuple(self._all(Lease))

    def _all(self, noun: type[T]) -> list[T]:
        return [record.noun for record in self.store.list(noun) if isinstance(record.noun, noun)]

    def is_over(self) -> bool:
        """Whether all runs have ended and nothing is left to release, according to the control node."""
        if not self.is_up or not self.runs():
            return False
        snapshot = self.grid.node.control.ledger.snapshot
        left = snapshot.runs or snapshot.deployments or any(lease.is_open for lease in self.leases())
        return not left and not self.grid.node.control.ledger.doubtful

    # --- time

    def advance(self, *, until: float = inf) -> None:
        """Executes one tick and everything that happens until the next event, but at most until the
        monotonic time `until`."""
        now = self.clock.monotonic()
        if not self.is_up and self.down_until <= now:
            self._start()
        wait = self._tick()
        self._step()
        events = [self.world.next_event(), self.runner.next_event(), until]
        if not self.is_up:
            events.append(self.down_until)
        due = min(event for event in events if event is not None)
        self.clock.advance(max(0.001, min(wait, due - now, 60.0)))
        self._step()

    def _tick(self) -> float:
        if not self.is_up:
            return inf
        waits: list[float] = []
        return waits[0] if self.attempt(lambda: waits.append(self.grid.node.tick())) else 1.0

    def _step(self) -> None:
        reachable = self.is_up and not self.provider.is_cut and self._answers()
        self.watch.note(self.clock.monotonic(), reachable=reachable)
        self.attempt(self.runner.step)
        self.world.step()
        for execution in self.world.executions:
            if execution.ended is not None:
                self.watch.note_job(self.world.machine_of_pod[execution.pod_id], execution.ended)

    def _answers(self) -> bool:
        account, now, faults = self.account, self.clock.monotonic(), self.account.faults
        away = max([account.away_until, *account.region_away_until.values()])
        failing = faults.server_errors or faults.lost_answers or faults.calls_per_second < 1.0
        return now >= away and now < account.credentials_end and not failing

    def run_until(self, done: Callable[[], bool], at_most_seconds: float) -> bool:
        """Advances until `done` returns true, or this time has passed."""
        until = self.clock.monotonic() + at_most_seconds
        while not done() and self.clock.monotonic() < until:
            self.advance(until=until)
        return done()

    def story(self) -> Story:
        """Returns what the oracle needs."""
        ends = [one.ended or 0.0 for one in self.world.executions if one.state is AttemptState.SUCCEEDED]
        jobs, attempts = self._all(JobRun), self._all(Attempt)
        over = [run.ended - self.account.epoch for run in self.runs() if run.ended is not None]
        return Story(
            account=self.account,
            owner=self.owner,
            needed_until=dict(self.watch.needed_until),
            over=max([*ends, *over], default=0.0),
            reachable_since=inf if self.died < inf else self.watch.reachable_since,
            died=self.died,
            accepted=[one.job_run_id for one in attempts if one.state is AttemptState.SUCCEEDED],
            unfinished=[
                job.id
                for job in jobs
                if job.state is not JobState.SUCCEEDED and job.run_id not in self.stopped
            ],
            clients=(self.owner,),
        )


def pipeline(jobs: int) -> Pipeline:
    """Returns a pipeline of jobs that need one GPU each, each on a resource of its own."""
    resources = tuple(
        Resource(name=f"burst{number}", type=JobKind.COMMAND, gpus=1, site=SITE, keep_seconds=0.0)
        for number in range(jobs)
    )
    return Pipeline(
        name="rented",
        resources=resources,
        jobs=tuple(
            Job(
                name=f"job{number}",
                command=CommandSpec(run="true"),
                memory_bytes=2**30,
                resource=resource.name,
            )
            for number, resource in enumerate(resources)
        ),
    )
