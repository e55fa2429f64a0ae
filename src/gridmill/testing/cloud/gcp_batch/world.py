"""The state of the simulated Google Cloud Batch: its jobs, and the machines of their tasks.

Sources: https://cloud.google.com/batch/docs/create-run-job#lifecycle, https://cloud.google.com/batch/quotas
and https://cloud.google.com/batch/docs/troubleshooting
"""

from collections.abc import Callable, Iterator, Mapping

from gridmill.domain.frozen import replace
from gridmill.errors import NotFoundError
from gridmill.ports.clock import Clock
from gridmill.testing.cloud.batch_world import BatchWorld
from gridmill.testing.cloud.cloud_faults import BatchFaults
from gridmill.testing.cloud.containers import Image
from gridmill.testing.cloud.gcp_batch import catalogue
from gridmill.testing.cloud.gcp_batch.records import (
    Event,
    Job,
    JobState,
    Machine,
    Operation,
    Task,
)
from gridmill.testing.cloud.google_accounts import Accounts
from gridmill.testing.cloud.history import History

DAY_SECONDS = 24 * 3600.0
QUEUED_SECONDS, RUNNING_SECONDS, KEPT_SECONDS = 2 * DAY_SECONDS, 14 * DAY_SECONDS, 60 * DAY_SECONDS
STATUS_CHANGED, INFORMATION = "STATUS_CHANGED", "OPERATIONAL_INFO"
NO_QUOTA = (
    "VM in Managed Instance Group meets error: Batch Error: code - CODE_GCE_QUOTA_EXCEEDED, description - "
    "Quota '{quota}' exceeded. Limit: {limit} in region {region}."
)
NO_CAPACITY = (
    "VM in Managed Instance Group meets error: Batch Error: code - CODE_GCE_ZONE_RESOURCE_POOL_EXHAUSTED, "
    "description - The zone does not have enough resources available to fulfill the request."
)
NO_SUCH_TYPE = (
    "Job gets non-retryable information Batch Error: code - CODE_GCE_INVALID_FIELD_VALUE, description - "
    "Invalid value for field 'resource.machineType': '{kind}'."
)

Assign = Callable[["World", Task, Machine, float], None]
"""Plans the start of a task that has a machine."""


