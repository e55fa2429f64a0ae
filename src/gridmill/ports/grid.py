"""This module has the use cases of Gridmill, which the service of the control node and its clients offer.

The protocol `Grid` inherits from one protocol for each subject: schedules, backfills, sites, leases, advice,
projects, sinks (alterations and status), versions and aliases, and housekeeping. The REST API takes the
types, default values and help texts of its routes from these methods: the first line of a docstring is the
help text. `ports/usecases.py` defines the HTTP request of each use case. Every method that returns a `Page`
takes a `limit` and a `cursor`, which is the `next_cursor` of the previous page (see ports/pages.py).
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

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
from gridmill.domain.secret import KeyRotation, SecretView
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
from gridmill.ports.rentals import CloudAccounts, MachineImages, Renting
from gridmill.ports.services import Services


class Schedules(Protocol):
    """The use cases of schedules. `apply` creates schedules. The schedule of a pipeline has the pipeline's
    name; the schedule of a job is named `PIPELINE/JOB`."""

    def schedules(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[ScheduleView]:
        """List the schedules of stored pipelines and of their jobs, by name."""

    def schedule(self, name: str) -> ScheduleView:
        """Show one schedule, with its next due times."""

    def pause_schedule(self, name: str) -> ScheduleView:
        """Pause a schedule: it starts no further run until it is started again.

        A schedule that is already paused does not change.
        """

    def start_schedule(self, name: str) -> ScheduleView:
        """Start a paused schedule again, beginning with the next due time.

        Runs that were due during the pause are skipped.
        """


class Backfills(Protocol):
    """The use cases of backfills. A pipeline has at most one backfill, which has the pipeline's name."""

    def backfills(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[BackfillView]:
        """List the backfills of all pipelines, by name."""

    def backfill(self, name: str) -> BackfillView:
        """Show one backfill of a pipeline, with its chunks."""

    def start_backfill(self, backfill: Backfill, chunks: tuple[Chunk, ...] = ()) -> BackfillView:
        """Start a backfill, or start it again: chunks that are done stay, and all other chunks are run.

        Returns at once. Chunks of this range that are done or active are not changed. Chunks of the range
        that are not done and not active are run, including failed chunks. If `chunks` is not set, the
        backfill uses the chunks that it already has. Raises ConflictError if the pipeline has an active
        backfill over another range, UnavailableError if the control node does not run permanently,
        InputError, PipelineError.
        """

    def backfill_pipeline(self, backfill: Backfill, values: Mapping[str, str]) -> BackfillView:
        """Run a stored pipeline over a range of time, in chunks with the parameters `from` and `to`.

        The method uses the pipeline that was applied last under the name of the backfill. The text of the
        pipeline is read again for each chunk, with the bounds of the chunk and `values` as parameters.
        Raises NotFoundError, PipelineError if the text of the pipeline is not stored, and all errors of
        `start_backfill`.
        """

    def stop_backfill(self, name: str) -> BackfillView:
        """Stop a backfill: it starts no further chunk until it is started again; active runs continue."""


class Sites(Protocol):
    """The use cases of sites."""

    def sites(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Site]:
        """List all sites and their nodes, by name."""

    def nodes(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[NodeView]:
        """List the provider nodes of all sites, with their claimed, running and observed use.

        Takes about a second.
        """

    def farms(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[FarmView]:
        """List farms, by name, as they were at most some seconds ago, with the speed of the connection."""

    def add_site(self, site: Site, *, replace: bool = False) -> Site:
        """Add a site, or replace its settings with `replace`; return the site with the nodes that it has.

        The control node opens the site before it stores the site. If the same site is added again, the call
        succeeds. Raises ConflictError if another site has this name and `replace` is false, InputError for
        settings that the site's kind does not have, UnavailableError if the site does not answer.
        """

    def remove_site(self, name: str) -> None:
        """Delete a site that has no resource and no deployment.

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
        """Run one job alone, with this number of workers on a fraction of its data; return immediately.

        The probed job reads the newest versions of its inputs. The outputs of the probed job are deleted,
        and its measurements are stored. Raises NotFoundError, InputError.
        """


class Sharing(Protocol):
    """The use cases of projects: their shares and quotas."""

    def configure_project(self, project: Project) -> ProjectView:
        """Create a project, or replace its share and quota; the recorded usage of the project stays.

        Raises InputError.
        """

    def projects(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[ProjectView]:
        """List all projects with their present usage, by name."""

    def remove_project(self, name: str) -> None:
        """Delete a project that has no active runs, together with its recorded usage.

        Raises NotFoundError, ConflictError if the project has active runs.
        """


class SecretVerbs(Protocol):
    """The use cases of secrets. No use case returns a value."""

    def secrets(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[SecretView]:
        """List all secrets and where they are used, by name. The list contains no values."""

    def secret(self, name: str) -> SecretView:
        """Show one secret and where it is used, without its value.

        Raises NotFoundError.
        """

    def add_secret(self, name: str, value: str) -> SecretView:
        """Add a secret, or replace its value; the value is stored encrypted.

        The same value again changes nothing. Raises InputError for a value that is too short, too long or
        not text, StorageError if the key file cannot be used.
        """

    def remove_secret(self, name: str, *, force: bool = False) -> None:
        """Delete a secret.

        Raises NotFoundError, and ConflictError while pipelines, active runs or sites refer to the secret and
        `force` is false.
        """

    def rotate_secret_key(self) -> KeyRotation:
        """Create a new key, encrypt all secrets with it, and delete the earlier key.

        May be repeated after an interruption. Raises StorageError if a value cannot be decrypted; then all
        keys are kept.
        """


class Altering(Protocol):
    """The use cases that alter sinks. An alteration of a sink applies to runs that start after the
    alteration."""

    def alterations(
        self, *, name: str | None = None, limit: int = PAGE_ITEMS, cursor: str | None = None
    ) -> Page[Alterations]:
        """List the alterations of one sink (`pipeline/job`) or of all sinks that were altered, by name."""

    def alter_sink(self, name: str, change: SinkChange) -> Alterations:
        """Add or remove a source, constraint, metric or outage window of a sink.

        Returns all alterations of the sink. Raises NotFoundError if the pipeline is not stored or has no
        such sink, InputError if the part to add already exists or the part to remove does not exist.
        """

    def load_tasks(
        self, *, name: str | None = None, limit: int = PAGE_ITEMS, cursor: str | None = None
    ) -> Page[LoadTask]:
        """List the sources of one sink (`pipeline/job`) or of all: last load, rows, rejects, next check.

        The sources are ordered by sink, then by name. Raises NotFoundError.
        """


class Projects(Protocol):
    """The use cases that write and restore archives. The paths of archives are paths on the machine of the
    control node."""

    def backup(self, pipelines: tuple[str, ...], path: str) -> ArchiveResult:
        """Write pipelines, their versions with lineage, aliases, tables and models into one archive.

        Raises NotFoundError, ConflictError if an active run may change the versions, StorageError.
        """

    def restore(self, path: str) -> ArchiveResult:
        """Verify an archive on the control node's machine, then make its content visible in one step.

        Versions and pipelines that this grid already has with the same content do not change. Raises
        InputError for a damaged archive, UnsafePathError, ConflictError if this grid has a different version
        or pipeline with the same name.
        """


class Housekeeping(Protocol):
    """The use cases of disk space."""

    def usage(self) -> tuple[DiskUsage, ...]:
        """Show the use of the control node's disk: versions, records, folders of pods, caches."""

    def clean(self, *, days: float = HISTORY_DAYS, dry_run: bool = False) -> tuple[ReclaimableItem, ...]:
        """Delete unused versions and leftovers, and history that is older than `days`.

        Unused versions are versions beyond the number that their jobs retain; leftovers are the files of
        removed versions and failed attempts, and the folders of pods that ended. History is events, reports,
        code bundles, and runs to which no version refers. Files and records that a run may be using are
        never deleted. With `dry_run` nothing is deleted, but the method returns the same result.
        """

    def remove_run(self, run_id: str, *, dry_run: bool = False) -> RunRemovalPreview:
        """Delete a finished run: its records, events, logs and report, and leftovers of failed attempts.

        The versions that the deleted run made stay. With `dry_run` the method deletes nothing. Raises
        NotFoundError, ConflictError if the run is active or belongs to a backfill, because a backfill needs
        its runs to know which chunks are done.
        """


class Versions(Altering, Protocol):
    """The use cases of versions and aliases. A version is named by its number (`pipeline/job@3`) or by an
    alias (`pipeline/job@prod`); `pipeline/job` alone names the newest version."""

    def artifacts(
        self,
        *,
        kind: ArtifactKind | None = None,
        name: str | None = None,
        limit: int = PAGE_ITEMS,
        cursor: str | None = None,
    ) -> Page[Artifact]:
        """List versions of sinks, datasets, models, predictions and files, newest first.

        Versions whose content was removed are left out. `name` is `pipeline/job`.
        """

    def artifact(self, artifact_id: str) -> Artifact:
        """Show a version (`pipeline/job@N`, `pipeline/job@ALIAS`, or `pipeline/job` for the newest)."""

    def version(self, artifact_id: str) -> VersionView:
        """Show a version with its aliases, its inputs, and the versions that were made from it."""

    def preview(self, artifact_id: str, *, rows: int = 10, rejects: bool = False) -> Preview:
        """Show the first rows of a table (or the rejects of a sink), or the files of a model or a command.

        Raises InputError if the version has no rows or files to show, StorageError if the rows or files
        cannot be read.
        """

    def diff(self, before: str, after: str, *, key: tuple[str, ...] = ()) -> VersionDiff:
        """Compare two versions: columns, statistics, metrics, settings, and rows by the key columns `key`.

        If `key` is not set, rows are matched by the columns that the versions declare as their key.
        """

    def compare(self, name: str, versions: tuple[str, ...] = ()) -> ModelComparison:
        """Compare versions of a model side by side: metrics, settings, inputs and software.

        `versions` contains numbers, aliases or the names of other models (`pipeline/job`). Without
        `versions`, the last five versions are compared, oldest first. Raises InputError for a version that
        is not a model, and if the method would compare only one version.
        """

    def verify(self, reference: str = "") -> tuple[VerificationResult, ...]:
        """Read the whole content of versions, and compare it with the checksums from when they were made.

        `reference` is one version, `pipeline/job` for all versions of a job, a pipeline for all its
        versions, or empty for all versions. Raises NotFoundError if no version, job or pipeline has this
        name.
        """

    def remove_artifact(
        self, artifact_id: str, *, force: bool = False, dry_run: bool = False
    ) -> RemovalPreview:
        """Delete the content of a version, or of all versions of `pipeline/job`; their records stay.

        Raises ConflictError if a run may use the version. Without `force`, the method also raises
        ConflictError if an alias refers to the version or if another version was made from it. With
        `dry_run` the method deletes nothing and does not raise ConflictError. May be repeated.
        """

    def aliases(
        self, *, name: str | None = None, limit: int = PAGE_ITEMS, cursor: str | None = None
    ) -> Page[Alias]:
        """List the aliases that users have set, of one job (`pipeline/job`) or of all jobs, by name.

        The aliases `latest` and `best` always exist and are not listed.
        """

    def set_alias(self, alias: Alias, *, expected: int | None = None) -> Alias:
        """Set or move an alias; with `expected`, only if the alias names this version now (0: no version).

        Returns the alias in its stored form. Raises StaleVersionError if the alias refers to another version
        than `expected`, InputError, NotFoundError for a version that does not exist.
        """

    def promote_alias(self, alias_id: str) -> Alias:
        """Move an alias to the new version that was better and waits for approval.

        Raises ConflictError if no version waits, or if the alias names another version than the one with
        which the new version was compared; NotFoundError.
        """

    def rollback_alias(self, alias_id: str) -> Alias:
        """Refuse the version that waits for approval, or undo the last move by a comparison.

        Raises ConflictError if the last move of the alias was not made by a comparison, NotFoundError.
        """

    def remove_alias(self, alias_id: str) -> None:
        """Delete an alias; its version stays.

        If the alias is not set, the call succeeds and changes nothing.
        """


class Grid(
    Versions,
    Housekeeping,
    Projects,
    Schedules,
    Backfills,
    Sites,
    Renting,
    CloudAccounts,
    MachineImages,
    Services,
    Advising,
    Sharing,
    SecretVerbs,
    Protocol,
):
    """All use cases of a grid, as one protocol. The SDK and the command line work with any implementation of
    this protocol.

    The arguments and results of all methods are records of `gridmill.domain`. Every error that a method
    raises is a GridmillError. All methods of the grid can be called from several threads at the same time.
    If a name or id is unknown, the method raises NotFoundError. Methods that change the grid may be
    repeated: for example, deleting an object that does not exist succeeds.
    """

    def control(self) -> ControlView:
        """Show the control node of the grid."""

    def apply(self, pipeline: Pipeline, *, adopt: bool = False) -> Pipeline:
        """Store a pipeline and its resources without running it; `adopt` moves its name to its folder.

        Raises PipelineError for references to jobs or resources that do not exist, CapacityError,
        ConflictError if the name of the pipeline belongs to another folder.
        """

    def start_run(
        self, pipeline: Pipeline, *, force: bool = False, only: tuple[str, ...] = (), adopt: bool = False
    ) -> RunView:
        """Start a run of a pipeline; `only` selects jobs, which run with the jobs that they need.

        `force` also executes jobs that are unchanged; together with `only`, it affects only the jobs in
        `only`. If the pipeline refers to a code bundle, the bundle must already be stored (see
        `put_bundle`). `adopt` moves the name of the pipeline to the folder of this pipeline. Raises
        ConflictError if the name of the pipeline belongs to another folder.
        """

    def plan_run(self, pipeline: Pipeline) -> DryRun:
        """Plan a run without starting it: sizes of jobs with reasons, order, expected memory and time."""

    def runs(
        self,
        *,
        pipeline: str | None = None,
        states: tuple[RunState, ...] = (),
        limit: int = PAGE_ITEMS,
        cursor: str | None = None,
    ) -> Page[Run]:
        """List the runs of one pipeline or of all, in one of these states or in any state, newest first."""

    def run(self, run_id: str, *, since: str = "") -> RunView:
        """Show a run: the number of jobs in each state, and at most 100 jobs, failed and running jobs first.

        The listed jobs have a total size of at most 1 MiB. `jobs` lists all jobs. `since` is the `version`
        of a view that the caller already has: if the run has not changed since then, the answer has
        `unchanged` and no jobs. If the run has more than 100 jobs, its view may be up to 2 s old. Raises
        NotFoundError.
        """

    def jobs(
        self,
        run_id: str,
        *,
        states: tuple[JobState, ...] = (),
        limit: int = PAGE_ITEMS,
        cursor: str | None = None,
    ) -> Page[JobView]:
        """List the jobs of a run in declared order, in one of these states or in any state.

        Each job has its attempts, its versions, its progress, and the reason why it was executed or is
        waiting. Raises NotFoundError.
        """

    def job(self, run_id: str, name: str) -> JobView:
        """Show one job of a run, with its attempts.

        Raises NotFoundError.
        """

    def resume(self, run_id: str) -> RunView:
        """Continue a failed or stopped run; jobs that succeeded are not run again.

        If the run has succeeded, the method changes nothing.
        """

    def stop_run(self, run_id: str, *, job: str | None = None) -> RunView:
        """Stop a run, or one job of a run, and return immediately.

        If the run or the job has already ended, the method changes nothing.
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
        """List the events of a run after the event with the id `after`; wait up to `wait_seconds` for one.

        The events are listed in the order in which they happened. The result has at most `limit` events with
        at most 1 MiB (a single event may be larger). If `after` is not set, the list begins with the first
        event of the run. The method returns as soon as there is an event, or returns () after
        `wait_seconds`. Raises InputError for an invalid id, NotFoundError for a run or a job that does not
        exist.
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
        """List log texts that the jobs of a run wrote after `after`; wait up to `wait_seconds` for one.

        The id of a log entry is its offset in the log of the run, in bytes. `after` and `until` may be any
        offsets in the log. `attempt` selects the log texts of one attempt and of the other ranks of its
        gang. With `tail`, the list begins at a position that is followed by at least `tail` lines. `search`
        selects lines that contain this text; an entry with an empty text shows how far the search has read
        the log. The result has at most `limit` entries with a total of at most about 1 MiB. Raises
        InputError, NotFoundError.
        """

    def configure_resource(self, resource: Resource) -> tuple[Resource, Sizing]:
        """Create or replace a resource; return it with the size that Gridmill chose, and the reasons.

        Raises CapacityError if no site is large enough for the resource.
        """

    def resources(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Resource]:
        """List all resources of the grid, by name."""

    def remove_resource(self, name: str) -> None:
        """Delete a resource; its deployments are released when they are idle.

        Raises ConflictError if jobs wait for the resource.
        """

    def deployments(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Deployment]:
        """List the deployments that still exist, by resource, then by number."""

    def release(self, deployment_id: str) -> None:
        """Release a deployment as soon as it is idle.

        If the deployment does not exist, the call succeeds and changes nothing. Raises ConflictError while
        the deployment runs a job.
        """

    def pipelines(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Pipeline]:
        """List pipelines by name, each as it was last applied or, if never applied, last run."""

    def pipeline(self, name: str) -> Pipeline:
        """Show one pipeline as it was last applied, or as it was last run if it was never applied."""

    def remove_pipeline(self, name: str) -> None:
        """Delete a pipeline; its runs and versions stay.

        Raises ConflictError if the pipeline has an active run.
        """

    def has_bundle(self, bundle: str) -> bool:
        """Check whether the code bundle with this hash is stored."""

    def put_bundle(self, bundle: str, data: bytes) -> None:
        """Store a code bundle (a tar.gz file).

        Raises InputError if `bundle` is not the hash of the bundle's data.
        """

    def report(self, run_id: str) -> str:
        """Show the report of a run, which is one self-contained HTML document."""

    def shutdown(self, *, all: bool = False) -> None:
        """End the control node and its idle deployments; `all` first stops its active runs.

        Without `all`, the method raises ConflictError with the names of the active runs.
        """


@runtime_checkable
class ReadyAnswers(Protocol):
    """A grid that can return answers that are already encoded as JSON, for a server with many readers.

    A grid may implement this protocol in addition to `Grid`. For a use case and its arguments, `ready` and
    `encoded` return the same answer as the use case, encoded as JSON. If a grid does not implement the
    protocol, the server calls the use case and encodes its answer.
    """

    def ready(self, name: str, arguments: Mapping[str, Any]) -> bytes | None:
        """Return the encoded answer if it is in memory. Return None if the caller has to call `encoded`.
        The method never waits and computes nothing. The answer of a stream use case may be empty (`[]`)."""

    def encoded(self, name: str, arguments: Mapping[str, Any]) -> bytes:
        """Return the encoded answer; the calling thread makes it and may have to wait. Raises the errors of
        the use case."""

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` after each commit and when the control node ends; the call may come from any
        thread. `watcher` must not wait."""
