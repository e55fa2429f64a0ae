"""The use cases of Gridmill, offered by the control node's service in process and by the HTTP client.

`Grid` joins the protocols of schedules, backfills, sites, advice, projects, sinks (alterations and status),
versions and aliases, and housekeeping.
"""

from collections.abc import Mapping
from typing import Protocol

from gridmill.domain.advice import Advice
from gridmill.domain.archive import Moved
from gridmill.domain.artifact import Alias, Artifact, ArtifactKind
from gridmill.domain.backfill import Backfill, BackfillView, Chunk
from gridmill.domain.comparison import ModelComparison, Preview, VersionDiff
from gridmill.domain.deployment import Deployment
from gridmill.domain.manifest import Verified
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import Event
from gridmill.domain.project import Project, ProjectView
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.run import Run
from gridmill.domain.sink_overrides import Alterations, Change
from gridmill.domain.sink_status import LoadTask
from gridmill.domain.site import NodeView, Site
from gridmill.domain.states import RunState
from gridmill.domain.usage import HISTORY_DAYS, Usage, Waste
from gridmill.domain.views import (
    ControlView,
    DryRun,
    FarmView,
    Removal,
    RunRemoval,
    RunView,
    ScheduleView,
    VersionView,
)


class Schedules(Protocol):
    """What a face can ask about schedules. They have the names of their pipelines, those of jobs
    are `PIPELINE/JOB`; `apply` makes them."""

    def schedules(self) -> tuple[ScheduleView, ...]:
        """Schedules of kept pipelines, by name."""
        ...

    def schedule(self, name: str) -> ScheduleView:
        """One of them, with its next due times."""
        ...

    def pause_schedule(self, name: str) -> ScheduleView:
        """Start no further run until `start_schedule`. A paused one is fine."""
        ...

    def start_schedule(self, name: str) -> ScheduleView:
        """Let a paused one go on, from now: what was due meanwhile is not made up for."""
        ...


class Backfills(Protocol):
    """What a face can ask about backfills. They have the names of their pipelines, each of which has one."""

    def backfills(self) -> tuple[BackfillView, ...]:
        """Backfills, by name."""
        ...

    def backfill(self, name: str) -> BackfillView:
        """One of them, with its chunks."""
        ...

    def start_backfill(self, backfill: Backfill, chunks: tuple[Chunk, ...] = ()) -> BackfillView:
        """Start it and return at once. Chunks of that range that are done (by their runs) or under way stay
        as they are, the others are run, those that failed, too. Without `chunks`: those it had before.

        Raises ConflictError while the pipeline's backfill over another range is under way, UnavailableError
        where the control node does not stay up, InputError, PipelineError.
        """
        ...

    def backfill_pipeline(self, backfill: Backfill, values: Mapping[str, str]) -> BackfillView:
        """Start one of the kept pipeline of its name, as it was applied last: its text is read again for each
        chunk, with the chunk's bounds, and `values`, as parameters.

        Raises NotFoundError, PipelineError where no text of it is kept, and what `start_backfill` raises.
        """
        ...

    def stop_backfill(self, name: str) -> BackfillView:
        """Start no further chunk until it is started again; runs that are active go on."""
        ...


class Sites(Protocol):
    """What a face can ask about sites."""

    def sites(self) -> tuple[Site, ...]:
        """All sites and their nodes, by name."""
        ...

    def nodes(self) -> tuple[NodeView, ...]:
        """Provider nodes of all sites: claimed, running, and as seen now. Takes a second or so."""
        ...

    def farms(self) -> tuple[FarmView, ...]:
        """Farms, by name, as they were some seconds ago at most."""
        ...

    def add_site(self, site: Site, *, replace: bool = False) -> Site:
        """Open the site, look at its nodes, and keep it; as it is now. Adding the same again is fine.

        Raises ConflictError when another one has that name, unless `replace`; InputError for settings that
        its kind does not have, UnavailableError when it does not answer.
        """
        ...

    def remove_site(self, name: str) -> None:
        """Forget it. Raises ConflictError while a resource or a deployment is there."""
        ...


class Advising(Protocol):
    """What a face can ask about the workers of a job."""

    def advise(self, name: str) -> Advice:
        """Advice on `pipeline/job`, from what its attempts measured.

        Raises NotFoundError where there is no such job, ConflictError where no attempt of it has succeeded
        yet, InputError for a job without workers.
        """
        ...

    def probe(self, name: str, *, workers: int, share: float) -> RunView:
        """Start a run of that job alone, with so many workers on a share of its data; answers at once.

        It reads the newest versions of what the job needs; what it makes is thrown away, what it measured is
        kept. Raises NotFoundError, InputError.
        """
        ...


