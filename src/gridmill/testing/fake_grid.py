"""A Grid in memory whose jobs behave as the test declares. A FakeGrid is for tests of user interfaces and
SDK clients.

A FakeGrid records each use case that changes something.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from enum import StrEnum
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from gridmill.codec import fingerprint
from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.deployment import Deployment
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job, JobKind
from gridmill.domain.job_log import LogEntry, LogRecord, offset_of
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import Event, EventType, event_id, sequence_of
from gridmill.domain.project import ProjectView
from gridmill.domain.resource import MeasuredUse, Resource, Sizing
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.secret import SecretView
from gridmill.domain.site import Site
from gridmill.domain.states import (
    DONE_JOBS,
    FINISHED_JOBS,
    FINISHED_RUNS,
    AttemptState,
    Cause,
    JobState,
    RunState,
)
from gridmill.domain.views import ControlView, DryRun, JobView, PlannedJob, RunRemovalPreview, RunView
from gridmill.errors import ConflictError, InputError, NotFoundError
from gridmill.ports.logs import LogQuery
from gridmill.ports.pages import PAGE_ITEMS, Page, cut_page, page_by_names, page_request
from gridmill.ports.usecase import ResponseForm, Role, UseCase
from gridmill.ports.usecases import USE_CASES
from gridmill.testing.fake_advising import FakeAdvising
from gridmill.testing.fake_secrets import FakeSecrets
from gridmill.testing.fake_services import FakeServices
from gridmill.testing.fake_use_cases import (
    FakeAlterations,
    FakeSharing,
    FakeSites,
    found,
    page_of_newest,
)
from gridmill.testing.memory_logs import MemoryLogs

C = TypeVar("C", bound=type)


def recorded(grid: C) -> C:
    """Makes each use case that changes something append a text such as `stop_run demo-1` to `grid.calls`
    after it has succeeded.

    Dry runs are not recorded. Each method is replaced in the class that defines it.
    """
    for row in USE_CASES.values():
        if row.role is not Role.VIEWER:
            for home in [one for one in grid.__mro__ if row.name in vars(one)]:
                setattr(home, row.name, _recorded(row, vars(home)[row.name]))
    return grid


def _recorded(row: UseCase, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(grid: Any, *given: Any, **named: Any) -> Any:  # noqa: ANN401  the types of the method
        answer = method(grid, *given, **named)
        arguments = row.arguments(given, named)
        if not arguments.get("dry_run"):
            grid.calls.append(" ".join([row.name, *_subjects(row, arguments)]))
        return answer

    return call


def _subjects(row: UseCase, arguments: Mapping[str, Any]) -> list[str]:
    """Returns the names in the path of the use case. If the path contains no names, the function returns the
    names of the records in the body."""
    in_path = [place.value(arguments) for place in row.places]
    return in_path or [arguments[name].name for name in row.body if hasattr(arguments.get(name), "name")]


SIZE = Sizing(amounts=Amounts(cpus=1.0, memory_bytes=GIB), why=("1 GiB: nothing measured yet",))


def job_run(run: Run, job: Job, order: int) -> JobRun:
    """Returns the record of a job that has not started."""
    return JobRun(
        id=f"{run.id}/{job.name}",
        run_id=run.id,
        pipeline=run.pipeline,
        job=job,
        order=order,
        state=JobState.BLOCKED if job.all_needs else JobState.WAITING,
        resource=job.resource or f"default-{job.kind}",
        needs=tuple(f"{run.id}/{name}" for name in job.all_needs),
        sizing=SIZE,
    )


def reset(view: JobView) -> JobView:
    """Returns the view of a job in a run that is resumed, without the job's earlier result."""
    if view.job.state in DONE_JOBS:
        return view
    return replace(view, job=replace(view.job, state=JobState.WAITING, message=""), why="", progress={})


