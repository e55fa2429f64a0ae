"""This module has the use cases that plan, start, stop and resume runs."""

from collections.abc import Mapping, Sequence
from functools import partial

from gridmill.control.steps.expected_sizes import expected_sizes
from gridmill.control.steps.pipeline_folders import conflict_of
from gridmill.control.steps.planned_transfers import Lacking, transfer_input
from gridmill.control.steps.result_names import check_names_exist
from gridmill.control.steps.reuse_forecast import ReuseDecision, decide_reuse, find_broken
from gridmill.control.steps.run_forecast import rental_forecasts
from gridmill.control.steps.run_lifecycle import (
    all_resources_used,
    as_altered,
    begin_run,
    changes_of,
    check_project,
    chosen,
    resources_used,
    resume_run,
    stop_run,
)
from gridmill.control.steps.secrets import check_secrets_exist
from gridmill.control.steps.service_jobs import check_service_jobs, service_job_problem
from gridmill.control.steps.source_listing import NOTHING, SourceListing, list_sources
from gridmill.control.usecases.advice import advice_with
from gridmill.control.usecases.preview import (
    check_columns,
    missing_at_sites,
    predecessors,
    versions_read,
    with_columns_checked,
    with_preflight,
)
from gridmill.control.usecases.rental_preview import (
    NOTHING_RENTED,
    RentalFacts,
    cloud_sites,
    read_markets,
    used_budgets_of,
    with_rentals,
)
from gridmill.control.usecases.run_reading import RunReadingUseCases
from gridmill.control.usecases.service_preview import with_service
from gridmill.domain.due_times import check_times
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.graph import order
from gridmill.domain.job import Job
from gridmill.domain.lease import Lease
from gridmill.domain.pipeline import Pipeline, with_lines
from gridmill.domain.preflight import PreflightFinding, show_finding, written_late
from gridmill.domain.resource import Resource
from gridmill.domain.run import JobRun
from gridmill.domain.service_log import with_log_files
from gridmill.domain.sink_overrides import altered_pipeline
from gridmill.domain.site import SiteKind
from gridmill.domain.views import DryRun, PlannedJob, RunView
from gridmill.errors import GridmillError, InputError, PipelineError, explained
from gridmill.ports.site import QueueSite
from gridmill.scheduler.bottleneck import has_workers, may_be_cut
from gridmill.scheduler.dry_run import dry_run


@dataclass(frozen=True, slots=True, kw_only=True)
class _Foreseen:
    """The predicted run, the first resource of each job, the files of its sources, the versions that would be
    used again, and the jobs that would not run again."""

    made: DryRun
    used: Mapping[str, Resource]
    listings: Mapping[str, SourceListing]
    reuse: Mapping[str, ReuseDecision]
    unchanged: frozenset[str]


