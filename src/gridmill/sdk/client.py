"""The Python client: the verbs of Gridmill as methods, on whichever control node there is."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from gridmill.errors import ConflictError, HomeInUseError, InputError, JobError, UnavailableError
from gridmill.model.amounts import parse_bytes, parse_count, parse_seconds
from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.deployment import Deployment
from gridmill.model.event import Event, EventType
from gridmill.model.job import JobKind, JobSize
from gridmill.model.pipeline import Pipeline
from gridmill.model.resource import DEFAULT_KEEP_SECONDS, Resource, Sizing
from gridmill.model.run import Run
from gridmill.model.site import Site
from gridmill.model.state import FINISHED_RUNS, RunState
from gridmill.model.view import ControlView, DryRun, RunView
from gridmill.ports.grid import Grid
from gridmill.sdk.dial import Dialled, dial_home, dial_url, home_settings
from gridmill.sdk.lookup import Noun, find_noun, find_run, job_of, read_noun
from gridmill.sdk.project import Source, read_all, read_project, with_bundle
from gridmill.settings import Settings

T = TypeVar("T")

_PAGE = 1000
_HELD = 10 * _PAGE
_VIEW_SECONDS = 0.1
_VIEW_SHARE = 20
"""A run is looked at no oftener than each `_VIEW_SECONDS`, and for no more than a twentieth of the time."""
_TAKE_OVER_SECONDS = 15.0
"""How long a client looks for the control node that takes over from one that has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """One look at a run that is watched: how it stands, and what is new since the tick before."""

    view: RunView
    events: tuple[Event, ...]

    @property
    def finished(self) -> bool:
        """The run has ended; with no events left this is the last tick."""
        return self.view.run.state in FINISHED_RUNS


def connect(
    home: str | Path | None = None,
    url: str | None = None,
    token: str | None = None,
    *,
    embed: bool = True,
    reading: bool = False,
) -> "Client":
    """A client on the control node that is up for `home` (default: GRIDMILL_HOME), or at `url`.

    With none up, one is embedded in this process (unless `embed` is false) until the client is closed; with
    `reading` its records are read instead, and nothing is started or changed.
    Raises UnavailableError, HomeInUseError, StorageError.
    """
    settings = home_settings(home)
    client = Client(settings, dial=_dialler(settings, url, token, embed, reading))
    _register_in_notebook()
    return client


def _dialler(
    settings: Settings, url: str | None, token: str | None, embed: bool, reading: bool
) -> Callable[[], Dialled]:
    if url is not None:
        return lambda: dial_url(url, token, settings)
    return lambda: dial_home(settings, embed=embed, reading=reading)


def _register_in_notebook() -> None:
    import_module("gridmill.sdk.notebook").register()


