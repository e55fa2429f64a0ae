"""The use cases of Gridmill, which the control node's service and its clients offer.

`Grid` joins the protocols of schedules, backfills, sites, advice, projects, sinks (alterations and status),
versions and aliases, and housekeeping. The REST API takes its types, default values and help texts from these
methods: the first line of a docstring is the help text. `ports/usecases.py` has the HTTP requests. Every
method that returns a `Page` takes a `limit`, and as `cursor` the `next_cursor` of the previous page (see
ports/pages.py).
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
    """The use cases of schedules. `apply` creates schedules. The schedule of a pipeline has the pipeline's
    name; the schedule of a job is named `PIPELINE/JOB`."""

    def schedules(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[ScheduleView]:
        """List the schedules of kept pipelines and of their jobs, by name."""

    def schedule(self, name: str) -> ScheduleView:
        """Show one schedule, with its next due times."""

    def pause_schedule(self, name: str) -> ScheduleView:
        """Start no further run of a schedule until it is started again.

        A schedule that is already paused does not change.
        """

    def start_schedule(self, name: str) -> ScheduleView:
        """Let a paused schedule go on, from now.

        Runs that were due during the pause are skipped.
        """


class Backfills(Protocol):
    """The use cases of backfills. A pipeline has at most one backfill, which has the pipeline's name."""

    def backfills(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[BackfillView]:
        """List the backfills of pipelines, by name."""

    def backfill(self, name: str) -> BackfillView:
        """Show one backfill, with its chunks."""

    def start_backfill(self, backfill: Backfill, chunks: tuple[Chunk, ...] = ()) -> BackfillView:
        """Start a backfill, or the same one again: chunks that are done stay, the others are run.

        Returns at once. Chunks of this range that are done or active do not change. All other chunks are run,
        including failed ones. Without `chunks`, the backfill keeps its earlier chunks. Raises ConflictError
        if the pipeline has an active backfill over another range, UnavailableError if the control node does
        not keep running, InputError, PipelineError.
        """

    def backfill_pipeline(self, backfill: Backfill, values: Mapping[str, str]) -> BackfillView:
        """Run a kept pipeline over a range, in chunks with the parameters `from` and `to`.

        The pipeline is the last applied one with the name of the backfill. Its text is read again for each
        chunk, with the bounds of the chunk and `values` as parameters. Raises NotFoundError, PipelineError if
        the text of the pipeline is not stored, and all errors of `start_backfill`.
        """

    def stop_backfill(self, name: str) -> BackfillView:
        """Start no further chunk of a backfill until it is started again; active runs go on."""


class Sites(Protocol):
    """The use cases of sites."""

    def sites(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Site]:
        """List all sites and their nodes, by name."""

    def nodes(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[NodeView]:
        """List the provider nodes of all sites: claimed, running, and as seen now.

        Takes about a second.
        """

    def farms(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[FarmView]:
        """List farms, by name, as they were some seconds ago at most, with the speed of the connection."""

    def add_site(self, site: Site, *, replace: bool = False) -> Site:
        """Add a site, or replace its settings with `replace`; returns it with the nodes seen there.

        The site is opened first. Adding the same site again succeeds. Raises ConflictError if another site
        has this name and `replace` is false, InputError for settings that the site's kind does not have,
        UnavailableError if the site does not answer.
        """

    def remove_site(self, name: str) -> None:
        """Delete a site where no resource and no deployment is.

        Raises ConflictError if the site has a resource or a deployment.
        """


class Advising(Protocol):
    """The use cases of advice on the number of workers of a job."""

    def advise(self, name: str) -> Advice:
        """Show advice on the workers of `pipeline/job`, from measurements of its attempts.

        Raises NotFoundError if the job does not exist, ConflictError if no attempt of the job has succeeded
        yet, InputError for a job without workers.
        """

    def probe(self, name: str, *, workers: int, share: float = 0.1) -> RunView:
        """Run one job alone, with this number of workers on a share of its data; returns at once.

        The job reads the newest versions of its inputs. Its outputs are deleted; its measurements are stored.
        Raises NotFoundError, InputError.
        """


class Sharing(Protocol):
    """The use cases of projects."""

    def configure_project(self, project: Project) -> ProjectView:
        """Create a project, or replace its share and quota; its usage stays.

        Raises InputError.
        """

    def projects(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[ProjectView]:
        """List all projects as they are now, by name."""

    def remove_project(self, name: str) -> None:
        """Delete a project without active runs, and its usage.

        Raises NotFoundError, ConflictError if the project has active runs.
        """


class Altering(Protocol):
    """The use cases of alterations of sinks. An alteration applies to runs that start after it."""

    def alterations(
        self, *, name: str | None = None, limit: int = PAGE_ITEMS, cursor: str | None = None
    ) -> Page[Alterations]:
        """List the alterations of one sink (`pipeline/job`) or of all sinks that were altered, by name."""

    def alter_sink(self, name: str, change: SinkChange) -> Alterations:
        """Add or remove a source, constraint, metric or outage window of a sink.

        Returns all alterations of the sink. Raises NotFoundError if the pipeline is not kept or has no such
        sink, InputError if a part to add already exists or a part to remove does not exist.
        """

    def load_tasks(
        self, *, name: str | None = None, limit: int = PAGE_ITEMS, cursor: str | None = None
    ) -> Page[LoadTask]:
        """List the sources of one sink (`pipeline/job`) or of all: last load, rows, rejects, next look.

        The order is by sink, then by source. Raises NotFoundError.
        """


class Projects(Protocol):
    """The use cases of archives. Paths are on the control node's machine."""

    def backup(self, pipelines: tuple[str, ...], path: str) -> ArchiveResult:
        """Write pipelines, their versions with lineage, aliases, tables and models into one archive.

        Raises NotFoundError, ConflictError if an active run may change the versions, StorageError.
        """

    def restore(self, path: str) -> ArchiveResult:
        """Verify an archive on the control node's machine, then make all of it visible at once.

        Versions and pipelines that this grid already has in the same form do not change. Raises InputError
        for a damaged archive, UnsafePathError, ConflictError if this grid has a different version or pipeline
        with the same name.
        """


class Housekeeping(Protocol):
    """The use cases of disk space."""

    def usage(self) -> tuple[DiskUsage, ...]:
        """Show the use of the control node's disk: versions, records, folders of pods, caches."""

    def clean(self, *, days: float = HISTORY_DAYS, dry_run: bool = False) -> tuple[ReclaimableItem, ...]:
        """Delete unused versions and leftovers, and history that is older than `days`.

        Unused versions and leftovers are versions beyond the number that their jobs retain, files of removed
        versions and failed attempts, and folders of pods that ended. History is events, reports, code, and
        runs to which no version refers. Nothing that a run may be using is deleted. With `dry_run` nothing is
        deleted, and the result is the same.
        """

    def remove_run(self, run_id: str, *, dry_run: bool = False) -> RunRemovalPreview:
        """Delete a finished run: its records, events, logs, report, and leftovers of failed attempts.

        The versions that the run made stay. With `dry_run` nothing is deleted. Raises NotFoundError,
        ConflictError if the run is active or belongs to a backfill, because the backfill needs the run to
        know which chunks are done.
        """


class Versions(Altering, Protocol):
    """The use cases of versions. In the name of a version, `pipeline/job@3` has a number, `pipeline/job@prod`
    has an alias, and `pipeline/job` is the newest version."""

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

        Raises InputError if there is nothing to show, StorageError if the rows or files cannot be read.
        """

    def diff(self, before: str, after: str, *, key: tuple[str, ...] = ()) -> VersionDiff:
        """Compare two versions: columns, statistics, metrics, settings, and rows by the columns of `key`.

        Without `key`, rows are compared by the columns that the versions declare as their key.
        """

    def compare(self, name: str, versions: tuple[str, ...] = ()) -> ModelComparison:
        """Compare versions of a model side by side: metrics, settings, inputs and software.

        `versions` are numbers, aliases or other models (`pipeline/job`). Without `versions`, the last five
        versions are compared, oldest first. Raises InputError for a version that is not a model, and if there
        is only one version.
        """

    def verify(self, reference: str = "") -> tuple[VerificationResult, ...]:
        """Read all content of versions, and compare it with the checksums of when they were made.

        `reference` is one version, `pipeline/job` for all versions of a job, a pipeline for all its versions,
        or empty for all versions. Raises NotFoundError if nothing has this name.
        """

    def remove_artifact(
        self, artifact_id: str, *, force: bool = False, dry_run: bool = False
    ) -> RemovalPreview:
        """Delete the content of a version, or of all (`pipeline/job`); their records stay, for lineage.

        Raises ConflictError if a run may use the version. Without `force`, also raises ConflictError if an
        alias refers to the version or another version was made from it. With `dry_run` nothing is deleted,
        and ConflictError is not raised. May be repeated.
        """

    def aliases(
        self, *, name: str | None = None, limit: int = PAGE_ITEMS, cursor: str | None = None
    ) -> Page[Alias]:
        """List the aliases that were set, of one `pipeline/job` or of all, by name.

        `latest` and `best` always exist and are not listed.
        """

    def set_alias(self, alias: Alias, *, expected: int | None = None) -> Alias:
        """Set or move an alias; with `expected` only where it stands for that version now (0: not set).

        Returns the alias as it is stored. Raises StaleVersionError if the alias refers to another version
        than `expected`, InputError, NotFoundError for a version that does not exist.
        """

    def remove_alias(self, alias_id: str) -> None:
        """Delete an alias; its version stays.

        If the alias is not set, nothing changes.
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
    """All use cases of a grid. The SDK and the command line work with any implementation.

    Arguments and results are records of `gridmill.domain`. Every error is a GridmillError. All methods are
    safe to call from several threads. An unknown name or id raises NotFoundError. Methods that change the
    grid may be repeated: deleting an object that does not exist succeeds.
    """

    def control(self) -> ControlView:
        """Show the control node itself."""

    def apply(self, pipeline: Pipeline, *, adopt: bool = False) -> Pipeline:
        """Keep a pipeline and its resources without running it; `adopt` moves its name to its folder.

        Raises PipelineError for references to jobs or resources that do not exist, CapacityError,
        ConflictError if the name belongs to another folder.
        """

    def start_run(
        self, pipeline: Pipeline, *, force: bool = False, only: tuple[str, ...] = (), adopt: bool = False
    ) -> RunView:
        """Start a run; returns at once. `only` names jobs: they run with the jobs that they need.

        `force` also runs unchanged jobs; together with `only`, it affects only the jobs in `only`. A code
        bundle that the pipeline names must be stored before (see `put_bundle`). `adopt` moves the name to the
        pipeline's folder. Raises ConflictError if the name belongs to another folder.
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

        The jobs have at most 1 MiB; `jobs` lists all jobs. `since` is the `version` of a view that the caller
        has: if the run has not changed since, the answer has `unchanged` and no jobs. If the run has more
        than 100 jobs, its view may be up to 2 s old. Raises NotFoundError.
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

        Each job has its attempts, versions and progress, and the reason why it was executed or waits. Raises
        NotFoundError.
        """

    def job(self, run_id: str, name: str) -> JobView:
        """Show one job of a run.

        Raises NotFoundError.
        """

    def resume(self, run_id: str) -> RunView:
        """Continue a failed or stopped run; jobs that succeeded are not run again.

        A run that succeeded does not change.
        """

    def stop_run(self, run_id: str, *, job: str | None = None) -> RunView:
        """Stop a run, or one job of it; returns at once.

        A run or job that has ended does not change.
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

        The events are in order. There are at most `limit` events with at most 1 MiB (a single event may be
        larger). Without `after`, the list begins with the first event. Returns as soon as there is an event,
        or () after `wait_seconds`. Raises InputError for an invalid id, NotFoundError for a run or a job that
        does not exist.
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

        The id of an entry is an offset in the log of the run, in bytes. `after` and `until` may be any
        offset. `attempt` selects the texts of one attempt and of the other ranks of its gang. With `tail`,
        the list begins at a place that at least that many lines follow. `search` selects lines that contain
        this text; an entry with an empty text shows how far the search has read. There are at most `limit`
        entries with at most about 1 MiB. Raises InputError, NotFoundError.
        """

    def configure_resource(self, resource: Resource) -> tuple[Resource, Sizing]:
        """Create or replace a resource; returns it with the size chosen for it, with reasons.

        Raises CapacityError if no site is large enough.
        """

    def resources(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Resource]:
        """List all resources, by name."""

    def remove_resource(self, name: str) -> None:
        """Delete a resource; its deployments are released when idle.

        Raises ConflictError if jobs wait for the resource.
        """

    def deployments(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Deployment]:
        """List the deployments that are not gone, by resource, then by number."""

    def release(self, deployment_id: str) -> None:
        """Release a deployment once it is idle.

        If the deployment does not exist, nothing changes. Raises ConflictError while the deployment works.
        """

    def pipelines(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Pipeline]:
        """List pipelines, by name, as they were applied last, or else as they were run last."""

    def pipeline(self, name: str) -> Pipeline:
        """Show one pipeline, as it was applied last, or else as it was run last."""

    def remove_pipeline(self, name: str) -> None:
        """Delete a pipeline; its runs and artifacts stay.

        Raises ConflictError if the pipeline has an active run.
        """

    def has_bundle(self, bundle: str) -> bool:
        """Check whether the code bundle of that hash is stored."""

    def put_bundle(self, bundle: str, data: bytes) -> None:
        """Store a code bundle (tar.gz).

        Raises InputError if `bundle` is not the hash of the data.
        """

    def report(self, run_id: str) -> str:
        """Show the report of a run: one self-contained HTML document."""

    def shutdown(self, *, all: bool = False) -> None:
        """End the control node and its idle deployments; `all` stops the runs that it works for first.

        Without `all`, raises ConflictError with the names of active runs.
        """
