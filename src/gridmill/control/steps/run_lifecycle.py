"""This module starts, stops and resumes runs: it creates the records of a run and changes their states.

When a run begins, alterations of sinks are applied to the declarations of these sinks. The settings that
resources request from their sites are checked before any job waits.
"""

from collections.abc import Mapping, Sequence

from gridmill.control.catalog import Catalog
from gridmill.control.counters import Counters
from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import Candidates, Channels, Clients, RunCreation
from gridmill.control.steps.inputs import declared_sizes
from gridmill.control.steps.parts import stop_attempt
from gridmill.control.steps.pipeline_folders import check_run_origin, note_origin
from gridmill.control.steps.result_names import settle_names
from gridmill.domain.due_times import check_times
from gridmill.domain.frozen import replace
from gridmill.domain.graph import order
from gridmill.domain.job import Job, JobSize, When
from gridmill.domain.naming import check_name, did_you_mean
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.project import DEFAULT
from gridmill.domain.rental_estimate import CostForecast, whole_forecast
from gridmill.domain.resource import Resource, Sizing, default_resource
from gridmill.domain.run import JobRun, Run
from gridmill.domain.service_log import reads_service_logs, with_log_files
from gridmill.domain.sink_overrides import Alterations, altered_pipeline
from gridmill.domain.site import LOCAL, Site, SiteKind
from gridmill.domain.states import FINISHED_RUNS, RUN_MOVES, JobState, RunState, check_move
from gridmill.errors import ConflictError, InputError, NotFoundError, PipelineError
from gridmill.plugins import WISHES, find
from gridmill.ports.storage import Storage
from gridmill.scheduler.feasibility import NO_GANGS_HINT, asked_of, at
from gridmill.scheduler.needs import may_go_on
from gridmill.scheduler.sizing import size_job


def alterations_of(ledger: Ledger, name: str) -> Alterations:
    """Return the alterations of a sink, which may be empty."""
    return ledger.read(Alterations, name) or Alterations(name=name)


def changes_of(ledger: Ledger, pipeline: Pipeline) -> Mapping[str, Alterations]:
    """Return the alterations of the pipeline's sinks, by `pipeline/job`."""
    sinks = [f"{pipeline.name}/{job.name}" for job in pipeline.jobs if job.sink is not None]
    return {name: one for name in sinks if (one := alterations_of(ledger, name)).changes}


