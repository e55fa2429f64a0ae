"""Starts a simulated AWS Batch, and controls it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gridmill.domain.frozen import replace
from gridmill.errors import InputError, NotFoundError
from gridmill.ports.clock import Clock
from gridmill.testing.cloud.aws_batch import attempts
from gridmill.testing.cloud.aws_batch.bills import bill_of
from gridmill.testing.cloud.aws_batch.records import Environment, Instance, Job, Kind, Queue, Status
from gridmill.testing.cloud.aws_batch.services import Services
from gridmill.testing.cloud.aws_batch.world import World
from gridmill.testing.cloud.batch_world import BatchSimulation
from gridmill.testing.cloud.bill import Bill
from gridmill.testing.cloud.cloud_faults import BatchFaults
from gridmill.testing.cloud.containers import Image, Line
from gridmill.testing.cloud.ec2.users import UserControl
from gridmill.testing.cloud.simulation_server import Answer
from gridmill.testing.cloud.wire_simulation import WallClock


class AwsBatchSimulation(UserControl, BatchSimulation):
    """A running simulated AWS Batch with one account. All its methods can be called from any thread.
    `endpoint_url` is the address of AWS Batch and of CloudWatch Logs: the signature of a request names the
    service and the region."""

    def __init__(
        self, clock: Clock, faults: BatchFaults, images: Mapping[str, Image], seed: int, port: int
    ) -> None:
        self.world = World(clock, faults, images, seed, attempts.begin)
        self.services = Services(self.world)
        UserControl.__init__(self, self.world.users, self.world.lock)
        BatchSimulation.__init__(self, "aws-batch", self.world, port)

    def _respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        return self.services.answer(method, path, headers, body)

    # what an administrator sets up

    def add_environment(
        self,
        name: str,
        *,
        kind: Kind = Kind.EC2,
        max_vcpus: int = 256,
        instance_types: tuple[str, ...] = ("optimal",),
        region: str = "us-east-1",
    ) -> None:
        """Adds a managed compute environment."""
        made = Environment(
            name=name, region=region, kind=kind, max_vcpus=max_vcpus, instance_types=instance_types
        )
        with self.world.lock:
            self.world.environments[(region, name)] = made

    def change_environment(self, name: str, *, region: str = "us-east-1", **changes: Any) -> None:  # noqa: ANN401
        """Changes fields of a compute environment, such as `is_valid=False, status_reason="…"`."""
        with self.world.lock:
            changed = replace(self.world.environments[(region, name)], **changes)
            self.world.environments[(region, name)] = changed
            self.world.needs_scheduling()
            self.world.settle()

    def add_queue(self, name: str, *environments: str, region: str = "us-east-1", priority: int = 1) -> None:
        """Adds a job queue that uses compute environments in the given order. As AWS Batch does, it refuses
        a queue that has Fargate and other environments."""
        with self.world.lock:
            kinds = {self.world.environments[(region, one)].kind.is_fargate for one in environments}
            if len(kinds) != 1:
                raise InputError(f"queue {name} has no environments, or Fargate and other environments")
            made = Queue(name=name, region=region, environments=environments, priority=priority)
            self.world.queues[(region, name)] = made

    def change_queue(self, name: str, *, is_enabled: bool, region: str = "us-east-1") -> None:
        """Enables or disables a job queue."""
        with self.world.lock:
            changed = replace(self.world.queues[(region, name)], is_enabled=is_enabled)
            self.world.queues[(region, name)] = changed

    # what happens

    def jobs(self) -> list[Job]:
        """Returns all jobs, children and nodes in their true states, also jobs that lists do not show."""
        with self.world.lock:
            self.world.settle()
            return list(self.world.jobs.all())

    def job(self, job_id: str) -> Job:
        """Returns a job as it really is. Raises NotFoundError."""
        with self.world.lock:
            self.world.settle()
            return self.world.find(job_id)

    def wait(self, job_id: str, *statuses: Status, timeout_seconds: float = 30.0) -> Job:
        """Waits in real time until a job has one of the given statuses, by default until it is over, and
        returns the job. Raises InputError after the timeout."""
        wanted = statuses or (Status.SUCCEEDED, Status.FAILED)
        self._wait_until(lambda: self.world.find(job_id).status, wanted, timeout_seconds)
        return self.job(job_id)

    def output(self, job_id: str) -> list[Line]:
        """Returns the output of the present or last attempt of a job."""
        return self.world.containers.lines(self.job(job_id).task)

    def instances(self) -> list[Instance]:
        """Returns the machines that exist now."""
        with self.world.lock:
            self.world.settle()
            return list(self.world.instances.values())

    def leftovers(self) -> list[str]:
        """Returns the ids of everything that still runs or waits: jobs and instances."""
        with self.world.lock:
            self.world.settle()
            jobs = [one.id for one in self.world.jobs.all() if not one.status.is_over]
            return [*jobs, *self.world.instances]

    def bill(self) -> Bill:
        """Returns the bill of the account until now."""
        with self.world.lock:
            return bill_of(self.world, self.world.settle())

    def reclaim(self, job_id: str) -> None:
        """EC2 gives the Spot instance of a job its notice, and terminates it when the notice has passed."""
        with self.world.lock:
            attempts.reclaim_instance(self.world, self._instance_of(job_id), self.world.settle())
            self.world.settle()

    def break_host(self, job_id: str) -> None:
        """The machine of a job dies. AWS Batch sees it after `faults.lost_after_seconds`."""
        with self.world.lock:
            attempts.break_instance(self.world, self._instance_of(job_id), self.world.settle())
            self.world.settle()

    def terminate_by_hand(self, job_id: str, reason: str = "Terminated in the console") -> None:
        """Terminates a job as a person does in the console of AWS."""
        with self.world.lock:
            now = self.world.settle()
            attempts.cancel(self.world, self.world.find(job_id), reason, now, terminates=True)
            self.world.settle()

    def _instance_of(self, job_id: str) -> str:
        instance_id = self.world.find(job_id).instance_id
        if instance_id not in self.world.instances:
            raise NotFoundError(f"job {job_id} has no instance")
        return instance_id

    def _commands(self) -> Mapping[str, Callable[[dict[str, Any]], Any]]:
        return {
            "jobs": lambda _: [{"id": one.id, "status": one.status} for one in self.jobs()],
            "reclaim": lambda given: self.reclaim(given["job"]),
            "break": lambda given: self.break_host(given["job"]),
            "terminate": lambda given: self.terminate_by_hand(given["job"]),
            **self._user_commands(),
        }


@contextmanager
def simulated_aws_batch(
    *,
    images: Mapping[str, Image],
    clock: Clock | None = None,
    faults: BatchFaults | None = None,
    seed: int = 0,
    port: int = 0,
) -> Iterator[AwsBatchSimulation]:
    """Starts a simulated AWS Batch for the duration of the `with` block. `images` are the container images
    that jobs can name. It has no compute environments and queues: add them with `add_environment` and
    `add_queue`. Without a clock, it uses the clock of this machine.

    The ids and the random faults are the same for the same `seed` and the same requests. `port` is the port
    of the server; 0 means any free port. The simulation needs the extra `aws`.
    """
    faults = faults or BatchFaults(seed=seed)
    simulation = AwsBatchSimulation(clock or WallClock(), faults, images, seed, port)
    try:
        yield simulation
    finally:
        simulation.close()
