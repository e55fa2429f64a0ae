"""The use cases: what faces may ask of the control node (ports/grid.py), in process."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from gridmill.control.begin import (
    begin_run,
    check_name,
    check_names,
    chosen,
    declare_resources,
    resource_of,
    resume_run,
    stop_run,
)
from gridmill.control.inputs import (
    declared_sizes,
    external_references,
    fetch_artifact,
    fingerprint_of,
    inputs_of,
    source_problem,
    unchanged_artifact,
)
from gridmill.control.node import ControlNode
from gridmill.control.views import attempts_of, run_view
from gridmill.errors import CapacityError, ConflictError, GridmillError, NotFoundError, PipelineError
from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.deployment import Deployment
from gridmill.model.event import Event
from gridmill.model.pipeline import Pipeline
from gridmill.model.resource import Resource, Sizing
from gridmill.model.run import JobRun, Run
from gridmill.model.site import Site
from gridmill.model.state import DeploymentState, JobState, RunState
from gridmill.model.view import ControlView, DryRun, RunView
from gridmill.planning.dry_run import dry_run
from gridmill.planning.graph import order
from gridmill.planning.sizing import size_resource
from gridmill.ports.store import Noun

N = TypeVar("N")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What the control node says of itself."""

    version: str
    home: str
    address: str
    embedded: bool