class Sharing(Protocol):
    """What a face can ask about projects."""

    def configure_project(self, project: Project) -> ProjectView:
        """Create the project of that name, or replace its share and quota; what it used stays.

        Raises InputError.
        """
        ...

    def projects(self) -> tuple[ProjectView, ...]:
        """All projects as they stand, by name."""
        ...

    def remove_project(self, name: str) -> None:
        """Remove it, and what it used. Raises NotFoundError, ConflictError while runs of it are active."""
        ...


class Altering(Protocol):
    """What a face can ask about alterations. They hold for runs that start after them."""

    def alterations(self, *, name: str | None = None) -> tuple[Alterations, ...]:
        """Of one sink (`pipeline/job`) or of all that were altered."""
        ...

    def alter_sink(self, name: str, change: Change) -> Alterations:
        """Add or remove a part; all changes there are then.

        Raises NotFoundError for a pipeline that is not kept or has no such sink, InputError for what is there
        already or is not there.
        """
        ...

    def load_tasks(self, *, name: str | None = None) -> tuple[LoadTask, ...]:
        """The sources of one sink (`pipeline/job`) or of all: how each stands. Raises NotFoundError."""
        ...


class Projects(Protocol):
    """What a face can ask about whole projects. Paths are on the control node's machine."""

    def backup(self, pipelines: tuple[str, ...], path: str) -> Moved:
        """Write pipelines, their versions with lineage, aliases, tables and models into one archive.

        Raises NotFoundError, ConflictError while a run may be changing them, StorageError.
        """
        ...

    def restore(self, path: str) -> Moved:
        """Verify an archive, then make all of it visible at once; what is here already and the same stays.

        Raises InputError for one that is damaged, UnsafePathError, ConflictError where this grid has another
        version or pipeline of the same name.
        """
        ...


class Housekeeping(Protocol):
    """What a face can ask about space."""

    def usage(self) -> tuple[Usage, ...]:
        """What takes space on the control node's disk: versions, records, folders of pods, caches."""
        ...

    def clean(self, *, days: float = HISTORY_DAYS, dry_run: bool = False) -> tuple[Waste, ...]:
        """Take away versions beyond what their jobs retain, what removed versions and failed attempts left,
        folders of pods that ended, and history (events, reports, code, runs that no version tells of) older
        than `days`.

        What a run may be using stays. With `dry_run` only what would go is told.
        """
        ...

    def remove_run(self, run_id: str, *, dry_run: bool = False) -> RunRemoval:
        """Delete a finished run: its records, events (with the logs), report, and what failed attempts left.

        The versions that it made stay. With `dry_run` nothing is deleted. Raises NotFoundError, ConflictError
        while it is active, and for a run of a backfill, which needs it to know what is done.
        """
        ...


class Versions(Altering, Protocol):
    """What a face can ask about versions. Where one is named, `pipeline/job@3` is a number,
    `pipeline/job@prod` an alias, and `pipeline/job` the newest."""

    def artifacts(self, *, kind: ArtifactKind | None = None, name: str | None = None) -> tuple[Artifact, ...]:
        """Versions that are not removed, newest first; `name` is `pipeline/job`."""
        ...

    def artifact(self, artifact_id: str) -> Artifact:
        """A version (`pipeline/job@N`, `pipeline/job@ALIAS`); `pipeline/job` alone is the newest."""
        ...

    def version(self, artifact_id: str) -> VersionView:
        """A version with its names, what it was made from and what was made from it."""
        ...

    def preview(self, artifact_id: str, *, rows: int = 10, rejects: bool = False) -> Preview:
        """The first rows of a table (or of a sink's rejects), or the files of a model or a command.

        Raises InputError where there are none to show, StorageError when they cannot be read.
        """
        ...

    def diff(self, before: str, after: str, *, key: tuple[str, ...] = ()) -> VersionDiff:
        """How two versions differ: columns, statistics, metrics, settings.

        Rows are compared by `key`; without one by the columns that the versions say tell rows apart.
        """
        ...

    def compare(self, name: str, versions: tuple[str, ...] = ()) -> ModelComparison:
        """Versions of a model side by side: metrics, settings, what they were made from and with.

        `versions` are numbers, aliases or other models (`pipeline/job`); without any the last five, oldest
        first. Raises InputError for what is no model, and where there is only one.
        """
        ...

    def verify(self, reference: str = "") -> tuple[Verified, ...]:
        """Read all content of versions, and compare it with what it was when they were made.

        `reference` is a version, `pipeline/job` for all versions of it, a pipeline for all of its, or empty
        for all there are. Raises NotFoundError where nothing has that name.
        """
        ...

    def remove_artifact(self, artifact_id: str, *, force: bool = False, dry_run: bool = False) -> Removal:
        """Delete the content of a version, or of all (`pipeline/job`); their records stay, for lineage.

        Raises ConflictError while a run may use it; without `force` also where an alias stands for it or
        another version was made from it. With `dry_run` nothing is removed or raised for that.
        May be repeated.
        """
        ...

    def aliases(self, *, name: str | None = None) -> tuple[Alias, ...]:
        """The aliases that were set, of one `pipeline/job` or of all. `latest` and `best` need none."""
        ...

    def set_alias(self, alias: Alias, *, expected: int | None = None) -> Alias:
        """Set or move an alias; it as it is kept.

        With `expected` only where it stands for that version now (0: where it is not set), else
        StaleVersionError. Raises InputError, NotFoundError for a version that is not there.
        """
        ...

    def remove_alias(self, alias_id: str) -> None:
        """Forget an alias; the version stays. One that is not set is fine."""
        ...