def ended(attempt: Attempt, state: JobState, message: str, now: float) -> Attempt:
    """Returns the attempt after it has ended."""
    return replace(
        attempt,
        state=AttemptState(state),
        ended=now,
        message=message,
        cause={JobState.FAILED: Cause.EXIT, JobState.STOPPED: Cause.STOPPED}.get(state),
        exit_code=3 if state == JobState.FAILED else None,
        use=MeasuredUse(wall_seconds=2.0, cpu_seconds=1.5, peak_memory_bytes=GIB // 4),
    )


def with_needs(pipeline: Pipeline, only: tuple[str, ...]) -> set[str]:
    """Returns the names of these jobs and of all jobs that they need."""
    wanted, left = set[str](), list(only)
    while left:
        name = left.pop()
        if name not in wanted:
            wanted.add(name)
            left.extend(pipeline.job(name).all_needs)
    return wanted


_OF_JOB = frozenset({"state", "message", "started", "ended"})
_KINDS = {
    JobKind.SINK: ArtifactKind.SINK,
    JobKind.DATASET: ArtifactKind.DATASET,
    JobKind.TRAINING: ArtifactKind.MODEL,
    JobKind.PREDICTION: ArtifactKind.PREDICTION,
    JobKind.COMMAND: ArtifactKind.FILES,
}


class Act(StrEnum):
    """Declares the behaviour of a job of a FakeGrid when its run starts or is resumed."""

    SUCCEED = "succeed"
    FAIL = "fail"
    HANG = "hang"
    """The job runs until it is stopped."""


@recorded
@dataclass(slots=True)
class FakeGrid(FakeAlterations, FakeAdvising, FakeSharing, FakeSites, FakeSecrets, FakeServices):
    """Implements `gridmill.ports.grid.Grid`. When `start_run` and `resume` return, the run is complete.

    `acts` contains the behaviour of each job by the name of the job. A job that is not in `acts` succeeds.
    `now` is the present time, and each event advances it by one second. `calls` lists the use cases that
    changed something, in order, for example `start_run demo` and `stop_run demo-1`.
    """

    acts: dict[str, Act] = field(default_factory=dict)
    now: float = 1_700_000_000.0
    root: str = "/fake/storage"
    _views: dict[str, RunView] = field(default_factory=dict)
    _events: list[Event] = field(default_factory=list)
    _logs: MemoryLogs = field(default_factory=MemoryLogs)
    _resources: dict[str, Resource] = field(default_factory=dict)
    _projects: dict[str, ProjectView] = field(default_factory=dict)
    _secrets: dict[str, SecretView] = field(default_factory=dict)
    _sites: dict[str, Site] = field(default_factory=dict)
    _deployments: dict[str, Deployment] = field(default_factory=dict)
    _bundles: dict[str, bytes] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    if not TYPE_CHECKING:  # hidden from type checkers, so that they report unknown methods

        def __getattr__(self, name: str) -> Callable[..., Page[Any]]:
            """Answers list methods with empty lists if they are for types that a FakeGrid never has."""
            if name in USE_CASES and USE_CASES[name].form is ResponseForm.LIST:
                return lambda **filters: Page(items=())
            raise AttributeError(f"a FakeGrid has no attribute {name!r}")

    def control(self) -> ControlView:
        """See Grid."""
        states = [view.job.state for run in self._views.values() for view in run.jobs]
        return ControlView(
            version="0",
            home="/fake",
            root=self.root,
            pid=1,
            address="fake",
            embedded=False,
            started=0.0,
            active_runs=sum(view.run.state not in FINISHED_RUNS for view in self._views.values()),
            waiting_jobs=states.count(JobState.WAITING),
            running_jobs=states.count(JobState.RUNNING),
            deployments=len(self._deployments),
        )

    def apply(self, pipeline: Pipeline, *, adopt: bool = False) -> Pipeline:
        """See Grid."""
        self._pipelines[pipeline.name] = replace(pipeline, applied=True)
        self._resources.update({resource.name: resource for resource in pipeline.resources})
        return self._pipelines[pipeline.name]

    def start_run(
        self, pipeline: Pipeline, *, force: bool = False, only: tuple[str, ...] = (), adopt: bool = False
    ) -> RunView:
        """See Grid."""
        unknown = set(only) - {job.name for job in pipeline.jobs}
        if unknown:
            raise NotFoundError(f"{pipeline.name!r} has no job {min(unknown)!r}")
        known = self._pipelines.get(pipeline.name)
        if known is None or not known.applied:
            self._pipelines[pipeline.name] = replace(pipeline, applied=False)
        self._resources.update({resource.name: resource for resource in pipeline.resources})
        jobs = [job for job in pipeline.jobs if not only or job.name in with_needs(pipeline, only)]
        with self._changed:
            number = 1 + sum(view.run.pipeline == pipeline.name for view in self._views.values())
            run = Run(
                id=f"{pipeline.name}-{number}",
                pipeline=pipeline.name,
                order=len(self._views) + 1,
                state=RunState.ACTIVE,
                created=self.now,
                started=self.now,
                parameters=pipeline.parameters,
                force=force,
            )
            views = tuple(JobView(job=job_run(run, job, order)) for order, job in enumerate(jobs))
            self._views[run.id] = RunView(run=run, jobs=views)
            self._play(run.id)
            return self.run(run.id)

    def plan_run(self, pipeline: Pipeline) -> DryRun:
        """See Grid."""
        return DryRun(
            pipeline=pipeline.name,
            jobs=tuple(
                PlannedJob(
                    job=job.name,
                    kind=job.kind,
                    resource=job.resource or f"default-{job.kind}",
                    site="local",
                    needs=job.all_needs,
                    wave=1 + len(job.all_needs),
                    sizing=SIZE,
                )
                for job in pipeline.jobs
            ),
            peak_memory_bytes=GIB,
        )

    def runs(
        self,
        *,
        pipeline: str | None = None,
        states: tuple[RunState, ...] = (),
        limit: int = PAGE_ITEMS,
        cursor: str | None = None,
    ) -> Page[Run]:
        """See Grid."""
        runs = [view.run for view in reversed(self._views.values()) if not states or view.run.state in states]
        request = page_request(int, "runs", limit, cursor, pipeline, states)
        return page_of_newest(request, [run for run in runs if pipeline in (None, run.pipeline)])

    def jobs(
        self,
        run_id: str,
        *,
        states: tuple[JobState, ...] = (),
        limit: int = PAGE_ITEMS,
        cursor: str | None = None,
    ) -> Page[JobView]:
        """See Grid."""
        request = page_request(int, "jobs", limit, cursor, run_id, states)
        numbered = enumerate(one for one in self.run(run_id).jobs if not states or one.job.state in states)
        return cut_page(request, (one for one in numbered if request.after is None or one[0] > request.after))

    def job(self, run_id: str, name: str) -> JobView:
        """See Grid."""
        jobs = {one.job.job.name: one for one in self.run(run_id).jobs}
        if name not in jobs:
            raise NotFoundError(f"run {run_id} has no job {name!r}", hint=f"It has: {', '.join(jobs)}.")
        return jobs[name]

    def run(self, run_id: str, *, since: str = "") -> RunView:
        """See Grid."""
        view = found(self._views, run_id, "run")
        own = [event.id for event in self._events if event.run_id == run_id]
        version = fingerprint(view)
        if since == version:
            return replace(view, jobs=(), version=version, unchanged=True)
        return replace(view, version=version, last_event=own[-1] if own else "")

    def remove_run(self, run_id: str, *, dry_run: bool = False) -> RunRemovalPreview:
        """See Grid."""
        view = self.run(run_id)
        if view.run.state not in FINISHED_RUNS:
            raise ConflictError(f"run {run_id} is {view.run.state}")
        made = tuple(artifact.id for job in view.jobs for artifact in job.artifacts)
        attempts = sum(len(job.attempts) for job in view.jobs)
        if not dry_run:
            del self._views[run_id]
        return RunRemovalPreview(run=run_id, jobs=len(view.jobs), attempts=attempts, versions=made)

    def resume(self, run_id: str) -> RunView:
        """See Grid."""
        view = self.run(run_id)
        if view.run.state == RunState.SUCCEEDED:
            return view
        with self._changed:
            jobs = tuple(reset(job) for job in view.jobs)
            self._views[run_id] = RunView(run=replace(view.run, state=RunState.ACTIVE, ended=None), jobs=jobs)
            self._play(run_id)
            return self.run(run_id)

    def stop_run(self, run_id: str, *, job: str | None = None) -> RunView:
        """See Grid."""
        view = self.run(run_id)
        if job is not None and job not in {one.job.job.name for one in view.jobs}:
            raise NotFoundError(f"{run_id} has no job {job!r}")
        with self._changed:
            for one in view.jobs:
                if job in (None, one.job.job.name) and one.job.state not in FINISHED_JOBS:
                    self._end(one.job.id, JobState.STOPPED, "stopped by the user")
            self._settle(run_id)
            return self.run(run_id)

    def events(
        self,
        run_id: str,
        *,
        job: str | None = None,
        after: str = "",
        limit: int = 1000,
        wait_seconds: float = 0,
    ) -> tuple[Event, ...]:
        """See Grid."""
        self.run(run_id)
        sequence_of(after)

        def there() -> tuple[Event, ...]:
            mine = (event for event in self._events if event.run_id == run_id and event.id > after)
            return tuple(event for event in mine if job in (None, event.job))[:limit]

        with self._changed:
            self._changed.wait_for(there, timeout=wait_seconds)
            return there()

    def logs(
        self,
        run_id: str,
        *,
        job: str | None = None,
        attempt: str | None = None,
        after: str = "",
        until: int | None = None,
        tail: int | None = None,
        search: str = "",
        limit: int = 1000,
        wait_seconds: float = 0,
    ) -> tuple[LogEntry, ...]:
        """See Grid."""
        self.run(run_id)
        query = LogQuery(
            run_id=run_id, job=job, attempt=attempt, after=offset_of(after), until=until, search=search
        )

        def there() -> tuple[LogEntry, ...]:
            return tuple(self._logs.read(query) if tail is None else self._logs.tail(query, tail))[:limit]

        with self._changed:
            self._changed.wait_for(there, timeout=wait_seconds)
            return there()

    def pipelines(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Pipeline]:
        """See Grid."""
        return page_by_names(
            page_request(tuple, "pipelines", limit, cursor), self._pipelines.values(), lambda one: (one.name,)
        )

    def pipeline(self, name: str) -> Pipeline:
        """See Grid."""
        return found(self._pipelines, name, "pipeline")

    def remove_pipeline(self, name: str) -> None:
        """See Grid."""
        self.pipeline(name)
        del self._pipelines[name]

    def has_bundle(self, bundle: str) -> bool:
        """See Grid."""
        return bundle in self._bundles

    def put_bundle(self, bundle: str, data: bytes) -> None:
        """See Grid. (The hash of the bundle is not checked.)"""
        if not data:
            raise InputError(f"the bundle {bundle} is empty")
        self._bundles[bundle] = data

    def report(self, run_id: str) -> str:
        """See Grid."""
        return f"<!doctype html><title>{self.run(run_id).run.id}</title>"

    def shutdown(self, *, all: bool = False) -> None:
        """See Grid."""

    def emit(self, run_id: str, job: str, type: str, body: Mapping[str, Any], attempt_id: str = "") -> None:
        """Stores an event in the same way as an event that a pod sent."""
        if type == EventType.LOG:
            self._log(run_id, job, body, attempt_id)
            return
        with self._changed:
            self.now += 1
            self._events.append(
                Event(
                    id=event_id(len(self._events) + 1),
                    time=self.now,
                    type=type,
                    run_id=run_id,
                    job=job,
                    attempt_id=attempt_id,
                    body=body,
                )
            )
            self._changed.notify_all()

    def _log(self, run_id: str, job: str, body: Mapping[str, Any], attempt_id: str) -> None:
        with self._changed:
            self.now += 1
            record = LogRecord(
                run_id=run_id,
                job=job,
                attempt_id=attempt_id or f"{run_id}.{job}.1",
                number=0,
                time=self.now,
                stream=str(body["stream"]),
                text=str(body["text"]),
            )
            self._logs.append([record])
            self._changed.notify_all()

    def _play(self, run_id: str) -> None:
        self._say(run_id, "run", run_id, RunState.ACTIVE)
        for view in self._views[run_id].jobs:
            if view.job.state not in FINISHED_JOBS:
                self._act(view)
        self._settle(run_id)

    def _act(self, view: JobView) -> None:
        run_id, job = view.job.run_id, view.job.job
        states = {other.job.job.name: other.job.state for other in self._views[run_id].jobs}
        needs = [states[name] for name in job.all_needs if name in states]
        if any(state in FINISHED_JOBS - DONE_JOBS for state in needs):
            return self._end(view.job.id, JobState.SKIPPED, "what it needs did not succeed")
        if not all(state in DONE_JOBS for state in needs):
            return self._change(view.job.id, why=f"needs {', '.join(job.all_needs)}")
        self._begin(view)
        act = self.acts.get(job.name, Act.SUCCEED)
        if act == Act.FAIL:
            self.emit(run_id, job.name, EventType.LOG, {"stream": "err", "text": "it broke\n"})
            return self._end(view.job.id, JobState.FAILED, "exit code 3")
        if act == Act.SUCCEED:
            self._end(view.job.id, JobState.SUCCEEDED, "")

    def _begin(self, view: JobView) -> None:
        job, number = view.job, len(view.attempts) + 1
        attempt = Attempt(
            id=f"{job.run_id}.{job.job.name}.{number}",
            run_id=job.run_id,
            job_run_id=job.id,
            token="t",
            deployment_id=f"{job.resource}-1",
            pod_id=f"{job.resource}-1.1",
            state=AttemptState.RUNNING,
            given=SIZE.amounts,
            placed=self.now,
            started=self.now,
        )
        self._change(job.id, state=JobState.RUNNING, started=self.now, attempts=(*view.attempts, attempt))
        self._say(job.run_id, "job", job.id, JobState.RUNNING)
        self.emit(
            job.run_id, job.job.name, EventType.LOG, {"stream": "out", "text": f"{job.job.name} starts\n"}
        )
        self.emit(job.run_id, job.job.name, EventType.PROGRESS, {"done": 1, "total": 2, "unit": "steps"})
        self._change(job.id, progress={"done": 1, "total": 2, "unit": "steps", "note": ""})

    def _end(self, job_id: str, state: JobState, message: str) -> None:
        view = self._job(job_id)
        attempts = view.attempts
        if attempts and attempts[-1].state == AttemptState.RUNNING:
            attempts = (*attempts[:-1], ended(attempts[-1], state, message, self.now))
        artifacts = (self._make(view.job),) if state == JobState.SUCCEEDED else ()
        self._change(
            job_id, state=state, message=message, ended=self.now, attempts=attempts, artifacts=artifacts
        )
        self._say(view.job.run_id, "job", job_id, state, message)

    def _make(self, job: JobRun) -> Artifact:
        number = 1 + sum(one.name == job.name for one in self._artifacts.values())
        output = Output(kind=_KINDS[job.job.kind], uri=f"fake/{job.name}/{number}", rows=10)
        artifact = Artifact(
            id=f"{job.name}@{number}", name=job.name, number=number, output=output, fingerprint="f"
        )
        self._artifacts[artifact.id] = artifact
        return artifact

    def _settle(self, run_id: str) -> None:
        view = self._views[run_id]
        states = {job.job.state for job in view.jobs}
        if view.run.state in FINISHED_RUNS or not states <= FINISHED_JOBS:
            return
        state = RunState.SUCCEEDED
        if not states <= DONE_JOBS:
            state = RunState.STOPPED if JobState.STOPPED in states else RunState.FAILED
        self._views[run_id] = replace(view, run=replace(view.run, state=state, ended=self.now))
        self._say(run_id, "run", run_id, state)

    def _say(self, run_id: str, what: str, id: str, state: str, message: str = "") -> None:
        job = id.partition("/")[2]
        self.emit(run_id, job, "state", {"what": what, "id": id, "state": str(state), "message": message})

    def _job(self, job_id: str) -> JobView:
        return next(job for job in self._views[job_id.partition("/")[0]].jobs if job.job.id == job_id)

    def _change(self, job_id: str, **changes: Any) -> None:  # noqa: ANN401  fields of JobView and JobRun
        view = self._job(job_id)
        of_job = {key: value for key, value in changes.items() if key in _OF_JOB}
        of_view = {key: value for key, value in changes.items() if key not in of_job}
        changed = replace(view, job=replace(view.job, **of_job), **of_view)
        run = self._views[view.job.run_id]
        jobs = tuple(changed if job.job.id == job_id else job for job in run.jobs)
        self._views[view.job.run_id] = replace(run, jobs=jobs)
