"""This module estimates the wait and the run time that a job can expect at each resource that it may use.

The wait is also estimated for resources whose queue does not contain the job.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from heapq import heappop, heappush, nsmallest
from types import MappingProxyType

from gridmill.domain.farm_protocol import QueuePosition
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job, JobSize
from gridmill.domain.project import DEFAULT
from gridmill.domain.resource import Resource, ResourceAlternative, Sizing
from gridmill.domain.run import JobRun
from gridmill.scheduler.capacity import POD_ID
from gridmill.scheduler.draft import DraftPlan
from gridmill.scheduler.feasibility import most_places, problem_of, problem_of_resource
from gridmill.scheduler.forecast import seconds_at
from gridmill.scheduler.lane import find_pod
from gridmill.scheduler.provisioning import can_bring_up
from gridmill.scheduler.queue import Demand, demand_of
from gridmill.scheduler.reclaim import reclaim
from gridmill.scheduler.site_choice import InputVersion, labels, transfer_estimate
from gridmill.scheduler.sizing import subject_of
from gridmill.scheduler.snapshot import Snapshot
from gridmill.scheduler.wait_estimate import WaitForecasts

NONE: Mapping[str, float] = MappingProxyType({})


class CachedForecasts:
    """Forecasts of waits for many jobs at the same moment. Each forecast is computed only once and then
    stored. The forecasts also include the jobs that `send` has counted and that the snapshot does not
    contain yet: later jobs wait behind these jobs. `coming` has, for each deployment id, the number of
    seconds until the site is expected to start the deployment."""

    def __init__(self, snapshot: Snapshot, now: float, coming: Mapping[str, float] = NONE) -> None:
        self.snapshot = snapshot
        self.now = now
        self._coming = coming
        self.waits = WaitForecasts(snapshot, now)
        self._cached: dict[tuple[str, Demand], float | None] = {}
        self._sent: dict[str, list[float]] = {}
        """For each resource, the seconds until each place is free after these jobs."""

    def seconds(
        self, resource: Resource, demand: Demand, *, line: QueuePosition | None = None
    ) -> float | None:
        """Return the seconds from now until the job is expected to start behind all jobs that wait at the
        resource. The result is None if these seconds cannot be estimated. The time that a pod takes to start
        is not included. `line` is the position that a new deployment would have in the queue of the site, if
        other tenants also use the machines of the site."""
        key = (resource.name, demand)
        if key not in self._cached:
            self._cached[key] = self._joining_seconds(resource, demand)
        cached = self._cached[key]
        if line is not None and cached == 0.0 and self._must_come_up(resource.name, demand):
            return line.seconds
        sent = self._sent.get(resource.name)
        return cached if cached is None or not sent else cached + nsmallest(demand.workers, sent)[-1]

    def standing_seconds(self, job_run: JobRun) -> float:
        """Return the seconds until the start of a job that is already in the queue. If the wait cannot be
        estimated, the function returns the seconds that the job has waited so far."""
        forecast = self.waits.of(job_run.id)
        if forecast is not None:
            return forecast.likely
        demand, places = demand_of(job_run), self.snapshot.places
        pods = places.open.get(job_run.resource)
        if pods is not None and find_pod(pods, demand) is not None:
            return 0.0
        pods = places.coming.get(job_run.resource)
        coming = find_pod(pods, demand) if pods is not None else None
        if coming is not None:
            return self._coming_seconds(coming[POD_ID])
        return max(0.0, self.now - job_run.ready) if job_run.ready is not None else 0.0

    def send(self, resource: Resource, demand: Demand, seconds: float) -> None:
        """Add a job to the forecasts that was sent to the resource and that is expected to run for this
        number of seconds."""
        free = self._sent.setdefault(resource.name, self._places(resource, demand))
        taken = [heappop(free) for _ in range(min(demand.workers, len(free)))]
        for _ in taken:
            heappush(free, max(taken) + seconds)

    def _joining_seconds(self, resource: Resource, demand: Demand) -> float | None:
        line = self.snapshot.lines.waiting.get(resource.name)
        if resource.name not in self.snapshot.resources:
            return 0.0
        if line is None or not len(line):
            lane = self._draft.lane(resource.name)
            if lane is None:
                return None
            if find_pod(lane.open, demand) is not None:
                return 0.0
            coming = find_pod(lane.coming, demand)
            if coming is not None:
                return self._coming_seconds(coming[POD_ID])
            if can_bring_up(self._draft, lane, demand) or self._can_reclaim(resource.name, demand):
                return 0.0
        return self.waits.behind(resource.name, demand)

    @cached_property
    def _draft(self) -> DraftPlan:
        """Return a draft of a plan, which the caller only reads and never changes."""
        return DraftPlan(self.snapshot, self.now, None)

    def _can_reclaim(self, resource: str, demand: Demand) -> bool:
        """Return whether enough CPUs, memory and GPUs for the demand become free if the idle deployments at
        the resource's site are released."""
        draft = DraftPlan(self.snapshot, self.now, None)
        lane = draft.lane(resource)
        return lane is not None and reclaim(draft, lane, demand, urgent=True)

    def _must_come_up(self, resource: str, demand: Demand) -> bool:
        """Return whether a new pod is needed for the demand, because no pod that is up or starting is large
        enough."""
        places = self.snapshot.places
        pods = (places.open.get(resource), places.coming.get(resource))
        return all(pod is None or find_pod(pod, demand) is None for pod in pods)

    def _coming_seconds(self, pod_id: str) -> float:
        """Return the seconds until the pod is expected to be up, as the site reports them. If the site
        reports nothing, the function returns the seconds since the deployment was created, because the
        deployment may wait in a queue at the site."""
        deployment_id = self.snapshot.places.owners[pod_id]
        result = self._coming.get(deployment_id)
        if result is not None:
            return result
        return max(0.0, self.now - self.snapshot.deployments[deployment_id].created)

    def _places(self, resource: Resource, demand: Demand) -> list[float]:
        """Return the places for further jobs on the resource, each as the number of seconds until it is
        free, which is 0. The places that attempts hold are left out. If attempts hold all places, all places
        are returned, because the attempts will release them."""
        site_exists = resource.site in self.snapshot.sites
        most = most_places(self.snapshot, resource, demand) if site_exists else 1
        attempts = self.snapshot.attempts.values()
        held = sum(self._runs_on(attempt.job_run_id, resource.name) for attempt in attempts)
        return [0.0] * max(1, most - held if most > held else most)

    def _runs_on(self, job_run_id: str, resource: str) -> bool:
        job_run = self.snapshot.job_runs.get(job_run_id)
        return job_run is not None and job_run.resource == resource


