"""This module predicts what a run would do: order, sizes with reasons, expected memory and time, and
obstacles."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import TypeAlias

from gridmill.domain.amounts import Amounts
from gridmill.domain.farm_protocol import QueuePosition
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.graph import order
from gridmill.domain.job import Job, JobSize, When
from gridmill.domain.naming import suggestion
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.rental_estimate import Phase
from gridmill.domain.resource import Resource, asks_for_need, default_resource, keep_of
from gridmill.domain.site import LOCAL, Site
from gridmill.domain.views import DryRun, PlannedJob
from gridmill.scheduler.alternatives import CachedForecasts, ResourceCandidate, alternatives, demand_at
from gridmill.scheduler.bottleneck import may_be_cut
from gridmill.scheduler.capacity import most_jobs
from gridmill.scheduler.early_inputs import EARLY_KINDS
from gridmill.scheduler.fair_share import ProjectShares
from gridmill.scheduler.feasibility import (
    RefusalReason,
    asked_of,
    at,
    cpus_of,
    problem_of,
    problem_of_resource,
    why_unchecked,
)
from gridmill.scheduler.plan import asked_when_alone
from gridmill.scheduler.queue import Demand, QuotaClaim
from gridmill.scheduler.rental_estimate import NOTHING_SAVED, SavedTime, with_saved
from gridmill.scheduler.site_choice import InputVersion, choose, transfer_estimate
from gridmill.scheduler.sizing import size_job
from gridmill.scheduler.snapshot import Snapshot
from gridmill.scheduler.splitting import cut_job, parts_line


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferInput:
    """The known sizes and locations of the data that a run would transfer, by job: the versions that each
    job reads, and the size of the result that the job made last. `unreachable` has the sites that do not
    answer. `crowded` has, by resource, the position that a new deployment would have in the queue of a farm,
    for farms whose machines other tenants also use."""

    readings: Mapping[str, Sequence[InputVersion]] = field(default_factory=dict)
    made_bytes: Mapping[str, int] = field(default_factory=dict)
    unreachable: Collection[str] = ()
    crowded: Mapping[str, QueuePosition] = field(default_factory=dict)


NOTHING_CARRIED = TransferInput()
Rent: TypeAlias = Callable[[PlannedJob], PlannedJob]


def dry_run(
    pipeline: Pipeline,
    snapshot: Snapshot,
    sizes: Mapping[str, JobSize],
    unchanged: frozenset[str],
    carrying: TransferInput = NOTHING_CARRIED,
    now: float = 0.0,
    rent: Rent = lambda planned: planned,
) -> DryRun:
    """Return the predicted run of `pipeline` on an idle grid, in the order of its waves.

    `sizes` has the known size of each job. `rent` adds to a planned job the machines that would be
    rented, and may choose another of the resources of the job. `unchanged` has the jobs that would not run
    again. Raises PipelineError for a cycle or for a needed job that does not exist. If a job cannot run for
    another reason, the reason is stored in the field `problem` of the planned job.
    """
    waves: dict[str, int] = {}
    planned: dict[str, PlannedJob] = {}
    joining = CachedForecasts(snapshot, now)
    for name in order(pipeline):
        job = pipeline.job(name)
        waves[name] = 1 + max((waves[need] for need in job.all_needs), default=0)
        size = sizes.get(name, JobSize(rows=job.rows))
        sites = {job_name: one.site for job_name, one in planned.items()}
        place = partial(
            _placed, pipeline=pipeline, joining=joining, size=size, carrying=carrying, sites=sites
        )
        placed = place(job) if name in unchanged else _rented(place, job, rent)
        planned[name] = replace(placed, wave=waves[name], unchanged=name in unchanged)
    timed = _Timeline(snapshot, _keeps(pipeline, snapshot), _pods(pipeline, snapshot)).times(planned)
    jobs = tuple(sorted(timed, key=lambda job: job.wave))
    ends = [job.ends for job in jobs]
    job_name = [end for end in ends if end is not None]
    return DryRun(
        pipeline=pipeline.name,
        jobs=jobs,
        peak_memory_bytes=_peak_memory(jobs),
        expected_seconds=max(job_name, default=0.0) if len(job_name) == len(ends) else None,
    )


def _keeps(pipeline: Pipeline, snapshot: Snapshot) -> dict[str, float]:
    resources = (*snapshot.resources.values(), *pipeline.resources)
    sites = snapshot.sites
    return {one.name: keep_of(one, sites[one.site].kind if one.site in sites else None) for one in resources}


def _pods(pipeline: Pipeline, snapshot: Snapshot) -> dict[str, Resource]:
    """Return the resources whose data is transferred to their pods: at farms and on rented machines."""
    resources = (*snapshot.resources.values(), *pipeline.resources)
    sites = {name for name, one in snapshot.sites.items() if one.kind in EARLY_KINDS}
    return {one.name: one for one in resources if one.site in sites}


def _transfers_early(site: Site | None) -> bool:
    return site is not None and site.kind in EARLY_KINDS and site.settings.get("early", "yes") == "yes"


def _rented(place: Callable[[Job], PlannedJob], job: Job, rent: Rent) -> PlannedJob:
    """Return the planned job with the machines that would be rented. If its deadline or its budget chooses
    another resource, the job is planned there."""
    placed = place(job)
    rented = rent(placed)
    if rented.resource == placed.resource:
        return rented
    moved = place(_only(job, rented.resource))
    return replace(
        moved,
        rentals=rented.rentals,
        alternatives=rented.alternatives,
        choice=rented.choice,
        problem=moved.problem or rented.problem,
        unchecked=moved.unchecked or rented.unchecked,
    )


def _placed(
    job: Job,
    pipeline: Pipeline,
    joining: CachedForecasts,
    size: JobSize,
    carrying: TransferInput,
    sites: Mapping[str, str],
) -> PlannedJob:
    """Return the planned job with its resource and its transfers. `sites` has the site of each job that
    comes before this job in the run."""
    snapshot = joining.snapshot
    readings, made = carrying.readings.get(job.name, ()), carrying.made_bytes.get(job.name)
    named = (resource_for(_only(job, name), pipeline, snapshot)[1] for name in dict.fromkeys(job.resources))
    present_named = [one for one in named if one is not None and job.at in (None, one.site)]
    if not present_named:
        planned, resource = _planned(job, pipeline, snapshot, size), resource_for(job, pipeline, snapshot)[1]
        site, staging = snapshot.sites.get(planned.site), resource.staging if resource is not None else None
        carried = transfer_estimate(readings, made, site, sites, staging) if site is not None else None
        away = not planned.problem and planned.site in carrying.unreachable
        return replace(_not_reached(planned) if away else planned, transfer=carried)
    each = {one.name: _planned(_only(job, one.name), pipeline, snapshot, size) for one in present_named}
    candidates = [ResourceCandidate(resource=one, sizing=each[one.name].sizing) for one in present_named]
    options = alternatives(
        job,
        candidates,
        joining,
        pipeline=pipeline.name,
        size=size,
        readings=readings,
        back_bytes=made,
        away=carrying.unreachable,
        crowded=carrying.crowded,
        sites=sites,
        project=pipeline.project,
    )
    choice = choose(options)
    chosen = next(one for one in options if one.resource == choice.resource)
    if not each[choice.resource].problem and each[choice.resource].site in carrying.unreachable:
        each[choice.resource] = _not_reached(each[choice.resource])
    return replace(
        each[choice.resource], transfer=chosen.transfer, alternatives=choice.alternatives, choice=choice.why
    )


def _not_reached(planned: PlannedJob) -> PlannedJob:
    site = planned.site
    return replace(
        planned, unchecked=f"whether site {site} has room for the job: the site does not answer now"
    )


def _only(job: Job, resource: str) -> Job:
    return replace(job, resource=resource, resources=(), at=None)


def _planned(job: Job, pipeline: Pipeline, snapshot: Snapshot, size: JobSize) -> PlannedJob:
    name, resource = resource_for(job, pipeline, snapshot)
    fitting = resource or default_resource(job.kind)
    site = snapshot.sites.get(fitting.site)
    sized = partial(
        size_job,
        size=size,
        history=snapshot.history,
        pipeline=pipeline.name,
        resource=fitting,
        largest=asked_of(snapshot, fitting, snapshot.largest(fitting.site)),
        nodes=len(site.nodes) if site else 1,
    )
    sizing = sized(job)
    part_sizes = cut_job(job, size, fitting, site, sized) if site is not None else None
    why = parts_line(job, size, fitting, site, sized) if site is not None else ""
    if part_sizes is not None and may_be_cut(job):
        sizing = part_sizes.whole
    elif part_sizes is not None:
        sizing = replace(part_sizes.part, why=(*part_sizes.part.why, why))
    elif why:
        sizing = replace(sizing, why=(*sizing.why, why))
    demand = demand_at(job, sizing, pipeline.project)
    problem = _problem(job, name, resource, demand, pipeline, snapshot)
    checkable = resource is not None and not problem and site is not None
    queued = checkable and site is not None and asks_for_need(site.kind)
    largest = asked_of(snapshot, fitting, snapshot.largest(fitting.site))
    return PlannedJob(
        job=job.name,
        kind=job.kind.value,
        resource=name,
        site=fitting.site,
        needs=job.all_needs,
        when=job.when,
        wave=1,
        sizing=sizing,
        most_cpus=None if job.cpus or (job.gang and queued) else max(1.0, cpus_of(fitting, largest) // 1),
        problem=problem,
        asked=asked_when_alone(site, fitting, demand) if queued and site is not None else None,
        unchecked=why_unchecked(snapshot, fitting, demand) if checkable else "",
    )


def resource_for(job: Job, pipeline: Pipeline, snapshot: Snapshot) -> tuple[str, Resource | None]:
    """Return the resource that a job would use, by name. The result is None if the job names an unknown
    resource.

    The result is the resource that the job names, otherwise the resource to which the job is assigned (as
    `job` or `pipeline/job`), otherwise the default resource of its kind.
    """
    by_name = {**snapshot.resources, **{resource.name: resource for resource in pipeline.resources}}
    if job.resource is not None:
        return job.resource, by_name.get(job.resource)
    for assigned in (f"{pipeline.name}/{job.name}", job.name):
        for resource in sorted(by_name.values(), key=lambda resource: resource.name):
            if assigned in resource.jobs:
                return resource.name, resource
    default = default_resource(job.kind, at(job, pipeline, snapshot.sites) or LOCAL)
    return default.name, by_name.get(default.name, default)


def _problem(
    job: Job,
    name: str,
    resource: Resource | None,
    demand: Demand,
    pipeline: Pipeline,
    snapshot: Snapshot,
) -> str:
    problem = problem_of_resource(snapshot, name, resource)
    if problem is None and resource is not None:
        problem = problem_of(snapshot, resource, demand)
        problem = problem or ProjectShares(snapshot, 0.0).problem(QuotaClaim(demand))
    if problem is None:
        return ""
    names = [*snapshot.resources, *(other.name for other in pipeline.resources)]
    hint = suggestion(name, names, problem.hint) if resource is None else problem.hint
    return f"{_place(job, problem, pipeline)}{problem.message}. {hint}"


def _place(job: Job, problem: RefusalReason, pipeline: Pipeline) -> str:
    """Return the file, the line and the field of a request that is too large. The result is empty if the
    pipeline was not read from a file."""
    if pipeline.lines is None:
        return ""
    field = ""
    if job.memory_bytes is not None and problem.message.startswith("needs "):
        field = ".memory"
    elif job.named_resources:
        field = ".resource" if job.resource else ".resources"
    return f"{pipeline.lines.place(f'jobs.{job.name}{field}')}: "


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimelineJob:
    """A job on the timeline of the predicted run. `works` is the time at which its inputs have arrived."""

    job: str
    starts: float
    works: float
    ends: float
    amounts: Amounts
    resource: str


class _Timeline:
    """A timeline of a predicted run. The timeline places each job at the earliest time that its needed jobs
    and the CPUs and memory of a pod allow."""

    def __init__(self, snapshot: Snapshot, keeps: Mapping[str, float], pods: Mapping[str, Resource]) -> None:
        self._snapshot = snapshot
        self._keeps, self._pods = keeps, pods
        """The seconds for which an idle deployment of each resource is kept, and the resources to whose pods
        data is transferred."""
        self._taken: list[_TimelineJob] = []

    def times(self, planned: Mapping[str, PlannedJob]) -> list[PlannedJob]:
        """Return the jobs with `starts` and `ends`, if these times can be estimated. The time of a job on a
        rented machine begins with the request for the machine, and ends when the machine is returned. The
        jobs that need its result start when the result is at home. If a job waits for the machine of an
        earlier job, its inputs are transferred while the earlier job runs there."""
        timed: dict[str, PlannedJob] = {}
        home: dict[str, float | None] = {}
        for name, job in planned.items():
            needed = [home[need] for need in job.needs]
            present = [end for end in needed if end is not None]
            earliest = max(present, default=0.0)
            seconds = 0.0 if not _will_run(job) else _seconds(job)
            timed[name], home[name] = job, None
            if len(present) == len(needed) and (seconds is not None):
                starts = self._start(job, earliest, seconds)
                saved = self._saved(job, earliest, starts) if seconds else NOTHING_SAVED
                job = _with_saved(job, saved)
                boot = 0.0 if saved.is_up else _phase_seconds(job, Phase.BOOT)
                home[name] = starts + boot + seconds - saved.upload_seconds
                self._take(job, starts, boot, saved, home[name] or starts)
                timed[name] = replace(job, starts=starts, ends=(home[name] or 0.0) + _release_seconds(job))
            elif len(present) == len(needed):
                timed[name] = replace(job, starts=earliest)
        return list(timed.values())

    def _saved(self, job: PlannedJob, earliest: float, starts: float) -> SavedTime:
        """Return what the job saves, because a machine that an earlier job has left is used again if it is
        kept until then, and because its inputs are transferred while the earlier job runs."""
        keep = self._keeps.get(job.resource, 0.0)
        before = [
            one
            for one in self._taken
            if one.resource == job.resource and one.ends <= starts and starts - one.ends <= keep
        ]
        if not before:
            return NOTHING_SAVED
        last = max(before, key=lambda one: one.ends)
        upload = 0.0 if job.transfer is None else job.transfer.upload_seconds or 0.0
        if not _transfers_early(self._snapshot.sites.get(job.site)):
            upload = 0.0
        overlap = max(0.0, last.ends - max(earliest, last.works))
        return SavedTime(is_up=True, upload_seconds=min(upload, overlap), job=last.job)

    def _start(self, job: PlannedJob, earliest: float, seconds: float) -> float:
        if seconds == 0.0:
            return earliest
        later = sorted(taken.ends for taken in self._taken if taken.ends > earliest)
        return next((time for time in (earliest, *later) if self._fits(job, time)), earliest)

    def _take(self, job: PlannedJob, starts: float, boot: float, saved: SavedTime, ends: float) -> None:
        if ends == starts:
            return
        upload = 0.0 if job.transfer is None else job.transfer.upload_seconds or 0.0
        self._taken.append(
            _TimelineJob(
                job=job.job,
                starts=starts,
                works=starts + boot + upload - saved.upload_seconds,
                ends=ends,
                amounts=job.sizing.amounts,
                resource=job.resource,
            )
        )

    def _fits(self, job: PlannedJob, time: float) -> bool:
        concurrent = [taken for taken in self._taken if taken.starts <= time < taken.ends]
        largest = self._snapshot.largest(job.site)
        memory = sum(one.amounts.memory_bytes for one in concurrent) + job.sizing.amounts.memory_bytes
        same = [taken for taken in concurrent if taken.resource == job.resource]
        if memory > largest.memory_bytes or len(same) >= most_jobs(largest.cpus):
            return False
        return self._fits_pods(job, same)

    def _fits_pods(self, job: PlannedJob, same: Sequence[_TimelineJob]) -> bool:
        """Return whether the GPUs of the pods suffice, which no jobs share."""
        resource = self._pods.get(job.resource)
        if resource is None or not job.sizing.amounts.gpus:
            return True
        present = max(resource.gpus, job.sizing.amounts.gpus) * max(1, resource.workers or 1)
        return sum(one.amounts.gpus for one in same) + job.sizing.amounts.gpus <= present


def _phase_seconds(job: PlannedJob, phase: Phase) -> float:
    rental = job.rentals.get(job.resource)
    return 0.0 if rental is None else rental.seconds.get(phase, 0.0)


def _with_saved(job: PlannedJob, saved: SavedTime) -> PlannedJob:
    """Return the job with the time and cost of its rented machine less what it saves."""
    rental = job.rentals.get(job.resource)
    if rental is None or not saved.is_up:
        return job
    return replace(job, rentals={**job.rentals, job.resource: with_saved(rental, saved)})


def _release_seconds(job: PlannedJob) -> float:
    """Return the seconds from the moment when the result is at home until the rented machine has ended."""
    rental = job.rentals.get(job.resource) if _will_run(job) else None
    return 0.0 if rental is None else rental.seconds.get(Phase.RELEASE, 0.0)


def _will_run(job: PlannedJob) -> bool:
    """Return whether the job would run in a run without failures."""
    return not job.unchanged and job.when != When.FAILURE


def _seconds(job: PlannedJob) -> float | None:
    """Return the expected seconds of the job, including its transfers."""
    travel = 0.0 if job.transfer is None else job.transfer.seconds
    run = job.sizing.expected_seconds
    return None if travel is None or run is None else travel + run


def _peak_memory(jobs: tuple[PlannedJob, ...]) -> int:
    """Return the peak memory of the run in bytes. The peak is computed from the timeline. If times are
    unknown, the peak is the largest sum of the memory of the jobs of one wave."""
    running = [job for job in jobs if _will_run(job)]
    if all(job.starts is not None and job.ends is not None for job in running):
        return max((_in_use(running, job.starts or 0.0) for job in running), default=0)
    waves: dict[int, Amounts] = {}
    for job in running:
        waves[job.wave] = waves.get(job.wave, Amounts()) + job.sizing.amounts
    return max((amounts.memory_bytes for amounts in waves.values()), default=0)


def _in_use(jobs: list[PlannedJob], time: float) -> int:
    return sum(
        job.sizing.amounts.memory_bytes
        for job in jobs
        if job.starts is not None and job.ends is not None and job.starts <= time < job.ends
    )
