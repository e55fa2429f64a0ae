"""The Python client: the use cases of Gridmill as methods, on any control node.

It joins the methods for schedules, projects, sites, sinks (alterations and status), advice on workers,
backfills, and resources with their deployments. A backfill puts `from` and `to` into the pipeline file for
each chunk.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gridmill.domain.advice import Advice, Probe
from gridmill.domain.amounts import Months, parse_bytes, parse_period
from gridmill.domain.backfill import Backfill, BackfillView, Chunk, check_bounds, chunk_values, spans
from gridmill.domain.deployment import Deployment
from gridmill.domain.job import JobKind
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.project import Project, ProjectView
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.route import Staging
from gridmill.domain.sink import Constraint, Outage
from gridmill.domain.sink_overrides import Alterations, AlterVerb, SinkChange, SinkPart, key_of_constraint
from gridmill.domain.sink_status import LoadTask
from gridmill.domain.site import LOCAL, NodeView, Site
from gridmill.domain.states import RunState
from gridmill.domain.views import ControlView, FarmView, ScheduleView
from gridmill.errors import ConflictError, InputError, InternalError, JobError
from gridmill.sdk.arguments import checked
from gridmill.sdk.artifacts import VersionVerbs
from gridmill.sdk.base import Connected
from gridmill.sdk.discovery import OpenGrid, home_settings, open_home, open_url
from gridmill.sdk.listing import Listing
from gridmill.sdk.loaded import Version
from gridmill.sdk.lookup import Noun, find_noun, read_noun
from gridmill.sdk.notebook import register
from gridmill.sdk.project import is_name, read_project, with_bundle, words
from gridmill.sdk.runs import RunVerbs
from gridmill.settings import Settings


class ScheduleVerbs(Connected):
    """The verbs of schedules; `apply` makes them."""

    def list_schedules(self, *, limit: int | None = None) -> Listing[ScheduleView]:
        """Schedules of kept pipelines, by name."""
        return Listing(self.grid.schedules, limit=limit)

    def stop_schedule(self, name: str) -> ScheduleView:
        """Pause it: no further run starts until `start_schedule`. Runs that are active go on."""
        return self.grid.pause_schedule(name)

    def start_schedule(self, name: str) -> ScheduleView:
        """Let a paused schedule go on, from now."""
        return self.grid.start_schedule(name)


class ShareVerbs(Connected):
    """The verbs of projects."""

    def configure_project(
        self,
        name: str,
        *,
        share: float = 1.0,
        cpus: float | None = None,
        memory: int | str | None = None,
        gpus: int | None = None,
    ) -> ProjectView:
        """Create a project, or replace its share and quota (`memory="64GB"`; None: no bound).

        Raises InputError.
        """
        memory_bytes = None if memory is None else parse_bytes(memory)
        return self.grid.configure_project(
            Project(name=name, share=share, cpus=cpus, memory_bytes=memory_bytes, gpus=gpus)
        )

    def list_projects(self, *, limit: int | None = None) -> Listing[ProjectView]:
        """Projects as they stand, by name."""
        return Listing(self.grid.projects, limit=limit)

    def remove_project(self, name: str) -> None:
        """Remove a project, and what it used. Raises ConflictError while runs of it are active."""
        self.grid.remove_project(name)


class SiteVerbs(Connected):
    """The verbs of sites."""

    def add_site(self, site: Site) -> Site:
        """Open a site, look at its nodes and keep it; as it is now. Adding the same again is fine.

        Raises ConflictError when another one has that name, InputError, UnavailableError.
        """
        return self.grid.add_site(site)

    def configure_site(
        self, name: str, *, address: str | None = None, settings: Mapping[str, str] | None = None
    ) -> Site:
        """Change what a site was added with; an empty value takes a setting away. Its pods go on."""
        site: Site = find_noun(self.grid, Noun.SITE, name)
        if name == LOCAL:
            raise ConflictError(
                "the site `local` is the control node's own machine",
                hint="GRIDMILL_CPUS and GRIDMILL_MEMORY say how much of it is given.",
            )
        merged = {**site.settings, **(settings or {})}
        left = {key: value for key, value in merged.items() if value}
        return self.grid.add_site(replace(site, address=address or site.address, settings=left), replace=True)

    def list_sites(self, *, limit: int | None = None) -> Listing[Site]:
        """Sites and their nodes, by name."""
        return Listing(self.grid.sites, limit=limit)

    def list_nodes(self, *, limit: int | None = None) -> Listing[NodeView]:
        """Provider nodes of all sites: claimed, running, and as seen now. Takes a second or so."""
        return Listing(self.grid.nodes, limit=limit)

    def list_farms(self, *, limit: int | None = None) -> Listing[FarmView]:
        """Farms, as they were some seconds ago: GPUs, line, disk, version; and how quick the way there is."""
        return Listing(self.grid.farms, limit=limit)

    def remove_site(self, name: str) -> None:
        """Forget a site where nothing is up."""
        self.grid.remove_site(name)


class SinkVerbs(Connected):
    """The verbs of sinks."""

    def list_alterations(self, name: str | None = None, *, limit: int | None = None) -> Listing[Alterations]:
        """What was altered of one sink (`pipeline/job`) or of all."""
        return Listing(partial(self.grid.alterations, name=name), limit=limit)

    def list_load_tasks(self, name: str | None = None, *, limit: int | None = None) -> Listing[LoadTask]:
        """How each source of one sink (`pipeline/job`) or of all stands: rows, position, next look."""
        return Listing(partial(self.grid.load_tasks, name=name), limit=limit)

    def add_to_sink(self, name: str, part: Constraint | Outage | str, *, metric: str = "") -> Alterations:
        """Add a constraint, an outage, a source (its path), or with `metric` a metric (its SQL).

        It holds for the runs that start from now on, until it is removed.
        """
        return self.grid.alter_sink(name, change_of(AlterVerb.ADD, part, metric))

    def remove_from_sink(self, name: str, part: SinkPart | str, key: str) -> Alterations:
        """Remove a part by its key: a source's path, what a constraint's reason says, a metric's name, an
        outage's beginning."""
        return self.grid.alter_sink(name, SinkChange(verb=AlterVerb.REMOVE, part=SinkPart(part), key=key))


