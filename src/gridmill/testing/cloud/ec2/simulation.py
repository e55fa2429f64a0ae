"""Starts a simulated EC2, and controls it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gridmill.ports.clock import Clock
from gridmill.testing.cloud.bill import Bill
from gridmill.testing.cloud.cloud_faults import CloudFaults
from gridmill.testing.cloud.ec2.accounts import bill_of, leftovers
from gridmill.testing.cloud.ec2.actions import Services
from gridmill.testing.cloud.ec2.records import Instance
from gridmill.testing.cloud.ec2.users import UserControl
from gridmill.testing.cloud.ec2.world import World
from gridmill.testing.cloud.machine_host import MachineHost, NoMachines
from gridmill.testing.cloud.simulation_server import Answer
from gridmill.testing.cloud.wire_simulation import WallClock, WireSimulation, record_json


class EC2Simulation(UserControl, WireSimulation):
    """A running simulated EC2 with one account. All its methods can be called from any thread.

    `endpoint_url` is the address of all simulated services: the signature of a request names the service and
    the region.
    """

    def __init__(
        self, clock: Clock, faults: CloudFaults, host: MachineHost, seed: int, port: int = 0
    ) -> None:
        self.world = World(clock, faults, host, seed)
        self.services = Services(self.world)
        UserControl.__init__(self, self.world.users, self.world.lock)
        WireSimulation.__init__(self, "ec2", self.world, port)

    def _respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        return self.services.answer(method, path, headers, body)

    def machines(self) -> list[Instance]:
        """Returns all instances of all regions, as they really are: also those that lists do not show."""
        with self.world.lock:
            self.world.settle()
            return list(self.world.instances())

    def running(self) -> list[Instance]:
        """Returns the instances that are pending or running."""
        return [one for one in self.machines() if one.state.uses_quota]

    def leftovers(self) -> list[str]:
        """Returns the ids of everything that still exists in the account: instances, volumes, security
        groups, key pairs and addresses. The defaults of the account are left out."""
        with self.world.lock:
            self.world.settle()
            return leftovers(self.world)

    def bill(self) -> Bill:
        """Returns the bill of the account until now."""
        with self.world.lock:
            return bill_of(self.world, self.world.settle())

    def interrupt(self, instance_id: str) -> None:
        """Gives a spot instance its notice; it is terminated when the notice has passed."""
        with self.world.lock:
            self.world.interrupt(instance_id, self.world.settle())

    def end_notice(self, instance_id: str) -> None:
        """Terminates a spot instance that has got its notice, without waiting for the rest of its time."""
        with self.world.lock:
            self.world.end_notice(instance_id, self.world.settle())

    def break_machine(self, instance_id: str) -> None:
        """The machine dies, but EC2 says that it runs."""
        with self.world.lock:
            self.world.die(instance_id, self.world.settle())

    def fail_hardware(self, instance_id: str) -> None:
        """EC2 terminates the instance because of a failure."""
        with self.world.lock:
            self.world.fail_hardware(instance_id, self.world.settle())

    def shut_down(self, instance_id: str) -> None:
        """The machine shuts itself down, as by `shutdown -h now`."""
        with self.world.lock:
            self.world.shut_down(instance_id, self.world.settle())

    def terminate_by_hand(self, instance_id: str) -> None:
        """Somebody terminates the instance in the console of AWS."""
        with self.world.lock:
            now = self.world.settle()
            instance = self.world.find(instance_id)
            self.world.terminate(instance, "Client.UserInitiatedShutdown", "User initiated shutdown", now)

    def _commands(self) -> Mapping[str, Callable[[dict[str, Any]], Any]]:
        return {
            "machines": lambda _: [_machine_json(one) for one in self.machines()],
            "interrupt": lambda given: self.interrupt(given["instance"]),
            "break": lambda given: self.break_machine(given["instance"]),
            "shut-down": lambda given: self.shut_down(given["instance"]),
            "terminate": lambda given: self.terminate_by_hand(given["instance"]),
            **self._user_commands(),
        }


def _machine_json(instance: Instance) -> dict[str, Any]:
    return record_json(instance) | {"tags": dict(instance.tags)}


@contextmanager
def simulated_ec2(
    *,
    clock: Clock | None = None,
    faults: CloudFaults | None = None,
    host: MachineHost | None = None,
    seed: int = 0,
    port: int = 0,
) -> Iterator[EC2Simulation]:
    """Starts a simulated EC2 for the duration of the `with` block. Without arguments, it uses the clock of
    this machine, has no faults, and its machines are only states.

    The ids and the random faults are the same for the same `seed` and the same requests. `port` is the port
    of the server; 0 means any free port. The simulation needs the extra `aws`.
    """
    simulation = EC2Simulation(
        clock or WallClock(), faults or CloudFaults(seed=seed), host or NoMachines(), seed, port
    )
    try:
        yield simulation
    finally:
        simulation.close()