class Client:
    """Use as a context manager, or `close()`. Every method raises GridmillErrors only.

    `grid` gives the plain use cases (gridmill.ports.grid). Where a run is asked for, a pipeline's name
    means its newest run.
    """

    def __init__(self, settings: Settings, *, dial: Callable[[], Dialled]) -> None:
        self.settings = settings
        self._dial = dial
        self._dialled = dial()
        self._closers: list[Callable[[], None]] = []

    @property
    def grid(self) -> Grid:
        """The use cases, as the control node offers them."""
        return self._dialled.grid

    @property
    def embedded(self) -> bool:
        """True where the control node lives in this process and ends with this client."""
        return self._dialled.embedded

    def close(self) -> None:
        """Let go; an embedded control node ends, and what it brought up with it. May be repeated."""
        while self._closers:
            self._closers.pop()()
        self._dialled.close()

    def before_close(self, act: Callable[[], None]) -> None:
        """Do `act` when this client is closed, before it lets go."""
        self._closers.append(act)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # runs

    def run(
        self,
        pipeline: Source,
        *,
        set: Mapping[str, Any] | None = None,
        force: bool = False,
        only: tuple[str, ...] = (),
        wait: bool = True,
        check: bool = False,
        on_tick: Callable[[Tick], None] | None = None,
    ) -> RunView:
        """Run a pipeline file or noun; with `wait`, until it ends. `set` gives parameters.

        `on_tick` is called a few times a second. With `check` a run that does not succeed raises JobError.
        """
        view = self.grid.start_run(self.prepare(pipeline, set), force=force, only=only)
        return self.wait(view.run.id, on_tick=on_tick, check=check) if wait else view

    def prepare(self, pipeline: Source, set: Mapping[str, Any] | None = None) -> Pipeline:
        """The pipeline as the control node takes it: read, with parameters, its code bundle put."""
        return with_bundle(read_project(pipeline, set), self.grid, self.settings)

    def plan(self, pipeline: Source, *, set: Mapping[str, Any] | None = None) -> DryRun:
        """What a run would do: sizes and why, order, expected memory and time. Nothing starts."""
        return self.grid.plan_run(self.prepare(pipeline, set))

    def apply(self, file: Source, *, set: Mapping[str, Any] | None = None) -> tuple[Pipeline | Resource, ...]:
        """Keep what a file declares (pipelines, resources) without running it; what was kept."""
        if isinstance(file, Pipeline):
            return (self.grid.apply(self.prepare(file)),)
        return tuple(self._keep(noun) for noun in read_all(Path(file), set))

    def _keep(self, noun: object) -> Pipeline | Resource:
        if isinstance(noun, Pipeline):
            return self.grid.apply(self.prepare(noun))
        if isinstance(noun, Resource):
            return self.grid.configure_resource(noun)[0]
        raise InputError("sites cannot be added yet: there is `local`, this machine")

    def resume(self, run: str, *, wait: bool = True) -> RunView:
        """Continue a failed or stopped run; what succeeded stands."""
        view = self.grid.resume(self.status(run).run.id)
        return self.wait(view.run.id) if wait else view

    def stop(self, run: str, job: str | None = None) -> RunView:
        """Ask a run, or one job of it, to stop; returns at once."""
        run_id = self.status(run).run.id
        return self._ask(lambda grid: grid.stop_run(run_id, job=job))

    def status(self, run: str) -> RunView:
        """How a run stands."""
        return self._ask(lambda grid: find_run(grid, run))

    def control(self) -> ControlView:
        """The control node."""
        return self.grid.control()

    def wait(
        self, run: str, *, on_tick: Callable[[Tick], None] | None = None, check: bool = False
    ) -> RunView:
        """Wait for a run's end. In a notebook its progress is shown. Raises JobError with `check`."""
        show = on_tick or import_module("gridmill.sdk.notebook").progress()
        tick = None
        for tick in self.watch(run):
            if show is not None:
                show(tick)
        assert tick is not None  # watch yields at least once
        if check and tick.view.run.state != RunState.SUCCEEDED:
            raise JobError(f"run {run} {tick.view.run.state}", hint=f"`gridmill show run {run}` says why.")
        return tick.view

    def watch(self, run: str, *, after: int = 0, every_seconds: float = 0.5) -> Iterator[Tick]:
        """Ticks, at least one each `every_seconds`, until the run has ended and all events were given.

        When the control node ends meanwhile, the next one for the home (or one embedded here) goes on.
        """
        view = self.status(run)
        run_id, look_again, held = view.run.id, 0.0, tuple[Event, ...]()
        while True:
            over = view.run.state in FINISHED_RUNS
            left = max(0.0, look_again - time.monotonic()) if held else every_seconds
            events = self._ask(_page(run_id, after, 0.0 if over else min(left, every_seconds)))
            held, after = held + events, events[-1].sequence if events else after
            now = time.monotonic()
            if over and not events:
                yield Tick(view=view, events=held)
                return
            if held and now < look_again and len(held) < _HELD and not _says_end(events):
                continue  # events are given with a look at the run that is newer than they are
            if not over and (now >= look_again or _says_end(events)):
                view = self._ask(lambda grid: grid.run(run_id))
                look_again = now + max(_VIEW_SECONDS, _VIEW_SHARE * (time.monotonic() - now))
            yield Tick(view=view, events=held)
            held = ()

    def newest_event(self, run: str) -> int:
        """The sequence of the run's newest event; `watch(after=...)` starts behind it."""
        newest = 0
        while page := self.grid.events(run, after=newest, limit=10 * _PAGE):
            newest = page[-1].sequence
        return newest

    def events(self, run: str, job: str | None = None, *, follow: bool = False) -> Iterator[Event]:
        """Kept events of a run or one job, in order; with `follow` until the run ends."""
        view = self.status(run)
        if job is not None:
            job_of(view, job)
        after = 0
        while True:
            over = self._ask(lambda grid: grid.run(view.run.id)).run.state in FINISHED_RUNS or not follow
            wait = 0.0 if over else 5.0
            page = self._ask(_page(view.run.id, after, wait, job))
            yield from page
            after = page[-1].sequence if page else after
            if over and not page:
                return

    def logs(self, run: str, job: str | None = None, *, follow: bool = False) -> Iterator[str]:
        """Log lines without newlines; those of several jobs as `JOB | line`."""
        for event in self.events(run, job, follow=follow):
            if event.type == EventType.LOG:
                prefix = "" if job else f"{event.job} | "
                yield from (prefix + line for line in str(event.body.get("text", "")).splitlines())

    def report(self, run: str, path: str | Path | None = None) -> Path:
        """Write the run's report (one HTML file; default: HOME/reports/RUN.html); its path."""
        run_id = self.status(run).run.id
        target = Path(path) if path is not None else self.settings.home / "reports" / f"{run_id}.html"
        text = self.grid.report(run_id)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = target.with_name(f".{target.name}.draft")
            draft.write_text(text)
            draft.replace(target)
        except OSError as error:
            raise InputError(f"the report cannot be written: {error.strerror}", place=str(target)) from error
        return target

    # resources

    def configure_resource(
        self,
        name: str,
        type: JobKind | str,
        *,
        rows: int | str | None = None,
        columns: int | None = None,
        cpus: float | None = None,
        memory: int | str | None = None,
        gpus: int = 0,
        workers: int | None = None,
        keep: float | str | None = None,
        site: str = "local",
        jobs: tuple[str, ...] = (),
    ) -> tuple[Resource, Sizing]:
        """Create or replace a resource; it and the size chosen, with why.

        Sizes: `rows="1M"`, `memory="4GiB"`, `keep="10m"` or plain numbers (bytes, seconds). Raises
        InputError, CapacityError.
        """
        size = JobSize(rows=None if rows is None else parse_count(rows), columns=columns)
        resource = Resource(
            name=name,
            type=read_kind(type),
            site=site,
            size=None if size == JobSize() else size,
            cpus=cpus,
            memory_bytes=None if memory is None else parse_bytes(memory),
            gpus=gpus,
            workers=workers,
            keep_seconds=DEFAULT_KEEP_SECONDS if keep is None else parse_seconds(keep),
            jobs=jobs,
        )
        return self.grid.configure_resource(resource)

    def alter_resource(self, name: str, **changes: Any) -> tuple[Resource, Sizing]:  # noqa: ANN401
        """Change fields of a resource (as Resource names them), leaving the others."""
        current: Resource = find_noun(self.grid, Noun.RESOURCE, name)
        if current.default:
            raise ConflictError(f"{name!r} is made by Gridmill itself", hint="Configure one of your own.")
        return self.grid.configure_resource(replace(current, **changes))

    def remove_resource(self, name: str) -> None:
        """Remove a resource."""
        self.grid.remove_resource(name)

    # what there is

    def show(self, noun: Noun | str, name: str = "") -> Any:  # noqa: ANN401  its class follows from `noun`
        """One noun: `show("model", "weather/lstm")`, `show("job", "weather-1/train")`."""
        return find_noun(self.grid, read_noun(noun), name)

    def list_runs(self, *, limit: int = 50, pipeline: str | None = None) -> tuple[Run, ...]:
        """Runs, newest first."""
        return self.grid.runs(limit=limit, pipeline=pipeline)

    def list_resources(self) -> tuple[Resource, ...]:
        """Resources, by name."""
        return self.grid.resources()

    def list_sites(self) -> tuple[Site, ...]:
        """Sites and their nodes."""
        return self.grid.sites()

    def list_deployments(self) -> tuple[Deployment, ...]:
        """Deployments that are not gone."""
        return self.grid.deployments()

    def list_pipelines(self) -> tuple[Pipeline, ...]:
        """Kept pipelines, by name."""
        return self.grid.pipelines()

    def list_artifacts(
        self, *, kind: ArtifactKind | str | None = None, name: str | None = None
    ) -> tuple[Artifact, ...]:
        """Versions of sinks, datasets, models, predictions and files, newest first."""
        return self.grid.artifacts(kind=None if kind is None else read_artifact_kind(kind), name=name)

    def remove_artifact(self, artifact: str) -> None:
        """Delete a version's content."""
        self.grid.remove_artifact(artifact)

    def remove_pipeline(self, name: str) -> None:
        """Forget a pipeline; its runs and artifacts stay."""
        self.grid.remove_pipeline(name)

    def _ask(self, question: Callable[[Grid], T]) -> T:
        """Ask; when the control node has gone meanwhile, ask the one that takes over."""
        try:
            return question(self.grid)
        except UnavailableError:
            if self.embedded:
                raise
        self._take_over()
        return question(self.grid)

    def _take_over(self) -> None:
        until = time.monotonic() + _TAKE_OVER_SECONDS
        while True:
            try:
                self._dialled.close()
                self._dialled = self._dial()
                self.grid.control()
                return
            except (UnavailableError, HomeInUseError):
                if time.monotonic() > until:
                    raise
            time.sleep(0.2)


def read_kind(kind: JobKind | str) -> JobKind:
    """A job kind by name. Raises InputError, naming what there is."""
    if kind not in list(JobKind):
        raise InputError(f"there is no type {str(kind)!r}", hint=f"There are: {', '.join(JobKind)}.")
    return JobKind(kind)


def read_artifact_kind(kind: ArtifactKind | str) -> ArtifactKind:
    """A kind of version by name. Raises InputError, naming what there is."""
    if kind not in list(ArtifactKind):
        raise InputError(f"there is no kind {str(kind)!r}", hint=f"There are: {', '.join(ArtifactKind)}.")
    return ArtifactKind(kind)


def _page(
    run_id: str, after: int, wait: float, job: str | None = None
) -> Callable[[Grid], tuple[Event, ...]]:
    return lambda grid: grid.events(run_id, job=job, after=after, limit=_PAGE, wait_seconds=wait)


def _says_end(events: tuple[Event, ...]) -> bool:
    return any(
        event.type == "state" and event.body.get("what") == "run" and event.body.get("state") in FINISHED_RUNS
        for event in events
    )