def change_of(verb: AlterVerb, part: Constraint | Outage | str, metric: str = "") -> SinkChange:
    """The change that adds or removes a part."""
    match part:
        case Constraint():
            part.check()
            return SinkChange(
                verb=verb, part=SinkPart.CONSTRAINT, key=key_of_constraint(part), constraint=part
            )
        case Outage():
            part.check()
            return SinkChange(verb=verb, part=SinkPart.OUTAGE_WINDOW, key=part.begins, outage=part)
    if metric:
        return SinkChange(verb=verb, part=SinkPart.METRIC, key=metric, text=part)
    return SinkChange(verb=verb, part=SinkPart.SOURCE, key=part)


_FIRST = Probe(workers=1, share=0.05)
"""The first probe of a job that never ran; its result decides how large the second one must be."""
_MOST = 3
"""The most probes for one advice."""


class AdviceVerbs(RunVerbs):
    """The verb of advice."""

    def advise(
        self, job: str, *, probe: bool = False, on_probe: Callable[[int, float], None] | None = None
    ) -> Advice:
        """Advice on the workers of `pipeline/job`; with `probe` after at most three runs that tell more.

        Probes do a part of the job's data and keep nothing but what they measured; `on_probe` is told of each
        before it starts: workers, and share of the data.
        Raises NotFoundError, ConflictError where nothing was measured, InputError, JobError for a probe that
        failed.
        """
        if probe:
            for _ in range(_MOST):
                one = self._next_probe(job)
                if one is None:
                    break
                if on_probe is not None:
                    on_probe(one.workers, one.share)
                self._probe(job, one)
        return self._ask(lambda grid: grid.advise(job))

    def _next_probe(self, job: str) -> Probe | None:
        try:
            return next(iter(self.grid.advise(job).probes), None)
        except ConflictError:
            return _FIRST

    def _probe(self, job: str, one: Probe) -> None:
        run = self.attend(lambda grid: grid.probe(job, workers=one.workers, share=one.share)).run.id
        ended = self.wait(run)
        if ended.run.state != RunState.SUCCEEDED:
            why = next((line.job.message for line in ended.jobs if line.job.message), ended.run.message)
            raise JobError(f"probe {run} {ended.run.state}: {why}", hint=f"`gridmill logs {run}` has more.")


