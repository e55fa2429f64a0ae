"""Random pipelines, edits, forces, parameters, stops and kills, judged by the plain rules of `pipelines`.

The control node is the real one; the world around it is simulated."""

from dataclasses import replace
from pathlib import Path
from random import Random

from gridmill.control.usecases.service import Identity, Service
from gridmill.domain.amounts import Amounts
from gridmill.domain.artifact import Artifact
from gridmill.domain.command import CommandSpec
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.job import Job, When
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.run import JobRun, Run
from gridmill.domain.site import Node
from gridmill.domain.states import FINISHED_RUNS, AttemptState, Cause, RunState
from gridmill.errors import InputError
from gridmill.stores.memory import make as make_memory
from gridmill.testing.faults import FaultScript, FaultyStore
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation
from tests.oracles.pipelines import DONE, Attempted, Declared, Seen, SeenRun, Version, latest, problems

GIB = 2**30
PIPELINES = ("a", "b", "c")


class World:
    """A grid, what was declared last, and what was submitted."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        node = Node(name="sim", capacity=Amounts(cpus=4, memory_bytes=self.random.choice((4, 16)) * GIB))
        self.grid = Simulation(
            store=FaultyStore(make_memory(), FaultScript()), behave=self._behave, nodes=(node,), seed=seed
        )
        self.grid.declare_site()
        self.failing = self.random.choice((0.0, 0.1, 0.3))
        self.with_parameters = {name: self.random.random() < 0.4 for name in PIPELINES}
        self.declared = {name: self._draw(name) for name in PIPELINES}
        self.runs: list[tuple[str, dict[str, Declared], SeenRun]] = []

    @property
    def cases(self) -> Service:
        identity = Identity(version="0", home="", address="", embedded=True)
        return Service(self.grid.node, identity, render=lambda view, events: "", end=lambda: None)

    def _behave(self, order: object) -> Behaviour:
        seconds = self.random.choice((0.5, 1.0, 5.0, 20.0))
        if self.random.random() < self.failing:
            return Behaviour(seconds=seconds, outcome=AttemptState.FAILED, cause=Cause.EXIT)
        return Behaviour(seconds=seconds)

    def _draw(self, pipeline: str) -> dict[str, Declared]:
        found: dict[str, Declared] = {}
        for index in range(self.random.randint(1, 5)):
            after = index > 0 and self.random.random() < 0.2  # it runs after failures too
            name = f"{'w' if after else 'j'}{index}"
            found[name] = self._draw_job(pipeline, name, found)
        return found

    def _draw_job(self, pipeline: str, name: str, before: dict[str, Declared]) -> Declared:
        random = self.random
        after = name.startswith("w")
        is_dataset = random.random() < 0.3 and not after
        earlier = [one for one in before if not is_dataset or not before[one].is_command]
        needs = tuple(sorted(random.sample(earlier, random.randint(after, min(2, len(earlier))))))
        return Declared(
            name=name,
            text=f"{'select' if is_dataset else 'true'} {random.randint(0, 2)}{random.choice(('', ' v'))}",
            needs=needs,
            names=() if is_dataset else self._draw_names(pipeline),
            when=random.choice(("failure", "always")) if after else "success",
            cached=random.random() < 0.85,
            is_command=not is_dataset,
        )

    def _draw_names(self, pipeline: str) -> tuple[str, ...]:
        others = PIPELINES[: PIPELINES.index(pipeline)]
        if not others or self.random.random() < 0.5:
            return ()
        name = f"{self.random.choice(others)}/j{self.random.randint(0, 2)}"
        return (name + self.random.choice(("", "", "@latest", "@1", "@2")),)

    def edit(self) -> None:
        """Declare one job anew; what needs it stays."""
        jobs = self.declared[self.random.choice(PIPELINES)]
        pipeline = next(name for name, known in self.declared.items() if known is jobs)
        name = self.random.choice(list(jobs))
        before = {one: jobs[one] for one in list(jobs)[: list(jobs).index(name)]}
        drawn = self._draw_job(pipeline, name, before)
        if drawn.is_command == jobs[name].is_command:  # another kind would be another job
            jobs[name] = drawn

    def submit(self) -> None:
        """Start a run, as a user does; a name without a version is refused, and is without one."""
        random, name = self.random, self.random.choice(PIPELINES)
        value = str(random.randint(0, 1)) if self.with_parameters[name] else ""
        jobs = {
            one.name: replace(one, text=one.text.replace("v", f"v{value}"))
            for one in self.declared[name].values()
        }
        only = (random.choice(list(jobs)),) if random.random() < 0.15 else ()
        force = random.random() < 0.2
        chosen = self._with_needs(jobs, only) if only else jobs
        self.look()
        settled = {ref: self._means(ref) for job in chosen.values() for ref in job.names}
        pipeline = Pipeline(
            name=name,
            jobs=tuple(_job(one, random.randint(0, 1)) for one in jobs.values()),
            parameters={"v": value} if value else {},
        )
        try:
            view = self.cases.start_run(pipeline, force=force, only=only)
        except InputError:
            assert "" in settled.values(), f"refused, and every name means something: {settled}"
            return
        assert "" not in settled.values(), f"not refused, and a name means nothing: {settled}"
        seen = SeenRun(pipeline=name, settled=settled)
        for one in chosen.values():
            forced = force and (not only or one.name in only)
            seen.jobs[one.name] = Seen(declared=one, state="blocked", forced=forced)
        self.runs.append((view.run.id, chosen, seen))

    def _with_needs(self, jobs: dict[str, Declared], only: tuple[str, ...]) -> dict[str, Declared]:
        wanted, open_names = set[str](), list(only)
        while open_names:
            name = open_names.pop()
            wanted.add(name)
            open_names += jobs[name].needs
        return {name: job for name, job in jobs.items() if name in wanted}

    def _means(self, reference: str) -> str:
        name, _, version = reference.partition("@")
        if version.isdecimal():
            return reference if any(one.id == reference for one in self.versions()) else ""
        return latest([seen for _, _, seen in self.runs], name)

    def versions(self) -> list[Version]:
        """All that were made, with what they were made of."""
        found = []
        offset = self.grid.clock.now() - self.grid.clock.monotonic()
        jobs = {(run_id, name): job for run_id, chosen, _ in self.runs for name, job in chosen.items()}
        orders = {one.order.attempt_id: one.order for one in self.grid.world.executions}
        for record in self.grid.store.list(Artifact):
            one = record.noun
            _, _, job = one.name.partition("/")
            read = {entry.name: entry.artifact.id for entry in orders[one.attempt_id].inputs}
            assert sorted(one.made_from) == sorted(read.values()), (
                f"{one.id} is said to be of {one.made_from}"
            )
            made_of = (jobs[one.run_id, job].text, tuple(sorted(read.items())))
            found.append(
                Version(name=one.name, number=one.number, created=one.created - offset, made_of=made_of)
            )
        return found

    def look(self) -> None:
        """How each run stands."""
        offset = self.grid.clock.now() - self.grid.clock.monotonic()
        executions: dict[tuple[str, str], list[Attempted]] = {}
        for one in self.grid.world.executions:
            attempted = Attempted(
                began=one.began,
                read={entry.name: entry.artifact.id for entry in one.order.inputs},
                failed=one.order.failed,
                succeeded=one.state == AttemptState.SUCCEEDED,
            )
            executions.setdefault((one.order.run_id, one.order.job.name), []).append(attempted)
        for run_id, _, seen in self.runs:
            seen.state = str(self.grid.store.get(Run, run_id).noun.state)
            for name, job in seen.jobs.items():
                noun = self.grid.store.get(JobRun, f"{run_id}/{name}").noun
                job.state = str(noun.state)
                job.version = noun.artifacts[-1] if noun.artifacts and job.state in DONE else ""
                job.ended = (noun.ended or 0.0) - offset
                job.attempts = executions.get((run_id, name), [])

    def disturb(self) -> None:
        """A kill, a stop or a resume."""
        random, grid = self.random, self.grid
        kind = random.choice(("control", "control", "pod", "link", "stop", "stop-job", "resume", "resume"))
        run_id, chosen, seen = random.choice(self.runs) if self.runs else ("", {}, None)
        pods = list(grid.world.pods)
        if kind == "control":
            grid.control_dies()
        elif kind == "pod" and pods:
            grid.world.kill_pod(random.choice(pods))
        elif kind == "link" and pods:
            grid.world.cut_link(random.choice(pods), 3.0)
        elif seen is not None and kind.startswith("stop"):
            grid.stop(run_id, random.choice(list(chosen)) if kind == "stop-job" else None)
        elif seen is not None and grid.store.get(Run, run_id).noun.state in FINISHED_RUNS - {
            RunState.SUCCEEDED
        }:
            grid.resume(run_id)

    def finish(self) -> None:
        """Until all runs have ended."""
        over = self.grid.run_until(
            lambda: all(self.grid.store.get(Run, id).noun.state in FINISHED_RUNS for id, _, _ in self.runs),
            at_most_steps=20_000,
        )
        assert over, "a run does not end"
        self.look()


def _job(declared: Declared, retries: int) -> Job:
    common = {
        "name": declared.name,
        "memory_bytes": GIB,
        "retries": retries,
        "cache": declared.cached,
    }
    if not declared.is_command:
        spec = DatasetSpec(sql=declared.text, tables=declared.needs)
        return Job(**common, dataset=spec)
    needs = (*declared.needs, *declared.names)
    return Job(**common, needs=needs, when=When(declared.when), command=CommandSpec(run=declared.text))


def case(seed: int, folder: Path) -> None:
    """Draw what users do, let it happen, and compare."""
    world = World(seed)
    for _ in range(world.random.randint(5, 25)):
        act = world.random.choices((world.submit, world.edit, world.disturb, world.finish), (6, 3, 3, 1))[0]
        act()
        for _ in range(world.random.choice((0, 1, 5, 30))):
            world.grid.advance()
    world.finish()
    found = list(problems([seen for _, _, seen in world.runs], world.versions()))
    assert not found, "\n".join(found)
    for name in {one.name for one in world.versions()}:
        wanted = latest([seen for _, _, seen in world.runs], name)
        if wanted and "/w" not in name:
            assert world.cases.artifact(name).id == wanted, f"{name} means {world.cases.artifact(name).id}"
