"""The use cases, as the control node's service offers them in process and the HTTP client over the wire."""

from typing import Protocol

from gridmill.model.deployment import Deployment
from gridmill.model.event import Event
from gridmill.model.pipeline import Pipeline
from gridmill.model.resource import Resource, Sizing
from gridmill.model.run import Run
from gridmill.model.state import RunState
from gridmill.model.view import ControlView, DryRun, RunView
from gridmill.ports.advising import Advising
from gridmill.ports.backfills import Backfills
from gridmill.ports.schedules import Schedules
from gridmill.ports.sharing import Sharing
from gridmill.ports.sites import Sites
from gridmill.ports.versions import Housekeeping, Projects, Versions


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