class BackfillVerbs(Connected):
    """The verbs of backfills. A backfill has the name of its pipeline."""

    def start_backfill(
        self,
        pipeline: str | Path,
        *,
        begins: str,
        ends: str,
        every: str | float | None = None,
        zone: str = "UTC",
        parallel: int = 1,
        newest_first: bool = False,
        set: Mapping[str, Any] | None = None,
        force: bool = False,
    ) -> BackfillView:
        """Run a pipeline (a file, or a kept one by its name) for each stretch of `every` ("7d", "1mo", or
        seconds; default: the whole range) from `begins` up to `ends` (ISO 8601, without an offset in the time
        zone `zone`), at most `parallel` at once; returns at once. Whole days and months follow the calendar
        of `zone`.

        It declares the parameters `from` and `to`, or uses `${due}`. A kept one is as it was applied last,
        whatever became of its file. Chunks that are done are not run again, unless with `force`; those that
        failed are. Needs `gridmill up`. Raises PipelineError, InputError, ConflictError, NotFoundError,
        UnavailableError.
        """
        declared = None if is_name(pipeline) else _with_bounds(Path(pipeline), set)
        name = str(pipeline) if declared is None else declared.name
        length = None if every is None else parse_period(every)
        backfill = Backfill(
            name=name,
            begins=begins,
            ends=ends,
            every_seconds=None if isinstance(length, Months) else length,
            every_months=int(length) if isinstance(length, Months) else None,
            zone=zone,
            parallel=parallel,
            newest_first=newest_first,
            force=force,
        )
        if declared is None:
            return self._ask(lambda grid: grid.backfill_pipeline(backfill, words(set)))
        made = [_chunk(Path(pipeline), declared, set or {}, span) for span in spans(backfill)]
        first = with_bundle(made[0].pipeline, self.grid, self.settings)
        chunks = tuple(
            replace(
                one, pipeline=replace(one.pipeline, bundle=first.bundle, commit=first.commit, host=first.host)
            )
            for one in made
        )
        return self._ask(lambda grid: grid.start_backfill(backfill, chunks))

    def resume_backfill(self, name: str) -> BackfillView:
        """Let a stopped one go on, and try again what failed, as the pipeline was declared when it was
        started last."""
        return self._ask(lambda grid: grid.start_backfill(replace(grid.backfill(name).backfill, force=False)))

    def stop_backfill(self, name: str) -> BackfillView:
        """Start no further chunk; runs that are active go on."""
        return self._ask(lambda grid: grid.stop_backfill(name))

    def list_backfills(self, *, limit: int | None = None) -> Listing[BackfillView]:
        """Backfills, by name."""
        return Listing(self.grid.backfills, limit=limit)


def _with_bounds(file: Path, values: Mapping[str, Any] | None) -> Pipeline:
    """What the file declares. Raises PipelineError where it does not take a range."""
    declared = read_project(file, values, awaiting=True)
    check_bounds(declared, str(file))
    return declared


def _chunk(file: Path, declared: Pipeline, values: Mapping[str, Any], span: tuple[str, str]) -> Chunk:
    begins, ends = span
    pipeline = read_project(file, {**values, **chunk_values(declared, span)})
    return Chunk(pipeline=replace(pipeline, written=None), begins=begins, ends=ends)


class ResourceVerbs(Connected):
    """The verbs of resources and deployments."""

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
        settings: Mapping[str, str] | None = None,
        staging: Staging | str | None = None,
    ) -> tuple[Resource, Sizing]:
        """Create or replace a resource; it and the size chosen, with why.

        Sizes: `rows="1M"`, `memory="4GiB"`, `keep="10m"` or plain numbers (bytes, seconds).
        `settings` are of the site's kind, before the site's own: `{"partition": "gpu"}`. `staging`: at a
        cluster, how data gets there. Raises InputError, CapacityError.
        """
        sizes = {"rows": rows, "columns": columns, "cpus": cpus, "memory": memory, "gpus": gpus}
        others = {"workers": workers, "keep": keep, "jobs": jobs, "settings": settings, "staging": staging}
        return self.grid.configure_resource(
            make_resource({"name": name, "type": type, "site": site, **sizes, **others})
        )

    def alter_resource(self, name: str, **changes: Any) -> tuple[Resource, Sizing]:  # noqa: ANN401
        """Change fields of a resource, as `configure_resource` names them, leaving the others."""
        current: Resource = find_noun(self.grid, Noun.RESOURCE, name)
        if current.default:
            raise ConflictError(f"{name!r} is made by Gridmill itself", hint="Configure one of your own.")
        return self.grid.configure_resource(make_resource({**_construct().written(current), **changes}))

    def remove_resource(self, name: str) -> None:
        """Remove a resource."""
        self.grid.remove_resource(name)

    def list_resources(self, *, limit: int | None = None) -> Listing[Resource]:
        """Resources, by name."""
        return Listing(self.grid.resources, limit=limit)

    def list_deployments(self, *, limit: int | None = None) -> Listing[Deployment]:
        """Deployments that are not gone."""
        return Listing(self.grid.deployments, limit=limit)


