"""A thousand seeded schedules, of several faults each: nothing is lost, nothing runs twice at once."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from gridmill.control.state import ControlTimeouts
from gridmill.domain.amounts import Amounts
from gridmill.domain.artifact import Artifact
from gridmill.domain.job import CommandSpec, Job, JobKind
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.resource import Resource
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.site import Node
from gridmill.domain.states import DONE_JOBS, FINISHED_JOBS, FINISHED_RUNS, AttemptState, JobState, RunState
from gridmill.errors import StorageError
from gridmill.stores.memory import make as make_memory
from gridmill.testing.faults import Fault, FaultScript, FaultyStore
from gridmill.testing.simulated_site import Behaviour, pick
from gridmill.testing.simulation import Simulation, kill, random_pipeline

GROUP = 50
FIRST, MORE = range(0, 200, GROUP), range(200, 1000, GROUP)
"""Seeds: what `make test` tries, and what `make test-long` does."""


def command(name: str, **settings) -> Job:
    return Job(name=name, command=CommandSpec(run="true"), memory_bytes=2**30, **settings)


class Fates:
    """Of each commit: most succeed, some fail before or after, at some the control node is killed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def next(self) -> Fault:
        fates = (Fault.FAIL_BEFORE, Fault.FAIL_AFTER, Fault.KILL_BEFORE, Fault.KILL_AFTER, Fault.NONE)
        return self._random.choices(fates, (0.02, 0.02, 0.01, 0.01, 0.94))[0]


class Store(FaultyStore):
    """Reads fail at times too."""

    def __init__(self, seed: int) -> None:
        super().__init__(make_memory(), Fates(seed), kill=kill)
        self._random = Random(seed)
        self.reads_fail = 0.01

    def list(self, noun, **how):
        if self._random.random() < self.reads_fail:
            raise StorageError("injected: cannot be read")
        return super().list(noun, **how)

    def recover(self) -> None:
        self.schedule, self.reads_fail = FaultScript(), 0.0