AWAY = "does not answer"
NOBODY: Mapping[str, QueuePosition] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceCandidate:
    """A resource that a job may use, and the size that the job would have on this resource."""

    resource: Resource
    sizing: Sizing


def alternatives(
    job: Job,
    candidates: Sequence[ResourceCandidate],
    joining: CachedForecasts,
    *,
    pipeline: str,
    size: JobSize,
    readings: Sequence[InputVersion],
    back_bytes: int | None,
    away: Collection[str] = (),
    crowded: Mapping[str, QueuePosition] = NOBODY,
    sites: Mapping[str, str] | None = None,
    project: str = DEFAULT,
    standing: JobRun | None = None,
) -> tuple[ResourceAlternative, ...]:
    """Return one alternative for each candidate, in the order of the candidates. `away` has the sites that
    do not answer. `sites` has the site of each other job of the same run, by the name of the job. `crowded`
    has, by resource, the position that a new deployment would have in the queue of a farm, for farms whose
    machines other tenants also use. `standing` is the waiting job itself, if it is already in the queue of a
    resource."""
    snapshot = joining.snapshot
    called = labels([candidate.resource for candidate in candidates])
    name, subject = f"{pipeline}/{job.name}", subject_of(job, pipeline)
    made: list[ResourceAlternative] = []
    for candidate in candidates:
        resource, demand = candidate.resource, demand_at(job, candidate.sizing, project)
        stands = standing if standing is not None and standing.resource == resource.name else None
        site, line = snapshot.sites.get(resource.site), crowded.get(resource.name)
        wait = (
            joining.standing_seconds(stands)
            if stands is not None
            else joining.seconds(resource, demand, line=line)
        )
        made.append(
            ResourceAlternative(
                resource=resource.name,
                site=resource.site,
                label=called[resource.name],
                run_seconds=seconds_at(name, subject, size, snapshot.history, resource),
                wait_seconds=wait,
                before=line.position if line is not None and stands is None and wait == line.seconds else 0,
                transfer=(
                    transfer_estimate(readings, back_bytes, site, sites or {}, resource.staging)
                    if site is not None
                    else None
                ),
                problem=_problem(snapshot, resource, demand),
                unreachable=AWAY if resource.site in away else "",
            )
        )
    return tuple(made)


def demand_at(job: Job, sizing: Sizing, project: str) -> Demand:
    """Return the demand for CPUs, memory and GPUs that the job has with that size."""
    amounts = sizing.amounts
    return Demand(
        amounts.memory_bytes,
        amounts.gpus,
        job.cpus or 0.0,
        job.priority,
        job.kind,
        workers=job.gang or 1,
        project=project,
    )


def _problem(snapshot: Snapshot, resource: Resource, demand: Demand) -> str:
    refusal = problem_of_resource(snapshot, resource.name, resource)
    refusal = refusal or problem_of(snapshot, resource, demand)
    return refusal.message if refusal is not None else ""