def make_resource(fields: Mapping[str, object]) -> Resource:
    """The resource with these fields, as a file names them. Raises PipelineError."""
    made: Resource = _construct().construct(Resource, (), fields)
    return made


def _construct() -> Any:  # noqa: ANN401  a module
    """What makes nouns by the names of files: loaded when it is used."""
    from gridmill.declarations import construct  # and with it YAML and Pydantic

    return construct


@checked
def connect(
    home: str | Path | None = None,
    url: str | None = None,
    token: str | None = None,
    *,
    embed: bool = True,
    reading: bool = False,
) -> "Client":
    """A client on the control node that is up for `home` (default: GRIDMILL_HOME), or at `url`.

    With none up, one is started (unless `embed` is false): a process of its own that other clients of the
    home share, and that ends with the last of them. With `reading` the records are read instead, and nothing
    is started or changed.
    Raises UnavailableError, HomeInUseError, StorageError.
    """
    settings = home_settings(home)
    attends = set[str]()
    client = Client(settings, dial=_dialler(settings, url, token, embed, reading, attends), attends=attends)
    _register_in_notebook()
    return client


@checked
def load(
    reference: str, *, home: str | Path | None = None, url: str | None = None, token: str | None = None
) -> Version:
    """A version to read, with or without a control node that is up: `load("weather/features").to_pandas()`.

    `reference` is `pipeline/job` for the latest version, `pipeline/job@3`, or `pipeline/job@prod`. Nothing is
    started or changed. Raises NotFoundError, UnavailableError.
    """
    with connect(home, url, token, reading=True) as client:
        return client.load(reference)


def _dialler(
    settings: Settings, url: str | None, token: str | None, embed: bool, reading: bool, attends: set[str]
) -> Callable[[], OpenGrid]:
    if url is not None:
        return lambda: open_url(url, token, settings)
    tries, process = count(), os.getpid()

    def dial() -> OpenGrid:
        if settings.fault and next(tries):
            raise InternalError("the control node was killed where GRIDMILL_FAULT says")
        ours = attends if os.getpid() == process else ()  # a child that was forked waits for none of them
        return open_home(settings, embed=embed, reading=reading, attends=ours)

    return dial


def _register_in_notebook() -> None:
    if "IPython" in sys.modules:
        register()


_RENAMED = {"export_project": "backup", "import_project": "restore"}


class RenamedError(InputError, AttributeError):
    """A method has another name now; `hasattr` finds nothing under the former one."""


class Client(
    AdviceVerbs, ResourceVerbs, SiteVerbs, ScheduleVerbs, BackfillVerbs, VersionVerbs, SinkVerbs, ShareVerbs
):
    """Use as a context manager, or `close()`. Every method raises GridmillErrors only.

    `grid` gives the plain use cases (gridmill.ports.grid). Where a run is asked for, a pipeline's name
    means its newest run.
    """

    if not TYPE_CHECKING:  # for type checkers there is no such method

        def __getattr__(self, name: str) -> NoReturn:
            if name in _RENAMED:
                raise RenamedError(f"`{name}` is now `{_RENAMED[name]}`")
            raise AttributeError(f"a Client has no attribute {name!r}")

    def control(self) -> ControlView:
        """The control node."""
        return self.grid.control()

    def show(self, noun: Noun | str, name: str = "") -> Any:  # noqa: ANN401  its class follows from `noun`
        """One noun: `show("model", "weather/lstm")`, `show("job", "weather-1/train")`."""
        return find_noun(self.grid, read_noun(noun), name)

    def list_pipelines(self, *, limit: int | None = None) -> Listing[Pipeline]:
        """Pipelines, by name, as they were applied last, or else as they were run last."""
        return Listing(self.grid.pipelines, limit=limit)

    def remove_pipeline(self, name: str) -> None:
        """Forget a pipeline; its runs and artifacts stay."""
        self.grid.remove_pipeline(name)