class Story:
    """One seeded schedule: pipelines, what people do to their runs, and what goes wrong."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.store = Store(seed)
        self.outcomes: dict[str, Behaviour] = {}
        self.stopped: dict[str, float] = {}
        self.resumes = 0
        room = self.random.choice((32, 3))  # GiB: at 3, deployments have to make way for each other
        node = Node(name="sim", capacity=Amounts(cpus=8, memory_bytes=room * 2**30))
        self.simulation = Simulation(
            store=self.store,
            behave=self.behave,
            nodes=(node,),
            seed=seed,
            strict=seed % 4 == 0,
            limits=ControlTimeouts(observe_seconds=7.0),
        )
        self.pipelines = [self.pipeline(f"p{index}") for index in range(self.random.randint(1, 3))]

    def behave(self, order: AttemptOrder) -> Behaviour:
        if order.attempt_id not in self.outcomes:
            self.outcomes[order.attempt_id] = pick(self.random, order, failing=0.05, killed=0.03)
        return self.outcomes[order.attempt_id]

    def pipeline(self, name: str) -> Pipeline:
        made = random_pipeline(self.random, name, lambda job: command(job, retries=self.random.randint(0, 2)))
        resources = (
            Resource(name="small", type=JobKind.COMMAND, keep_seconds=2.0),
            Resource(name="large", type=JobKind.COMMAND, memory_bytes=2 * 2**30),
        )
        names = [self.random.choice((None, "small", "large")) for _ in made.jobs]
        jobs = tuple(replace(job, resource=resource) for job, resource in zip(made.jobs, names, strict=True))
        return replace(made, jobs=jobs, resources=resources)

    def tell(self) -> Simulation:
        simulation, random = self.simulation, self.random
        while not simulation.attempt(simulation.declare_site):
            pass
        for pipeline in self.pipelines:
            while not simulation.attempt(lambda pipeline=pipeline: simulation.submit(pipeline)):
                pass
        for _ in range(random.randint(0, 14)):
            self.misfortune() if random.random() < 0.7 else self.intervene()
            for _ in range(random.randint(1, 10)):
                simulation.advance()
        self.store.recover()
        seed = simulation.seed
        assert simulation.run_until(lambda: over(simulation), at_most_steps=20_000), f"seed {seed} never ends"
        return simulation

    def misfortune(self) -> None:
        simulation, random, world = self.simulation, self.random, self.simulation.world
        pod = random.choice(sorted(world.pods) or [""])
        match random.randrange(12):
            case 0:
                simulation.control_dies()
            case 1:
                world.kill_pod(pod)
            case 2:
                world.cut_link(pod, random.uniform(0.1, 90.0))
            case 3:
                simulation.clock.jump(random.uniform(-86_400, 86_400))
            case 4:
                simulation.control_dies()
                simulation.clock.jump(random.uniform(-86_400, 86_400))
            case 5:
                world.freeze(pod, random.uniform(0.1, 30.0))
            case 6:
                simulation.stall(random.uniform(1.0, 8.0))  # what comes twice comes at once
                world.repeat_events(pod)
                simulation.stall(0.4)
            case 7:
                world.forge(pod)
            case 8:
                world.away(random.uniform(0.1, 10.0))
            case 9:
                world.doubt(random.uniform(0.1, 30.0))
                world.kill_pod(pod)
            case 10:
                world.dial_seconds = random.choice((0.1, 3.0, 150.0))
            case _:
                world.cut_link(pod, 0.2)
                simulation.stall(random.uniform(1.0, 8.0))

    def intervene(self) -> None:
        """What people do while all that goes on."""
        simulation, random = self.simulation, self.random
        runs = sorted(simulation.node.control.ledger.snapshot.runs)
        ended = [run.id for run in nouns(self.store.store, Run) if run.state in RESUMABLE]
        match random.randrange(4):
            case 0 if runs:
                run = random.choice(runs)
                if simulation.attempt(lambda: simulation.stop(run)):
                    self.stopped[run] = simulation.clock.monotonic()
            case 1 if runs:
                run, job = random.choice(runs), f"job{random.randrange(4)}"
                simulation.attempt(lambda: simulation.stop(run, job))
            case 2 if ended:
                run = random.choice(ended)
                self.resumes += 1
                self.stopped.pop(run, None)
                simulation.attempt(lambda: simulation.resume(run))
            case 3 if len(nouns(self.store.store, Run)) < 5:
                pipeline = random.choice(self.pipelines)
                force = random.random() < 0.5
                simulation.attempt(lambda: simulation.submit(pipeline, force=force))
            case _:
                pass


RESUMABLE = (RunState.FAILED, RunState.STOPPED)


def over(simulation: Simulation) -> bool:
    snapshot = simulation.node.control.ledger.snapshot
    left = snapshot.runs or snapshot.deployments or simulation.world.pods
    return not simulation.node.control.ledger.doubtful and not left


def nouns(store, kind):
    return [record.noun for record in store.list(kind)]


def check(simulation: Simulation, *, resumes: int = 0) -> None:
    store = simulation.store
    jobs = {job.id: job for job in nouns(store, JobRun)}
    attempts = nouns(store, Attempt)
    assert all(run.state in FINISHED_RUNS for run in nouns(store, Run))
    assert all(job.state in FINISHED_JOBS for job in jobs.values())
    never_two_at_once(simulation)
    for job in jobs.values():
        mine = [a for a in attempts if a.job_run_id == job.id]
        succeeded = [a for a in mine if a.state == AttemptState.SUCCEEDED]
        assert len(succeeded) == (job.state == JobState.SUCCEEDED)
        failed = [a for a in mine if a.state == AttemptState.FAILED]
        assert len(failed) <= (job.job.retries + 2) * (resumes + 1)  # + the larger one after a memory kill
        assert {a.id for a in mine} == {f"{job.run_id}.{job.job.name}.{n + 1}" for n in range(len(mine))}
    no_log_gap(simulation, attempts)
    needs_first(simulation, jobs)
    versions_are_right(simulation, jobs, attempts)
    nothing_is_left(simulation)


def versions_are_right(simulation: Simulation, jobs: dict[str, JobRun], attempts: list[Attempt]) -> None:
    """Each success made one version, numbered without gap; each says what it was made from."""
    artifacts = nouns(simulation.store, Artifact)
    made_by = {a.id: a for a in attempts if a.state == AttemptState.SUCCEEDED}
    assert sorted(made_by) == sorted(artifact.attempt_id for artifact in artifacts)
    by_name: dict[str, list[int]] = {}
    for artifact in artifacts:
        by_name.setdefault(artifact.name, []).append(artifact.number)
        needs = jobs[made_by[artifact.attempt_id].job_run_id].needs
        assert artifact.made_from == tuple(name for need in needs for name in jobs[need].artifacts)
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in by_name.values())
    assert all(job.artifacts for job in jobs.values() if job.state in DONE_JOBS)


def nothing_is_left(simulation: Simulation) -> None:
    """A control node that goes on for months must forget what is over."""
    control = simulation.node.control
    for _ in range(3):
        simulation.advance()
    snapshot = control.ledger.snapshot
    assert not snapshot.attempts
    assert not snapshot.job_runs
    assert not any(
        (
            control.channels.by_pod,
            control.channels.by_channel,
            control.channels.open,
            control.bring_ups.brought_up,
            control.bring_ups.silent_since,
        )
    )
    assert not any((control.reported.progress, control.reported.metrics, bool(control.candidates)))


def stopped_means_stopped(simulation: Simulation, stopped: dict[str, float]) -> None:
    """What was on its way to a pod when its run was stopped is ended there; nothing else begins."""
    for execution in simulation.world.executions:
        if execution.began > stopped.get(execution.order.run_id, float("inf")):
            assert execution.state in (AttemptState.STOPPED, AttemptState.LOST)


def never_two_at_once(simulation: Simulation) -> None:
    by_job: dict[tuple[str, str], list] = {}
    ids = [e.order.attempt_id for e in simulation.world.executions]
    assert len(ids) == len(set(ids)), "an attempt was started twice"
    for execution in simulation.world.executions:
        by_job.setdefault((execution.order.pipeline, execution.order.job.name), []).append(execution)
    for executions in by_job.values():
        executions.sort(key=lambda e: e.began)
        for earlier, later in pairwise(executions):
            assert earlier.ended is not None
            assert earlier.ended <= later.began, f"{earlier.order.attempt_id} overlaps the next"


def no_log_gap(simulation: Simulation, attempts: list[Attempt]) -> None:
    behaviours = {e.order.attempt_id: e.behaviour for e in simulation.world.executions}
    for attempt in attempts:
        if attempt.state == AttemptState.SUCCEEDED:
            lines = [e.text for e in simulation.logs.records if e.attempt_id == attempt.id]
            assert lines == [f"line {n}\n" for n in range(behaviours[attempt.id].lines)]


def needs_first(simulation: Simulation, jobs: dict[str, JobRun]) -> None:
    ended = {
        f"{e.order.run_id}/{e.order.job.name}": e.ended
        for e in simulation.world.executions
        if e.state == AttemptState.SUCCEEDED
    }
    for execution in simulation.world.executions:
        job = jobs[f"{execution.order.run_id}/{execution.order.job.name}"]
        assert all(jobs[need].state in DONE_JOBS for need in job.needs)
        assert all(ended.get(need, 0.0) <= execution.began for need in job.needs)


@pytest.mark.parametrize("first", FIRST)
def test_seeded_schedules_of_faults_end_right(first: int):
    try_schedules(first)


@pytest.mark.long
@pytest.mark.parametrize("first", MORE)
def test_more_seeded_schedules_of_faults_end_right(first: int):
    try_schedules(first)


def try_schedules(first: int):
    for seed in range(first, first + GROUP):
        story = Story(seed)
        try:
            check(story.tell(), resumes=story.resumes)
            stopped_means_stopped(story.simulation, story.stopped)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_a_quiet_grid_runs_everything_once_and_gives_everything_back():
    simulation = Simulation(store=make_memory(), behave=lambda order: Behaviour(seconds=1.0))
    simulation.declare_site()
    jobs = tuple(command(f"j{i}", needs=(f"j{i - 1}",) if i else ()) for i in range(5))
    run = simulation.submit(Pipeline(name="line", jobs=jobs))
    assert simulation.run_until(lambda: over(simulation))
    record = simulation.store.get(Run, run.id)
    assert record.noun.state == RunState.SUCCEEDED
    assert [e.order.job.name for e in simulation.world.executions] == [f"j{i}" for i in range(5)]
    check(simulation)


def test_stopping_a_run_stops_its_jobs_and_it_can_go_on():
    simulation = Simulation(store=make_memory(), behave=lambda order: Behaviour(seconds=30.0))
    simulation.declare_site()
    run = simulation.submit(Pipeline(name="line", jobs=(command("a"), command("b", needs=("a",)))))
    assert simulation.run_until(lambda: bool(simulation.world.executions))
    simulation.stop(run.id)
    assert simulation.run_until(lambda: over(simulation))
    states = {job.job.name: job.state for job in nouns(simulation.store, JobRun)}
    assert states == {"a": JobState.STOPPED, "b": JobState.STOPPED}
    assert simulation.store.get(Run, run.id).noun.state == RunState.STOPPED
