"""The state of the simulated AWS Batch: its resources, and the placement of its jobs.

Sources: https://docs.aws.amazon.com/batch/latest/userguide/job_states.html and
https://docs.aws.amazon.com/batch/latest/userguide/job_queues.html
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from gridmill.domain.frozen import replace
from gridmill.errors import NotFoundError
from gridmill.ports.clock import Clock
from gridmill.testing.cloud.aws_batch.placement import Fleet, Place, decide_place
from gridmill.testing.cloud.aws_batch.records import (
    Definition,
    Environment,
    Instance,
    Job,
    Queue,
    Status,
)
from gridmill.testing.cloud.batch_world import BatchWorld
from gridmill.testing.cloud.cloud_faults import BatchFaults
from gridmill.testing.cloud.containers import Image
from gridmill.testing.cloud.ec2 import catalogue
from gridmill.testing.cloud.ec2.catalogue import InstanceType
from gridmill.testing.cloud.ec2.users import Users
from gridmill.testing.cloud.history import History

_KEPT_SECONDS = 7 * 24 * 3600.0
"""A finished job is kept for at least 7 days.

Source: https://docs.aws.amazon.com/batch/latest/userguide/job_states.html
"""


Begin = Callable[["World", Job, Sequence[Job]], None]
"""Plans the start of a job or of the nodes of a job that have places."""


class World(BatchWorld):
    """All resources of one account. Its methods must be called with `lock`."""

    def __init__(
        self, clock: Clock, faults: BatchFaults, images: Mapping[str, Image], seed: int, begin: "Begin"
    ) -> None:
        super().__init__(clock, faults, images, seed)
        self._begin = begin
        self.users = Users(self.random)
        self.environments: dict[tuple[str, str], Environment] = {}
        self.queues: dict[tuple[str, str], Queue] = {}
        self.definitions: dict[tuple[str, str], list[Definition]] = {}
        self.jobs: History[Job] = History()
        self.children: dict[str, tuple[str, ...]] = {}
        self.open_children: dict[str, int] = {}
        self.placed: dict[str, Job] = {}
        self.instances: dict[str, Instance] = {}
        self.ended_instances: list[Instance] = []

    # resources

    def find(self, job_id: str) -> Job:
        """Returns a job. Raises NotFoundError."""
        job = self.jobs.get(job_id)
        if job is None:
            raise NotFoundError(f"there is no job {job_id}")
        return job

    def update(self, job: Job, at: float) -> None:
        """Stores a changed job."""
        before = self.jobs.get(job.id)
        self.jobs.put(job.id, job, at)
        if job.id in self.placed:
            self.placed[job.id] = job
        if before is None or before.status != job.status:
            self.changed.notify_all()
            if job.status.is_over:
                self.agenda.at(at + _KEPT_SECONDS, lambda then: self.jobs.put(job.id, None, then))

    def environments_of(self, queue: Queue) -> list[Environment]:
        """Returns the compute environments of a queue in their order."""
        return [self.environments[(queue.region, name)] for name in queue.environments]

    def queue_of(self, job: Job) -> Queue:
        """Returns the queue of a job."""
        return self.queues[(job.region, job.queue)]

    def latest(self, job: Job) -> Iterator[Job]:
        """Yields the children or nodes of a job."""
        for child_id in self.children.get(job.id, ()):
            child = self.jobs.get(child_id)
            if child is not None:
                yield child

    # admission

    def submit(self, jobs: Sequence[Job], now: float) -> None:
        """Stores a new job and its children or nodes, which follow it."""
        first = jobs[0]
        for job in jobs:
            self.update(job, now)
        if len(jobs) > 1:
            self.children[first.id] = tuple(one.id for one in jobs[1:])
            self.open_children[first.id] = len(jobs) - 1
        self.agenda.at(now + self.faults.queued_seconds, lambda at: self._admit(first.id, at))

    def _admit(self, job_id: str, at: float) -> None:
        job = self.find(job_id)
        if job.status != Status.SUBMITTED:
            return
        if job.is_array:
            self.update(replace(job, status=Status.PENDING), at)
        for one in self.latest(job) if job.size or job.is_gang else (job,):
            if one.status == Status.SUBMITTED:
                self.wait(one, at, enters=not job.is_gang)
        if job.is_gang:
            self.wait(job, at)

    def wait(self, job: Job, at: float, *, enters: bool = True) -> None:
        """Makes a job RUNNABLE. `enters` is false for a node, whose job waits for it."""
        if enters and self.faults.stuck_next > 0:
            self.faults.stuck_next -= 1
            job = replace(job, is_stuck=True)
        self.update(replace(job, status=Status.RUNNABLE), at)
        if enters:
            self.waiting[job.id] = None
            self.needs_scheduling()

    # placement

    def _schedule(self, now: float) -> None:
        blocked: set[tuple[str, str]] = set()
        for job_id in sorted(self.waiting, key=lambda one: -self.queue_of(self.find(one)).priority):
            job = self.find(job_id)
            key = (job.region, job.queue)
            if job.is_stuck or job.is_cancelled or job.is_terminated or key in blocked:
                continue
            # A job that cannot be placed blocks its queue: the next jobs wait although they could run.
            if not self._try_to_place(job, now):
                blocked.add(key)

    def _try_to_place(self, job: Job, now: float) -> bool:
        """Places a job or all of its nodes, or shows why it waits."""
        placed: list[Job] = []
        for one in tuple(self.latest(job)) if job.is_gang else (job,):
            place = decide_place(one.container, self._environments_for(job), self._fleet(), alone=job.is_gang)
            if isinstance(place, str):
                for other in placed:
                    self._unplace(other, now)
                reason = place if self.faults.shows_reasons else ""
                if reason != job.status_reason:
                    self.update(replace(job, status_reason=reason), now)
                return False
            placed.append(self._place(one, place, now))
        del self.waiting[job.id]
        self._begin(self, job, placed)
        return True

    def _environments_for(self, job: Job) -> list[Environment]:
        return self.environments_of(self.queue_of(job))

    def _fleet(self) -> Fleet:
        return Fleet(
            instances=self.instances,
            jobs=self.placed,
            has_quota=self._has_quota,
            has_capacity=self._has_capacity,
        )

    def _has_quota(self, kind: InstanceType, zone: str, spot: bool) -> bool:
        quota, region = catalogue.quota_of(kind.family, spot=spot), zone[:-1]
        used = sum(
            catalogue.INSTANCE_TYPES[one.type].vcpus
            for one in self.instances.values()
            if (one.region, one.is_spot) == (region, spot)
            and catalogue.INSTANCE_TYPES[one.type].family in quota.families
        )
        return used + kind.vcpus <= self.faults.quota(quota.code, region, quota.default)

    def _has_capacity(self, kind: InstanceType, zone: str, spot: bool) -> bool:
        limit = self.faults.capacity_of(kind.name, zone, spot=spot)
        same = [one for one in self.instances.values() if (one.type, one.zone) == (kind.name, zone)]
        return limit is None or len(same) < limit

    def _place(self, job: Job, place: Place, now: float) -> Job:
        instance = self.instances.get(place.instance_id)
        if place.kind:
            instance = Instance(
                id=f"i-{self.new_id(17)}",
                region=job.region,
                zone=place.zone,
                type=place.kind,
                environment=place.environment.name,
                is_spot=place.environment.kind.name == "SPOT",
                launched_at=now,
                ready_at=now + self.faults.boot_seconds,
            )
        if instance is not None:
            self.instances[instance.id] = replace(instance, jobs=(*instance.jobs, job.id), idle_since=None)
        job = replace(
            job,
            task=self.new_id(),
            instance_id=instance.id if instance else "",
            environment=place.environment.name,
            placed_at=now,
        )
        self.placed[job.id] = job
        self.update(job, now)
        return job

    def _unplace(self, job: Job, now: float) -> None:
        """Withdraws the place of a node, because another node of its job has no place. The instance of the
        node was never launched."""
        del self.placed[job.id]
        del self.instances[job.instance_id]
        self.update(replace(job, task="", instance_id="", environment="", placed_at=None), now)

    # release

    def release(self, job: Job, at: float) -> None:
        """Frees the place of a job. An instance without jobs ends after some time."""
        self.placed.pop(job.id, None)
        self.needs_scheduling()
        instance = self.instances.get(job.instance_id)
        if instance is None:
            return
        others = tuple(one for one in instance.jobs if one != job.id)
        self.instances[instance.id] = replace(instance, jobs=others, idle_since=None if others else at)
        if not others:
            self.agenda.at(at + self.faults.idle_seconds, lambda then: self._end_idle(instance.id, then))

    def _end_idle(self, instance_id: str, at: float) -> None:
        instance = self.instances.get(instance_id)
        if instance is None or instance.idle_since is None:
            return
        if at >= instance.idle_since + self.faults.idle_seconds:
            self.end_instance(instance, at)

    def end_instance(self, instance: Instance, at: float) -> None:
        """Ends an instance, which is charged until then."""
        self.instances.pop(instance.id)
        self.ended_instances.append(replace(instance, ended_at=max(at, instance.launched_at)))
        self.needs_scheduling()
