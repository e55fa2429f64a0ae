"""A small world that carries plans out: it checks each decision and lets time pass from event to event."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count

from gridmill.domain.amounts import MIB, Amounts
from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.plan import BringUp, Plan, Refuse, Release, StartJob
from gridmill.domain.resource import Resource, Sizing, keep_of
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.states import (
    FINISHED_JOBS,
    AttemptState,
    Cause,
    DeploymentState,
    JobState,
    PodState,
    RunState,
)
from gridmill.scheduler.capacity import most_jobs
from gridmill.scheduler.explain import why_waiting
from gridmill.scheduler.outcomes import ready, run_state, settle, skipped
from gridmill.scheduler.plan import plan
from gridmill.scheduler.snapshot import Snapshot

START_SECONDS, END_SECONDS = 2.0, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A job to be done: how long it runs, how each attempt ends."""

    name: str
    memory_bytes: int = 256 * MIB
    seconds: float = 1.0
    resource: str = "default-command"
    needs: tuple[str, ...] = ()
    priority: int = 0
    cpus: float | None = None
    retries: int = 0
    endings: tuple[Cause | None, ...] = ()  # of the first attempts; then success


def succeeding(attempt: Attempt, now: float) -> Attempt:
    return replace(attempt, state=AttemptState.SUCCEEDED, ended=now)