class Grid(Versions, Housekeeping, Projects, Schedules, Backfills, Sites, Advising, Sharing, Protocol):
    """Everything a face can ask of a grid. SDK and command line work on any implementation.

    Takes and returns nouns; raises GridmillError and nothing else. Safe to call from several threads.
    Names and ids of nothing raise NotFoundError; verbs may be repeated (what is gone is gone).
    """

    def control(self) -> ControlView:
        """The control node itself."""
        ...

    def apply(self, pipeline: Pipeline, *, adopt: bool = False) -> Pipeline:
        """Keep the declaration (and its resources) under its name, without running it.

        `adopt` moves the name to the pipeline's folder. Raises PipelineError for references that lead
        nowhere, CapacityError, ConflictError for a name that belongs to another folder.
        """
        ...

    def start_run(
        self, pipeline: Pipeline, *, force: bool = False, only: tuple[str, ...] = (), adopt: bool = False
    ) -> RunView:
        """Start a run and return at once. `only` names jobs: they run with what they need.

        `force` runs unchanged jobs too; with `only`, those that are named.
        A bundle the pipeline names must have been put before. `adopt` moves the name to the pipeline's
        folder. Raises ConflictError for a name that belongs to another folder.
        """
        ...

    def plan_run(self, pipeline: Pipeline) -> DryRun:
        """What a run would do: sizes with why, order, expected memory and time. Changes nothing."""
        ...

    def runs(
        self, *, limit: int = 50, pipeline: str | None = None, states: tuple[RunState, ...] = ()
    ) -> tuple[Run, ...]:
        """Runs, newest first; with `states`, those in one of these."""
        ...

    def run(self, run_id: str) -> RunView:
        """A run with its jobs, in declaration order."""
        ...

    def resume(self, run_id: str) -> RunView:
        """Continue a failed or stopped run: what succeeded stands. A run that succeeded is fine as it is."""
        ...

    def stop_run(self, run_id: str, *, job: str | None = None) -> RunView:
        """Ask the run, or one job of it, to stop; returns at once. Stopping what has ended succeeds."""
        ...

    def events(
        self,
        run_id: str,
        *,
        job: str | None = None,
        after: int = 0,
        limit: int = 1000,
        wait_seconds: float = 0,
    ) -> tuple[Event, ...]:
        """Kept events of the run with sequence > `after`, in order, at most `limit`.

        Long poll: returns as soon as there is any, or () at the end of `wait_seconds`.
        """
        ...

    def configure_resource(self, resource: Resource) -> tuple[Resource, Sizing]:
        """Create or replace the resource of that name; the size chosen for it, with why.

        Raises CapacityError when no site is large enough.
        """
        ...

    def resources(self) -> tuple[Resource, ...]:
        """All resources, by name."""
        ...

    def remove_resource(self, name: str) -> None:
        """Remove it; its deployments are released when idle. Raises ConflictError while jobs wait for it."""
        ...

    def deployments(self) -> tuple[Deployment, ...]:
        """Deployments that are not gone."""
        ...

    def release(self, deployment_id: str) -> None:
        """Tear a deployment down once it is idle. A gone one is fine; raises ConflictError while it works."""
        ...

    def pipelines(self) -> tuple[Pipeline, ...]:
        """Declarations, by name: of each pipeline as it was applied last, or else as it was run last."""
        ...

    def pipeline(self, name: str) -> Pipeline:
        """A declaration, as `pipelines` has it."""
        ...

    def remove_pipeline(self, name: str) -> None:
        """Delete the declaration; runs and artifacts stay. Raises ConflictError while a run is active."""
        ...

    def has_bundle(self, bundle: str) -> bool:
        """Whether the code bundle of that hash is here."""
        ...

    def put_bundle(self, bundle: str, data: bytes) -> None:
        """Keep a code bundle (tar.gz). Raises InputError when `bundle` is not its hash."""
        ...

    def report(self, run_id: str) -> str:
        """The run's report: one self-contained HTML document."""
        ...

    def shutdown(self, *, all: bool = False) -> None:
        """End the control node, and its idle deployments. With `all` the runs that it works for are stopped
        first.

        Raises ConflictError, naming these runs, without `all`.
        """
        ...
