"""This module has the snapshot from which the planner decides: all live records, with indices that are
updated on every change."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gridmill.domain.amounts import Amounts
from gridmill.domain.backfill import Backfill, Chunk
from gridmill.domain.deployment import Deployment
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import JobKind
from gridmill.domain.lease import Lease
from gridmill.domain.project import Project
from gridmill.domain.resource import Measurement, Resource, default_resource
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.schedule import Schedule
from gridmill.domain.service import Service
from gridmill.domain.site import Site
from gridmill.scheduler.capacity_index import CapacityIndex
from gridmill.scheduler.history import MeasurementHistory
from gridmill.scheduler.run_index import JobsByResource

_NOTHING = Amounts()


@dataclass(frozen=True, slots=True, kw_only=True)
class RentedMachines:
    """The number of machines of a cloud site: the machines of pods, and other machines, such as those that
    end."""

    of_pods: int
    others: int


class Snapshot:
    """All live records of a home and their indices. `put` and `remove` change the snapshot; the planner only
    reads it.

    Finished records are removed automatically: a finished run with its jobs, a finished attempt, an ended
    deployment, a closed lease, and a chunk of a backfill after a run was started for it. The indices depend
    only on the contents of the snapshot, not on the order of changes. A snapshot must not be used by several
    threads at the same time.
    """

    def __init__(self, nouns: Iterable[object] = ()) -> None:
        self.lines = JobsByResource()
        self.places = CapacityIndex()
        self.history = MeasurementHistory()
        self.resources: dict[str, Resource] = {}
        self.schedules: dict[str, Schedule] = {}
        self.backfills: dict[str, Backfill] = {}
        self.chunks: dict[str, Chunk] = {}
        self.projects: dict[str, Project] = {}
        self.leases: dict[str, Lease] = {}
        self.services: dict[str, Service] = {}
        self.sites = self.places.sites
        self.deployments = self.places.deployments
        self.attempts = self.places.attempts
        self.runs = self.lines.runs
        self.job_runs = self.lines.job_runs
        self._tables: Mapping[type[Any], dict[str, Any]] = {
            JobRun: self.job_runs,
            Attempt: self.attempts,
            Deployment: self.deployments,
            Run: self.runs,
            Site: self.sites,
            Resource: self.resources,
            Project: self.projects,
            Lease: self.leases,
            Schedule: self.schedules,
            Backfill: self.backfills,
            Chunk: self.chunks,
            Service: self.services,
        }
        for noun in nouns:
            self.put(noun)

    def put(self, noun: object) -> None:
        """Insert a record into the snapshot, or replace it. Kinds of records that planning does not need are
        ignored."""
        match noun:
            case JobRun():
                self.lines.put_job_run(noun)
            case Attempt():
                self.places.put_attempt(noun)
            case Deployment():
                self.places.put_deployment(noun)
            case Run():
                self.lines.put_run(noun)
            case Site():
                self.places.put_site(noun)
            case Resource():
                self.resources[noun.name] = noun
            case Project():
                self.projects[noun.name] = noun
            case Lease(is_open=True):
                self.leases[noun.id] = noun
            case Lease():
                self.leases.pop(noun.id, None)
            case Schedule():
                self.schedules[noun.name] = noun
            case Backfill():
                self.backfills[noun.name] = noun
            case Chunk(left=True):
                self.chunks[noun.id] = noun
            case Chunk():
                self.chunks.pop(noun.id, None)
            case Service():
                self.services[noun.name] = noun
            case Measurement():
                self.history.add(noun)

    def remove(self, kind: type[Any], key: str) -> None:
        """Remove a record from the snapshot. If the key is unknown, the method does nothing."""
        if kind is JobRun:
            self.lines.drop_job_run(key)
        elif kind is Attempt:
            self.places.drop_attempt(key)
        elif kind is Deployment:
            self.places.drop_deployment(key)
        elif kind is Run:
            self.lines.drop_run(key)
        elif kind is Site:
            self.places.drop_site(key)
        elif kind is Resource:
            self.resources.pop(key, None)
        elif kind is Project:
            self.projects.pop(key, None)
        elif kind is Lease:
            self.leases.pop(key, None)
        elif kind is Schedule:
            self.schedules.pop(key, None)
        elif kind is Backfill:
            self.backfills.pop(key, None)
        elif kind is Chunk:
            self.chunks.pop(key, None)
        elif kind is Service:
            self.services.pop(key, None)

    def find(self, kind: type[Any], key: str) -> object | None:
        """Return the record of that class with that key. The result is None if the record is not live."""
        return self._tables.get(kind, {}).get(key)

    def job_runs_of(self, run_id: str) -> tuple[JobRun, ...]:
        """Return the jobs of a run, in the order of their declaration."""
        return self.lines.jobs_of(run_id)

    def unfinished_of(self, run_id: str) -> Collection[str]:
        """Return the ids of the jobs of a run that have not finished, in any order."""
        return self.lines.unfinished_of(run_id)

    def dependents_of(self, job_run_id: str) -> tuple[JobRun, ...]:
        """Return the jobs that need this job directly, in the order of their declaration."""
        return self.lines.dependents_of(job_run_id)

    def attempts_on(self, where: str) -> tuple[Attempt, ...]:
        """Return the live attempts on a pod or on a whole deployment, in the order of their ids."""
        return tuple(self.attempts[key] for key in sorted(self.places.on.get(where, ())))

    def resource_of(self, name: str, kind: JobKind) -> Resource | None:
        """Return the resource of that name. The default resource of a kind of job exists even if it was
        never inserted."""
        resource = self.resources.get(name)
        if resource is None and name == f"default-{kind}":
            return default_resource(kind)
        return resource

    def rented_machines(self, site: str) -> RentedMachines:
        """Return the number of machines of a cloud site that cost money now or will soon. Each pod has a
        machine of its own. A machine also costs money while it ends, and while an image is built on it."""
        claims = self.places.claims.items()
        pods = {pod_id for (name, _), taken in claims if name == site for pod_id in taken}
        leases = (one for one in self.leases.values() if one.provider == site and one.counts_as_machine)
        return RentedMachines(of_pods=len(pods), others=sum(one.pod_id not in pods for one in leases))

    def largest_pod(self, site: str) -> Amounts:
        """Return the CPUs, memory and GPUs of the largest pod that is possible on an empty site. The amounts
        are zero for an unknown site."""
        return self.places.largest.get(site, _NOTHING)

    def largest(self, site: str) -> Amounts:
        """Return the CPUs, memory and GPUs of the node with the most memory at a site. The amounts are zero
        if no node is known."""
        shapes = self.places.shapes.get(site)
        return shapes[0] if shapes else Amounts()
