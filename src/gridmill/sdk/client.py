"""The Python client: the use cases of Gridmill as methods, on any control node.

This class joins the methods for schedules, projects, sites, sinks (alterations and status), advice on
workers, backfills, and resources with their deployments. A backfill sets the parameters `from` and `to` of
the pipeline file for each chunk.
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
from gridmill.domain.rental_terms import parse_micros
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.route import Staging
from gridmill.domain.secret import KeyRotation, SecretView
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
from gridmill.sdk.imports import ImportVerbs
from gridmill.sdk.leases import LeaseVerbs
from gridmill.sdk.listing import Listing
from gridmill.sdk.loaded import Version
from gridmill.sdk.lookup import Noun, find_noun, read_noun
from gridmill.sdk.notebook import register
from gridmill.sdk.predictions import PredictionVerbs
from gridmill.sdk.project import is_name, read_file, upload_code, words
from gridmill.sdk.runs import RunVerbs
from gridmill.sdk.services import ServiceVerbs
from gridmill.settings import Settings


class ScheduleVerbs(Connected):
    """Client methods for schedules. `apply` creates schedules."""

    def list_schedules(self, *, limit: int | None = None) -> Listing[ScheduleView]:
        """List the schedules of applied pipelines, by name."""
        return Listing(self.grid.schedules, limit=limit)

    def stop_schedule(self, name: str) -> ScheduleView:
        """Pause a schedule: it starts no further run until `start_schedule` is called. Active runs
        continue."""
        return self.grid.pause_schedule(name)

    def start_schedule(self, name: str) -> ScheduleView:
        """Resume a paused schedule. Runs that were due during the pause are not started."""
        return self.grid.start_schedule(name)


class ShareVerbs(Connected):
    """Client methods for projects."""

    def configure_project(
        self,
        name: str,
        *,
        share: float = 1.0,
        cpus: float | None = None,
        memory: int | str | None = None,
        gpus: int | None = None,
        budget: str | None = None,
        currency: str = "USD",
    ) -> ProjectView:
        """Create a project, or replace the share and the quota of a project. Each limit of the quota is a
        value such as `memory="64GB"`, or None if there is no limit. `budget` is the highest cost of the
        project's rented machines in one month, such as `"200"`, in `currency`. With None, a project keeps its
        budget; `"none"` removes the budget.

        Raises InputError.
        """
        memory_bytes = None if memory is None else parse_bytes(memory)
        micros, currency = self._budget(name, budget, currency)
        return self.grid.configure_project(
            Project(
                name=name,
                share=share,
                cpus=cpus,
                memory_bytes=memory_bytes,
                gpus=gpus,
                budget_micros=micros,
                currency=currency,
            )
        )

    def _budget(self, name: str, budget: str | None, currency: str) -> tuple[int | None, str]:
        """Return the budget in micro-units and its currency. Without an amount, these are the stored ones."""
        if budget is not None:
            return None if budget == "none" else parse_micros(budget), currency
        stored = next((one.project for one in self.list_projects() if one.name == name), None)
        if stored is None or stored.budget_micros is None:
            return None, currency
        return stored.budget_micros, stored.currency

    def list_projects(self, *, limit: int | None = None) -> Listing[ProjectView]:
        """List projects with their current usage, sorted by name."""
        return Listing(self.grid.projects, limit=limit)

    def remove_project(self, name: str) -> None:
        """Delete a project and the record of its usage. Raises ConflictError while the project has active
        runs."""
        self.grid.remove_project(name)


class SiteVerbs(Connected):
    """Client methods for sites."""

    def add_site(self, site: Site) -> Site:
        """Connect to a site, read its nodes, store the site, and return it. If the same site is added again,
        nothing changes.

        Raises ConflictError if another site has the same name, InputError, UnavailableError.
        """
        return self.grid.add_site(site)

    def configure_site(
        self, name: str, *, address: str | None = None, settings: Mapping[str, str] | None = None
    ) -> Site:
        """Change the settings of a site. A setting with an empty value is removed. The pods of the site
        continue to run."""
        site: Site = find_noun(self.grid, Noun.SITE, name)
        if name == LOCAL:
            raise ConflictError(
                "the site `local` is the control node's own machine and cannot be changed",
                hint="GRIDMILL_CPUS and GRIDMILL_MEMORY limit its capacity: GRIDMILL_MEMORY=8GiB gridmill up",
            )
        merged = {**site.settings, **(settings or {})}
        left = {key: value for key, value in merged.items() if value}
        return self.grid.add_site(replace(site, address=address or site.address, settings=left), replace=True)

    def list_sites(self, *, limit: int | None = None) -> Listing[Site]:
        """List sites with their nodes, sorted by name."""
        return Listing(self.grid.sites, limit=limit)

    def list_nodes(self, *, limit: int | None = None) -> Listing[NodeView]:
        """Measure the provider nodes of all sites, and return their reserved resources, running jobs and
        usage. The call takes about a second."""
        return Listing(self.grid.nodes, limit=limit)

    def list_farms(self, *, limit: int | None = None) -> Listing[FarmView]:
        """List the status of farms, which includes GPUs, queue, disk, version, and the transfer rates. The
        status is a few seconds old."""
        return Listing(self.grid.farms, limit=limit)

    def remove_site(self, name: str) -> None:
        """Delete a site that has no running deployments."""
        self.grid.remove_site(name)


class SecretMethods(Connected):
    """Client methods for secrets. No method returns a value."""

    def add_secret(self, name: str, value: str) -> SecretView:
        """Add a secret, or replace its value. Raises InputError for a value that is too short or too long,
        StorageError if the key file cannot be used."""
        return self.grid.add_secret(name, value)

    def list_secrets(self, *, limit: int | None = None) -> Listing[SecretView]:
        """List secrets and where they are used, by name. The list contains no values."""
        return Listing(self.grid.secrets, limit=limit)

    def remove_secret(self, name: str, *, force: bool = False) -> None:
        """Delete a secret. Raises ConflictError if something refers to the secret and `force` is false."""
        self.grid.remove_secret(name, force=force)

    def rotate_secret_key(self) -> KeyRotation:
        """Encrypt all secrets with a new key, and delete the earlier key. Raises StorageError if a value
        cannot be decrypted."""
        return self.grid.rotate_secret_key()


class SinkVerbs(Connected):
    """Client methods for sinks."""

    def list_alterations(self, name: str | None = None, *, limit: int | None = None) -> Listing[Alterations]:
        """List the alterations, which are the parts that were added to sinks later, of a single sink
        (`pipeline/job`) or of all sinks."""
        return Listing(partial(self.grid.alterations, name=name), limit=limit)

    def list_load_tasks(self, name: str | None = None, *, limit: int | None = None) -> Listing[LoadTask]:
        """List the state of each source of a single sink (`pipeline/job`) or of all sinks: rows, position,
        next check."""
        return Listing(partial(self.grid.load_tasks, name=name), limit=limit)

    def add_to_sink(self, name: str, part: Constraint | Outage | str, *, metric: str = "") -> Alterations:
        """Add a constraint, an outage window, a source (its path), or with `metric` a metric (its SQL) to a
        sink.

        The addition applies to all runs that start later, until it is removed.
        """
        return self.grid.alter_sink(name, change_of(AlterVerb.ADD, part, metric))

    def remove_from_sink(self, name: str, part: SinkPart | str, key: str) -> Alterations:
        """Remove a source, constraint, metric or outage window of a sink. `key` identifies the removed part
        of the sink: the path of a source, the reason of a constraint, the name of a metric, or the start of
        an outage window."""
        return self.grid.alter_sink(name, SinkChange(verb=AlterVerb.REMOVE, part=SinkPart(part), key=key))


def change_of(verb: AlterVerb, part: Constraint | Outage | str, metric: str = "") -> SinkChange:
    """Return the change that adds a part (a source, constraint, metric or outage window) to a sink, or
    removes it."""
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
"""The fraction of the data for the first probe of a job that never ran. The measurements of this probe
determine the fraction of the data for the second probe."""
_MOST = 3
"""The largest number of probes for a single advice."""


class AdviceVerbs(RunVerbs):
    """The client method for advice on workers."""

    def advise(
        self, job: str, *, probe: bool = False, on_probe: Callable[[int, float], None] | None = None
    ) -> Advice:
        """Recommend a number of workers for `pipeline/job`. With `probe`, the method first makes at most
        three probe runs.

        A probe runs the job on a fraction of its data and stores only measurements. Before each probe,
        `on_probe` is called with the number of workers and the fraction of the data. Raises NotFoundError,
        ConflictError if nothing was measured, InputError, JobError if a probe failed.
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
            raise JobError(
                f"probe {run} {ended.run.state}: {why}", hint=f"To see its log: gridmill logs {run}"
            )