class RunUseCases(RunReadingUseCases):
    """The use cases of runs and their jobs."""

    def start_run(
        self, pipeline: Pipeline, *, force: bool = False, only: tuple[str, ...] = (), adopt: bool = False
    ) -> RunView:
        """Start a run, and return immediately."""
        declared = pipeline
        if changes := changes_of(self._ledger, pipeline):
            pipeline = altered_pipeline(pipeline, changes)
        if only:
            pipeline = chosen(pipeline, only)
        if not pipeline.jobs:
            raise PipelineError(f"pipeline {pipeline.name!r} has no jobs", place=pipeline.name)
        planned: tuple[PlannedJob, ...] = ()
        if any(job.deadline_seconds or job.budget_micros is not None for job in pipeline.jobs):
            pipeline, planned = self._within_terms(pipeline)
        elif self._may_rent(pipeline):
            planned = self._expected_jobs(pipeline)
        with with_lines(pipeline.lines, pipeline.name), self._node.changing() as transaction:
            check_names_exist(self._control.catalog, pipeline.jobs)
            check_columns(self._control.catalog, pipeline)
            check_secrets_exist(self._ledger, pipeline.jobs)
            check_service_jobs(self._control.catalog, pipeline)
            run = begin_run(
                self._control.run_creation,
                transaction,
                pipeline,
                force=force,
                only=only,
                adopt=adopt,
                forecasts=rental_forecasts(planned, self._clouds()),
            )
            stored_pipeline, ran = (
                self._ledger.look_up(Pipeline, declared.name),
                replace(declared, applied=False),
            )
            # a pipeline that was applied must stay marked as applied
            if stored_pipeline is None or (not stored_pipeline.applied and stored_pipeline != ran):
                transaction.put(ran)
        return self._run_views.view(run.id, fresh=True)

    def plan_run(self, pipeline: Pipeline) -> DryRun:
        """Predict what a run would do."""
        with with_lines(pipeline.lines, pipeline.name):
            return self._plan_run(with_log_files(pipeline, self._control.storage.location))

    def _clouds(self) -> frozenset[str]:
        sites = self._ledger.snapshot.sites.values()
        return frozenset(one.name for one in sites if one.kind is SiteKind.CLOUD)

    def _may_rent(self, pipeline: Pipeline) -> bool:
        """Return whether a job of the pipeline may run at a cloud site."""
        with self._node.lock:
            clouds = self._clouds()
            if not clouds:
                return False
            try:
                resources = all_resources_used(self._ledger, pipeline, self._resources(pipeline))
            except GridmillError:
                return False  # the run will be refused with this error
            return any(one.site in clouds for some in resources.values() for one in some)

    def _expected_jobs(self, pipeline: Pipeline) -> tuple[PlannedJob, ...]:
        """Return the jobs of a run that is about to start, with the machines that are expected to be rented.
        If the run is going to be refused, there are none."""
        try:
            return self._foreseen(pipeline).made.jobs
        except GridmillError:
            return ()

    def _plan_run(self, pipeline: Pipeline) -> DryRun:
        pipeline = as_altered(self._ledger, pipeline)
        seen = self._foreseen(pipeline)
        made, used = seen.made, seen.used
        with self._node.lock:
            resources = self._resources(pipeline)
            going = {one.job: resources.get(one.resource, used[one.job]) for one in made.jobs}
            advice = {job.name: self._advice(job, pipeline.name, going[job.name]) for job in pipeline.jobs}
            conflict = conflict_of(self._ledger, self._control.storage, pipeline)
            checked = [
                with_columns_checked(self._control.catalog, pipeline, one, seen.unchanged)
                for one in made.jobs
            ]
            checked = [self._with_request(one, going[one.job]) for one in checked]
        problems = {**self._service_problems(pipeline), **self._unlisted(pipeline, seen.listings)}
        told = (
            replace(
                job,
                problem=job.problem or problems.get(job.job, "") or seen.reuse[job.job].problem,
                reason=seen.reuse[job.job].reason,
                advice=advice[job.job],
                waiting=seen.listings.get(job.job, NOTHING).waiting,
            )
            for job in checked
        )
        with self._node.lock:
            jobs = tuple(
                with_service(self._control.catalog, pipeline, one, seen.reuse[one.job].serves) for one in told
            )
        made = replace(made, jobs=jobs, conflict=conflict)
        return with_preflight(self._control.catalog, self._control.storage, pipeline, made, self._node.lock)

    def _foreseen(self, pipeline: Pipeline) -> _Foreseen:
        """Predict the sizes, times, places and costs of the jobs, without a check of their data."""
        check_times(pipeline)
        with self._node.lock:
            check_secrets_exist(self._ledger, pipeline.jobs)
        listings = list_sources(
            self._control.storage, pipeline.jobs, pipeline.folder, self._control.clock.now()
        )
        lacking = self._missing_at_farms(pipeline)
        renting = self._rental_facts(pipeline)
        broken = find_broken(
            self._control.catalog,
            self._control.storage,
            self._control.code,
            self._control.timeline,
            pipeline,
            listings,
            self._node.lock,
        )
        with self._node.lock:
            snapshot, resources = self._ledger.snapshot, self._resources(pipeline)
            used = resources_used(self._ledger, pipeline, resources)
            jobs = tuple(
                job if used[job.name].default or job.resources else replace(job, resource=used[job.name].name)
                for job in pipeline.jobs
            )
            reuse = decide_reuse(
                self._control.catalog, self._control.code, self._control.timeline, pipeline, listings, broken
            )
            unchanged = frozenset(name for name, one in reuse.items() if one.version is not None)
            sizes = expected_sizes(self._control.catalog, pipeline, listings, unchanged)
            carrying = transfer_input(
                self._control.catalog, self._control.site_states, pipeline, unchanged, lacking
            )
            now = self._control.timeline.now()
            rent = partial(_with_rentals, pipeline, resources, renting)
            made = dry_run(replace(pipeline, jobs=jobs), snapshot, sizes, unchanged, carrying, now, rent)
        return _Foreseen(made=made, used=used, listings=listings, reuse=reuse, unchanged=unchanged)

    def _rental_facts(self, pipeline: Pipeline) -> RentalFacts:
        """Return what cloud sites offer for the jobs of a pipeline. The providers are asked without the
        node's lock."""
        with self._node.lock:
            resources = all_resources_used(self._ledger, pipeline, self._resources(pipeline))
            sites = dict(self._ledger.snapshot.sites)
            project = self._ledger.snapshot.projects.get(pipeline.project)
            used = cloud_sites(sites, {one.name: one for some in resources.values() for one in some}.values())
            ports = dict(self._control.sites)
        if not used:
            return NOTHING_RENTED
        markets = read_markets(sites, used, ports, self._control.open_site)
        leases = tuple(self._list(Lease))
        rented = [one for some in used.values() for one in some]
        budgets = used_budgets_of(rented, project, sites, leases, self._control.now())
        return RentalFacts(sites=sites, markets=markets, leases=leases, used_budgets=budgets)

    def _within_terms(self, pipeline: Pipeline) -> tuple[Pipeline, tuple[PlannedJob, ...]]:
        """Return the pipeline in which each job with a deadline or a budget names first the resource that is
        expected to meet it at the lowest cost, and the expected jobs. The choice is made again when the job
        is ready. Raises PipelineError if a job is expected to cost more than its budget, before anything is
        rented."""
        with with_lines(pipeline.lines, pipeline.name):
            jobs = self._foreseen(pipeline).made.jobs
        planned = {one.job: one for one in jobs}
        for job in pipeline.jobs:
            one = planned.get(job.name)
            if one is not None and job.budget_micros is not None and one.problem and not one.unchanged:
                raise PipelineError(one.problem, place=f"{pipeline.name}: jobs.{job.name}")
        chosen_first = replace(
            pipeline,
            jobs=tuple(
                _named_first(job, planned[job.name].resource)
                if job.deadline_seconds or job.budget_micros is not None
                else job
                for job in pipeline.jobs
            ),
        )
        return chosen_first, jobs

    def _unlisted(self, pipeline: Pipeline, listings: Mapping[str, SourceListing]) -> Mapping[str, str]:
        """Return the errors with which sources cannot be listed, by job. Sources whose files may first be
        written by a command of the run are left out."""
        late, result = written_late(pipeline), {}
        for name, one in listings.items():
            if one.error is not None and name not in late:
                finding = PreflightFinding(
                    job=name, path="sink.source", message=str(one.error), hint=one.error.hint
                )
                result[name] = show_finding(pipeline, finding)
        return result

    def _service_problems(self, pipeline: Pipeline) -> Mapping[str, str]:
        """Return why jobs cannot start or update their services, with the line, by job."""
        result: dict[str, str] = {}
        with self._node.lock:
            for job in pipeline.jobs:
                problem = service_job_problem(self._control.catalog, pipeline.name, job)
                if problem is not None:
                    lines = pipeline.lines
                    place = lines.place(problem.place) if lines is not None else problem.place
                    result[job.name] = explained(InputError(problem.message, hint=problem.hint, place=place))
        return result

    def _missing_at_farms(self, pipeline: Pipeline) -> Lacking:
        """Return the missing bytes that farms report for the jobs that may use these farms. The farms are
        queried without the node's lock."""
        with self._node.lock:
            order(pipeline)
            check_project(self._ledger, pipeline)
            resources = all_resources_used(self._ledger, pipeline, self._resources(pipeline))
            versions = versions_read(self._control.catalog, pipeline, resources)
            sites = self._control.sites.items()
            ports = {name: port for name, port in sites if name not in self._control.site_states.unreachable}
            before = predecessors(self._control.catalog, versions)
        return missing_at_sites(ports, versions, before)

    def _resources(self, pipeline: Pipeline) -> dict[str, Resource]:
        resources = self._ledger.snapshot.resources.values()
        return {one.name: one for one in (*resources, *pipeline.resources)}

    def _with_request(self, planned: PlannedJob, resource: Resource) -> PlannedJob:
        """Return the planned job with the request that its site would get. The request is known only for
        sites with a queue, and has the syntax of the site. The caller holds the node's lock."""
        port = self._control.sites.get(planned.site)
        if planned.asked is None or not isinstance(port, QueueSite):
            return planned
        expected = planned.asked
        return replace(planned, request=port.request(expected.amounts, expected.workers, resource.settings))

    def _advice(self, job: Job, pipeline: str, resource: Resource) -> str:
        """Return the advice on a job in one line. The result is empty if there is no advice. The caller
        holds the node's lock."""
        if not (has_workers(job) or may_be_cut(job)):
            return ""
        advice = advice_with(self._ledger, job, pipeline, resource)
        return advice.summary if advice else ""

    def resume(self, run_id: str) -> RunView:
        """Continue a failed or stopped run."""
        with self._node.changing() as transaction:
            repeated = resume_run(
                self._control.catalog,
                self._control.storage,
                self._control.candidates,
                self._control.clients,
                transaction,
                run_id,
            )
            self._check_secrets(repeated)
        return self._run_views.view(run_id, fresh=True)

    def _check_secrets(self, job_runs: Sequence[JobRun]) -> None:
        """Check that the secrets of jobs exist. An error has the line of the file if the stored pipeline has
        the same declaration of the job."""
        for one in job_runs:
            stored = self._ledger.look_up(Pipeline, one.pipeline)
            lines = stored.lines if stored is not None and one.job in stored.jobs else None
            with with_lines(lines, one.pipeline):
                check_secrets_exist(self._ledger, (one.job,))

    def stop_run(self, run_id: str, *, job: str | None = None) -> RunView:
        """Ask a run, or one job of it, to stop."""
        self._check_run(run_id)
        if job is not None:
            self._job_run(run_id, job)
        with self._node.changing() as transaction:
            run = self._ledger.snapshot.runs.get(run_id)
            if run is not None:
                stop_run(
                    self._control.ledger,
                    self._control.channels,
                    self._control.candidates,
                    transaction,
                    run,
                    job,
                )
        return self._run_views.view(run_id, fresh=True)


def _named_first(job: Job, resource: str) -> Job:
    """Return the job with this resource as the first one of its choice."""
    others = (name for name in job.resources if name != resource)
    return replace(job, resources=(resource, *others)) if job.resources else job


def _with_rentals(
    pipeline: Pipeline, resources: Mapping[str, Resource], facts: RentalFacts, planned: PlannedJob
) -> PlannedJob:
    return with_rentals(planned, pipeline.job(planned.job), resources, facts)