class World:
    """Runs, plans, and what follows. `on_plan` sees every plan with the snapshot it was made from."""

    def __init__(
        self,
        site: Site,
        resources: tuple[Resource, ...] = (),
        *,
        limit: int | None = None,
        one_pipeline: bool = False,
        on_plan: Callable[["World", Plan], None] | None = None,
    ) -> None:
        self.now = 1000.0
        self.nouns: dict[tuple[type, str], object] = {}
        self.snapshot = Snapshot()
        self.finished: dict[str, JobRun] = {}
        self.started_at: dict[str, float] = {}
        self._limit, self._on_plan = limit, on_plan
        self._one_pipeline = one_pipeline  # else every run is of a pipeline of its own
        self._works: dict[str, Work] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers, self._orders = count(1), count(1)
        for noun in (site, *resources):
            self.put(noun)

    # --- the store's part

    def put(self, noun: object) -> None:
        key = (type(noun), getattr(noun, "id", None) or noun.name)
        self.nouns[key] = noun
        self.snapshot.put(noun)

    def scratch(self, order: Callable[[list[object]], list[object]] = list) -> Snapshot:
        """A snapshot of the same nouns built anew, in another order."""
        return Snapshot(order(list(self.nouns.values())))

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        heappush(self._events, (self.now + seconds, next(self._numbers), act))

    # --- the user's part

    def submit(self, works: tuple[Work, ...]) -> str:
        number = next(self._orders)
        pipeline = "p" if self._one_pipeline else f"p{number}"
        run = Run(
            id=f"p-{number}",
            pipeline=pipeline,
            order=number,
            state=RunState.ACTIVE,
            created=self.now,
            started=self.now,
        )
        self.put(run)
        for place, work in enumerate(works):
            job = Job(
                name=work.name,
                needs=work.needs,
                priority=work.priority,
                cpus=work.cpus,
                retries=work.retries,
                command=CommandSpec(run="true"),
            )
            job_run = JobRun(
                id=f"{run.id}/{work.name}",
                run_id=run.id,
                pipeline=pipeline,
                job=job,
                order=place,
                state=JobState.BLOCKED,
                resource=work.resource,
                needs=tuple(f"{run.id}/{need}" for need in work.needs),
                priority=work.priority,
                sizing=Sizing(amounts=Amounts(cpus=work.cpus or 1.0, memory_bytes=work.memory_bytes, gpus=0)),
            )
            resource = self.snapshot.resources.get(work.resource)
            if resource is not None and resource.gpus:
                amounts = replace(job_run.sizing.amounts, gpus=resource.gpus)
                job_run = replace(job_run, sizing=replace(job_run.sizing, amounts=amounts))
            self._works[job_run.id] = work
            self.put(job_run)
        self._unblock(run.id)
        return run.id

    # --- the control node's part

    def run(self, *, until: float = 1e9, events: int = 20_000) -> None:
        """Plan and let time pass until every run has ended (or `until`). Fails when nothing can go on."""
        for _ in range(events):
            wake = self._plan()
            if not self.snapshot.runs and not self._events:
                return
            times = [self._events[0][0]] if self._events else []
            times += [wake] if wake is not None else []
            if not times or min(times) > until:
                assert times or not self.snapshot.runs, self._stuck()
                return
            self.now = max(self.now, min(times))
            while self._events and self._events[0][0] <= self.now:
                heappop(self._events)[2]()
        raise AssertionError(f"not finished after {events} events")

    def _stuck(self) -> str:
        """Nothing will ever happen, but runs are not finished: what waits for what."""
        jobs = [job_run for job_run in self.snapshot.job_runs.values() if job_run.state not in FINISHED_JOBS]
        whys = [
            f"{job.id} {job.state} {job.sizing.amounts}: {why_waiting(self.snapshot, job.id, self.now)}"
            for job in jobs
        ]
        return "\n".join(
            [
                *whys,
                *map(str, self.snapshot.deployments.values()),
                *map(str, self.snapshot.resources.values()),
            ]
        )

    def _plan(self) -> float | None:
        for _ in range(1000):
            self._mark_idle()
            made = plan(self.snapshot, self.now, limit=self._limit)
            if self._on_plan is not None:
                self._on_plan(self, made)
            for decision in (*made.refusals, *made.starts, *made.bring_ups, *made.releases):
                self._carry_out(decision)
            self.check_room()
            if made.complete:
                return made.again_at
        raise AssertionError("a bounded plan is never complete")

    def _mark_idle(self) -> None:
        for deployment in list(self.snapshot.deployments.values()):
            busy = bool(self.snapshot.attempts_on(deployment.id))
            if busy and deployment.idle_since is not None:
                self.put(replace(deployment, idle_since=None))
            elif not busy and deployment.idle_since is None and deployment.state is DeploymentState.UP:
                self.put(replace(deployment, idle_since=self.now))

    def _carry_out(self, decision: StartJob | BringUp | Release | Refuse) -> None:
        match decision:
            case StartJob():
                self._start(decision)
            case BringUp():
                self._bring_up(decision)
            case Release():
                self._release(decision)
            case Refuse():
                self._end_job(
                    replace(
                        self.snapshot.job_runs[decision.job_run_id],
                        state=JobState.FAILED,
                        message=decision.message,
                    )
                )

    def _start(self, start: StartJob) -> None:
        job_run = self.snapshot.job_runs[start.job_run_id]
        deployment = self.snapshot.deployments[start.deployment_id]
        assert job_run.state is JobState.WAITING, "a job is started that is not waiting"
        assert job_run.not_before <= self.now, "a job is started before its time"
        assert job_run.resource == deployment.resource
        assert deployment.state in (DeploymentState.STARTING, DeploymentState.UP)
        assert next(pod for pod in deployment.pods if pod.id == start.pod_id).state is PodState.UP
        number = job_run.attempts + 1
        attempt = Attempt(
            id=f"{job_run.run_id}.{job_run.job.name}.{number}",
            run_id=job_run.run_id,
            job_run_id=job_run.id,
            token="",
            deployment_id=start.deployment_id,
            pod_id=start.pod_id,
            state=AttemptState.PLACED,
            given=start.given,
            placed=self.now,
        )
        self.put(replace(job_run, state=JobState.RUNNING, attempts=number, attempt_id=attempt.id))
        self.put(attempt)
        self.started_at.setdefault(job_run.id, self.now)
        self.later(self._works[job_run.id].seconds, lambda: self._end(attempt, number))

    def _end(self, attempt: Attempt, number: int) -> None:
        if attempt.id not in self.snapshot.attempts:
            return
        endings = self._works[attempt.job_run_id].endings
        cause = endings[number - 1] if number <= len(endings) else None
        state = AttemptState.SUCCEEDED if cause is None else AttemptState.FAILED
        if cause is Cause.LOST:
            self._lose_pod(attempt)
            return
        self._settle(replace(attempt, state=state, cause=cause, message=str(cause or ""), ended=self.now))

    def _settle(self, attempt: Attempt) -> None:
        job_run = self.snapshot.job_runs[attempt.job_run_id]
        self.put(attempt)
        site = next(iter(self.snapshot.sites.values()))
        after = settle(job_run, attempt, self.now, largest=site.largest.memory_bytes)
        if after.state in FINISHED_JOBS:
            self._end_job(after)
        else:
            self.put(after)

    def _lose_pod(self, attempt: Attempt) -> None:
        """The whole deployment goes, with everything on it."""
        self.put(replace(self.snapshot.deployments[attempt.deployment_id], state=DeploymentState.GONE))
        for lost in self.snapshot.attempts_on(attempt.deployment_id):
            self._settle(replace(lost, state=AttemptState.LOST, cause=Cause.LOST, ended=self.now))

    def _end_job(self, job_run: JobRun) -> None:
        self.finished[job_run.id] = job_run
        self.put(job_run)
        self._unblock(job_run.run_id)

    def _unblock(self, run_id: str) -> None:
        for job_run in skipped(self.snapshot, run_id, self.now):
            self.finished[job_run.id] = job_run
            self.put(job_run)
        for key in ready(self.snapshot, run_id):
            self.put(replace(self.snapshot.job_runs[key], state=JobState.WAITING, ready=self.now))
        run = self.snapshot.runs[run_id]
        state, message = run_state(run, self.snapshot.job_runs_of(run_id))
        self.put(replace(run, state=state, message=message))

    def _bring_up(self, wanted: BringUp) -> None:
        key = f"{wanted.resource.name}-{next(self._numbers)}"
        pods = tuple(
            Pod(id=f"{key}.{k}", node=node, capacity=wanted.sizing.amounts, state=PodState.STARTING)
            for k, node in enumerate(wanted.nodes, 1)
        )
        deployment = Deployment(
            id=key,
            resource=wanted.resource.name,
            type=wanted.resource.type,
            site=wanted.resource.site,
            state=DeploymentState.STARTING,
            sizing=wanted.sizing,
            pods=pods,
            keep_seconds=keep_of(wanted.resource, SiteKind.SIMULATED),
            created=self.now,
        )
        self.put(deployment)
        self.later(START_SECONDS, lambda: self._come_up(key))

    def _come_up(self, key: str) -> None:
        deployment = self.snapshot.deployments.get(key)
        if deployment is not None and deployment.state is DeploymentState.STARTING:
            pods = tuple(replace(pod, state=PodState.UP) for pod in deployment.pods)
            self.put(replace(deployment, state=DeploymentState.UP, pods=pods))

    def _release(self, release: Release) -> None:
        deployment = self.snapshot.deployments[release.deployment_id]
        assert not self.snapshot.attempts_on(deployment.id), "a deployment is released under its jobs"
        assert deployment.state is DeploymentState.UP
        self.put(replace(deployment, state=DeploymentState.RELEASING))
        self.later(END_SECONDS, lambda: self._gone(deployment.id))

    def _gone(self, key: str) -> None:
        deployment = self.snapshot.deployments.get(key)
        if deployment is not None:
            self.put(replace(deployment, state=DeploymentState.GONE))

    # --- what must hold at any time

    def check_room(self) -> None:
        running = [job.name for job in self.snapshot.job_runs.values() if job.state is JobState.RUNNING]
        assert len(running) == len(set(running)), "two at once make the same artifact"
        for deployment in self.snapshot.deployments.values():
            for pod in deployment.pods:
                self._check_pod(pod)
        for site in self.snapshot.sites.values():
            self._check_site(site)

    def _check_pod(self, pod: Pod) -> None:
        attempts = self.snapshot.attempts_on(pod.id)
        assert sum(attempt.given.memory_bytes for attempt in attempts) <= pod.capacity.memory_bytes
        assert sum(attempt.given.gpus for attempt in attempts) <= pod.capacity.gpus
        assert len(attempts) <= most_jobs(pod.capacity.cpus)

    def _check_site(self, site: Site) -> None:
        for node in site.nodes:
            taken = Amounts()
            for deployment in self.snapshot.deployments.values():
                for pod in deployment.pods:
                    if (deployment.site, pod.node) == (
                        site.name,
                        node.name,
                    ) and pod.state is not PodState.GONE:
                        taken = taken + pod.capacity
            assert taken.memory_bytes <= node.capacity.memory_bytes
            assert taken.gpus <= node.capacity.gpus
            assert taken.cpus <= node.capacity.cpus * site.cpu_share + 1e-6