def as_altered(ledger: Ledger, pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with the alterations of its sinks applied."""
    return altered_pipeline(pipeline, changes_of(ledger, pipeline))


def check_resource_settings(resource: Resource, site: Site) -> None:
    """Raise InputError, with the place of the setting, if the site does not support a setting of the
    resource."""
    if resource.staging is not None and site.kind not in (SiteKind.CLUSTER, SiteKind.CLOUD):
        raise InputError(
            f"a {site.kind} site has no `staging`: its jobs read the storage root directly",
            hint="Leave out `staging`, or use a site of kind cluster or cloud.",
            place=f"resource {resource.name}: staging",
        )
    if site.kind in WISHES:
        find("wishes", site.kind)(resource, site)
    elif resource.settings:
        raise InputError(
            f"a {site.kind} site has no settings for resources",
            hint=f"Sites with such settings are of kind {', '.join(sorted(WISHES))}.",
            place=f"resource {resource.name}: settings",
        )


AGAIN = frozenset({JobState.FAILED, JobState.STOPPED, JobState.SKIPPED})
"""The states of jobs that a resumed run repeats. The function `_jobs_to_repeat` adds other jobs that a
resumed run repeats."""


def check_names(pipeline: Pipeline) -> None:
    """Raise InputError for an invalid name, because names become parts of paths and ids."""
    check_name("pipeline", pipeline.name)
    for job in pipeline.jobs:
        check_name("job", job.name)
    for resource in pipeline.resources:
        check_name("resource", resource.name)


def chosen(pipeline: Pipeline, only: tuple[str, ...]) -> Pipeline:
    """Return the pipeline with only these jobs and the jobs that they need. Raises NotFoundError."""
    if not only:
        return pipeline
    jobs = {job.name: job for job in pipeline.jobs}
    unknown = [name for name in only if name not in jobs]
    if unknown:
        raise NotFoundError(
            f"pipeline {pipeline.name!r} has no job {unknown[0]!r}",
            hint=f"It has: {', '.join(sorted(jobs))}.",
        )
    wanted, open_names = set[str](), list(only)
    while open_names:
        name = open_names.pop()
        if name not in wanted:
            wanted.add(name)
            open_names.extend(jobs[name].all_needs)
    kept = tuple(job for job in pipeline.jobs if job.name in wanted)
    return replace(pipeline, jobs=kept, data=pipeline.loads)


def resources_used(
    ledger: Ledger, pipeline: Pipeline, resources: Mapping[str, Resource]
) -> dict[str, Resource]:
    """Return the resource of each job. Raises PipelineError for a resource that does not exist or does not
    fit."""
    by_job = all_resources_used(ledger, pipeline, resources)
    return {name: some[0] for name, some in by_job.items()}


def all_resources_used(
    ledger: Ledger, pipeline: Pipeline, resources: Mapping[str, Resource]
) -> dict[str, tuple[Resource, ...]]:
    """Return the resources that each job may use. Raises PipelineError in the same cases as
    `resources_used`."""
    result = {
        job.name: resources_for(_placed(ledger, job, pipeline), pipeline.name, resources)
        for job in pipeline.jobs
    }
    _check_sites(ledger, pipeline, result)
    return result


def resources_for(job: Job, pipeline: str, resources: Mapping[str, Resource]) -> tuple[Resource, ...]:
    """Return the resources that a job may use: all resources that it names, or one resource if it leaves no
    choice. Raises PipelineError."""
    if not job.resources:
        return (resource_of(job, pipeline, resources),)
    _check_named(job, pipeline)
    candidates = tuple(
        resource_of(
            replace(job, resource=name, resources=(), at=None), pipeline, resources, f"resources[{number}]"
        )
        for number, name in enumerate(job.resources)
    )
    at_site = tuple(one for one in candidates if job.at in (None, one.site))
    if not at_site:
        raise PipelineError(
            f"job {job.name!r} is pinned to site {job.at!r}, and none of its resources is at that site",
            place=f"{pipeline}: jobs.{job.name}.at",
            hint="Leave out `at`, or name a resource of that site.",
        )
    return at_site


def _check_named(job: Job, pipeline: str) -> None:
    """Raise PipelineError for combinations of fields that are not allowed. The reader of pipeline files
    refuses the same combinations."""
    place = f"{pipeline}: jobs.{job.name}.resources"
    if job.resource is not None:
        message = f"job {job.name!r} has both `resource` and `resources`"
        raise PipelineError(message, place=place, hint="Leave out one of the two.")
    twice = next((name for name in job.resources if job.resources.count(name) > 1), None)
    if twice is not None:
        message = f"job {job.name!r} names the resource {twice!r} twice"
        raise PipelineError(message, place=place, hint="Name each resource once, the preferred one first.")


def _placed(ledger: Ledger, job: Job, pipeline: Pipeline) -> Job:
    """Return the job with the site of its pipeline, unless the job names a resource. A sink of a pipeline
    whose site does not load sinks runs at home, or on the resource to which it is assigned."""
    snapshot = ledger.snapshot
    if job.named_resources:
        return job
    site = at(job, pipeline, snapshot.sites)
    by_name = {**snapshot.resources, **{resource.name: resource for resource in pipeline.resources}}
    if site not in (job.at, pipeline.at) and assigned_to(job, pipeline.name, by_name) is not None:
        return job
    return replace(job, at=site)


def assigned_to(job: Job, pipeline: str, resources: Mapping[str, Resource]) -> Resource | None:
    """Return the resource whose own declaration assigns it to this job."""
    names = (f"{pipeline}/{job.name}", job.name)
    return next(
        (resource for resource in resources.values() if any(name in resource.jobs for name in names)), None
    )


def resource_of(
    job: Job, pipeline: str, resources: Mapping[str, Resource], field: str = "resource"
) -> Resource:
    """Return the resource that a job uses: the resource that the job names in the field, otherwise the
    resource to which the job is assigned, otherwise the default resource of its kind of job at its site.

    Raises PipelineError for an unknown resource, for a resource of another type, or for a resource at
    another site.
    """
    place = f"{pipeline}: jobs.{job.name}.{field}"
    if job.resource is not None:
        result = resources.get(job.resource)
        if result is None:
            names = sorted(name for name, r in resources.items() if not r.default)
            listed = ", ".join(names) or "none yet"
            raise PipelineError(
                f"there is no resource {job.resource!r}{did_you_mean(job.resource, names)}",
                place=place,
                hint=f"There are: {listed}. "
                f"Create it: `gridmill configure resource {job.resource} --type {job.kind}`.",
            )
    else:
        usual = default_resource(job.kind, job.at or LOCAL)
        result = assigned_to(job, pipeline, resources) or resources.get(usual.name) or usual
    if result.type != job.kind:
        raise PipelineError(
            f"resource {result.name!r} is for {result.type} jobs; {job.name!r} is a {job.kind} job",
            place=place,
            hint=f"Use a resource of type {job.kind}, or leave out `resource` to use the default.",
        )
    if job.at is not None and result.site != job.at:
        raise PipelineError(
            f"job {job.name!r} is pinned to site {job.at!r}, and its resource {result.name!r} is at site"
            f" {result.site!r}",
            place=f"{pipeline}: jobs.{job.name}.at",
            hint="Leave out one of the two, or configure the resource at that site.",
        )
    return result


def _check_sites(ledger: Ledger, pipeline: Pipeline, by_job: Mapping[str, tuple[Resource, ...]]) -> None:
    """Raise PipelineError if a job's resource is at a site that was not added, or that runs no job with
    several ranks if the job has several. Raise InputError if the resource has settings that sites of that
    kind do not support."""
    sites = ledger.snapshot.sites
    pairs = [(job, one) for job in pipeline.jobs for one in by_job[job.name]]
    for job, resource in pairs:
        site = resource.site
        if site not in sites:
            raise PipelineError(
                f"there is no site {site!r}",
                place=f"{pipeline.name}: jobs.{job.name}{'.at' if job.at else ''}",
                hint=f"There are: {', '.join(sorted(sites))}. Add it: `gridmill add site {site} --kind"
                f" KIND`.",
            )
        check_resource_settings(resource, sites[site])
        if job.gang > 1 and sites[site].why_no_gangs:
            raise PipelineError(
                f"job {job.name!r} has {job.gang} ranks and cannot run at site {site}: "
                f"{sites[site].why_no_gangs}",
                place=f"{pipeline.name}: jobs.{job.name}.{job.kind}.workers",
                hint=NO_GANGS_HINT,
            )


def declare_resources(ledger: Ledger, transaction: Transaction, pipeline: Pipeline) -> dict[str, Resource]:
    """Return all resources that exist after the submission, including the resources that the pipeline
    declares."""
    for resource in pipeline.resources:
        if transaction.get(Resource, resource.name) != resource:
            transaction.put(resource)
    resources = dict(ledger.snapshot.resources)
    resources.update({resource.name: resource for resource in pipeline.resources})
    return resources


NO_FORECASTS: Mapping[str, CostForecast] = {}


def begin_run(
    creation: RunCreation,
    transaction: Transaction,
    pipeline: Pipeline,
    *,
    force: bool,
    adopt: bool = False,
    only: tuple[str, ...] = (),
    due: float | None = None,
    chunk: str = "",
    forecasts: Mapping[str, CostForecast] = NO_FORECASTS,
) -> Run:
    """Create the run and its jobs. All jobs have the state BLOCKED at first. The next tick starts the jobs
    of the run that need no other job.

    If `only` names jobs, `force` applies to these jobs and not to the jobs that they need. `forecasts` has
    the expected costs of rented machines by job.
    """
    if reads_service_logs(pipeline):
        pipeline = with_log_files(pipeline, creation.storage.location)
    order(pipeline)
    check_names(pipeline)
    check_times(pipeline)
    note_origin(creation.ledger, creation.storage, transaction, pipeline, adopt=adopt)
    _claim(creation.ledger, creation.storage, creation.counters, creation.claimed, pipeline.name)
    used = _resources_put(creation.ledger, transaction, pipeline)
    check_project(creation.ledger, pipeline)
    run = Run(
        id=f"{pipeline.name}-{creation.counters.next(pipeline.name)}",
        pipeline=pipeline.name,
        order=creation.counters.next("order"),
        state=RunState.ACTIVE,
        created=transaction.now,
        started=transaction.now,
        parameters=pipeline.parameters,
        folder=pipeline.folder,
        bundle=pipeline.bundle,
        commit=pipeline.commit,
        force=force,
        due=due,
        chunk=chunk,
        project=pipeline.project,
        only=only,
        attended=creation.clients.request.attended,
        request=creation.clients.request.request,
        settled=settle_names(creation.catalog, pipeline.jobs),
        data=pipeline.loads,
        file=pipeline.file,
        jobs=len(pipeline.jobs),
        forecast=whole_forecast(forecasts.values()),
    )
    transaction.put(run)
    # without listings, because the sources are listed when their jobs are ready
    sizes = declared_sizes(creation.catalog, pipeline, {})
    first: list[str] = []
    for index, declared in enumerate(pipeline.jobs):
        job, resource = _as_declared(creation.ledger, declared, pipeline), used[declared.name]
        job_run = JobRun(
            id=f"{run.id}/{job.name}",
            run_id=run.id,
            pipeline=run.pipeline,
            job=job,
            order=index,
            state=JobState.BLOCKED,
            resource=resource.name,
            project=run.project,
            needs=tuple(f"{run.id}/{need}" for need in job.all_needs),
            priority=job.priority,
            force=force and (not only or job.name in only),
            sizing=_sizing(creation.ledger, run.pipeline, job, resource, sizes[job.name]),
            lines=pipeline.lines.of_job(job.name) if pipeline.lines is not None else None,
            forecast=forecasts.get(job.name),
        )
        transaction.put(job_run)
        if not job_run.needs:
            first.append(job_run.id)
    creation.candidates.add(run.id, first)
    return run


def _resources_put(ledger: Ledger, transaction: Transaction, pipeline: Pipeline) -> Mapping[str, Resource]:
    """Write the resources that the pipeline declares or uses, and return the resource of each job."""
    resources = declare_resources(ledger, transaction, pipeline)
    used = resources_used(ledger, pipeline, resources)
    for resource in used.values():
        if transaction.get(Resource, resource.name) is None:
            transaction.put(resource)
    return used


def check_project(ledger: Ledger, pipeline: Pipeline) -> None:
    """Raise PipelineError if the project is unknown. An unknown project is refused because it is a typing
    error or an attempt to bypass a quota."""
    projects = ledger.snapshot.projects
    if pipeline.project != DEFAULT and pipeline.project not in projects:
        raise PipelineError(
            f"there is no project {pipeline.project!r}",
            place=f"{pipeline.name}: project",
            hint=f"There are: {', '.join(sorted({DEFAULT, *projects}))}. "
            f"Create it: `gridmill configure project {pipeline.project} --share 1`.",
        )


def _claim(ledger: Ledger, storage: Storage, counters: Counters, claimed: set[str], pipeline: str) -> None:
    """Reserve the pipeline's name in the storage root for this store, because two stores would overwrite
    each other's results. If the pipeline never ran with this store, its run numbers continue after the runs
    that left files in the storage root. Raises ConflictError."""
    site = ledger.snapshot.sites.get(LOCAL)
    owner = site.settings.get("store") if site else None
    if owner and pipeline not in claimed:
        storage.claim(pipeline, owner)
        if not counters.has_given(pipeline):
            counters.used(pipeline, storage.highest_run(pipeline))
        claimed.add(pipeline)


def _as_declared(ledger: Ledger, job: Job, pipeline: Pipeline) -> Job:
    job = _placed(ledger, job, pipeline)
    return job if job.retain or not pipeline.retain else replace(job, retain=pipeline.retain)


def _sizing(ledger: Ledger, pipeline: str, job: Job, resource: Resource, size: JobSize) -> Sizing:
    site = ledger.snapshot.sites.get(resource.site)
    return size_job(
        job,
        size,
        ledger.snapshot.history,
        pipeline=pipeline,
        resource=resource,
        largest=asked_of(ledger.snapshot, resource, ledger.snapshot.largest_pod(resource.site)),
        nodes=len(site.nodes) if site else 1,
    )


def stop_run(
    ledger: Ledger,
    channels: Channels,
    candidates: Candidates,
    transaction: Transaction,
    run: Run,
    job: str | None,
) -> None:
    """Stop the jobs that have not started, and ask the running jobs to end."""
    if run.state in FINISHED_RUNS:
        return
    if job is None and run.state == RunState.ACTIVE:
        transaction.put(replace(run, state=RunState.STOPPING, message="stopping"))
    stopped: list[str] = []
    for job_run in ledger.snapshot.job_runs_of(run.id):
        if job is not None and job_run.job.name != job:
            continue
        has_no_attempt = job_run.state is JobState.RUNNING and job_run.job.starts_service
        if has_no_attempt or job_run.state in (JobState.BLOCKED, JobState.WAITING):
            ended = replace(job_run, state=JobState.STOPPED, message="stopped", ended=transaction.now)
            transaction.put(ended)
            stopped.append(job_run.id)
        elif job_run.state == JobState.RUNNING:
            stop_attempt(channels, transaction, job_run)
            stopped += [job_run.id] if job_run.parts else []
    dependents = [key for name in stopped for key in may_go_on(ledger.snapshot, name)]
    candidates.add(run.id, [*dependents, *stopped])


def resume_run(
    catalog: Catalog,
    storage: Storage,
    candidates: Candidates,
    clients: Clients,
    transaction: Transaction,
    run_id: str,
) -> tuple[JobRun, ...]:
    """Make a finished run active again, and return the jobs that it repeats. The resources of its jobs are
    chosen again, because they may have changed.

    If the run has succeeded, the function changes nothing. Raises PipelineError if a resource was removed,
    ConflictError if the pipeline's name was moved to another folder, and NotFoundError.
    """
    if run_id in catalog.ledger.snapshot.runs:
        return ()
    run = catalog.ledger.fetch(Run, run_id)
    if run.state == RunState.SUCCEEDED:
        return ()  # the run may have succeeded meanwhile, so that nothing has to be repeated
    check_whole(run)
    _check_no_service(catalog.ledger, run)
    check_move(RUN_MOVES, run.state, RunState.ACTIVE, f"run {run_id}")
    check_run_origin(catalog.ledger, storage, transaction, run)
    job_runs = catalog.ledger.read_all(JobRun, parent=run_id)
    # the settled versions of the run come last, so that names keep the versions that they had at its begin
    settled = {
        **settle_names(catalog, [one.job for one in job_runs]),
        **run.settled,
    }
    active = replace(run, state=RunState.ACTIVE, message="", ended=None, settled=settled)
    transaction.put(replace(active, attended=clients.request.attended))
    # without parts, because a job that is repeated is divided into parts again
    again = _jobs_to_repeat([job_run for job_run in job_runs if job_run.part is None])
    for noun in job_runs:
        job_run = catalog.ledger.fetch(JobRun, noun.id)
        transaction.put(_again(catalog.ledger, transaction, job_run) if job_run.id in again else job_run)
    candidates.add(run_id, [one.id for one in job_runs])
    return tuple(one for one in job_runs if one.id in again)


def check_whole(run: Run) -> None:
    """Raise ConflictError if a run cannot continue because some of its records are lost."""
    if run.damage:
        raise ConflictError(
            f"run {run.id} cannot continue: {run.damage}",
            hint=f"Start a new run of {run.pipeline}; it reuses the versions that exist.",
        )


def _check_no_service(ledger: Ledger, run: Run) -> None:
    """Raise ConflictError for the run of a service, because a service is started again by a new run."""
    for job_run in ledger.read_all(JobRun, parent=run.id):
        spec = job_run.job.service
        if spec is not None and not spec.is_declared and (spec.measures_first or not spec.calibrates):
            name = spec.name
            raise ConflictError(
                f"run {run.id} belongs to service {name!r}", hint=f"gridmill start service {name}"
            )


def _jobs_to_repeat(job_runs: Sequence[JobRun]) -> frozenset[str]:
    """Return the jobs that a resumed run repeats: jobs that failed, were stopped or were skipped, jobs that
    run after failures (however they ended), and jobs that have read versions of any of these jobs."""
    again = {job_run.id for job_run in job_runs if job_run.state in AGAIN or job_run.job.when != When.SUCCESS}
    while True:
        readers = {job_run.id for job_run in job_runs if again.intersection(job_run.needs)} - again
        if not readers:
            return frozenset(again)
        again |= readers


def _again(ledger: Ledger, transaction: Transaction, job_run: JobRun) -> JobRun:
    resource = resources_for(job_run.job, job_run.pipeline, ledger.snapshot.resources)[0]
    if transaction.get(Resource, resource.name) is None:
        transaction.put(resource)
    return replace(
        job_run,
        state=JobState.BLOCKED,
        resource=resource.name,
        external=(),
        failures=0,
        losses=0,
        memory_kills=0,
        not_before=0.0,
        message="",
        attempt_id=None,
        artifacts=(),
        parts=0,
        ended=None,
    )
