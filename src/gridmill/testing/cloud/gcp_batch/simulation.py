"""Starts a simulated Google Cloud Batch, and controls it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gridmill.errors import NotFoundError
from gridmill.ports.clock import Clock
from gridmill.testing.cloud.batch_world import BatchSimulation
from gridmill.testing.cloud.bill import Bill, Charge, Item, by_the_hour, charged_seconds
from gridmill.testing.cloud.cloud_faults import BatchFaults
from gridmill.testing.cloud.containers import Image, Line
from gridmill.testing.cloud.gcp_batch import catalogue, execution
from gridmill.testing.cloud.gcp_batch.api import BatchApi
from gridmill.testing.cloud.gcp_batch.records import Job, JobState, Machine, Task, TaskState
from gridmill.testing.cloud.gcp_batch.world import World
from gridmill.testing.cloud.google_accounts import TOKEN_PATH, AccountControl, Principal
from gridmill.testing.cloud.simulation_server import Answer
from gridmill.testing.cloud.wire_simulation import WallClock

NOTICE_SECONDS = 30.0
"""The notice of a Spot VM. Source: https://cloud.google.com/compute/docs/instances/spot#preemption"""


class GcpBatchSimulation(AccountControl, BatchSimulation):
    """A running simulated Google Cloud Batch with one project. All its methods can be called from any thread.
    `endpoint_url` is the address that replaces `https://batch.googleapis.com`, and `project` the id of the
    project."""

    project = catalogue.PROJECT

    def __init__(
        self, clock: Clock, faults: BatchFaults, images: Mapping[str, Image], seed: int, port: int
    ) -> None:
        self.world = World(clock, faults, images, seed, execution.assign, execution.stop)
        self._api = BatchApi(self.world)
        self.account = self.add_service_account("admin")
        AccountControl.__init__(self, self.world.accounts, self.world.lock, self.account.email)
        BatchSimulation.__init__(self, "gcp-batch", self.world, port)
        self._api.url = self.endpoint_url

    def _respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        return self._api.answer(method, path, headers, body)

    # credentials

    def add_service_account(self, name: str) -> Principal:
        """Adds a service account with a new key."""
        with self.world.lock:
            return self.world.accounts.add(name)

    def key_file(self, account: Principal | None = None) -> dict[str, str]:
        """Returns the content of the key file of a service account. Its tokens come from the simulation."""
        email = (account or self.account).email
        with self.world.lock:
            return self.world.accounts.key_file(email, self.endpoint_url + TOKEN_PATH)

    # what happens

    def jobs(self) -> list[Job]:
        """Returns all jobs as they really are: also those that lists do not show."""
        with self.world.lock:
            self.world.settle()
            return list(self.world.jobs.all())

    def job(self, name: str) -> Job:
        """Returns a job as it really is. Raises NotFoundError."""
        with self.world.lock:
            self.world.settle()
            return self.world.job(name)

    def task(self, name: str, index: int = 0) -> Task:
        """Returns a task of a job as it really is. Raises NotFoundError."""
        with self.world.lock:
            self.world.settle()
            return self._task(name, index)

    def _task(self, name: str, index: int) -> Task:
        task = self.world.tasks.get(f"{name}/taskGroups/group0/tasks/{index}")
        if task is None:
            raise NotFoundError(f"job {name} has no task {index}")
        return task

    def wait(self, name: str, *states: JobState, timeout_seconds: float = 30.0) -> Job:
        """Waits in real time until a job has one of the given states, by default until it is over, and
        returns the job. Raises InputError after the timeout."""
        wanted = states or (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
        self._wait_until(lambda: self.world.job(name).state, wanted, timeout_seconds)
        return self.job(name)

    def wait_for_task(self, name: str, index: int, *states: TaskState, timeout_seconds: float = 30.0) -> Task:
        """Waits in real time until a task has one of the given states, and returns the task. Raises
        InputError after the timeout."""
        self._wait_until(lambda: self._task(name, index).state, states, timeout_seconds)
        return self.task(name, index)

    def output(self, name: str, index: int = 0) -> list[Line]:
        """Returns the output of the present or last container of a task."""
        return self.world.containers.lines(self.task(name, index).run)

    def machines(self) -> list[Machine]:
        """Returns the VMs that exist now."""
        with self.world.lock:
            self.world.settle()
            return list(self.world.machines.values())

    def leftovers(self) -> list[str]:
        """Returns the names of everything that still runs or waits: jobs, and VMs."""
        with self.world.lock:
            self.world.settle()
            jobs = [one.name for one in self.world.jobs.all() if not one.state.is_over]
            return [*jobs, *self.world.machines]

    def bill(self) -> Bill:
        """Returns the bill of the project until now. Batch is free; its VMs are charged by the second."""
        with self.world.lock:
            now = self.world.settle()
            machines = [*self.world.ended_machines, *self.world.machines.values()]
            return Bill(items=tuple(_item(one, now) for one in machines))

    def preempt(self, name: str, index: int = 0) -> None:
        """Compute Engine gives the Spot VM of a task its notice, and stops it when the notice has passed."""
        with self.world.lock:
            now = self.world.settle()
            execution.preempt(self.world, self._machine_of(name, index), now)
            self.world.settle()

    def break_machine(self, name: str, index: int = 0) -> None:
        """The VM of a task dies. Batch sees it after `faults.lost_after_seconds`."""
        with self.world.lock:
            now = self.world.settle()
            execution.break_machine(self.world, self._machine_of(name, index), now)
            self.world.settle()

    def _machine_of(self, name: str, index: int) -> str:
        machine_id = self._task(name, index).vm_id
        if machine_id not in self.world.machines:
            raise NotFoundError(f"task {index} of job {name} has no VM")
        return machine_id

    def _commands(self) -> Mapping[str, Callable[[dict[str, Any]], Any]]:
        return {
            "jobs": lambda _: [{"name": one.name, "state": one.state} for one in self.jobs()],
            "preempt": lambda given: self.preempt(given["job"], given.get("task", 0)),
            "break": lambda given: self.break_machine(given["job"], given.get("task", 0)),
            "expire-tokens": lambda _: self.expire_tokens(),
            "revoke": lambda _: self.revoke(),
            "restore": lambda _: self.restore(),
            "deny": lambda given: self.deny(*given["methods"]),
        }


def _item(machine: Machine, now: float) -> Item:
    until = now if machine.ended_at is None else machine.ended_at
    seconds = charged_seconds([(machine.created_at, until)])
    price = catalogue.hourly_micros(
        machine.type, machine.accelerator, machine.accelerators, spot=machine.is_spot
    )
    return Item(
        charge=Charge.MACHINE,
        subject=machine.id,
        detail=f"{machine.type} {'spot' if machine.is_spot else 'standard'} {machine.zone}",
        seconds=seconds,
        amount_micros=by_the_hour(seconds, price),
        is_running=machine.ended_at is None,
    )


@contextmanager
def simulated_gcp_batch(
    *,
    images: Mapping[str, Image],
    clock: Clock | None = None,
    faults: BatchFaults | None = None,
    seed: int = 0,
    port: int = 0,
) -> Iterator[GcpBatchSimulation]:
    """Starts a simulated Google Cloud Batch for the duration of the `with` block. `images` are the container
    images that jobs can name. Without a clock, it uses the clock of this machine.

    The ids and the random faults are the same for the same `seed` and the same requests. `port` is the port
    of the server; 0 means any free port. The simulation needs the package `cryptography`.
    """
    faults = faults or BatchFaults(seed=seed, notice_seconds=NOTICE_SECONDS)
    simulation = GcpBatchSimulation(clock or WallClock(), faults, images, seed, port)
    try:
        yield simulation
    finally:
        simulation.close()
