"""The use cases of Gridmill, offered by the control node's service in process and by its clients.

`Grid` joins the protocols of schedules, backfills, sites, advice, projects, sinks (alterations and status),
versions and aliases, and housekeeping. The REST API has the types, default values and lines of help of these
methods: the first line of a docstring is the line of help. `ports/usecases.py` has their HTTP requests.
Every method that gives a `Page` takes a `limit` and the `cursor` of the page before (see ports/pages.py).
"""

from collections.abc import Mapping
from typing import Protocol

from gridmill.domain.advice import Advice
from gridmill.domain.archive import ArchiveResult
from gridmill.domain.artifact import Alias, Artifact, ArtifactKind
from gridmill.domain.backfill import Backfill, BackfillView, Chunk
from gridmill.domain.comparison import ModelComparison, Preview, VersionDiff
from gridmill.domain.deployment import Deployment
from gridmill.domain.job_log import LogEntry
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import Event
from gridmill.domain.project import Project, ProjectView
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.run import Run
from gridmill.domain.sink_overrides import Alterations, SinkChange
from gridmill.domain.sink_status import LoadTask
from gridmill.domain.site import NodeView, Site
from gridmill.domain.states import JobState, RunState
from gridmill.domain.usage import HISTORY_DAYS, DiskUsage, ReclaimableItem
from gridmill.domain.version_manifest import VerificationResult
from gridmill.domain.views import (
    ControlView,
    DryRun,
    FarmView,
    JobView,
    RemovalPreview,
    RunRemovalPreview,
    RunView,
    ScheduleView,
    VersionView,
)
from gridmill.ports.pages import PAGE_ITEMS, Page