class BackfillVerbs(Connected):
    """Client methods for backfills. A backfill has the name of its pipeline."""

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
        """Start a backfill and return immediately. A backfill runs a pipeline (a file, or the name of a
        known pipeline) for each chunk of a time range.

        `begins` and `ends` (exclusive) are ISO 8601 texts. A time without an offset is in the time zone
        `zone`. `every` is the length of a chunk ("7d", "1mo", or seconds). If `every` is None, a single
        chunk covers the complete range. At most `parallel` chunks run at the same time. Chunks of complete
        days and months follow the calendar of `zone`.

        The pipeline must declare the parameters `from` and `to`, or use `${due}`. If `pipeline` is a name,
        the backfill uses the pipeline as it was applied last, even if its file has changed since then.
        Chunks that succeeded are run again only with `force`. Chunks that failed are always run again.
        Backfills need a running `gridmill up`. Raises PipelineError, InputError, ConflictError,
        NotFoundError, UnavailableError.
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
        code = upload_code(made[0].pipeline, self.grid, self.settings)
        chunks = tuple(
            replace(
                one, pipeline=replace(one.pipeline, bundle=code.bundle, commit=code.commit, host=code.host)
            )
            for one in made
        )
        return self._ask(lambda grid: grid.start_backfill(backfill, chunks))

    def resume_backfill(self, name: str) -> BackfillView:
        """Continue a stopped backfill and repeat its failed chunks. The chunks use the declaration of the
        pipeline with which the backfill was last started."""
        return self._ask(lambda grid: grid.start_backfill(replace(grid.backfill(name).backfill, force=False)))

    def stop_backfill(self, name: str) -> BackfillView:
        """Stop a backfill, so that it starts no further chunk. Active runs continue."""
        return self._ask(lambda grid: grid.stop_backfill(name))

    def list_backfills(self, *, limit: int | None = None) -> Listing[BackfillView]:
        """List backfills, by name."""
        return Listing(self.grid.backfills, limit=limit)


def _with_bounds(file: Path, values: Mapping[str, Any] | None) -> Pipeline:
    """Return the pipeline that the file declares. Raises PipelineError if the pipeline has no parameters for
    a time range."""
    declared = read_file(file, values, awaiting=True)
    check_bounds(declared, str(file))
    return declared


def _chunk(file: Path, declared: Pipeline, values: Mapping[str, Any], span: tuple[str, str]) -> Chunk:
    begins, ends = span
    pipeline = read_file(file, {**values, **chunk_values(declared, span)})
    return Chunk(pipeline=replace(pipeline, written=None), begins=begins, ends=ends)


class ResourceVerbs(Connected):
    """Client methods for resources and deployments."""

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
        """Create or replace a resource. Return the resource with the chosen size and the reason for this
        size.

        Sizes are texts or plain numbers (bytes, seconds), for example `rows="1M"`, `memory="4GiB"` or
        `keep="10m"`. `settings`, such as `{"partition":"gpu"}`, override the settings of the site; the names
        of the settings depend on the kind of the site. `staging` selects how data is transferred to a farm.
        Raises InputError, CapacityError.
        """
        sizes = {"rows": rows, "columns": columns, "cpus": cpus, "memory": memory, "gpus": gpus}
        others = {"workers": workers, "keep": keep, "jobs": jobs, "settings": settings, "staging": staging}
        return self.grid.configure_resource(
            make_resource({"name": name, "type": type, "site": site, **sizes, **others})
        )

    def alter_resource(self, name: str, **changes: Any) -> tuple[Resource, Sizing]:  # noqa: ANN401
        """Change only the given fields of a resource. The fields have the names of the arguments of
        `configure_resource`."""
        current: Resource = find_noun(self.grid, Noun.RESOURCE, name)
        if current.default:
            raise ConflictError(
                f"{name!r} is a default resource of Gridmill and cannot be changed",
                hint=f"Create your own: gridmill configure resource NAME --type {current.type}",
            )
        return self.grid.configure_resource(make_resource({**_construct().written(current), **changes}))

    def remove_resource(self, name: str) -> None:
        """Delete a resource."""
        self.grid.remove_resource(name)

    def list_resources(self, *, limit: int | None = None) -> Listing[Resource]:
        """List resources, by name."""
        return Listing(self.grid.resources, limit=limit)

    def list_deployments(self, *, limit: int | None = None) -> Listing[Deployment]:
        """List the deployments that have not ended."""
        return Listing(self.grid.deployments, limit=limit)


def make_resource(fields: Mapping[str, object]) -> Resource:
    """Return a resource with these fields, which have the same names as in pipeline files. Raises
    PipelineError."""
    made: Resource = _construct().construct(Resource, (), fields)
    return made


def _construct() -> Any:  # noqa: ANN401  a module
    """Import the constructor of records when it is first used."""
    # imported here, because it loads YAML and Pydantic, which most clients do not need
    from gridmill.declarations import construct

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
    """Connect to the running control node of `home` (by default GRIDMILL_HOME), or to the control node at
    `url`.

    If no control node is running, the client starts one, unless `embed` is false. The new control node is a
    separate process, which all clients of the home share, and which ends with the last client. With
    `reading`, the client only reads the records: it starts no control node and changes nothing. Raises
    UnavailableError, HomeInUseError, StorageError.
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
    """Load a version to read it, for example `load("weather/features").to_pandas()`. The function `load`
    needs no control node.

    `reference` is `pipeline/job` for the latest version, `pipeline/job@3`, or `pipeline/job@prod`. The
    function starts no process and changes nothing. Raises NotFoundError, UnavailableError.
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
            raise InternalError("the control node was killed at the point that GRIDMILL_FAULT names")
        # a forked child must not wait for the runs of its parent
        ours = attends if os.getpid() == process else ()
        return open_home(settings, embed=embed, reading=reading, attends=ours)

    return dial


def _register_in_notebook() -> None:
    if "IPython" in sys.modules:
        register()


_RENAMED = {"export_project": "backup", "import_project": "restore"}


class RenamedError(InputError, AttributeError):
    """The error that is raised if a program uses the former name of a method. The class is derived from
    AttributeError, so that `hasattr` returns False for the former name."""


class Client(
    ImportVerbs,
    PredictionVerbs,
    AdviceVerbs,
    ResourceVerbs,
    SiteVerbs,
    LeaseVerbs,
    ScheduleVerbs,
    BackfillVerbs,
    VersionVerbs,
    SinkVerbs,
    ShareVerbs,
    SecretMethods,
    ServiceVerbs,
):
    """The Python client. Use the client as a context manager, or call `close()`. Methods raise only
    GridmillErrors.

    `grid` contains the plain use cases (gridmill.ports.grid). Methods that take a run also accept the name
    of a pipeline, which selects its newest run.
    """

    if not TYPE_CHECKING:  # type checkers must not see this method, or they would accept every name

        def __getattr__(self, name: str) -> NoReturn:
            if name in _RENAMED:
                raise RenamedError(f"`{name}` is now `{_RENAMED[name]}`")
            raise AttributeError(f"a Client has no attribute {name!r}")

    def control(self) -> ControlView:
        """Return the state of the control node."""
        return self.grid.control()

    def show(self, noun: Noun | str, name: str = "") -> Any:  # noqa: ANN401  its class follows from `noun`
        """Return a single record, for example `show("model", "weather/lstm")` or `show("job",
        "weather-1/train")`."""
        return find_noun(self.grid, read_noun(noun), name)

    def list_pipelines(self, *, limit: int | None = None) -> Listing[Pipeline]:
        """List pipelines by name. For each pipeline, the list contains the declaration that was applied
        last, or the declaration of the last run if the pipeline was never applied."""
        return Listing(self.grid.pipelines, limit=limit)

    def remove_pipeline(self, name: str) -> None:
        """Delete a pipeline. The runs and versions of the pipeline are not deleted."""
        self.grid.remove_pipeline(name)