class Service:
    """Implements ports.grid.Grid. Every method takes the node's lock for a short time only."""

    def __init__(
        self,
        node: ControlNode,
        identity: Identity,
        *,
        render: Callable[[RunView, tuple[Event, ...]], str],
        end: Callable[[], None],
    ) -> None:
        self._node = node
        self._control = node.control
        self._ledger = node.control.ledger
        self._identity = identity
        self._render = render
        self._end = end
        self._started = node.control.now()

    # the control node

    def control(self) -> ControlView:
        """The control node itself."""
        waiting, running = self._node.counts()
        return ControlView(
            version=self._identity.version,
            home=self._identity.home,
            root=self._control.storage.location,
            pid=os.getpid(),
            address=self._identity.address,
            embedded=self._identity.embedded,
            started=self._started,
            active_runs=len(self._node.active_runs()),
            waiting_jobs=waiting,
            running_jobs=running,
            deployments=len(self.deployments()),
        )

    def shutdown(self) -> None:
        """End the control node; jobs and pods go on."""
        threading.Thread(target=self._end, name="shutdown", daemon=True).start()

    # pipelines and runs

    def apply(self, pipeline: Pipeline) -> Pipeline:
        """Keep the declaration and its resources."""
        with self._node.changing() as transaction:
            order(pipeline)
            check_names(pipeline)
            resources = declare_resources(self._control, transaction, pipeline)
            for job in pipeline.jobs:
                resource_of(job, pipeline.name, resources)
            self._know(Pipeline, pipeline.name)
            transaction.put(pipeline)
        return pipeline

    def _know(self, kind: type[object], key: str) -> None:
        """Read a record that is not kept in memory, so that it can be replaced."""
        if self._ledger.store.get(kind, key) is not None:
            self._ledger.fetch(kind, key)

    def start_run(self, pipeline: Pipeline, *, force: bool = False, only: tuple[str, ...] = ()) -> RunView:
        """Start a run and return at once."""
        pipeline = chosen(pipeline, only)
        if not pipeline.jobs:
            raise PipelineError(f"pipeline {pipeline.name!r} has no jobs", place=pipeline.name)
        with self._node.changing() as transaction:
            run = begin_run(self._control, transaction, pipeline, force=force, only=only)
        return self.run(run.id)

    def plan_run(self, pipeline: Pipeline) -> DryRun:
        """What a run would do."""
        with self._node.lock:
            order(pipeline)
            snapshot = self._ledger.snapshot
            resources = {r.name: r for r in (*snapshot.resources.values(), *pipeline.resources)}
            used = {job.name: resource_of(job, pipeline.name, resources) for job in pipeline.jobs}
            jobs = tuple(
                job if used[job.name].default else replace(job, resource=used[job.name].name)
                for job in pipeline.jobs
            )
            sizes = declared_sizes(self._control, pipeline)
            unchanged = self._unchanged(pipeline)
            made = dry_run(replace(pipeline, jobs=jobs), snapshot, sizes, unchanged)
            problems = {job.name: source_problem(self._control, job, pipeline.folder) for job in jobs}
            told = (replace(job, problem=job.problem or problems[job.job]) for job in made.jobs)
            return replace(made, jobs=tuple(told))

    def _unchanged(self, pipeline: Pipeline) -> frozenset[str]:
        """Jobs that would not run again, as far as can be told before anything has run."""
        transaction = self._control.begin()
        run = Run(
            id=pipeline.name,
            pipeline=pipeline.name,
            order=0,
            state=RunState.ACTIVE,
            created=0.0,
            folder=pipeline.folder,
            bundle=pipeline.bundle,
        )
        unchanged: set[str] = set()
        for name in order(pipeline):
            job = pipeline.job(name)
            if not job.cache or any(need not in unchanged for need in job.all_needs):
                continue
            needs = tuple(f"{run.id}/{need}" for need in job.all_needs)
            job_run = JobRun(
                id=f"{run.id}/{name}",
                run_id=run.id,
                pipeline=pipeline.name,
                job=job,
                order=0,
                state=JobState.BLOCKED,
                resource="",
                needs=needs,
            )
            try:
                inputs = inputs_of(self._control, transaction, job_run)
                wanted = fingerprint_of(self._control, run, job_run, inputs)
            except GridmillError:
                continue
            same = unchanged_artifact(self._control, job_run, wanted)
            if same is not None:
                transaction.nouns[(JobRun, job_run.id)] = replace(job_run, artifacts=(same.id,))
                unchanged.add(name)
        return frozenset(unchanged)

    def runs(self, *, limit: int = 50, pipeline: str | None = None) -> tuple[Run, ...]:
        """Runs, newest first."""
        return self._list(Run, parent=pipeline, limit=limit, newest_first=True)

    def run(self, run_id: str) -> RunView:
        """A run with its jobs."""
        attempts = attempts_of(self._ledger.store, run_id)
        with self._node.lock:
            return run_view(self._control, run_id, attempts)

    def resume(self, run_id: str) -> RunView:
        """Continue a failed or stopped run."""
        with self._node.changing() as transaction:
            resume_run(self._control, transaction, run_id)
        return self.run(run_id)

    def stop_run(self, run_id: str, *, job: str | None = None) -> RunView:
        """Ask a run, or one job of it, to stop."""
        view = self.run(run_id)
        if job is not None and all(known.job.job.name != job for known in view.jobs):
            names = ", ".join(known.job.job.name for known in view.jobs)
            raise NotFoundError(f"run {run_id} has no job {job!r}", hint=f"It has: {names}.")
        with self._node.changing() as transaction:
            run = self._ledger.snapshot.runs.get(run_id)
            if run is not None:
                stop_run(self._control, transaction, run, job)
        return self.run(run_id)

    def events(
        self,
        run_id: str,
        *,
        job: str | None = None,
        after: int = 0,
        limit: int = 1000,
        wait_seconds: float = 0,
    ) -> tuple[Event, ...]:
        """Kept events after a sequence; waits for some."""
        deadline = self._control.clock.monotonic() + wait_seconds
        while True:
            seen = self._node.commits
            found = tuple(self._ledger.store.events(run_id=run_id, job=job, after=after, limit=limit))
            left = deadline - self._control.clock.monotonic()
            if found or left <= 0 or self._node.ending:
                return found
            self._node.wait_for_commit(seen, left)

    def report(self, run_id: str) -> str:
        """The run's report: one self-contained HTML document."""
        view = self.run(run_id)
        return self._render(view, self.events(run_id, limit=100_000))

    # resources, sites, deployments

    def configure_resource(self, resource: Resource) -> tuple[Resource, Sizing]:
        """Create or replace a resource; the size chosen, with why."""
        check_name("resource", resource.name)
        with self._node.changing() as transaction:
            site = self._ledger.snapshot.sites.get(resource.site)
            if site is None:
                known = ", ".join(sorted(self._ledger.snapshot.sites))
                raise NotFoundError(f"there is no site {resource.site!r}", hint=f"There are: {known}.")
            sizing = size_resource(resource, self._ledger.snapshot.history, site.largest)
            if not sizing.amounts.fits_in(site.largest):
                raise CapacityError(_too_large(resource, sizing, site))
            transaction.put(resource)
            for other in _without(self._ledger.snapshot.resources, resource):
                transaction.put(other)
        return resource, sizing

    def resources(self) -> tuple[Resource, ...]:
        """All resources, by name."""
        with self._node.lock:
            return tuple(sorted(self._ledger.snapshot.resources.values(), key=lambda r: r.name))

    def remove_resource(self, name: str) -> None:
        """Remove a resource that nothing waits for."""
        with self._node.changing() as transaction:
            if name not in self._ledger.snapshot.resources:
                raise NotFoundError(f"there is no resource {name!r}")
            users = [run for run in self._ledger.snapshot.job_runs.values() if run.resource == name]
            if users:
                raise ConflictError(
                    f"resource {name!r} is used by run {users[0].run_id}",
                    hint=f"`gridmill stop {users[0].run_id}`, or wait for its end.",
                )
            transaction.delete(Resource, name)
            for deployment in self._ledger.snapshot.deployments.values():
                if deployment.resource == name:
                    transaction.put(replace(deployment, state=DeploymentState.RELEASING, message="removed"))

    def sites(self) -> tuple[Site, ...]:
        """All sites and their nodes."""
        with self._node.lock:
            return tuple(self._ledger.snapshot.sites.values())

    def deployments(self) -> tuple[Deployment, ...]:
        """Deployments that are not gone."""
        with self._node.lock:
            return tuple(self._ledger.snapshot.deployments.values())

    def release(self, deployment_id: str) -> None:
        """Tear a deployment down once it is idle."""
        with self._node.changing() as transaction:
            deployment = self._ledger.snapshot.deployments.get(deployment_id)
            if deployment is None or deployment.state == DeploymentState.RELEASING:
                return
            if any(self._ledger.snapshot.attempts_on(deployment_id)):
                raise ConflictError(
                    f"deployment {deployment_id} is running jobs", hint="Stop their run, or wait for its end."
                )
            transaction.put(replace(deployment, state=DeploymentState.RELEASING, message="released by hand"))

    # pipelines and versions that are kept

    def pipelines(self) -> tuple[Pipeline, ...]:
        """Kept declarations, by name."""
        return tuple(sorted(self._list(Pipeline), key=lambda pipeline: pipeline.name))

    def pipeline(self, name: str) -> Pipeline:
        """A kept declaration."""
        record = self._ledger.store.get(Pipeline, name)
        if record is None or not isinstance(record.noun, Pipeline):
            raise NotFoundError(
                f"there is no pipeline {name!r}", hint="`gridmill list pipelines` shows them."
            )
        return record.noun

    def remove_pipeline(self, name: str) -> None:
        """Forget a declaration that no active run uses."""
        with self._node.changing() as transaction:
            self.pipeline(name)
            active = [run for run in self._ledger.snapshot.runs.values() if run.pipeline == name]
            if active:
                raise ConflictError(f"run {active[0].id} of pipeline {name!r} is active")
            self._ledger.fetch(Pipeline, name)
            transaction.delete(Pipeline, name)

    def artifacts(self, *, kind: ArtifactKind | None = None, name: str | None = None) -> tuple[Artifact, ...]:
        """Versions that are not removed, newest first."""
        found = self._list(Artifact, parent=name, newest_first=True)
        return tuple(a for a in found if not a.removed and kind in (None, a.kind))

    def artifact(self, artifact_id: str) -> Artifact:
        """A version by id; a name alone is the newest."""
        with self._node.lock:
            if "@" in artifact_id:
                return fetch_artifact(self._control, artifact_id)
            newest = self._control.newest_artifact(artifact_id)
            if newest is None:
                raise NotFoundError(
                    f"there is no {artifact_id!r}",
                    hint="`gridmill list` shows what there is.",
                )
            return newest

    def remove_artifact(self, artifact_id: str) -> None:
        """Delete a version's content; its record stays as removed, for lineage."""
        with self._node.changing() as transaction:
            artifact = self._ledger.fetch(Artifact, self.artifact(artifact_id).id)
            user = None if artifact.removed else self._user_of(artifact)
            if user is not None:
                raise ConflictError(f"run {user} may be using {artifact.id}", hint="Wait for its end.")
            if artifact.kind == ArtifactKind.SINK:
                raise ConflictError(
                    f"{artifact.id} is one version of a table that later versions share",
                    hint="Versions of datasets, models, predictions and files can be removed.",
                )
            transaction.put(replace(artifact, removed=True))
            self._control.newest.pop(artifact.name, None)
            self._control.versions.clear()
        if artifact.output.uri:  # without the lock: it may take long; again for what a crash kept from it
            self._control.storage.remove(artifact.output.uri)

    def _user_of(self, artifact: Artifact) -> str | None:
        """An active run of its pipeline, or of one whose jobs read it."""
        for job_run in self._ledger.snapshot.job_runs.values():
            names = external_references(job_run.job)
            if job_run.pipeline == artifact.name.partition("/")[0] or artifact.name in names:
                return job_run.run_id
        return None

    # code bundles

    def has_bundle(self, bundle: str) -> bool:
        """Whether the code bundle of that hash is here."""
        return self._control.storage.has_bundle(bundle)

    def put_bundle(self, bundle: str, data: bytes) -> None:
        """Keep a code bundle."""
        self._control.storage.put_bundle(bundle, data)

    def _list(
        self,
        kind: type[N],
        *,
        parent: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> tuple[N, ...]:
        records = self._ledger.store.list(kind, parent=parent, limit=limit, newest_first=newest_first)
        return tuple(record.noun for record in records if isinstance(record.noun, kind))


def _without(resources: dict[str, Resource], assigned: Resource) -> list[Noun]:
    """Resources that lose the jobs which were assigned to another one just now."""
    changed: list[Noun] = []
    for resource in resources.values():
        left = tuple(job for job in resource.jobs if job not in assigned.jobs)
        if resource.name != assigned.name and left != resource.jobs:
            changed.append(replace(resource, jobs=left))
    return changed


def _too_large(resource: Resource, sizing: Sizing, site: Site) -> str:
    wanted, most = sizing.amounts, site.largest
    return (
        f"resource {resource.name!r} needs {wanted.cpus:g} CPUs, {wanted.memory_bytes / 2**30:.1f} GiB and "
        f"{wanted.gpus} GPUs; the largest node of site {site.name!r} has {most.cpus:g}, "
        f"{most.memory_bytes / 2**30:.1f} GiB and {most.gpus}"
    )