class Schedules(Protocol):
    """What a face can ask about schedules. They have the names of their pipelines, those of jobs
    are `PIPELINE/JOB`; `apply` makes them."""

    def schedules(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[ScheduleView]:
        """List the schedules of kept pipelines and of their jobs, by name."""

    def schedule(self, name: str) -> ScheduleView:
        """Show one schedule, with its next due times."""

    def pause_schedule(self, name: str) -> ScheduleView:
        """Start no further run of a schedule until it is started again.

        A schedule that is paused already stays as it is.
        """

    def start_schedule(self, name: str) -> ScheduleView:
        """Let a paused schedule go on, from now.

        Runs that were due meanwhile are skipped.
        """


class Backfills(Protocol):
    """What a face can ask about backfills. They have the names of their pipelines, each of which has one."""

    def backfills(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[BackfillView]:
        """List the backfills of pipelines, by name."""

    def backfill(self, name: str) -> BackfillView:
        """Show one backfill, with its chunks."""

    def start_backfill(self, backfill: Backfill, chunks: tuple[Chunk, ...] = ()) -> BackfillView:
        """Start a backfill, or the same one again: chunks that are done stay, the others are run.

        Returns at once. Chunks of that range that are done (by their runs) or under way stay as they are,
        the others are run, those that failed, too. Without `chunks`: those it had before. Raises
        ConflictError while the pipeline's backfill over another range is under way, UnavailableError where
        the control node does not stay up, InputError, PipelineError.
        """

    def backfill_pipeline(self, backfill: Backfill, values: Mapping[str, str]) -> BackfillView:
        """Run a kept pipeline over a range, in chunks with the parameters `from` and `to`.

        The pipeline is the one of the backfill's name, as it was applied last: its text is read again for
        each chunk, with the chunk's bounds, and `values`, as parameters. Raises NotFoundError, PipelineError
        where no text of it is kept, and what `start_backfill` raises.
        """

    def stop_backfill(self, name: str) -> BackfillView:
        """Start no further chunk of a backfill until it is started again; active runs go on."""


class Sites(Protocol):
    """What a face can ask about sites."""

    def sites(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Site]:
        """List all sites and their nodes, by name."""

    def nodes(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[NodeView]:
        """List the provider nodes of all sites: claimed, running, and as seen now.

        Takes a second or so.
        """

    def farms(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[FarmView]:
        """List farms, by name, as they were some seconds ago at most, with the speed of the connection."""

    def add_site(self, site: Site, *, replace: bool = False) -> Site:
        """Add a site, or replace its settings with `replace`; returns it with the nodes seen there.

        The site is opened first. Adding the same again is fine. Raises ConflictError when another one has
        that name, unless `replace`; InputError for settings that its kind does not have, UnavailableError
        when it does not answer.
        """

    def remove_site(self, name: str) -> None:
        """Delete a site where no resource and no deployment is.

        Raises ConflictError while there is one.
        """


class Advising(Protocol):
    """What a face can ask about the workers of a job."""

    def advise(self, name: str) -> Advice:
        """Show advice on the workers of `pipeline/job`, from measurements of its attempts.

        Raises NotFoundError where there is no such job, ConflictError where no attempt of it has succeeded
        yet, InputError for a job without workers.
        """

    def probe(self, name: str, *, workers: int, share: float = 0.1) -> RunView:
        """Run one job alone, with this number of workers on a share of its data; returns at once.

        It reads the newest versions of its inputs; its outputs are deleted, its measurements are kept.
        Raises NotFoundError, InputError.
        """


class Sharing(Protocol):
    """What a face can ask about projects."""

    def configure_project(self, project: Project) -> ProjectView:
        """Create a project, or replace its share and quota; its usage stays.

        Raises InputError.
        """

    def projects(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[ProjectView]:
        """List all projects as they are now, by name."""

    def remove_project(self, name: str) -> None:
        """Delete a project without active runs, and its usage.

        Raises NotFoundError, ConflictError while runs of it are active.
        """


class Altering(Protocol):
    """What a face can ask about alterations. They hold for runs that start after them."""

    def alterations(
        self, *, name: str | None = None, limit: int = PAGE_ITEMS, cursor: str | None = None
    ) -> Page[Alterations]:
        """List the alterations of one sink (`pipeline/job`) or of all sinks that were altered, by name."""

    def alter_sink(self, name: str, change: SinkChange) -> Alterations:
        """Add or remove a source, constraint, metric or outage window of a sink.

        Returns all changes of the sink after that. Raises NotFoundError for a pipeline that is not kept or
        has no such sink, InputError for a part that exists already or does not exist.
        """

    def load_tasks(
        self, *, name: str | None = None, limit: int = PAGE_ITEMS, cursor: str | None = None
    ) -> Page[LoadTask]:
        """List the sources of one sink (`pipeline/job`) or of all: last load, rows, rejects, next look.

        By sink, then by source. Raises NotFoundError.
        """


class Projects(Protocol):
    """What a face can ask about whole projects. Paths are on the control node's machine."""

    def backup(self, pipelines: tuple[str, ...], path: str) -> ArchiveResult:
        """Write pipelines, their versions with lineage, aliases, tables and models into one archive.

        Raises NotFoundError, ConflictError while a run may be changing them, StorageError.
        """

    def restore(self, path: str) -> ArchiveResult:
        """Verify an archive on the control node's machine, then make all of it visible at once.

        Versions and pipelines that are here already and the same stay. Raises InputError for an archive that
        is damaged, UnsafePathError, ConflictError where this grid has another version or pipeline of the
        same name.
        """


class Housekeeping(Protocol):
    """What a face can ask about space."""

    def usage(self) -> tuple[DiskUsage, ...]:
        """Show the use of the control node's disk: versions, records, folders of pods, caches."""

    def clean(self, *, days: float = HISTORY_DAYS, dry_run: bool = False) -> tuple[ReclaimableItem, ...]:
        """Delete unused versions and leftovers, and history that is older than `days`.

        These are versions beyond those that their jobs retain, files of removed versions and failed
        attempts, folders of pods that ended, and history: events, reports, code, and runs that no version
        refers to. Whatever a run may be using stays. With `dry_run` nothing is deleted, and the answer is
        the same.
        """

    def remove_run(self, run_id: str, *, dry_run: bool = False) -> RunRemovalPreview:
        """Delete a finished run: its records, events, logs, report, and leftovers of failed attempts.

        The versions that it made stay. With `dry_run` nothing is deleted. Raises NotFoundError,
        ConflictError while it is active, and for a run of a backfill, which needs it to know what is done.
        """


class Versions(Altering, Protocol):
    """What a face can ask about versions. Where one is named, `pipeline/job@3` is a number,
    `pipeline/job@prod` an alias, and `pipeline/job` the newest."""

    def artifacts(
        self,
        *,
        kind: ArtifactKind | None = None,
        name: str | None = None,
        limit: int = PAGE_ITEMS,
        cursor: str | None = None,
    ) -> Page[Artifact]:
        """List versions of sinks, datasets, models, predictions and files, newest first.

        Removed versions are left out. `name` is `pipeline/job`.
        """

    def artifact(self, artifact_id: str) -> Artifact:
        """Show a version (`pipeline/job@N`, `pipeline/job@ALIAS`); `pipeline/job` alone is the newest."""

    def version(self, artifact_id: str) -> VersionView:
        """Show a version with its names, its inputs, and the versions that were made from it."""

    def preview(self, artifact_id: str, *, rows: int = 10, rejects: bool = False) -> Preview:
        """Show the first rows of a table (or of a sink's rejects), or the files of a model or a command.

        Raises InputError where there are none to show, StorageError when they cannot be read.
        """

    def diff(self, before: str, after: str, *, key: tuple[str, ...] = ()) -> VersionDiff:
        """Compare two versions: columns, statistics, metrics, settings, and rows by the columns of `key`.

        Without `key` rows are compared by the columns that the versions declare as their key.
        """

    def compare(self, name: str, versions: tuple[str, ...] = ()) -> ModelComparison:
        """Compare versions of a model side by side: metrics, settings, inputs and software.

        `versions` are numbers, aliases or other models (`pipeline/job`); without any the last five, oldest
        first. Raises InputError for a version that is no model, and where there is only one.
        """

    def verify(self, reference: str = "") -> tuple[VerificationResult, ...]:
        """Read all content of versions, and compare it with the checksums of when they were made.

        `reference` is a version, `pipeline/job` for all versions of it, a pipeline for all of its, or empty
        for all there are. Raises NotFoundError where nothing has that name.
        """

    def remove_artifact(
        self, artifact_id: str, *, force: bool = False, dry_run: bool = False
    ) -> RemovalPreview:
        """Delete the content of a version, or of all (`pipeline/job`); their records stay, for lineage.

        Raises ConflictError while a run may use it; without `force` also where an alias stands for it or
        another version was made from it. With `dry_run` nothing is removed or raised for that. May be
        repeated.
        """

    def aliases(
        self, *, name: str | None = None, limit: int = PAGE_ITEMS, cursor: str | None = None
    ) -> Page[Alias]:
        """List the aliases that were set, of one `pipeline/job` or of all, by name.

        `latest` and `best` always exist and are not listed.
        """

    def set_alias(self, alias: Alias, *, expected: int | None = None) -> Alias:
        """Set or move an alias; with `expected` only where it stands for that version now (0: not set).

        Returns the alias as it is stored. Raises StaleVersionError where it stands for another version than
        `expected`, InputError, NotFoundError for a version that does not exist.
        """

    def remove_alias(self, alias_id: str) -> None:
        """Delete an alias; its version stays.

        An alias that is not set is fine.
        """


class Grid(
    Versions,
    Housekeeping,
    Projects,
    Schedules,
    Backfills,
    Sites,
    Advising,
    Sharing,
    Protocol,
):
    """Everything a face can ask of a grid. SDK and command line work on any implementation.

    Takes and returns nouns; raises GridmillError and nothing else. Safe to call from several threads.
    Names and ids of nothing raise NotFoundError; verbs may be repeated (what is gone is gone).
    """

    def control(self) -> ControlView:
        """Show the control node itself."""

    def apply(self, pipeline: Pipeline, *, adopt: bool = False) -> Pipeline:
        """Keep a pipeline and its resources without running it; `adopt` moves its name to its folder.

        Raises PipelineError for references to jobs or resources that do not exist, CapacityError,
        ConflictError for a name that belongs to another folder.
        """

    def start_run(
        self, pipeline: Pipeline, *, force: bool = False, only: tuple[str, ...] = (), adopt: bool = False
    ) -> RunView:
        """Start a run; returns at once. `only` names jobs: they run with the jobs that they need.

        `force` runs unchanged jobs too; with `only`, those that are named. A bundle the pipeline names must
        have been put before. `adopt` moves the name to the pipeline's folder. Raises ConflictError for a
        name that belongs to another folder.
        """

    def plan_run(self, pipeline: Pipeline) -> DryRun:
        """Plan a run without starting it: sizes with reasons, order, expected memory and time."""

    def runs(
        self,
        *,
        pipeline: str | None = None,
        states: tuple[RunState, ...] = (),
        limit: int = PAGE_ITEMS,
        cursor: str | None = None,
    ) -> Page[Run]:
        """List runs, newest first, of one pipeline or of all, in one of these states or in any."""

    def run(self, run_id: str, *, since: str = "") -> RunView:
        """Show a run: the number of jobs in each state, and at most 100 jobs, those that failed or run first.

        They have at most 1 MiB; `jobs` lists all of them. `since` is the `version` of a view that the caller
        has: if that is still right, the answer has `unchanged` and no jobs. Of a run with more than 100 jobs
        a view may be up to 2 s old. Raises NotFoundError.
        """

    def jobs(
        self,
        run_id: str,
        *,
        states: tuple[JobState, ...] = (),
        limit: int = PAGE_ITEMS,
        cursor: str | None = None,
    ) -> Page[JobView]:
        """List the jobs of a run in declared order, in one of these states or in any.

        Each with its attempts, versions, progress, and why it was executed or waits. Raises NotFoundError.
        """

    def job(self, run_id: str, name: str) -> JobView:
        """Show one job of a run.

        Raises NotFoundError.
        """

    def resume(self, run_id: str) -> RunView:
        """Continue a failed or stopped run; jobs that succeeded are not run again.

        A run that succeeded stays as it is.
        """

    def stop_run(self, run_id: str, *, job: str | None = None) -> RunView:
        """Stop a run, or one job of it; returns at once.

        A run or job that has ended stays as it is.
        """

    def events(
        self,
        run_id: str,
        *,
        job: str | None = None,
        after: str = "",
        limit: int = 1000,
        wait_seconds: float = 0,
    ) -> tuple[Event, ...]:
        """List events of a run after the one with the id `after`; waits for one up to `wait_seconds`.

        In order, at most `limit`, and at most 1 MiB (one event may be larger). Without `after` from the first
        event. Returns as soon as there is any, or () at the end of `wait_seconds`. Raises InputError for an
        id that is none, NotFoundError for a run or a job that does not exist.
        """

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
        """List texts that the jobs of a run wrote after `after`; waits for one up to `wait_seconds`.

        The id is an offset in the log of the run, in bytes: any number may be given, and `until` is another
        one. `attempt`: only of that attempt, with the other ranks of its gang. `tail`: from a place behind
        which at least that many lines follow. `search`: only lines that contain this text; an answer with an
        empty text says how far it looked. At most `limit`, and at most about 1 MiB. Raises InputError,
        NotFoundError.
        """

    def configure_resource(self, resource: Resource) -> tuple[Resource, Sizing]:
        """Create or replace a resource; returns it with the size chosen for it, with reasons.

        Raises CapacityError when no site is large enough.
        """

    def resources(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Resource]:
        """List all resources, by name."""

    def remove_resource(self, name: str) -> None:
        """Delete a resource; its deployments are released when idle.

        Raises ConflictError while jobs wait for it.
        """

    def deployments(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Deployment]:
        """List the deployments that are not gone, by resource, then by number."""

    def release(self, deployment_id: str) -> None:
        """Release a deployment once it is idle.

        One that does not exist is fine. Raises ConflictError while it works.
        """

    def pipelines(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Pipeline]:
        """List pipelines, by name, as they were applied last, or else as they were run last."""

    def pipeline(self, name: str) -> Pipeline:
        """Show one pipeline, as it was applied last, or else as it was run last."""

    def remove_pipeline(self, name: str) -> None:
        """Delete a pipeline; its runs and artifacts stay.

        Raises ConflictError while a run is active.
        """

    def has_bundle(self, bundle: str) -> bool:
        """Check whether the code bundle of that hash is stored."""

    def put_bundle(self, bundle: str, data: bytes) -> None:
        """Store a code bundle (tar.gz).

        Raises InputError when `bundle` is not its hash.
        """

    def report(self, run_id: str) -> str:
        """Show the report of a run: one self-contained HTML document."""

    def shutdown(self, *, all: bool = False) -> None:
        """End the control node and its idle deployments; `all` stops the runs that it works for first.

        Raises ConflictError, naming these runs, without `all`.
        """