class World(BatchWorld):
    """All resources of one project. Its methods must be called with `lock`."""

    def __init__(
        self,
        clock: Clock,
        faults: BatchFaults,
        images: Mapping[str, Image],
        seed: int,
        assign: Assign,
        stop: Callable[["World", Job, JobState, str, float], None],
    ) -> None:
        super().__init__(clock, faults, images, seed)
        self._assign, self._stop = assign, stop
        self.accounts = Accounts(catalogue.PROJECT, self.random)
        self.jobs: History[Job] = History()
        self.tasks: History[Task] = History()
        self.tasks_of: dict[str, tuple[str, ...]] = {}
        self.machines: dict[str, Machine] = {}
        self.ended_machines: list[Machine] = []
        self.operations: dict[str, Operation] = {}
        self.known_requests: dict[tuple[str, str], tuple[float, str]] = {}
        """For each method and request id: the time, and the name of the job or operation."""

    # resources

    def job(self, name: str) -> Job:
        """Returns a job. Raises NotFoundError."""
        job = self.jobs.get(name)
        if job is None:
            raise NotFoundError(f"there is no job {name}")
        return job

    def latest(self, job: Job) -> Iterator[Task]:
        """Yields the tasks of a job."""
        for name in self.tasks_of.get(job.name, ()):
            task = self.tasks.get(name)
            if task is not None:
                yield task

    def update_task(self, task: Task, at: float) -> None:
        """Stores a changed task."""
        self.tasks.put(task.name, task, at)
        self.changed.notify_all()

    def update_job(self, job: Job, at: float) -> None:
        """Stores a changed job."""
        self.jobs.put(job.name, replace(job, updated_at=at), at)
        self.changed.notify_all()

    def set_state(self, job: Job, state: JobState, at: float, why: str = "") -> Job:
        """Changes the state of a job, with an event."""
        text = f"Job state is set from {job.state} to {state} for job {job.name}.{why}"
        job = self.with_event(job, STATUS_CHANGED, text, at)
        if state == JobState.RUNNING:
            job = replace(job, running_since=at)
            self.agenda.at(at + RUNNING_SECONDS, lambda then: self._ran_too_long(job.name, then))
        elif job.running_since is not None and job.state == JobState.RUNNING:
            job = replace(job, ran_seconds=at - job.running_since)
        job = replace(job, state=state)
        self.update_job(job, at)
        if state.is_over:
            self.agenda.at(at + KEPT_SECONDS, lambda then: self.forget(job.name, then))
        return job

    def with_event(self, job: Job, kind: str, text: str, at: float) -> Job:
        """Returns a job with a further event. A repeated event is left out."""
        if kind == INFORMATION and any(one.description == text for one in job.events):
            return job
        return replace(job, events=(*job.events, Event(type=kind, description=text, time=at)))

    def forget(self, name: str, at: float) -> None:
        """Deletes a job and its tasks."""
        self.jobs.put(name, None, at)
        for task in self.tasks_of.pop(name, ()):
            self.tasks.put(task, None, at)

    # jobs

    def create(self, job: Job, now: float) -> None:
        """Stores a new job and its tasks."""
        names = []
        for index in range(job.spec.task_count):
            task = Task(name=f"{job.group}/tasks/{index}", job=job.name, index=index)
            self.tasks.put(task.name, task, now)
            names.append(task.name)
        self.tasks_of[job.name] = tuple(names)
        if self.faults.stuck_next > 0:
            self.faults.stuck_next -= 1
            job = replace(job, is_stuck=True)
        self.update_job(job, now)
        self.agenda.at(now + QUEUED_SECONDS, lambda at: self._waited_too_long(job.name, at))
        self.agenda.at(now + self.faults.queued_seconds, lambda at: self._admit(job.name))

    def _admit(self, name: str) -> None:
        job = self.jobs.get(name)
        if job is not None and job.state == JobState.QUEUED and not job.is_stuck:
            for task in self.latest(job):
                self.wait(task)

    def wait(self, task: Task) -> None:
        """Makes a task wait for a machine."""
        self.waiting[task.name] = None
        self.needs_scheduling()

    def _waited_too_long(self, name: str, at: float) -> None:
        job = self.jobs.get(name)
        if job is not None and job.state == JobState.QUEUED:
            self._stop(self, job, JobState.FAILED, "Job failed because it was QUEUED for 2 days.", at)

    def _ran_too_long(self, name: str, at: float) -> None:
        job = self.jobs.get(name)
        if job is not None and job.state == JobState.RUNNING:
            self._stop(self, job, JobState.FAILED, "Job failed because it was RUNNING for 14 days.", at)

    # machines

    def _schedule(self, now: float) -> None:
        tasks = [one for one in (self.tasks.get(name) for name in self.waiting) if one is not None]
        failed: set[str] = set()
        for task in sorted(tasks, key=lambda one: -self.job(one.job).spec.priority):
            job = self.job(task.job)
            if job.name in failed or job.state.is_ending:
                continue
            reason = self._try_to_place(job, task, now)
            if reason:
                failed.add(job.name)
                self._show(self.job(task.job), reason, now)

    def _show(self, job: Job, reason: str, now: float) -> None:
        if reason.startswith("Job gets non-retryable"):
            job = self.set_state(job, JobState.SCHEDULED, now)
            job = self.with_event(job, INFORMATION, reason, now)
            self._stop(self, job, JobState.FAILED, "", now)
        elif self.faults.shows_reasons and reason != _FULL:
            self.update_job(self.with_event(job, INFORMATION, reason, now), now)

    def _try_to_place(self, job: Job, task: Task, now: float) -> str:
        """Assigns a machine to a task, or returns the reason why there is no machine."""
        own = [one for one in self.machines.values() if one.job == job.name and not one.is_dead]
        idle = next((one for one in own if not one.task), None)
        if idle is None and len(own) >= job.spec.parallelism:
            return _FULL
        machine = idle if idle is not None else self._new_machine(job, now)
        if isinstance(machine, str):
            return machine
        machine = replace(machine, task=task.name)
        self.machines[machine.id] = machine
        del self.waiting[task.name]
        if job.state == JobState.QUEUED:
            self.set_state(job, JobState.SCHEDULED, now)
        self._assign(self, task, machine, now)
        return ""

    def _new_machine(self, job: Job, now: float) -> Machine | str:
        spec = job.spec
        if spec.machine_type not in catalogue.MACHINE_TYPES:
            return NO_SUCH_TYPE.format(kind=spec.machine_type)
        over = self._exceeded_quota(job)
        if over:
            return over
        for zone in spec.zones:
            limit = self.faults.capacity_of(spec.machine_type, zone, spot=spec.is_spot)
            same = [
                one for one in self.machines.values() if (one.type, one.zone) == (spec.machine_type, zone)
            ]
            if limit is None or len(same) < limit:
                return Machine(
                    id=str(self.random.randrange(10**18, 9 * 10**18)),
                    job=job.name,
                    zone=zone,
                    type=spec.machine_type,
                    accelerator=spec.accelerator,
                    accelerators=spec.accelerators,
                    is_spot=spec.is_spot,
                    created_at=now,
                    ready_at=now + self.faults.boot_seconds,
                )
        return NO_CAPACITY

    def _exceeded_quota(self, job: Job) -> str:
        spec = job.spec
        prefix = "PREEMPTIBLE_" if spec.is_spot else ""
        running = [
            one
            for one in self.machines.values()
            if one.zone.startswith(f"{job.location}-") and one.is_spot == spec.is_spot
        ]
        kind = catalogue.MACHINE_TYPES[spec.machine_type]
        processors = sum(catalogue.MACHINE_TYPES[one.type].vcpus for one in running) + kind.vcpus
        gpus = sum(_gpus(one.type, one.accelerators) for one in running)
        wanted = {"CPUS": processors, "GPUS": gpus + _gpus(kind.name, spec.accelerators)}
        for name, value in wanted.items():
            limit = self.faults.quota(prefix + name, job.location, catalogue.QUOTAS[name])
            if value > limit and not (name == "GPUS" and value == gpus):
                return NO_QUOTA.format(quota=prefix + name, limit=float(limit), region=job.location)
        return ""

    def free(self, task: Task, at: float) -> None:
        """Removes a task from its machine. A machine that the job does not need any more ends."""
        machine = self.machines.get(task.vm_id)
        if machine is None or machine.task != task.name:
            return
        self.machines[machine.id] = replace(machine, task="")
        self.needs_scheduling()
        self.agenda.at(at + self.faults.idle_seconds, lambda then: self._end_idle(machine.id, then))

    def _end_idle(self, machine_id: str, at: float) -> None:
        machine = self.machines.get(machine_id)
        if machine is None or machine.task:
            return
        if not any(self.tasks_of_waiting(machine.job)):
            self.end_machine(machine, at)

    def tasks_of_waiting(self, job: str) -> Iterator[str]:
        """Yields the names of the tasks of a job that wait for a machine."""
        return (name for name in self.waiting if name.startswith(f"{job}/taskGroups/"))

    def end_idle_machines(self, job: str, at: float) -> None:
        """Ends the machines of a job that have no task."""
        for machine in [one for one in self.machines.values() if one.job == job and not one.task]:
            self.end_machine(machine, at)

    def end_machine(self, machine: Machine, at: float) -> None:
        """Ends a machine, which is charged until then."""
        self.machines.pop(machine.id, None)
        self.ended_machines.append(replace(machine, ended_at=at))
        self.needs_scheduling()


_FULL = "Enough tasks of the job run."


def _gpus(kind: str, accelerators: int) -> int:
    return catalogue.MACHINE_TYPES[kind].accelerators or accelerators
